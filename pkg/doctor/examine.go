package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
)

// resolved is what limits.Resolve says for a container that asks for nothing.
type resolved struct {
	plan    *limits.Plan
	missing []limits.Missing // of Facts.Required, in strict mode
	refused string           // why no such container can start, whatever the mode; plan is nil then
}

// Examine says what the facts mean. It is pure: the same facts give the same
// report.
func Examine(f Facts) Report {
	r := resolve(&f)
	report := Report{
		Required: f.Required,
		Kernel:   f.Kernel.Release,
		Cgroup:   cgroupReport(&f),
		Configuration: ConfigurationReport{
			Path: f.Config.Path, Found: f.Config.Found, Mode: f.Config.Policy.Mode,
			Problem: cmp.Or(f.Config.Problem, r.refused),
		},
		Runtime: RuntimeReport{Name: cmp.Or(f.Runtime.Program, f.Runtime.Name), Path: f.Runtime.Path, Version: f.Runtime.Version},
	}
	report.Supervisor = supervisorReport(&f)
	for _, m := range r.missing {
		report.Missing = append(report.Missing, Missing(m))
	}
	if r.plan != nil {
		report.Dimensions = dimensions(&f, r)
		report.GroupKill = groupKill(&f, r.plan)
		report.Disks = f.Host.IO.Disks
	}
	for _, check := range checks {
		report.Findings = append(report.Findings, check(&f, r)...)
	}
	isError := func(x Finding) bool { return x.Level == Error }
	report.Ready = len(report.Missing) == 0 && !slices.ContainsFunc(report.Findings, isError)
	return report
}

// resolve asks twice: in mode auto for what a container gets, and in strict mode
// for what is missing of what is required.
func resolve(f *Facts) *resolved {
	policy := f.Config.Policy
	policy.Mode = limits.ModeAuto
	request := limits.Request{OwnPIDNamespace: true}
	plan, err := limits.Resolve(policy, request, f.Host)
	if err != nil {
		return &resolved{refused: err.Error()}
	}
	r := &resolved{plan: plan}
	policy.Mode, policy.StrictRequire = limits.ModeStrict, f.Required
	_, err = limits.Resolve(policy, request, f.Host)
	if strict, ok := errors.AsType[*limits.UnenforceableError](err); ok {
		r.missing = strict.Missing
	}
	return r
}

func cgroupReport(f *Facts) CgroupReport {
	c := CgroupReport{Version: f.Host.CgroupVersion, Driver: "cgroupfs"}
	c.Hybrid = c.Version == 1 && f.Cgroup.V2 != ""
	if f.Cgroup.Systemd {
		c.Driver = "systemd"
	}
	if n := len(f.Cgroup.Chain); n > 0 {
		c.Folder = f.Cgroup.Chain[n-1].Path
	}
	return c
}

// dimensions makes the row of each dimension.
func dimensions(f *Facts, r *resolved) map[limits.Dimension]Dimension {
	rows := map[limits.Dimension]Dimension{}
	for _, info := range limits.Keys {
		if _, made := rows[info.Dimension]; !made {
			rows[info.Dimension] = dimension(f, r, info.Dimension)
		}
	}
	return rows
}

func dimension(f *Facts, r *resolved, d limits.Dimension) Dimension {
	row := Dimension{Required: slices.Contains(f.Required, d)}
	var reasons, details []string
	for _, e := range r.plan.Entries {
		if e.Dimension != d || e.Value.None {
			continue
		}
		info, _ := e.Key.Info() // the keys of a plan are known
		row.Limits = append(row.Limits, Limit{
			Key: e.Key, Effective: *result.NumberOf(info, e.Value), Unit: result.UnitOf(info),
			Enforcer: e.Enforcer, Mechanism: e.Mechanism, Precision: e.Precision,
		})
		details = append(details, e.Detail)
		if e.Enforcer == limits.EnforcerNone {
			reasons = append(reasons, cmp.Or(f.Host.Mechanisms[e.Key].Reason, e.Detail))
		}
	}
	row.Answer = answer(row.Limits)
	if d == limits.IO && row.Answer == Enforced && len(r.plan.IO.Diskless) > 0 {
		row.Answer, reasons = Partly, details
	}
	row.Reason, row.Detail = join(reasons), join(details)
	row.Fix = fixOf(f, r, d, row)
	return row
}

