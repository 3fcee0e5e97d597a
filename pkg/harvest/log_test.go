package harvest

import (
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/oomlog"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// TestKernelLog has a sandbox whose cgroup is gone, and what the kernel's log says
// of the time.
func TestKernelLog(t *testing.T) {
	const (
		unit  = "/system.slice/box-1.scope"
		own   = unit + "/container"
		slice = "/system.slice"
		none  = verdict.Code("")
		mine  = verdict.MemoryLimitExceeded
		host  = verdict.HostMemoryExhausted
	)
	all := []int{41, 42, 43}
	for _, c := range []struct {
		name   string
		kills  []oomlog.Kill
		above  bool // a cgroup above has a limit
		kernel int  // oom_kill before, by its counters
		status verdict.Status
		code   verdict.Code
	}{
		{"nothing", nil, false, 0, verdict.Ended, none},
		{"its unit", []oomlog.Kill{{Owner: unit, Group: unit, Pids: all}}, false, 0, verdict.OOMKilled, mine},
		{"its cgroup", []oomlog.Kill{{Owner: own, Group: own, Pids: all}}, true, 0, verdict.OOMKilled, mine},
		{"counted before", []oomlog.Kill{{Owner: unit, Group: unit, Pids: all}}, false, 1, verdict.OOMKilled, mine},
		{"owner not told", []oomlog.Kill{{Group: unit, Pids: all}}, false, 0, verdict.OOMKilled, mine},
		{"owner not told, and a limit above", []oomlog.Kill{{Group: unit, Pids: all}}, true, 0, verdict.Ended, none},
		{"the slice above", []oomlog.Kill{{Owner: slice, Group: unit, Pids: all}}, true, 0, verdict.OOMKilled, host},
		{"the slice and all in it", []oomlog.Kill{{Owner: slice, Group: slice, Pids: all}}, true, 0, verdict.OOMKilled, host},
		{"the host", []oomlog.Kill{{Global: true, Group: unit, Pids: all}}, false, 0, verdict.OOMKilled, host},
		{"a cgroup inside", []oomlog.Kill{{Owner: own + "/docker/1", Group: own + "/docker/1", Pids: all}}, false, 0, verdict.Ended, none},
		{"owner and group not told", []oomlog.Kill{{Pids: all}}, false, 0, verdict.Ended, none},
		{"others of the same name", []oomlog.Kill{{Owner: unit, Group: unit, Pids: []int{7, 8}}}, false, 0, verdict.Ended, none},
		{"another of the same pid", []oomlog.Kill{{Owner: slice + "/box-2.scope", Group: slice + "/box-2.scope", Pids: all}, {Owner: own, Group: own, Pids: all}}, false, 0, verdict.OOMKilled, mine},
	} {
		t.Run(c.name, func(t *testing.T) {
			started := &state.Started{
				Init: procfs.Process{Pid: 42},
				Cgroup: &cgroup.Paths{
					Version: 2, Places: map[string]cgroup.Place{"": {Mount: cgroup.MountPoint, Path: own}},
					Unit: &cgroup.Place{Mount: cgroup.MountPoint, Path: unit},
				},
				Held: verdict.Limits{Memory: new(limits.Limit(64 << 20)), GroupKill: true, MemoryAbove: c.above},
			}
			ev := verdict.Evidence{Exit: verdict.Exit{Source: verdict.ExitContainerd, Code: new(137)}}
			if c.kernel > 0 {
				ev.Memory = &verdict.MemoryEvents{OOMKill: int64(c.kernel), Max: 5}
			}
			k := findKill(c.kills, started)
			addKill(&ev, k)
			if v := verdict.Classify(ev, started.Held); v.Status != c.status || v.Code != c.code {
				t.Errorf("%s %q %q, want %s %q", v.Status, v.Code, v.Message, c.status, c.code)
			}
			if ev.KernelLog != (k != nil) || c.kernel > 0 && ev.Memory.Max != 5 {
				t.Errorf("evidence %+v", ev)
			}
		})
	}
}

func TestMayBeKilled(t *testing.T) {
	for code, want := range map[int]bool{0: false, 9: false, 137: true, 143: false} {
		if got := mayBeKilled(verdict.Exit{Code: &code}); got != want {
			t.Errorf("%d: %t", code, got)
		}
	}
	if !mayBeKilled(verdict.Exit{}) {
		t.Error("an exit that nobody saw may be a kill")
	}
}
