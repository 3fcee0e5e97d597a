package cgroup

import (
	"bytes"
	"fmt"

	"github.com/agentbox/agentbox/pkg/limits"
)

const fileIOMax = "io.max"

// ioWords are the words for the io keys in io.max.
var ioWords = map[string]limits.Key{
	"rbps": limits.KeyIOReadBPS, "wbps": limits.KeyIOWriteBPS,
	"riops": limits.KeyIOReadIOPS, "wiops": limits.KeyIOWriteIOPS,
}

// ThrottleFileV1 returns the file of cgroup v1 that limits a key of the io
// dimension (cgroup-v1/blkio-controller.rst, Throttling/Upper limit policy
// files).
func ThrottleFileV1(key limits.Key) string {
	switch key {
	case limits.KeyIOReadBPS:
		return "blkio.throttle.read_bps_device"
	case limits.KeyIOWriteBPS:
		return "blkio.throttle.write_bps_device"
	case limits.KeyIOReadIOPS:
		return "blkio.throttle.read_iops_device"
	default:
		return "blkio.throttle.write_iops_device"
	}
}

// Rates are the limits of one disk as they really hold, for each key of
// limits.IOKeys that some cgroup here could limit.
type Rates map[limits.Key]Effective

// EffectiveIO returns the rates of disks as they hold for the processes of this
// cgroup: the tightest from the cgroup itself up to the root of what is mounted
// (cgroup-v2.rst, IO Interface Files). On v1 the throttle of an ancestor does
// not count, since a hierarchy has it only with an option that no engine uses.
//
// A cgroup that is gone gives an error that matches fs.ErrNotExist.
func (c *Cgroup) EffectiveIO(disks []limits.Device) (map[limits.Device]Rates, error) {
	all := make(map[limits.Device]Rates, len(disks))
	for _, disk := range disks {
		all[disk] = Rates{}
	}
	rates := c.ratesV1
	if c.paths.Version == 2 {
		rates = c.ratesV2
	}
	if err := rates(all); err != nil {
		return nil, err // a part of the way up is not what holds
	}
	return all, nil
}

func (c *Cgroup) ratesV2(all map[limits.Device]Rates) error {
	buf := make([]byte, 4096)
	return c.walk(c.paths.Places[""], func(d dir, owner string) error {
		data, ok, err := d.read(fileIOMax, buf)
		if err != nil || !ok {
			return err
		}
		lines, err := parseIOMax(data)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", d.path, fileIOMax, err)
		}
		for disk, rates := range all {
			for _, key := range limits.IOKeys {
				v, given := lines[disk][key]
				if !given {
					v = limits.NoLimit()
				}
				rates.see(key, v, fileIOMax, owner)
			}
		}
		return nil
	})
}

func (r Rates) see(key limits.Key, v limits.Value, file, owner string) {
	e, ok := r[key]
	if !ok {
		e = none()
	}
	e.Mechanism = file
	e.tighten(v, owner)
	r[key] = e
}

func (c *Cgroup) ratesV1(all map[limits.Device]Rates) error {
	buf := make([]byte, 4096)
	return c.visit("blkio", func(d dir) error {
		for _, key := range limits.IOKeys {
			file := ThrottleFileV1(key)
			data, ok, err := d.read(file, buf)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			lines, err := parseThrottleV1(data)
			if err != nil {
				return fmt.Errorf("%s/%s: %w", d.path, file, err)
			}
			for disk, rates := range all {
				v, given := lines[disk]
				if !given {
					v = limits.NoLimit()
				}
				rates.see(key, v, file, Self)
			}
		}
		return nil
	})
}

// removedDisk is what the kernel writes in place of the number of a disk that was
// unplugged while somebody still has it open (bdi_dev_name in mm/backing-dev.c).
const removedDisk = "(unknown)"

// parseIOMax reads "8:0 rbps=1048576 wbps=max riops=max wiops=120", a line for
// each disk that has a limit. Words that are not known are skipped: the kernel
// may add some.
func parseIOMax(data []byte) (map[limits.Device]limits.Set, error) {
	all := map[limits.Device]limits.Set{}
	for line := range bytes.Lines(data) {
		words := bytes.Fields(line)
		if len(words) == 0 {
			continue
		}
		if string(words[0]) == removedDisk {
			continue
		}
		disk, ok := limits.ParseDevice(string(words[0]))
		if !ok {
			return nil, fmt.Errorf("not a device number: %q", words[0])
		}
		set := limits.Set{}
		for _, word := range words[1:] {
			name, value, _ := bytes.Cut(word, []byte("="))
			key, ok := ioWords[string(name)]
			if !ok {
				continue
			}
			v, err := parseMax(value)
			if err != nil {
				return nil, err
			}
			set[key] = v
		}
		all[disk] = set
	}
	return all, nil
}

// parseThrottleV1 reads "8:0 1048576", a line for each disk that has a limit.
func parseThrottleV1(data []byte) (map[limits.Device]limits.Value, error) {
	all := map[limits.Device]limits.Value{}
	for line := range bytes.Lines(data) {
		words := bytes.Fields(line)
		if len(words) == 0 {
			continue
		}
		if string(words[0]) == removedDisk {
			continue
		}
		disk, ok := limits.ParseDevice(string(words[0]))
		if !ok || len(words) != 2 {
			return nil, fmt.Errorf("not a device number and a rate: %q", line)
		}
		n, err := parseCount(words[1])
		if err != nil {
			return nil, err
		}
		all[disk] = limits.Limit(n)
	}
	return all, nil
}
