// Package verdict says why a sandbox ended, from evidence alone.
//
// Classify is pure. A verdict about memory needs an out-of-memory event of the
// sandbox's own limit; an exit code of 137 proves nothing, since any SIGKILL
// gives it and a program may return it.
package verdict

import (
	"fmt"

	"github.com/agentbox/agentbox/pkg/limits"
)

// Status is the state of a sandbox, or how it ended.
type Status string

// The statuses.
const (
	Created     Status = "CREATED"
	Running     Status = "RUNNING"
	Exited      Status = "EXITED"       // with the exit code that is known
	Signaled    Status = "SIGNALED"     // by the signal that is known
	Ended       Status = "ENDED"        // exit code or signal: not known which, or neither is known
	OOMKilled   Status = "OOM_KILLED"   // the kernel ended it for want of memory
	LimitKilled Status = "LIMIT_KILLED" // agentbox ended it at a limit
	Refused     Status = "REFUSED"      // it was not started
)

// Code names the limit that struck, or why a sandbox was refused. Empty: none.
type Code string

// The codes.
const (
	MemoryLimitExceeded Code = "SANDBOX_MEMORY_LIMIT_EXCEEDED"
	HostMemoryExhausted Code = "SANDBOX_HOST_MEMORY_EXHAUSTED"
	MemoryStalled       Code = "SANDBOX_MEMORY_STALLED"
	CPUTimeExceeded     Code = "SANDBOX_CPU_TIME_EXCEEDED"
	WallTimeExceeded    Code = "SANDBOX_WALL_TIME_EXCEEDED"
	PidsLimitReached    Code = "SANDBOX_PIDS_LIMIT_REACHED"
	LimitUnenforceable  Code = "SANDBOX_LIMIT_UNENFORCEABLE"
	ConfigInvalid       Code = "SANDBOX_CONFIG_INVALID"
)

// Verdict is the outcome of Classify.
type Verdict struct {
	Status    Status
	Code      Code
	Message   string // one sentence for a person
	Retryable bool   // the same, under the same limits, can end better at another time
	ExitCode  *int   // nil: not known
	Signal    *int   // nil: not known, or the source cannot tell; 0: no signal
}

// Limits are the values that held while the sandbox ran, as read back.
type Limits struct {
	Memory *limits.Value `json:"memory,omitempty"` // nil: not known
	Pids   *limits.Value `json:"pids,omitempty"`   // nil: not known
	// MemoryAbove says that a cgroup above the sandbox has a memory limit of
	// its own, as a Kubernetes pod does.
	MemoryAbove bool `json:"memory_above,omitempty"`
	GroupKill   bool `json:"group_kill"` // memory.oom.group was 1
	// MayProtect says that a process in the sandbox can exempt itself from
	// out-of-memory kills, since CAP_SYS_RESOURCE is in its bounding set: a
	// group kill then need not end the sandbox.
	MayProtect bool `json:"may_protect,omitempty"`
}

const sigkill = 9

// exit is what is known of the end of the first process, in one of four forms.
type exit struct {
	known  bool // a code is there
	code   int
	signal *int // nil: a code above 128 may be a folded signal
}

// folded reports whether the code is 128+n and nobody said whether that is a
// signal.
func (e exit) folded() bool { return e.known && e.signal == nil && e.code > 128 && e.code <= 128+64 }

// succeeded reports whether it is known to have gone well.
func (e exit) succeeded() bool { return e.known && e.code == 0 }

// killed reports whether SIGKILL may have ended the process.
func (e exit) killed() bool {
	if !e.known {
		return true
	}
	if e.signal != nil {
		return *e.signal == sigkill
	}
	return e.code == 128+sigkill
}

// Classify derives the verdict. The first cause that the evidence proves wins:
// what the supervisor ended the sandbox for, the sandbox's own memory limit,
// memory of the host, the limit of tasks, and then the exit itself.
//
// A strike comes before a kill of the kernel: where that one had ended the sandbox,
// there would have been nothing left to strike.
func Classify(ev Evidence, held Limits) Verdict {
	e := exit{}
	if ev.Exit.Code != nil {
		e = exit{known: true, code: *ev.Exit.Code, signal: ev.Exit.Signal}
	}
	if v, ok := strikeVerdict(ev.Strike, e); ok {
		return v
	}
	grouped := groupKill(ev, held)
	kills := oomKills(ev)
	switch {
	case kills && ownLimit(ev) && endedByOOM(e, grouped):
		return oomVerdict(e, grouped, MemoryLimitExceeded, memoryMessage(held, grouped))
	case kills && ranOutAbove(ev) && endedByOOM(e, grouped):
		v := oomVerdict(e, grouped, HostMemoryExhausted,
			"killed for memory although its own limit was not reached: the host ran out")
		if held.MemoryAbove {
			v.Message += ", or the limit of a cgroup above the sandbox was reached"
		}
		v.Retryable = !held.MemoryAbove
		return v
	}
	v := plainVerdict(e)
	if ev.PidsMax != nil && *ev.PidsMax > 0 && !e.succeeded() {
		v.Code = PidsLimitReached
		v.Message += fmt.Sprintf("; %s refused to start a process %s", pidsLimit(held), times(*ev.PidsMax))
	}
	if kills {
		v.Message += "; the kernel killed a process in it for memory, " + consequence(e)
	}
	return v
}

