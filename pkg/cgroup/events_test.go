package cgroup

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/verdict"
)

func show(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}

func TestEvidence(t *testing.T) {
	local := &verdict.MemoryEvents{OOM: 1, OOMKill: 4, OOMGroupKill: 1, High: 2, Max: 40}
	all := &verdict.MemoryEvents{OOM: 2, OOMKill: 5, OOMGroupKill: 1, High: 3, Max: 41}
	exit := verdict.Exit{Source: verdict.ExitUnknown}
	v1Memory := "sys/fs/cgroup/memory/" + dirV1
	for _, c := range []struct {
		name, tree string
		change     func(root string)
		want       verdict.Evidence
	}{
		{
			"v2", "v2", nil,
			verdict.Evidence{CgroupVersion: 2, Memory: local, MemoryTree: all, PidsMax: new(int64(7)), Throttled: new(int64(17)), Exit: exit},
		},
		{"v2 before 5.3", "v2", func(root string) {
			cgrouptest.Remove(t, root, scopeV2+"/memory.events.local")
		}, verdict.Evidence{CgroupVersion: 2, MemoryTree: all, PidsMax: new(int64(7)), Throttled: new(int64(17)), Exit: exit}},
		{"v2 no controllers", "v2", func(root string) {
			for _, file := range []string{"memory.events.local", "memory.events", "pids.events"} {
				cgrouptest.Remove(t, root, scopeV2+"/"+file)
			}
			cgrouptest.Write(t, root, scopeV2+"/cpu.stat", "usage_usec 1\nuser_usec 1\nsystem_usec 0\n")
		}, verdict.Evidence{CgroupVersion: 2, Exit: exit}},
		{"v2 the limit's owner counts, since 6.11", "v2", func(root string) {
			cgrouptest.Write(t, root, scopeV2+"/pids.events.local", "max 5\n")
			cgrouptest.Write(t, root, scopeV2+"/mine/pids.events", "max 9\n")
			cgrouptest.Write(t, root, scopeV2+"/mine/pids.max", "max\n")
		}, verdict.Evidence{CgroupVersion: 2, Memory: local, MemoryTree: all, PidsMax: new(int64(5)), Throttled: new(int64(17)), Exit: exit}},
		{"v2 forks refused below, before 6.11", "v2", func(root string) {
			cgrouptest.Write(t, root, scopeV2+"/init/pids.events", "max 10\n")
			cgrouptest.Write(t, root, scopeV2+"/init/pids.max", "max\n")
			cgrouptest.Write(t, root, scopeV2+"/init/deep/pids.events", "max 100\n")
			cgrouptest.Write(t, root, scopeV2+"/init/deep/pids.max", "max\n")
			cgrouptest.Write(t, root, scopeV2+"/own/pids.events", "max 1000\n")
			cgrouptest.Write(t, root, scopeV2+"/own/pids.max", "3\n")
			cgrouptest.Write(t, root, scopeV2+"/own/deep/pids.events", "max 1000\n")
			cgrouptest.Write(t, root, scopeV2+"/own/deep/pids.max", "max\n")
			cgrouptest.Write(t, root, scopeV2+"/without/cgroup.procs", "")
		}, verdict.Evidence{CgroupVersion: 2, Memory: local, MemoryTree: all, PidsMax: new(int64(117)), Throttled: new(int64(17)), Exit: exit}},
		{"v1", "v1", nil, verdict.Evidence{
			CgroupVersion: 1, Exit: exit,
			Memory:  &verdict.MemoryEvents{OOM: 33, OOMKill: 3, Max: 33},
			PidsMax: new(int64(7)), Throttled: new(int64(17)),
		}},
		{"v1 limit met, nobody killed", "v1", func(root string) {
			cgrouptest.Write(t, root, v1Memory+"/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
		}, verdict.Evidence{
			CgroupVersion: 1, Exit: exit,
			Memory:  &verdict.MemoryEvents{Max: 33},
			PidsMax: new(int64(7)), Throttled: new(int64(17)),
		}},
		{"v1 kill without a failcnt, at the limit", "v1", func(root string) {
			cgrouptest.Write(t, root, v1Memory+"/memory.failcnt", "0\n")
			cgrouptest.Write(t, root, v1Memory+"/memory.memsw.failcnt", "0\n")
		}, verdict.Evidence{
			CgroupVersion: 1, Exit: exit,
			Memory:  &verdict.MemoryEvents{OOM: 1, OOMKill: 3},
			PidsMax: new(int64(7)), Throttled: new(int64(17)),
		}},
		{"v1 kill without a failcnt, far from the limit", "v1", func(root string) {
			cgrouptest.Write(t, root, v1Memory+"/memory.failcnt", "0\n")
			cgrouptest.Write(t, root, v1Memory+"/memory.memsw.failcnt", "0\n")
			cgrouptest.Write(t, root, v1Memory+"/memory.max_usage_in_bytes", "104857600\n")
			cgrouptest.Write(t, root, v1Memory+"/memory.memsw.max_usage_in_bytes", "104857600\n")
		}, verdict.Evidence{
			CgroupVersion: 1, Exit: exit,
			Memory:  &verdict.MemoryEvents{OOMKill: 3},
			PidsMax: new(int64(7)), Throttled: new(int64(17)),
		}},
		{"v1 before 4.13", "v1", func(root string) {
			cgrouptest.Write(t, root, v1Memory+"/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")
		}, verdict.Evidence{CgroupVersion: 1, Exit: exit, PidsMax: new(int64(7)), Throttled: new(int64(17))}},
		{"v1 no memsw", "v1", func(root string) {
			cgrouptest.Remove(t, root, v1Memory+"/memory.memsw.failcnt")
		}, verdict.Evidence{
			CgroupVersion: 1, Exit: exit,
			Memory:  &verdict.MemoryEvents{OOM: 2, OOMKill: 3, Max: 2},
			PidsMax: new(int64(7)), Throttled: new(int64(17)),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := tree(t, c.tree)
			if c.change != nil {
				c.change(string(f))
			}
			got, err := of(t, f).Evidence()
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %s, %v\nwant %s", show(got), err, show(c.want))
			}
		})
	}
}

