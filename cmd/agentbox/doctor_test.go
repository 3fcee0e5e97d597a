package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/doctor"
	"github.com/agentbox/agentbox/pkg/limits"
)

// reports are those of hosts of every kind that a person sees.
func reports() map[string]doctor.Report {
	limit := func(key limits.Key, n, unit string, enforcer limits.Enforcer, mechanism string) doctor.Limit {
		return doctor.Limit{Key: key, Effective: json.Number(n), Unit: unit, Enforcer: enforcer, Mechanism: mechanism}
	}
	kernel := func(key limits.Key, n, unit, mechanism string) []doctor.Limit {
		return []doctor.Limit{limit(key, n, unit, limits.EnforcerKernel, mechanism)}
	}
	required := []limits.Dimension{limits.Memory, limits.Swap, limits.Pids, limits.CPU}
	ready := doctor.Report{
		Ready: true, Required: required, Kernel: "6.12.48+deb13-amd64",
		Cgroup:        doctor.CgroupReport{Version: 2, Driver: "systemd", Folder: "/sys/fs/cgroup/system.slice"},
		Configuration: doctor.ConfigurationReport{Path: "/etc/agentbox/config.toml", Found: true, Mode: limits.ModeStrict},
		Runtime:       doctor.RuntimeReport{Name: "runc", Path: "/usr/bin/runc", Version: "1.3.6"},
		Supervisor:    doctor.SupervisorReport{Available: true, Program: "/usr/local/bin/agentbox", Stops: "cgroup.freeze"},
		Dimensions: map[limits.Dimension]doctor.Dimension{
			limits.Memory: {Answer: doctor.Enforced, Required: true, Limits: append(
				kernel(limits.KeyMemory, "2147483648", "bytes", "memory.max"), kernel(limits.KeyMemoryHigh, "1610612736", "bytes", "memory.high")...)},
			limits.Swap:      {Answer: doctor.Enforced, Required: true, Limits: kernel(limits.KeySwap, "0", "bytes", "memory.swap.max")},
			limits.Pids:      {Answer: doctor.Enforced, Required: true, Limits: kernel(limits.KeyPids, "2048", "tasks", "pids.max")},
			limits.CPU:       {Answer: doctor.Enforced, Required: true, Limits: kernel(limits.KeyCPUs, "1.5", "cpus", "cpu.max"), Detail: "2 from the default lowered to 1.5, the ceiling in the configuration"},
			limits.IO:        {Answer: doctor.Enforced, Limits: append(kernel(limits.KeyIOReadBPS, "268435456", "bytes/s", "io.max"), kernel(limits.KeyIOWriteIOPS, "5000", "operations/s", "io.max")...)},
			limits.Disk:      {Answer: doctor.NotEnforced, Limits: []doctor.Limit{limit(limits.KeyDisk, "10737418240", "bytes", limits.EnforcerNone, "")}, Reason: "this version does not enforce disk"},
			limits.WallTime:  {Answer: doctor.NotLimited},
			limits.OpenFiles: {Answer: doctor.PerProcess, Limits: []doctor.Limit{limit(limits.KeyOpenFiles, "524288", "files", limits.EnforcerProcess, "RLIMIT_NOFILE")}},
		},
		GroupKill: doctor.GroupKill{Answer: doctor.Enforced, Mechanism: "memory.oom.group"},
		Disks: []limits.BlockDevice{{
			Device: limits.Device{Major: 254, Minor: 16}, Name: "vdb", Places: []string{"/var/lib/docker", "/var/lib/containerd"},
			Filesystem: "ext4", Counted: "reads and all writes (buffered, fsync, direct)",
		}},
	}

	boot := &doctor.Fix{Text: "boot without cgroup_disable=memory on the kernel's command line", Lines: []string{"grubby --update-kernel=ALL --remove-args=cgroup_disable=memory", "reboot"}}
	const absent = "the memory controller is not in /sys/fs/cgroup/cgroup.controllers"
	none := func(key limits.Key, n string) []doctor.Limit {
		return []doctor.Limit{limit(key, n, "bytes", limits.EnforcerNone, "")}
	}
	notReady := doctor.Report{
		Required: required,
		Missing:  []doctor.Missing{{Dimension: limits.Memory, Reason: absent}, {Dimension: limits.Swap, Reason: absent}},
		Kernel:   "5.15.0-100-generic", Cgroup: doctor.CgroupReport{Version: 1, Hybrid: true, Driver: "cgroupfs"},
		Configuration: doctor.ConfigurationReport{Path: "/etc/agentbox/config.toml", Mode: limits.ModeAuto},
		Runtime:       doctor.RuntimeReport{Name: "runc"},
		Supervisor:    doctor.SupervisorReport{Program: "/usr/local/bin/agentbox", Reason: "this kernel gives no pidfds"},
		Dimensions: map[limits.Dimension]doctor.Dimension{
			limits.Memory: {Answer: doctor.NotEnforced, Required: true, Limits: none(limits.KeyMemory, "2147483648"), Reason: absent, Detail: absent, Fix: boot},
			limits.Swap:   {Answer: doctor.NotEnforced, Required: true, Limits: none(limits.KeySwap, "0"), Reason: absent, Detail: absent, Fix: boot},
			limits.IO: {
				Answer: doctor.Partly, Limits: append(
					kernel(limits.KeyIOReadBPS, "1048576", "bytes/s", "blkio.throttle.read_bps_device"), kernel(limits.KeyIOWriteBPS, "1048576", "bytes/s", "blkio.throttle.write_bps_device")...),
				Reason: "not on /var/lib/docker: nfs4 is a network filesystem",
			},
		},
		GroupKill: doctor.GroupKill{Answer: doctor.NotEnforced, Reason: absent, Fix: boot},
		Findings: []doctor.Finding{
			{Check: "runtime", Level: doctor.Error, Text: `the low-level runtime "runc" is not there or cannot be run`, Fix: &doctor.Fix{Text: "install runc"}},
			{Check: "swap", Level: doctor.Warning, Text: "swap is on (2GiB) and cannot be limited", Fix: boot},
			{Check: "docker_runtime", Level: doctor.Info, Text: "Docker does not know agentbox"},
		},
	}

	supervised := func(key limits.Key, n, unit string) []doctor.Limit {
		l := limit(key, n, unit, limits.EnforcerSupervisor, limits.SupervisorName)
		l.Precision = limits.SupervisorPrecision(key)
		return []doctor.Limit{l}
	}
	const denied = "/sys/fs/cgroup is not writable"
	rootless := doctor.Report{
		Required: required, Missing: []doctor.Missing{{Dimension: limits.Memory, Reason: "only the supervisor does: " + denied}},
		Kernel: "6.12.48", Cgroup: doctor.CgroupReport{Version: 2, Driver: "cgroupfs", Folder: "/sys/fs/cgroup"},
		Configuration: doctor.ConfigurationReport{Path: "/etc/agentbox/config.toml", Mode: limits.ModeAuto},
		Runtime:       doctor.RuntimeReport{Name: "crun", Path: "/usr/bin/crun"},
		Supervisor:    doctor.SupervisorReport{Available: true, Program: "/usr/local/bin/agentbox", Stops: "SIGSTOP", Reason: "there is no /proc/PID/io"},
		Dimensions: map[limits.Dimension]doctor.Dimension{
			limits.Memory:  {Answer: doctor.Supervised, Required: true, Limits: supervised(limits.KeyMemory, "2147483648", "bytes"), Detail: denied},
			limits.CPUTime: {Answer: doctor.Supervised, Limits: supervised(limits.KeyCPUTime, "300000000000", "nanoseconds")},
		},
		GroupKill: doctor.GroupKill{Answer: doctor.Supervised, Mechanism: limits.SupervisorName},
	}

	broken := doctor.Report{
		Required: required, Cgroup: doctor.CgroupReport{Driver: "cgroupfs"},
		Configuration: doctor.ConfigurationReport{Path: "/x.toml", Found: true, Mode: limits.ModeAuto, Problem: "/x.toml:1: wrong"},
		Runtime:       doctor.RuntimeReport{Name: "crun", Path: "/usr/bin/crun"},
		Findings:      []doctor.Finding{{Check: "configuration", Level: doctor.Error, Text: "/x.toml:1: wrong"}},
	}

	hostile := doctor.Report{
		Ready: true, Kernel: "\x1b[31m6.1", Cgroup: doctor.CgroupReport{Version: 2, Driver: "cgroupfs", Folder: "/sys/fs/cgroup/\x1b]0;title\x07"},
		Supervisor: doctor.SupervisorReport{Available: true, Program: "/\x1b", Stops: "x\n", Reason: "y\r"},
		Runtime:    doctor.RuntimeReport{Name: "runc\n", Path: "/\t/runc", Version: "1\x00"},
		Disks:      []limits.BlockDevice{{Name: "a\x1bb", Places: []string{"/x\ny"}, Filesystem: "z\r"}},
		Findings:   []doctor.Finding{{Check: "a\nb", Level: "\x1b[1m", Text: "c\nd", Fix: &doctor.Fix{Text: "e\nf", Lines: []string{"g\x1b\nh"}}}},
	}
	return map[string]doctor.Report{"ready": ready, "not_ready": notReady, "rootless": rootless, "broken": broken, "hostile": hostile}
}

