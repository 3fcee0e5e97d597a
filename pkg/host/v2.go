package host

import (
	"path"

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
	at, ok := p.ancestor(cgroup.MountPoint, p.placeV2())
	if !ok {
		p.noCgroups(cgroup.MountPoint + " is not there")
		return
	}
	if reason := p.denied(at.ancestor); reason != "" {
		p.noCgroups(reason)
		return
	}
	missing, err := p.without(at)
	if err != nil {
		p.noCgroups("the controllers cannot be read: " + err.Error())
		return
	}

	w := witnesses{p: p, known: []string{cgroup.MountPoint, at.ancestor}}
	memory := missing["memory"]
	p.set(limits.KeyMemory, fileMemoryMax, memory)
	p.set(limits.KeyMemoryHigh, fileMemoryHigh, memory)
	p.set(limits.KeySwap, fileSwapMax, memory)
	p.host.GroupKill = mechanism(fileOOMGroup, memory)
	if memory == "" {
		witness := w.find(fileMemoryMax)
		p.set(limits.KeySwap, fileSwapMax, p.missingSwap(witness))
		p.host.GroupKill = mechanism(fileOOMGroup, p.missingOOMGroup(witness))
	}
	p.set(limits.KeyPids, filePidsMax, missing["pids"])
	cpu := missing["cpu"]
	if cpu == "" {
		cpu = p.missingCPUMax(w.find("cpu.weight"))
	}
	p.set(limits.KeyCPUs, fileCPUMax, cpu)
	io := missing["io"]
	if io == "" {
		witness := w.find(fileIOMax)
		io = p.missingIOMax(witness)
		p.weightsV2(witness)
	}
	for _, key := range limits.IOKeys {
		p.set(key, fileIOMax, io)
	}
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
	for _, name := range w.p.subfolders(cgroup.MountPoint, maxChildren) {
		w.children = append(w.children, path.Join(cgroup.MountPoint, name))
	}
}
