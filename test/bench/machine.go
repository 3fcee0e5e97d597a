package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what the numbers depend on.
type machine struct {
	Name      string `json:"name"`
	Kernel    string `json:"kernel"` // the version alone
	Cgroup    int    `json:"cgroup"` // 1 or 2
	CPUs      int    `json:"cpus"`
	CPU       string `json:"cpu,omitempty"` // its model
	MemoryMiB int64  `json:"memory_mib"`
	Runc      string `json:"runc"`
	Go        string `json:"go"`
	// Load is that of the last minute when the run began, and LoadAfter when it
	// ended; of a guest, which has just booted, they say nothing and are empty.
	Load      string `json:"load,omitempty"`
	LoadAfter string `json:"load_after,omitempty"`
}

func lookAtMachine(name string) (m machine, err error) {
	m = machine{Name: name, Cgroup: 1, CPUs: runtime.NumCPU(), Go: strings.TrimPrefix(runtime.Version(), "go")}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("uname: %w", err)
	}
	m.Kernel = kernelVersion(unix.ByteSliceToString(u.Release[:]))
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		m.Cgroup = 2
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("sysinfo: %w", err)
	}
	m.MemoryMiB = int64(info.Totalram) * int64(info.Unit) >> 20
	version, err := exec.Command("runc", "--version").Output()
	if err != nil {
		return m, fmt.Errorf("runc --version: %w", err)
	}
	m.Runc = runcVersion(version)
	if m.Load, err = load(); err != nil {
		return m, err
	}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	m.CPU = cpuModel(cpuinfo)
	return m, err
}

// load is that of the last minute (proc_loadavg(5)).
func load() (string, error) {
	data, err := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(data), " ")
	return first, err
}

// kernelVersion is a kernel's release without what its builder has added.
func kernelVersion(release string) string {
	version, _, _ := strings.Cut(release, "-")
	return version
}

// runcVersion reads "runc version 1.3.0+ds1\ncommit: ...".
func runcVersion(out []byte) string {
	first, _, _ := bytes.Cut(out, []byte("\n"))
	version, _, _ := strings.Cut(strings.TrimPrefix(string(first), "runc version "), "+")
	return version
}

// cpuModel reads the first "model name : ..." of /proc/cpuinfo; empty where that
// has none.
func cpuModel(cpuinfo []byte) string {
	for line := range strings.Lines(string(cpuinfo)) {
		name, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) == "model name" {
			return strings.Join(strings.Fields(strings.ReplaceAll(value, "(R)", "")), " ")
		}
	}
	return ""
}

// busy reports whether others use the machine.
func (m machine) busy() bool {
	n, err := strconv.ParseFloat(m.Load, 64)
	return err == nil && n >= 1
}

// String is the machine in one sentence.
func (m machine) String() string {
	cpus := "1 CPU"
	if m.CPUs != 1 {
		cpus = fmt.Sprintf("%d CPUs", m.CPUs)
	}
	if m.CPU != "" {
		cpus += " (" + m.CPU + ")"
	}
	text := fmt.Sprintf("%s: Linux %s, cgroup v%d, %s, %.1f GiB of memory, runc %s, Go %s",
		m.Name, m.Kernel, m.Cgroup, cpus, float64(m.MemoryMiB)/1024, m.Runc, m.Go)
	if m.Load != "" {
		text += fmt.Sprintf(", load %s when it began", m.Load)
	}
	if m.LoadAfter != "" {
		text += fmt.Sprintf(" and %s when it ended, with what it did itself", m.LoadAfter)
	}
	return text
}
