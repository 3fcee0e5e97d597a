package blockdev

import (
	"fmt"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"

	"github.com/agentbox/agentbox/pkg/limits"
)

// Disk is a block device that takes I/O limits.
type Disk struct {
	Device limits.Device
	Name   string // the kernel's: "vda", "nvme0n1", "dm-0", "md0", "loop3"
}

// Backing is what is behind a file. Either there are Disks, or it is InMemory,
// or there is a Reason: that is about what takes the writes. Behind an overlay
// there may be other disks besides, whatever takes its writes.
type Backing struct {
	// Filesystem is the type as mountinfo has it: "ext4", "fuse.sshfs". For an
	// overlay it is that of the layer that takes the writes, or without one, of
	// the topmost layer that is read. Empty: not known.
	Filesystem string
	// Options are those of its super block, as mountinfo has them:
	// "rw,data=journal". Special characters are in the octal form of mountinfo.
	Options string
	// Disks are where its blocks are: several for a btrfs of several devices.
	Disks []Disk
	// Lower are further disks, of the layers of an overlay that are only read.
	Lower []Disk
	// InMemory says that no disk is involved at all: tmpfs, proc and the like.
	InMemory bool
	// Reason says for a person why there is no disk whose I/O could be limited:
	// "nfs4 is a network filesystem".
	Reason string
}

// Finder finds disks. It sees the mounts as they were when the first question
// needed them: make a new one for each container.
type Finder struct {
	root    string
	stat    func(path string) (Stat, error)
	mounts  func() (*mounts, error)
	resolve func(path string) string // without symbolic links, as far as it is there
}

// New returns a finder for the folder that stands for "/": "/" itself, or a
// recorded tree with a proc and a sys folder in it. It reads nothing yet.
func New(root string) Finder {
	f := Finder{root: strings.TrimSuffix(root, "/")}
	f.stat = func(name string) (Stat, error) { return stat(f.path(name)) }
	f.resolve = func(name string) string { return resolve(f.root, name) }
	f.mounts = sync.OnceValues(func() (*mounts, error) {
		data, err := os.ReadFile(f.path("/proc/self/mountinfo"))
		if err != nil {
			return nil, err
		}
		return newMounts(data), nil
	})
	return f
}

// WithStat returns a finder that asks stat about files instead of the kernel: a
// recorded tree has neither device numbers nor mounts of its own.
func (f Finder) WithStat(stat func(path string) (Stat, error)) Finder {
	f.stat = stat
	return f
}

// Look looks at a path by calling look, once. It can say that this takes long, or
// give it up and return an error: the server or the process behind a path can be
// gone, and the kernel waits for it.
type Look func(path string, look func()) error

// Through returns a finder that looks at paths as f does, through look.
func (f Finder) Through(look Look) Finder {
	stat, resolve := f.stat, f.resolve
	f.stat = func(path string) (Stat, error) {
		var st Stat
		var err error
		if givenUp := look(path, func() { st, err = stat(path) }); givenUp != nil {
			return Stat{}, givenUp // nobody reads what a late answer sets
		}
		return st, err
	}
	f.resolve = func(path string) string {
		var real string
		if givenUp := look(path, func() { real = resolve(path) }); givenUp != nil {
			return path
		}
		return real
	}
	return f
}

// path returns the real path of an absolute name.
func (f Finder) path(name string) string { return f.root + name }

// maxDepth is how many file systems are followed down; the kernel stacks no more
// than two overlays (FILESYSTEM_MAX_STACK_DEPTH).
const maxDepth = 4

// Behind returns what is behind a file or folder with an absolute path. Symbolic
// links are followed, as mount(2) does; an automount is not triggered, and a
// server is not asked for news. It does not fail: what cannot be found out is a
// reason. Behind a block device node is the disk that it stands for, and no file
// system.
func (f Finder) Behind(name string) Backing {
	st, err := f.look(name)
	if err != nil {
		return Backing{Reason: err.Error()}
	}
	if st.Node != (limits.Device{}) {
		return f.raw(st.Node)
	}
	return f.behind(st, maxDepth)
}

func (f Finder) raw(d limits.Device) (b Backing) {
	b.Disks, b.Reason = f.disks(d)
	return b
}

