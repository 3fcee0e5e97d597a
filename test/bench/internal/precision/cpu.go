package precision

import (
	"errors"
	"fmt"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/job"
	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
)

const (
	// spinThreads is more than any machine of the project's tests has CPUs.
	spinThreads = 4
	// settle is how long a limit has been at work before it is measured.
	settle = 500 * time.Millisecond
)

// CPU measures CPU limits for a time. The limits of one group are measured side
// by side, which saves time where a machine has CPUs for all of them. The same
// without a limit takes a third of the time.
func (m *Meter) CPU(groups [][]float64, long time.Duration) (all []Series, err error) {
	free, err := m.spin([]string{`"none"`}, long/3)
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		var limits []string
		first := len(all)
		for _, limit := range group {
			limits = append(limits, fmt.Sprint(limit))
			all = append(all, Series{Place: m.Place, What: "4 threads that compute", Unit: CPUs, Limit: limit, Free: free[0], Tolerance: m.CPUTolerance})
		}
		for run := range m.Runs {
			rates, err := m.spin(limits, long)
			if err != nil {
				return nil, err
			}
			m.logf("CPU limits %v on %s, run %d: %.3f", group, m.Place, run+1, rates)
			for i, rate := range rates {
				all[first+i].Kernel = append(all[first+i].Kernel, rate)
			}
		}
	}
	return all, nil
}

// spin computes in sandboxes with these limits at the same time and returns how
// many CPUs each one used.
func (m *Meter) spin(limits []string, long time.Duration) (rates []float64, err error) {
	var boxes []*sandbox.Sandbox
	defer func() {
		for _, box := range boxes {
			err = errors.Join(err, box.Stop())
		}
	}()
	for _, limit := range limits {
		box, err := m.Runtime.Start(sandbox.Want{Limits: []string{"cpus = " + limit}, First: true})
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, box)
	}
	ends := make(chan error, len(boxes))
	for _, box := range boxes {
		go func() {
			_, err := box.Do(job.Job{Kind: job.Spin, Threads: spinThreads, Seconds: (settle + long + settle).Seconds()})
			ends <- err
		}()
	}
	time.Sleep(settle)
	used, err := rateOver(boxes, long)
	for range boxes {
		err = errors.Join(err, <-ends)
	}
	return used, err
}

// rateOver returns how much CPU time each sandbox uses in a second.
func rateOver(boxes []*sandbox.Sandbox, long time.Duration) ([]float64, error) {
	before, began := make([]float64, len(boxes)), make([]time.Time, len(boxes))
	for i, box := range boxes {
		var err error
		began[i] = time.Now()
		if before[i], err = box.CPUSeconds(); err != nil {
			return nil, err
		}
	}
	time.Sleep(long)
	rates := make([]float64, len(boxes))
	for i, box := range boxes {
		took := time.Since(began[i])
		after, err := box.CPUSeconds()
		if err != nil {
			return nil, err
		}
		rates[i] = (after - before[i]) / took.Seconds()
	}
	return rates, nil
}
