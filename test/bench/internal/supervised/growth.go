// Package supervised measures how the supervisor holds sandboxes to limits that
// nobody else enforces, and what it takes for that.
package supervised

import (
	"errors"
	"fmt"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/stats"
)

// Growth is one sandbox that grew until it was ended.
type Growth struct {
	Peak    int64         `json:"peak"`    // bytes, by the kernel's count for its cgroup
	Rate    float64       `json:"rate"`    // bytes per second, in the last quarter below the limit
	Stopped time.Duration `json:"stopped"` // from crossing the limit to the last step that it could take
	Ended   time.Duration `json:"ended"`   // from crossing the limit to the end of its last process
}

// perPageTable is how much memory one page table maps, divided by its own size.
const perPageTable = 512

// growthOf puts together what was seen of a sandbox that was ended for its limit:
// what it had before it grew, when each of its steps was done, the peak, and when
// its last process had ended, on the clock of the steps.
func growthOf(before int64, steps []time.Duration, peak, block, limit int64, ended time.Duration) (g Growth, err error) {
	// How many steps it takes to come to a size.
	to := func(size int64) int {
		step := block + block/perPageTable
		return int((size - before + step - 1) / step)
	}
	crossing, quarter := to(limit), to(limit*3/4)
	switch {
	case quarter < 1 || crossing <= quarter:
		return g, errors.New("the steps are too large, or the limit is too small, to see when it is crossed")
	case peak < limit || len(steps) <= quarter:
		return g, fmt.Errorf("it was ended at %d bytes, below its limit of %d", peak, limit)
	}
	// What else the supervisor counts may make the last step a little early.
	crossing = min(crossing, len(steps))
	at, earlier := steps[crossing-1], steps[quarter-1]
	return Growth{
		Peak: peak, Rate: float64(int64(crossing-quarter)*block) / (at - earlier).Seconds(),
		Stopped: steps[len(steps)-1] - at, Ended: ended - at,
	}, nil
}

// Memory is one way to grow beyond a limit, done several times.
type Memory struct {
	What   string   `json:"what"`
	Limit  int64    `json:"limit"` // bytes
	Runs   []Growth `json:"runs"`
	Free   int64    `json:"free"`   // how far it grew without the limit, in bytes
	Target Target   `json:"target"` // of the median
}

// Target is what is wanted of a memory limit.
type Target struct {
	Overshoot float64       `json:"overshoot"` // as a part of the limit
	Ended     time.Duration `json:"ended"`
}

// values picks a number of each run.
func values[T any](runs []Growth, pick func(Growth) T) []T {
	list := make([]T, len(runs))
	for i, g := range runs {
		list[i] = pick(g)
	}
	return list
}

// Rates are those that were reached.
func (m Memory) Rates() []float64 { return values(m.Runs, func(g Growth) float64 { return g.Rate }) }

// Overshoots are by how much the limit was exceeded, as a part of it.
func (m Memory) Overshoots() []float64 {
	return values(m.Runs, func(g Growth) float64 { return float64(g.Peak-m.Limit) / float64(m.Limit) })
}

// Stops are the times to the last step.
func (m Memory) Stops() []time.Duration {
	return values(m.Runs, func(g Growth) time.Duration { return g.Stopped })
}

// Ends are the times to the end of the last process.
func (m Memory) Ends() []time.Duration {
	return values(m.Runs, func(g Growth) time.Duration { return g.Ended })
}

// Met reports whether the medians are where they have to be, and it was the limit
// that ended the sandbox.
func (m Memory) Met() bool {
	return len(m.Runs) > 0 && float64(m.Free) > float64(m.Limit)*(1+m.Target.Overshoot) &&
		stats.Median(m.Overshoots()) <= m.Target.Overshoot && stats.Median(m.Ends()) <= m.Target.Ended
}
