package blockdev

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/agentbox/agentbox/pkg/limits"
)

// show writes a backing as the tables have it.
func show(b Backing) string {
	var parts []string
	if b.Filesystem != "" {
		parts = append(parts, b.Filesystem)
	}
	if b.InMemory {
		parts = append(parts, "memory")
	}
	for _, d := range b.Disks {
		parts = append(parts, d.Name+"="+d.Device.String())
	}
	if b.Reason != "" {
		parts = append(parts, "- "+b.Reason)
	}
	if len(b.Lower) > 0 {
		parts = append(parts, "| reads "+names(b.Lower))
	}
	return strings.Join(parts, " ")
}

func TestBehind(t *testing.T) {
	f := recorded(t).finder()
	for _, tt := range []struct{ name, path, want string }{
		{"partition", "/srv/a", "ext4 sda=8:0"},
		{"partition of an NVMe disk", "/fast/db", "ext4 nvme0n1=259:3"},
		{"logical volume on a partition", "/lvm", "xfs dm-1=253:1"},
		{"md", "/raid", "ext4 md0=9:0"},
		{"partition of an md", "/raidpart", "ext4 md0=9:0"},
		{"loop", "/snap/core", "squashfs loop3=7:3"},
		{"partition of a loop", "/pool/ext", "ext4 loop0=7:0"},
		{"name with a slash", "/smart", "ext3 cciss/c0d0=104:0"},
		{"zram", "/zram", "ext4 zram0=252:0"},
		{"device that sysfs does not know", "/pulled", "ext4 - the kernel knows no block device 8:99: there is no /sys/dev/block/8:99"},
		{"mount over another", "/stack", "ext4 nvme0n1=259:3"},
		{"memory over memory", "/dev/shm/x", "tmpfs memory"},
		{"mount point with special characters", "/with a\tfew\\characters/x", "ext4 sdb=8:16"},

		{"btrfs on two devices", "/pool/bt", "btrfs loop0=7:0 loop1=7:1"},
		{"subvolume in its file system", "/pool/bt/s", "btrfs loop0=7:0 loop1=7:1"},
		{"subvolume that is mounted", "/pool/sub", "btrfs loop0=7:0 loop1=7:1"},
		{"another btrfs", "/home/joe", "btrfs dm-2=253:2"},

		{"overlay as Docker mounts it", "/var/lib/docker/overlay2/3f1a/merged", "ext4 sda=8:0"},
		{"overlay with paths relative to Docker's folder", "/var/lib/docker/overlay2/77c0/merged", "ext4 sda=8:0"},
		{"overlay with escaped characters, relative", "/pool/ov", "ext4 loop0=7:0"},
		{"overlay on btrfs, relative", "/pool/bt/ov2", "btrfs loop0=7:0 loop1=7:1"},
		{"file of an overlay with a number of its own", "/pool/bt/ov2/file", "btrfs loop0=7:0 loop1=7:1"},
		{"overlay without an upper layer", "/pool/ro", "ext4 loop0=7:0"},
		{"overlay of the new mount API", "/run/new-api", "ext4 nvme0n1=259:3 | reads sda"},
		{"overlay that is written in memory", "/run/live", "tmpfs memory | reads sda, nvme0n1"},
		{"overlay on a disk over such an overlay", "/run/two", "ext4 sda=8:0 | reads nvme0n1, dm-1"},
		{
			"overlay whose upper layer is not to be seen", "/run/gone-upper",
			`overlay - the layer "/x/not-here" of the overlay at /run/gone-upper cannot be looked at from here: stat /x/not-here: no such file or directory | reads sda`,
		},
		{"overlay on an overlay", "/run/inner", "ext4 sda=8:0"},
		{"overlay on a network file system", "/run/on-nfs", "nfs4 - nfs4 is a network filesystem"},
		{
			"overlay from another mount namespace", "/run/elsewhere",
			`overlay - the layer "/x/not-here" of the overlay at /run/elsewhere cannot be looked at from here: stat /x/not-here: no such file or directory`,
		},
		{
			"overlay with paths relative to nobody knows what", "/run/homeless",
			`overlay - the layer "11/fs" of the overlay at /run/homeless cannot be looked at from here: stat /run/11/fs: no such file or directory`,
		},
		{"overlay on itself", "/run/itself", "overlay - more than 4 overlays lie on top of each other at /run/itself"},
		{"overlay that names no layer", "/run/bare", "overlay - the overlay at /run/bare names no layer"},

		{"proc", "/proc/self", "proc memory"},
		{"device node", "/dev/sda", "sda=8:0"},
		{"device node of a partition", "/dev/nvme0n1p2", "nvme0n1=259:3"},
		{"device node that is not below /dev", "/srv/node", "sdb=8:16"},
		{"device node that is no disk", "/dev/null", "devtmpfs memory"},
		{"nfs", "/mnt/nfs/a", "nfs4 - nfs4 is a network filesystem"},
		{"cifs", "/mnt/smb", "cifs - cifs is a network filesystem"},
		{"zfs", "/tank", "zfs - zfs does its I/O in threads of its own"},
		{"fuse", "/mnt/ssh", "fuse.sshfs - fuse.sshfs does its I/O in a process of its own"},
		{"fuse on a block device", "/mnt/ntfs", "fuseblk - fuseblk does its I/O in a process of its own"},
		{"virtiofs", "/mnt/vm", "virtiofs - virtiofs is a folder of the virtual machine's host"},
		{"automount that waits", "/misc", "autofs - nothing is mounted there yet: autofs does it when somebody looks inside"},

		{"several devices in the source", "/cache", "bcachefs sdb=8:16 nvme0n1=259:3"},
		{"source by path, with colons", "/bypath", "bcachefs sdb=8:16"},
		{
			"source that is no path", "/uuid",
			`bcachefs - bcachefs has no block device of its own: its source is "UUID=5f0cd5dc-6d48-4a29-9f2b-3b0b1d7a7b5e"`,
		},
		{
			"source that is gone", "/unplugged",
			"bcachefs - the source of the bcachefs cannot be looked at: stat /dev/sdz1: no such file or directory",
		},
		{"source that is no block device", "/odd", "bcachefs - the source of the bcachefs, /dev/null, is not a block device"},

		{"disk without a mount id", "/old-kernel/ext4", "ext4 nvme0n1=259:3"},
		{"overlay without a mount id", "/old-kernel/overlay", "ext4 sda=8:0"},
		{
			"subvolume without a mount id", "/old-kernel/subvolume",
			"- /proc/self/mountinfo has neither a mount 0 nor one of the filesystem 0:42",
		},
		{"mount that is not shown, of a file system that is", "/other-namespace/ext4", "ext4 sda=8:0"},
		{"file system that is not shown, on a disk", "/other-namespace/xfs", "dm-7=253:7"},
		{
			"file system that is not shown, on none", "/other-namespace/nfs",
			"- /proc/self/mountinfo has neither a mount 999 nor one of the filesystem 0:99",
		},
		{"no such file", "/nowhere", "- stat /nowhere: no such file or directory"},
		{"relative path", "srv/a", `- the path "srv/a" is not absolute`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := show(f.Behind(tt.path)); got != tt.want {
				t.Errorf("\ngot  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestOptionsAreThoseOfTheLayerThatIsWritten(t *testing.T) {
	f := recorded(t).finder()
	for path, want := range map[string]string{
		"/fast/db":                             "rw,data=journal",
		"/var/lib/docker/overlay2/77c0/merged": "rw,errors=remount-ro",
		"/run/new-api":                         "rw,data=journal",
		"/dev/shm/x":                           "rw,size=24684084k",
		"/other-namespace/xfs":                 "",
	} {
		if got := f.Behind(path).Options; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// What breaks in a machine becomes a reason, or another way to the same disk.
func TestBehindWhenSomethingIsMissing(t *testing.T) {
	const (
		uuids = "sys/fs/btrfs/"
		one   = uuids + "1202fdf1-aae2-413f-893a-d5d218c3fd20"
		other = uuids + "9c5a3a57-9a4a-4bb4-9a0e-0a4b8c6f3f11"
	)
	for _, tt := range []struct {
		name   string
		change func(*testing.T, record)
		path   string
		want   string
	}{
		{"no mountinfo, a disk", func(t *testing.T, m record) { m.remove(t, "proc") }, "/fast/db", "nvme0n1=259:3"},
		{
			"no mountinfo, no disk", func(t *testing.T, m record) { m.remove(t, "proc") }, "/mnt/nfs/a",
			"- the mounts cannot be read: open ROOT/proc/self/mountinfo: no such file or directory",
		},
		{
			"a line that is none", func(t *testing.T, m record) { m.write(t, "proc/self/mountinfo", "110 27 0:70 / /mnt/nfs") }, "/mnt/nfs/a",
			"- /proc/self/mountinfo: parsing '110 27 0:70 / /mnt/nfs' failed: not enough fields (5)",
		},
		{"no node, the same name in sysfs", func(_ *testing.T, m record) { delete(m.stats, "/dev/loop0p2") }, "/pool/bt", "btrfs loop0=7:0 loop1=7:1"},
		{
			"no node, another name in sysfs", func(_ *testing.T, m record) { delete(m.stats, "/dev/mapper/vg-home") }, "/home/joe",
			`btrfs - no filesystem in /sys/fs/btrfs has the device "vg-home" of the mount's source "/dev/mapper/vg-home"`,
		},
		{
			"no node, another name, but just one btrfs", func(t *testing.T, m record) {
				delete(m.stats, "/dev/mapper/vg-home")
				m.remove(t, one)
			}, "/home/joe", "btrfs dm-2=253:2",
		},
		{
			"no sysfs of btrfs", func(t *testing.T, m record) { m.remove(t, uuids) }, "/home/joe",
			"btrfs - the devices of the btrfs cannot be found: open ROOT/sys/fs/btrfs: no such file or directory",
		},
		{
			"btrfs without a device", func(t *testing.T, m record) {
				m.remove(t, one)
				m.remove(t, other+"/devices/dm-2")
			}, "/home/joe", "btrfs - /" + other + "/devices lists no device",
		},
		{
			"btrfs with a device that has no number", func(t *testing.T, m record) { m.remove(t, "sys/devices/virtual/block/loop1/dev") }, "/pool/bt",
			"btrfs - the device loop1 of the btrfs cannot be found: open ROOT/" + one + "/devices/loop1/dev: no such file or directory",
		},
		{
			"btrfs with a device that has a strange number", func(t *testing.T, m record) { m.write(t, "sys/devices/virtual/block/loop1/dev", "7") }, "/pool/bt",
			"btrfs - the device loop1 of the btrfs cannot be found: /" + one + `/devices/loop1/dev: "7" is no device number`,
		},
		{
			"btrfs with one device that cannot be limited", func(t *testing.T, m record) { m.remove(t, "sys/dev/block/7:1") }, "/pool/bt",
			"btrfs - the kernel knows no block device 7:1: there is no /sys/dev/block/7:1",
		},
		{
			"btrfs twice on one disk", func(t *testing.T, m record) {
				m.link(t, one+"/devices/loop0p1", "../../../../devices/virtual/block/loop0/loop0p1")
			}, "/pool/bt", "btrfs loop0=7:0 loop1=7:1",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := recorded(t)
			tt.change(t, m)
			got := strings.ReplaceAll(show(m.finder().Behind(tt.path)), m.root, "ROOT")
			if got != tt.want {
				t.Errorf("\ngot  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// A file system that the container mounts for itself.
func TestMounted(t *testing.T) {
	f := recorded(t).finder()
	for _, tt := range []struct{ name, fstype, source, want string }{
		{"partition", "ext4", "/dev/sda2", "ext4 sda=8:0"},
		{"node that is not below /dev", "ext4", "/srv/node", "ext4 sdb=8:16"},
		{"several devices", "bcachefs", "/dev/sdb1:/dev/nvme0n1p2", "bcachefs sdb=8:16 nvme0n1=259:3"},
		{"btrfs that is mounted elsewhere", "btrfs", "/dev/loop0p2", "btrfs loop0=7:0 loop1=7:1"},
		{"btrfs that is not mounted yet", "btrfs", "/dev/sdb1", "btrfs sdb=8:16"},
		{"network", "nfs4", "filer:/export", "nfs4 - nfs4 is a network filesystem"},
		{"zfs", "zfs", "", "zfs - zfs does its I/O in threads of its own"},
		{"fuse", "fuse.sshfs", "joe@host:", "fuse.sshfs - fuse.sshfs does its I/O in a process of its own"},
		{"memory", "tmpfs", "/bundle/tmpfs", "tmpfs memory"},
		{"proc", "proc", "proc", "proc memory"},
		{"folder", "ext4", "/srv/a", "ext4 - the source of the ext4, /srv/a, is not a block device"},
		{"device that is no disk", "ext4", "/dev/null", "ext4 - the source of the ext4, /dev/null, is not a block device"},
		{"no such device", "xfs", "/dev/sdz", "xfs - the source of the xfs cannot be looked at: stat /dev/sdz: no such file or directory"},
		{"no path", "xfs", "none", `xfs - xfs has no block device of its own: its source is "none"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := show(f.Mounted(tt.fstype, tt.source)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
	m := recorded(t)
	m.remove(t, "sys/fs/btrfs/1202fdf1-aae2-413f-893a-d5d218c3fd20")
	if got := show(m.finder().Mounted("btrfs", "/dev/sdb1")); got != "btrfs sdb=8:16" {
		t.Errorf("a btrfs is taken for the only one that is mounted: %s", got)
	}
}

func TestBelow(t *testing.T) {
	f := recorded(t).finder()
	for _, tt := range []struct {
		name, path string
		want       []string
	}{
		{"mounts on a mount, at any depth", "/pool", []string{
			"bt btrfs loop0=7:0 loop1=7:1", "bt/ov2 btrfs loop0=7:0 loop1=7:1", "ext ext4 loop0=7:0", "ov ext4 loop0=7:0", "ro ext4 loop0=7:0", "sub btrfs loop0=7:0 loop1=7:1",
		}},
		{"mounts on one of them", "/pool/bt", []string{"ov2 btrfs loop0=7:0 loop1=7:1"}},
		{"mounts below a folder", "/mnt", []string{
			"nfs nfs4 - nfs4 is a network filesystem", "ntfs fuseblk - fuseblk does its I/O in a process of its own", "smb cifs - cifs is a network filesystem",
			"ssh fuse.sshfs - fuse.sshfs does its I/O in a process of its own", "vm virtiofs - virtiofs is a folder of the virtual machine's host",
		}},
		{"of two on top of each other, the upper one", "/dev", []string{"shm tmpfs memory"}},
		{"special characters, and read only", "/with a\tfew\\characters", []string{"sub folder tmpfs memory (ro)"}},
		{"a folder whose name is the beginning of others", "/sn", nil},
		{"a folder without mounts", "/srv/a", nil},
		{"a mount without mounts", "/fast/db", nil},
		{"no such folder", "/nowhere", nil},
		{"no path", "pool", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, m := range f.Below(tt.path) {
				line := m.Path + " " + show(m.Backing)
				if m.ReadOnly {
					line += " (ro)"
				}
				got = append(got, line)
			}
			if slices.Sort(got); !slices.Equal(got, tt.want) {
				t.Errorf("\ngot  %q\nwant %q", got, tt.want)
			}
		})
	}
	all := map[string]int{}
	for _, m := range f.Below("/") {
		all[m.Path]++
	}
	for path, want := range map[string]int{"": 0, "stack": 1, "dev/shm": 1, "pool/bt/ov2": 1, "with a\tfew\\characters/sub folder": 1} {
		if all[path] != want {
			t.Errorf("%q is there %d times below /, want %d", path, all[path], want)
		}
	}
}

// An answer takes nothing from the next one.
func TestBelowTwice(t *testing.T) {
	x := newIndex([]byte("1 0 8:2 / / rw - ext4 a rw\n2 1 8:3 / /a/x rw - ext4 b rw\n3 2 8:4 / /a/x/y rw - ext4 c rw\n4 1 8:5 / /b rw - ext4 d rw\n"))
	for range 2 {
		for folder, want := range map[string]int{"/a": 2, "/b/..": 0, "/": 3} {
			if got := x.below(1, folder); len(got) != want {
				t.Errorf("%s: %q, want %d mounts", folder, got, want)
			}
		}
	}
	if got := x.below(1, "/b"); got != nil {
		t.Errorf("below a mount of a file system: %q", got)
	}
}

// Mounts that claim to lie on each other, and on themselves, come to an end.
func TestBelowMountsThatGoInCircles(t *testing.T) {
	x := newIndex([]byte("1 1 8:2 / / rw - ext4 a rw\n2 3 8:3 / /a rw - ext4 b rw\n3 2 8:4 / /b rw - ext4 c rw\n4 3 8:3 / /a rw - ext4 b rw\n"))
	if got := x.below(3, "/"); len(got) != 3 {
		t.Errorf("%q", got)
	}
}

// A symbolic link is followed before the mounts below it are looked for.
func TestBelowALink(t *testing.T) {
	m := recorded(t)
	m.mkdir(t, "pool")
	m.link(t, "link", m.root+"/pool")
	m.stats["/link"] = m.stats["/pool"]
	if got := m.finder().Below("/link"); len(got) != 6 {
		t.Errorf("%+v", got)
	}
	if got := resolve(m.root, "/link/../x"); got != "/x" {
		t.Errorf("what is not there became %q", got)
	}
}

func TestDevices(t *testing.T) {
	m := recorded(t)
	m.write(t, "sys/dev/block/README", "no device")
	list, err := m.finder().Devices()
	if err != nil || len(list) != 21 || !slices.Contains(list, limits.Device{Major: 259, Minor: 3}) {
		t.Errorf("%v, %v", list, err)
	}
	m.remove(t, "sys/dev")
	if list, err := m.finder().Devices(); err == nil {
		t.Errorf("without sysfs: %v", list)
	}
}

// Docker makes overlays of up to 128 layers.
func TestALayerIsLookedAtOnce(t *testing.T) {
	m := recorded(t)
	var layers []string
	for i := range 128 {
		layers = append(layers, fmt.Sprintf("/var/lib/docker/overlay2/l/%d", i))
		m.stats[layers[i]] = m.stats["/srv/a"]
	}
	m.stats[layers[127]] = m.stats["/fast/top"]
	m.write(t, "proc/self/mountinfo", "27 1 8:2 / / rw - ext4 /dev/sda2 rw\n31 27 259:2 / /fast rw - ext4 /dev/nvme0n1p2 rw\n"+
		"99 27 0:69 / /run/live rw - overlay overlay rw,lowerdir="+strings.Join(layers, ":")+",upperdir=/srv/a,workdir=/srv/w")
	asked := 0
	f := m.finder().WithStat(func(name string) (Stat, error) {
		asked++
		return m.stat(name)
	})
	if got := show(f.Behind("/run/live")); got != "ext4 sda=8:0 | reads nvme0n1" || asked != 130 {
		t.Errorf("%s after %d questions", got, asked)
	}
	if mounts, err := f.mounts(); err != nil || mounts.asked.Load() != 3 { // the overlay, and a file system each
		t.Errorf("%d mounts were looked for, %v", mounts.asked.Load(), err)
	}
}

func TestWhole(t *testing.T) {
	m := recorded(t)
	f := m.finder()
	for _, tt := range []struct {
		name   string
		device limits.Device
		want   Disk
		reason string
	}{
		{"disk", limits.Device{Major: 8}, Disk{limits.Device{Major: 8}, "sda"}, ""},
		{"partition", limits.Device{Major: 8, Minor: 2}, Disk{limits.Device{Major: 8}, "sda"}, ""},
		{"NVMe disk", limits.Device{Major: 259, Minor: 3}, Disk{limits.Device{Major: 259, Minor: 3}, "nvme0n1"}, ""},
		{"NVMe partition", limits.Device{Major: 259, Minor: 2}, Disk{limits.Device{Major: 259, Minor: 3}, "nvme0n1"}, ""},
		{"loop partition of the same major number", limits.Device{Major: 259}, Disk{limits.Device{Major: 7}, "loop0"}, ""},
		{"device mapper", limits.Device{Major: 253, Minor: 1}, Disk{limits.Device{Major: 253, Minor: 1}, "dm-1"}, ""},
		{"unknown", limits.Device{Major: 8, Minor: 99}, Disk{}, "the kernel knows no block device 8:99: there is no /sys/dev/block/8:99"},
		{"anonymous", limits.Device{Minor: 45}, Disk{}, "0:45 is no block device: filesystems without a disk have such numbers"},
		{
			"partition of a hidden disk",
			limits.Device{Major: 259, Minor: 5},
			Disk{},
			"the disk of the partition nvme1c0n1p1 (259:5) cannot be found: open ROOT/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme1c0n1/dev: no such file or directory",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, reason := f.Whole(tt.device)
			if reason = strings.ReplaceAll(reason, m.root, "ROOT"); got != tt.want || reason != tt.reason {
				t.Errorf("%+v, %q", got, reason)
			}
		})
	}
}

func TestNode(t *testing.T) {
	f := recorded(t).finder()
	for _, tt := range []struct{ name, path, want string }{
		{"disk", "/dev/sda", "sda"},
		{"partition", "/dev/nvme0n1p2", "nvme0n1"},
		{"folder", "/srv/a", "sda"},
		{"folder of an overlay", "/run/inner", "sda"},
		{"folder on several disks", "/pool/bt", "- /pool/bt is on several disks (loop0, loop1): name one of them"},
		{"node that is no block device", "/dev/null", "- /dev/null is in memory (devtmpfs): there is no disk behind it"},
		{"folder on a network", "/mnt/nfs/a", "- nfs4 is a network filesystem"},
		{"no such file", "/dev/sdz", "- stat /dev/sdz: no such file or directory"},
		{"relative path", "sda", `- the path "sda" is not absolute`},
		{"nothing", "", `- the path "" is not absolute`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			disk, reason := f.Node(tt.path)
			got := disk.Name
			if reason != "" {
				got += "- " + reason
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestScheduler(t *testing.T) {
	f := recorded(t).finder()
	for d, want := range map[limits.Device]string{
		{Major: 8}:              "mq-deadline",
		{Major: 259, Minor: 3}:  "none",
		{Major: 253, Minor: 1}:  "none",
		{Major: 8, Minor: 2}:    "",
		{Major: 253, Minor: 99}: "",
	} {
		if got := f.Scheduler(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}

// The mounts are read when a file is looked up, once, and never for a number.
func TestMountsAreReadOnceAndOnlyForFiles(t *testing.T) {
	m := recorded(t)
	f := m.finder()
	f.Whole(limits.Device{Major: 8, Minor: 2})
	f.Node("/dev/sda")
	f.Scheduler(limits.Device{Major: 8})
	m.write(t, "proc/self/mountinfo", "1 0 8:2 / / rw - first /dev/sda2 rw")
	f.Behind("/srv/a")
	m.write(t, "proc/self/mountinfo", "1 0 8:2 / / rw - second /dev/sda2 rw")
	for _, f := range []Finder{f, f.WithStat(m.stat)} {
		if got := f.Behind("/srv/a").Filesystem; got != "first" {
			t.Errorf("the file system is %q", got)
		}
	}
	if got := m.finder().Behind("/srv/a").Filesystem; got != "second" {
		t.Errorf("a new finder has the old mounts: %q", got)
	}
}

// many is a mountinfo of a host with many containers, and the file system of the
// last one, which is the one that has just been mounted.
func many(mounts int) (data []byte, last Stat) {
	var b strings.Builder
	b.WriteString("27 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro\n")
	for i := range mounts {
		fmt.Fprintf(&b, "%d 27 0:%d / /var/lib/docker/overlay2/%064x/merged rw,relatime shared:%d - overlay overlay rw,"+
			"lowerdir=/var/lib/docker/overlay2/l/QWERTYUIOPASDFGHJKLZXCVBNM:/var/lib/docker/overlay2/l/MNBVCXZLKJHGFDSAPOIUYTREWQ,"+
			"upperdir=/var/lib/docker/overlay2/%064x/diff,workdir=/var/lib/docker/overlay2/%064x/work\n", 100+i, 50+i, i, i, i, i)
	}
	return []byte(b.String()), Stat{Mount: uint64(99 + mounts), Device: limits.Device{Minor: int64(49 + mounts)}}
}

func BenchmarkBehindOverlayOf5000Mounts(b *testing.B) {
	m := recorded(b)
	data, last := many(5000)
	m.stats["/rootfs"] = last
	m.stats[fmt.Sprintf("/var/lib/docker/overlay2/%064x/diff", 4999)] = m.stats["/"]
	b.ReportAllocs()
	for b.Loop() { // a create has a finder of its own
		f := m.finder()
		f.mounts = sync.OnceValues(func() (*mounts, error) { return newMounts(data), nil })
		if got := show(f.Behind("/rootfs")); got != "ext4 sda=8:0" {
			b.Fatal(got)
		}
	}
}

// BenchmarkParse5000Mounts is what selecting a line first saves.
func BenchmarkParse5000Mounts(b *testing.B) {
	data, last := many(5000)
	b.ReportAllocs()
	for b.Loop() {
		mounts, err := mountinfo.GetMountsFromReader(bytes.NewReader(data), func(m *mountinfo.Info) (skip, stop bool) {
			return m.ID != int(last.Mount), false
		})
		if err != nil || len(mounts) != 1 {
			b.Fatal(len(mounts), err)
		}
	}
}

func BenchmarkWholeOfAPartition(b *testing.B) {
	f := recorded(b).finder()
	b.ReportAllocs()
	for b.Loop() {
		if _, reason := f.Whole(limits.Device{Major: 8, Minor: 2}); reason != "" {
			b.Fatal(reason)
		}
	}
}

// BenchmarkLiveBehind has everything in it: a new finder, and the mounts of this
// machine.
func BenchmarkLiveBehind(b *testing.B) {
	dir := b.TempDir()
	b.ReportAllocs()
	for b.Loop() {
		if bk := New("/").Behind(dir); bk.Filesystem == "" {
			b.Fatal(bk.Reason)
		}
	}
	if data, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		b.ReportMetric(float64(strings.Count(string(data), "\n")), "mounts")
	}
}

func TestThrough(t *testing.T) {
	m := recorded(t)
	var looked []string
	f := m.finder().Through(func(path string, look func()) error {
		looked = append(looked, path)
		if path == "/fast/db" {
			return errors.New("/fast/db does not answer")
		}
		look()
		return nil
	})
	if got := show(f.Behind("/srv/a")); got != show(m.finder().Behind("/srv/a")) {
		t.Errorf("looked at: %s", got)
	}
	if got := show(f.Behind("/fast/db")); got != "- /fast/db does not answer" {
		t.Errorf("given up: %s", got)
	}
	if got := f.resolve("/fast/db"); got != "/fast/db" {
		t.Errorf("links, given up: %s", got)
	}
	if !slices.Equal(looked, []string{"/srv/a", "/fast/db", "/fast/db"}) {
		t.Errorf("looked at %v", looked)
	}
}
