package cgroup

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Populated reports whether a process lives in this cgroup or below it. A cgroup
// that is gone gives an error that matches fs.ErrNotExist.
//
// On v2 it is one read of cgroup.events (cgroup-v2.rst, (Un)populated
// Notification). On v1 it lists the processes.
func (c *Cgroup) Populated() (bool, error) {
	if c.paths.Version == 1 {
		pids, err := c.Procs()
		return len(pids) > 0, err
	}
	var populated *int64
	err := c.visit("", func(d dir) (err error) {
		populated, err = d.number("cgroup.events", "populated", nil)
		if populated == nil && err == nil && !d.gone() {
			err = fmt.Errorf("%s/cgroup.events: does not say populated: the root cgroup?", d.path)
		}
		return err
	})
	return populated != nil && *populated != 0, err
}

// Procs lists the processes in this cgroup and below it, in no order. They come
// and go; a process that forks all the time can be missed. A cgroup that is gone
// gives an error that matches fs.ErrNotExist.
func (c *Cgroup) Procs() ([]int, error) {
	var pids []int
	see := func(d dir) (bool, error) {
		data, _, err := d.read("cgroup.procs", nil)
		if errors.Is(err, unix.EOPNOTSUPP) {
			// A threaded cgroup: its processes are listed further up
			// (cgroup-v2.rst, Threads).
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if pids, err = parsePids(pids, data); err != nil {
			return false, fmt.Errorf("%s/cgroup.procs: %w", d.path, err)
		}
		return true, nil
	}
	err := c.visit(c.procsController(), func(d dir) error {
		if _, err := see(d); err != nil {
			return err
		}
		return c.below(d.path, see)
	})
	return pids, err
}

// procsController picks the v1 hierarchy in which processes are counted. A
// container is in all of them; pids is the one that limits them.
func (c *Cgroup) procsController() string {
	for _, name := range [...]string{"pids", "memory", "cpu", "cpuacct"} {
		if _, ok := c.paths.Places[name]; ok {
			return name
		}
	}
	return ""
}

func parsePids(pids []int, data []byte) ([]int, error) {
	for line := range bytes.Lines(data) {
		n, err := parseCount(trimNewline(line))
		if err != nil {
			return nil, err
		}
		pids = append(pids, int(n))
	}
	return pids, nil
}
