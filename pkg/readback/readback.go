// Package readback compares a plan with what the kernel says: the limits of a
// container's cgroup and first process as they really hold, whatever the
// low-level runtime did with the specification.
package readback

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// Report is what was found.
type Report struct {
	Cgroup      *cgroup.Paths // nil: no cgroup was found
	Enforcement map[string]result.Enforcement
	Held        verdict.Limits
	Missing     []limits.Missing // dimensions of Plan.StrictRequire that do not hold
	Warnings    []string
}

// cpuSlack is by how much, in millionths of a CPU, the effective share may be
// above the plan: systemd rounds it up to a hundredth of a CPU.
const cpuSlack = 10_000

// Moment is how far the low-level runtime has come.
type Moment uint8

// The moments.
const (
	AtStart Moment = iota // the container is created and waits: everything is set
	AtHook                // a createRuntime hook: the cgroup is set, the rlimits are not
)

// Supervision says whether the supervisor has taken the sandbox, and why not.
type Supervision struct {
	Taken  bool
	Reason string // for a person
}

// Read reads the limits of the container whose first process is pid. It does not
// fail: what cannot be read is reported as enforced by nobody. What the supervisor
// is to enforce holds when it has taken the sandbox.
func Read(plan *limits.Plan, pid int, at Moment, supervision Supervision) Report {
	r := reader{fs: cgroup.Host, rlimits: cgroup.Rlimits, plan: plan, at: at, supervision: supervision}
	return r.read(pid)
}

func (r *reader) read(pid int) Report {
	r.found = map[limits.Key]cgroup.Effective{}
	plan := r.plan
	r.report.Enforcement = make(map[string]result.Enforcement, len(plan.Entries))
	r.readCgroup(pid)
	if r.at == AtStart {
		r.readRlimits(pid)
	} else {
		r.trustRlimits()
	}
	for _, e := range plan.Entries {
		if e.Dimension != limits.IO {
			r.enforcement(e)
		}
	}
	r.io()
	r.groupKill()
	r.strict()
	return r.report
}

type reader struct {
	fs      cgroup.FS
	rlimits func(pid int) (map[limits.Key]cgroup.Effective, error)
	plan    *limits.Plan
	at      Moment

	supervision Supervision

	found     map[limits.Key]cgroup.Effective
	rates     map[limits.Device]cgroup.Rates
	groupKept bool                        // memory.oom.group is 1
	noCgroup  string                      // why the cgroup could not be read
	noRlimits string                      // why the rlimits could not be read
	lost      map[limits.Dimension]string // planned, and not there: why
	report    Report
}

func (r *reader) warnf(format string, args ...any) {
	r.report.Warnings = append(r.report.Warnings, fmt.Sprintf(format, args...))
}

var errNoPid = errors.New("the low-level runtime left no pid of the container")

func (r *reader) readCgroup(pid int) {
	if r.plan.CgroupVersion == 0 {
		return
	}
	if err := r.readCgroupOf(pid); err != nil {
		r.noCgroup = err.Error()
		r.warnf("the limits of the cgroup could not be read back: %v", err)
	}
}

func (r *reader) readCgroupOf(pid int) error {
	if pid <= 0 {
		return errNoPid
	}
	cg, err := cgroup.Of(r.fs, pid)
	if err != nil {
		return err
	}
	if r.plan.Systemd {
		if err := cg.FindUnit(); err != nil {
			return err
		}
	}
	paths := cg.Paths()
	r.report.Cgroup = &paths
	all, err := cg.EffectiveAll()
	if err != nil {
		return err
	}
	maps.Copy(r.found, all)
	if r.groupKept, err = cg.GroupKill(); err != nil {
		return err
	}
	return r.readIO(cg)
}

func (r *reader) readRlimits(pid int) {
	err := errNoPid
	var all map[limits.Key]cgroup.Effective
	if pid > 0 {
		all, err = r.rlimits(pid)
	}
	if err != nil {
		r.noRlimits = err.Error()
		r.warnf("the rlimits could not be read back: %v", err)
		return
	}
	maps.Copy(r.found, all)
}

// trustRlimits takes the planned rlimits for granted: the low-level runtime sets
// them after its hooks, and fails the container if it cannot.
func (r *reader) trustRlimits() {
	if r.plan.Mode == limits.ModeOff {
		return
	}
	for _, e := range r.plan.Entries {
		if isRlimit(e.Key) && e.Applies() {
			r.found[e.Key] = cgroup.Effective{Value: e.Value, Owner: cgroup.Self, Mechanism: e.Mechanism}
		}
	}
}

