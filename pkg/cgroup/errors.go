package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
)

// ErrNoCgroups says that no cgroup file system is mounted that could be read.
var ErrNoCgroups = errors.New("no cgroup controllers are mounted")

// GoneError says that a cgroup does not exist any more, or never did. It
// matches fs.ErrNotExist.
type GoneError struct {
	Dir string // the folder, as in /sys/fs/cgroup/docker/NAME
}

func (e *GoneError) Error() string { return "cgroup " + e.Dir + " is gone" }

// Is makes errors.Is(err, fs.ErrNotExist) true.
func (e *GoneError) Is(target error) bool { return target == fs.ErrNotExist }

// OutsideError says that a process is in a cgroup that is not below any cgroup
// mount of this process: it belongs to another cgroup namespace, or only a part
// of the tree is mounted (cgroup_namespaces(7)).
type OutsideError struct {
	Pid        int
	Controller string // cgroup v1; empty on v2
	Path       string // as /proc/PID/cgroup shows it
}

func (e *OutsideError) Error() string {
	what := "cgroup"
	if e.Controller != "" {
		what = e.Controller + " cgroup"
	}
	return fmt.Sprintf("%s %s of process %d is outside of what is mounted here: run in the host's cgroup namespace", what, e.Path, e.Pid)
}
