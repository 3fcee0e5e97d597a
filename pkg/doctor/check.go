package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/docker/go-units"

	"github.com/agentbox/agentbox/pkg/limits"
)

// checks look at one thing each, in the order in which findings are listed.
var checks = []func(*Facts, *resolved) []Finding{
	checkConfiguration,
	checkMode,
	checkSilent,
	checkRuntime,
	checkRuntimeFixes,
	checkSwap,
	checkFeatures,
	checkResults,
	checkDockerFile,
	checkDockerLogs,
	checkDockerStorage,
	checkDockerRuntime,
	checkDockerDriver,
}

func one(check string, level Level, fix *Fix, format string, args ...any) []Finding {
	return []Finding{{Check: check, Level: level, Text: limits.Shorten(fmt.Sprintf(format, args...), limits.MaxText), Fix: fix}}
}

// checkConfiguration looks for a file that cannot be used, and for defaults with
// which no container can start.
func checkConfiguration(f *Facts, r *resolved) []Finding {
	const name = "configuration"
	switch {
	case f.Config.Problem != "":
		return one(name, Error, nil, "%s; no container starts until that is repaired, and this report is about the built-in values", f.Config.Problem)
	case r.refused != "":
		return one(name, Error, nil, "a container that asks for nothing cannot start with %s: %s", f.Config.Path, r.refused)
	}
	return nil
}

func checkMode(f *Facts, _ *resolved) []Finding {
	if f.Config.Policy.Mode != limits.ModeOff {
		return nil
	}
	return one("mode", Warning, &Fix{Text: "change it in " + f.Config.Path, Lines: []string{`mode = "auto"`}},
		"mode is off in %s: containers get no limit from agentbox, and this report says what they would get", f.Config.Path)
}

// checkSilent says which paths lead to a file system that does not answer.
func checkSilent(f *Facts, _ *resolved) []Finding {
	var list []Finding
	fix := &Fix{
		Text:  "see what is mounted on the way, and repair or unmount what is dead",
		Lines: []string{"findmnt --output TARGET,SOURCE,FSTYPE"}, // asks no file system
	}
	for _, silent := range f.Silent {
		list = append(list, one("no_answer", Warning, fix,
			"%s does not answer within %s: the server or the FUSE process behind it may be gone, and whoever needs it waits, containers too", silent, patience)...)
	}
	return list
}

// oldestRunc is the one whose command line and behaviour agentbox is made for.
var oldestRunc = version{major: 1, minor: 1}

func checkRuntime(f *Facts, _ *resolved) []Finding {
	const name = "runtime"
	low := f.Runtime
	switch {
	case low.Itself:
		return one(name, Error, &Fix{Text: "name runc or crun as runtime in " + f.Config.Path},
			"the low-level runtime %s is agentbox-runtime itself: every container is refused", low.Path)
	case low.Path == "" && low.Problem != "":
		return one(name, Error, nil, "the low-level runtime %q cannot be found: %s", low.Name, low.Problem)
	case low.Path == "":
		return one(name, Error, &Fix{Text: fmt.Sprintf("install %s, or name another low-level runtime in %s", low.Name, f.Config.Path)},
			"the low-level runtime %q is not there or cannot be run", low.Name)
	case low.Problem != "":
		return one(name, Error, nil, "the low-level runtime %s cannot be used: %s", low.Path, low.Problem)
	case low.Program != "runc":
		return nil
	}
	v, ok := parseVersion(low.Version)
	switch {
	case !ok:
		return one(name, Info, nil, "%s does not say which version of runc it is: 1.1 or later is needed", low.Path)
	case v.before(oldestRunc):
		return one(name, Error, &Fix{Text: "install runc 1.1 or later"},
			"runc %s (%s) is too old: agentbox needs 1.1 or later", low.Version, low.Path)
	}
	return nil
}

// escape is a set of known ways out of a container, with the first version of
// each release line of runc that closes them. Lines that are older than all of
// these have no fix; later ones have it from the start.
type escape struct {
	names []string
	since []version
}

