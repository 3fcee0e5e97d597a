// Package host finds out what this machine can enforce: which kernel interfaces
// there are for the limits of one container, and why the others are missing.
//
// Every container start waits for it, so it looks at a handful of files, opens
// no connection and creates nothing but a note of the one answer that is dear. A
// probe has three answers: yes, no, and could not tell. The third is settled by
// what the kernel's release and its other files say, and where that is not enough
// by the safe side: a limit that is called missing is reported, one that is
// wrongly called present fails the create.
package host

import (
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/blockdev"
	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
)

// Input is what the container's specification and the call say about its
// cgroup.
type Input struct {
	CgroupsPath string // linux.cgroupsPath of the specification; may be empty
	Systemd     bool   // the low-level runtime uses its systemd driver (--systemd-cgroup)
	NoCgroups   bool   // the low-level runtime is told to use none (crun's --cgroup-manager=disabled)

	// Runtime is the name or path of the low-level runtime. In threaded cgroups,
	// one that is not crun by its name counts as runc.
	Runtime string

	// Request is what the container wants of disks; nil: there is no container
	// yet, and no disk is looked for.
	Request *limits.Request
	// IODevices is limits.Policy.IODevices.
	IODevices []string

	// Look is how files are looked at on the way to their disks; nil: for as long
	// as it takes.
	Look blockdev.Look

	// Notes is a folder that only this user can write, for what holds until the
	// next boot; empty: nothing is remembered.
	Notes string
}

// Probe returns the facts of this machine for one container. It does not fail:
// what cannot be found out is a missing mechanism with a reason, or a zero.
//
// Of the supervisor it says only what the kernel lacks for one.
//
// The cgroups and kernel.pid_max are looked up in f; memory, CPUs and rlimits
// are those of the running process.
func Probe(f cgroup.FS, in Input) limits.Host {
	disks := blockdev.New(string(f))
	if in.Look != nil {
		disks = disks.Through(in.Look)
	}
	p := prober{fs: f, in: in, euid: unix.Geteuid(), access: access, disks: disks}
	return p.probe()
}

type prober struct {
	fs     cgroup.FS
	in     Input
	euid   int
	access func(path string, mode uint32) error // of a real path
	disks  diskFinder

	host limits.Host
}

func access(path string, mode uint32) error {
	return unix.Faccessat(unix.AT_FDCWD, path, mode, 0)
}

func (p *prober) probe() limits.Host {
	p.host.Mechanisms = make(map[limits.Key]limits.Mechanism, 8)
	p.cgroups()
	p.io()
	p.rlimits()
	p.supervisor()
	p.host.MemoryBytes = memoryBytes()
	p.host.CPUs = runtime.NumCPU()
	p.host.PidMax = p.pidMax()
	return p.host
}

func (p *prober) cgroups() {
	if p.in.NoCgroups {
		p.noCgroups("the low-level runtime is told to use no cgroup")
		return
	}
	layout, err := p.fs.Layout()
	if err != nil {
		p.noCgroups("the cgroup mounts cannot be read: " + err.Error())
		return
	}
	p.host.CgroupVersion = layout.Version
	p.systemd()
	switch layout.Version {
	case 2:
		p.probeV2()
	case 1:
		p.probeV1(layout.Mounts)
	default:
		p.noCgroups("no cgroup controllers are mounted: " + cgroup.MountPoint + " is not cgroup2 and /proc/self/mountinfo has no cgroup v1 mount")
	}
}

// noCgroups says for all cgroup mechanisms why they are missing.
func (p *prober) noCgroups(reason string) {
	for _, key := range append(cgroup.EffectiveKeys[:], limits.IOKeys[:]...) {
		p.set(key, nameV2(key), reason)
	}
	p.host.GroupKill = mechanism(fileOOMGroup, reason)
}

// set records a mechanism; the reason is empty when it is there.
func (p *prober) set(key limits.Key, name, reason string) {
	p.host.Mechanisms[key] = mechanism(name, reason)
}

func mechanism(name, reason string) limits.Mechanism {
	if reason != "" {
		return limits.Mechanism{Name: name, Enforcer: limits.EnforcerNone, Reason: reason}
	}
	return limits.Mechanism{Name: name, Enforcer: limits.EnforcerKernel}
}

// has reports whether a file is there.
func (p *prober) has(name string) bool {
	return p.access(p.fs.Path(name), unix.F_OK) == nil
}

// memoryBytes is the physical memory (sysinfo(2)); 0 when the kernel does not
// say.
func memoryBytes() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// pidMax is kernel.pid_max (Documentation/admin-guide/sysctl/kernel.rst); 0 when
// it cannot be read.
func (p *prober) pidMax() int64 {
	data, err := p.fs.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0
	}
	return parsePidMax(data)
}

func parsePidMax(data []byte) int64 {
	n := int64(0)
	for _, c := range strings.TrimSuffix(string(data), "\n") {
		if c < '0' || c > '9' || n > 1<<32 {
			return 0
		}
		n = n*10 + int64(c-'0')
	}
	return n
}
