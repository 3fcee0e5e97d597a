package cgroup

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

const innerV2 = scopeV2 + "/container"

// asCrun makes the tree what crun makes of it: the scope keeps its limits and its
// counters, and process 42 is in a cgroup below.
func asCrun(t *testing.T) (FS, *Cgroup) {
	t.Helper()
	f := tree(t, "v2")
	for file, content := range map[string]string{
		"cgroup.procs": "42\n", "memory.max": "536870912\n", "pids.max": "2048\n", "cpu.max": "150000 100000\n", "memory.swap.max": "0\n",
		"memory.events.local": "low 0\nhigh 0\nmax 1\noom 0\noom_kill 3\noom_group_kill 0\n",
		"memory.events":       "low 0\nhigh 0\nmax 1\noom 0\noom_kill 3\noom_group_kill 0\n",
		"pids.events.local":   "max 2\n", "cpu.stat": "usage_usec 1\nnr_throttled 30\n",
		"memory.current": "4096\n", "memory.peak": "8192\n",
	} {
		cgrouptest.Write(t, string(f), innerV2+"/"+file, content)
	}
	cgrouptest.Write(t, string(f), scopeV2+"/pids.events.local", "max 5\n")
	cgrouptest.Write(t, string(f), "proc/42/cgroup", "0::/system.slice/docker-0123456789ab.scope/container\n")
	c := of(t, f)
	if err := c.FindUnit(); err != nil {
		t.Fatal(err)
	}
	return f, c
}

// The scope ran out of memory, and what was killed lived in the cgroup below.
func TestEvidenceOfTheUnit(t *testing.T) {
	f, c := asCrun(t)
	saved, err := json.Marshal(c.Paths())
	if err != nil {
		t.Fatal(err)
	}
	var paths Paths
	if err := json.Unmarshal(saved, &paths); err != nil {
		t.Fatal(err)
	}
	if c, err = Open(f, paths); err != nil {
		t.Fatal(err)
	}
	ev, err := c.Evidence()
	if err != nil {
		t.Fatal(err)
	}
	if ev.Memory.OOM != 1 || ev.Memory.OOMKill != 7 || ev.Memory.OOMGroupKill != 1 || ev.MemoryTree.OOM != 2 || *ev.PidsMax != 7 || *ev.Throttled != 30 {
		t.Errorf("evidence %s", show(ev))
	}
	u, err := c.Usage()
	if err != nil || *u.MemoryPeakBytes != 512<<20 || *u.CPUUsec != 2_500_000 {
		t.Errorf("usage %s, %v", show(u), err)
	}
	cgrouptest.Remove(t, string(f), innerV2)
	if ev, err := c.Evidence(); !isGone(err) || ev.Memory != nil {
		t.Errorf("without the cgroup below: %s, %v", show(ev), err)
	}
	cgrouptest.Remove(t, string(f), scopeV2)
	everythingGone(t, c)
}

// Half of the evidence could give a wrong verdict.
func TestNoEvidenceWithoutTheUnit(t *testing.T) {
	f, c := asCrun(t)
	for _, file := range []string{"cgroup.procs", "memory.events.local", "memory.events", "cpu.stat", "pids.events.local", "pids.events"} {
		cgrouptest.Remove(t, string(f), scopeV2+"/"+file)
	}
	if ev, err := c.Evidence(); !isGone(err) || ev.Memory != nil {
		t.Errorf("evidence %s, %v", show(ev), err)
	}
}

// A limit of the unit is the container's own, whichever of the two is tighter.
func TestEffectiveInTheUnit(t *testing.T) {
	f, c := asCrun(t)
	cgrouptest.Write(t, string(f), scopeV2+"/cpu.max", "100000 100000\n")
	all, err := c.EffectiveAll()
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[limits.Key]Effective{
		limits.KeyMemory: {Value: limits.Limit(512 << 20), Owner: Self, Mechanism: "memory.max"},
		limits.KeyPids:   {Value: limits.Limit(1024), Owner: "/sys/fs/cgroup/system.slice", Above: true, Mechanism: "pids.max"},
		limits.KeyCPUs:   {Value: limits.Limit(1_000_000), Owner: Self, Above: true, Mechanism: "cpu.max", Quota: 100000, Period: 100000},
	} {
		if all[key] != want {
			t.Errorf("%s: %+v\nwant %+v", key, all[key], want)
		}
	}
}

func TestFindUnit(t *testing.T) {
	for name, want := range map[string]string{
		"/system.slice/box-1.scope":                   "",
		"/system.slice/box-1.scope/container":         "/system.slice/box-1.scope",
		"/system.slice/box-1.scope/a/b":               "/system.slice/box-1.scope",
		"/user.slice/session-1.scope/box.scope/inner": "/user.slice/session-1.scope/box.scope",
		"/system.slice/box-1.scopes/container":        "",
		"/":                                           "",
	} {
		f := tree(t, "v2")
		cgrouptest.Write(t, string(f), "sys/fs/cgroup"+name+"/cgroup.procs", "42\n")
		cgrouptest.Write(t, string(f), "proc/42/cgroup", "0::"+name+"\n")
		c := of(t, f)
		if err := c.FindUnit(); err != nil {
			t.Fatal(err)
		}
		got := ""
		if unit := c.Paths().Unit; unit != nil {
			got = unit.Path
			if unit.ID == 0 {
				t.Errorf("%s: the unit has no id", name)
			}
		}
		if got != want {
			t.Errorf("%s: the unit is %q, want %q", name, got, want)
		}
	}
	c := of(t, tree(t, "v1"))
	before := c.Paths()
	if err := c.FindUnit(); err != nil || !reflect.DeepEqual(c.Paths(), before) {
		t.Errorf("v1: %s, %v", show(c.Paths()), err)
	}
}

func TestOpenRefusesAUnitElsewhere(t *testing.T) {
	for name, unit := range map[string]Place{
		"beside":        {Mount: "/sys/fs/cgroup", Path: "/b"},
		"the same":      {Mount: "/sys/fs/cgroup", Path: "/a/c"},
		"other mount":   {Mount: "/sys/fs", Path: "/a"},
		"half a folder": {Mount: "/sys/fs/cgroup", Path: "/a/"},
		"climbs":        {Mount: "/sys/fs/cgroup", Path: "/x/../a"},
	} {
		p := Paths{Version: 2, Places: map[string]Place{"": {Mount: "/sys/fs/cgroup", Path: "/a/c"}}, Unit: &unit}
		if _, err := Open(Host, p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
