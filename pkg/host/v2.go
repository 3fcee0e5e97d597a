package host

import (
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
)

// Names of cgroup v2 files (Documentation/admin-guide/cgroup-v2.rst).
const (
	fileMemoryMax  = "memory.max"
	fileMemoryHigh = "memory.high"
	fileSwapMax    = "memory.swap.max"
	fileOOMGroup   = "memory.oom.group"
	filePidsMax    = "pids.max"
	fileCPUMax     = "cpu.max"
	fileIOMax      = "io.max"
)

func nameV2(key limits.Key) string {
	switch key {
	case limits.KeyMemory:
		return fileMemoryMax
	case limits.KeyMemoryHigh:
		return fileMemoryHigh
	case limits.KeySwap:
		return fileSwapMax
	case limits.KeyPids:
		return filePidsMax
	case limits.KeyCPUs:
		return fileCPUMax
	default:
		return fileIOMax
	}
}

func (p *prober) probeV2() {
	intended := p.intended(func() string { return path.Dir(p.ownCgroup("")) })
	below, ok := p.ancestor(cgroup.MountPoint, intended)
	if !ok {
		p.noCgroups(cgroup.MountPoint + " is not there")
		return
	}
	ancestor := path.Join(cgroup.MountPoint, below)
	if reason := p.denied(ancestor); reason != "" {
		p.noCgroups(reason)
		return
	}
	file := p.controllersFile(ancestor)
	data, err := p.fs.ReadFile(file)
	if err != nil {
		p.noCgroups("the controllers cannot be read: " + err.Error())
		return
	}
	controllers := strings.Fields(string(data))
	missing := func(controller string) string {
		if slices.Contains(controllers, controller) {
			return ""
		}
		return "the " + controller + " controller is not in " + file
	}

	w := witnesses{p: p, known: []string{cgroup.MountPoint, ancestor}}
	memory := missing("memory")
	p.set(limits.KeyMemory, fileMemoryMax, memory)
	p.set(limits.KeyMemoryHigh, fileMemoryHigh, memory)
	p.set(limits.KeySwap, fileSwapMax, memory)
	p.host.GroupKill = mechanism(fileOOMGroup, memory)
	if memory == "" {
		witness := w.find(fileMemoryMax)
		p.set(limits.KeySwap, fileSwapMax, p.missingSwap(witness))
		p.host.GroupKill = mechanism(fileOOMGroup, p.missingOOMGroup(witness))
	}
	p.set(limits.KeyPids, filePidsMax, missing("pids"))
	cpu := missing("cpu")
	if cpu == "" {
		cpu = p.missingCPUMax(w.find("cpu.weight"))
	}
	p.set(limits.KeyCPUs, fileCPUMax, cpu)
	io := missing("io")
	if io == "" {
		witness := w.find(fileIOMax)
		io = p.missingIOMax(witness)
		p.weightsV2(witness)
	}
	for _, key := range limits.IOKeys {
		p.set(key, fileIOMax, io)
	}
}

// controllersFile returns the file that lists which controllers the container's
// cgroup can have. Who may turn controllers on at the root of the mount, can do
// so all the way down, and the low-level runtime does. Anybody else has those
// that the ancestor was given; and if they cannot be turned on there either,
// those that its children already have.
func (p *prober) controllersFile(ancestor string) string {
	const control = "/cgroup.subtree_control"
	for _, folder := range [...]string{cgroup.MountPoint, ancestor} {
		if p.access(p.fs.Path(folder+control), unix.W_OK) == nil {
			return folder + "/cgroup.controllers"
		}
	}
	return ancestor + control
}

// witnesses are cgroups that may have the files of a controller, so that it can
// be seen which ones this kernel has. The root cgroup has none; what is mounted
// in a cgroup namespace is not the root and has them.
type witnesses struct {
	p        *prober
	known    []string
	children []string // of the mount point, once they were listed
	listed   bool
}

// maxChildren bounds how many cgroups below the mount point are looked at. They
// differ in the controllers that are on, and on a machine with systemd
// system.slice and init.scope have them.
const maxChildren = 64

// find returns a cgroup that has a file of the controller; empty when there is
// none to be seen.
func (w *witnesses) find(file string) string {
	for _, folder := range w.known {
		if w.p.has(folder + "/" + file) {
			return folder
		}
	}
	w.list()
	for _, folder := range w.children {
		if w.p.has(folder + "/" + file) {
			return folder
		}
	}
	return ""
}

// list reads the folders at the mount point, and adds this process's own cgroup.
func (w *witnesses) list() {
	if w.listed {
		return
	}
	w.listed = true
	if own := w.p.ownCgroup(""); own != "/" {
		w.children = append(w.children, path.Join(cgroup.MountPoint, own))
	}
	f, err := os.Open(w.p.fs.Path(cgroup.MountPoint))
	if err != nil {
		return
	}
	defer f.Close()
	// An error leaves what was read until then: a witness is a chance.
	entries, _ := f.ReadDir(-1)
	for _, e := range entries {
		if e.IsDir() && len(w.children) < maxChildren {
			w.children = append(w.children, path.Join(cgroup.MountPoint, e.Name()))
		}
	}
}
