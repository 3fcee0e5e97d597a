package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// IO is what the kernel has counted for a cgroup on one disk.
type IO struct {
	ReadBytes, WriteBytes int64
	Reads, Writes         int64
}

// Sub returns what was added since an earlier reading.
func (io IO) Sub(earlier IO) IO {
	return IO{
		ReadBytes: io.ReadBytes - earlier.ReadBytes, WriteBytes: io.WriteBytes - earlier.WriteBytes,
		Reads: io.Reads - earlier.Reads, Writes: io.Writes - earlier.Writes,
	}
}

const mountPoint = "/sys/fs/cgroup"

// unified reports whether cgroups are those of v2.
func unified() bool {
	_, err := os.Stat(filepath.Join(mountPoint, "cgroup.controllers"))
	return err == nil
}

// CPUSeconds is the CPU time that the sandbox has used: usage_usec of cpu.stat
// (cgroup-v2.rst), or cpuacct.usage (cgroup-v1/cpuacct.rst).
func (s *Sandbox) CPUSeconds() (float64, error) {
	file, name, unit := filepath.Join(mountPoint, s.cgroup, "cpu.stat"), "usage_usec", 1e6
	if !unified() {
		file, name, unit = filepath.Join(mountPoint, "cpuacct", s.cgroup, "cpuacct.usage"), "", 1e9
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := parseNumber(data, name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return float64(n) / unit, nil
}

// MemoryPeak is the most memory that the kernel has counted for the sandbox at
// once, in bytes: memory.peak (cgroup-v2.rst), or memory.max_usage_in_bytes
// (cgroup-v1/memory.rst). Page tables and pages of files are in it.
func (s *Sandbox) MemoryPeak() (int64, error) {
	file := filepath.Join(mountPoint, s.cgroup, "memory.peak")
	if !unified() {
		file = filepath.Join(mountPoint, "memory", s.cgroup, "memory.max_usage_in_bytes")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return parseNumber(data, "")
}

// MemoryUse is what the kernel counts for the sandbox now, in bytes, without the
// pages of files.
func (s *Sandbox) MemoryUse() (int64, error) {
	dir, use, files := filepath.Join(mountPoint, s.cgroup), "memory.current", "file"
	if !unified() {
		dir, use, files = filepath.Join(mountPoint, "memory", s.cgroup), "memory.usage_in_bytes", "cache"
	}
	now, err := os.ReadFile(filepath.Join(dir, use))
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, part := range []struct {
		data []byte
		name string
		sign int64
	}{{now, "", 1}, {stat, files, -1}, {stat, "shmem", 1}} { // the latter counts among the files too
		n, err := parseNumber(part.data, part.name)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", dir, err)
		}
		sum += part.sign * n
	}
	return sum, nil
}

// Pids are the processes of the sandbox.
func (s *Sandbox) Pids() (pids []int, err error) {
	file := filepath.Join(mountPoint, s.cgroup, "cgroup.procs")
	if !unified() {
		file = filepath.Join(mountPoint, "cpuacct", s.cgroup, "cgroup.procs")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for word := range bytes.FieldsSeq(data) {
		pid, err := strconv.Atoi(string(word))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// IO is what was read and written on a disk, "MAJOR:MINOR": io.stat
// (cgroup-v2.rst), or blkio.throttle.io_service_bytes and io_serviced
// (cgroup-v1/blkio-controller.rst). A disk that was not touched has zeros.
func (s *Sandbox) IO(disk string) (io IO, err error) {
	if unified() {
		file := filepath.Join(mountPoint, s.cgroup, "io.stat")
		data, err := os.ReadFile(file)
		if err != nil {
			return io, err
		}
		all, err := parseIOStat(data)
		if err != nil {
			return io, fmt.Errorf("%s: %w", file, err)
		}
		return all[disk], nil
	}
	for name, to := range map[string][2]*int64{
		"io_service_bytes": {&io.ReadBytes, &io.WriteBytes},
		"io_serviced":      {&io.Reads, &io.Writes},
	} {
		file := filepath.Join(mountPoint, "blkio", s.cgroup, "blkio.throttle."+name)
		data, err := os.ReadFile(file)
		if err != nil {
			return io, err
		}
		all, err := parseServiced(data)
		if err != nil {
			return io, fmt.Errorf("%s: %w", file, err)
		}
		*to[0], *to[1] = all[disk]["Read"], all[disk]["Write"]
	}
	return io, nil
}

// parseNumber reads "name 42\n" among other lines, or with no name a file that
// is just a number.
func parseNumber(data []byte, name string) (int64, error) {
	for line := range bytes.Lines(data) {
		words := bytes.Fields(line)
		switch {
		case name == "" && len(words) == 1:
			return strconv.ParseInt(string(words[0]), 10, 64)
		case name != "" && len(words) == 2 && string(words[0]) == name:
			return strconv.ParseInt(string(words[1]), 10, 64)
		}
	}
	return 0, fmt.Errorf("no number %q in %q", name, data)
}

// parseIOStat reads "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0", a
// line for each disk; one that has nothing to tell is "7:0 ", and some kernels
// leave out the end of its line: "7:1 7:0 8:0 rbytes=4096 ...".
func parseIOStat(data []byte) (map[string]IO, error) {
	all := map[string]IO{}
	for line := range bytes.Lines(data) {
		disk, io := "", IO{}
		for word := range bytes.FieldsSeq(line) {
			name, value, ok := bytes.Cut(word, []byte("="))
			if !ok {
				disk, io = string(word), IO{}
				continue
			}
			to, known := map[string]*int64{
				"rbytes": &io.ReadBytes, "wbytes": &io.WriteBytes, "rios": &io.Reads, "wios": &io.Writes,
			}[string(name)]
			if !known {
				continue
			}
			n, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil {
				return nil, err
			}
			*to = n
		}
		if disk != "" {
			all[disk] = io
		}
	}
	return all, nil
}

// parseServiced reads "8:0 Read 4096", lines for each disk and kind of
// operation, and at the end "Total 4096", which is left out.
func parseServiced(data []byte) (map[string]map[string]int64, error) {
	all := map[string]map[string]int64{}
	for line := range bytes.Lines(data) {
		words := bytes.Fields(line)
		if len(words) != 3 {
			continue
		}
		n, err := strconv.ParseInt(string(words[2]), 10, 64)
		if err != nil {
			return nil, err
		}
		disk := string(words[0])
		if all[disk] == nil {
			all[disk] = map[string]int64{}
		}
		all[disk][string(words[1])] = n
	}
	return all, nil
}
