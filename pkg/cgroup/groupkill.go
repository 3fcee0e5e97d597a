package cgroup

import "fmt"

// GroupKill reports whether the kernel ends this cgroup as a whole when it runs
// out of memory: memory.oom.group of the cgroup itself (cgroup-v2.rst, Memory
// Interface Files; since Linux 4.19). It is false on v1, and where the kernel or
// the cgroup has no such file. A cgroup that is gone gives an error that matches
// fs.ErrNotExist.
func (c *Cgroup) GroupKill() (bool, error) {
	if c.paths.Version == 1 {
		return false, nil
	}
	d, _, err := c.open("")
	if err != nil {
		return false, err
	}
	defer d.close()
	const file = "memory.oom.group"
	data, ok, err := d.read(file, nil)
	if err != nil {
		return false, err
	}
	if !ok {
		if d.gone() {
			return false, &GoneError{Dir: d.path}
		}
		return false, nil
	}
	switch string(trimNewline(data)) {
	case "0":
		return false, nil
	case "1":
		return true, nil
	}
	return false, fmt.Errorf("%s/%s: neither 0 nor 1: %q", d.path, file, data)
}
