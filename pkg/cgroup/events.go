package cgroup

import (
	"fmt"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// Evidence returns the counters that tell why a container ended. Read it before
// the cgroup is removed: they vanish with it, and a cgroup that is gone gives an
// error that matches fs.ErrNotExist and no counters at all. What this kernel
// does not count stays nil. Exit is left unknown.
//
// On v2 (cgroup-v2.rst):
//
//   - memory.events.local is there since Linux 5.3. memory.events is of the
//     cgroup and all below it since 5.2, unless the mount has
//     memory_localevents.
//   - PidsMax is that of pids.events.local (6.11), which counts in the cgroup
//     that has the limit. Without that file pids.events counts in the cgroup
//     whose process could not fork, wherever the limit is: then those of the
//     cgroups below are added, except where a pids.max of their own may have
//     been the reason.
//   - Where a container has a unit (FindUnit), what counts as its own is the sum
//     of both: the limit that struck may be that of either.
//
// On v1 (cgroup-v1/memory.rst, pids.rst) counters are of the one cgroup. Memory
// comes from memory.oom_control, which counts oom_kill since 4.13, and from
// memory.failcnt plus memory.memsw.failcnt: where both limits are equal, which
// is how swap is switched off, the kernel meets the second one first and counts
// only there, and recent kernels (seen on 6.18) do not count there at all. A
// process was then killed, no counter moved, and the peak says whether the limit
// was reached: OOM is 1.
func (c *Cgroup) Evidence() (verdict.Evidence, error) {
	e := verdict.Evidence{Exit: verdict.Exit{Source: verdict.ExitUnknown}}
	read := c.evidenceV2
	if c.paths.Version == 1 {
		read = c.evidenceV1
	}
	if err := read(&e); err != nil {
		return verdict.Evidence{}, err
	}
	e.CgroupVersion = c.paths.Version
	return e, nil
}

func (c *Cgroup) evidenceV2(e *verdict.Evidence) error {
	buf := make([]byte, 4096)
	err := c.visit("", func(d dir) (err error) {
		if err := d.countersV2(e, buf); err != nil || e.PidsMax != nil {
			return err
		}
		e.PidsMax, err = c.refusedForks(d, buf)
		return err
	})
	if err != nil || c.paths.Unit == nil {
		return err
	}
	var unit verdict.Evidence
	err = c.visitPlace(*c.paths.Unit, func(d dir) error { return d.countersV2(&unit, buf) })
	addUnit(e, unit)
	return err
}

// countersV2 reads the counters of one cgroup, and of memory those of all below it
// too. PidsMax stays nil before Linux 6.11.
func (d dir) countersV2(e *verdict.Evidence, buf []byte) (err error) {
	if e.Memory, err = d.memoryEvents("memory.events.local", buf); err != nil {
		return err
	}
	if e.MemoryTree, err = d.memoryEvents("memory.events", buf); err != nil {
		return err
	}
	if e.PidsMax, err = d.number("pids.events.local", "max", buf); err != nil {
		return err
	}
	e.Throttled, err = d.number("cpu.stat", "nr_throttled", buf)
	return err
}

// addUnit makes the evidence of a cgroup that of its unit too. Either may have the
// limit that struck, and the unit's counters of memory below it are those of both.
// Both CPU quotas hold back the same periods.
func addUnit(e *verdict.Evidence, unit verdict.Evidence) {
	if m := unit.Memory; m != nil && e.Memory != nil {
		e.Memory.OOM += m.OOM
		e.Memory.OOMKill += m.OOMKill
		e.Memory.OOMGroupKill += m.OOMGroupKill
		e.Memory.High += m.High
		e.Memory.Max += m.Max
	}
	if unit.MemoryTree != nil {
		e.MemoryTree = unit.MemoryTree
	}
	if unit.PidsMax != nil && e.PidsMax != nil {
		*e.PidsMax += *unit.PidsMax
	}
	if unit.Throttled != nil && e.Throttled != nil {
		*e.Throttled = max(*e.Throttled, *unit.Throttled)
	}
}

func (c *Cgroup) evidenceV1(e *verdict.Evidence) error {
	buf := make([]byte, 4096)
	err := c.visit("memory", func(d dir) (err error) {
		e.Memory, err = d.memoryEventsV1(buf)
		return err
	})
	if err != nil {
		return err
	}
	err = c.visit("pids", func(d dir) (err error) {
		e.PidsMax, err = c.refusedForks(d, buf)
		return err
	})
	if err != nil {
		return err
	}
	return c.visit("cpu", func(d dir) (err error) {
		e.Throttled, err = d.number("cpu.stat", "nr_throttled", buf)
		return err
	})
}

// visit calls read with the cgroup's folder for a controller, and makes sure
// that the cgroup was there until the end. It does nothing when that hierarchy
// is not mounted.
func (c *Cgroup) visit(controller string, read func(dir) error) error {
	place, ok := c.place(controller)
	if !ok {
		return nil
	}
	return c.visitPlace(place, read)
}

func (c *Cgroup) visitPlace(p Place, read func(dir) error) error {
	d, err := openPlace(c.fs, p)
	if err != nil {
		return err
	}
	defer d.close()
	if err := read(d); err != nil {
		return err
	}
	if d.gone() {
		return &GoneError{Dir: d.path}
	}
	return nil
}

// memoryEvents reads memory.events or memory.events.local; nil when there is
// no such file.
func (d dir) memoryEvents(file string, buf []byte) (*verdict.MemoryEvents, error) {
	data, ok, err := d.read(file, buf)
	if err != nil || !ok {
		return nil, err
	}
	events, err := parseMemoryEvents(data)
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", d.path, file, err)
	}
	return &events, nil
}