func TestDoctorGolden(t *testing.T) {
	for name, r := range reports() {
		t.Run(name, func(t *testing.T) {
			var p printer
			p.doctor(r)
			golden(t, "doctor_"+name+".golden.txt", []byte(p.String()))
		})
	}
}

func TestDoctorGoldenColour(t *testing.T) {
	p := printer{colour: true}
	p.doctor(reports()["ready"])
	p.line("")
	p.doctor(reports()["not_ready"])
	golden(t, "doctor_colour.golden.txt", []byte(p.String()))
}

func TestDoctorGoldenJSON(t *testing.T) {
	for _, name := range []string{"ready", "not_ready", "rootless", "broken"} {
		var b bytes.Buffer
		if err := writeReport(&b, reports()[name], true); err != nil {
			t.Fatal(err)
		}
		golden(t, "doctor_"+name+".golden.json", b.Bytes())
	}
}

// TestDoctorJSONIsDocumented: every field has its place in the page.
func TestDoctorJSONIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var walk func(value any)
	walk = func(value any) {
		switch v := value.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			for name, item := range v {
				seen[name] = true
				walk(item)
			}
		}
	}
	for _, r := range reports() {
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var whole map[string]any
		if err := json.Unmarshal(data, &whole); err != nil {
			t.Fatal(err)
		}
		walk(whole)
	}
	for _, name := range dimensionNames() {
		delete(seen, name)
	}
	if len(seen) < 30 {
		t.Errorf("only %d fields", len(seen))
	}
	for name := range seen {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/doctor.md does not describe the field %s", name)
		}
	}
}