// consequence says what is known about an out-of-memory kill that Classify does
// not call the end of the sandbox.
func consequence(e exit) string {
	if e.killed() {
		return "and whether that ended it is not known"
	}
	return "which did not end it"
}

func oomKills(ev Evidence) bool {
	return ev.Memory != nil && ev.Memory.OOMKill > 0 || ev.MemoryTree != nil && ev.MemoryTree.OOMKill > 0
}

// ownLimit reports whether the sandbox's own limit ran out, rather than that of
// a cgroup inside it or above it.
func ownLimit(ev Evidence) bool { return ev.Memory != nil && ev.Memory.OOM > 0 }

// ranOutAbove reports whether neither a limit of the sandbox nor one of a cgroup
// inside it ran out, so that a kill in it came from above. Where the kernel does
// not tell, a limit inside may have been the reason.
//
// Cgroup v1 counts in the one cgroup: what was killed lived in the sandbox's
// own, where no limit of a cgroup inside reaches.
func ranOutAbove(ev Evidence) bool {
	switch ev.CgroupVersion {
	case 1:
		return !ownLimit(ev)
	case 2:
		return !ownLimit(ev) && ev.MemoryTree != nil && ev.MemoryTree.OOM == 0
	}
	return false
}

// groupKill reports whether the kernel kills the sandbox as a whole, with nobody
// in it exempt: it was told to, or it has done so.
func groupKill(ev Evidence, held Limits) bool {
	if held.MayProtect {
		return false
	}
	return held.GroupKill || ev.Memory != nil && ev.Memory.OOMGroupKill > 0
}

// endedByOOM reports whether an out-of-memory kill ended the sandbox, rather
// than a process in it. A group kill ends everything, so it needs no exit code;
// without it the first process must have died of SIGKILL.
func endedByOOM(e exit, grouped bool) bool { return e.killed() && (e.known || grouped) }

// oomVerdict names the signal only where it is known: after a group kill, or
// when whoever saw the exit can tell. A shell returns 137 as well when a child
// of it was killed.
func oomVerdict(e exit, grouped bool, code Code, message string) Verdict {
	v := Verdict{Status: OOMKilled, Code: code, Message: message}
	if !e.known {
		return v
	}
	c := e.code
	v.ExitCode = &c
	if grouped || e.signal != nil {
		s := sigkill
		v.Signal = &s
	}
	return v
}

func memoryMessage(held Limits, grouped bool) string {
	limit := "its memory limit"
	if held.Memory != nil && !held.Memory.None {
		info, _ := limits.KeyMemory.Info()
		limit += " of " + info.String(*held.Memory)
	}
	end := " and was killed"
	if !grouped {
		end = ", the kernel killed a process in it for that, and it ended as if killed"
	}
	return "the sandbox reached " + limit + end + ": it needs a higher limit, or less work at once"
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func pidsLimit(held Limits) string {
	if held.Pids == nil || held.Pids.None {
		return "the limit of processes and threads"
	}
	return fmt.Sprintf("the limit of %d processes and threads", held.Pids.N)
}

// plainVerdict is the verdict when no limit ended the sandbox.
func plainVerdict(e exit) Verdict {
	if !e.known {
		return Verdict{Status: Ended, Message: "ended, exit code not known"}
	}
	code := e.code
	v := Verdict{ExitCode: &code}
	switch {
	case e.signal != nil && *e.signal != 0:
		signal := *e.signal
		v.Status, v.Signal = Signaled, &signal
		v.Message = fmt.Sprintf("ended by signal %d, and by no limit of the sandbox", signal)
	case e.folded():
		v.Status = Ended
		v.Message = fmt.Sprintf("ended with %d: either that exit code or signal %d, not known which", code, code-128)
	default:
		none := 0
		v.Status, v.Signal = Exited, &none
		v.Message = fmt.Sprintf("exited with code %d", code)
	}
	return v
}
