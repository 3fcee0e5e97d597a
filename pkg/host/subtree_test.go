package host

import (
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

// group is a cgroup with the files that matter here, as the kernel shows them.
type group struct {
	path    string // below the mount point
	kind    string // cgroup.type; empty: the root
	control string // cgroup.subtree_control
	procs   string // cgroup.procs
	events  string // cgroup.events
}

func (g group) write(t *testing.T, root string) {
	t.Helper()
	folder := "sys/fs/cgroup" + g.path
	cgrouptest.Write(t, root, folder+fileControl, g.control)
	cgrouptest.Write(t, root, folder+fileProcs, g.procs)
	if g.kind != "" {
		cgrouptest.Write(t, root, folder+fileType, g.kind+"\n")
		cgrouptest.Write(t, root, folder+fileEvents, g.events)
	}
}

// TestObstacles has what was seen with Linux 7.2, runc 1.3.6 and crun 1.28: what
// is said to be missing made that runtime fail, all else started with the limit
// set.
func TestObstacles(t *testing.T) {
	const (
		all       = "cpu io memory pids\n"
		populated = "populated 1\nfrozen 0\n"
		empty     = "populated 0\nfrozen 0\n"
		off       = "cannot be turned on in /sys/fs/cgroup"
		useless   = "cannot be used below /sys/fs/cgroup"
		move      = ", which has processes of its own: move them into a cgroup below it"
	)
	isThreaded := func(kind string) string {
		todo := "place the container in another cgroup (cgroupsPath)"
		if kind == "domain threaded" {
			todo = "move its processes into a cgroup below it, or " + todo
		}
		return ", which is threaded (its cgroup.type is " + kind + "): " + todo
	}
	// domains is a reason for memory and io.
	domains := func(reason string, more ...string) map[string]string {
		want := map[string]string{"memory": reason, "io": reason}
		for i := 0; i < len(more); i += 2 {
			want[more[i]] = more[i+1]
		}
		return want
	}
	everywhere := func(reason string) map[string]string { return domains(reason, "pids", reason, "cpu", reason) }
	var (
		root     = group{control: all, procs: "2\n"}
		busy     = group{"/par", "domain", "", "17\n", populated}
		busyRoot = group{"", "domain", "", "17\n0\n", populated}
		// busyRan is busy after a low-level runtime has turned on what it could.
		busyRan = group{"/par", "domain threaded", "cpu pids\n", "17\n", populated}
		around  = group{"/par", "domain threaded", "", "", empty}
		thread  = group{"/par/t", "threaded", "", "", empty}
	)
	for _, c := range []struct {
		name   string
		groups []group
		path   string // cgroupsPath
		runc   map[string]string
		crun   map[string]string
	}{
		{"an empty parent", []group{root, {"/par", "domain", "", "", empty}}, "/par/x", nil, nil},
		{"an empty parent that passes all on", []group{root, {"/par", "domain", all, "", populated}}, "/par/x", nil, nil},
		{"the root with processes of its own", []group{{control: "", procs: "2\n3\n"}}, "/x", nil, nil},
		{
			"a parent with processes",
			[]group{root, busy},
			"/par/x",
			domains(off+"/par"+move, "cpu", useless+"/par"+move), domains(off + "/par" + move),
		},
		{
			"a parent with processes, and a folder to be made",
			[]group{root, busy},
			"/par/new/x",
			domains(off+"/par"+move, "cpu", useless+"/par"+move),
			domains(off+"/par"+move, "cpu", useless+"/par"+move, "pids", useless+"/par"+move),
		},
		{
			"a parent with processes, further up",
			[]group{root, busy, {"/par/a", "domain", "", "", empty}},
			"/par/a/x",
			domains(off+"/par"+move, "cpu", useless+"/par"+move),
			domains(off+"/par"+move, "cpu", useless+"/par"+move, "pids", useless+"/par"+move),
		},
		{
			"a parent with processes, beside another cgroup",
			[]group{root, busy, {"/par/sib", "domain", "", "18\n", populated}},
			"/par/x",
			everywhere(off + "/par" + move), everywhere(off + "/par" + move),
		},
		{
			"a parent with processes, beside an empty cgroup",
			[]group{root, busy, {"/par/sib", "domain", "", "", empty}},
			"/par/x",
			domains(off+"/par"+move, "cpu", useless+"/par"+move), domains(off + "/par" + move),
		},
		{
			"a parent with processes, beside threads",
			[]group{root, busyRan, {"/par/t", "threaded", "", "", populated}},
			"/par/x",
			domains(off+"/par"+isThreaded("domain threaded"), "cpu", useless+"/par"+isThreaded("domain threaded")),
			domains(off + "/par" + isThreaded("domain threaded")),
		},
		{
			"the root of threads",
			[]group{root, around, thread},
			"/par/x",
			domains(off+"/par"+isThreaded("domain threaded"), "cpu", useless+"/par"+isThreaded("domain threaded")),
			domains(off + "/par" + isThreaded("domain threaded")),
		},
		{
			"among threads",
			[]group{root, around, thread},
			"/par/t/x",
			domains(off+"/par"+isThreaded("domain threaded"), "cpu", useless+"/par"+isThreaded("domain threaded")),
			domains(off + "/par" + isThreaded("domain threaded")),
		},
		{
			"among threads, and a folder to be made",
			[]group{root, around, thread},
			"/par/t/new/x",
			domains(off+"/par"+isThreaded("domain threaded"), "cpu", useless+"/par"+isThreaded("domain threaded")),
			domains(off+"/par"+isThreaded("domain threaded"), "cpu", useless+"/par"+isThreaded("domain threaded"), "pids", useless+"/par"+isThreaded("domain threaded")),
		},
		{
			"among threads that the root has",
			[]group{root, {"/t", "threaded", "", "", empty}},
			"/t/x",
			domains(off+"/t"+isThreaded("threaded"), "cpu", useless+"/t"+isThreaded("threaded")), domains(off + "/t" + isThreaded("threaded")),
		},
		{
			"in what nobody made threaded yet",
			[]group{root, around, thread, {"/par/inv", "domain invalid", "", "", empty}},
			"/par/inv/x",
			domains(off+"/par"+isThreaded("domain threaded"), "cpu", useless+"/par"+isThreaded("domain threaded")),
			domains(off+"/par"+isThreaded("domain threaded"), "cpu", useless+"/par"+isThreaded("domain threaded"), "pids", useless+"/par"+isThreaded("domain threaded")),
		},
		{
			"a cgroup namespace with a process in its root",
			[]group{busyRoot},
			"/x",
			domains(off+move, "cpu", useless+move), domains(off + move),
		},
		{
			"the same, and a folder to be made",
			[]group{busyRoot},
			"/docker/x",
			domains(off+move, "cpu", useless+move), domains(off+move, "cpu", useless+move, "pids", useless+move),
		},
		{"a cgroup namespace with nothing in its root", []group{{"", "domain", "", "", populated}}, "/x", nil, nil},
	} {
		for runtime, want := range map[string]map[string]string{"runc": c.runc, "/usr/bin/crun-1.28": c.crun} {
			t.Run(c.name+"/"+runtime, func(t *testing.T) {
				dir := t.TempDir()
				cgrouptest.Write(t, dir, "sys/fs/cgroup/cgroup.controllers", all)
				for _, g := range c.groups {
					g.write(t, dir)
				}
				p := prober{fs: cgroup.FS(dir), in: Input{CgroupsPath: c.path, Runtime: runtime}, access: access}
				got := p.reasons(t)
				for controller, reason := range want {
					want[controller] = "the " + controller + " controller " + reason
				}
				if !maps.Equal(got, want) {
					t.Errorf("%v\nwant %v", got, want)
				}
			})
		}
	}
}

func (p *prober) reasons(t *testing.T) map[string]string {
	t.Helper()
	at, ok := p.ancestor(cgroup.MountPoint, p.placeV2())
	if !ok {
		t.Fatal("no ancestor")
	}
	reasons, err := p.without(at)
	if err != nil {
		t.Fatal(err)
	}
	return reasons
}

// TestObstaclesReachTheMechanisms: all that hangs on a controller says why.
func TestObstaclesReachTheMechanisms(t *testing.T) {
	root := cgrouptest.Tree(t, "v2-7.2")
	group{"/par", "domain", "", "17\n", "populated 1\n"}.write(t, root)
	got := mechanisms(Probe(cgroup.FS(root), Input{CgroupsPath: "/par/x", Runtime: "runc"}))
	for key, controller := range map[string]string{"memory": "memory", "memory_high": "memory", "swap": "memory", "group_kill": "memory", "io_read_bps": "io", "cpus": "cpu"} {
		if text := got[limits.Key(key)]; !strings.HasPrefix(text, "-the "+controller+" controller cannot be ") || !strings.Contains(text, "/sys/fs/cgroup/par, which has processes") {
			t.Errorf("%s: %q", key, text)
		}
	}
	if got["pids"] != filePidsMax {
		t.Errorf("pids: %q", got["pids"])
	}
}

// TestManyChildren: of a cgroup with processes and very many children, it is not
// looked at all of them.
func TestManyChildren(t *testing.T) {
	root := cgrouptest.Tree(t, "v2-7.2")
	group{"/par", "domain", "", "17\n", "populated 1\n"}.write(t, root)
	for i := range maxChildren + 1 {
		group{"/par/" + strconv.Itoa(i), "domain", "", "", "populated 0\n"}.write(t, root)
	}
	p := prober{fs: cgroup.FS(root), access: access}
	if !p.populatedBelow("/sys/fs/cgroup/par") {
		t.Error("none of very many is populated")
	}
}

// TestLittleIsLookedAt: where all is passed on, one file tells; the folders above
// matter only where something has to be turned on there.
func TestLittleIsLookedAt(t *testing.T) {
	root := cgrouptest.Tree(t, "v2-7.2")
	group{"/a", "domain", "", "17\n", "populated 1\n"}.write(t, root) // in the way, if anybody looked
	group{"/a/b", "domain", "cpu io memory pids\n", "18\n", "populated 1\n"}.write(t, root)
	cgrouptest.Remove(t, root, "sys/fs/cgroup/cgroup.controllers")
	p := prober{fs: cgroup.FS(root), in: Input{CgroupsPath: "/a/b/x"}, access: access}
	if got := p.reasons(t); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestAncestor(t *testing.T) {
	root := cgrouptest.Tree(t, "v2")
	const slice = "/sys/fs/cgroup/system.slice"
	long := strings.Repeat("/a", 100_000)
	for _, c := range []struct {
		name, path string
		systemd    bool
		want       place
	}{
		{"the root", "/x", false, place{cgroup.MountPoint, 1}},
		{"below a slice", "/system.slice/x", false, place{slice, 1}},
		{"two to be made", "/system.slice/x/y", false, place{slice, 2}},
		{"all there", "/system.slice", false, place{slice, 0}},
		{"beside this process", "", false, place{slice, 1}},
		{"systemd", "system.slice:docker:x", true, place{slice, 1}},
		{"a slice that is not there", "a-b.slice:docker:x", true, place{cgroup.MountPoint, 3}},
		{"a very long one", long, false, place{cgroup.MountPoint, 100_000}},
		{"a very long name", "/system.slice/" + long[1:], false, place{slice, 100_000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			looks := 0
			p := prober{fs: cgroup.FS(root), in: Input{CgroupsPath: c.path, Systemd: c.systemd}, access: func(path string, mode uint32) error {
				looks++
				return access(path, mode)
			}}
			got, ok := p.ancestor(cgroup.MountPoint, p.placeV2())
			if !ok || got != c.want {
				t.Errorf("%+v, %t; want %+v", got, ok, c.want)
			}
			if looks > 4 {
				t.Errorf("%d looks", looks)
			}
		})
	}
}

// TestNothingIsWaitedFor: a pipe in place of a file or a folder is an answer at
// once.
func TestNothingIsWaitedFor(t *testing.T) {
	for _, name := range []string{symbolsFile, "/proc/swaps", "/proc/self/cgroup", "/proc/self/mountinfo", "/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/cgroup.subtree_control", "/sys/fs/cgroup/job"} {
		t.Run(name, func(t *testing.T) {
			root := cgrouptest.Tree(t, "v2-bare")
			cgrouptest.Write(t, root, name, "")
			cgrouptest.Remove(t, root, name)
			if err := unix.Mkfifo(root+name, 0o644); err != nil {
				t.Fatal(err)
			}
			inTime(t, func() { Probe(cgroup.FS(root), Input{CgroupsPath: docker, Notes: t.TempDir()}) })
		})
	}
	t.Run("a folder", func(t *testing.T) {
		p := prober{fs: cgroup.FS(t.TempDir())}
		if err := unix.Mkfifo(p.fs.Path("/x"), 0o644); err != nil {
			t.Fatal(err)
		}
		inTime(t, func() { p.subfolders("/x", 1) })
	})
}

func inTime(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("it waits")
	}
}

func FuzzParseSet(f *testing.F) {
	f.Add([]byte("cpuset cpu io memory hugetlb pids rdma misc\n"))
	f.Add([]byte("memory\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		got := parseSet(data)
		for i, controller := range wanted {
			if has := strings.Contains(" "+strings.Join(strings.Fields(string(data)), " ")+" ", " "+controller+" "); has != (got&(1<<i) != 0) {
				t.Errorf("%q: %s is %t", data, controller, has)
			}
		}
	})
}
