package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// printer writes results for people.
type printer struct {
	strings.Builder
	colour   bool
	location *time.Location
}

func (p *printer) line(text string) { p.WriteString(text + "\n") }

// table writes rows of cells in columns, indented.
func (p *printer) table(rows [][]string) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, "  "+strings.Join(row, "\t"))
	}
	_ = w.Flush() // a Builder does not fail
	for text := range strings.Lines(b.String()) {
		p.line(strings.TrimRight(text, " \n")) // an empty last cell leaves blanks
	}
}

// section writes a heading and a table, or nothing when there are no rows.
func (p *printer) section(heading string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	p.line("")
	p.line(p.paint(bold, heading))
	p.table(rows)
}

// result writes everything about one sandbox.
func (p *printer) result(r *result.Result) {
	p.line(p.paint(bold, clean(cmp.Or(r.Name, r.ID))) + "  " + p.paint(colourOf(r), verdictWords(r)))
	p.table(p.summary(r))
	p.section("Limits", limitRows(r))
	p.section("Disks", diskRows(r.Enforcement[string(limits.IO)].Disks))
	p.section("Usage", usageRows(r.Usage))
	p.section("Events", eventRows(r.Events))
	p.section("Warnings", listRows(r.Warnings))
	if b := r.Previous; b != nil {
		p.section("Previous run", [][]string{{verdictWords(b) + ", ended " + p.when(b.FinishedAt) + ": " + clean(b.Message)}})
	}
}

// verdictWords is the status, and the code where there is one.
func verdictWords(r *result.Result) string {
	if r.ErrorCode == "" {
		return clean(string(r.Status))
	}
	return clean(string(r.Status) + " " + string(r.ErrorCode))
}

func (p *printer) summary(r *result.Result) [][]string {
	rows := [][]string{{"id", clean(r.ID)}}
	add := func(label, text string) {
		if text != "" {
			rows = append(rows, []string{label, text})
		}
	}
	if r.FinishedAt != nil {
		add("reason", clean(r.Message))
	}
	add("retry", retryWords(r))
	add("exit", exitWords(r))
	add("created", p.when(&r.CreatedAt))
	if r.FinishedAt != nil && r.Status != verdict.Refused {
		add("ended", fmt.Sprintf("%s, after %s", p.when(r.FinishedAt), shortDuration(r.FinishedAt.Sub(r.CreatedAt))))
	}
	add("settings", settingsWords(r))
	return rows
}

func (p *printer) when(t *time.Time) string {
	if t == nil {
		return "at an unknown time"
	}
	return t.In(p.location).Format("2006-01-02 15:04:05 MST")
}

func retryWords(r *result.Result) string {
	switch {
	case r.ErrorCode == "":
		return ""
	case r.Retryable:
		return "the same may go well at another time"
	default:
		return "the same under the same limits will not go better"
	}
}

// exitWords says how the first process ended; nothing for a sandbox that lives
// or never ran.
func exitWords(r *result.Result) string {
	if r.FinishedAt == nil || r.Status == verdict.Refused {
		return ""
	}
	if r.ExitCode == nil {
		return "not known: nobody saw it"
	}
	text := fmt.Sprintf("code %d", *r.ExitCode)
	switch {
	case r.Signal == nil:
		text += ", whether by a signal is not known"
	case *r.Signal != 0:
		text += fmt.Sprintf(", signal %d", *r.Signal)
	}
	return text + " (source: " + clean(string(r.ExitSource)) + ")"
}

func settingsWords(r *result.Result) string {
	words := []string{"mode " + clean(string(r.Mode))}
	if r.Mode == limits.ModeOff {
		words[0] += " (agentbox changed nothing; what holds is the container's own)"
	}
	if r.Scope != "" {
		words = append(words, "oom scope "+clean(string(r.Scope)))
	}
	if r.Profile != "" {
		words = append(words, "profile "+clean(r.Profile))
	}
	return strings.Join(append(words, "door "+clean(string(r.Door))), ", ")
}

// limitRows is the table of limits in the order of limits.Keys, with its head.
func limitRows(r *result.Result) [][]string {
	if len(r.Enforcement) == 0 {
		return nil
	}
	rows := [][]string{{"DIMENSION", "REQUESTED", "EFFECTIVE", "SOURCE", "ENFORCER", "HELD BY", "DETAIL"}}
	for _, name := range dimensions(r.Enforcement) {
		e := r.Enforcement[name]
		rows = append(rows, []string{
			clean(name), amount(e.Requested, e.Unit, "-"), amount(e.Effective, e.Unit, "none"),
			clean(string(e.Source)), clean(string(e.Enforcer)), heldBy(e), clean(enforcementDetail(e)),
		})
	}
	return rows
}

// enforcementDetail is the detail, after the precision of the supervisor; that of
// the kernel needs no words here.
func enforcementDetail(e result.Enforcement) string {
	if e.Enforcer != limits.EnforcerSupervisor {
		return e.Detail
	}
	return withPrecision(e.Precision, e.Detail)
}

