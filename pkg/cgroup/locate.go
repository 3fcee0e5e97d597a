package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroup is the cgroup of a container: one folder on cgroup v2, one for each
// hierarchy on v1. It holds nothing open.
type Cgroup struct {
	fs    FS
	paths Paths
}

// Paths says where a cgroup is, so that it can be found again when its
// processes are gone.
type Paths struct {
	Version int `json:"version"` // 1 or 2
	// Places is the folder for each controller; on v2 the one entry has the
	// empty name. On v1 it includes named hierarchies ("name=systemd") and, on
	// a hybrid machine, the v2 one under the empty name.
	Places map[string]Place `json:"places"`
	// Unit is the cgroup above, of the same container, where there is one; v2
	// only. See FindUnit.
	Unit *Place `json:"unit,omitempty"`
}

// Place is one folder of a mounted cgroup hierarchy.
type Place struct {
	Mount string `json:"mount"` // the mount point
	Path  string `json:"path"`  // below it; "/" is the mount point itself
	// ID is the inode of the folder: another cgroup that has the same path
	// later has another one. 0: not known, do not check.
	ID uint64 `json:"id,omitempty"`
}

// Dir returns the folder.
func (p Place) Dir() string { return path.Join(p.Mount, p.Path) }

// Paths returns a copy of where the cgroup is.
func (c *Cgroup) Paths() Paths { return c.paths.clone() }

func (p Paths) clone() Paths {
	p.Places = maps.Clone(p.Places)
	if p.Unit != nil {
		unit := *p.Unit
		p.Unit = &unit
	}
	return p
}

// Open returns the cgroup at saved paths. It looks whether they make sense and
// reads nothing: a cgroup that is gone shows when it is used.
func Open(f FS, p Paths) (*Cgroup, error) {
	if p.Version != 1 && p.Version != 2 {
		return nil, fmt.Errorf("saved cgroup paths: version %d is not 1 or 2", p.Version)
	}
	if _, ok := p.Places[""]; p.Version == 2 && !ok {
		return nil, errors.New("saved cgroup paths: no path")
	}
	for name, place := range p.Places {
		if !place.isClean() {
			return nil, fmt.Errorf("saved cgroup paths: %q: mount %q and path %q must be absolute and clean", name, place.Mount, place.Path)
		}
	}
	if u := p.Unit; u != nil && (p.Version != 2 || !u.isClean() || !u.holds(p.Places[""])) {
		return nil, fmt.Errorf("saved cgroup paths: the unit with mount %q and path %q is not above %q", u.Mount, u.Path, p.Places[""].Path)
	}
	return &Cgroup{fs: f, paths: p.clone()}, nil
}

func (p Place) isClean() bool { return cleanPath(p.Mount) && cleanPath(p.Path) }

// holds reports whether a place is below this one.
func (p Place) holds(below Place) bool {
	return p.Mount == below.Mount && strings.HasPrefix(below.Path, p.Path+"/")
}

// FindUnit looks for the systemd unit of a container that was started with the
// systemd driver. The cgroup of a process is that unit, or is below it: crun makes
// a cgroup in the scope that it has from systemd, and both have the container's
// limits. The scope is the first to run out of memory then, since what the kernel
// needs for the cgroup below is charged to it. What this package reads is of both
// from now on.
func (c *Cgroup) FindUnit() error {
	if c.paths.Version != 2 {
		return nil
	}
	unit := c.paths.Places[""]
	for !strings.HasSuffix(unit.Path, ".scope") {
		if unit.Path == "/" {
			return nil
		}
		unit.Path = parentPath(unit.Path)
	}
	if unit.Path == c.paths.Places[""].Path {
		return nil
	}
	if _, err := unit.identify(c.fs, false); err != nil {
		return err
	}
	c.paths.Unit = &unit
	return nil
}

// Of returns the cgroup that a process is in. The caller makes sure that pid
// still is the process it means (a pidfd, or its parent).
//
// A process or a cgroup that is gone gives an error that matches
// fs.ErrNotExist; a cgroup that cannot be reached from here an *OutsideError; a
// machine without cgroups ErrNoCgroups.
func Of(f FS, pid int) (*Cgroup, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("not a process id: %d", pid)
	}
	list, err := f.Membership(pid)
	if err != nil {
		return nil, err
	}
	layout, err := f.Layout()
	if err != nil {
		return nil, err
	}
	var places map[string]Place
	switch layout.Version {
	case 2:
		places, err = placeV2(f, pid, list)
	case 1:
		places, err = placesV1(f, pid, list, layout.Mounts)
	default:
		err = ErrNoCgroups
	}
	if err != nil {
		return nil, err
	}
	return &Cgroup{fs: f, paths: Paths{Version: layout.Version, Places: places}}, nil
}

