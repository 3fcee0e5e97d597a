package cgroup

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

func TestEffectiveAll(t *testing.T) {
	const slice = "/sys/fs/cgroup/system.slice"
	for name, want := range map[string]map[limits.Key]Effective{
		"v2": {
			limits.KeyMemory:     {Value: limits.Limit(512 << 20), Owner: Self, Mechanism: "memory.max"},
			limits.KeyMemoryHigh: {Value: limits.NoLimit(), Mechanism: "memory.high"},
			limits.KeySwap:       {Value: limits.Limit(0), Owner: Self, Mechanism: "memory.swap.max"},
			limits.KeyPids:       {Value: limits.Limit(1024), Owner: slice, Above: true, Mechanism: "pids.max"},
			limits.KeyCPUs:       {Value: limits.Limit(1_500_000), Owner: Self, Above: true, Mechanism: "cpu.max", Quota: 150000, Period: 100000},
		},
		"v1": {
			limits.KeyMemory:     {Value: limits.Limit(512 << 20), Owner: Self, Mechanism: "memory.limit_in_bytes"},
			limits.KeyMemoryHigh: {Value: limits.NoLimit()},
			limits.KeySwap:       {Value: limits.Limit(0), Owner: Self, Mechanism: "memory.memsw.limit_in_bytes"},
			limits.KeyPids:       {Value: limits.Limit(512), Owner: Self, Mechanism: "pids.max"},
			limits.KeyCPUs:       {Value: limits.Limit(1_500_000), Owner: Self, Above: true, Mechanism: "cpu.cfs_quota_us", Quota: 150000, Period: 100000},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := of(t, tree(t, name))
			all, err := c.EffectiveAll()
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(all, want) {
				t.Errorf("got %+v\nwant %+v", all, want)
			}
			for key, e := range want {
				if got, err := c.Effective(key); got != e || err != nil {
					t.Errorf("Effective(%s) = %+v, %v", key, got, err)
				}
			}
		})
	}
}

