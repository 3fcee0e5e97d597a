package cgroup

// Usage is what a container uses and used, with all that is below its cgroup.
// Nil is what this kernel does not count or the cgroup's controllers do not
// cover.
type Usage struct {
	MemoryBytes     *int64 `json:"memory_bytes,omitempty"`      // now
	MemoryPeakBytes *int64 `json:"memory_peak_bytes,omitempty"` // v2: since Linux 5.19
	Pids            *int64 `json:"pids,omitempty"`              // now, threads count
	PidsPeak        *int64 `json:"pids_peak,omitempty"`         // since Linux 6.1
	CPUUsec         *int64 `json:"cpu_usec,omitempty"`          // CPU time in microseconds
}

// Usage reads memory.current, memory.peak, pids.current, pids.peak and cpu.stat
// (cgroup-v2.rst), or on v1 memory.usage_in_bytes, memory.max_usage_in_bytes and
// cpuacct.usage (cgroup-v1/memory.rst, cpuacct.rst). A cgroup that is gone gives
// an error that matches fs.ErrNotExist.
func (c *Cgroup) Usage() (Usage, error) {
	var u Usage
	read := c.usageV2
	if c.paths.Version == 1 {
		read = c.usageV1
	}
	if err := read(&u); err != nil {
		return Usage{}, err
	}
	return u, nil
}

func (c *Cgroup) usageV2(u *Usage) error {
	whole := c.paths.Places[""]
	if c.paths.Unit != nil {
		whole = *c.paths.Unit
	}
	return c.visitPlace(whole, func(d dir) error {
		buf := make([]byte, 4096)
		if err := d.singles(buf, []single{
			{"memory.current", &u.MemoryBytes},
			{"memory.peak", &u.MemoryPeakBytes},
			{"pids.current", &u.Pids},
			{"pids.peak", &u.PidsPeak},
		}); err != nil {
			return err
		}
		var err error
		u.CPUUsec, err = d.number("cpu.stat", "usage_usec", buf)
		return err
	})
}

func (c *Cgroup) usageV1(u *Usage) error {
	buf := make([]byte, 4096)
	err := c.visit("memory", func(d dir) error {
		return d.singles(buf, []single{
			{"memory.usage_in_bytes", &u.MemoryBytes},
			{"memory.max_usage_in_bytes", &u.MemoryPeakBytes},
		})
	})
	if err != nil {
		return err
	}
	err = c.visit("pids", func(d dir) error {
		return d.singles(buf, []single{{"pids.current", &u.Pids}, {"pids.peak", &u.PidsPeak}})
	})
	if err != nil {
		return err
	}
	return c.visit("cpuacct", func(d dir) error {
		nsec, err := d.single("cpuacct.usage", buf)
		if nsec != nil {
			*nsec /= 1000
		}
		u.CPUUsec = nsec
		return err
	})
}

// single is a file of one number and where it goes.
type single struct {
	file string
	to   **int64
}

func (d dir) singles(buf []byte, list []single) (err error) {
	for _, s := range list {
		if *s.to, err = d.single(s.file, buf); err != nil {
			return err
		}
	}
	return nil
}
