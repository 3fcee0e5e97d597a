package host

import (
	"strings"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
)

// Names of cgroup v1 files (Documentation/admin-guide/cgroup-v1/memory.rst,
// pids.rst and Documentation/scheduler/sched-bwc.rst).
const (
	fileLimitV1 = "memory.limit_in_bytes"
	fileMemswV1 = "memory.memsw.limit_in_bytes"
	fileQuotaV1 = "cpu.cfs_quota_us"
)

func (p *prober) probeV1(mounts []cgroup.Mount) {
	folder, reason := p.hierarchy(mounts, "memory")
	memory := p.missingV1(reason, folder, fileLimitV1, "")
	p.set(limits.KeyMemory, fileLimitV1, memory)
	p.set(limits.KeySwap, fileMemswV1, p.missingV1(memory, folder, fileMemswV1,
		": the kernel does not account swap (boot it with swapaccount=1)"))
	p.set(limits.KeyMemoryHigh, fileMemoryHigh, "cgroup v1 has no "+fileMemoryHigh)
	p.host.GroupKill = mechanism(fileOOMGroup, "cgroup v1 has no group kill ("+fileOOMGroup+")")

	// pids.max is in every cgroup but the root, so that it cannot always be
	// looked at; the controller never comes without it.
	_, reason = p.hierarchy(mounts, "pids")
	p.set(limits.KeyPids, filePidsMax, reason)

	folder, reason = p.hierarchy(mounts, "cpu")
	p.set(limits.KeyCPUs, fileQuotaV1, p.missingV1(reason, folder, fileQuotaV1,
		": the kernel is built without CONFIG_CFS_BANDWIDTH"))

	folder, reason = p.hierarchy(mounts, "blkio")
	for _, key := range limits.IOKeys {
		file := cgroup.ThrottleFileV1(key)
		p.set(key, file, p.missingV1(reason, folder, file, ": the kernel is built without CONFIG_BLK_DEV_THROTTLING"))
	}
	if reason == "" {
		p.weightsV1(folder)
	}
}

// hierarchy returns the deepest folder of the container's cgroup that exists in
// the hierarchy of a controller, or why the controller cannot be used.
func (p *prober) hierarchy(mounts []cgroup.Mount, controller string) (folder, reason string) {
	m, ok := cgroup.FindMount(mounts, controller)
	if !ok {
		return "", p.notMounted(controller)
	}
	intended := p.intended(func() string {
		own, ok := m.Below(p.ownCgroup(controller))
		if !ok {
			return "/"
		}
		return own
	})
	at, ok := p.ancestor(m.Point, intended)
	if !ok {
		return "", m.Point + " is not there"
	}
	return at.ancestor, p.denied(at.ancestor)
}

// missingV1 says why a file of a controller is missing; empty when it is there.
// The root of a v1 hierarchy has these files too.
func (p *prober) missingV1(reason, folder, file, why string) string {
	if reason != "" || p.has(folder+"/"+file) {
		return reason
	}
	return folder + "/" + file + " is missing" + why
}

// notMounted says why no hierarchy has a controller (cgroups(7), /proc/cgroups).
func (p *prober) notMounted(controller string) string {
	data, err := p.fs.ReadFile("/proc/cgroups")
	if err == nil && switchedOff(string(data), controller) {
		return "the " + controller + " controller is switched off: it has enabled 0 in /proc/cgroups (cgroup_disable on the kernel's command line)"
	}
	return "the " + controller + " controller is not mounted: /proc/self/mountinfo has no cgroup mount with it"
}

// switchedOff reports whether /proc/cgroups lists a controller as not enabled.
func switchedOff(data, controller string) bool {
	for line := range strings.Lines(data) {
		// "memory	0	105	0": name, hierarchy, number of cgroups, enabled
		fields := strings.Fields(line)
		if len(fields) == 4 && fields[0] == controller {
			return fields[3] == "0"
		}
	}
	return false
}
