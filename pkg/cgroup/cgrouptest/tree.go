// Package cgrouptest has recorded proc and cgroup trees for tests: what a
// machine of some kind shows, without being on one.
package cgrouptest

import (
	"embed"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed *.txtar
var archives embed.FS

// Tree writes a recorded tree into a temporary folder and returns its path, for
// use as a cgroup.FS. The names:
//
//	v2        cgroup v2 with systemd, all controllers; process 42 is in a Docker
//	          container with limits, its parent slice has a lower pids.max
//	v2-bare   cgroup v2 and no cgroup but the root
//	v2-user   cgroup v2 as uid 1000 with a systemd user session: memory and pids
//	v1        cgroup v1, cpu and cpuacct together; process 42 is in a container
//	hybrid    v1 controllers, and cgroup v2 without any beside them
//	none      no cgroups
//
// These are of one kernel, Linux 7.2 without the memory controller of cgroup v1,
// booted in several ways:
//
//	v2-7.2           cgroup v2
//	v2-7.2-nomemory  the same with cgroup_disable=memory
//	v2-7.2-noio      the same with cgroup_disable=io
//	v1-7.2           cgroup v1
//	hybrid-7.2       v1, and cgroup v2 beside it, which has the memory controller
//	none-7.2         nothing is mounted
func Tree(t testing.TB, name string) string {
	t.Helper()
	data, err := archives.ReadFile(name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	var path string
	var content strings.Builder
	flush := func() {
		if path != "" {
			Write(t, root, path, content.String())
		}
		content.Reset()
	}
	for line := range strings.Lines(string(data)) {
		if next, ok := strings.CutPrefix(line, "-- "); ok {
			flush()
			path = strings.TrimSuffix(next, " --\n")
			continue
		}
		content.WriteString(line)
	}
	flush()
	return root
}

// Write sets the content of a file of a tree, and creates the folders above it.
func Write(t testing.TB, root, path, content string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Remove takes a file or a folder out of a tree.
func Remove(t testing.TB, root, path string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(root, path)); err != nil {
		t.Fatal(err)
	}
}
