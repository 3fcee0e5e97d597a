package readback

import (
	"slices"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

// supervisedPlan is a plan for a host on which the kernel enforces nothing, or for
// one where the policy gives all that it can to the supervisor.
func supervisedPlan(t *testing.T, version int, change func(*limits.Policy)) *limits.Plan {
	t.Helper()
	policy := limits.DefaultPolicy()
	policy.Defaults[limits.KeyCPUTime], policy.Defaults[limits.KeyWallTime] = limits.Limit(5e9), limits.Limit(60e9)
	policy.Defaults[limits.KeyIOReadIOPS] = limits.Limit(100)
	policy.Supervise = limits.Supervisable[:]
	if change != nil {
		change(&policy)
	}
	host := hostOf(version)
	host.Supervisor = limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerSupervisor}
	if version == 0 {
		host.Mechanisms = nil
	}
	plan, err := limits.Resolve(policy, limits.Request{OwnPIDNamespace: true}, host)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func readSupervised(root string, plan *limits.Plan, s Supervision) Report {
	r := reader{fs: cgroup.FS(root), rlimits: rlimits, plan: plan, at: AtStart, supervision: s}
	return r.read(pid)
}

func TestWhatTheSupervisorHasTakenHolds(t *testing.T) {
	plan := supervisedPlan(t, 0, nil)
	report := readSupervised(t.TempDir(), plan, Supervision{Taken: true})
	for name, want := range map[string]string{
		"memory":       "2147483648 supervisor supervisor self " + limits.SupervisorPrecision(limits.KeyMemory),
		"swap":         "0 supervisor supervisor self " + limits.SupervisorPrecision(limits.KeySwap),
		"pids":         "2048 supervisor supervisor self " + limits.SupervisorPrecision(limits.KeyPids),
		"cpu":          "2 supervisor supervisor self " + limits.SupervisorPrecision(limits.KeyCPUs),
		"io_read_bps":  "268435456 supervisor supervisor self " + limits.SupervisorPrecision(limits.KeyIOReadBPS),
		"io_read_iops": "null none   none",
		"io":           "null none   none", // one of its keys does not hold
		"cpu_time":     "5000000000 supervisor supervisor self " + limits.SupervisorPrecision(limits.KeyCPUTime),
		"wall_time":    "60000000000 supervisor supervisor self " + limits.SupervisorPrecision(limits.KeyWallTime),
		"open_files":   "524288 process RLIMIT_NOFILE self per process",
		"disk":         "null none   none",
	} {
		if got := line(report.Enforcement[name]); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if len(report.Warnings) != 0 || len(report.Missing) != 0 {
		t.Errorf("warnings %q, missing %v", report.Warnings, report.Missing)
	}
	if h := report.Held; h.Memory == nil || h.Memory.N != 2<<30 || h.Pids == nil || h.Pids.N != 2048 || h.GroupKill {
		t.Errorf("held %+v", h)
	}
	if u := report.Enforcement["cpu_time"].Unit; u != "nanoseconds" {
		t.Errorf("the unit of cpu_time is %s", u)
	}
	plan = supervisedPlan(t, 0, func(p *limits.Policy) { delete(p.Defaults, limits.KeyIOReadIOPS) })
	report = readSupervised(t.TempDir(), plan, Supervision{Taken: true})
	if got, want := line(report.Enforcement["io"]), "null supervisor supervisor self "+limits.SupervisorPrecision(limits.KeyIOReadBPS); got != want {
		t.Errorf("io: %q, want %q", got, want)
	}
}

func TestWhatTheSupervisorHasNotTakenDoesNotHold(t *testing.T) {
	plan := supervisedPlan(t, 0, func(p *limits.Policy) {
		p.Mode, p.StrictRequire = limits.ModeStrict, []limits.Dimension{limits.WallTime}
	})
	report := readSupervised(t.TempDir(), plan, Supervision{Reason: "it does not answer"})
	for _, name := range []string{"memory", "swap", "pids", "cpu", "io_read_bps", "io_write_bps", "io", "cpu_time", "wall_time"} {
		e := report.Enforcement[name]
		if got := line(e); got != "null none   none" {
			t.Errorf("%s: %q", name, got)
		}
		if !strings.Contains(e.Detail, "was planned and the supervisor has not taken the sandbox: it does not answer") {
			t.Errorf("%s: detail %q", name, e.Detail)
		}
	}
	all := strings.Join(report.Warnings, "\n")
	for _, key := range []string{"memory: 2GiB was", "swap: 0 was", "pids: 2048 was", "cpus: 2 was", "io_read_bps: 256MiB was", "wall_time: 1m0s was"} {
		if !strings.Contains(all, key) {
			t.Errorf("warnings %q have no %q", report.Warnings, key)
		}
	}
	if m := report.Missing; len(m) != 1 || m[0].Dimension != limits.WallTime || !strings.Contains(m[0].Reason, "it does not answer") {
		t.Errorf("missing %+v, want wall_time", m)
	}
	if report.Held.Memory != nil || report.Held.Pids != nil {
		t.Errorf("held %+v", report.Held)
	}
}

// TestAStricterCgroupAboveIsTheKernels: what holds is the tightest, whoever was
// meant to enforce. The slice above the container's cgroup has 1024 tasks.
func TestAStricterCgroupAboveIsTheKernels(t *testing.T) {
	tree := cgrouptest.Tree(t, "v2")
	for _, file := range []string{"memory.max", "memory.swap.max", "pids.max"} {
		cgrouptest.Write(t, tree, dir+file, "max\n")
	}
	cgrouptest.Write(t, tree, dir+"cpu.max", "max 100000\n")
	for _, c := range []struct {
		pids  int64
		taken bool
		want  string
	}{
		{2048, true, "1024 kernel pids.max /sys/fs/cgroup/system.slice exact"},
		{2048, false, "1024 kernel pids.max /sys/fs/cgroup/system.slice exact"},
		{512, true, "512 supervisor supervisor self " + limits.SupervisorPrecision(limits.KeyPids)},
		{512, false, "1024 kernel pids.max /sys/fs/cgroup/system.slice exact"},
	} {
		plan := supervisedPlan(t, 2, func(p *limits.Policy) { p.Defaults[limits.KeyPids] = limits.Limit(c.pids) })
		report := readSupervised(tree, plan, Supervision{Taken: c.taken, Reason: "no"})
		if got := line(report.Enforcement["pids"]); got != c.want {
			t.Errorf("pids %d, taken %v: %q, want %q", c.pids, c.taken, got, c.want)
		}
		lost := slices.ContainsFunc(report.Warnings, func(w string) bool { return strings.HasPrefix(w, "pids: ") })
		if want := !c.taken && c.pids == 512; lost != want {
			t.Errorf("pids %d, taken %v: warnings %q", c.pids, c.taken, report.Warnings)
		}
		if held := report.Held.Pids; held == nil || held.N != min(1024, c.pids) && c.taken {
			t.Errorf("pids %d, taken %v: held %+v", c.pids, c.taken, held)
		}
	}
}

func TestModeOffNeedsNoSupervisor(t *testing.T) {
	plan := supervisedPlan(t, 0, func(p *limits.Policy) { p.Mode = limits.ModeOff })
	report := readSupervised(t.TempDir(), plan, Supervision{Taken: true})
	for _, name := range []string{"memory", "io_read_bps", "cpu_time"} {
		if e := report.Enforcement[name]; e.Enforcer != limits.EnforcerNone || !strings.Contains(e.Detail, "mode off: it would be") {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
