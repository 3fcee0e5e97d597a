// Package supervised measures how the supervisor holds sandboxes to limits that
// nobody else enforces, and what it takes for that.
package supervised

import (
	"errors"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/job"
	"github.com/agentbox/agentbox/test/bench/internal/stats"
)

// Growth is one sandbox that grew until it was ended.
type Growth struct {
	Peak    int64         `json:"peak"`    // bytes, by the kernel's count for its cgroup
	Rate    float64       `json:"rate"`    // bytes per second, in the last quarter below the limit
	Stopped time.Duration `json:"stopped"` // from crossing the limit to the last step that it could take
	Ended   time.Duration `json:"ended"`   // from crossing the limit to the end of its last process
}

// growthOf puts together what a process left behind that was killed at a limit,
// and when the last of its sandbox had ended on CLOCK_MONOTONIC.
func growthOf(t job.Trace, block, limit int64, ended time.Duration) (g Growth, err error) {
	crossing := steps(limit-t.Before, block)
	quarter := steps(limit*3/4-t.Before, block)
	switch {
	case quarter < 1 || crossing <= quarter:
		return g, errors.New("the steps are too large, or the limit is too small, to see when it is crossed")
	case len(t.Steps) < crossing:
		return g, errors.New("the sandbox was ended before it had reached its limit")
	}
	at, before := t.Steps[crossing-1], t.Steps[quarter-1]
	return Growth{
		Rate:    float64(int64(crossing-quarter)*block) / (at - before).Seconds(),
		Stopped: t.Steps[len(t.Steps)-1] - at,
		Ended:   ended - at,
	}, nil
}

// steps is how many steps it takes to grow by that much.
func steps(bytes, block int64) int { return int((bytes + block - 1) / block) }

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
