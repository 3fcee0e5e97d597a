package supervised

import (
	"os"
	"slices"
	"testing"
	"time"
)

func TestGrowthOf(t *testing.T) {
	const block, limit = 10, 100
	// 10 bytes that it had, and a step of 10 every millisecond: the limit is reached
	// with step 9.
	var steps []time.Duration
	for i := range 12 {
		steps = append(steps, time.Duration(i+1)*time.Millisecond)
	}
	got, err := growthOf(10, steps, 135, block, limit, 19*time.Millisecond)
	want := Growth{Peak: 135, Rate: 10_000, Stopped: 3 * time.Millisecond, Ended: 10 * time.Millisecond}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	// The kernel says that it was over the limit, with what is not in a step.
	got, err = growthOf(10, steps[:8], 101, block, limit, 10*time.Millisecond)
	want = Growth{Peak: 101, Rate: 10_000, Ended: 2 * time.Millisecond}
	if err != nil || got != want {
		t.Errorf("a little early: got %+v, %v, want %+v", got, err, want)
	}
	if _, err := growthOf(10, steps[:8], 99, block, limit, 0); err == nil {
		t.Error("a sandbox that was ended below its limit has exceeded it")
	}
	if _, err := growthOf(10, steps, 135, limit, limit, 0); err == nil {
		t.Error("one step shows when a limit is crossed")
	}
}

func TestMemoryMet(t *testing.T) {
	run := func(peak int64, ended time.Duration) Growth { return Growth{Peak: peak, Ended: ended} }
	base := Memory{Limit: 1000, Free: 2000, Target: Target{Overshoot: 0.05, Ended: 50}, Runs: []Growth{run(1010, 10), run(1050, 50), run(1500, 900)}}
	tests := []struct {
		name   string
		change func(*Memory)
		want   bool
	}{
		{"the medians count", func(*Memory) {}, true},
		{"too far", func(m *Memory) { m.Runs = []Growth{run(1051, 10)} }, false},
		{"too late", func(m *Memory) { m.Runs = []Growth{run(1010, 51)} }, false},
		{"no run", func(m *Memory) { m.Runs = nil }, false},
		{"it does not grow farther without the limit", func(m *Memory) { m.Free = 1050 }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := base
			tt.change(&m)
			if got := m.Met(); got != tt.want {
				t.Errorf("met %v, want %v", got, tt.want)
			}
		})
	}
	if got := base.Overshoots(); !slices.Equal(got, []float64{0.01, 0.05, 0.5}) {
		t.Errorf("overshoots %v", got)
	}
}

func TestWays(t *testing.T) {
	for _, w := range (&Meter{CPUs: 2}).ways() {
		if err := w.job.Check(); err != nil {
			t.Errorf("%s: %v", w.what, err)
		}
		if float64(w.job.Bytes) < memoryLimit*(1+2*memoryTarget.Overshoot) {
			t.Errorf("%s ends by itself after %d bytes, which shows nothing about a limit of %d", w.what, w.job.Bytes, memoryLimit)
		}
	}
}

func TestLoad(t *testing.T) {
	l := Load{CPU: []float64{0.01, 0.03, 0.02}, Target: 0.02}
	if l.Mean() != 0.02 || !l.Met() {
		t.Errorf("the mean is %v", l.Mean())
	}
	if l.Target = 0.019; l.Met() {
		t.Error("too much is not too much")
	}
	if (Load{Target: 1}).Met() {
		t.Error("nothing was measured, and is well")
	}
	c := Cost{One: Load{Sandboxes: 1, Memory: 1000}, Many: Load{Sandboxes: 11, Memory: 1500}}
	if c.Further() != 50 {
		t.Errorf("each further sandbox takes %v", c.Further())
	}
}

func TestCPUTime(t *testing.T) {
	before, err := cpuTime([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 50*time.Millisecond; {
	}
	after, err := cpuTime([]int{os.Getpid()})
	if err != nil || after <= before {
		t.Errorf("%v, then %v, %v", before, after, err)
	}
	if _, err := cpuTime([]int{os.Getpid(), 4194305}); err == nil { // above any pid
		t.Error("a process that is gone has a CPU time")
	}
}
