package readback

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
)

// ioPrecision is by how much the kernel's rate over a second may differ from the
// limit; docs/benchmarks.md has the measurements.
const ioPrecision = "3 % over a second"

const throttleV1 = "blkio.throttle"

// readIO reads the rates of the planned disks.
func (r *reader) readIO(cg *cgroup.Cgroup) error {
	devices := make([]limits.Device, len(r.plan.IO.Disks))
	for i, disk := range r.plan.IO.Disks {
		devices[i] = disk.Device
	}
	if len(devices) == 0 {
		return nil
	}
	var err error
	r.rates, err = cg.EffectiveIO(devices)
	return err
}

// io reports the dimension io: one entry for each key that has a limit, and one
// for the dimension, which lists the disks.
func (r *reader) io() {
	var keys []limits.Key
	for _, key := range limits.IOKeys {
		e := r.plan.Entry(key)
		out := r.ioKey(e)
		limited := !e.Value.None || r.planned(key) || out.Enforcer == limits.EnforcerKernel
		if limited {
			keys = append(keys, key)
		}
		if limited || e.Requested != nil { // no limit, in so many words
			r.report.Enforcement[string(key)] = out
		}
	}
	all := r.dimension(keys)
	for _, disk := range r.plan.IO.Disks {
		all.Disks = append(all.Disks, r.disk(disk))
	}
	r.report.Enforcement[string(limits.IO)] = all
}

const noLimit = "no limit is configured"

// dimension sums the keys of io up: the kernel enforces the dimension when it
// enforces each of them, and the supervisor when it enforces one and nobody none.
func (r *reader) dimension(keys []limits.Key) result.Enforcement {
	all := result.Enforcement{Source: limits.SourceDefault, Enforcer: limits.EnforcerNone, Precision: "none"}
	if len(keys) == 0 {
		all.Detail = noLimit
		return all
	}
	first := r.report.Enforcement[string(keys[0])]
	enforced, owner, detail, details := true, first.Owner, first.Detail, ""
	enforcer, mechanism, exact := first.Enforcer, first.Mechanism, first.Precision
	for _, key := range keys {
		e := r.report.Enforcement[string(key)]
		enforced = enforced && e.Enforcer != limits.EnforcerNone
		if e.Enforcer == limits.EnforcerSupervisor { // the weaker one
			enforcer, mechanism, exact = e.Enforcer, e.Mechanism, e.Precision
		}
		if e.Owner != first.Owner {
			owner = ""
		}
		if e.Detail != "" {
			details = join(details, string(key)+": "+e.Detail)
		}
		if e.Detail != first.Detail {
			detail = ""
		}
	}
	all.Source, all.Detail = first.Source, cmp.Or(detail, details)
	if !enforced {
		return all
	}
	all.Enforcer, all.Precision, all.Mechanism, all.Owner = enforcer, exact, mechanism, owner
	if strings.HasPrefix(all.Mechanism, throttleV1) {
		all.Mechanism = throttleV1 // a file for each key
	}
	return all
}

// planned reports whether a key has a planned rate on some disk.
func (r *reader) planned(key limits.Key) bool {
	return slices.ContainsFunc(r.plan.IO.Disks, func(disk limits.DiskPlan) bool {
		_, ok := limitOf(disk, key)
		return ok
	})
}

// limitOf returns the planned rate of a disk.
func limitOf(disk limits.DiskPlan, key limits.Key) (v limits.Value, ok bool) {
	i := slices.IndexFunc(disk.Limits, func(l limits.DiskLimit) bool { return l.Key == key })
	if i < 0 {
		return limits.NoLimit(), false
	}
	return disk.Limits[i].Value, true
}

