package fallback

import (
	"time"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// Limits are what a sandbox is held to. 0: not by this package.
type Limits struct {
	Memory            int64 // bytes: anonymous memory, swapped or not, and shared memory, mapped or not
	Pids              int64 // tasks
	CPU               int64 // millionths of a CPU
	ReadBPS, WriteBPS int64 // bytes per second, of all disks together
	CPUTime, WallTime time.Duration
	Grace             time.Duration // from SIGTERM to SIGKILL when a time is up
}

// Spent is what has to outlive a crash of the supervisor: what a sandbox has used
// of its budget, and how often it met its limit of tasks.
type Spent struct {
	CPU     time.Duration // 0 without a budget
	Refused int64         // tasks that were killed for being too many
}

// Sandbox is one sandbox to watch over.
type Sandbox struct {
	Key    string         // tells it from others
	Init   procfs.Process // its first process, alone in a pid namespace of its own
	Limits Limits
	Cgroup *cgroup.Paths // where CPU time may be counted and a freezer be; nil: nowhere
	// HoldFile is locked (flock(2)) while the sandbox is frozen; who holds a
	// shared lock keeps it from being frozen. Empty: no freezer is used.
	HoldFile string
	Spent    Spent
	// Since is when its wall time began, on the clock of procfs.SinceBoot. 0: when
	// its first process did, which may have waited for long to be started.
	Since time.Duration
	// Struck is the strike that an earlier supervisor recorded before it died:
	// the sandbox is ended at once.
	Struck *verdict.Strike
}

// Use is what was measured last. A field is 0 where nothing has to be measured.
type Use struct {
	Memory, Tasks int64
	CPU           time.Duration
	Read, Written int64
	Refused       int64 // tasks that were killed for being too many
}

// Host is told what happens. Its methods are called on the engine's thread,
// which waits for them.
type Host interface {
	// Strike is called before a sandbox is ended for a limit, and has to record
	// that. The sandbox is ended whatever it returns.
	Strike(key string, s verdict.Strike) error
	// Spent is called when that has changed, at most once a second but for the
	// first refusal and the end.
	Spent(key string, s Spent)
	// Ended is called once, when the first process has ended; the engine has
	// forgotten the sandbox then.
	Ended(key string, exit verdict.Exit)
}
