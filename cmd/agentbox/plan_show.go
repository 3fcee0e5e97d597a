package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/limits"
)

// plan writes what would become of one container.
func (p *printer) plan(o *outcome) {
	heading, status := cmp.Or(clean(o.path), "no bundle, annotations only"), p.paint(green, "WOULD START")
	if o.refused {
		status = p.paint(red, "WOULD BE REFUSED")
	}
	p.line(p.paint(bold, heading) + "  " + status)
	p.table(planSummary(o.plan))
	p.section("Limits", planRows(o.plan))
	p.section("Disks", planDiskRows(o))
	p.section("Warnings", listRows(o.warnings))
}

func planSummary(plan *limits.Plan) [][]string {
	rows := [][]string{{"settings", planSettings(plan)}}
	if plan.CgroupVersion == 0 {
		rows = append(rows, []string{"cgroup", "none"})
	} else {
		rows = append(rows, []string{"cgroup", fmt.Sprintf("version %d", plan.CgroupVersion)})
	}
	rows = append(rows, []string{"group kill", groupKillWords(plan)}, []string{"oom_score_adj", fmt.Sprint(plan.OOMScoreAdj)})
	if plan.CPUPeriod != 0 {
		rows = append(rows, []string{"cpu quota", fmt.Sprintf("%d µs in every %d µs", plan.CPUQuota, plan.CPUPeriod)})
	}
	return rows
}

func planSettings(plan *limits.Plan) string {
	mode := "mode " + string(plan.Mode)
	switch plan.Mode {
	case limits.ModeOff:
		mode += " (agentbox would change nothing; under another mode it would set this)"
	case limits.ModeStrict:
		required := make([]string, 0, len(plan.StrictRequire))
		for _, d := range plan.StrictRequire {
			required = append(required, string(d))
		}
		mode += " (requires " + strings.Join(required, " ") + ")"
	}
	words := []string{mode, "oom scope " + string(plan.OOMScope)}
	if plan.Profile != "" {
		words = append(words, "profile "+plan.Profile)
	}
	return clean(strings.Join(words, ", "))
}

func groupKillWords(plan *limits.Plan) string {
	if plan.Entry(limits.KeyMemory).BySupervisor() {
		return "yes: out of memory, the supervisor ends the sandbox as one"
	}
	if plan.GroupKill {
		return "yes: out of memory, the sandbox ends as one (memory.oom.group)"
	}
	return "no: out of memory, the kernel picks one process"
}

// planRows is the table of limits, with its head.
func planRows(plan *limits.Plan) [][]string {
	rows := [][]string{{"KEY", "REQUESTED", "VALUE", "SOURCE", "ENFORCER", "MECHANISM", "DETAIL"}}
	for _, e := range plan.Entries {
		info, _ := e.Key.Info() // the keys of a plan are known
		requested := "-"
		if e.Requested != nil {
			requested = valueWords(info, *e.Requested)
		}
		rows = append(rows, []string{
			string(e.Key), requested, valueWords(info, e.Value), string(e.Source), string(e.Enforcer),
			clean(cmp.Or(e.Mechanism, "-")), clean(withPrecision(e.Precision, e.Detail)),
		})
	}
	return rows
}

// valueWords writes a value; a rate with its "per second", which the
// configuration leaves out.
func valueWords(info limits.KeyInfo, v limits.Value) string {
	if rate := info.Dimension == limits.IO || info.Dimension == limits.Network; rate && !v.None {
		return info.String(v) + "/s"
	}
	return info.String(v)
}

// planDiskRows is the table of disks, with its head.
func planDiskRows(o *outcome) [][]string {
	plan := o.plan
	switch {
	case o.path == "" && slices.ContainsFunc(plan.Entries, isDiskLimit):
		return [][]string{{"not looked for: they are behind a container's files, and there is no bundle"}}
	case len(plan.IO.Disks) == 0:
		return nil
	}
	rows := [][]string{{"DISK", "DEVICE", "BEHIND", "READ", "WRITE", "READ OPS", "WRITE OPS", "FILESYSTEM", "WHAT COUNTS"}}
	for _, d := range plan.IO.Disks {
		row := []string{clean(d.Name), d.Device.String(), clean(placeWords(d.Places, d.MorePlaces))}
		for _, key := range limits.IOKeys {
			row = append(row, rateWords(plan, d, key))
		}
		rows = append(rows, append(row, clean(cmp.Or(d.Filesystem, "-")), clean(d.Counted)))
	}
	return rows
}

func isDiskLimit(e limits.Entry) bool { return e.Dimension == limits.IO && e.ByKernel() }

// rateWords is one rate of a disk, and where it came from if that is not where
// the key's own value did.
func rateWords(plan *limits.Plan, d limits.DiskPlan, key limits.Key) string {
	i := slices.IndexFunc(d.Limits, func(l limits.DiskLimit) bool { return l.Key == key })
	if i < 0 {
		return "-"
	}
	info, _ := key.Info() // an IOKey is a key
	words := valueWords(info, d.Limits[i].Value)
	if source := d.Limits[i].Source; source != plan.Entry(key).Source {
		words += " (" + string(source) + ")"
	}
	return words
}
