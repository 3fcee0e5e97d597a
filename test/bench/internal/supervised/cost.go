package supervised

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/test/bench/internal/job"
	"github.com/agentbox/agentbox/test/bench/internal/pss"
	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
)

// Load is what the supervisor takes for a number of sandboxes of one kind.
type Load struct {
	What      string    `json:"what"`
	Sandboxes int       `json:"sandboxes"`
	CPU       []float64 `json:"cpu"`    // as a part of one core, in each second
	Memory    int64     `json:"memory"` // PSS of all its processes, in bytes
	Target    float64   `json:"target"` // of the mean of CPU; 0: none
}

// Mean is the CPU that was used on average, as a part of one core.
func (l Load) Mean() float64 {
	if len(l.CPU) == 0 {
		return 0
	}
	sum := 0.0
	for _, part := range l.CPU {
		sum += part
	}
	return sum / float64(len(l.CPU))
}

// Met reports whether the mean is where it has to be.
func (l Load) Met() bool { return len(l.CPU) > 0 && l.Mean() <= l.Target }

// Cost is what the supervisor takes.
type Cost struct {
	One    Load   `json:"one"`    // one idle sandbox
	Many   Load   `json:"many"`   // many of them
	Others []Load `json:"others"` // other things to look at
	// PSS has how long each reading of the proportional memory of a process took,
	// for each GB (1e9 bytes) that it has in pages of 4 KiB.
	PSS []time.Duration `json:"pss"`
}

// Further is the memory that each further idle sandbox takes, in bytes.
func (c Cost) Further() float64 {
	return float64(c.Many.Memory-c.One.Memory) / float64(c.Many.Sandboxes-c.One.Sandboxes)
}

// What the project wants.
const (
	TargetIdle    = 0.01     // of a core, with 500 idle sandboxes
	TargetMemory  = 40 << 20 // bytes, in all
	TargetFurther = 64 << 10 // bytes, for each further sandbox
)

const (
	idleBoxes = 500
	busyBoxes = 50
	busyCPU   = 0.02 // the limit of each of the busy ones

	largeBytes = 4 << 30
	largeForks = 100
)

// Times of a measurement: how long the supervisor has to come to rest, and how
// often it is looked at, for a second each.
const (
	rest    = 3 * time.Second
	seconds = 20
)

// Cost measures what the supervisor takes.
func (m *Meter) Cost() (*Cost, error) {
	var c Cost
	for _, step := range []func(*Cost) error{m.idle, m.busy, m.large} {
		if err := step(&c); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

// crowd is a number of sandboxes.
type crowd struct {
	*Meter
	boxes []*sandbox.Sandbox
}

// grow starts sandboxes until there are so many.
func (c *crowd) grow(n int, limits ...string) error {
	for len(c.boxes) < n {
		box, err := c.Runtime.Start(sandbox.Want{Limits: limits, Root: c.Root})
		if err != nil {
			return err
		}
		c.boxes = append(c.boxes, box)
	}
	return nil
}

func (c *crowd) stop() (err error) {
	for _, box := range c.boxes {
		err = errors.Join(err, box.Stop())
	}
	return err
}

// look measures what the supervisor takes for the sandboxes that there are.
func (c *crowd) look(what string, target float64) (l Load, err error) {
	time.Sleep(rest)
	pids, err := c.Runtime.Supervisor()
	if err != nil {
		return l, err
	}
	if len(pids) == 0 {
		return l, errors.New("these sandboxes have no supervisor")
	}
	l = Load{What: what, Sandboxes: len(c.boxes), Target: target}
	before, err := cpuTime(pids)
	began := time.Now()
	for range seconds {
		if err != nil {
			return l, err
		}
		time.Sleep(time.Second)
		var after time.Duration
		after, err = cpuTime(pids)
		took := time.Since(began)
		l.CPU = append(l.CPU, float64(after-before)/float64(took))
		before, began = after, began.Add(took)
	}
	for _, pid := range pids {
		is, err := pss.Of(pid)
		if err != nil {
			return l, err
		}
		l.Memory += is.PSS
	}
	c.logf("the supervisor of %d sandboxes (%s): %.2f %% of a core, at most %.2f %%, %.1f MiB",
		l.Sandboxes, what, l.Mean()*100, slices.Max(l.CPU)*100, float64(l.Memory)/(1<<20))
	return l, err
}

// cpuTime is what processes have used. One that is gone is an error: its time
// would be missing.
func cpuTime(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		var t unix.Timespec
		// The CPU clock of a process (clock_getcpuclockid(3)).
		if err := unix.ClockGettime(^int32(pid)<<3|2, &t); err != nil {
			return 0, fmt.Errorf("CPU time of process %d of the supervisor: %w", pid, err)
		}
		sum += time.Duration(t.Nano())
	}
	return sum, nil
}

func (m *Meter) idle(cost *Cost) (err error) {
	c := crowd{Meter: m}
	defer func() { err = errors.Join(err, c.stop()) }()
	const what = "idle"
	if err := c.grow(1); err != nil {
		return err
	}
	if cost.One, err = c.look(what, TargetIdle); err != nil {
		return err
	}
	if err := c.grow(idleBoxes); err != nil {
		return err
	}
	cost.Many, err = c.look(what, TargetIdle)
	return err
}

func (m *Meter) busy(cost *Cost) (err error) {
	c := crowd{Meter: m}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.grow(busyBoxes, fmt.Sprintf("cpus = %v", busyCPU)); err != nil {
		return err
	}
	ends := make(chan error, len(c.boxes))
	for _, box := range c.boxes {
		go func() {
			_, err := box.Do(job.Job{Kind: job.Spin, Threads: 1, Seconds: (rest + (seconds+5)*time.Second).Seconds()})
			ends <- err
		}()
	}
	load, err := c.look(fmt.Sprintf("computing without a pause, each held to %v CPU", busyCPU), 0)
	for range c.boxes {
		err = errors.Join(err, <-ends)
	}
	cost.Others = append(cost.Others, load)
	return err
}

// large is a sandbox as large as any, beside which a reading of the proportional
// memory is timed.
func (m *Meter) large(cost *Cost) (err error) {
	c := crowd{Meter: m}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.grow(1, fmt.Sprintf("memory = %d", largeBytes+1<<30)); err != nil {
		return err
	}
	box := c.boxes[0]
	for _, j := range []job.Job{
		{Kind: job.Fork, Processes: largeForks},
		{Kind: job.Grow, Bytes: largeBytes, Block: growBlock, Threads: m.CPUs},
	} {
		if _, err := box.Do(j); err != nil {
			return err
		}
	}
	load, err := c.look(fmt.Sprintf("a process of %d GiB and %d small ones", largeBytes>>30, largeForks), TargetIdle)
	if err != nil {
		return err
	}
	cost.Others = append(cost.Others, load)
	init, err := box.Init()
	if err != nil {
		return err
	}
	for range m.Runs {
		began := time.Now()
		is, err := pss.Of(init)
		took := time.Since(began)
		if err != nil {
			return err
		}
		if is.PSS < largeBytes {
			return fmt.Errorf("the process that took %d bytes has %d", largeBytes, is.PSS)
		}
		cost.PSS = append(cost.PSS, time.Duration(float64(took)/(float64(is.PSS)/1e9)))
	}
	return nil
}
