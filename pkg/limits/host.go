package limits

// Host is what this machine can enforce, as probed facts.
type Host struct {
	CgroupVersion int   // 0 no cgroups, 1 (also hybrid: the controllers are v1), 2
	MemoryBytes   int64 // physical memory
	CPUs          int   // CPUs that this process may use
	PidMax        int64 // kernel.pid_max

	// Mechanisms says, for each key that some kernel interface could enforce
	// here, which one it is, and whether it is there. A key without an entry
	// has no enforcer.
	Mechanisms map[Key]Mechanism

	// IO is what there is for the io keys.
	IO HostIO

	// Supervisor says whether the supervisor of agentbox can watch over containers:
	// EnforcerSupervisor, or EnforcerNone with the reason. The zero value: nobody
	// has looked for one.
	Supervisor Mechanism
	// SupervisorNoIO is why the supervisor cannot tell what a process reads and
	// writes; empty: it can.
	SupervisorNoIO string

	// GroupKill is memory.oom.group: the kernel ends a whole cgroup at once.
	GroupKill Mechanism

	// Systemd says that the container's cgroup is a unit of systemd, which sets the
	// limits that it knows itself, and again whenever it likes: at a daemon-reload,
	// when a unit beside it changes. SystemdVersion is that of the running systemd,
	// 0 when it cannot be told.
	Systemd        bool
	SystemdVersion int

	// OpenFilesHard, FileSizeHard and CoreHard are the hard rlimits that this
	// process has and that a container therefore inherits; -1 is no limit.
	OpenFilesHard, FileSizeHard, CoreHard int64
}

// Mechanism is one kernel interface and whether this host has it.
type Mechanism struct {
	Name     string   // the kernel's name: "memory.max", "RLIMIT_NOFILE"
	Enforcer Enforcer // EnforcerKernel, EnforcerProcess, or EnforcerNone when it is missing
	Reason   string   // why it is missing, for a person
}

// Enforcer says who makes a limit hold.
type Enforcer string

// The enforcers.
const (
	EnforcerKernel     Enforcer = "kernel"     // the kernel, for the sandbox as a whole
	EnforcerSupervisor Enforcer = "supervisor" // agentbox itself, for the sandbox as a whole: it measures and acts
	EnforcerProcess    Enforcer = "process"    // the kernel, but for each process on its own
	EnforcerNone       Enforcer = "none"       // nobody
)