func TestEffective(t *testing.T) {
	const (
		slice     = "sys/fs/cgroup/system.slice/"
		scope     = scopeV2 + "/"
		memory    = "sys/fs/cgroup/memory/"
		cpu       = "sys/fs/cgroup/cpu,cpuacct/"
		unlimited = "9223372036854771712\n"
	)
	type files map[string]string // content; "-" removes the file
	for _, c := range []struct {
		name, tree string
		files      files
		key        limits.Key
		want       Effective
	}{
		{
			"equal limits belong to the nearest", "v2",
			files{slice + "memory.max": "536870912\n"},
			limits.KeyMemory,
			Effective{Value: limits.Limit(512 << 20), Owner: Self, Above: true, Mechanism: "memory.max"},
		},
		{
			"memory.high of the parent", "v2",
			files{slice + "memory.high": "4096\n"},
			limits.KeyMemoryHigh,
			Effective{Value: limits.Limit(4096), Owner: "/" + slice[:len(slice)-1], Above: true, Mechanism: "memory.high"},
		},
		{
			"root of a namespace has a limit", "v2",
			files{"sys/fs/cgroup/memory.max": "8192\n"},
			limits.KeyMemory,
			Effective{Value: limits.Limit(8192), Owner: "/sys/fs/cgroup", Above: true, Mechanism: "memory.max"},
		},
		{
			"controller off for the container", "v2",
			files{scope + "pids.max": "-"},
			limits.KeyPids,
			Effective{Value: limits.Limit(1024), Owner: "/" + slice[:len(slice)-1], Above: true, Mechanism: "pids.max"},
		},
		{
			"no swap accounting", "v2",
			files{scope + "memory.swap.max": "-", slice + "memory.swap.max": "-"},
			limits.KeySwap,
			Effective{Value: limits.NoLimit()},
		},
		{
			"parent has less CPU", "v2",
			files{slice + "cpu.max": "50000 1000000\n"},
			limits.KeyCPUs,
			Effective{Value: limits.Limit(50_000), Owner: "/" + slice[:len(slice)-1], Above: true, Mechanism: "cpu.max", Quota: 50000, Period: 1000000},
		},
		{
			"no CPU limit", "v2",
			files{scope + "cpu.max": "max 100000\n", slice + "cpu.max": "max 100000\n"},
			limits.KeyCPUs,
			Effective{Value: limits.NoLimit(), Mechanism: "cpu.max"},
		},
		{
			"v1 parent is tighter", "v1",
			files{memory + "docker/memory.limit_in_bytes": "4096\n"},
			limits.KeyMemory,
			Effective{Value: limits.Limit(4096), Owner: "/" + memory + "docker", Above: true, Mechanism: "memory.limit_in_bytes"},
		},
		{
			"v1 parent without hierarchy", "v1",
			files{memory + "docker/memory.limit_in_bytes": "4096\n", memory + "docker/memory.use_hierarchy": "0\n"},
			limits.KeyMemory,
			Effective{Value: limits.Limit(512 << 20), Owner: Self, Mechanism: "memory.limit_in_bytes"},
		},
		{
			"v1 swap above memory", "v1",
			files{memory + dirV1 + "/memory.memsw.limit_in_bytes": "805306368\n"},
			limits.KeySwap,
			Effective{Value: limits.Limit(256 << 20), Owner: Self, Mechanism: "memory.memsw.limit_in_bytes"},
		},
		{
			"v1 swap of the parent", "v1",
			files{memory + dirV1 + "/memory.memsw.limit_in_bytes": unlimited, memory + "docker/memory.memsw.limit_in_bytes": "536870913\n"},
			limits.KeySwap,
			Effective{Value: limits.Limit(1), Owner: "/" + memory + "docker", Above: true, Mechanism: "memory.memsw.limit_in_bytes"},
		},
		{
			"v1 swap without memory", "v1",
			files{memory + dirV1 + "/memory.limit_in_bytes": unlimited},
			limits.KeySwap,
			Effective{Value: limits.Limit(512 << 20), Owner: Self, Mechanism: "memory.memsw.limit_in_bytes"},
		},
		{
			"v1 parent allows less than memory and swap", "v1",
			files{memory + "docker/memory.memsw.limit_in_bytes": "4096\n"},
			limits.KeySwap,
			Effective{Value: limits.Limit(0), Owner: "/" + memory + "docker", Above: true, Mechanism: "memory.memsw.limit_in_bytes"},
		},
		{
			"v1 no memsw", "v1",
			files{memory + dirV1 + "/memory.memsw.limit_in_bytes": "-", memory + "docker/memory.memsw.limit_in_bytes": "-", memory + "memory.memsw.limit_in_bytes": "-"},
			limits.KeySwap,
			Effective{Value: limits.NoLimit()},
		},
		{
			"v1 pages of 64 KiB", "v1",
			files{memory + dirV1 + "/memory.limit_in_bytes": "9223372036854710272\n"},
			limits.KeyMemory,
			Effective{Value: limits.NoLimit(), Mechanism: "memory.limit_in_bytes"},
		},
		{
			"v1 no CPU limit", "v1",
			files{cpu + dirV1 + "/cpu.cfs_quota_us": "-1\n", cpu + "docker/cpu.cfs_quota_us": "-1\n"},
			limits.KeyCPUs,
			Effective{Value: limits.NoLimit(), Mechanism: "cpu.cfs_quota_us"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := tree(t, c.tree)
			cg := of(t, f)
			for path, content := range c.files {
				if content == "-" {
					cgrouptest.Remove(t, string(f), path)
					continue
				}
				cgrouptest.Write(t, string(f), path, content)
			}
			got, err := cg.Effective(c.key)
			if got != c.want || err != nil {
				t.Errorf("got %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

// What is not understood is an error that names the file.
func TestEffectiveGarbage(t *testing.T) {
	for _, c := range []struct {
		tree, file, content string
		key                 limits.Key
	}{
		{"v2", scopeV2 + "/memory.max", "", limits.KeyMemory},
		{"v2", scopeV2 + "/memory.max", "-1\n", limits.KeyMemory},
		{"v2", scopeV2 + "/pids.max", "12 \n", limits.KeyPids},
		{"v2", scopeV2 + "/cpu.max", "max\n", limits.KeyCPUs},
		{"v2", scopeV2 + "/cpu.max", "1000 0\n", limits.KeyCPUs},
		{"v1", "sys/fs/cgroup/memory/" + dirV1 + "/memory.limit_in_bytes", "max\n", limits.KeyMemory},
		{"v1", "sys/fs/cgroup/memory/docker/memory.memsw.limit_in_bytes", "99999999999999999999\n", limits.KeySwap},
		{"v1", "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "-2\n", limits.KeyCPUs},
		{"v1", "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "0\n", limits.KeyCPUs},
		{"v1", "sys/fs/cgroup/pids/docker/pids.max", "\n", limits.KeyPids},
	} {
		f := tree(t, c.tree)
		cg := of(t, f)
		cgrouptest.Write(t, string(f), c.file, c.content)
		_, err := cg.Effective(c.key)
		if err == nil || !strings.Contains(err.Error(), "/"+c.file) {
			t.Errorf("%s = %q: error %v", c.file, c.content, err)
		}
	}
}

func TestEffectiveUnsupported(t *testing.T) {
	c := of(t, tree(t, "v2"))
	if _, err := c.Effective(limits.KeyDisk); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}

// A hierarchy that is not mounted limits nothing.
func TestEffectiveNotMounted(t *testing.T) {
	c, err := Open(Host, Paths{Version: 1, Places: map[string]Place{}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.EffectiveAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range EffectiveKeys {
		if all[key] != none() {
			t.Errorf("%s: %+v", key, all[key])
		}
	}
}

func TestGroupKill(t *testing.T) {
	f := tree(t, "v2")
	c := of(t, f)
	for content, want := range map[string]bool{"1\n": true, "0\n": false} {
		cgrouptest.Write(t, string(f), scopeV2+"/memory.oom.group", content)
		if got, err := c.GroupKill(); got != want || err != nil {
			t.Errorf("%q: %v, %v", content, got, err)
		}
	}
	cgrouptest.Write(t, string(f), scopeV2+"/memory.oom.group", "yes\n")
	if _, err := c.GroupKill(); err == nil {
		t.Error("garbage is accepted")
	}
	cgrouptest.Remove(t, string(f), scopeV2+"/memory.oom.group")
	if got, err := c.GroupKill(); got || err != nil {
		t.Errorf("no file: %v, %v", got, err)
	}
	if got, err := of(t, tree(t, "v1")).GroupKill(); got || err != nil {
		t.Errorf("v1: %v, %v", got, err)
	}
}
