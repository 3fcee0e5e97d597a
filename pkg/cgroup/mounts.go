package cgroup

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Mount is one mounted cgroup hierarchy.
type Mount struct {
	V2    bool   // file system type cgroup2
	Point string // where it is mounted
	// Root is the cgroup that is seen at the mount point, as a path of the
	// hierarchy. It starts with "/.." when it lies above the root of this
	// process's cgroup namespace.
	Root    string
	Options string // of the file system: on v1 they name the controllers
}

// ParseMounts returns the cgroup mounts of a mountinfo file
// (proc_pid_mountinfo(5)), in its order. Other file systems are skipped, and
// their lines not parsed: a host of many containers has thousands.
func ParseMounts(data []byte) ([]Mount, error) {
	var lines []byte
	for line := range bytes.Lines(data) {
		// "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
		_, tail, ok := bytes.Cut(line, []byte(" - "))
		if !ok {
			return nil, fmt.Errorf("mount line without a separator: %q", bytes.TrimSuffix(line, []byte("\n")))
		}
		if bytes.HasPrefix(tail, []byte("cgroup")) {
			lines = append(lines, line...)
		}
	}
	infos, err := mountinfo.GetMountsFromReader(bytes.NewReader(lines), mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, err
	}
	var mounts []Mount
	for _, info := range infos {
		if !path.IsAbs(info.Root) || !path.IsAbs(info.Mountpoint) {
			return nil, fmt.Errorf("cgroup mount %d: a path is not absolute: %q on %q", info.ID, info.Root, info.Mountpoint)
		}
		mounts = append(mounts, Mount{V2: info.FSType == "cgroup2", Point: info.Mountpoint, Root: info.Root, Options: info.VFSOptions})
	}
	return mounts, nil
}

// Has reports whether the mount is a v1 hierarchy with this controller:
// "memory", or "name=systemd" for a named one.
func (m Mount) Has(controller string) bool {
	if m.V2 {
		return false
	}
	for option := range strings.SplitSeq(m.Options, ",") {
		if option == controller {
			return true
		}
	}
	return false
}

// hasController reports whether the mount has a v1 controller that this package
// reads.
func (m Mount) hasController() bool {
	for _, c := range controllers {
		if m.Has(c) {
			return true
		}
	}
	return false
}

// controllers are the v1 controllers that this package reads.
var controllers = [...]string{"memory", "pids", "cpu", "cpuacct", "blkio"}

// FindMount returns the mount of a v1 controller. When it is mounted several
// times, the first one below /sys/fs/cgroup is taken, as runc does.
func FindMount(mounts []Mount, controller string) (Mount, bool) {
	found := -1
	for i, m := range mounts {
		if !m.Has(controller) {
			continue
		}
		if strings.HasPrefix(m.Point, MountPoint+"/") {
			return m, true
		}
		if found < 0 {
			found = i
		}
	}
	if found < 0 {
		return Mount{}, false
	}
	return mounts[found], true
}

// Below returns where a cgroup of /proc/PID/cgroup is found below the mount
// point: "/" is the mount point itself. ok is false when it is not below it.
func (m Mount) Below(cgroup string) (below string, ok bool) {
	root := strings.TrimSuffix(m.Root, "/")
	below, ok = strings.CutPrefix(cgroup, root)
	if !ok || below != "" && below[0] != '/' {
		return "", false
	}
	if below == "" {
		return "/", true
	}
	// What is left of a cgroup namespace's "/.." cannot be found from here.
	if !cleanPath(below) {
		return "", false
	}
	return below, true
}

// cleanPath reports whether p is absolute and in its shortest form, so that it
// cannot leave the folder that it is appended to.
func cleanPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.Contains(p, "\x00")
}
