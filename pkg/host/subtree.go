package host

import (
	"bytes"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
)

// Files that say which controllers the children of a cgroup can have
// (cgroup-v2.rst, Core Interface Files).
const (
	fileControllers = "/cgroup.controllers"
	fileControl     = "/cgroup.subtree_control"
	fileType        = "/cgroup.type"
	fileProcs       = "/cgroup.procs"
	fileEvents      = "/cgroup.events"
)

// wanted are the controllers of cgroup v2 that limits need.
var wanted = [...]string{"memory", "io", "pids", "cpu"}

// set is a set of controllers: bit i is that of wanted[i].
type set uint8

const (
	allWanted set = 1<<len(wanted) - 1
	// domains are the domain controllers, memory and io: they work only where no
	// cgroup above has processes of its own or is threaded (cgroup-v2.rst, No
	// Internal Process Constraint and Threads). pids and cpu are threaded ones.
	domains       set = 1<<0 | 1<<1
	cpuController set = 1 << 3
)

// parseSet reads a list of controllers, as cgroup.controllers and
// cgroup.subtree_control have it.
func parseSet(data []byte) (s set) {
	for field := range bytes.FieldsSeq(data) {
		for i, controller := range wanted {
			if string(field) == controller {
				s |= 1 << i
			}
		}
	}
	return s
}

// place is where the container's cgroup will be.
type place struct {
	ancestor string // the deepest folder that exists
	missing  int    // how many folders have to be made below it
}

// without says for each controller that the container's cgroup cannot have, why.
// The error is that the controllers cannot be read.
//
// What the ancestor passes on, its children have: on most hosts that is all that
// is wanted, and nothing else is looked at. What is not passed on, the low-level
// runtime turns on in each folder on the way, where permissions and kernel let
// it.
func (p *prober) without(at place) (reasons map[string]string, err error) {
	passed := p.passed(at.ancestor)
	if passed == allWanted {
		return nil, nil
	}
	file := p.controllersFile(at.ancestor)
	data, err := p.fs.ReadFile(file)
	if err != nil {
		return nil, err
	}
	reasons = map[string]string{}
	there := parseSet(data)
	for i, controller := range wanted {
		if there&(1<<i) == 0 {
			reasons[controller] = "the " + controller + " controller is not in " + file
		}
	}
	p.obstacles(at, passed, there, reasons)
	return reasons, nil
}

// passed returns the controllers that a cgroup passes on to its children; none
// when that cannot be read.
func (p *prober) passed(folder string) set {
	data, err := p.fs.ReadFile(folder + fileControl)
	if err != nil {
		return 0
	}
	return parseSet(data)
}

// controllersFile returns the file that lists which controllers the container's
// cgroup can have by the permissions. Who may turn controllers on at the root of
// the mount, can do so all the way down, and the low-level runtime does. Anybody
// else has those that the ancestor was given; and if they cannot be turned on
// there either, those that its children already have.
func (p *prober) controllersFile(ancestor string) string {
	for _, folder := range [...]string{cgroup.MountPoint, ancestor} {
		if p.access(p.fs.Path(folder+fileControl), unix.W_OK) == nil {
			return folder + fileControllers
		}
	}
	return ancestor + fileControl
}

// obstacles adds the reasons of the kernel for the controllers that are there. It
// goes up from the ancestor, which passes on what passed has, as far as there is
// something to be turned on. Where several folders are in the way, the highest
// one is named: it made the others what they are.
func (p *prober) obstacles(at place, passed, there set, reasons map[string]string) {
	// nested: between this folder and the container's cgroup is one that is not
	// threaded, or is not there yet.
	nested := at.missing > 1
	for folder := at.ancestor; !passes(passed, there); folder = path.Dir(folder) {
		o := p.obstacle(folder)
		nested = nested || o.kind == invalid
		for i, controller := range wanted {
			bit := set(1) << i
			if how := p.stops(o.kind, bit, passed&bit != 0, nested); there&bit != 0 && how != "" {
				reasons[controller] = "the " + controller + " controller " + how + " " + folder + o.text
			}
		}
		if folder == cgroup.MountPoint {
			return
		}
		nested = nested || o.kind == free
		passed = p.passed(path.Dir(folder))
	}
}

