package doctor

import (
	"os"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
)

// docker is a daemon with nothing to find fault with.
func docker() *Docker {
	return &Docker{File: dockerFile, Found: true, Settings: DockerSettings{
		LogDriver: "local", DataRoot: "/srv/docker", Runtimes: map[string]DockerRuntime{"agentbox": {Path: "/usr/local/bin/agentbox-runtime"}},
	}}
}

// TestFindings changes one thing on a host that has no findings.
func TestFindings(t *testing.T) {
	const (
		newRunc  = "install runc 1.2.8, 1.3.3, 1.4.0 or later, or an update of your distribution's package that names them"
		escaping = " by its version: a container may be able to escape"
		logs     = "warning docker_logs: Docker keeps all that a container prints, in /srv/docker, without a bound and outside of the container's limits: one that prints for ever fills the disk"
		logsPut  = " => put this into the object in /etc/docker/daemon.json, in place of what has the same name, and restart Docker; containers that are there keep their logs as they are"
		unknown  = "info docker_runtime: Docker does not know agentbox: docker run --runtime=agentbox is refused"
		systemd  = "warning docker_cgroup_driver: Docker uses the systemd cgroup driver, with which systemd removes the counters of a container that ended: limits hold and memory verdicts come from the kernel's log, but usage and the other counters are lost"
		swapOn   = "warning swap: swap is on (2GiB) and cannot be limited: a sandbox at its memory limit goes on in swap, and slows the host down"
		newer    = " => boot a kernel of Linux "
	)
	able := facts(t)
	runc := func(version string, fixed ...string) func(f *Facts) {
		return func(f *Facts) {
			f.Runtime = Runtime{Name: "runc", Path: "/usr/sbin/runc", Program: "runc", Version: version, Fixed: fixed}
		}
	}
	dockerd := func(change func(d *Docker)) func(f *Facts) {
		return func(f *Facts) {
			f.Docker = docker()
			change(f.Docker)
		}
	}
	release := func(text string, features map[string]Presence) func(f *Facts) {
		return func(f *Facts) { f.Kernel.Release, f.Kernel.Features = text, features }
	}
	documented, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(f *Facts)
		want   []string // "level check: text => fix | line"
	}{
		{"nothing", func(*Facts) {}, nil},

		{"the configuration is wrong", func(f *Facts) { f.Config.Problem = "config.toml:3: x is not a known key" }, []string{
			"error configuration: config.toml:3: x is not a known key; no container starts until that is repaired, and this report is about the built-in values",
		}},
		{"mode off", func(f *Facts) { f.Config.Policy.Mode = limits.ModeOff }, []string{
			`warning mode: mode is off in /etc/agentbox/config.toml: containers get no limit from agentbox, and this report says what they would get => change it in /etc/agentbox/config.toml | mode = "auto"`,
		}},

		{"no runtime", func(f *Facts) { f.Runtime = Runtime{Name: "runc"} }, []string{
			`error runtime: the low-level runtime "runc" is not there or cannot be run => install runc, or name another low-level runtime in /etc/agentbox/config.toml`,
		}},
		{"a runtime that does not run", func(f *Facts) { f.Runtime = Runtime{Name: "runc", Path: "/bin/runc", Problem: "exit status 1"} }, []string{
			"error runtime: the low-level runtime /bin/runc cannot be used: exit status 1",
		}},
		{"a runtime that is agentbox-runtime", func(f *Facts) { f.Runtime = Runtime{Name: "runc", Path: "/bin/runc", Itself: true} }, []string{
			"error runtime: the low-level runtime /bin/runc is agentbox-runtime itself: every container is refused => name runc or crun as runtime in /etc/agentbox/config.toml",
		}},
		{"a runtime on a dead file system", func(f *Facts) {
			f.Runtime = Runtime{Name: "/mnt/runc", Problem: "/mnt/runc does not answer within 2s"}
		}, []string{
			`error runtime: the low-level runtime "/mnt/runc" cannot be found: /mnt/runc does not answer within 2s`,
		}},
		{"folders that do not answer", func(f *Facts) { f.Silent = []string{"/mnt", "/srv/x"} }, []string{
			"warning no_answer: /mnt does not answer within 2s: the server or the FUSE process behind it may be gone, and whoever needs it waits, containers too => see what is mounted on the way, and repair or unmount what is dead | findmnt --output TARGET,SOURCE,FSTYPE",
			"warning no_answer: /srv/x does not answer within 2s: the server or the FUSE process behind it may be gone, and whoever needs it waits, containers too => see what is mounted on the way, and repair or unmount what is dead | findmnt --output TARGET,SOURCE,FSTYPE",
		}},
		{"crun of any age", func(f *Facts) { f.Runtime = Runtime{Path: "/bin/crun", Program: "crun", Version: "0.1"} }, nil},
		{"runc without a version", runc(""), []string{"info runtime: /usr/sbin/runc does not say which version of runc it is: 1.1 or later is needed"}},
		{"runc 1.0", runc("1.0.3"), []string{"error runtime: runc 1.0.3 (/usr/sbin/runc) is too old: agentbox needs 1.1 or later => install runc 1.1 or later"}},
		{"a candidate of runc 1.1", runc("1.1.0-rc.1"), []string{"error runtime: runc 1.1.0-rc.1 (/usr/sbin/runc) is too old: agentbox needs 1.1 or later => install runc 1.1 or later"}},
		{"runc 1.1.11", runc("1.1.11"), []string{
			"warning runtime_escapes: runc 1.1.11 (/usr/sbin/runc) lacks the fixes for CVE-2024-21626, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881" + escaping + " => " + newRunc,
		}},
		{"runc 1.1.15", runc("1.1.15"), []string{
			"warning runtime_escapes: runc 1.1.15 (/usr/sbin/runc) lacks the fixes for CVE-2025-31133, CVE-2025-52565, CVE-2025-52881" + escaping + " => " + newRunc,
		}},
		{"runc 1.1.5 of Debian, one fix added", runc("1.1.5+ds1", "CVE-2019-19921", "CVE-2024-21626"), []string{
			"warning runtime_escapes: runc 1.1.5+ds1 (/usr/sbin/runc) lacks the fixes for CVE-2025-31133, CVE-2025-52565, CVE-2025-52881" + escaping + " => " + newRunc,
		}},
		{"runc 1.1.5, all fixes added", runc("1.1.5+ds1", "CVE-2024-21626", "CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"), nil},
		{"runc 1.2.7", runc("1.2.7"), []string{
			"warning runtime_escapes: runc 1.2.7 (/usr/sbin/runc) lacks the fixes for CVE-2025-31133, CVE-2025-52565, CVE-2025-52881" + escaping + " => " + newRunc,
		}},
		{"runc 1.2.8", runc("1.2.8"), nil},
		{"runc 1.3.2", runc("1.3.2"), []string{
			"warning runtime_escapes: runc 1.3.2 (/usr/sbin/runc) lacks the fixes for CVE-2025-31133, CVE-2025-52565, CVE-2025-52881" + escaping + " => " + newRunc,
		}},
		{"runc 1.3.3", runc("1.3.3"), nil},
		{"runc 1.4.0-rc.2", runc("1.4.0-rc.2"), []string{
			"warning runtime_escapes: runc 1.4.0-rc.2 (/usr/sbin/runc) lacks the fixes for CVE-2025-31133, CVE-2025-52565, CVE-2025-52881" + escaping + " => " + newRunc,
		}},
		{"runc 1.4.0-rc.3", runc("1.4.0-rc.3"), nil},
		{"runc 1.4.0", runc("1.4.0"), nil},
		{"runc 1.5.1", runc("1.5.1"), nil},

		{"swap that is limited", func(f *Facts) { f.SwapBytes = 2 << 30 }, nil},
		{"swap that the configuration does not limit", func(f *Facts) {
			f.SwapBytes, f.Required = 2<<30, nil
			f.Config.Policy.Defaults[limits.KeySwap] = limits.NoLimit()
		}, nil},
		{"no swap, and no limit of it", func(f *Facts) { no(f, limits.KeySwap, "x"); f.Required = nil }, nil},
		{"swap that is not limited", func(f *Facts) { f.SwapBytes = 2 << 30; no(f, limits.KeySwap, "x"); f.Required = nil }, []string{
			swapOn + " => switch swap off | swapoff -a",
		}},
		{"swap that is not accounted", func(f *Facts) {
			f.SwapBytes, f.Required, f.Kernel.Release = 2<<30, nil, "5.4.0"
			no(f, limits.KeySwap, "x")
		}, []string{swapOn + " => boot with swapaccount=1 on the kernel's command line"}},

		{"an old kernel, by its release", release("5.15.0-100-generic", nil), []string{
			"warning oom_group_kill: Linux 5.15.0-100-generic has no oom_group_kill in memory.events: results do not count that a sandbox was killed as a whole" + newer + "5.17 or later",
			"warning memory_peak: Linux 5.15.0-100-generic has no memory.peak: results have no peak of memory" + newer + "5.19 or later",
			"warning pids_peak: Linux 5.15.0-100-generic has no pids.peak: results have no peak of processes" + newer + "6.1 or later",
		}},
		{"an old kernel that has it", release("5.14.0-503.el9", map[string]Presence{"oom_group_kill": Yes, "memory_peak": Yes, "pids_peak": Yes}), nil},
		{"a very old kernel", release("4.18.0", map[string]Presence{"oom_group_kill": Yes, "memory_peak": Yes, "pids_peak": Yes}), []string{
			"warning memory_oom_group: Linux 4.18.0 has no memory.oom.group: a sandbox that runs out of memory loses one process and goes on without it" + newer + "4.19 or later",
			"warning memory_events_local: Linux 4.18.0 has no memory.events.local: a sandbox that its memory limit ended cannot be told from others, and gets no verdict" + newer + "5.3 or later",
		}},
		{"a new kernel that lacks something", release("7.2.7", map[string]Presence{"pids_peak": No}), []string{
			"warning pids_peak: Linux 7.2.7 has no pids.peak: results have no peak of processes",
		}},
		{"an unknown kernel", release("", nil), nil},
		{"cgroup v1 on an old kernel", func(f *Facts) { f.Host.CgroupVersion = 1; f.Kernel.Release = "4.4.0"; f.Kernel.Features = nil }, []string{
			"warning oom_kill_v1: Linux 4.4.0 has no oom_kill in memory.oom_control: a sandbox that its memory limit ended cannot be told from others, and gets no verdict" + newer + "4.13 or later",
			"warning pids_peak_v1: Linux 4.4.0 has no pids.peak: results have no peak of processes" + newer + "6.1 or later",
		}},

		{"results that cannot be kept", func(f *Facts) { f.Results = Results{"/srv/results", "/srv: read-only file system"} }, []string{
			"warning results: no results can be kept in /srv/results, so that nobody learns why a sandbox ended: /srv: read-only file system => make it writable, or name another folder as results in /etc/agentbox/config.toml",
		}},

		{"Docker as it should be", dockerd(func(*Docker) {}), nil},
		{"Docker with a broken file", dockerd(func(d *Docker) { d.Problem = "daemon.json: broken"; d.OnRoot = true; d.Settings = DockerSettings{} }), []string{
			"warning docker_configuration: Docker's configuration cannot be read, and Docker may refuse to start: daemon.json: broken",
		}},
		{"Docker's default log", dockerd(func(d *Docker) { d.Settings.LogDriver = "" }), []string{
			logs + logsPut + ` | "log-driver": "json-file", | "log-opts": {"max-file":"3","max-size":"10m"}`,
		}},
		{"Docker's default log, no file", dockerd(func(d *Docker) { d.Settings.LogDriver, d.Found = "", false }), []string{
			logs + ` => write /etc/docker/daemon.json with this between { and }, and restart Docker; containers that are there keep their logs as they are | "log-driver": "json-file", | "log-opts": {"max-file":"3","max-size":"10m"}`,
		}},
		{"json-file with other options", dockerd(func(d *Docker) {
			d.Settings.LogDriver, d.Settings.LogOpts = "json-file", map[string]string{"labels": "a", "max-file": "9", "max-size": "-1"}
		}), []string{logs + logsPut + ` | "log-driver": "json-file", | "log-opts": {"labels":"a","max-file":"9","max-size":"10m"}`}},
		{"json-file by a flag", dockerd(func(d *Docker) { d.Settings.LogDriver = "json-file"; d.Flags = []string{"log-driver"} }), []string{
			logs + " => change the flags that dockerd is started with, and restart Docker; containers that are there keep their logs as they are | --log-driver=json-file | --log-opt=max-size=10m --log-opt=max-file=3",
		}},
		{"json-file by a flag, with hostile options", dockerd(func(d *Docker) {
			d.Settings.LogDriver, d.Flags = "json-file", []string{"log-driver", "log-opts"}
			d.Settings.LogOpts = map[string]string{"max-file": "3; $(reboot)"}
		}), []string{
			logs + " => change the flags that dockerd is started with, and restart Docker; containers that are there keep their logs as they are | --log-driver=json-file | --log-opt=max-size=10m '--log-opt=max-file=3; $(reboot)'",
		}},
		{"the systemd driver by a flag, with hostile options", dockerd(func(d *Docker) {
			d.Settings.ExecOpts, d.Flags = []string{"a=`reboot`", "native.cgroupdriver=systemd"}, []string{"exec-opts"}
		}), []string{
			systemd + " => change the flags that dockerd is started with, and restart Docker | '--exec-opt=a=`reboot`' --exec-opt=native.cgroupdriver=cgroupfs",
		}},
		{"Docker with runtimes by flags, and agentbox in an odd folder", func(f *Facts) {
			f.Docker, f.Self = docker(), "/opt/a b/agentbox-runtime"
			f.Docker.Settings.Runtimes, f.Docker.Flags = nil, []string{"runtimes"}
		}, []string{unknown + " => change the flags that dockerd is started with, and reload Docker (systemctl reload docker) | '--add-runtime=agentbox=/opt/a b/agentbox-runtime'"}},
		{"a text without an end", func(f *Facts) { f.Runtime = Runtime{Path: "/bin/runc", Problem: strings.Repeat("x", 60_000)} }, []string{
			"error runtime: " + limits.Shorten("the low-level runtime /bin/runc cannot be used: "+strings.Repeat("x", 60_000), limits.MaxText),
		}},
		{"json-file with a bound", dockerd(func(d *Docker) {
			d.Settings.LogDriver, d.Settings.LogOpts = "json-file", map[string]string{"max-size": "50m"}
		}), nil},
		{"journald", dockerd(func(d *Docker) { d.Settings.LogDriver = "journald" }), nil},
		{"Docker on the root disk", dockerd(func(d *Docker) { d.OnRoot, d.Free, d.Size = true, 3<<30, 40<<30 }), []string{
			"warning docker_storage: Docker keeps containers, images and logs in /srv/docker on the root filesystem (3GiB of 40GiB free): what fills it stops the host's own services" +
				" => mount a filesystem of its own at /srv/docker, or name a folder on one as data-root in /etc/docker/daemon.json",
		}},
		{"Docker without runtimes", dockerd(func(d *Docker) { d.Settings.Runtimes = nil }), []string{
			unknown + ` => put this into the object in /etc/docker/daemon.json, in place of what has the same name, and reload Docker (systemctl reload docker) | "runtimes": {"agentbox":{"path":"/usr/local/bin/agentbox-runtime"}}`,
		}},
		{"Docker with another runtime", func(f *Facts) {
			f.Docker, f.Self = docker(), "/opt/bin/agentbox-runtime"
			f.Docker.Settings.Runtimes = map[string]DockerRuntime{"runsc": {Path: "/usr/bin/runsc"}}
		}, []string{unknown + ` => put this into runtimes in /etc/docker/daemon.json, and reload Docker (systemctl reload docker) | "agentbox": {"path":"/opt/bin/agentbox-runtime"}`}},
		{"Docker with runtimes by flags", dockerd(func(d *Docker) {
			d.Settings.Runtimes, d.Flags = map[string]DockerRuntime{"runsc": {Path: "/usr/bin/runsc"}}, []string{"runtimes"}
		}), []string{unknown + ` => change the flags that dockerd is started with, and reload Docker (systemctl reload docker) | --add-runtime=agentbox=/usr/local/bin/agentbox-runtime`}},
		{"Docker with the shim", dockerd(func(d *Docker) {
			d.Settings.Runtimes = map[string]DockerRuntime{"agentbox": {Type: "io.containerd.agentbox.v1"}}
		}), nil},
		{"a runtime that is not there", dockerd(func(d *Docker) { d.Broken = []string{"agentbox"} }), []string{
			`warning docker_runtime: Docker's runtime "agentbox" is /usr/local/bin/agentbox-runtime, which is not there or cannot be run: no container starts with it => install it there, or correct the path in /etc/docker/daemon.json`,
		}},
		{"Docker on systemd", func(f *Facts) { f.Docker = docker(); f.Systemd = true }, []string{
			systemd + ` => put this into the object in /etc/docker/daemon.json, in place of what has the same name, and restart Docker | "exec-opts": ["native.cgroupdriver=cgroupfs"]`,
		}},
		{"Docker on systemd with cgroup v1", func(f *Facts) { f.Docker, f.Systemd, f.Host.CgroupVersion = docker(), true, 1 }, nil},
		{"Docker with the systemd driver and other options", dockerd(func(d *Docker) { d.Settings.ExecOpts = []string{"a=b", "native.cgroupdriver=systemd"} }), []string{
			systemd + ` => put this into the object in /etc/docker/daemon.json, in place of what has the same name, and restart Docker | "exec-opts": ["a=b","native.cgroupdriver=cgroupfs"]`,
		}},
		{"Docker on systemd with the cgroupfs driver", func(f *Facts) {
			f.Docker, f.Systemd = docker(), true
			f.Docker.Settings.ExecOpts = []string{"native.cgroupdriver=cgroupfs"}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := copyOf(able)
			f.SwapBytes = 0
			c.change(&f)
			r := Examine(f)
			var got []string
			errors := 0
			for _, x := range r.Findings {
				text := string(x.Level) + " " + x.Check + ": " + x.Text
				if x.Fix != nil {
					text += " => " + fixWords(x.Fix)
				}
				got = append(got, text)
				if !strings.Contains(string(documented), "`"+x.Check+"`") {
					t.Errorf("docs/doctor.md has no row for %s", x.Check)
				}
				if x.Level == Error {
					errors++
				}
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if f.Host.CgroupVersion == 2 && r.Ready != (errors == 0) {
				t.Errorf("ready %t with %d errors: warnings do not matter", r.Ready, errors)
			}
		})
	}
}

// TestTextsAreOneSentence: they stand in one line, and before a full stop.
func TestTextsAreOneSentence(t *testing.T) {
	f := facts(t)
	f.Docker = &Docker{File: dockerFile, OnRoot: true}
	f.Runtime.Version = "1.1.0"
	f.Results.Problem = "x"
	f.Kernel = Kernel{Release: "4.4.0"}
	f.Config.Policy.Mode = limits.ModeOff
	r := Examine(f)
	if len(r.Findings) < 8 {
		t.Fatalf("%d findings", len(r.Findings))
	}
	for _, x := range r.Findings {
		texts := []string{x.Text}
		if x.Fix != nil {
			texts = append(texts, x.Fix.Text)
			for _, line := range x.Fix.Lines {
				if strings.ContainsAny(line, "\n") {
					t.Errorf("%s: the line %q is several", x.Check, line)
				}
			}
		}
		for _, text := range texts {
			if text == "" || strings.ContainsAny(text, "\n\t") || strings.HasSuffix(text, ".") || strings.Contains(text, "%!") {
				t.Errorf("%s: %q", x.Check, text)
			}
		}
	}
}
