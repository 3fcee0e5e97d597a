package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/limits"
)

// Self is the Owner of a limit that is set on the cgroup, its unit, or the
// process, itself.
const Self = "self"

// Effective is a limit as it really holds.
type Effective struct {
	// Value is in the unit of the key's Kind. The kernel rounds what is written
	// to it: memory down to whole pages, for one.
	Value limits.Value
	// Owner is where the limit is set: Self, or the folder of an ancestor.
	// Empty when there is no limit.
	Owner string
	// Above says that an ancestor has a limit too, tighter or not.
	Above bool
	// Mechanism is the kernel's name: "memory.max", "RLIMIT_NOFILE". Empty
	// when nothing here could limit: no cgroup on the way to the root has the
	// file.
	Mechanism string
	// Quota and Period are the two numbers of a CPU limit in microseconds, as
	// its owner has them; 0 when there is no limit.
	Quota, Period int64
}

// EffectiveKeys are the keys that Effective knows.
var EffectiveKeys = [...]limits.Key{limits.KeyMemory, limits.KeyMemoryHigh, limits.KeySwap, limits.KeyPids, limits.KeyCPUs}

// Effective returns the limit of one key as it holds for the processes of this
// cgroup: the tightest from the cgroup itself up to the root of what is mounted,
// and the nearest one among equals. A container's own limit is worth nothing
// when its parent has a lower one.
//
// On v1 the swap is what memory.memsw.limit_in_bytes leaves above the memory
// limit, and the limits of ancestors without memory.use_hierarchy do not count.
// There is no memory_high.
//
// A cgroup that is gone gives an error that matches fs.ErrNotExist. A key that
// is not one of EffectiveKeys gives an error that matches errors.ErrUnsupported.
func (c *Cgroup) Effective(key limits.Key) (Effective, error) {
	all, err := c.effective([]limits.Key{key})
	return all[key], err
}

// EffectiveAll returns Effective of all EffectiveKeys, and opens each folder
// only once.
func (c *Cgroup) EffectiveAll() (map[limits.Key]Effective, error) {
	return c.effective(EffectiveKeys[:])
}

func (c *Cgroup) effective(keys []limits.Key) (map[limits.Key]Effective, error) {
	for _, key := range keys {
		if !slices.Contains(EffectiveKeys[:], key) {
			return nil, fmt.Errorf("no cgroup limit is read for %s: %w", key, errors.ErrUnsupported)
		}
	}
	if c.paths.Version == 2 {
		return c.effectiveV2(keys)
	}
	return c.effectiveV1(keys)
}

// tighten makes e the tighter of itself and what the cgroup at owner has.
func (e *Effective) tighten(v limits.Value, owner string) {
	if v.None {
		return
	}
	e.Above = e.Above || owner != Self
	if e.Owner != "" && e.Value.N <= v.N {
		return
	}
	e.Value, e.Owner = v, owner
}

// none is the start of a walk: no limit was met yet.
func none() Effective { return Effective{Value: limits.NoLimit()} }

// walk calls see with each folder from the place up to its mount point. Owner is
// how a limit found there is attributed.
func (c *Cgroup) walk(p Place, see func(d dir, owner string) error) error {
	d, err := openPlace(c.fs, p)
	if err != nil {
		return err
	}
	owner := Self
	for level := p.Path; ; level = parentPath(level) {
		err := see(d, owner)
		if err == nil && level == p.Path && d.gone() {
			err = &GoneError{Dir: d.path}
		}
		d.close()
		if err != nil || level == "/" {
			return err
		}
		up := Place{Mount: p.Mount, Path: parentPath(level)}
		if d, err = openPlace(c.fs, up); err != nil {
			return err
		}
		if unit := c.paths.Unit; unit == nil || len(up.Path) < len(unit.Path) {
			owner = d.path
		}
	}
}

// parentPath returns the folder above a clean absolute path that is not "/".
func parentPath(p string) string {
	if i := strings.LastIndexByte(p, '/'); i > 0 {
		return p[:i]
	}
	return "/"
}

// fileV2 returns the file that limits a key on v2.
func fileV2(key limits.Key) string {
	switch key {
	case limits.KeyMemory:
		return "memory.max"
	case limits.KeyMemoryHigh:
		return "memory.high"
	case limits.KeySwap:
		return "memory.swap.max"
	case limits.KeyPids:
		return "pids.max"
	default:
		return "cpu.max"
	}
}

// effectiveV2 follows the section "Core Interface Files" and those of the
// controllers in cgroup-v2.rst: every controller is hierarchical, and the root
// cgroup has none of the files.
func (c *Cgroup) effectiveV2(keys []limits.Key) (map[limits.Key]Effective, error) {
	found := make([]Effective, len(keys))
	for i := range found {
		found[i] = none()
	}
	buf := make([]byte, 512)
	err := c.walk(c.paths.Places[""], func(d dir, owner string) error {
		for i, key := range keys {
			file := fileV2(key)
			data, ok, err := d.read(file, buf)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			found[i].Mechanism = file
			if err := found[i].seeV2(key, data, owner); err != nil {
				return fmt.Errorf("%s/%s: %w", d.path, file, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	all := make(map[limits.Key]Effective, len(keys))
	for i, key := range keys {
		all[key] = found[i]
	}
	return all, nil
}

func (e *Effective) seeV2(key limits.Key, data []byte, owner string) error {
	if key == limits.KeyCPUs {
		b, err := parseCPUMax(data)
		if err == nil {
			e.seeBandwidth(b, owner)
		}
		return err
	}
	v, err := parseMax(data)
	if err == nil {
		e.tighten(v, owner)
	}
	return err
}

func (e *Effective) seeBandwidth(b bandwidth, owner string) {
	before := *e
	e.tighten(b.value(), owner)
	if e.Owner != before.Owner || e.Value != before.Value {
		e.Quota, e.Period = b.quota, b.period
	}
}
