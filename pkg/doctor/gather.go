package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/blockdev"
	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/host"
	"github.com/agentbox/agentbox/pkg/limits"
)

// Options say what to look at.
type Options struct {
	FS cgroup.FS // the folder that stands for "/"; empty: "/"

	ConfigPath string       // of the configuration
	Config     *config.File // nil: the built-in one
	ConfigErr  error        // why the file cannot be used; nil: it can

	CgroupsPath string // linux.cgroupsPath of the containers that are meant; empty: as runc by hand
	Systemd     bool   // the low-level runtime uses its systemd driver

	// Supervisor is the absolute path of the program that would be the supervisor;
	// empty: the report is to be without one.
	Supervisor string

	// Required are the dimensions that have to be enforced; nil: those of
	// strict_require.
	Required []limits.Dimension
}

// Gather looks at the host. It changes nothing, and starts nothing but the
// low-level runtime, which it asks for its version. It does not fail: what cannot
// be found out is unknown, or has a reason.
func Gather(ctx context.Context, o Options) Facts {
	if o.FS == "" {
		o.FS = cgroup.Host
	}
	g := gatherer{
		o: o, fs: o.FS, euid: os.Geteuid(), access: access, statOf: os.Stat, lookPath: exec.LookPath, disks: blockdev.New(string(o.FS)),
	}
	return g.gather(ctx)
}

func access(path string, mode uint32) error {
	return unix.Faccessat(unix.AT_FDCWD, path, mode, 0)
}

type gatherer struct {
	o      Options
	fs     cgroup.FS
	euid   int
	access func(path string, mode uint32) error // of a real path
	statOf func(path string) (fs.FileInfo, error)
	disks  blockdev.Finder
	facts  Facts

	root     int           // the user id of root
	patience time.Duration // 0: patience

	lookPath func(program string) (string, error)
}

func (g *gatherer) gather(ctx context.Context) Facts {
	cfg := g.config()
	f := &g.facts
	f.Root = g.euid == 0
	f.Systemd = g.has("/run/systemd/system") // sd_booted(3)
	f.Tools = Tools{Grubby: g.installed("grubby"), UpdateGrub: g.installed("update-grub")}
	f.Self = g.self()
	f.SwapBytes = parseSwaps(g.read("/proc/swaps"))
	f.Docker = g.docker()
	f.RootDisk = g.rootDisk()
	f.Host = g.host(cfg)
	g.cgroups()
	g.kernel()
	f.Supervisor, f.Freezer = g.o.Supervisor, g.freezer()
	f.Results = Results{Dir: cfg.ResultsDir, Problem: g.keeps(cfg.ResultsDir)}
	f.Runtime = g.runtime(ctx, cfg.Runtime)
	return g.facts
}

// config takes the configuration, or the built-in one where it cannot be used.
func (g *gatherer) config() *config.File {
	cfg := g.o.Config
	c := &g.facts.Config
	c.Path = g.o.ConfigPath
	_, err := within(g, c.Path, func() (fs.FileInfo, error) { return os.Lstat(c.Path) })
	c.Found = err == nil
	if g.o.ConfigErr != nil {
		c.Problem = g.o.ConfigErr.Error()
	}
	if cfg == nil {
		cfg = config.Default()
	}
	c.Policy = cfg.Policy
	g.facts.Required = g.o.Required
	if g.facts.Required == nil {
		g.facts.Required = cfg.Policy.StrictRequire
	}
	return cfg
}

// host makes the probe of a container start, with the folders of the engines in
// place of a container's files. Where those are not on a disk, nothing is said
// about disks.
func (g *gatherer) host(cfg *config.File) limits.Host {
	req := &limits.Request{}
	for _, folder := range g.storage() {
		req.Places = append(req.Places, limits.Place{Path: folder, Source: folder, Writable: true})
	}
	h := host.Probe(g.fs, host.Input{
		CgroupsPath: g.o.CgroupsPath, Systemd: g.o.Systemd, Runtime: cfg.Runtime, Request: req, IODevices: cfg.Policy.IODevices, Look: g.disk,
	})
	if len(h.IO.Disks)+len(h.IO.Diskless) == 0 {
		h.IO = limits.HostIO{Unknown: true}
	}
	if g.o.Supervisor == "" {
		h.Supervisor = limits.Mechanism{}
	} else if h.Supervisor.Enforcer != limits.EnforcerNone {
		h.Supervisor = limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerSupervisor}
	}
	return h
}

// storage returns the folders that are there, or that do not answer, among those
// in which engines keep containers: Docker, containerd, Podman and CRI-O.
func (g *gatherer) storage() []string {
	folders := []string{dockerRoot, "/var/lib/containerd", "/var/lib/containers"}
	if g.facts.Docker != nil {
		folders[0] = g.facts.Docker.Settings.DataRoot
	}
	return slices.DeleteFunc(folders, func(folder string) bool {
		info, err := g.stat(folder)
		if err != nil {
			return !errors.As(err, new(*silentError))
		}
		return !info.IsDir()
	})
}

// maxKernelFile bounds a file of proc or sys, in bytes, far above what they have.
const maxKernelFile = 16 << 20

// read returns the content of a file of proc, sys or run; nil when it cannot be
// read.
func (g *gatherer) read(name string) []byte {
	data, err := g.file(name, maxKernelFile)
	if err != nil {
		return nil
	}
	return data
}

func (g *gatherer) has(name string) bool { return g.can(name, unix.F_OK) == nil }

func (g *gatherer) words(name string) []string { return strings.Fields(string(g.read(name))) }

