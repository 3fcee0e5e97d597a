package fallback

import (
	"errors"
	"slices"
	"time"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// fastest is how fast memory can be filled, in bytes a second.
const fastest = 4 << 30

// memoryGate is how often to look at the memory of the whole machine: four times
// until the smallest head-room can be used up.
func memoryGate(left int64) time.Duration {
	return gate(seconds(float64(max(0, left)) / fastest / 4))
}

func gate(d time.Duration) time.Duration {
	return min(max(d, 2*time.Millisecond), 100*time.Millisecond)
}

// tick looks at the machine as a whole: at the memory that it uses, and whether
// there are new processes. So it costs the same for any number of sandboxes
// that do nothing.
func (e *Engine) tick(now time.Duration) error {
	start := procfs.OwnCPUTime()
	whole := now-e.listed >= relistEvery && e.roster.born != e.listedBorn
	if err := e.roster.refresh(whole); err != nil {
		return err
	}
	if whole {
		e.listed, e.listedBorn = now, e.roster.born
		for _, w := range e.all {
			w.prune()
		}
	}
	if now >= e.nextSample {
		if err := e.sampleMemory(now); err != nil {
			return err
		}
	}
	wait := e.nextSample - now
	for _, w := range e.all {
		if w.tasks.limit == 0 || w.killed {
			continue
		}
		wait = min(wait, taskGate(w.tasks.left))
		if w.tasks.due(e.roster.born, now) {
			e.urge(w, now)
		}
	}
	e.nextTick = now + max(wait, pause(procfs.OwnCPUTime()-start))
	return nil
}

// sampleMemory looks at the memory of the whole machine.
func (e *Engine) sampleMemory(now time.Duration) error {
	wait := gate(time.Hour)
	if slices.ContainsFunc(e.all, func(w *watched) bool { return w.memory.limit > 0 }) {
		if err := e.memory.sample(); err != nil {
			return err
		}
		if err := e.memory.sampleAnonymous(); err != nil {
			return err
		}
	}
	for _, w := range e.all {
		if w.memory.limit == 0 || w.killed {
			continue
		}
		wait = min(wait, memoryGate(w.memory.left))
		if w.memory.due(e.memory.risen(), now) {
			e.urge(w, now)
		}
	}
	e.nextSample = now + wait
	return nil
}

// prune finds out which members have ended.
func (w *watched) prune() {
	for i := range w.members {
		m := &w.members[i]
		if errors.Is(procfs.Signal(m.dir, 0), procfs.ErrGone) {
			w.changed = true // the next look sums up what they used
		}
	}
}

// risen is by how much the memory of all processes of the machine has risen, all
// rises together: anonymous memory, resident or swapped out, and shared memory.
// Free memory would say less: what one fills the kernel may take from caches.
func (h *memoryHost) risen() int64 { return h.anonRisen + h.shmemRisen }

// holdMemory ends a sandbox that has more memory than it may.
func (e *Engine) holdMemory(w *watched, now time.Duration) {
	risen := e.memory.risen()
	if !w.memory.due(risen, now) {
		return
	}
	if !w.memory.moved {
		w.memory.same(risen, now)
		return
	}
	use, err := w.meter.measure(e.memory, w.members, w.Limits.Memory, now)
	if err != nil {
		return // what cannot be read now is read at the next look
	}
	w.use.Memory = use.Bytes
	w.memory.measured(use.Bytes, risen, now)
	if use.Over {
		e.strike(w, verdict.MemoryLimitExceeded, w.Limits.Memory, use.Bytes)
	}
}