func withPrecision(precision, detail string) string {
	if precision == "" || detail == "" {
		return precision + detail
	}
	return precision + "; " + detail
}

// dimensions returns the names of all entries: those of limits.Keys in their
// order, and then what another version may have added.
func dimensions(all map[string]result.Enforcement) []string {
	var names []string
	add := func(name string) {
		if _, there := all[name]; there && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, info := range limits.Keys {
		switch {
		case info.Key == limits.KeyMemoryHigh:
			add(string(info.Key))
		case info.Dimension == limits.IO && hasRates(all):
			add(string(info.Key)) // they tell more than the dimension, which has no number
		default:
			add(string(info.Dimension))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name != string(limits.IO) || !hasRates(all) {
			add(name)
		}
	}
	return names
}

// hasRates reports whether a key of the io dimension has an entry of its own.
func hasRates(all map[string]result.Enforcement) bool {
	return slices.ContainsFunc(limits.IOKeys[:], func(key limits.Key) bool {
		_, has := all[string(key)]
		return has
	})
}

// diskRows is the table of disks, with its head.
func diskRows(disks []result.Disk) [][]string {
	if len(disks) == 0 {
		return nil
	}
	rows := [][]string{{"DISK", "DEVICE", "BEHIND", "READ", "WRITE", "READ OPS", "WRITE OPS", "FILESYSTEM", "WHAT COUNTS"}}
	for _, d := range disks {
		rows = append(rows, []string{
			clean(d.Name), d.Device.String(), clean(placeWords(d.Places, d.MorePlaces)),
			amount(d.ReadBPS, "bytes/s", "-"), amount(d.WriteBPS, "bytes/s", "-"),
			amount(d.ReadIOPS, "operations/s", "-"), amount(d.WriteIOPS, "operations/s", "-"),
			clean(cmp.Or(d.Filesystem, "-")), clean(d.Counted),
		})
	}
	return rows
}

// placeWords lists the first places of a disk, and says how many there are
// besides.
func placeWords(places []string, more int) string {
	const shown = 5
	n := min(shown, len(places))
	words := strings.Join(places[:n], " ")
	if more += len(places) - n; more > 0 {
		words += fmt.Sprintf(" and %d more", more)
	}
	return words
}

// heldBy is the kernel's name for the limit, and where it is set when that is
// not the sandbox itself.
func heldBy(e result.Enforcement) string {
	switch {
	case e.Mechanism == "":
		return "-"
	case e.Owner == "" || e.Owner == "self":
		return clean(e.Mechanism)
	default:
		return clean(e.Mechanism + " of " + e.Owner)
	}
}

// amount writes a limit in its unit; absent is what stands for no number.
func amount(n *json.Number, unit, absent string) string {
	if n == nil {
		return absent
	}
	whole, err := n.Int64()
	switch {
	case err != nil || unit == "cpus":
		return clean(n.String())
	case unit == "bytes":
		return limits.KeyInfo{Kind: limits.Bytes}.String(limits.Limit(whole))
	case unit == "bytes/s":
		return limits.KeyInfo{Kind: limits.Bytes}.String(limits.Limit(whole)) + "/s"
	case unit == "operations/s":
		return n.String() + "/s"
	case unit == "nanoseconds":
		return time.Duration(whole).String()
	}
	return n.String()
}

func usageRows(u *result.Usage) [][]string {
	if u == nil {
		return nil
	}
	var rows [][]string
	add := func(label string, peak, now *int64, write func(int64) string) {
		var parts []string
		if peak != nil {
			parts = append(parts, "peak "+write(*peak))
		}
		if now != nil {
			parts = append(parts, "now "+write(*now))
		}
		if parts != nil {
			rows = append(rows, []string{label, strings.Join(parts, ", ")})
		}
	}
	add("memory", u.MemoryPeakBytes, u.MemoryBytes, roughBytes)
	add("pids", u.PidsPeak, u.Pids, func(n int64) string { return fmt.Sprint(n) })
	if u.CPUUsec != nil {
		rows = append(rows, []string{"cpu time", shortDuration(time.Duration(*u.CPUUsec) * time.Microsecond)})
	}
	return rows
}

// eventRows lists what happened at all.
func eventRows(e result.Events) [][]string {
	var rows [][]string
	for _, event := range []struct {
		name  string
		count int64
		means string
	}{
		{"oom_kill", e.OOMKill, "the kernel killed processes for memory (the number over-counts)"},
		{"oom_group_kill", e.OOMGroupKill, "the kernel killed the whole sandbox"},
		{"pids_max", e.PidsMax, "times a process or thread was refused"},
		{"memory_max", e.MemoryMax, "times memory was held at the limit"},
		{"cpu_throttled", e.CPUThrottled, "periods in which the CPU limit held it back"},
	} {
		if event.count != 0 {
			rows = append(rows, []string{event.name, fmt.Sprint(event.count), event.means})
		}
	}
	return rows
}

func listRows(texts []string) [][]string {
	rows := make([][]string, 0, len(texts))
	for _, text := range texts {
		rows = append(rows, []string{clean(text)})
	}
	return rows
}
