package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Membership is one line of /proc/PID/cgroup: the cgroup of a process in one
// hierarchy (cgroups(7)).
type Membership struct {
	// Controllers are those of a v1 hierarchy, "name=systemd" for a named one.
	// Empty for cgroup v2.
	Controllers []string
	// Path is the cgroup, seen from the root of this process's cgroup
	// namespace; "/.." leads out of it. It ends in " (deleted)" when the
	// cgroup is gone.
	Path string
}

// V2 reports whether this is the line of cgroup v2.
func (m Membership) V2() bool { return len(m.Controllers) == 0 }

// ParseMembership reads a /proc/PID/cgroup file.
func ParseMembership(data []byte) ([]Membership, error) {
	var list []Membership
	for line := range bytes.Lines(data) {
		// "0::/user.slice" or "4:cpu,cpuacct:/docker/0123"
		id, rest, ok := strings.Cut(string(bytes.TrimSuffix(line, []byte("\n"))), ":")
		if !ok {
			return nil, fmt.Errorf("cgroup line without a colon: %q", line)
		}
		names, path, ok := strings.Cut(rest, ":")
		if !ok || !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("cgroup line without an absolute path: %q", line)
		}
		if _, err := parseCount([]byte(id)); err != nil {
			return nil, fmt.Errorf("cgroup line %q: hierarchy: %w", line, err)
		}
		m := Membership{Path: path}
		if names != "" {
			m.Controllers = strings.Split(names, ",")
		}
		list = append(list, m)
	}
	if list == nil {
		return nil, errors.New("empty")
	}
	return list, nil
}

// In returns the path of a process in the hierarchy of a v1 controller; the
// empty controller is cgroup v2.
func In(list []Membership, controller string) (path string, ok bool) {
	for _, m := range list {
		if controller == "" && m.V2() {
			return m.Path, true
		}
		if slices.Contains(m.Controllers, controller) {
			return m.Path, true
		}
	}
	return "", false
}
