package host

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/agentbox/agentbox/pkg/blockdev"
	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

var (
	vda  = blockdev.Disk{Device: limits.Device{Major: 254}, Name: "vda"}
	sdb  = blockdev.Disk{Device: limits.Device{Major: 8, Minor: 16}, Name: "sdb"}
	nvme = blockdev.Disk{Device: limits.Device{Major: 259}, Name: "nvme0n1"}

	vda1 = limits.Device{Major: 254, Minor: 1} // a partition
	gone = limits.Device{Major: 7, Minor: 9}
)

// fakeDisks is a machine with some folders and disks. What it does not know is
// not there.
type fakeDisks struct {
	behind     map[string]blockdev.Backing
	nodes      map[string]blockdev.Disk
	whole      map[limits.Device]blockdev.Disk
	schedulers map[limits.Device]string
	asked      []string // paths that were looked at
}

func (f *fakeDisks) Behind(path string) blockdev.Backing {
	f.asked = append(f.asked, path)
	if b, ok := f.behind[path]; ok {
		return b
	}
	return blockdev.Backing{Reason: path + " is not there"}
}

func (f *fakeDisks) Whole(d limits.Device) (blockdev.Disk, string) {
	if disk, ok := f.whole[d]; ok {
		return disk, ""
	}
	return blockdev.Disk{}, "there is no device " + d.String()
}

func (f *fakeDisks) Node(path string) (blockdev.Disk, string) {
	f.asked = append(f.asked, path)
	if disk, ok := f.nodes[path]; ok {
		return disk, ""
	}
	return blockdev.Disk{}, path + " is not there"
}

func (f *fakeDisks) Scheduler(d limits.Device) string { return f.schedulers[d] }

func machine() *fakeDisks {
	on := func(filesystem, options string, disks ...blockdev.Disk) blockdev.Backing {
		return blockdev.Backing{Filesystem: filesystem, Options: options, Disks: disks}
	}
	return &fakeDisks{
		behind: map[string]blockdev.Backing{
			"/root":    on("ext4", "rw", vda),
			"/home":    on("ext4", "rw", vda),
			"/data":    on("xfs", "rw", vda),
			"/journal": on("ext4", "rw,data=journal", vda),
			"/fat":     on("vfat", "rw", sdb),
			"/mirror":  on("btrfs", "rw", sdb, nvme),
			"/tmp":     {Filesystem: "tmpfs", InMemory: true},
			"/nfs":     {Filesystem: "nfs4", Reason: "nfs4 is a network filesystem"},
		},
		nodes:      map[string]blockdev.Disk{"/dev/vdb": sdb, "/var/lib/docker": vda},
		whole:      map[limits.Device]blockdev.Disk{vda.Device: vda, vda1: vda, sdb.Device: sdb, nvme.Device: nvme},
		schedulers: map[limits.Device]string{vda.Device: "bfq", vda1: "bfq", sdb.Device: "mq-deadline", nvme.Device: "bfq"},
	}
}

// probeDisks probes a recorded tree for a container on that machine.
func probeDisks(t *testing.T, tree string, change func(root string), in Input) (limits.HostIO, *fakeDisks) {
	t.Helper()
	root := cgrouptest.Tree(t, tree)
	if change != nil {
		change(root)
	}
	disks := machine()
	p := prober{fs: cgroup.FS(root), in: in, access: access, disks: disks}
	if in.CgroupsPath == "" {
		p.in.CgroupsPath = docker
	}
	return p.probe().IO, disks
}

const (
	everything = "reads and all writes (buffered, fsync, direct)"
	flushed    = "reads, direct writes and what fsync flushes, but not what the kernel writes back later"
)

// block is a disk of the host as the container has it.
func block(d blockdev.Disk, filesystem, counted string, places ...string) limits.BlockDevice {
	return limits.BlockDevice{Device: d.Device, Name: d.Name, Places: places, Filesystem: filesystem, Counted: counted}
}

