package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/doctor"
	"github.com/agentbox/agentbox/pkg/limits"
)

// doctor writes a report for people.
func (p *printer) doctor(r doctor.Report) {
	status := p.paint(green, "READY")
	if !r.Ready {
		status = p.paint(red, "NOT READY")
	}
	p.line(p.paint(bold, "this host") + "  " + status)
	p.table(doctorSummary(r))
	p.section("Limits", doctorRows(r))
	p.section("Disks", doctorDiskRows(r.Disks))
	p.section("Findings", findingRows(r.Findings))
	p.fixes(r)
}

func doctorSummary(r doctor.Report) [][]string {
	rows := [][]string{{"kernel", clean(cmp.Or(r.Kernel, "not known"))}, {"cgroup", cgroupWords(r.Cgroup)}}
	settings := r.Configuration.Path
	switch {
	case r.Configuration.Problem != "":
		settings += ", cannot be used"
	case !r.Configuration.Found:
		settings += " is not there: built-in settings"
	}
	rows = append(rows, []string{"settings", clean(settings + ", mode " + string(r.Configuration.Mode))})
	rows = append(rows, []string{"required", cmp.Or(names(r.Required), "nothing")})
	if missing := missingNames(r); missing != "" {
		rows = append(rows, []string{"missing", missing})
	}
	return append(rows, []string{"runtime", runtimeWords(r.Runtime)}, []string{"supervisor", supervisorWords(r.Supervisor)})
}

func supervisorWords(s doctor.SupervisorReport) string {
	if !s.Available {
		return clean("no: " + s.Reason)
	}
	words := fmt.Sprintf("yes (%s), holds sandboxes back by %s", s.Program, s.Stops)
	if s.Reason != "" {
		words += "; " + s.Reason
	}
	return clean(words)
}

func names(list []limits.Dimension) string {
	words := make([]string, 0, len(list))
	for _, d := range list {
		words = append(words, string(d))
	}
	return clean(strings.Join(words, " "))
}

func cgroupWords(c doctor.CgroupReport) string {
	words := "not mounted"
	if c.Version > 0 {
		words = fmt.Sprintf("version %d", c.Version)
	}
	if c.Hybrid {
		words += " (hybrid)"
	}
	words += ", " + c.Driver + " driver"
	if c.Folder != "" {
		words += ", below " + c.Folder
	}
	return clean(words)
}

func runtimeWords(r doctor.RuntimeReport) string {
	words := []string{r.Name}
	if r.Version != "" {
		words = append(words, r.Version)
	}
	return clean(strings.Join(append(words, "("+cmp.Or(r.Path, "not found")+")"), " "))
}

// doctorRows is the table of dimensions, with its head; the group kill stands
// below memory, which it belongs to.
func doctorRows(r doctor.Report) [][]string {
	if len(r.Dimensions) == 0 {
		return nil
	}
	rows := [][]string{{"DIMENSION", "LIMIT", "REQUIRED", "ENFORCED", "HELD BY", "DETAIL"}}
	for _, name := range dimensionNames() {
		d, ok := r.Dimensions[limits.Dimension(name)]
		if !ok {
			continue
		}
		required := "-"
		if d.Required {
			required = "yes"
		}
		rows = append(rows, []string{name, limitWords(d.Limits), required, answerWords(d.Answer), mechanismWords(d.Limits), clean(detailWords(d))})
		if name == string(limits.Memory) {
			g := r.GroupKill
			rows = append(rows, []string{"  group kill", "-", "-", answerWords(g.Answer), clean(cmp.Or(g.Mechanism, "-")), clean(g.Reason)})
		}
	}
	return rows
}

// detailWords is why a dimension does not hold, else all there is to say, with the
// precision of the supervisor first.
func detailWords(d doctor.Dimension) string {
	var words []string
	for _, l := range d.Limits {
		if l.Precision != "" && !slices.Contains(words, l.Precision) {
			words = append(words, l.Precision)
		}
	}
	return withPrecision(strings.Join(words, "; "), cmp.Or(d.Reason, d.Detail))
}

func answerWords(a doctor.Answer) string { return clean(strings.ReplaceAll(string(a), "_", " ")) }

// limitWords lists the limits of a dimension, with their keys where there are
// several.
func limitWords(list []doctor.Limit) string {
	var words []string
	for _, l := range list {
		n := l.Effective
		text := amount(&n, l.Unit, "-")
		if len(list) > 1 {
			text = string(l.Key) + " " + text
		}
		words = append(words, text)
	}
	return cmp.Or(clean(strings.Join(words, ", ")), "-")
}

// mechanismWords lists what holds the limits of a dimension. Cgroup v1 has a file
// for each rate of a disk.
func mechanismWords(list []doctor.Limit) string {
	var words []string
	for _, l := range list {
		name, _, _ := strings.Cut(l.Mechanism, ".read_")
		name, _, _ = strings.Cut(name, ".write_")
		if name != "" && !slices.Contains(words, name) {
			words = append(words, name)
		}
	}
	return cmp.Or(clean(strings.Join(words, ", ")), "-")
}

// doctorDiskRows is the table of disks, with its head.
func doctorDiskRows(disks []limits.BlockDevice) [][]string {
	if len(disks) == 0 {
		return nil
	}
	rows := [][]string{{"DISK", "DEVICE", "BEHIND", "FILESYSTEM", "WHAT COUNTS"}}
	for _, d := range disks {
		rows = append(rows, []string{
			clean(d.Name), d.Device.String(), clean(placeWords(d.Places, d.MorePlaces)), clean(cmp.Or(d.Filesystem, "-")), clean(d.Counted),
		})
	}
	return rows
}

func findingRows(findings []doctor.Finding) [][]string {
	var rows [][]string
	for _, x := range findings {
		rows = append(rows, []string{clean(string(x.Level)), clean(x.Check), clean(x.Text)})
	}
	return rows
}

// remedy is one fix, and all that it is for.
type remedy struct {
	fix doctor.Fix
	of  []string
}

// fixes writes each fix once, with its lines as they are to be pasted.
func (p *printer) fixes(r doctor.Report) {
	for i, x := range remedies(r) {
		if i == 0 {
			p.line("")
			p.line(p.paint(bold, "Fixes"))
		}
		p.line("  " + clean(strings.Join(x.of, ", ")+": "+x.fix.Text))
		for _, line := range x.fix.Lines {
			p.line("      " + clean(line))
		}
	}
}

// remedies collects the fixes of a report in the order of its rows.
func remedies(r doctor.Report) []remedy {
	var list []remedy
	add := func(name string, fix *doctor.Fix) {
		if fix == nil {
			return
		}
		same := func(x remedy) bool { return x.fix.Text == fix.Text && slices.Equal(x.fix.Lines, fix.Lines) }
		i := slices.IndexFunc(list, same)
		if i < 0 {
			i = len(list)
			list = append(list, remedy{fix: *fix})
		}
		if !slices.Contains(list[i].of, name) { // a check can have the name of a dimension
			list[i].of = append(list[i].of, name)
		}
	}
	for _, name := range dimensionNames() {
		add(name, r.Dimensions[limits.Dimension(name)].Fix)
		if name == string(limits.Memory) {
			add("group kill", r.GroupKill.Fix)
		}
	}
	for _, x := range r.Findings {
		add(x.Check, x.Fix)
	}
	return list
}
