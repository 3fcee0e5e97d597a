package doctor

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/host"
)

// controllersV1 are those of cgroup v1 that limits need.
var controllersV1 = [...]string{"memory", "pids", "cpu", "blkio"}

// cgroups looks at the mounts, and on cgroup v2 at the way to where a container
// would be placed.
func (g *gatherer) cgroups() {
	c := &g.facts.Cgroup
	c.Systemd = g.o.Systemd
	c.V1 = map[string]string{}
	mounts, err := g.fs.Mounts()
	if err != nil {
		return
	}
	for _, controller := range controllersV1 {
		if m, ok := cgroup.FindMount(mounts, controller); ok {
			c.V1[controller] = m.Point
		}
	}
	if i := slices.IndexFunc(mounts, func(m cgroup.Mount) bool { return m.V2 }); i >= 0 {
		c.V2 = mounts[i].Point
		c.V2Has = g.words(c.V2 + "/cgroup.controllers")
		// Every cgroup but the root has this file (cgroup-v2.rst).
		c.True = !g.has(c.V2 + "/cgroup.events")
	}
	for _, m := range mounts {
		used := m.V2 || slices.ContainsFunc(controllersV1[:], m.Has)
		if used && errors.Is(g.can(m.Point, unix.W_OK), unix.EROFS) {
			c.ReadOnly = append(c.ReadOnly, m.Point)
		}
	}
	if g.facts.Host.CgroupVersion == 2 {
		c.Chain = g.chain(host.Place(g.fs, host.Input{CgroupsPath: g.o.CgroupsPath, Systemd: g.o.Systemd}, g.euid))
	}
}

// chain returns the folders from the mount point of cgroup v2 down to a place, as
// far as they exist.
func (g *gatherer) chain(place string) []Folder {
	var list []Folder
	at, rest := cgroup.MountPoint, strings.Trim(place, "/")
	for g.has(at) {
		list = append(list, g.folder(at))
		if rest == "" {
			break
		}
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		at += "/" + name
	}
	return list
}

func (g *gatherer) folder(at string) Folder {
	f := Folder{
		Path:        at,
		Controllers: g.words(at + "/cgroup.controllers"),
		Passed:      g.words(at + "/cgroup.subtree_control"),
		Controls:    g.writable(at + "/cgroup.subtree_control"),
		Writable:    g.writable(at),
		Type:        string(trim(g.read(at + "/cgroup.type"))),
	}
	if f.Type == "" { // the root may have processes of its own
		return f
	}
	f.Processes = len(g.read(at+"/cgroup.procs")) > 0
	f.Threads = slices.ContainsFunc(g.below(at), func(child string) bool {
		return string(trim(g.read(child+"/cgroup.type"))) == threaded
	})
	return f
}

// freezer returns the name of the file by which a process in a cgroup of a
// container can be stopped: that of cgroup v2 is in every cgroup but the root, since
// Linux 5.2, and needs no controller. Empty: there is none that may be written.
func (g *gatherer) freezer() string {
	const v1, v2 = "freezer.state", "cgroup.freeze"
	switch g.facts.Host.CgroupVersion {
	case 1:
		mounts, err := g.fs.Mounts()
		if err != nil {
			return ""
		}
		if m, ok := cgroup.FindMount(mounts, "freezer"); ok && g.writable(m.Point) {
			return v1
		}
	case 2:
		chain := g.facts.Cgroup.Chain
		if n := len(chain); n > 0 && chain[n-1].Writable && g.look(g.folders(""), "cgroup.events", v2, "") == Yes {
			return v2
		}
	}
	return ""
}

// own returns the cgroup of this process in the hierarchy of a controller; "/"
// when it is not known.
func (g *gatherer) own(controller string) string {
	list, err := g.fs.Membership(0)
	if err != nil {
		return "/"
	}
	own, ok := cgroup.In(list, controller)
	if !ok {
		return "/"
	}
	return own
}

// kernel looks at what the kernel says about itself, and for features in cgroups
// that are there.
func (g *gatherer) kernel() {
	k := &g.facts.Kernel
	k.Release = string(trim(g.read("/proc/sys/kernel/osrelease")))
	k.Cmdline = string(trim(g.read("/proc/cmdline")))
	if data := g.read("/proc/cgroups"); data != nil {
		k.Controllers = parseControllers(data)
	}
	k.Cgroup2 = knows(g.read("/proc/filesystems"), "cgroup2")
	k.Swap = g.has("/proc/swaps")
	k.Bandwidth = g.has("/proc/sys/kernel/sched_cfs_bandwidth_slice_us")
	k.Throttling = g.throttling()
	k.Features = map[string]Presence{}
	for _, want := range features {
		if want.cgroup == g.facts.Host.CgroupVersion {
			k.Features[want.name] = g.feature(want)
		}
	}
}

// throttling tells whether the kernel can limit disks. The root of cgroup v1 has
// the file; on v2 it takes a cgroup below the root that has the controller on.
func (g *gatherer) throttling() Presence {
	if g.facts.Host.CgroupVersion == 1 {
		return g.look(g.folders("blkio"), "cgroup.procs", "blkio.throttle.read_bps_device", "")
	}
	below := slices.DeleteFunc(g.folders("io"), func(folder string) bool {
		return folder == cgroup.MountPoint && g.facts.Cgroup.True // the root has io.stat, and never io.max
	})
	return g.look(below, "io.stat", "io.max", "")
}

// feature looks for a feature in the cgroups that have its controller on.
func (g *gatherer) feature(want feature) Presence {
	return g.look(g.folders(want.controller), want.witness, want.file, want.line)
}

// look tells whether one of the folders has a file with a line. Only folders with
// the witness count.
func (g *gatherer) look(folders []string, witness, file, line string) Presence {
	answer := Unknown
	for _, folder := range folders {
		switch {
		case !g.has(folder + "/" + witness):
		case g.has(folder+"/"+file) && (line == "" || hasLine(g.read(folder+"/"+file), line)):
			return Yes
		case g.has(folder + "/" + witness): // it was not removed meanwhile
			answer = No
		}
	}
	return answer
}

// hasLine reports whether a flat-keyed file has a key.
func hasLine(data []byte, key string) bool {
	for line := range bytes.Lines(data) {
		if name, _, ok := bytes.Cut(line, []byte(" ")); ok && string(name) == key {
			return true
		}
	}
	return false
}

// maxFolders bounds how many cgroups are looked at.
const maxFolders = 64

// folders returns cgroups in which files of a controller may be: that of this
// process, the mount point, and those right below it.
func (g *gatherer) folders(controller string) []string {
	point, hierarchy := cgroup.MountPoint, ""
	if g.facts.Host.CgroupVersion == 1 {
		point, hierarchy = g.facts.Cgroup.V1[controller], controller
	}
	if point == "" {
		return nil
	}
	list := []string{point, path.Join(point, path.Clean("/"+g.own(hierarchy)))}
	return append(list, g.below(point)...)
}

// below returns the cgroups right below one, as many as are looked at.
func (g *gatherer) below(folder string) (list []string) {
	entries, _ := within(g, folder, func() ([]fs.DirEntry, error) {
		f, err := os.OpenFile(g.fs.Path(folder), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return f.ReadDir(-1)
	})
	for _, e := range entries { // those that were read until an error will do
		if e.IsDir() && len(list) < maxFolders {
			list = append(list, folder+"/"+e.Name())
		}
	}
	return list
}