func TestEvidenceGarbage(t *testing.T) {
	for _, c := range []struct{ tree, file, content string }{
		{"v2", scopeV2 + "/memory.events", "oom\n"},
		{"v2", scopeV2 + "/memory.events.local", "oom_kill 1 2\n"},
		{"v2", scopeV2 + "/pids.events", "max max\n"},
		{"v2", scopeV2 + "/cpu.stat", "nr_throttled -1\n"},
		{"v1", "sys/fs/cgroup/memory/" + dirV1 + "/memory.failcnt", "x\n"},
		{"v1", "sys/fs/cgroup/memory/" + dirV1 + "/memory.oom_control", "oom_kill x\n"},
		{"v1", "sys/fs/cgroup/pids/" + dirV1 + "/pids.events", "max\n"},
		{"v1", "sys/fs/cgroup/cpu,cpuacct/" + dirV1 + "/cpu.stat", "nr_throttled \n"},
	} {
		f := tree(t, c.tree)
		cgrouptest.Write(t, string(f), c.file, c.content)
		got, err := of(t, f).Evidence()
		if err == nil || !strings.Contains(err.Error(), "/"+c.file) || got != (verdict.Evidence{}) {
			t.Errorf("%s: %s, %v", c.file, show(got), err)
		}
	}
}

func TestUsage(t *testing.T) {
	f := tree(t, "v2")
	c := of(t, f)
	want := Usage{new(int64(100 << 20)), new(int64(512 << 20)), new(int64(12)), new(int64(2048)), new(int64(2_500_000))}
	if got, err := c.Usage(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("v2: %s, %v", show(got), err)
	}
	cgrouptest.Remove(t, string(f), scopeV2+"/memory.peak")
	cgrouptest.Remove(t, string(f), scopeV2+"/pids.peak")
	want.MemoryPeakBytes, want.PidsPeak = nil, nil
	if got, err := c.Usage(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("older kernel: %s, %v", show(got), err)
	}
	want = Usage{new(int64(100 << 20)), new(int64(512 << 20)), new(int64(12)), nil, new(int64(2_500_000))}
	if got, err := of(t, tree(t, "v1")).Usage(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("v1: %s, %v", show(got), err)
	}
	cgrouptest.Write(t, string(f), scopeV2+"/memory.current", "much\n")
	if got, err := c.Usage(); err == nil || got != (Usage{}) {
		t.Errorf("garbage: %s, %v", show(got), err)
	}
}

func TestProcs(t *testing.T) {
	for _, name := range []string{"v2", "v1", "hybrid"} {
		f := tree(t, name)
		c := of(t, f)
		below := scopeV2
		if name != "v2" {
			below = "sys/fs/cgroup/pids/" + dirV1
		}
		cgrouptest.Write(t, string(f), below+"/exec1/cgroup.procs", "44\n")
		if got, err := c.Procs(); err != nil || !reflect.DeepEqual(got, []int{42, 43, 44}) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if got, err := c.Populated(); err != nil || !got {
			t.Errorf("%s: populated %v, %v", name, got, err)
		}
		cgrouptest.Write(t, string(f), below+"/exec1/cgroup.procs", "")
		cgrouptest.Write(t, string(f), below+"/cgroup.procs", "")
		if name == "v2" {
			cgrouptest.Write(t, string(f), below+"/cgroup.events", "populated 0\nfrozen 0\n")
		}
		if got, err := c.Populated(); err != nil || got {
			t.Errorf("%s: populated %v, %v", name, got, err)
		}
		cgrouptest.Write(t, string(f), below+"/cgroup.procs", "4x\n")
		if _, err := c.Procs(); err == nil {
			t.Errorf("%s: garbage is accepted", name)
		}
	}
}

// The root cgroup of a machine has no cgroup.events.
func TestPopulatedRoot(t *testing.T) {
	f := tree(t, "v2-bare")
	c, err := Open(f, Paths{Version: 2, Places: map[string]Place{"": {Mount: MountPoint, Path: "/"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Populated(); err == nil {
		t.Error("no error")
	}
}

// A container that makes many cgroups does not stop the evidence.
func TestEvidenceManyBelow(t *testing.T) {
	f := tree(t, "v2")
	deep := scopeV2
	for range 30 {
		deep += "/" + strings.Repeat("d", 200)
		cgrouptestMkdir(t, f, deep)
	}
	got, err := of(t, f).Evidence()
	if err != nil || got.PidsMax == nil || *got.PidsMax < 7 {
		t.Errorf("%s, %v", show(got), err)
	}
}
