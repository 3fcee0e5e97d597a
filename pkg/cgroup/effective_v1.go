package cgroup

import (
	"fmt"
	"slices"

	"github.com/agentbox/agentbox/pkg/limits"
)

// Names of cgroup v1 files.
const (
	fileLimitV1  = "memory.limit_in_bytes"
	fileMemswV1  = "memory.memsw.limit_in_bytes"
	fileQuotaV1  = "cpu.cfs_quota_us"
	filePeriodV1 = "cpu.cfs_period_us"
)

func (c *Cgroup) effectiveV1(keys []limits.Key) (map[limits.Key]Effective, error) {
	all := make(map[limits.Key]Effective, len(keys))
	for _, key := range keys {
		all[key] = none()
	}
	has := func(key limits.Key) bool { return slices.Contains(keys, key) }
	if has(limits.KeyMemory) || has(limits.KeySwap) {
		memory, swap, err := c.memoryV1()
		if err != nil {
			return nil, err
		}
		if has(limits.KeyMemory) {
			all[limits.KeyMemory] = memory
		}
		if has(limits.KeySwap) {
			all[limits.KeySwap] = swap
		}
	}
	if has(limits.KeyPids) {
		pids, err := c.pidsV1()
		if err != nil {
			return nil, err
		}
		all[limits.KeyPids] = pids
	}
	if has(limits.KeyCPUs) {
		cpus, err := c.cpusV1()
		if err != nil {
			return nil, err
		}
		all[limits.KeyCPUs] = cpus
	}
	return all, nil
}

// memoryV1 returns the memory limit, and the swap that is left between it and
// the limit of both together (cgroup-v1/memory.rst, 2.4 Swap Extension).
func (c *Cgroup) memoryV1() (memory, swap Effective, err error) {
	memory, swap = none(), none()
	place, ok := c.paths.Places["memory"]
	if !ok {
		return memory, swap, nil
	}
	both := none()
	buf := make([]byte, 512)
	err = c.walk(place, func(d dir, owner string) error {
		limit, err := d.bytesV1(fileLimitV1, buf, &memory)
		if err != nil {
			return err
		}
		memsw, err := d.bytesV1(fileMemswV1, buf, &both)
		if err != nil || limit.None && memsw.None {
			return err
		}
		if counts, err := d.hierarchical(owner, buf); err != nil || !counts {
			return err
		}
		memory.tighten(limit, owner)
		both.tighten(memsw, owner)
		return nil
	})
	if err != nil {
		return Effective{}, Effective{}, err
	}
	swap = both
	if !both.Value.None && !memory.Value.None {
		swap.Value.N = max(0, both.Value.N-memory.Value.N)
	}
	return memory, swap, nil
}

// bytesV1 reads a memory limit. A cgroup without the file has none.
func (d dir) bytesV1(file string, buf []byte, e *Effective) (limits.Value, error) {
	data, ok, err := d.read(file, buf)
	if err != nil || !ok {
		return limits.NoLimit(), err
	}
	e.Mechanism = file
	v, err := parseBytesV1(data)
	if err != nil {
		return limits.Value{}, fmt.Errorf("%s/%s: %w", d.path, file, err)
	}
	return v, nil
}

// hierarchical reports whether the limits of a folder hold for what is below it
// (cgroup-v1/memory.rst, 6. Hierarchy support). Since Linux 5.11 they always do.
// An ancestor can only have it on when everything below it has it on too, so one
// folder tells.
func (d dir) hierarchical(owner string, buf []byte) (bool, error) {
	if owner == Self {
		return true, nil
	}
	const file = "memory.use_hierarchy"
	data, ok, err := d.read(file, buf)
	if err != nil || !ok {
		return err == nil, err
	}
	n, err := parseCount(trimNewline(data))
	if err != nil {
		return false, fmt.Errorf("%s/%s: %w", d.path, file, err)
	}
	return n != 0, nil
}

func (c *Cgroup) pidsV1() (Effective, error) {
	pids := none()
	place, ok := c.paths.Places["pids"]
	if !ok {
		return pids, nil
	}
	const file = "pids.max"
	buf := make([]byte, 64)
	err := c.walk(place, func(d dir, owner string) error {
		data, ok, err := d.read(file, buf)
		if err != nil || !ok {
			return err
		}
		pids.Mechanism = file
		v, err := parseMax(data)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", d.path, file, err)
		}
		pids.tighten(v, owner)
		return nil
	})
	return pids, err
}

func (c *Cgroup) cpusV1() (Effective, error) {
	cpus := none()
	place, ok := c.paths.Places["cpu"]
	if !ok {
		return cpus, nil
	}
	buf := make([]byte, 64)
	err := c.walk(place, func(d dir, owner string) error {
		data, ok, err := d.read(fileQuotaV1, buf)
		if err != nil || !ok {
			return err
		}
		cpus.Mechanism = fileQuotaV1
		quota, err := parseQuotaV1(data)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", d.path, fileQuotaV1, err)
		}
		if quota < 0 {
			return nil
		}
		if data, _, err = d.read(filePeriodV1, buf); err != nil {
			return err
		}
		period, err := parsePeriod(trimNewline(data))
		if err != nil {
			return fmt.Errorf("%s/%s: %w", d.path, filePeriodV1, err)
		}
		cpus.seeBandwidth(bandwidth{quota: quota, period: period}, owner)
		return nil
	})
	return cpus, err
}
