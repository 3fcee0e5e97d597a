package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"
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
// (proc_pid_mountinfo(5)), in its order. Other file systems are skipped.
func ParseMounts(data []byte) ([]Mount, error) {
	var mounts []Mount
	for line := range bytes.Lines(data) {
		// "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
		line = bytes.TrimSuffix(line, []byte("\n"))
		head, tail, ok := bytes.Cut(line, []byte(" - "))
		if !ok {
			return nil, fmt.Errorf("mount line without a separator: %q", line)
		}
		if !bytes.HasPrefix(tail, []byte("cgroup")) {
			continue
		}
		m, ok, err := parseMount(string(head), string(tail))
		if err != nil {
			return nil, fmt.Errorf("mount line %q: %w", line, err)
		}
		if ok {
			mounts = append(mounts, m)
		}
	}
	return mounts, nil
}

func parseMount(head, tail string) (Mount, bool, error) {
	fields := strings.Fields(tail)
	if len(fields) == 0 || fields[0] != "cgroup" && fields[0] != "cgroup2" {
		return Mount{}, false, nil
	}
	if len(fields) < 2 {
		return Mount{}, false, errors.New("too few fields")
	}
	m := Mount{V2: fields[0] == "cgroup2", Options: fields[len(fields)-1]}
	fields = strings.Fields(head)
	if len(fields) < 6 {
		return Mount{}, false, errors.New("too few fields")
	}
	m.Root, m.Point = unescape(fields[3]), unescape(fields[4])
	if !path.IsAbs(m.Root) || !path.IsAbs(m.Point) {
		return Mount{}, false, errors.New("a path that is not absolute")
	}
	return m, true, nil
}

// unescape undoes the octal form in which mountinfo writes space, tab, newline,
// backslash and "#".
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && octal(s[i+1]) && octal(s[i+2]) && octal(s[i+3]) {
			out = append(out, (s[i+1]-'0')<<6|(s[i+2]-'0')<<3|(s[i+3]-'0'))
			i += 3
			continue
		}
		out = append(out, s[i])
	}
	return string(out)
}

func octal(c byte) bool { return '0' <= c && c <= '7' }

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
var controllers = [...]string{"memory", "pids", "cpu", "cpuacct"}

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