func (g *gatherer) writable(name string) bool { return g.can(name, unix.W_OK) == nil }

// runs reports whether a program is there and may be run. A name without a folder
// is looked up in PATH.
func (g *gatherer) runs(name string) bool {
	if !path.IsAbs(name) {
		return g.installed(name)
	}
	info, err := g.stat(name)
	return err == nil && info.Mode().IsRegular() && g.can(name, unix.X_OK) == nil
}

func (g *gatherer) installed(program string) bool {
	_, err := g.find(program)
	return err == nil
}

// self returns where agentbox-runtime is: beside this program, or in PATH.
func (g *gatherer) self() string {
	if exe, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(exe), runtimeName)
		look := func() (fs.FileInfo, error) { return g.statOf(beside) }
		if info, err := within(g, beside, look); err == nil && info.Mode().IsRegular() {
			return beside
		}
	}
	found, err := g.find(runtimeName)
	if err != nil {
		return ""
	}
	found, err = filepath.Abs(found)
	if err != nil {
		return ""
	}
	return found
}

// disk is how files are looked at on the way to their disks.
func (g *gatherer) disk(name string, look func()) error {
	_, err := within(g, name, func() (struct{}, error) {
		look()
		return struct{}{}, nil
	})
	return err
}

func (g *gatherer) rootDisk() string {
	b := g.disks.Through(g.disk).Behind("/")
	if len(b.Disks) != 1 {
		return ""
	}
	return b.Disks[0].Name
}

// keeps says why nothing can be written in a folder, or where it is not there
// yet, in the deepest one above it that is; empty when something can.
func (g *gatherer) keeps(folder string) string {
	for at := folder; ; at = path.Dir(at) {
		info, err := g.stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != "/":
			continue
		case err != nil:
			return aboutFolder(folder, at, err)
		case !info.IsDir():
			return at + " is not a folder"
		}
		if err := g.can(at, unix.W_OK|unix.X_OK); err != nil {
			return aboutFolder(folder, at, err)
		}
		return ""
	}
}

// aboutFolder says what is wrong with a folder, and names the one above it that
// has the problem.
func aboutFolder(folder, at string, err error) string {
	if folder == at {
		return reasonOf(err)
	}
	return about(at, err)
}

// docker looks for a Docker daemon: its program, its file, or the running one.
func (g *gatherer) docker() *Docker {
	d := &Docker{File: dockerFile}
	flags, names, file, running := parseDockerd(g.dockerd())
	if file != "" {
		d.File = file
	}
	data, err := g.file(d.File, config.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		if !running && !g.installed("dockerd") {
			return nil
		}
		err = nil
	} else {
		d.Found = true
	}
	if err == nil {
		d.Settings, err = parseDocker(data)
	}
	if err != nil {
		d.Problem = about(d.File, err)
	}
	d.Flags = names
	d.Settings = d.Settings.merge(flags)
	d.Broken = d.Settings.broken(g.runs)
	d.OnRoot, d.Free, d.Size = g.onRoot(d.Settings.DataRoot)
	return d
}

// dockerd returns the command line of the running daemon; nil when there is none,
// or when it cannot be told whether there is.
func (g *gatherer) dockerd() []byte {
	pid, err := strconv.ParseUint(string(trim(g.read(dockerPid))), 10, 31)
	if err != nil {
		return nil
	}
	process := "/proc/" + strconv.FormatUint(pid, 10)
	if !g.isDockerd(process) {
		return nil
	}
	return g.read(process + "/cmdline")
}

// isDockerd reports whether a process is root's dockerd on this machine. A pid
// file outlives its daemon, its number is used again, and any process can call
// itself anything. The folder of a process belongs to its effective user
// (proc_pid(5)); root in a container has the same number here, and another pid
// namespace.
func (g *gatherer) isDockerd(process string) bool {
	info, err := g.stat(process)
	if err != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) != g.root {
		return false
	}
	program, err := g.link(process + "/exe")
	if err != nil || path.Base(strings.TrimSuffix(program, " (deleted)")) != "dockerd" {
		return false
	}
	theirs, err := g.link(process + "/ns/pid")
	if err != nil {
		return false
	}
	ours, err := g.link("/proc/self/ns/pid")
	return err == nil && theirs == ours
}

// link returns the text of a symbolic link.
func (g *gatherer) link(name string) (string, error) {
	return within(g, name, func() (string, error) { return os.Readlink(g.fs.Path(name)) })
}

func trim(data []byte) []byte { return []byte(strings.TrimSpace(string(data))) }

// room is what a folder's file system is, and has.
type room struct {
	device uint64
	space  unix.Statfs_t
}

func (g *gatherer) room(folder string) (room, error) {
	return within(g, folder, func() (r room, err error) {
		var st unix.Stat_t
		err = errors.Join(unix.Stat(g.fs.Path(folder), &st), unix.Statfs(g.fs.Path(folder), &r.space))
		r.device = st.Dev
		return r, err
	})
}

// onRoot reports whether a folder is on the file system of "/", and how much of
// it is free for users, of how much. A folder that is not there is not.
func (g *gatherer) onRoot(folder string) (on bool, free, total int64) {
	if !path.IsAbs(folder) {
		return false, 0, 0
	}
	root, err := g.room("/")
	if err != nil {
		return false, 0, 0
	}
	at, err := g.room(folder)
	if err != nil {
		return false, 0, 0
	}
	return root.device == at.device, int64(at.space.Bavail) * at.space.Bsize, int64(at.space.Blocks) * at.space.Bsize
}
