package blockdev

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
)

// Stat is what the kernel says about a file, as far as it leads to a disk.
type Stat struct {
	Device limits.Device // of the file system that the file is on; 0:N is anonymous
	Node   limits.Device // what a block device node stands for; zero for any other file
	Mount  uint64        // id of the mount, as in mountinfo; 0: not known
}

// stat asks statx(2), and kernels without mount ids in it (before Linux 5.8) by
// an open file.
func stat(name string) (Stat, error) {
	const (
		// Not to mount what is not mounted, nor wait for a server that may be dead.
		flags = unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
		want  = unix.STATX_TYPE | unix.STATX_MNT_ID
	)
	var x unix.Statx_t
	err := retry(func() error { return unix.Statx(unix.AT_FDCWD, name, flags, want, &x) })
	// Seccomp filters that do not know the system call answer with EPERM, which
	// statx itself never does.
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || err == nil && x.Mask&unix.STATX_MNT_ID == 0 {
		return statOpen(name)
	}
	if err != nil {
		return Stat{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	st := Stat{Device: limits.Device{Major: int64(x.Dev_major), Minor: int64(x.Dev_minor)}, Mount: x.Mnt_id}
	if x.Mode&unix.S_IFMT == unix.S_IFBLK {
		st.Node = limits.Device{Major: int64(x.Rdev_major), Minor: int64(x.Rdev_minor)}
	}
	return st, nil
}

// statOpen takes the mount id from /proc/self/fdinfo (Linux 3.15). A file that is
// opened with O_PATH is not touched, and automounts nothing.
func statOpen(name string) (Stat, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return Stat{}, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return Stat{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	st := Stat{Device: number(s.Dev)}
	if s.Mode&unix.S_IFMT == unix.S_IFBLK {
		st.Node = number(s.Rdev)
	}
	// Without it the device number still may find the mount.
	if data, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd)); err == nil {
		st.Mount = parseMountID(data)
	}
	return st, nil
}

// parseMountID takes the mount id out of an fdinfo file (proc_pid_fdinfo(5)); 0
// when it has none.
func parseMountID(data []byte) uint64 {
	for line := range bytes.Lines(data) {
		if text, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return mountID(bytes.TrimSpace(text))
		}
	}
	return 0
}

func number(dev uint64) limits.Device {
	return limits.Device{Major: int64(unix.Major(dev)), Minor: int64(unix.Minor(dev))}
}

// resolve returns the path of a file below a root without symbolic links, as the
// kernel has it; the path as it was given where the file is not there. The file is
// opened with O_PATH, which touches nothing.
func resolve(root, name string) string {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(root+name, unix.O_PATH|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return path.Clean(name)
	}
	defer unix.Close(fd)
	target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if below, ok := strings.CutPrefix(target, root); err == nil && ok && path.IsAbs(below) {
		return below
	}
	return path.Clean(name)
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
