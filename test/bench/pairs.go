package main

import (
	"fmt"
	"os/exec"
	"slices"
	"time"
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

// comparison is the outcome of pairs.
type comparison struct {
	name      string
	a, b      time.Duration // medians
	ratio     float64       // median of the ratios, pair by pair
	low, high float64       // their quartiles
	target    float64       // 0: none
	pairs     int

	partNames []string           // but for the first part
	parts     [][2]time.Duration // medians of each part of a and of b
}

// compare times a and b in turns.
func compare(name string, pairs int, a, b step, target float64) (comparison, error) {
	var as, bs []time.Duration
	var ratios []float64
	var partsA, partsB [][]time.Duration
	for i := range pairs + 2 { // two to warm up
		ta, pa, err := a.time()
		if err != nil {
			return comparison{}, fmt.Errorf("%s: %w", name, err)
		}
		tb, pb, err := b.time()
		if err != nil {
			return comparison{}, fmt.Errorf("%s: %w", name, err)
		}
		if i < 2 {
			continue
		}
		as, bs = append(as, ta), append(bs, tb)
		partsA, partsB = append(partsA, pa), append(partsB, pb)
		ratios = append(ratios, float64(ta)/float64(tb))
	}
	slices.Sort(as)
	slices.Sort(bs)
	slices.Sort(ratios)
	var parts [][2]time.Duration
	for i := range min(len(partsA[0]), len(partsB[0])) {
		parts = append(parts, [2]time.Duration{medianOf(partsA, i), medianOf(partsB, i)})
	}
	return comparison{
		parts: parts,
		name:  name, pairs: pairs, target: target,
		a: as[pairs/2], b: bs[pairs/2],
		ratio: ratios[pairs/2], low: ratios[pairs/4], high: ratios[pairs*3/4],
	}, nil
}

// medianOf returns the median of part i.
func medianOf(all [][]time.Duration, i int) time.Duration {
	var times []time.Duration
	for _, parts := range all {
		times = append(times, parts[i])
	}
	slices.Sort(times)
	return times[len(times)/2]
}