// Mounted returns what will be behind a file system of a type once it is mounted
// from a source (mount(2)). An overlay is not mounted from its source: see
// Layers.
func (f Finder) Mounted(fstype, source string) Backing {
	b := Backing{Filesystem: fstype}
	if inMemory(fstype) {
		b.InMemory = true
		return b
	}
	if b.Reason = elsewhere(fstype); b.Reason != "" {
		return b
	}
	if b.Disks, b.Reason = f.sourceDisks(fstype, source); b.Reason != "" || fstype != "btrfs" {
		return b
	}
	// The kernel knows its other devices if it is mounted already.
	if folder, reason := f.btrfsFolder(source); reason == "" {
		b.Disks, b.Reason = f.btrfsMembers(folder)
	}
	return b
}

// Node returns the disk that a device node such as /dev/vdb1 stands for. For any
// other file it is the disk behind it, as long as there is just one. Without a
// disk the reason says why.
func (f Finder) Node(name string) (disk Disk, reason string) {
	st, err := f.look(name)
	if err != nil {
		return Disk{}, err.Error()
	}
	if st.Node != (limits.Device{}) {
		return f.Whole(st.Node)
	}
	b := f.behind(st, maxDepth)
	if b.InMemory && len(b.Lower) == 1 {
		return b.Lower[0], ""
	}
	switch {
	case b.Reason != "":
		return Disk{}, b.Reason
	case b.InMemory:
		return Disk{}, fmt.Sprintf("%s is in memory (%s): there is no disk behind it", name, b.Filesystem)
	case len(b.Disks) > 1:
		return Disk{}, fmt.Sprintf("%s is on several disks (%s): name one of them", name, names(b.Disks))
	}
	return b.Disks[0], ""
}

func names(disks []Disk) string {
	var list []string
	for _, d := range disks {
		list = append(list, d.Name)
	}
	return strings.Join(list, ", ")
}

func (f Finder) look(name string) (Stat, error) {
	if !path.IsAbs(name) {
		return Stat{}, fmt.Errorf("the path %q is not absolute", name)
	}
	return f.stat(name)
}

func (f Finder) behind(st Stat, depth int) Backing {
	m, err := f.mount(st)
	if err != nil {
		return f.behindNumber(st.Device, err)
	}
	return f.behindMount(m, depth)
}

func (f Finder) behindMount(m *mountinfo.Info, depth int) Backing {
	b := Backing{Filesystem: m.FSType, Options: m.VFSOptions}
	if inMemory(m.FSType) {
		b.InMemory = true
		return b
	}
	if b.Reason = elsewhere(m.FSType); b.Reason != "" {
		return b
	}
	switch {
	case m.FSType == "overlay":
		return f.behindOverlay(m, depth)
	case m.FSType == "btrfs":
		b.Disks, b.Reason = f.btrfsDisks(m.Source)
	case m.Major != 0:
		b.Disks, b.Reason = f.disks(device(m))
	default:
		b.Disks, b.Reason = f.sourceDisks(m.FSType, m.Source)
	}
	return b
}

// behindNumber returns what the device number of a file system alone says,
// where its mount was not found.
func (f Finder) behindNumber(d limits.Device, err error) Backing {
	if d.Major == 0 {
		return Backing{Reason: err.Error()}
	}
	return f.raw(d)
}

// sourceDisks returns the disks that a mount names as its source: some file
// systems of several devices have an anonymous number and write
// "/dev/sda:/dev/sdb". Names below /dev/disk/by-path have colons too.
func (f Finder) sourceDisks(fstype, source string) ([]Disk, string) {
	if !path.IsAbs(source) {
		return nil, fmt.Sprintf("%s has no block device of its own: its source is %q", fstype, source)
	}
	const next = ":/dev/"
	var devices []limits.Device
	for i, name := range strings.Split(source, next) {
		if i > 0 {
			name = next[1:] + name
		}
		st, err := f.stat(name)
		if err != nil {
			return nil, fmt.Sprintf("the source of the %s cannot be looked at: %v", fstype, err)
		}
		if st.Node == (limits.Device{}) {
			return nil, fmt.Sprintf("the source of the %s, %s, is not a block device", fstype, name)
		}
		devices = append(devices, st.Node)
	}
	return f.disks(devices...)
}

func device(m *mountinfo.Info) limits.Device {
	return limits.Device{Major: int64(m.Major), Minor: int64(m.Minor)}
}
