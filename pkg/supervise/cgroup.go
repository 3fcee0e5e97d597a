package supervise

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/agentbox/agentbox/pkg/cgroup"
)

// cgroupName is the supervisor's own cgroup, right below the root of each
// hierarchy.
const cgroupName = "agentbox-supervise"

// leaveCgroup moves this process out of the cgroups of whoever started it, a
// container's engine, or what belongs to a container itself: it must not be
// frozen, limited or ended with them. What cannot be left, as without root, stays.
func leaveCgroup() {
	for _, m := range elsewhere() {
		dir := filepath.Join(m.Point, cgroupName)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			continue
		}
		if enter(dir) != nil {
			_ = os.Remove(dir) // a cpuset without CPUs cannot be entered
		}
	}
}

// removeCgroup removes the cgroup of the supervisor, if this process is the last
// one in it. It may not stay in a cgroup that goes.
func removeCgroup() {
	for _, m := range elsewhere() {
		if m.below == "/"+cgroupName && enter(m.Point) == nil {
			_ = os.Remove(filepath.Join(m.Point, cgroupName)) // others may be in it
		}
	}
}

func enter(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// place is where this process is in one hierarchy.
type place struct {
	cgroup.Mount
	below string // the mount point
}

// elsewhere returns the hierarchies in which this process is not in the root.
func elsewhere() []place {
	list, err := cgroup.Host.Membership(os.Getpid())
	if err != nil {
		return nil
	}
	mounts, err := cgroup.Host.Mounts()
	if err != nil {
		return nil
	}
	var places []place
	for _, member := range list {
		for _, m := range mounts {
			if member.V2() != m.V2 || !m.V2 && !m.Has(member.Controllers[0]) {
				continue
			}
			if below, ok := m.Below(member.Path); ok && below != "/" {
				places = append(places, place{m, below})
			}
			break
		}
	}
	return places
}
