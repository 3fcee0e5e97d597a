package verdict

import "time"

// Evidence is what is known about the end of a sandbox: counters that the
// kernel kept for its cgroup, and its exit where somebody saw it. A nil pointer
// is a thing that could not be read.
type Evidence struct {
	CgroupVersion int `json:"cgroup_version"` // 0: no cgroup was found

	// Memory counts the events of the sandbox's own cgroup; MemoryTree those
	// of the cgroup and all below it. On cgroup v1 only Memory is there.
	Memory     *MemoryEvents `json:"memory_events_local,omitempty"`
	MemoryTree *MemoryEvents `json:"memory_events,omitempty"`
	// KernelLog says that a cgroup was gone with its counters, and that what
	// memory has of a kill is what the kernel's log says of it.
	KernelLog bool `json:"kernel_log,omitempty"`

	// PidsMax counts the forks that the sandbox's pids.max refused:
	// pids.events.local since Linux 6.11, before that and on v1 pids.events of
	// the cgroups in which the forks were tried.
	PidsMax *int64 `json:"pids_max,omitempty"`

	// Throttled counts the periods in which cpu.max held the sandbox back
	// (cpu.stat nr_throttled).
	Throttled *int64 `json:"nr_throttled,omitempty"`

	Exit Exit `json:"exit"`

	// Strike is what the supervisor ended the sandbox for; nil: it did not.
	Strike *Strike `json:"strike,omitempty"`
}

// Strike is a limit that the supervisor saw crossed, recorded before it ended
// the sandbox.
type Strike struct {
	Code     Code      `json:"code"`
	Limit    int64     `json:"limit"`    // bytes, tasks, or nanoseconds
	Measured int64     `json:"measured"` // in the same unit
	At       time.Time `json:"at"`
}

// MemoryEvents are fields of memory.events or memory.events.local
// (Documentation/admin-guide/cgroup-v2.rst), or of memory.oom_control on
// cgroup v1.
type MemoryEvents struct {
	// OOM counts how often a limit of this cgroup could not be met. Only the
	// owner of the limit has it. On v1, which has no such counter, and only
	// when OOMKill is not 0: the sum of memory.failcnt and
	// memory.memsw.failcnt, or 1 when the peak reached the limit.
	OOM int64 `json:"oom"`
	// OOMKill counts killed processes that lived here. It over-counts: a flag,
	// not a number.
	OOMKill int64 `json:"oom_kill"`
	// OOMGroupKill counts group kills; since Linux 5.17.
	OOMGroupKill int64 `json:"oom_group_kill"`
	// High and Max count how often usage was brought back to memory.high and
	// memory.max.
	High int64 `json:"high"`
	Max  int64 `json:"max"`
}

// ExitSource says who saw the exit.
type ExitSource string

// The sources of an exit status.
const (
	ExitUnknown    ExitSource = "unknown"
	ExitWait       ExitSource = "wait"       // agentbox waited for the low-level runtime's run
	ExitPidfd      ExitSource = "pidfd"      // PIDFD_GET_INFO on the container's first process
	ExitBundle     ExitSource = "bundle"     // exit.json that containerd left in the bundle
	ExitContainerd ExitSource = "containerd" // containerd's TaskExit event
)

// Exit is the end of the container's first process.
type Exit struct {
	Source ExitSource `json:"source"`
	// Code is the exit code as the source gave it, in the shell's convention:
	// 128+n for signal n. nil: not known.
	Code *int `json:"code,omitempty"`
	// Signal is the signal that ended it, where the source tells a signal from
	// an exit code. nil: not known; 0: no signal.
	Signal *int `json:"signal,omitempty"`
}