func TestDisks(t *testing.T) {
	place := func(path, source string) limits.Place {
		return limits.Place{Path: path, Source: source, Writable: true}
	}
	readOnly := func(path, source string) limits.Place { return limits.Place{Path: path, Source: source} }
	for _, c := range []struct {
		name   string
		change func(root string)
		in     Input
		want   limits.HostIO
		asked  []string // paths that are looked at, in order
	}{
		{
			name: "one disk",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/root")}}},
			want: limits.HostIO{Disks: []limits.BlockDevice{block(vda, "ext4", everything, "/")}}, asked: []string{"/root"},
		},
		{
			name: "places on the same disk",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/root"), readOnly("/home", "/home"), place("/data", "/data")}}},
			want: limits.HostIO{Disks: []limits.BlockDevice{block(vda, "ext4, xfs", everything, "/", "/home", "/data")}}, asked: []string{"/root", "/home", "/data"},
		},
		{
			name: "a file system whose writes are not all counted",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/mirror"), place("/fat", "/fat"), place("/again", "/fat")}}},
			want: limits.HostIO{Disks: []limits.BlockDevice{
				block(sdb, "btrfs, vfat", everything+"; "+flushed+" on vfat", "/", "/fat", "/again"), block(nvme, "btrfs", everything, "/"),
			}},
			asked: []string{"/mirror", "/fat", "/fat"},
		},
		{
			name:  "in memory",
			in:    Input{Request: &limits.Request{Places: []limits.Place{place("/", "/tmp")}}},
			asked: []string{"/tmp"},
		},
		{
			name: "no disk",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/root"), place("/nfs", "/nfs"), place("/new", "/new")}}},
			want: limits.HostIO{
				Disks:    []limits.BlockDevice{block(vda, "ext4", everything, "/")},
				Diskless: []limits.Diskless{{Place: "/nfs", Reason: "nfs4 is a network filesystem"}, {Place: "/new", Reason: "/new is not there"}},
			},
			asked: []string{"/root", "/nfs", "/new"},
		},
		{
			name:  "no disk that is written to",
			in:    Input{Request: &limits.Request{Places: []limits.Place{readOnly("/nfs", "/nfs")}}},
			asked: []string{"/nfs"},
		},
		{
			name: "raw disks",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/root")}, RawDisks: []limits.RawDisk{{Path: "/dev/a", Device: vda1}, {Path: "/dev/b", Device: sdb.Device}, {Path: "/dev/c", Device: gone}}}},
			want: limits.HostIO{
				Disks:    []limits.BlockDevice{block(vda, "ext4", everything, "/", "/dev/a"), block(sdb, "", "", "/dev/b")},
				Diskless: []limits.Diskless{{Place: "/dev/c", Reason: "there is no device 7:9"}},
			},
			asked: []string{"/root"},
		},
		{
			name: "named by the policy",
			in: Input{
				IODevices: []string{"/dev/vdb", "/var/lib/docker", "/dev/vdb", "/dev/none"},
				Request:   &limits.Request{Places: []limits.Place{place("/", "/nfs")}, RawDisks: []limits.RawDisk{{Path: "/dev/c", Device: gone}}},
			},
			want: limits.HostIO{
				Disks:    []limits.BlockDevice{block(sdb, "", "", "/dev/vdb"), block(vda, "", "", "/var/lib/docker")},
				Diskless: []limits.Diskless{{Place: "/dev/none (io_device)", Reason: "/dev/none is not there"}},
			},
			asked: []string{"/dev/vdb", "/var/lib/docker", "/dev/vdb", "/dev/none"},
		},
		{
			name: "asked for by number",
			in: Input{Request: &limits.Request{Places: []limits.Place{place("/", "/root")}, Devices: map[limits.Device]limits.Set{
				vda1: {}, nvme.Device: {}, gone: {},
			}}},
			want: limits.HostIO{
				Disks: []limits.BlockDevice{block(vda, "ext4", everything, "/")},
				Asked: map[limits.Device]limits.AskedDisk{
					vda1:        {Disk: block(vda, "", "", "device 254:1 of the spec")},
					nvme.Device: {Disk: block(nvme, "", "", "device 259:0 of the spec")},
					gone:        {Disk: limits.BlockDevice{Places: []string{"device 7:9 of the spec"}}, Reason: "there is no device 7:9"},
				},
			},
			asked: []string{"/root"},
		},

		// Nobody has looked, which is not the same as no disk.
		{name: "no container yet", in: Input{IODevices: []string{"/dev/vdb"}}, want: limits.HostIO{Unknown: true}},
		{
			name:   "no io controller",
			change: func(root string) { setControllers(t, root, "cpu memory pids\n") },
			in:     Input{Request: &limits.Request{Places: []limits.Place{place("/", "/root")}, Devices: map[limits.Device]limits.Set{vda1: {}}}},
			want:   limits.HostIO{Unknown: true},
		},
		{
			name: "no cgroups",
			in:   Input{NoCgroups: true, Request: &limits.Request{Places: []limits.Place{place("/", "/root")}}},
			want: limits.HostIO{Unknown: true},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, disks := probeDisks(t, "v2", c.change, c.in)
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
			if !slices.Equal(disks.asked, c.asked) {
				t.Errorf("looked at %q, want %q", disks.asked, c.asked)
			}
		})
	}
}

