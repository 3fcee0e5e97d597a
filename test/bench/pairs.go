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
	parts  [][]string // further commands that count into the same time
}

func (s step) time() (time.Duration, error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	for _, args := range append([][]string{s.args}, s.parts...) {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	took := time.Since(start)
	if s.after != nil {
		return took, s.after()
	}
	return took, nil
}

// comparison is the outcome of pairs.
type comparison struct {
	name      string
	a, b      time.Duration // medians
	ratio     float64       // median of the ratios, pair by pair
	low, high float64       // their quartiles
	target    float64       // 0: none
	pairs     int
}

// compare times a and b in turns.
func compare(name string, pairs int, a, b step, target float64) (comparison, error) {
	var as, bs []time.Duration
	var ratios []float64
	for i := range pairs + 2 { // two to warm up
		ta, err := a.time()
		if err != nil {
			return comparison{}, fmt.Errorf("%s: %w", name, err)
		}
		tb, err := b.time()
		if err != nil {
			return comparison{}, fmt.Errorf("%s: %w", name, err)
		}
		if i < 2 {
			continue
		}
		as, bs = append(as, ta), append(bs, tb)
		ratios = append(ratios, float64(ta)/float64(tb))
	}
	slices.Sort(as)
	slices.Sort(bs)
	slices.Sort(ratios)
	return comparison{
		name: name, pairs: pairs, target: target,
		a: as[pairs/2], b: bs[pairs/2],
		ratio: ratios[pairs/2], low: ratios[pairs/4], high: ratios[pairs*3/4],
	}, nil
}