// escapes follow the security advisories of runc.
var escapes = []escape{
	{
		names: []string{"CVE-2024-21626"}, // GHSA-xr7r-f8xq-vfvv
		since: []version{{major: 1, minor: 1, patch: 12}},
	},
	{
		names: []string{"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}, // GHSA-9493-h29p-rfm2, -qw9x-cqr3-wc7r, -cgrx-mc8f-2prm
		since: []version{{major: 1, minor: 2, patch: 8}, {major: 1, minor: 3, patch: 3}, {major: 1, minor: 4, candidate: 3}},
	},
}

// openIn reports whether a version of runc lacks the fixes by its number.
func (e escape) openIn(v version) bool {
	for _, fixed := range e.since {
		if v.major == fixed.major && v.minor == fixed.minor {
			return v.before(fixed)
		}
	}
	return v.before(e.since[0])
}

// checkRuntimeFixes looks for security fixes that runc lacks. What the changelog
// of its package names is there, whatever the version says.
func checkRuntimeFixes(f *Facts, _ *resolved) []Finding {
	low := f.Runtime
	v, ok := parseVersion(low.Version)
	if low.Program != "runc" || !ok || v.before(oldestRunc) {
		return nil
	}
	var open []string
	for _, e := range escapes {
		if !e.openIn(v) {
			continue
		}
		for _, name := range e.names {
			if !slices.Contains(low.Fixed, name) {
				open = append(open, name)
			}
		}
	}
	if open == nil {
		return nil
	}
	return one("runtime_escapes", Warning, &Fix{Text: "install runc 1.2.8, 1.3.3, 1.4.0 or later, or an update of your distribution's package that names them"},
		"runc %s (%s) lacks the fixes for %s by its version: a container may be able to escape", low.Version, low.Path, strings.Join(open, ", "))
}

// checkSwap looks for swap that a sandbox could fill. A host without swap needs
// no limit of it.
func checkSwap(f *Facts, r *resolved) []Finding {
	if f.SwapBytes == 0 || r.plan == nil {
		return nil
	}
	e := r.plan.Entry(limits.KeySwap)
	if e.Value.None || e.ByKernel() || e.BySupervisor() {
		return nil
	}
	fix := mechanismFix(f, r.plan, limits.KeySwap)
	if fix == nil {
		fix = &Fix{Text: "switch swap off", Lines: []string{"swapoff -a"}}
	}
	return one("swap", Warning, fix, "swap is on (%s) and cannot be limited: a sandbox at its memory limit goes on in swap, and slows the host down", size(f.SwapBytes))
}

func checkResults(f *Facts, _ *resolved) []Finding {
	if f.Results.Problem == "" {
		return nil
	}
	return one("results", Warning, &Fix{Text: fmt.Sprintf("make it writable, or name another folder as results in %s", f.Config.Path)},
		"no results can be kept in %s, so that nobody learns why a sandbox ended: %s", f.Results.Dir, f.Results.Problem)
}

func checkDockerFile(f *Facts, _ *resolved) []Finding {
	if f.Docker == nil || f.Docker.Problem == "" {
		return nil
	}
	return one("docker_configuration", Warning, nil, "Docker's configuration cannot be read, and Docker may refuse to start: %s", f.Docker.Problem)
}

// usable reports whether there is a Docker whose settings are known.
func (f *Facts) usable() bool { return f.Docker != nil && f.Docker.Problem == "" }

// checkDockerLogs looks for logs without a bound. What a container prints is
// written by the daemon, outside of every limit of the container.
func checkDockerLogs(f *Facts, _ *resolved) []Finding {
	if !f.usable() {
		return nil
	}
	s := f.Docker.Settings
	if s.LogDriver != "" && s.LogDriver != "json-file" || bounded(s.LogOpts["max-size"]) {
		return nil
	}
	return one("docker_logs", Warning, boundLogs(f.Docker),
		"Docker keeps all that a container prints, in %s, without a bound and outside of the container's limits: one that prints for ever fills the disk", s.DataRoot)
}

// bounded reports whether a max-size bounds a log; -1 is the default for none.
func bounded(maxSize string) bool { return maxSize != "" && !strings.HasPrefix(maxSize, "-") }

// boundLogs keeps the options that are there.
func boundLogs(d *Docker) *Fix {
	opts := map[string]string{"max-file": "3"}
	maps.Copy(opts, d.Settings.LogOpts)
	opts["max-size"] = "10m"
	return setDocker(d, "restart Docker; containers that are there keep their logs as they are",
		setting{"log-driver", "json-file", []string{"--log-driver=json-file"}},
		setting{"log-opts", opts, []string{"--log-opt=max-size=" + opts["max-size"], "--log-opt=max-file=" + opts["max-file"]}})
}

// setting is one member of daemon.json, and the flags of dockerd that mean the
// same.
type setting struct {
	name  string
	value any // of strings
	flags []string
}

func (s setting) String() string {
	text, _ := json.Marshal(s.value) // strings, lists and maps of strings
	return fmt.Sprintf("%q: %s", s.name, text)
}

// setDocker changes Docker's settings. One that is given as a flag must not be in
// daemon.json too: Docker would not start.
func setDocker(d *Docker, then string, settings ...setting) *Fix {
	var members, flags []string
	for _, s := range settings {
		members, flags = append(members, s.String()), append(flags, words(s.flags))
	}
	isFlag := func(s setting) bool { return slices.Contains(d.Flags, s.name) }
	if slices.ContainsFunc(settings, isFlag) {
		return &Fix{Text: "change the flags that dockerd is started with, and " + then, Lines: flags}
	}
	lines := strings.Split(strings.Join(members, ",\n"), "\n")
	if !d.Found {
		return &Fix{Text: fmt.Sprintf("write %s with this between { and }, and %s", d.File, then), Lines: lines}
	}
	return &Fix{Text: fmt.Sprintf("put this into the object in %s, in place of what has the same name, and %s", d.File, then), Lines: lines}
}

func checkDockerStorage(f *Facts, _ *resolved) []Finding {
	if !f.usable() || !f.Docker.OnRoot {
		return nil
	}
	d := f.Docker
	return one("docker_storage", Warning,
		&Fix{Text: fmt.Sprintf("mount a filesystem of its own at %s, or name a folder on one as data-root in %s", d.Settings.DataRoot, d.File)},
		"Docker keeps containers, images and logs in %s on the root filesystem (%s of %s free): what fills it stops the host's own services",
		d.Settings.DataRoot, size(d.Free), size(d.Size))
}

// runtimeName is the base name of the program.
const runtimeName = "agentbox-runtime"

func checkDockerRuntime(f *Facts, _ *resolved) []Finding {
	const name = "docker_runtime"
	if !f.usable() {
		return nil
	}
	d := f.Docker
	if len(d.Broken) > 0 {
		r := d.Settings.Runtimes[d.Broken[0]]
		return one(name, Warning, &Fix{Text: fmt.Sprintf("install it there, or correct the path in %s", d.File)},
			"Docker's runtime %q is %s, which is not there or cannot be run: no container starts with it", d.Broken[0], r.Path)
	}
	for _, r := range d.Settings.Runtimes {
		if path.Base(r.Path) == runtimeName || strings.HasPrefix(r.Type, "io.containerd.agentbox.") {
			return nil
		}
	}
	return one(name, Info, register(d, cmp.Or(f.Self, "/usr/local/bin/"+runtimeName)),
		"Docker does not know agentbox: docker run --runtime=agentbox is refused")
}

// register adds agentbox to the runtimes that are there.
func register(d *Docker, program string) *Fix {
	const reload = "reload Docker (systemctl reload docker)"
	entry := map[string]string{"path": program}
	flag := []string{"--add-runtime=agentbox=" + program}
	if len(d.Settings.Runtimes) == 0 || slices.Contains(d.Flags, "runtimes") {
		return setDocker(d, reload, setting{"runtimes", map[string]any{"agentbox": entry}, flag})
	}
	return &Fix{
		Text:  fmt.Sprintf("put this into runtimes in %s, and %s", d.File, reload),
		Lines: []string{setting{name: "agentbox", value: entry}.String()},
	}
}

// checkDockerDriver looks for the systemd driver, with which a container's
// counters are gone when it has ended.
func checkDockerDriver(f *Facts, _ *resolved) []Finding {
	const option = "native.cgroupdriver="
	if !f.usable() {
		return nil
	}
	driver := "cgroupfs"
	if f.Host.CgroupVersion == 2 && f.Systemd {
		driver = "systemd" // Docker's default there
	}
	var opts []string
	for _, opt := range f.Docker.Settings.ExecOpts {
		if value, ok := strings.CutPrefix(opt, option); ok {
			driver = value
			continue
		}
		opts = append(opts, opt)
	}
	if driver != "systemd" {
		return nil
	}
	opts = append(opts, option+"cgroupfs")
	var flags []string
	for _, opt := range opts {
		flags = append(flags, "--exec-opt="+opt)
	}
	return one("docker_cgroup_driver", Warning,
		setDocker(f.Docker, "restart Docker", setting{"exec-opts", opts, flags}),
		"Docker uses the systemd cgroup driver, with which systemd removes the counters of a container that ended: limits hold and memory verdicts come from the kernel's log, but usage and the other counters are lost")
}

func size(n int64) string { return units.BytesSize(float64(n)) }
