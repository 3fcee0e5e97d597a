package cgroup

import (
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
)

const (
	scopeV2 = "sys/fs/cgroup/system.slice/docker-0123456789ab.scope"
	dirV1   = "docker/0123456789ab"
)

func tree(t testing.TB, name string) FS { return FS(cgrouptest.Tree(t, name)) }

// of returns the cgroup of process 42 of a recorded tree.
func of(t testing.TB, f FS) *Cgroup {
	t.Helper()
	c, err := Of(f, 42)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
