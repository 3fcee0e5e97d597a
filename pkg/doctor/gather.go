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

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/blockdev"
	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/host"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/smallfile"
)

// Options say what to look at.
type Options struct {
	FS cgroup.FS // the folder that stands for "/"; empty: "/"

	ConfigPath string       // of the configuration
	Config     *config.File // nil: the built-in one
	ConfigErr  error        // why the file cannot be used; nil: it can

	CgroupsPath string // linux.cgroupsPath of the containers that are meant; empty: as runc by hand
	Systemd     bool   // the low-level runtime uses its systemd driver

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
	g := gatherer{o: o, fs: o.FS, euid: os.Geteuid(), access: access, lookPath: exec.LookPath, disks: blockdev.New(string(o.FS))}
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
	disks  blockdev.Finder
	facts  Facts

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
	f.Results = Results{Dir: cfg.ResultsDir, Problem: g.keeps(cfg.ResultsDir)}
	f.Runtime = g.runtime(ctx, cfg.Runtime)
	return g.facts
}

// config takes the configuration, or the built-in one where it cannot be used.
func (g *gatherer) config() *config.File {
	cfg := g.o.Config
	c := &g.facts.Config
	c.Path = g.o.ConfigPath
	_, err := os.Lstat(c.Path)
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
		CgroupsPath: g.o.CgroupsPath, Systemd: g.o.Systemd, Runtime: cfg.Runtime, Request: req, IODevices: cfg.Policy.IODevices,
	})
	if len(h.IO.Disks)+len(h.IO.Diskless) == 0 {
		h.IO = limits.HostIO{Unknown: true}
	}
	return h
}

// storage returns the folders that are there among those in which engines keep
// containers: Docker, containerd, Podman and CRI-O.
func (g *gatherer) storage() []string {
	folders := []string{dockerRoot, "/var/lib/containerd", "/var/lib/containers"}
	if g.facts.Docker != nil {
		folders[0] = g.facts.Docker.Settings.DataRoot
	}
	return slices.DeleteFunc(folders, func(folder string) bool {
		info, err := os.Stat(g.fs.Path(folder))
		return err != nil || !info.IsDir()
	})
}

// read returns the content of a file of proc or sys; nil when it cannot be read.
func (g *gatherer) read(name string) []byte {
	data, err := g.fs.ReadFile(name)
	if err != nil {
		return nil
	}
	return data
}

func (g *gatherer) has(name string) bool { return g.access(g.fs.Path(name), unix.F_OK) == nil }

func (g *gatherer) words(name string) []string { return strings.Fields(string(g.read(name))) }

func (g *gatherer) writable(name string) bool { return g.access(g.fs.Path(name), unix.W_OK) == nil }

// runs reports whether a program is there and may be run. A name without a folder
// is looked up in PATH.
func (g *gatherer) runs(name string) bool {
	if !path.IsAbs(name) {
		return g.installed(name)
	}
	info, err := os.Stat(g.fs.Path(name))
	return err == nil && info.Mode().IsRegular() && g.access(g.fs.Path(name), unix.X_OK) == nil
}

func (g *gatherer) installed(program string) bool {
	_, err := g.lookPath(program)
	return err == nil
}

// self returns where agentbox-runtime is: beside this program, or in PATH.
func (g *gatherer) self() string {
	if exe, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(exe), runtimeName)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside
		}
	}
	found, err := g.lookPath(runtimeName)
	if err != nil {
		return ""
	}
	found, err = filepath.Abs(found)
	if err != nil {
		return ""
	}
	return found
}

func (g *gatherer) rootDisk() string {
	b := g.disks.Behind("/")
	if len(b.Disks) != 1 {
		return ""
	}
	return b.Disks[0].Name
}

// keeps says why nothing can be written in a folder, or where it is not there
// yet, in the deepest one above it that is; empty when something can.
func (g *gatherer) keeps(folder string) string {
	for at := folder; ; at = path.Dir(at) {
		info, err := os.Stat(g.fs.Path(at))
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != "/":
			continue
		case err != nil:
			return err.Error()
		case !info.IsDir():
			return at + " is not a folder"
		}
		if err := g.access(g.fs.Path(at), unix.W_OK|unix.X_OK); err != nil {
			return at + ": " + err.Error()
		}
		return ""
	}
}

// docker looks for a Docker daemon: its program, its file, or the running one.
func (g *gatherer) docker() *Docker {
	d := &Docker{File: dockerFile}
	flags, names, file, running := parseDockerd(g.dockerd())
	if file != "" {
		d.File = file
	}
	data, err := smallfile.Read(g.fs.Path(d.File), config.MaxSize, 0)
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
		d.Problem = d.File + ": " + err.Error()
	}
	d.Flags = names
	d.Settings = d.Settings.merge(flags)
	d.Broken = d.Settings.broken(g.runs)
	d.OnRoot, d.Free, d.Size = g.onRoot(d.Settings.DataRoot)
	return d
}

// dockerd returns the command line of the running daemon.
func (g *gatherer) dockerd() []byte {
	pid, err := strconv.ParseUint(string(trim(g.read(dockerPid))), 10, 31)
	if err != nil {
		return nil
	}
	return g.read("/proc/" + strconv.FormatUint(pid, 10) + "/cmdline")
}

func trim(data []byte) []byte { return []byte(strings.TrimSpace(string(data))) }

// onRoot reports whether a folder is on the file system of "/", and how much of
// it is free for users, of how much. A folder that is not there is not.
func (g *gatherer) onRoot(folder string) (on bool, free, total int64) {
	var root, at unix.Stat_t
	var space unix.Statfs_t
	if unix.Stat(g.fs.Path("/"), &root) != nil || unix.Stat(g.fs.Path(folder), &at) != nil || unix.Statfs(g.fs.Path(folder), &space) != nil {
		return false, 0, 0
	}
	return root.Dev == at.Dev, int64(space.Bavail) * space.Bsize, int64(space.Blocks) * space.Bsize
}
