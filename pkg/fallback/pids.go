package fallback

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// holdTasks kills the newest processes beyond the limit, as the kernel would
// have refused them. A sandbox that has twice as many, twice in a row, is ended.
func (e *Engine) holdTasks(w *watched, now time.Duration) {
	if !w.tasks.due(e.roster.born, now) {
		return
	}
	if !w.tasks.moved {
		w.tasks.same(e.roster.born, now)
		return
	}
	for w.crowded = 0; ; w.crowded++ {
		tasks := w.countTasks(&e.roster.read)
		w.use.Tasks = tasks
		w.tasks.measured(tasks, e.roster.born, now)
		if tasks <= w.Limits.Pids {
			return
		}
		left := w.killNewest(tasks)
		if left > w.Limits.Pids || tasks > 2*w.Limits.Pids && w.crowded > 0 {
			e.strike(w, verdict.PidsLimitReached, w.Limits.Pids, tasks)
			return
		}
		if w.crowded == recounts {
			return // the next look goes on
		}
		// Those that were forked while others were killed.
		if e.roster.refresh(false) != nil {
			return
		}
	}
}

// recounts is how often one look goes after processes that others forked
// meanwhile.
const recounts = 3

// full reports whether more members are known than it takes to end the sandbox:
// a fork bomb is faster than somebody who looks at each of its processes.
func (w *watched) full() bool {
	return w.Limits.Pids > 0 && int64(len(w.members)) > 2*w.Limits.Pids
}

// killNewest kills processes until the rest is within the limit, but never the
// first. It returns how many tasks are left.
func (w *watched) killNewest(tasks int64) int64 {
	for i := len(w.members) - 1; i >= 0 && tasks > w.Limits.Pids; i-- {
		m := &w.members[i]
		if m.pid == w.Init.Pid || m.gone {
			continue
		}
		err := procfs.Signal(m.dir, unix.SIGKILL)
		if err == nil {
			w.use.Refused += m.threads
		}
		if err == nil || errors.Is(err, procfs.ErrGone) {
			tasks -= m.threads
		}
	}
	w.tasks.moved = true
	return tasks
}

// taskGate is how often to count new pids, so that a sandbox cannot get far
// beyond its limit: a fork takes some 20 microseconds.
func taskGate(left int64) time.Duration {
	return gate(time.Duration(max(0, left)) * 20 * time.Microsecond)
}
