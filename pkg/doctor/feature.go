package doctor

import "fmt"

// feature is something of the kernel that verdicts and reports use, and that not
// every kernel has. Distributors add features to old kernels: the release decides
// only where no cgroup could be looked at.
type feature struct {
	name       string // of the check
	cgroup     int    // the version that has it
	controller string // of cgroup v1, to find the hierarchy
	witness    string // a file that shows that a cgroup has the controller on
	file       string // the file to look for
	line       string // what begins a line of it; empty: the file is enough
	since      version
	lost       string // what is missing without it
}

// what names the feature as the kernel does.
func (f feature) what() string {
	if f.line == "" {
		return f.file
	}
	return f.line + " in " + f.file
}

// features are those that are looked for, the most important first
// (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and pids.rst).
var features = []feature{
	{
		name: "memory_oom_group", cgroup: 2, controller: "memory", witness: "memory.max", file: "memory.oom.group", since: linux(4, 19),
		lost: "a sandbox that runs out of memory loses one process and goes on without it",
	},
	{
		name: "memory_events_local", cgroup: 2, controller: "memory", witness: "memory.max", file: "memory.events.local", since: linux(5, 3),
		lost: "a sandbox that its memory limit ended cannot be told from others, and gets no verdict",
	},
	{
		name: "oom_group_kill", cgroup: 2, controller: "memory", witness: "memory.max", file: "memory.events", line: "oom_group_kill", since: linux(5, 17),
		lost: "results do not count that a sandbox was killed as a whole",
	},
	{
		name: "memory_peak", cgroup: 2, controller: "memory", witness: "memory.max", file: "memory.peak", since: linux(5, 19),
		lost: "results have no peak of memory",
	},
	{
		name: "pids_peak", cgroup: 2, controller: "pids", witness: "pids.max", file: "pids.peak", since: linux(6, 1),
		lost: "results have no peak of processes",
	},
	{
		name: "oom_kill_v1", cgroup: 1, controller: "memory", witness: "memory.limit_in_bytes", file: "memory.oom_control", line: "oom_kill", since: linux(4, 13),
		lost: "a sandbox that its memory limit ended cannot be told from others, and gets no verdict",
	},
	{
		name: "pids_peak_v1", cgroup: 1, controller: "pids", witness: "pids.max", file: "pids.peak", since: linux(6, 1),
		lost: "results have no peak of processes",
	},
}

func linux(major, minor int) version { return version{major: major, minor: minor} }

// missing reports whether the kernel lacks a feature: by what was seen, else by
// its release.
func (f feature) missing(k Kernel) bool {
	switch k.Features[f.name] {
	case Yes:
		return false
	case No:
		return true
	}
	release, ok := parseVersion(k.Release)
	return ok && release.before(f.since)
}

// checkFeatures says what this kernel is too old for.
func checkFeatures(f *Facts, _ *resolved) []Finding {
	var list []Finding
	for _, want := range features {
		if want.cgroup != f.Host.CgroupVersion || !want.missing(f.Kernel) {
			continue
		}
		finding := Finding{
			Check: want.name, Level: Warning,
			Text: fmt.Sprintf("Linux %s has no %s: %s", f.Kernel.Release, want.what(), want.lost),
		}
		if release, ok := parseVersion(f.Kernel.Release); ok && release.before(want.since) {
			finding.Fix = &Fix{Text: fmt.Sprintf("boot a kernel of Linux %s or later", want.since)}
		}
		list = append(list, finding)
	}
	return list
}
