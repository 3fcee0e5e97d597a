package host

import (
	"errors"
	"fmt"
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
	below      map[string][]blockdev.Submount
	mounted    map[string]blockdev.Backing // by "TYPE SOURCE"
	devices    []limits.Device
	broken     error // of Devices
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

func (f *fakeDisks) Below(path string) []blockdev.Submount {
	f.asked = append(f.asked, path+"/...")
	return f.below[path]
}

func (f *fakeDisks) Mounted(fstype, source string) blockdev.Backing {
	f.asked = append(f.asked, fstype+" "+source)
	if b, ok := f.mounted[fstype+" "+source]; ok {
		return b
	}
	return blockdev.Backing{Filesystem: fstype, Reason: source + " is not there"}
}

func (f *fakeDisks) Devices() ([]limits.Device, error) {
	f.asked = append(f.asked, "all devices")
	return f.devices, f.broken
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
			"/live":    {Filesystem: "tmpfs", InMemory: true, Lower: []blockdev.Disk{vda}},
			"/images":  {Filesystem: "ext4", Disks: []blockdev.Disk{vda}, Lower: []blockdev.Disk{sdb}},
			"/mixed":   {Filesystem: "nfs4", Reason: "nfs4 is a network filesystem", Lower: []blockdev.Disk{sdb}},
			"/dev/sdb": {Disks: []blockdev.Disk{sdb}},
			"/nfs":     {Filesystem: "nfs4", Reason: "nfs4 is a network filesystem"},
		},
		below: map[string][]blockdev.Submount{"/home": {
			{Path: "joe", Backing: on("xfs", "rw", sdb)},
			{Path: "joe/mnt", Backing: blockdev.Backing{Filesystem: "nfs4", Reason: "nfs4 is a network filesystem"}},
			{Path: "cd", ReadOnly: true, Backing: blockdev.Backing{Filesystem: "cifs", Reason: "cifs is a network filesystem"}},
			{Path: "run", Backing: blockdev.Backing{Filesystem: "tmpfs", InMemory: true}},
		}},
		mounted: map[string]blockdev.Backing{
			"ext4 /dev/vdb": on("ext4", "", sdb),
			"tmpfs /tmpfs":  {Filesystem: "tmpfs", InMemory: true},
		},
		devices:    []limits.Device{vda.Device, vda1, sdb.Device, nvme.Device},
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
	allCounted = "reads and all writes (buffered, fsync, direct)"
	flushed    = "reads, direct writes and what fsync flushes, but not what the kernel writes back later"
)

// block is a disk of the host as the container has it.
func block(d blockdev.Disk, filesystem, counted string, places ...string) limits.BlockDevice {
	return limits.BlockDevice{Device: d.Device, Name: d.Name, Places: places, Filesystem: filesystem, Counted: counted}
}

