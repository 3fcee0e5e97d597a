package precision

import (
	"errors"
	"fmt"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/job"
	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
)

// headStart is how long a hog is at it before its neighbour begins.
const headStart = 500 * time.Millisecond

// Neighbour measures how long a neighbour waits for the disk in a place: alone,
// beside a hog without a limit, and beside one with it.
func (m *Meter) Neighbour(place Place, long time.Duration) ([]Neighbour, error) {
	var all []Neighbour
	for _, hog := range []struct {
		name   string
		limits []string
	}{{"none", nil}, {"no limit", unlimited()}, {fmt.Sprintf("%d MiB/s", limitMiB), limitedBytes()}} {
		n, err := m.beside(place, hog.limits, long)
		if err != nil {
			return nil, fmt.Errorf("a neighbour on %s: %w", place.Name, err)
		}
		n.Place, n.Hog = place.Name, hog.name
		m.logf("%s, a neighbour beside a hog (%s): %d commits", n.Place, n.Hog, len(n.Commits))
		all = append(all, n)
	}
	return all, nil
}

// beside lets a neighbour write while a hog with these limits writes as fast as
// it can; without limits there is no hog.
func (m *Meter) beside(place Place, limits []string, long time.Duration) (n Neighbour, err error) {
	if err := place.settle(); err != nil {
		return n, err
	}
	neighbour, err := m.Runtime.Start(place.want(unlimited()))
	if err != nil {
		return n, err
	}
	defer func() { err = errors.Join(err, neighbour.Stop()) }()
	hogged := func() error { return nil }
	if limits != nil {
		hog, err := m.Runtime.Start(place.want(limits))
		if err != nil {
			return n, err
		}
		defer func() { err = errors.Join(err, hog.Stop()) }()
		hogged = begin(hog, long+headStart, &n.HogRate)
		time.Sleep(headStart)
	}
	o, err := neighbour.Do(commits(long))
	n.Commits = o.Commits
	return n, errors.Join(err, hogged())
}

// begin lets a hog write: as a build or a download does, with an fsync now and
// then. The function that it returns waits for the end.
func begin(hog *sandbox.Sandbox, long time.Duration, rate *float64) (wait func() error) {
	end := make(chan error, 1)
	go func() {
		o, err := hog.Do(job.Job{
			Kind: job.Write, File: newFile, Block: bigBlock, Size: 256 << 20, Fsync: 16 << 20, Seconds: long.Seconds(),
		})
		if err == nil {
			*rate = float64(o.Bytes) / o.Seconds
		}
		end <- err
	}()
	return func() error { return <-end }
}

// commits is what a database does: a small write with an fsync, a hundred times a
// second if the disk allows it.
func commits(long time.Duration) job.Job {
	return job.Job{
		Kind: job.Write, File: sandbox.Work + "/neighbour", Block: smallBlock, Size: 1 << 20, Fsync: smallBlock,
		Pause: 0.01, Seconds: long.Seconds(),
	}
}