// passes reports whether a cgroup passes on all controllers that are there, with
// a domain controller among them: neither that cgroup nor any above it can then
// have processes of its own, or be threaded.
func passes(passed, there set) bool { return passed&there == there && there&domains != 0 }

// obstacle is what keeps controllers from being turned on in a cgroup.
type obstacle struct {
	kind kind
	text string // what follows the cgroup's name in a sentence, with what to do
}

type kind uint8

const (
	free     kind = iota
	occupied      // it has processes: turning a threaded controller on makes it threaded, others cannot be
	crowded       // it has processes, and so has a domain below it: nothing can be turned on
	threaded      // only threaded controllers can be turned on
	invalid       // the same, as soon as somebody makes it threaded
)

// stops says how a cgroup of a kind on the way keeps a controller from being
// used; empty when it does not. passed: it is turned on there already.
//
// What a threaded controller can do is up to the low-level runtime as well
// (seen with runc 1.3 and crun 1.28). runc makes the folders on the way threaded
// as needed, but takes cpu for a domain controller and refuses to go there. crun
// makes nothing threaded but the container's own cgroup.
func (p *prober) stops(k kind, controller set, passed, nested bool) string {
	const off, useless = "cannot be turned on in", "cannot be used below"
	switch crun := strings.HasPrefix(path.Base(p.in.Runtime), "crun"); {
	case k == free:
		return ""
	case !passed && (controller&domains != 0 || k == crowded):
		return off
	case crun && nested, !crun && controller == cpuController:
		return useless
	}
	return ""
}

// obstacle looks at one cgroup. The real root is free: it is the only one without
// cgroup.type, apart from kernels before Linux 4.14, which have no such file and
// no threaded cgroups.
func (p *prober) obstacle(folder string) obstacle {
	data, err := p.fs.ReadFile(folder + fileType)
	if err != nil && folder == cgroup.MountPoint {
		return obstacle{}
	}
	switch text := strings.TrimSpace(string(data)); text {
	case "", "domain":
	default:
		todo := "place the container in another cgroup (cgroupsPath)"
		if text == "domain threaded" { // it may be that only for having had processes when controllers were turned on
			todo = "move its processes into a cgroup below it, or " + todo
		}
		o := obstacle{threaded, ", which is threaded (its cgroup.type is " + text + "): " + todo}
		if text == "domain invalid" {
			o.kind = invalid
		}
		return o
	}
	data, err = p.fs.ReadFile(folder + fileProcs)
	if err != nil || len(data) == 0 {
		return obstacle{}
	}
	o := obstacle{occupied, ", which has processes of its own: move them into a cgroup below it"}
	if p.populatedBelow(folder) {
		o.kind = crowded
	}
	return o
}

// populatedBelow reports whether a cgroup has a child with processes in it or
// further down. Of a cgroup that is not threaded, no child is. Very many children
// count as that.
func (p *prober) populatedBelow(folder string) bool {
	names := p.subfolders(folder, maxChildren+1)
	return len(names) > maxChildren || slices.ContainsFunc(names, func(name string) bool {
		events, _ := p.fs.ReadFile(folder + "/" + name + fileEvents) // one that is gone is not populated
		return bytes.Contains(events, []byte("populated 1\n"))
	})
}

// subfolders returns up to limit folders in a folder; what was read until an
// error.
func (p *prober) subfolders(folder string, limit int) (names []string) {
	f, err := os.OpenFile(p.fs.Path(folder), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	entries, _ := f.ReadDir(-1)
	for _, e := range entries {
		if e.IsDir() && len(names) < limit {
			names = append(names, e.Name())
		}
	}
	return names
}
