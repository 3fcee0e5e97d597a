package fallback

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// holdTasks kills the newest processes beyond the limit, as the kernel would
// have refused them. A sandbox that is at twice its limit again ends.
func (e *Engine) holdTasks(w *watched, now time.Duration) {
	if !w.tasks.due(e.roster.born, now) {
		return
	}
	if !w.tasks.moved {
		w.tasks.same(e.roster.born, now)
		return
	}
	tasks := w.countTasks(&e.roster.read)
	w.use.Tasks = tasks
	w.tasks.measured(tasks, e.roster.born, now)
	if tasks <= w.Limits.Pids {
		w.crowded = 0
		return
	}
	if tasks > 2*w.Limits.Pids {
		w.crowded++
	}
	left := w.killNewest(tasks)
	if w.crowded >= 2 || left > w.Limits.Pids {
		e.strike(w, verdict.PidsLimitReached, w.Limits.Pids, tasks)
	}
}

// killNewest kills processes until the rest is within the limit, but never the
// first. It returns how many tasks are left.
func (w *watched) killNewest(tasks int64) int64 {
	for i := len(w.members) - 1; i >= 0 && tasks > w.Limits.Pids; i-- {
		m := &w.members[i]
		if m.pid == w.Init.Pid || m.gone || procfs.Signal(m.dir, unix.SIGKILL) != nil {
			continue
		}
		tasks -= m.threads
		w.use.Refused += m.threads
	}
	w.tasks.moved = true
	return tasks
}

// taskGate is how often to count new pids, so that a sandbox cannot get far
// beyond its limit: a process takes some 30 microseconds to fork.
func taskGate(left int64) time.Duration {
	return gate(time.Duration(max(0, left)) * 30 * time.Microsecond)
}