// join lists texts, each once.
func join(list []string) string {
	var kept []string
	for _, text := range list {
		if text != "" && !slices.Contains(kept, text) {
			kept = append(kept, text)
		}
	}
	return strings.Join(kept, "; ")
}

// answer sums up the limits of one dimension.
func answer(list []Limit) Answer {
	count := map[limits.Enforcer]int{}
	for _, l := range list {
		count[l.Enforcer]++
	}
	switch len(list) {
	case 0:
		return NotLimited
	case count[limits.EnforcerNone]:
		return NotEnforced
	case count[limits.EnforcerProcess]:
		return PerProcess
	case count[limits.EnforcerKernel]:
		return Enforced
	case count[limits.EnforcerKernel] + count[limits.EnforcerSupervisor]:
		return Supervised
	}
	return Partly
}

// fixOf finds what to do about a dimension that does not hold.
func fixOf(f *Facts, r *resolved, d limits.Dimension, row Dimension) *Fix {
	switch row.Answer {
	case NotLimited:
		if row.Required {
			return setLimit(f, d)
		}
	case NotEnforced, Partly:
		if d == limits.IO && len(r.plan.IO.Diskless) > 0 {
			return disklessFix(f)
		}
		for _, l := range row.Limits {
			if l.Enforcer == limits.EnforcerNone {
				return mechanismFix(f, r.plan, l.Key)
			}
		}
	case Supervised: // the kernel would be better
		for _, l := range row.Limits {
			if l.Enforcer == limits.EnforcerSupervisor && f.Host.Mechanisms[l.Key].Enforcer == limits.EnforcerNone {
				return mechanismFix(f, r.plan, l.Key)
			}
		}
	}
	return nil
}

func supervisorReport(f *Facts) SupervisorReport {
	s := SupervisorReport{Program: f.Supervisor}
	if f.Host.Supervisor.Enforcer != limits.EnforcerSupervisor {
		s.Reason = cmp.Or(f.Host.Supervisor.Reason, "nobody has looked for one")
		return s
	}
	s.Available, s.Reason, s.Stops = true, f.Host.SupervisorNoIO, cmp.Or(f.Freezer, "SIGSTOP")
	return s
}

// setLimit is for a dimension that is required and has no limit. Where nothing
// could enforce one, setting it would not help.
func setLimit(f *Facts, d limits.Dimension) *Fix {
	fix := &Fix{Text: fmt.Sprintf("set a limit for %s in %s", d, f.Config.Path)}
	defaults := limits.DefaultPolicy().Defaults
	for _, info := range limits.Keys {
		if info.Dimension != d {
			continue
		}
		if f.Host.Mechanisms[info.Key].Enforcer == "" {
			return nil
		}
		if v, ok := defaults[info.Key]; ok && info.Kind == limits.Dumps {
			fix.Lines = append(fix.Lines, fmt.Sprintf("%s = %s", info.Key, info.String(v)))
		} else if ok {
			fix.Lines = append(fix.Lines, fmt.Sprintf("%s = %q", info.Key, info.String(v)))
		}
	}
	if fix.Lines != nil {
		fix.Lines = slices.Insert(fix.Lines, 0, "[limits]")
	}
	return fix
}

// groupKill says whether a sandbox ends as one; it comes with the limit of
// memory.
func groupKill(f *Facts, plan *limits.Plan) GroupKill {
	memory := plan.Entry(limits.KeyMemory)
	switch {
	case plan.GroupKill:
		return GroupKill{Answer: Enforced, Mechanism: f.Host.GroupKill.Name}
	case plan.OOMScope != limits.ScopeContainer:
		return GroupKill{Answer: NotLimited, Reason: fmt.Sprintf("the configuration has the oom scope %s", plan.OOMScope)}
	case memory.Value.None:
		return GroupKill{Answer: NotLimited, Reason: "the configuration has no limit for memory"}
	case memory.BySupervisor():
		return GroupKill{Answer: Supervised, Mechanism: limits.SupervisorName}
	case f.Host.CgroupVersion == 1:
		return GroupKill{Answer: NotEnforced, Reason: f.Host.GroupKill.Reason, Fix: unified(f)}
	case !memory.ByKernel():
		return GroupKill{Answer: NotEnforced, Reason: f.Host.GroupKill.Reason, Fix: mechanismFix(f, plan, limits.KeyMemory)}
	}
	return GroupKill{Answer: NotEnforced, Reason: f.Host.GroupKill.Reason} // a finding says what is lost, and what to do
}
