package doctor

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/limits"
)

// must is what a kernel has to have from a release on, as long as the controller
// is there. A kernel that has to have something and is said not to have it fails
// the test: that is a probe that looks in the wrong place.
var must = []struct {
	since      version
	cgroup     int
	controller string
	feature    string     // of features; empty: none
	key        limits.Key // a limit that root has; empty: none
	config     string     // an option of the kernel's build that it needs besides
}{
	{since: linux(4, 5), cgroup: 2, controller: "memory", key: limits.KeyMemory},
	{since: linux(4, 5), cgroup: 2, controller: "memory", key: limits.KeyMemoryHigh},
	{since: linux(6, 1), cgroup: 2, controller: "memory", key: limits.KeySwap, config: "CONFIG_SWAP"},
	{since: linux(4, 5), cgroup: 2, controller: "pids", key: limits.KeyPids},
	{since: linux(4, 15), cgroup: 2, controller: "cpu", key: limits.KeyCPUs, config: "CONFIG_CFS_BANDWIDTH"},
	{since: linux(4, 5), cgroup: 2, controller: "io", key: limits.KeyIOReadBPS, config: "CONFIG_BLK_DEV_THROTTLING"},
	{since: linux(4, 19), cgroup: 2, controller: "memory", feature: "memory_oom_group"},
	{since: linux(5, 3), cgroup: 2, controller: "memory", feature: "memory_events_local"},
	{since: linux(5, 17), cgroup: 2, controller: "memory", feature: "oom_group_kill"},
	{since: linux(5, 19), cgroup: 2, controller: "memory", feature: "memory_peak"},
	{since: linux(6, 1), cgroup: 2, controller: "pids", feature: "pids_peak"},
	{since: linux(2, 6), cgroup: 1, controller: "memory", key: limits.KeyMemory},
	{since: linux(6, 1), cgroup: 1, controller: "memory", key: limits.KeySwap, config: "CONFIG_SWAP"},
	{since: linux(4, 3), cgroup: 1, controller: "pids", key: limits.KeyPids},
	{since: linux(3, 2), cgroup: 1, controller: "cpu", key: limits.KeyCPUs, config: "CONFIG_CFS_BANDWIDTH"},
	{since: linux(2, 6), cgroup: 1, controller: "blkio", key: limits.KeyIOReadBPS, config: "CONFIG_BLK_DEV_THROTTLING"},
	{since: linux(4, 13), cgroup: 1, controller: "memory", feature: "oom_kill_v1"},
	{since: linux(6, 1), cgroup: 1, controller: "pids", feature: "pids_peak_v1"},
}

// present are the controllers of the machine, read in the plainest way: those of
// the root on cgroup v2, else the mount points below /sys/fs/cgroup.
func present(t *testing.T) (version int, names []string) {
	t.Helper()
	data, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err == nil {
		return 2, strings.Fields(string(data))
	}
	for _, name := range []string{"memory", "pids", "cpu", "blkio"} {
		if _, err := os.Stat("/sys/fs/cgroup/" + name + "/cgroup.procs"); err == nil {
			names = append(names, name)
		}
	}
	if names != nil {
		return 1, names
	}
	return 0, nil
}

// builtWith reports whether the kernel has an option, as far as can be told: one
// that is not known to be missing counts as there, for those that distributors
// build.
func builtWith(option string) bool {
	switch option {
	case "CONFIG_SWAP":
		_, err := os.Stat("/proc/swaps")
		return err == nil
	case "CONFIG_CFS_BANDWIDTH":
		_, err := os.Stat("/proc/sys/kernel/sched_cfs_bandwidth_slice_us")
		return err == nil
	case "CONFIG_BLK_DEV_THROTTLING":
		data, err := os.ReadFile("/proc/kallsyms")
		return err != nil || len(data) == 0 || strings.Contains(string(data), " throtl_pd_alloc\n")
	}
	return true
}

func TestLive(t *testing.T) {
	f := Gather(context.Background(), Options{ConfigPath: config.DefaultPath, Config: config.Default(), CgroupsPath: "/agentbox-doctor-test"})
	r := Examine(f)
	t.Logf("kernel %s, cgroup %+v, missing %+v", r.Kernel, r.Cgroup, r.Missing)
	version, controllers := present(t)
	if r.Cgroup.Version != version {
		t.Fatalf("cgroup version %d, and the files say %d", r.Cgroup.Version, version)
	}
	release, ok := parseVersion(r.Kernel)
	if !ok {
		t.Fatalf("the release %q cannot be read", r.Kernel)
	}
	looked := 0
	for _, m := range must {
		if m.cgroup != version || release.before(m.since) || !slices.Contains(controllers, m.controller) || !builtWith(m.config) {
			continue
		}
		if m.feature != "" {
			looked++
			if f.Kernel.Features[m.feature] == No {
				t.Errorf("Linux %s must have %s, since %s", release, m.feature, m.since)
			}
		}
		if m.key == "" || os.Geteuid() != 0 || len(f.Cgroup.ReadOnly) > 0 {
			continue
		}
		looked++
		if got := f.Host.Mechanisms[m.key]; got.Enforcer != limits.EnforcerKernel {
			t.Errorf("Linux %s must limit %s, since %s: %q", release, m.key, m.since, got.Reason)
		}
	}
	if version != 0 && looked == 0 {
		t.Error("nothing was looked at")
	}
	// And the other way: without a controller nothing can hold.
	for _, c := range []struct {
		controller string
		dimension  limits.Dimension
	}{{"memory", limits.Memory}, {"pids", limits.Pids}, {"cpu", limits.CPU}, {"io", limits.IO}} {
		name := c.controller
		if version == 1 {
			name = nameV1(name)
		}
		if d := r.Dimensions[c.dimension]; !slices.Contains(controllers, name) && d.Answer != NotEnforced {
			t.Errorf("%s is said to be enforced (%s) without a %s controller", c.dimension, d.Answer, name)
		}
	}
}

// TestLiveIsQuick: people wait for it. The best of several, since other programs
// run too.
func TestLiveIsQuick(t *testing.T) {
	best := time.Hour
	for range 5 {
		began := time.Now()
		Gather(context.Background(), Options{ConfigPath: config.DefaultPath, Config: config.Default()})
		best = min(best, time.Since(began))
	}
	if best > time.Second {
		t.Errorf("it takes %s", best)
	}
}
