package fallback

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// holdBudgets ends a sandbox whose time is up: it is asked to end by SIGTERM,
// and killed after a grace.
func (e *Engine) holdBudgets(w *watched, now time.Duration) {
	if w.Limits.CPUTime > 0 && now-w.spentAt >= time.Second && w.use.CPU != w.Spent.CPU {
		w.spentAt, w.Spent.CPU = now, w.use.CPU
		e.host.Spent(w.Key, w.Spent)
	}
	if w.struck {
		if w.killAt > 0 && now >= w.killAt {
			e.kill(w)
		}
		return
	}
	age := now - w.Init.Started()
	switch l := w.Limits; {
	case l.CPUTime > 0 && w.use.CPU >= l.CPUTime:
		e.term(w, now, verdict.CPUTimeExceeded, l.CPUTime, w.use.CPU)
	case l.WallTime > 0 && age >= l.WallTime:
		e.term(w, now, verdict.WallTimeExceeded, l.WallTime, age)
	}
}

func (e *Engine) term(w *watched, now time.Duration, code verdict.Code, limit, measured time.Duration) {
	e.record(w, code, int64(limit), int64(measured))
	w.killAt = now + w.Limits.Grace
	if m := w.init(); m == nil || w.Limits.Grace <= 0 || procfs.Signal(m.dir, unix.SIGTERM) != nil {
		e.kill(w)
	}
}

// budgetLeft is how long no budget can be used up.
func (w *watched) budgetLeft(now time.Duration, cpus int) time.Duration {
	left := idleLook
	if w.struck {
		if w.killAt > 0 {
			left = min(left, w.killAt-now)
		}
		return max(0, left)
	}
	if w.Limits.CPUTime > 0 {
		left = min(left, seconds((w.Limits.CPUTime-w.use.CPU).Seconds()/w.parallel(cpus)))
	}
	if w.Limits.WallTime > 0 {
		left = min(left, w.Init.Started()+w.Limits.WallTime-now)
	}
	return max(0, left)
}