func parseMemoryEvents(data []byte) (verdict.MemoryEvents, error) {
	var m verdict.MemoryEvents
	err := parseFlat(data, []field{
		{key: "high", to: &m.High},
		{key: "max", to: &m.Max},
		{key: "oom", to: &m.OOM},
		{key: "oom_kill", to: &m.OOMKill},
		{key: "oom_group_kill", to: &m.OOMGroupKill},
	})
	return m, err
}

// memoryEventsV1 is nil when the kernel does not count OOM kills.
func (d dir) memoryEventsV1(buf []byte) (*verdict.MemoryEvents, error) {
	kills, err := d.number("memory.oom_control", "oom_kill", buf)
	if err != nil || kills == nil {
		return nil, err
	}
	m := verdict.MemoryEvents{OOMKill: *kills}
	for _, file := range []string{"memory.failcnt", "memory.memsw.failcnt"} {
		n, err := d.single(file, buf)
		if err != nil {
			return nil, err
		}
		if n != nil {
			m.Max += *n
		}
	}
	if m.OOMKill == 0 {
		return &m, nil
	}
	m.OOM = m.Max
	if m.OOM == 0 {
		reached, err := d.reachedLimitV1(buf)
		if err != nil {
			return nil, err
		}
		if reached {
			m.OOM = 1
		}
	}
	return &m, nil
}

// chargeBatch is how far below a limit the kernel may stay when it cannot get
// what it asks for at once: 64 pages (MEMCG_CHARGE_BATCH) of 4 KiB.
const chargeBatch = 64 * 4096

// reachedLimitV1 reports whether the memory of a cgroup, or its memory and swap,
// has been at the limit.
func (d dir) reachedLimitV1(buf []byte) (bool, error) {
	for _, pair := range [...]struct{ limit, peak string }{
		{fileLimitV1, "memory.max_usage_in_bytes"},
		{fileMemswV1, "memory.memsw.max_usage_in_bytes"},
	} {
		limit, err := d.single(pair.limit, buf)
		if err != nil {
			return false, err
		}
		peak, err := d.single(pair.peak, buf)
		if err != nil {
			return false, err
		}
		if limit != nil && peak != nil && *peak >= *limit-chargeBatch {
			return true, nil
		}
	}
	return false, nil
}

// number takes one number out of a flat-keyed file; nil when there is no such
// file or no such key in it.
func (d dir) number(file, key string, buf []byte) (*int64, error) {
	data, ok, err := d.read(file, buf)
	if err != nil || !ok {
		return nil, err
	}
	var n int64
	fields := [1]field{{key: key, to: &n}}
	if err := parseFlat(data, fields[:]); err != nil {
		return nil, fmt.Errorf("%s/%s: %w", d.path, file, err)
	}
	if !fields[0].found {
		return nil, nil
	}
	return &n, nil
}

// single reads a file that holds one number; nil when there is no such file.
func (d dir) single(file string, buf []byte) (*int64, error) {
	data, ok, err := d.read(file, buf)
	if err != nil || !ok {
		return nil, err
	}
	n, err := parseCount(trimNewline(data))
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", d.path, file, err)
	}
	return &n, nil
}

// refusedForks adds up pids.events of a cgroup and of those below it that have
// no pids.max of their own; nil when the cgroup has no such file.
//
// A container that may write to its cgroups can add to this number, by setting
// and lifting a limit below; it cannot take anything away.
func (c *Cgroup) refusedForks(d dir, buf []byte) (*int64, error) {
	const file = "pids.events"
	sum, err := d.number(file, "max", buf)
	if err != nil || sum == nil {
		return nil, err
	}
	// What is below can only add. The container may own it, so that an error
	// there (too many, too deep) must not cost the rest of the evidence.
	_ = c.below(d.path, func(d dir) (bool, error) {
		data, ok, err := d.read("pids.max", buf)
		if err != nil || !ok {
			return false, err
		}
		limit, err := parseMax(data)
		if err != nil || limit != limits.NoLimit() {
			return false, err
		}
		n, err := d.number(file, "max", buf)
		if err != nil || n == nil {
			return false, err
		}
		*sum += *n
		return true, nil
	})
	return sum, nil
}
