package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/host"
	"github.com/agentbox/agentbox/pkg/limits"
)

// probeWorlds are machines with cgroup v2 and one folder of a container on a
// disk. On a bare one no cgroup shows what the kernel can do with I/O, so that it
// is looked for among the kernel's symbols, and noted.
var probeWorlds = []struct {
	name   string
	tree   string
	mounts int
	noted  bool // earlier probes have left their notes
}{
	{"10 mounts", "v2", 10, false},
	{"5000 mounts", "v2", 5000, false},
	{"bare", "v2-bare", 10, false},
	{"bare, noted", "v2-bare", 10, true},
}

// BenchmarkProbe is what every create pays to find out what the machine can do.
func BenchmarkProbe(b *testing.B) {
	for _, w := range probeWorlds {
		b.Run(w.name, func(b *testing.B) {
			root, in := probeWorld(b, w.tree, w.mounts)
			if w.noted {
				in.Notes = b.TempDir()
			}
			b.ReportAllocs()
			for b.Loop() {
				checkProbe(b, host.Probe(cgroup.FS(root), in))
			}
		})
	}
}

func TestProbeWorlds(t *testing.T) {
	for _, w := range probeWorlds {
		t.Run(w.name, func(t *testing.T) {
			root, in := probeWorld(t, w.tree, w.mounts)
			in.Notes = t.TempDir()
			for range 2 {
				checkProbe(t, host.Probe(cgroup.FS(root), in))
			}
			if notes, err := os.ReadDir(in.Notes); err != nil || (len(notes) == 1) != (w.tree == "v2-bare") {
				t.Errorf("%d notes, %v", len(notes), err)
			}
		})
	}
}

// checkProbe makes sure that the probe did its work.
func checkProbe(t testing.TB, h limits.Host) {
	t.Helper()
	if h.Mechanisms[limits.KeyIOReadBPS].Enforcer != limits.EnforcerKernel || len(h.IO.Disks) != 1 || h.IO.Disks[0].Name != "vdx" {
		t.Fatalf("the probe has not found what there is: %+v", h)
	}
}

// probeWorld is a recorded cgroup v2 tree with that many mounts, the last of
// which is the one of a container's folder.
func probeWorld(t testing.TB, tree string, mounts int) (root string, in host.Input) {
	t.Helper()
	root = cgrouptest.Tree(t, tree)
	cgrouptest.Write(t, root, "folder/file", "")
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, root+"/folder", 0, unix.STATX_MNT_ID, &st); err != nil {
		t.Fatal(err)
	}
	const device = "254:9" // whatever this file system is really on
	recorded, err := os.ReadFile(root + "/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	i := 0
	for line := range strings.Lines(string(recorded)) {
		_, rest, _ := strings.Cut(line, " ")
		fmt.Fprintf(&lines, "%d %s", 1<<29+i, rest) // an id that no mount of this machine has
		i++
	}
	for i := range mounts {
		fmt.Fprintf(&lines, "%d 29 0:%d / /var/lib/docker/overlay2/%064x/merged rw,relatime shared:%d - overlay overlay "+
			"rw,lowerdir=/var/lib/docker/overlay2/l/%026x:/var/lib/docker/overlay2/l/%026x,upperdir=/var/lib/docker/overlay2/%064x/diff,workdir=/var/lib/docker/overlay2/%064x/work\n",
			1<<30+i, 1000+i, i, i, i, i+1, i, i)
	}
	fmt.Fprintf(&lines, "%d 29 %s / /folder rw,relatime - ext4 /dev/vdx rw\n", st.Mnt_id, device)
	cgrouptest.Write(t, root, "proc/self/mountinfo", lines.String())
	cgrouptest.Write(t, root, "proc/kallsyms", symbols())
	cgrouptest.Write(t, root, "sys/devices/vdx/dev", device+"\n")
	cgrouptest.Write(t, root, "sys/dev/block/keep", "")
	if err := os.Symlink("../../devices/vdx", root+"/sys/dev/block/"+device); err != nil {
		t.Fatal(err)
	}
	return root, host.Input{Request: &limits.Request{Places: []limits.Place{{Path: "/folder", Source: "/folder", Writable: true}}}}
}

// symbols are as many as a kernel of a distribution has, with the one of
// io.max in the middle.
func symbols() string {
	const half = 60_000
	var out strings.Builder
	for i := range 2 * half {
		if i == half {
			out.WriteString("ffffffff815e9b40 t throtl_pd_alloc\n")
		}
		fmt.Fprintf(&out, "%016x t some_function_%d\n", 1<<40+i, i)
	}
	return out.String()
}