// A machine that cannot limit I/O does not pass in strict mode as one whose
// container has no disks.
func TestStrictWithoutIO(t *testing.T) {
	root := cgrouptest.Tree(t, "v2")
	setControllers(t, root, "cpu memory pids\n")
	req := limits.Request{Places: []limits.Place{{Path: "/", Source: "/root", Writable: true}}}
	p := prober{fs: cgroup.FS(root), in: Input{CgroupsPath: docker, Request: &req}, access: access, disks: machine()}
	policy := limits.DefaultPolicy()
	policy.Mode, policy.StrictRequire = limits.ModeStrict, []limits.Dimension{limits.IO}
	if plan, err := limits.Resolve(policy, req, p.probe()); err == nil {
		t.Errorf("accepted: %+v", plan.IO)
	}
}

// What is said of ext4 on v1 was compared with a Linux 6.18: with the
// blkio.throttle.io_service_bytes of a cgroup after dd with conv=fsync,
// oflag=direct, oflag=dsync and none of these, without and with data=journal.
func TestCounted(t *testing.T) {
	const (
		controllers = "sys/fs/cgroup/cgroup.controllers"
		osrelease   = "proc/sys/kernel/osrelease"
		journal     = "reads and what fsync flushes, on ext4 with data=journal, but not what the kernel writes back later"
		noMemory    = "reads and direct writes, but no other writes, without the memory controller"
	)
	for _, c := range []struct {
		name, tree          string
		file, content       string // of the tree
		filesystem, options string
		want                string
	}{
		{"ext4", "v2", "", "", "ext4", "rw,errors=remount-ro", everything},
		{"ext2", "v2", "", "", "ext2", "rw", everything},
		{"ext3", "v2", "", "", "ext3", "rw", everything},
		{"btrfs", "v2", "", "", "btrfs", "rw,compress=zstd:1", everything},
		{"f2fs", "v2", "", "", "f2fs", "rw", everything},
		{"ext4 that journals data", "v2", "", "", "ext4", "rw,data=journal", journal},
		{"ext4 with another option like it", "v2", "", "", "ext4", "rw,data=journal_async", everything},
		{"another file system with that option", "v2", "", "", "reiserfs", "rw,data=journal", flushed + " on reiserfs"},
		{"xfs", "v2", "", "", "xfs", "rw,attr2", everything},
		{"xfs 5.3", "v2", osrelease, "5.3.0-1-amd64\n", "xfs", "rw", everything},
		{"xfs 5.2", "v2", osrelease, "5.2.0-1-amd64\n", "xfs", "rw", flushed + " on xfs before Linux 5.3"},
		{"xfs on an unknown kernel", "v2", osrelease, "\n", "xfs", "rw", flushed + " on xfs before Linux 5.3"},
		{"vfat", "v2", "", "", "vfat", "rw", flushed + " on vfat"},
		{"not known", "v2", "", "", "", "", ""},
		{"no memory controller", "v2", controllers, "cpu io pids\n", "ext4", "rw", noMemory},
		{"v1", "v1", "", "", "ext4", "rw", flushed + " on cgroup v1"},
		{"v1 xfs", "v1", "", "", "xfs", "rw", flushed + " on cgroup v1"},
		{"v1 that journals data", "v1", "", "", "ext4", "rw,data=journal", journal},
		{"hybrid", "hybrid", "", "", "btrfs", "rw", flushed + " on cgroup v1"},
		{"v1 not known", "v1", "", "", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, c.tree)
			switch c.file {
			case "":
			case controllers:
				setControllers(t, root, c.content)
			default:
				cgrouptest.Write(t, root, c.file, c.content)
			}
			disks := &fakeDisks{behind: map[string]blockdev.Backing{
				"/root": {Filesystem: c.filesystem, Options: c.options, Disks: []blockdev.Disk{vda}},
			}}
			req := &limits.Request{Places: []limits.Place{{Path: "/", Source: "/root"}}}
			p := prober{fs: cgroup.FS(root), in: Input{CgroupsPath: docker, Request: req}, access: access, disks: disks}
			if got := p.probe().IO.Disks; len(got) != 1 || got[0].Counted != c.want {
				t.Errorf("got %+v\nwant %q", got, c.want)
			}
		})
	}
}