// ioKey reports one key over all disks. What is effective is the loosest of
// them, so that no disk of the container gives more: one without a limit makes the
// key not hold, unless only the specification names it.
func (r *reader) ioKey(e limits.Entry) result.Enforcement {
	info, _ := e.Key.Info()
	out := result.Enforcement{Unit: result.UnitOf(info), Source: e.Source, Enforcer: limits.EnforcerNone, Precision: "none", Detail: e.Detail}
	if e.Requested != nil {
		out.Requested = result.NumberOf(info, *e.Requested)
	}
	if r.supervises(e) {
		if !r.supervision.Taken {
			r.loseRate(e.Key, r.untaken(info, e))
		}
		return r.supervised(info, e, out)
	}
	var loosest *cgroup.Effective
	for _, disk := range r.plan.IO.Disks {
		have, found := r.rates[disk.Device][e.Key]
		if !found {
			have.Value = limits.NoLimit()
		}
		want, planned := limitOf(disk, e.Key)
		if planned {
			if problem := r.rateProblem(info, disk.Name, want, have, found); problem != "" {
				out.Detail = join(out.Detail, problem)
			}
		} else if have.Value.None && !disk.Asked && e.ByKernel() {
			problem := "no limit was planned for " + disk.Name
			r.loseRate(e.Key, problem)
			out.Detail = join(out.Detail, problem)
		}
		if counts := planned || !disk.Asked; counts && (loosest == nil || looser(have.Value, loosest.Value)) {
			loosest = &have
		}
	}
	switch {
	case loosest != nil && !loosest.Value.None:
		out.Effective = result.NumberOf(info, loosest.Value)
		out.Owner, out.Mechanism = loosest.Owner, loosest.Mechanism
		out.Enforcer, out.Precision = limits.EnforcerKernel, ioPrecision
	case r.planned(e.Key): // its disks have said what there is to say
	case e.Value.None:
		out.Detail = join(out.Detail, noLimit)
	case r.plan.Mode == limits.ModeOff:
		out.Detail = join(out.Detail, "mode off: it would be "+info.String(e.Value))
	}
	return out
}

// looser reports whether a allows more than b.
func looser(a, b limits.Value) bool {
	return !b.None && (a.None || a.N > b.N)
}

// rateProblem says how the rate of a disk falls short of the plan; empty when it
// does not.
func (r *reader) rateProblem(info limits.KeyInfo, disk string, want limits.Value, have cgroup.Effective, found bool) string {
	if r.plan.Mode == limits.ModeOff {
		return fmt.Sprintf("mode off: it would be %s on %s", info.String(want), disk)
	}
	problem := fmt.Sprintf("%s was planned for %s and ", info.String(want), disk)
	switch {
	case !found && r.noCgroup != "":
		problem += "could not be read back: " + r.noCgroup
	case !found:
		problem += ioFile(r.plan.CgroupVersion, info.Key) + " is not there"
	case looser(have.Value, want):
		problem += have.Mechanism + " is " + info.String(have.Value)
	default:
		return ""
	}
	r.loseRate(info.Key, problem)
	return problem
}

// loseRate is lose for one of several keys and disks: the reason names them all.
func (r *reader) loseRate(key limits.Key, problem string) {
	before := r.lost[limits.IO]
	r.lose(key, problem)
	r.lost[limits.IO] = join(before, string(key)+": "+problem)
}

// ioFile is the file of the cgroup that limits a key.
func ioFile(version int, key limits.Key) string {
	if version == 1 {
		return cgroup.ThrottleFileV1(key)
	}
	return "io.max"
}

// disk reports what holds for one disk.
func (r *reader) disk(p limits.DiskPlan) result.Disk {
	out := result.Disk{Device: p.Device, Name: p.Name, Places: p.Places, MorePlaces: p.MorePlaces, Filesystem: p.Filesystem, Counted: p.Counted}
	for key, to := range map[limits.Key]*result.Number{
		limits.KeyIOReadBPS: &out.ReadBPS, limits.KeyIOWriteBPS: &out.WriteBPS,
		limits.KeyIOReadIOPS: &out.ReadIOPS, limits.KeyIOWriteIOPS: &out.WriteIOPS,
	} {
		if have, ok := r.rates[p.Device][key]; ok {
			info, _ := key.Info()
			*to = result.NumberOf(info, have.Value)
		}
	}
	return out
}
