package main

import (
	"fmt"
	"os/exec"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/stats"
)

// step is a command that is timed, with what has to be done around it.
type step struct {
	args   []string // the command; args[0] is a path
	before func() error
	after  func() error
	then   []func() error // what follows and counts into the same time
}

// time returns how long the step took, and each of its parts.
func (s step) time() (took time.Duration, parts []time.Duration, err error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return 0, nil, err
		}
	}
	start := time.Now()
	for _, do := range append([]func() error{command(s.args)}, s.then...) {
		began := time.Now()
		if err := do(); err != nil {
			return 0, nil, err
		}
		parts = append(parts, time.Since(began))
	}
	took = time.Since(start)
	if s.after != nil {
		err = s.after()
	}
	return took, parts, err
}

// command runs a program whose output nobody reads.
func command(args []string) func() error {
	return func() error {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return nil
	}
}

// detached runs a program that leaves a process behind, which must not hold our
// end of a pipe.
func detached(args []string) func() error {
	return func() error {
		if err := exec.Command(args[0], args[1:]...).Run(); err != nil {
			return fmt.Errorf("%v: %w", args, err)
		}
		return nil
	}
}

// comparison is the outcome of pairs. Times are medians, in seconds.
type comparison struct {
	Name  string  `json:"name"`
	Pairs int     `json:"pairs"`
	A     float64 `json:"a"`
	B     float64 `json:"b"`

	Ratio  float64 `json:"ratio"`            // median of the ratios, pair by pair
	Low    float64 `json:"low"`              // their quartiles
	High   float64 `json:"high"`             //
	Target float64 `json:"target,omitempty"` // 0: none

	PartNames []string     `json:"part_names,omitempty"` // but for the first part
	Parts     [][2]float64 `json:"parts,omitempty"`      // times of each part of a and of b
}

func (c comparison) met() bool { return c.Target == 0 || c.Ratio <= c.Target }

// warmUp is how many pairs are not counted.
const warmUp = 2

// compare times a and b in turns.
func compare(name string, pairs int, a, b step, target float64) (comparison, error) {
	var all []pair
	for i := range pairs + warmUp {
		var p pair
		var err error
		if p.a, p.aParts, err = a.time(); err != nil {
			return comparison{}, fmt.Errorf("%s: %w", name, err)
		}
		if p.b, p.bParts, err = b.time(); err != nil {
			return comparison{}, fmt.Errorf("%s: %w", name, err)
		}
		if i >= warmUp {
			all = append(all, p)
		}
	}
	return summarize(name, all, target), nil
}

// pair is both commands, timed one after the other.
type pair struct {
	a, b           time.Duration
	aParts, bParts []time.Duration
}

// summarize takes at least one pair, all with the same number of parts.
func summarize(name string, all []pair, target float64) comparison {
	median := func(pick func(pair) time.Duration) float64 {
		var times []time.Duration
		for _, p := range all {
			times = append(times, pick(p))
		}
		return stats.Median(times).Seconds()
	}
	var ratios []float64
	for _, p := range all {
		ratios = append(ratios, float64(p.a)/float64(p.b))
	}
	c := comparison{
		Name: name, Pairs: len(all), Target: target,
		A:     median(func(p pair) time.Duration { return p.a }),
		B:     median(func(p pair) time.Duration { return p.b }),
		Ratio: stats.Median(ratios), Low: stats.Quantile(ratios, 0.25), High: stats.Quantile(ratios, 0.75),
	}
	for i := range min(len(all[0].aParts), len(all[0].bParts)) {
		c.Parts = append(c.Parts, [2]float64{
			median(func(p pair) time.Duration { return p.aParts[i] }),
			median(func(p pair) time.Duration { return p.bParts[i] }),
		})
	}
	return c
}