func TestWeights(t *testing.T) {
	const (
		slice = "sys/fs/cgroup/system.slice/"
		blkio = "sys/fs/cgroup/blkio/docker/"
	)
	tree := func(pairs ...string) map[string]string { // content; "-" removes the file
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	all := []limits.Device{vda.Device, sdb.Device, vda1, gone, nvme.Device}
	bfqOnes := []limits.Device{vda.Device, nvme.Device}
	v1 := limits.Mechanism{Name: "blkio.weight", Enforcer: limits.EnforcerKernel}
	v2 := limits.Mechanism{Name: "io.weight", Enforcer: limits.EnforcerKernel}
	no := func(name, reason string) limits.Mechanism {
		return limits.Mechanism{Name: name, Enforcer: limits.EnforcerNone, Reason: reason}
	}
	noV2 := no("io.weight", "no cgroup here has io.weight or io.bfq.weight")
	bfqV2 := slice + "io.bfq.weight"
	weightV1, bfqV1 := blkio+"blkio.weight", blkio+"blkio.bfq.weight"
	const osrelease = "proc/sys/kernel/osrelease"
	for _, c := range []struct {
		name, tree string
		files      map[string]string
		req        limits.Request
		weight     limits.Mechanism
		disks      []limits.Device
		kept       []string
	}{
		{name: "iocost", tree: "v2", req: limits.Request{IOWeight: true}, weight: v2},
		{name: "iocost, single disks", tree: "v2", req: limits.Request{IOWeightDevices: all}, weight: v2},
		{name: "bfq", tree: "v2", files: tree(bfqV2, "default 100\n"), req: limits.Request{IOWeight: true}, weight: v2},
		{name: "bfq, single disks", tree: "v2", files: tree(bfqV2, "default 100\n", slice+"io.weight", "-"), req: limits.Request{IOWeightDevices: all}, weight: v2, disks: bfqOnes},
		{name: "bfq before 5.4", tree: "v2", files: tree(bfqV2, "100\n", osrelease, "5.3.0\n"), req: limits.Request{IOWeightDevices: all}, weight: v2},
		{name: "neither", tree: "v2", files: tree(slice+"io.weight", "-"), req: limits.Request{IOWeight: true}, weight: noV2},
		{name: "no cgroup to look at", tree: "v2-bare", req: limits.Request{IOWeight: true, IOFiles: []string{"io.latency"}}, weight: noV2},
		{name: "files", tree: "v2", files: tree(slice+"io.latency", ""), req: limits.Request{IOFiles: []string{"io.latency", "io.cost.qos", "io.weight"}}, weight: v2, kept: []string{"io.latency", "io.weight"}},
		{name: "nothing wanted", tree: "v2", files: tree(bfqV2, "default 100\n")},
		{name: "no controller", tree: "v2", files: tree("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n", slice+"cgroup.subtree_control", "cpu memory pids\n"), req: limits.Request{IOWeight: true}},

		{name: "v1 cfq", tree: "v1", files: tree(weightV1, "500\n"), req: limits.Request{IOWeight: true, IOWeightDevices: all}, weight: v1},
		{name: "v1 bfq", tree: "v1", files: tree(bfqV1, "100\n", osrelease, "5.10.0\n"), req: limits.Request{IOWeightDevices: all}, weight: v1, disks: bfqOnes},
		{name: "v1 bfq before 5.4", tree: "v1", files: tree(bfqV1, "100\n"), req: limits.Request{IOWeightDevices: all}, weight: v1},
		{name: "v1 both", tree: "v1", files: tree(weightV1, "500\n", bfqV1, "100\n", osrelease, "5.10.0\n"), req: limits.Request{IOWeightDevices: all}, weight: v1},
		{
			name: "v1 in the root, which has only the counters of bfq", tree: "v1", req: limits.Request{IOWeightDevices: all}, weight: v1, disks: bfqOnes,
			files: tree(osrelease, "5.10.0\n", blkio, "-", "sys/fs/cgroup/blkio/blkio.bfq.io_service_bytes", "Total 0\n"),
		},
		{name: "v1 neither", tree: "v1", req: limits.Request{IOWeight: true}, weight: no("blkio.weight", "/sys/fs/cgroup/blkio/docker/0123456789ab has neither blkio.weight nor blkio.bfq.weight")},
		{name: "v1 nothing wanted", tree: "v1", files: tree(weightV1, "500\n"), req: limits.Request{IOFiles: []string{"io.latency"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := Input{CgroupsPath: docker, Request: &c.req}
			if c.tree == "v2" {
				in.CgroupsPath = "/system.slice/x"
			}
			if c.files != nil && c.tree == "v1" {
				in.CgroupsPath = "/docker/x"
			}
			got, _ := probeDisks(t, c.tree, func(root string) {
				for _, path := range slices.Sorted(maps.Keys(c.files)) {
					if content := c.files[path]; content == "-" {
						cgrouptest.Remove(t, root, path)
					} else {
						cgrouptest.Write(t, root, path, content)
					}
				}
			}, in)
			if got.Weight != c.weight {
				t.Errorf("weight %+v\nwant %+v", got.Weight, c.weight)
			}
			if !slices.Equal(got.WeightDisks, c.disks) || !slices.Equal(got.Files, c.kept) {
				t.Errorf("disks %v, want %v; files %q, want %q", got.WeightDisks, c.disks, got.Files, c.kept)
			}
		})
	}
}

// TestProbeLiveDisks finds the disk of this machine's own root, through the real
// finder.
func TestProbeLiveDisks(t *testing.T) {
	h := Probe(cgroup.Host, Input{CgroupsPath: docker, Request: &limits.Request{Places: []limits.Place{{Path: "/", Source: "/", Writable: true}}}})
	t.Logf("%+v", h.IO)
	limited := h.Mechanisms[limits.KeyIOReadBPS].Enforcer == limits.EnforcerKernel
	if h.IO.Unknown == limited {
		t.Errorf("unknown is %t, io is enforced by %+v", h.IO.Unknown, h.Mechanisms[limits.KeyIOReadBPS])
	}
	for _, disk := range h.IO.Disks {
		if disk.Device == (limits.Device{}) || disk.Name == "" || disk.Filesystem == "" || disk.Counted == "" || !slices.Equal(disk.Places, []string{"/"}) {
			t.Errorf("%+v", disk)
		}
	}
}
