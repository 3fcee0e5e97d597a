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
	// The first refusal at once: it may be why the sandbox is about to be ended.
	if now-w.spentAt >= time.Second || w.Spent.Refused == 0 && w.use.Refused > 0 {
		e.noteSpent(w, now)
	}
	if w.struck {
		if w.killAt > 0 && now >= w.killAt {
			e.kill(w)
		}
		return
	}
	age := now - w.since()
	switch l := w.Limits; {
	case l.CPUTime > 0 && w.use.CPU >= l.CPUTime:
		e.term(w, now, verdict.CPUTimeExceeded, l.CPUTime, w.use.CPU)
	case l.WallTime > 0 && age >= l.WallTime:
		e.term(w, now, verdict.WallTimeExceeded, l.WallTime, age)
	}
}

// noteSpent tells the host what has changed.
func (e *Engine) noteSpent(w *watched, now time.Duration) {
	spent := Spent{Refused: w.use.Refused}
	if w.Limits.CPUTime > 0 {
		spent.CPU = w.use.CPU
	}
	if spent != w.Spent {
		w.spentAt, w.Spent = now, spent
		e.host.Spent(w.Key, spent)
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
		left = min(left, w.since()+w.Limits.WallTime-now)
	}
	return max(0, left)
}

// since is when the wall time began.
func (w *watched) since() time.Duration {
	if w.Since > 0 {
		return w.Since
	}
	return w.Init.Started()
}
