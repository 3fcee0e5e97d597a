package supervised

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/verdict"
	"github.com/agentbox/agentbox/test/bench/internal/job"
	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
)

// All are the dimensions that the supervisor can enforce where the kernel could.
var All = []string{"memory", "pids", "cpu", "io"}

// Meter measures on one machine.
type Meter struct {
	Runtime *sandbox.Runtime // whose sandboxes are supervised
	Root    string           // a root file system for many sandboxes
	Runs    int              // of each way to grow
	CPUs    int
	Log     io.Writer // what is going on
}

func (m *Meter) logf(format string, args ...any) { fmt.Fprintf(m.Log, format+"\n", args...) }

const (
	memoryLimit = 2 << 30
	growBlock   = 1 << 20
	// growMost is where a sandbox stops that nobody ends.
	growMost = 3 << 30
	bystand  = 3 // processes beside the one that grows, which do nothing
)

// ways are how a sandbox grows. The first half of the limit is taken at once.
func (m *Meter) ways() []way {
	grow := job.Job{Kind: job.Grow, Block: growBlock, Bytes: growMost, First: memoryLimit / 2, Threads: m.CPUs}
	slow, fast, free, huge := grow, grow, grow, grow
	slow.Rate, fast.Rate = 200e6, 1000e6
	huge.Huge = true
	return []way{
		{"0.2 GB/s", slow},
		{"1 GB/s", fast},
		{fmt.Sprintf("as fast as it goes, %d threads", m.CPUs), free},
		{fmt.Sprintf("as fast as it goes, %d threads, pages of 2 MiB", m.CPUs), huge},
	}
}

type way struct {
	what string
	job  job.Job
}

// memoryTarget is what the project wants of a supervised memory limit.
var memoryTarget = Target{Overshoot: 0.05, Ended: 50 * time.Millisecond}

// Memory measures by how much and for how long a sandbox exceeds its memory
// limit.
func (m *Meter) Memory() (all []Memory, err error) {
	for _, w := range m.ways() {
		series := Memory{What: w.what, Limit: memoryLimit, Target: memoryTarget}
		if series.Free, err = m.grownFreely(w.job); err != nil {
			return nil, fmt.Errorf("grow without a limit, %s: %w", w.what, err)
		}
		for run := range m.Runs {
			g, err := m.grown(w.job)
			if err != nil {
				return nil, fmt.Errorf("grow beyond a limit, %s: %w", w.what, err)
			}
			m.logf("memory, %s, run %d: %.2f GB/s, %.1f MiB too many, stopped after %v, ended after %v",
				w.what, run+1, g.Rate/1e9, float64(g.Peak-memoryLimit)/(1<<20), g.Stopped, g.Ended)
			series.Runs = append(series.Runs, g)
		}
		all = append(all, series)
	}
	return all, nil
}

// grownFreely returns how many bytes a sandbox takes without a limit.
func (m *Meter) grownFreely(j job.Job) (peak int64, err error) {
	j.Rate = 0 // not to wait
	box, err := m.Runtime.Start(sandbox.Want{Limits: []string{`memory = "none"`}, Root: m.Root})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, box.Stop()) }()
	if _, err := box.Do(j); err != nil {
		return 0, err
	}
	return box.MemoryPeak()
}

// grown has a sandbox grow until it is ended.
func (m *Meter) grown(j job.Job) (g Growth, err error) {
	work, err := os.MkdirTemp(m.Runtime.Dir, "trace-")
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	box, err := m.Runtime.Start(sandbox.Want{Limits: []string{fmt.Sprintf("memory = %d", memoryLimit)}, Root: m.Root, Work: work})
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, box.Stop()) }()
	if _, err := box.Do(job.Job{Kind: job.Fork, Processes: bystand}); err != nil {
		return g, err
	}
	before, err := box.MemoryUse()
	if err != nil {
		return g, err
	}
	ended, err := ends(box)
	if err != nil {
		return g, err
	}
	j.File = filepath.Join(sandbox.Work, "trace")
	survived := make(chan error, 1)
	go func() {
		_, err := box.Do(j)
		survived <- err
	}()
	at, err := ended(time.Minute)
	if err != nil {
		return g, err
	}
	if <-survived == nil {
		return g, errors.New("it ended after it had taken all")
	}
	peak, err := box.MemoryPeak()
	if err != nil {
		return g, err
	}
	r, err := box.Result()
	if err != nil {
		return g, err
	}
	if r.ErrorCode != verdict.MemoryLimitExceeded {
		return g, fmt.Errorf("agentbox says %s %s of it, and not %s: %s", r.Status, r.ErrorCode, verdict.MemoryLimitExceeded, r.Message)
	}
	data, err := os.ReadFile(filepath.Join(work, "trace"))
	if err != nil {
		return g, err
	}
	steps, err := job.ParseTrace(data)
	if err != nil {
		return g, err
	}
	return growthOf(before, steps, peak, j.Block, memoryLimit, at)
}

// ends returns what waits for the end of all processes that a sandbox has now,
// and tells when that was, on CLOCK_MONOTONIC.
func ends(box *sandbox.Sandbox) (wait func(limit time.Duration) (time.Duration, error), err error) {
	pids, err := box.Pids()
	if err != nil {
		return nil, err
	}
	if len(pids) != 1+bystand {
		return nil, fmt.Errorf("the sandbox has the processes %v, and not %d", pids, 1+bystand)
	}
	var fds []int
	closeAll := func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("open a pidfd of process %d: %w", pid, err)
		}
		fds = append(fds, fd)
	}
	return func(limit time.Duration) (at time.Duration, err error) {
		defer closeAll()
		end := time.Now().Add(limit)
		for _, fd := range fds {
			if err := sandbox.PollEnd(fd, end); err != nil {
				return 0, err
			}
		}
		var now unix.Timespec
		err = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
		return time.Duration(now.Nano()), err
	}, nil
}