func TestDisks(t *testing.T) {
	const every = limits.AnyNumber
	const reads = "reads, of a layer that takes no writes"
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
			want: limits.HostIO{Disks: []limits.BlockDevice{block(vda, "ext4", allCounted, "/")}}, asked: []string{"/root"},
		},
		{
			name: "places on the same disk",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/root"), readOnly("/home", "/home"), place("/data", "/data")}}},
			want: limits.HostIO{Disks: []limits.BlockDevice{block(vda, "ext4, xfs", allCounted, "/", "/home", "/data")}}, asked: []string{"/root", "/home", "/data"},
		},
		{
			name: "a file system whose writes are not all counted",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/mirror"), place("/fat", "/fat"), place("/again", "/fat")}}},
			want: limits.HostIO{Disks: []limits.BlockDevice{
				block(sdb, "btrfs, vfat", allCounted+"; "+flushed+" on vfat", "/", "/fat", "/again"), block(nvme, "btrfs", allCounted, "/"),
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
				Disks:    []limits.BlockDevice{block(vda, "ext4", allCounted, "/")},
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
				Disks:    []limits.BlockDevice{block(vda, "ext4", allCounted, "/", "/dev/a"), block(sdb, "", "", "/dev/b")},
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
				Disks: []limits.BlockDevice{block(vda, "ext4", allCounted, "/")},
				Asked: map[limits.Device]limits.AskedDisk{
					vda1:        {Disk: block(vda, "", "", "device 254:1 of the spec")},
					nvme.Device: {Disk: block(nvme, "", "", "device 259:0 of the spec")},
					gone:        {Disk: limits.BlockDevice{Places: []string{"device 7:9 of the spec"}}, Reason: "there is no device 7:9"},
				},
			},
			asked: []string{"/root"},
		},

		{
			name: "a layer in memory over one on a disk",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/live")}}},
			want: limits.HostIO{Disks: []limits.BlockDevice{block(vda, "", reads, "/")}}, asked: []string{"/live"},
		},
		{
			name: "layers that are only read add to what is known of a disk only if nothing is",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/live"), place("/images", "/images"), place("/fat", "/fat"), place("/live", "/live")}}},
			want: limits.HostIO{Disks: []limits.BlockDevice{
				block(vda, "ext4", allCounted, "/", "/images", "/live"), block(sdb, "vfat", flushed+" on vfat", "/images", "/fat"),
			}},
			asked: []string{"/live", "/images", "/fat", "/live"},
		},
		{
			name: "a layer on a network over one on a disk",
			in:   Input{Request: &limits.Request{Places: []limits.Place{place("/", "/mixed"), readOnly("/again", "/mixed")}}},
			want: limits.HostIO{
				Disks:    []limits.BlockDevice{block(sdb, "", reads, "/", "/again")},
				Diskless: []limits.Diskless{{Place: "/", Reason: "nfs4 is a network filesystem"}},
			},
			asked: []string{"/mixed", "/mixed"},
		},
		{
			name: "mounts of the container's own",
			in: Input{Request: &limits.Request{Places: []limits.Place{
				{Path: "/v", Source: "/dev/vdb", Type: "ext4"},
				{Path: "/t", Source: "/tmpfs", Type: "tmpfs", Writable: true},
				{Path: "/x", Source: "/none", Type: "xfs", Writable: true},
				{Path: "/y", Source: "/none", Type: "xfs"},
			}}},
			want: limits.HostIO{
				Disks:    []limits.BlockDevice{block(sdb, "ext4", allCounted, "/v")},
				Diskless: []limits.Diskless{{Place: "/x", Reason: "/none is not there"}},
			},
			asked: []string{"ext4 /dev/vdb", "tmpfs /tmpfs", "xfs /none", "xfs /none"},
		},
		{
			name: "a bind mount of a device node",
			in:   Input{Request: &limits.Request{Places: []limits.Place{readOnly("/disk", "/dev/sdb")}}},
			want: limits.HostIO{Disks: []limits.BlockDevice{block(sdb, "", "", "/disk")}}, asked: []string{"/dev/sdb"},
		},
		{
			name: "what is mounted below comes with a recursive bind mount, and can be written",
			in:   Input{Request: &limits.Request{Places: []limits.Place{{Path: "/h", Source: "/home", Recursive: true}}}},
			want: limits.HostIO{
				Disks:    []limits.BlockDevice{block(vda, "ext4", allCounted, "/h"), block(sdb, "xfs", allCounted, "/h/joe")},
				Diskless: []limits.Diskless{{Place: "/h/joe/mnt", Reason: "nfs4 is a network filesystem"}},
			},
			asked: []string{"/home", "/home/..."},
		},
		{
			name:  "unless all is read only",
			in:    Input{Request: &limits.Request{Places: []limits.Place{{Path: "/h", Source: "/home", Recursive: true, RecursiveReadOnly: true}}}},
			want:  limits.HostIO{Disks: []limits.BlockDevice{block(vda, "ext4", allCounted, "/h"), block(sdb, "xfs", allCounted, "/h/joe")}},
			asked: []string{"/home", "/home/..."},
		},
		{
			name: "privileged",
			in: Input{Request: &limits.Request{
				Places: []limits.Place{place("/", "/root")}, RawDisks: []limits.RawDisk{{Path: "/dev/b", Device: sdb.Device}},
				DeviceRules: []limits.DeviceRule{{Allow: true, Device: limits.Device{Major: every, Minor: every}}},
			}},
			want: limits.HostIO{Disks: []limits.BlockDevice{
				block(vda, "ext4", allCounted, "/", "device 254:0", "device 254:1"), block(sdb, "", "", "/dev/b"), block(nvme, "", "", "device 259:0"),
			}},
			asked: []string{"/root", "all devices"},
		},
		{
			name: "devices that may be opened",
			in: Input{Request: &limits.Request{DeviceRules: []limits.DeviceRule{
				{Device: limits.Device{Major: every, Minor: every}}, {Allow: true, Device: sdb.Device}, {Allow: true, Device: gone}, {Allow: true, Device: sdb.Device},
			}}},
			want: limits.HostIO{
				Disks:    []limits.BlockDevice{block(sdb, "", "", "device 8:16")},
				Diskless: []limits.Diskless{{Place: "device 7:9", Reason: "there is no device 7:9"}},
			},
		},
		{
			name:  "all devices of a kind, and those with some minor number",
			in:    Input{Request: &limits.Request{DeviceRules: []limits.DeviceRule{{Allow: true, Device: limits.Device{Major: 8, Minor: every}}, {Allow: true, Device: limits.Device{Major: every, Minor: 1}}}}},
			want:  limits.HostIO{Disks: []limits.BlockDevice{block(vda, "", "", "device 254:1"), block(sdb, "", "", "device 8:16")}},
			asked: []string{"all devices"},
		},
		{
			name: "the last rule about a device decides",
			in: Input{Request: &limits.Request{DeviceRules: []limits.DeviceRule{
				{Allow: true, Device: limits.Device{Major: every, Minor: every}},
				{Device: limits.Device{Major: 8, Minor: every}},
				{Device: vda.Device},
				{Device: vda1},
				{Allow: true, Device: vda.Device},
				{Allow: true, Device: limits.Device{Major: 8, Minor: 17}},
				{Device: limits.Device{Major: 8, Minor: 17}},
				{Device: limits.Device{Major: every, Minor: 7}},
			}}},
			want:  limits.HostIO{Disks: []limits.BlockDevice{block(vda, "", "", "device 254:0"), block(nvme, "", "", "device 259:0")}},
			asked: []string{"all devices"},
		},
		{
			name: "what was allowed is all taken away again",
			in:   Input{Request: &limits.Request{DeviceRules: []limits.DeviceRule{{Allow: true, Device: sdb.Device}, {Device: limits.Device{Major: every, Minor: every}}}}},
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

// Where the devices of the machine cannot be listed, a container that may open all
// of them has some that are not limited.
func TestDevicesThatCannotBeListed(t *testing.T) {
	disks := machine()
	disks.devices, disks.broken = nil, errors.New("open /sys/dev/block: permission denied")
	req := &limits.Request{DeviceRules: []limits.DeviceRule{{Allow: true, Device: limits.Device{Major: limits.AnyNumber, Minor: limits.AnyNumber}}}}
	p := prober{fs: cgroup.FS(cgrouptest.Tree(t, "v2")), in: Input{CgroupsPath: docker, Request: req}, access: access, disks: disks}
	want := []limits.Diskless{{Place: "block devices that the container may open", Reason: "open /sys/dev/block: permission denied"}}
	if got := p.probe().IO.Diskless; !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// A specification of any size takes work in proportion, and the report stays one
// that a person can read.
func TestManyPlaces(t *testing.T) {
	const many = 20_000
	req := limits.Request{}
	for i := range many {
		at := fmt.Sprintf("/%d", i)
		device := limits.Device{Major: 300, Minor: int64(i)}
		req.Places = append(
			req.Places, limits.Place{Path: "/home" + at, Source: "/home", Writable: true}, limits.Place{Path: "/missing" + at, Source: "/missing" + at, Writable: true},
		)
		req.RawDisks = append(req.RawDisks, limits.RawDisk{Path: "/dev" + at, Device: device})
		req.DeviceRules = append(req.DeviceRules, limits.DeviceRule{Allow: true, Device: device}, limits.DeviceRule{Allow: true, Device: vda.Device})
	}
	got, disks := probeDisks(t, "v2", nil, Input{Request: &req})
	if len(disks.asked) != 2*many {
		t.Errorf("%d questions about %d places", len(disks.asked), 2*many)
	}
	if len(got.Disks) != 1 || len(got.Disks[0].Places) != limits.MaxPlaces || got.Disks[0].MorePlaces != many+1-limits.MaxPlaces {
		t.Errorf("%d disks, the first with %d places and %d more", len(got.Disks), len(got.Disks[0].Places), got.Disks[0].MorePlaces)
	}
	if len(got.Diskless) != limits.MaxPlaces || got.MoreDiskless != 2*many-limits.MaxPlaces {
		t.Errorf("%d places without a disk and %d more", len(got.Diskless), got.MoreDiskless)
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
		{"ext4", "v2", "", "", "ext4", "rw,errors=remount-ro", allCounted},
		{"ext2", "v2", "", "", "ext2", "rw", allCounted},
		{"ext3", "v2", "", "", "ext3", "rw", allCounted},
		{"btrfs", "v2", "", "", "btrfs", "rw,compress=zstd:1", allCounted},
		{"f2fs", "v2", "", "", "f2fs", "rw", allCounted},
		{"ext4 that journals data", "v2", "", "", "ext4", "rw,data=journal", journal},
		{"ext4 with another option like it", "v2", "", "", "ext4", "rw,data=journal_async", allCounted},
		{"another file system with that option", "v2", "", "", "reiserfs", "rw,data=journal", flushed + " on reiserfs"},
		{"xfs", "v2", "", "", "xfs", "rw,attr2", allCounted},
		{"xfs 5.3", "v2", osrelease, "5.3.0-1-amd64\n", "xfs", "rw", allCounted},
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
