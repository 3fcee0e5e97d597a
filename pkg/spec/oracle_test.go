package spec_test

import (
	"io"
	"maps"
	"strconv"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/configs/validate"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"

	"github.com/agentbox/agentbox/pkg/limits"
)

func init() { logrus.SetOutput(io.Discard) } // runc's warnings about fields that it ignores

// libcontainer turns a specification into runc's own configuration and
// validates it, as `runc create` does.
func libcontainer(s *specs.Spec) (*configs.Config, error) {
	root := specs.Root{Path: "/"} // must exist
	copied := *s
	if copied.Root != nil {
		copied.Root = &root
	}
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: "oracle", Spec: &copied})
	if err != nil {
		return nil, err
	}
	// The validator looks at this machine: without cgroup v2 it refuses a
	// unified map whatever is in it, and does not look at swap.
	resources := config.Cgroups.Resources
	unified := resources.Unified
	if !cgroups.IsCgroup2UnifiedMode() {
		resources.Unified = nil
		if _, err := cgroups.ConvertMemorySwapToCgroupV2Value(resources.MemorySwap, resources.Memory); err != nil {
			return nil, err
		}
	}
	err = validate.Validate(config)
	resources.Unified = unified
	return config, err
}

// verifyOracle checks that runc, if it takes the input, takes the output, and
// that what it is going to set is the plan. runc converts rlimits elsewhere, one
// to one; verifyRlimits looks at those.
func (w world) verifyOracle(t *testing.T, before, after *specs.Spec, plan *limits.Plan) {
	t.Helper()
	was, err := libcontainer(before)
	if err != nil {
		return
	}
	is, err := libcontainer(after)
	if err != nil {
		t.Errorf("runc takes the input and not the output: %v", err)
		return
	}
	in, out := was.Cgroups.Resources, is.Cgroups.Resources
	equal := func(name string, got, want int64) {
		t.Helper()
		if got != want {
			t.Errorf("runc is going to set %s to %d, the plan says %d", name, got, want)
		}
	}
	want := func(e limits.Entry, was int64) int64 { // of what the kernel does not hold
		if bySupervisor(e) {
			return 0
		}
		return was
	}
	memory, swap := plan.Entry(limits.KeyMemory), plan.Entry(limits.KeySwap)
	if byKernel(memory) {
		equal("Memory", out.Memory, memory.Value.N)
		if byKernel(swap) && memory.Value.N < unlimited/2 && swap.Value.N < unlimited/2 {
			equal("MemorySwap", out.MemorySwap, memory.Value.N+swap.Value.N)
		}
		if bySupervisor(swap) {
			equal("MemorySwap", out.MemorySwap, 0)
		}
		if out.OomKillDisable {
			t.Error("runc is going to switch the OOM killer off")
		}
	} else {
		equal("Memory", out.Memory, want(memory, in.Memory))
		equal("MemorySwap", out.MemorySwap, want(memory, in.MemorySwap))
	}
	if e := plan.Entry(limits.KeyPids); byKernel(e) {
		equal("PidsLimit", number(out.PidsLimit), e.Value.N)
	} else {
		equal("PidsLimit", number(out.PidsLimit), want(e, number(in.PidsLimit)))
	}
	if e := plan.Entry(limits.KeyCPUs); byKernel(e) {
		equal("CpuQuota", out.CpuQuota, plan.CPUQuota)
		equal("CpuPeriod", int64(out.CpuPeriod), plan.CPUPeriod)
	} else {
		equal("CpuQuota", out.CpuQuota, want(e, in.CpuQuota))
		equal("CpuPeriod", int64(out.CpuPeriod), want(e, int64(in.CpuPeriod)))
	}
	if is.OomScoreAdj == nil || *is.OomScoreAdj != plan.OOMScoreAdj {
		t.Errorf("runc is going to set oom_score_adj to %v, the plan says %d", is.OomScoreAdj, plan.OOMScoreAdj)
	}
	if w.host.CgroupVersion == 2 {
		if want := w.unifiedIO(unifiedOf(in.Unified, plan)); !maps.Equal(out.Unified, want) {
			t.Errorf("runc is going to write %v, the plan says %v", out.Unified, want)
		}
	}
	verifyIOOracle(t, out, plan)
}

func number(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

// unifiedOf is what a plan makes of a unified map.
func unifiedOf(in map[string]string, plan *limits.Plan) map[string]string {
	want := maps.Clone(in)
	if want == nil {
		want = map[string]string{}
	}
	for name, key := range map[string]limits.Key{
		"memory.max": limits.KeyMemory, "memory.high": limits.KeyMemoryHigh, "memory.swap.max": limits.KeySwap, "pids.max": limits.KeyPids, "cpu.max": limits.KeyCPUs,
	} {
		e := plan.Entry(key)
		if bySupervisor(e) {
			delete(want, name)
		}
		if !byKernel(e) {
			continue
		}
		delete(want, name)
		if key == limits.KeyMemoryHigh || key == limits.KeySwap {
			want[name] = strconv.FormatInt(e.Value.N, 10)
		}
	}
	if plan.GroupKill {
		want["memory.oom.group"] = "1"
	}
	if bySupervisor(plan.Entry(limits.KeyMemory)) {
		delete(want, "memory.oom.group")
	}
	if bySupervisor(plan.Entry(limits.KeyCPUs)) {
		delete(want, "cpu.max.burst")
	} else if burst, err := strconv.ParseInt(want["cpu.max.burst"], 10, 64); byKernel(plan.Entry(limits.KeyCPUs)) && (err != nil || burst > plan.CPUQuota) {
		delete(want, "cpu.max.burst")
	}
	return want
}
