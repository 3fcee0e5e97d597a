package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FS is the folder that stands for "/": the machine's own, or a recorded tree
// with a proc and a sys folder in it.
type FS string

// Host is this machine.
const Host FS = "/"

// MountPoint is where cgroups are mounted. For cgroup v2 runc knows no other
// place.
const MountPoint = "/sys/fs/cgroup"

// Path returns the real path of an absolute name.
func (f FS) Path(name string) string {
	return strings.TrimSuffix(string(f), "/") + name
}

func (f FS) isHost() bool { return f == Host || f == "" }

// ReadFile returns the content of a file of proc or sys. The error carries its
// path. A pipe in place of the file is not waited for.
func (f FS) ReadFile(name string) ([]byte, error) {
	fd, err := openat(unix.AT_FDCWD, f.Path(name), unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	data, err := readAll(fd, nil)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return data, nil
}

// Layout is how this machine arranges its cgroups.
type Layout struct {
	// Version is 2 for cgroup v2; 1 for cgroup v1, also when v2 is mounted
	// beside it without controllers (hybrid); 0 when there is nothing.
	Version int
	// Mounts are the cgroup file systems. On v2 they are not read, since the
	// mount point is known: nil.
	Mounts []Mount
}

// Layout tells the cgroup version as runc does: it is 2 when the file system of
// /sys/fs/cgroup is cgroup2, and otherwise 1 when some v1 controller is mounted.
// In a recorded tree the mountinfo says which file system that is.
func (f FS) Layout() (Layout, error) {
	if f.isHost() {
		var st unix.Statfs_t
		err := unix.Statfs(MountPoint, &st)
		if err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return Layout{Version: 2}, nil
		}
	}
	mounts, err := f.Mounts()
	if err != nil {
		return Layout{}, err
	}
	layout := Layout{Mounts: mounts}
	for _, m := range mounts {
		if m.V2 && m.Point == MountPoint && !f.isHost() {
			return Layout{Version: 2}, nil
		}
		if m.hasController() {
			layout.Version = 1
		}
	}
	return layout, nil
}

// Mounts returns the cgroup mounts that this process sees.
func (f FS) Mounts() ([]Mount, error) {
	const name = "/proc/self/mountinfo"
	data, err := f.ReadFile(name)
	if err != nil {
		return nil, err
	}
	mounts, err := ParseMounts(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return mounts, nil
}

// Membership returns the cgroups of a process, one for each hierarchy; pid 0 is
// this process. A process that is gone gives an error that matches
// fs.ErrNotExist.
func (f FS) Membership(pid int) ([]Membership, error) {
	name := procFile(pid, "cgroup")
	data, err := f.ReadFile(name)
	if errors.Is(err, unix.ESRCH) {
		return nil, &fs.PathError{Op: "read", Path: name, Err: os.ErrNotExist}
	}
	if err != nil {
		return nil, err
	}
	list, err := ParseMembership(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return list, nil
}

func procFile(pid int, name string) string {
	if pid == 0 {
		return "/proc/self/" + name
	}
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}