// enforcement reports one entry. Keys of the same dimension share its report,
// but for memory_high, which is no limit of its own.
func (r *reader) enforcement(e limits.Entry) {
	info, _ := e.Key.Info()
	name := string(e.Dimension)
	if e.Key == limits.KeyMemoryHigh {
		name = string(e.Key)
	}
	have, found := r.found[e.Key]
	holds := found && have.Owner != ""
	if _, shared := r.report.Enforcement[name]; shared || e.Key == limits.KeyMemoryHigh && !holds && e.Value.None {
		return
	}
	out := result.Enforcement{
		Unit: result.UnitOf(info), Source: e.Source, Enforcer: limits.EnforcerNone,
		Precision: "none", Detail: e.Detail,
	}
	if e.Requested != nil {
		out.Requested = result.NumberOf(info, *e.Requested)
	}
	if r.supervises(e) && (!holds || looser(have.Value, e.Value)) {
		r.report.Enforcement[name] = r.supervised(info, e, out)
		if r.supervision.Taken {
			r.hold(e, cgroup.Effective{Value: e.Value, Above: have.Above}, true)
		} else {
			r.lose(e.Key, r.untaken(info, e))
			r.hold(e, have, holds)
		}
		return
	}
	if holds {
		out.Effective = result.NumberOf(info, have.Value)
		out.Owner, out.Mechanism = have.Owner, have.Mechanism
		out.Enforcer, out.Precision = limits.EnforcerKernel, precision(e.Key)
		if isRlimit(e.Key) {
			out.Enforcer = limits.EnforcerProcess
		}
	}
	if isRlimit(e.Key) && holds && r.at == AtHook {
		out.Detail = join(out.Detail, "set by the low-level runtime after this report, not read back")
	}
	if problem := r.problem(info, e, have, found); problem != "" {
		out.Detail = join(out.Detail, problem)
	} else if e.Value.None && !holds {
		out.Detail = join(out.Detail, "no limit is configured")
	}
	r.report.Enforcement[name] = out
	r.hold(e, have, holds)
}

// problem says how what was found falls short of the plan.
func (r *reader) problem(info limits.KeyInfo, e limits.Entry, have cgroup.Effective, found bool) string {
	if r.plan.Mode == limits.ModeOff {
		if e.Value.None {
			return ""
		}
		return "mode off: it would be " + info.String(e.Value)
	}
	if !e.Applies() {
		return ""
	}
	problem := ""
	switch {
	case !found && r.unread(e.Key) != "":
		problem = "could not be read back: " + r.unread(e.Key)
	case !found || have.Mechanism == "":
		problem = fmt.Sprintf("%s was planned and %s is not there", info.String(e.Value), e.Mechanism)
	case have.Value.None || have.Value.N > e.Value.N+slack(e.Key):
		problem = fmt.Sprintf("%s was planned and %s is %s", info.String(e.Value), e.Mechanism, info.String(have.Value))
	default:
		return ""
	}
	r.lose(e.Key, problem)
	return problem
}

// lose notes that a limit that was planned does not hold.
func (r *reader) lose(key limits.Key, problem string) {
	if r.lost == nil {
		r.lost = map[limits.Dimension]string{}
	}
	info, _ := key.Info()
	r.lost[info.Dimension] = problem
	r.warnf("%s: %s", key, problem)
}

// unread says why nothing was read for a key; "" when it was read.
func (r *reader) unread(k limits.Key) string {
	if isRlimit(k) {
		return r.noRlimits
	}
	return r.noCgroup
}

func slack(k limits.Key) int64 {
	if k == limits.KeyCPUs {
		return cpuSlack
	}
	return 0
}

func isRlimit(k limits.Key) bool {
	return k == limits.KeyOpenFiles || k == limits.KeyFileSize || k == limits.KeyCoreDumps
}

// precision says how exact the kernel is.
func precision(k limits.Key) string {
	switch {
	case k == limits.KeyCPUs:
		return "1 ms per CPU and period"
	case isRlimit(k):
		return "per process"
	default:
		return "exact"
	}
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// hold notes what a verdict needs.
func (r *reader) hold(e limits.Entry, have cgroup.Effective, holds bool) {
	if !holds {
		return
	}
	v := have.Value
	switch e.Key {
	case limits.KeyMemory:
		r.report.Held.Memory, r.report.Held.MemoryAbove = &v, have.Above
	case limits.KeyPids:
		r.report.Held.Pids = &v
	}
}

func (r *reader) groupKill() {
	r.report.Held.GroupKill = r.groupKept
	if r.plan.GroupKill && !r.groupKept && r.plan.Mode != limits.ModeOff {
		r.warnf("memory: memory.oom.group is not 1, so that one process is killed and not the whole sandbox")
	}
}

func (r *reader) strict() {
	for _, d := range r.plan.StrictRequire {
		if reason, ok := r.lost[d]; ok {
			r.report.Missing = append(r.report.Missing, limits.Missing{Dimension: d, Reason: reason})
		}
	}
	required := slices.Contains(r.plan.StrictRequire, limits.Memory)
	if required && r.plan.GroupKill && !r.groupKept && r.lost[limits.Memory] == "" {
		r.report.Missing = append(r.report.Missing, limits.Missing{Dimension: limits.Memory, Reason: "memory.oom.group is not 1"})
	}
}