// placeV2 finds the v2 cgroup. The path of /proc/PID/cgroup usually is the path
// below the mount point, and the process is listed there. Only when it is not,
// in a cgroup namespace or below a bind mount, is mountinfo read: on a host of
// many containers it has thousands of lines.
func placeV2(f FS, pid int, list []Membership) (map[string]Place, error) {
	cgroup, ok := In(list, "")
	if !ok {
		return nil, fmt.Errorf("%s: no line for cgroup v2", procFile(pid, "cgroup"))
	}
	if cleanPath(cgroup) {
		place := Place{Mount: MountPoint, Path: cgroup}
		procs, err := place.identify(f, true)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if lists(procs, pid) {
			return map[string]Place{"": place}, nil
		}
	}
	mounts, err := f.Mounts()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(mounts, func(m Mount) bool { return m.V2 && m.Point == MountPoint })
	if i < 0 {
		return nil, ErrNoCgroups
	}
	below, ok := mounts[i].Below(cgroup)
	if !ok {
		return nil, &OutsideError{Pid: pid, Path: cgroup}
	}
	place := Place{Mount: MountPoint, Path: below}
	if _, err := place.identify(f, false); err != nil {
		return nil, err
	}
	return map[string]Place{"": place}, nil
}

// identify fills the ID of a place. It returns the folder's processes too, if
// asked to, since the folder is open anyway; a threaded cgroup does not list
// them.
func (p *Place) identify(f FS, procs bool) (list []byte, err error) {
	d, err := openDir(f, p.Dir())
	if err != nil {
		return nil, err
	}
	defer d.close()
	if p.ID, err = d.id(); err != nil || !procs {
		return nil, err
	}
	list, _, err = d.read("cgroup.procs", nil)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	return list, err
}

// lists reports whether cgroup.procs has a process.
func lists(procs []byte, pid int) bool {
	want := strconv.Itoa(pid)
	for line := range bytes.Lines(procs) {
		if string(trimNewline(line)) == want {
			return true
		}
	}
	return false
}

// placesV1 finds the folder of each hierarchy. One that is not mounted is left
// out. Those that this package reads must be there; the others are taken as they
// are named, without a look.
func placesV1(f FS, pid int, list []Membership, mounts []Mount) (map[string]Place, error) {
	if err := notDying(f, pid, list); err != nil {
		return nil, err
	}
	places := make(map[string]Place, 16)
	for _, member := range list {
		for _, controller := range member.names() {
			m, ok := findAny(mounts, controller)
			if !ok {
				continue
			}
			below, ok := m.Below(member.Path)
			place := Place{Mount: m.Point, Path: below}
			if !slices.Contains(controllers[:], controller) {
				if ok {
					places[controller] = place
				}
				continue
			}
			if !ok {
				return nil, &OutsideError{Pid: pid, Controller: controller, Path: member.Path}
			}
			if _, err := place.identify(f, false); err != nil {
				return nil, err
			}
			places[controller] = place
		}
	}
	return places, nil
}

// names returns the controllers, with the empty name for cgroup v2.
func (m Membership) names() []string {
	if m.V2() {
		return []string{""}
	}
	return m.Controllers
}

func findAny(mounts []Mount, controller string) (Mount, bool) {
	if controller != "" {
		return FindMount(mounts, controller)
	}
	i := slices.IndexFunc(mounts, func(m Mount) bool { return m.V2 })
	if i < 0 {
		return Mount{}, false
	}
	return mounts[i], true
}

// notDying makes sure that a process is alive when it seems to be in the root
// cgroup: that is what v1 shows for one that has exited and was not waited for.
func notDying(f FS, pid int, list []Membership) error {
	if slices.ContainsFunc(list, func(m Membership) bool { return !m.V2() && m.Path != "/" }) {
		return nil
	}
	name := procFile(pid, "stat")
	data, err := f.ReadFile(name)
	if err != nil {
		return err
	}
	// "42 (name) S 1 ...": the name may hold anything, a ")" too.
	_, rest, ok := bytes.Cut(data[max(0, bytes.LastIndexByte(data, ')')):], []byte(") "))
	if !ok || len(rest) == 0 {
		return fmt.Errorf("%s: no state: %q", name, data)
	}
	if rest[0] == 'Z' || rest[0] == 'X' {
		return fmt.Errorf("process %d has ended, its cgroup is not known any more: %w", pid, fs.ErrNotExist)
	}
	return nil
}

// place is the folder of a controller; on v2 all have the same.
func (c *Cgroup) place(controller string) (p Place, ok bool) {
	if c.paths.Version == 2 {
		controller = ""
	}
	p, ok = c.paths.Places[controller]
	return p, ok
}

// open opens the folder of a controller. ok is false when the hierarchy of that
// controller is not mounted here.
func (c *Cgroup) open(controller string) (d dir, ok bool, err error) {
	place, ok := c.place(controller)
	if !ok {
		return dir{}, false, nil
	}
	d, err = openPlace(c.fs, place)
	return d, err == nil, err
}

// openPlace opens a folder and makes sure that it still is the same cgroup.
func openPlace(f FS, p Place) (dir, error) {
	d, err := openDir(f, p.Dir())
	if err != nil || p.ID == 0 {
		return d, err
	}
	id, err := d.id()
	if err == nil && id != p.ID {
		err = &GoneError{Dir: d.path}
	}
	if err != nil {
		d.close()
		return dir{}, err
	}
	return d, nil
}