func TestNotReady(t *testing.T) {
	for name, want := range map[string]struct {
		text string
		code int
	}{
		"ready":     {"", 0},
		"not_ready": {`this host is not ready: required and not enforced: memory swap; the low-level runtime "runc" is not there or cannot be run`, 1},
		"broken":    {"/x.toml:1: wrong", 2},
	} {
		err := notReady(reports()[name])
		if want.code == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || err.Error() != want.text || exitCode(err) != want.code {
			t.Errorf("%s: %v, want %q with code %d", name, err, want.text, want.code)
		}
	}
}

// doctorFixture is a machine whose low-level runtime is a script.
func doctorFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	low := filepath.Join(f.dir, "runc")
	f.write("runc", "#!/bin/sh\necho runc version 1.3.6\n")
	if err := os.Chmod(low, 0o700); err != nil {
		t.Fatal(err)
	}
	f.write("config.toml", `runtime = "`+low+`"
results = "`+f.results.Dir+`"
strict_require = ["open_files"]
`)
	return f
}

// TestDoctorCommand is about this machine, and so about what holds on all: every
// kernel has rlimits, and nobody enforces disk yet.
func TestDoctorCommand(t *testing.T) {
	f := doctorFixture(t)
	for _, c := range []struct {
		name string
		args []string
		code int
		says string // on standard error; empty: nothing
	}{
		{"what the configuration requires", nil, 0, ""},
		{"for people", []string{"--require", "core_dumps"}, 0, ""},
		{"as JSON", []string{"--json", "--require=core_dumps,open_files"}, 0, ""},
		{"with blanks", []string{"--json", "--require=core_dumps, open_files"}, 0, ""},
		{"another place", []string{"--json", "--cgroup=/x", "--systemd-cgroup"}, 0, ""},
		{"what does not hold", []string{"--require", "open_files,disk"}, 1, "this host is not ready: required and not enforced: disk"},
		{"what has no limit", []string{"--json", "--require", "wall_time"}, 1, "required and not enforced: wall_time"},
		{"an unknown dimension", []string{"--require", "memroy"}, 2, `--require "memroy" names no dimension: expected some of memory, swap,`},
		{"an unknown flag", []string{"--jsn"}, 2, "unknown flag: --jsn"},
		{"an argument", []string{"memory"}, 2, `doctor takes no argument, and "memory" is one`},
		{"no such configuration", []string{"--config", "/nowhere/config.toml"}, 2, "/nowhere/config.toml: cannot read the configuration"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := f.run(append([]string{"doctor"}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.says) || (stderr == "") != (c.says == "") || strings.Count(stderr, "\n") > 1 {
				t.Errorf("code %d, stderr %q", code, stderr)
			}
			if code == 2 && !slices.Contains(c.args, "--config") {
				if stdout != "" {
					t.Errorf("stdout %q", stdout)
				}
				return
			}
			if !slices.Contains(c.args, "--json") {
				if !strings.HasPrefix(stdout, "this host  ") || !strings.Contains(stdout, "\n  open_files ") {
					t.Errorf("stdout %q", stdout)
				}
				return
			}
			var r doctor.Report
			d := json.NewDecoder(strings.NewReader(stdout))
			d.DisallowUnknownFields()
			if err := d.Decode(&r); err != nil || r.Ready != (code == 0) || len(r.Dimensions) != len(dimensionNames()) || r.Runtime.Version != "1.3.6" {
				t.Errorf("%v in %s", err, stdout)
			}
		})
	}
}

func TestDoctorWithoutARuntime(t *testing.T) {
	f := newFixture(t)
	f.write("config.toml", "runtime = \"/nowhere/runc\"\nstrict_require = []\nresults = \""+f.results.Dir+"\"\n")
	_, stderr, code := f.run("doctor")
	if code != 1 || !strings.Contains(stderr, `the low-level runtime "/nowhere/runc" is not there`) {
		t.Errorf("code %d, %s", code, stderr)
	}
}
