package fallback

import (
	"time"

	"github.com/agentbox/agentbox/pkg/procfs"
)

const (
	// A look costs some microseconds of CPU time for each process, and at most one
	// part in costShare of the time until the next.
	costShare    = 20
	shortestLook = time.Millisecond
	idleLook     = time.Second
	killLook     = 2 * time.Millisecond
)

// longestLook is how long a sandbox is left alone whose CPU time or I/O is
// limited: as short as looking at all of them costs half a percent of a CPU, for
// it is that long that one may be faster than its limit, unseen.
func longestLook(sandboxes int) time.Duration {
	return min(max(time.Duration(sandboxes)*400*time.Microsecond, 10*time.Millisecond), 250*time.Millisecond)
}

// look measures one sandbox and does what follows.
func (e *Engine) look(w *watched, now time.Duration) {
	start := procfs.OwnCPUTime()
	since, stopped := w.looked, w.brake.on()
	w.looked = now
	used := w.countCPU(&e.roster.read)
	w.use.CPU += time.Duration(used)
	w.cpu.take(now, since, used, stopped)

	// Who has used no CPU time has done nothing else either.
	active := used > 0 || w.changed
	w.changed = false
	w.memory.moved = w.memory.moved || active
	w.tasks.moved = w.tasks.moved || active
	if w.read.limited() || w.write.limited() {
		var read, written int64
		if active {
			read, written = w.countIO(&e.roster.read)
			w.use.Read += read
			w.use.Written += written
		}
		w.read.take(now, since, read, stopped)
		w.write.take(now, since, written, stopped)
	}
	if !w.killed {
		e.holdMemory(w, now)
		e.holdTasks(w, now)
		e.holdBudgets(w, now)
	}
	w.forget()
	e.govern(w, now, used > 0)
	w.cost = procfs.OwnCPUTime() - start
	wait := max(w.wait(now, e.cpus, longestLook(len(e.all))), shortestLook, costShare*w.cost)
	w.next = together(now+wait, wait)
}

// govern stops the sandbox when one of its buckets is empty, and lets it
// continue when there is enough in all.
func (e *Engine) govern(w *watched, now time.Duration, ran bool) {
	switch {
	case w.killed:
		// Whom a fork bomb forked before its namespace was closed.
		_ = e.roster.refresh(false)
		e.kill(w)
	case !w.brake.on():
		if now >= w.free && (w.cpu.empty() || w.read.empty() || w.write.empty()) {
			w.halt(&e.roster)
			w.quiet = now
		}
	case w.cpu.enough() && w.read.enough() && w.write.enough():
		w.resume()
	case w.brake.signaled && ran:
		// Somebody was not reached, or let others continue.
		w.halt(&e.roster)
		w.quiet = now
	}
}

// urge has a sandbox looked at that may be beyond its memory or its tasks.
func (e *Engine) urge(w *watched, now time.Duration) {
	e.lookAt(w, min(w.next, max(now, w.looked+pause(w.cost))))
}

// pause is how long not to do again what is urgent: four times as long as it
// took, and never so long that a fork bomb gets far in it.
func pause(cost time.Duration) time.Duration { return min(4*cost, 4*time.Millisecond) }

// together has sandboxes that are in no hurry looked at together, a little
// early: waking up costs more than a look.
func together(next, wait time.Duration) time.Duration {
	if grid := wait / 4; grid >= 5*time.Millisecond {
		return next - next%grid
	}
	return next
}

func (w *watched) wait(now time.Duration, cpus int, longest time.Duration) time.Duration {
	if w.killed {
		return killLook
	}
	wait := idleLook
	if w.cpu.limited() || w.read.limited() || w.write.limited() || w.Limits.CPUTime > 0 {
		wait = longest
	}
	wait = min(wait, w.budgetLeft(now, cpus))
	switch {
	case w.brake.signaled:
		// The longer nothing runs, the less likely it is that anything will.
		return min(wait, w.refilled(), max(shortestLook, now-w.quiet))
	case w.brake.on():
		return min(wait, w.refilled())
	case now < w.free:
		return min(wait, w.free-now)
	}
	return min(wait, w.cpu.lasts(w.cpu.speed), w.read.lasts(w.read.speed), w.write.lasts(w.write.speed))
}

func (w *watched) refilled() time.Duration {
	return max(w.cpu.refilled(), w.read.refilled(), w.write.refilled())
}
