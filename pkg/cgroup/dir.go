package cgroup

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// dir is one open folder of a cgroup hierarchy.
type dir struct {
	fd   int
	path string // for messages
}

// openDir opens a cgroup's folder. One that is not there gives a *GoneError.
func openDir(f FS, path string) (dir, error) {
	fd, err := openat(unix.AT_FDCWD, f.Path(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return dir{}, &GoneError{Dir: path}
	}
	if err != nil {
		return dir{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return dir{fd: fd, path: path}, nil
}

func (d dir) close() { unix.Close(d.fd) }

// id is the inode of the folder, which cgroupfs does not use twice
// (cgroup ids are 64 bits wide since Linux 5.5).
func (d dir) id() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return 0, &fs.PathError{Op: "fstat", Path: d.path, Err: err}
	}
	return st.Ino, nil
}

// gone reports whether the cgroup was removed while its folder is held open.
// cgroup.procs is in every cgroup, of both versions.
func (d dir) gone() bool {
	return errors.Is(unix.Faccessat(d.fd, "cgroup.procs", unix.F_OK, 0), fs.ErrNotExist)
}

// read returns the content of a file, using buf for it when it is large enough.
// ok is false when the cgroup has no such file: the controller is not on here,
// or the kernel is older than the file.
func (d dir) read(name string, buf []byte) (data []byte, ok bool, err error) {
	fd, err := openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, d.fileError("open", name, err)
	}
	defer unix.Close(fd)
	data, err = readAll(fd, buf)
	if err != nil {
		return nil, false, d.fileError("read", name, err)
	}
	return data, true, nil
}

// fileError adds the path. Reading a file of a removed cgroup gives ENODEV.
func (d dir) fileError(op, name string, err error) error {
	if errors.Is(err, unix.ENODEV) {
		return &GoneError{Dir: d.path}
	}
	return &fs.PathError{Op: op, Path: d.path + "/" + name, Err: err}
}

func openat(fd int, path string, flags int) (int, error) {
	for {
		got, err := unix.Openat(fd, path, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return got, err
		}
	}
}

// readAll reads to the end of the file. cgroupfs and proc hand out at most a
// page at a time, so a short read is not the end.
func readAll(fd int, buf []byte) ([]byte, error) {
	if len(buf) == 0 {
		buf = make([]byte, 4096)
	}
	n := 0
	for {
		got, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if got == 0 {
			return buf[:n], nil
		}
		n += got
		if n == len(buf) {
			buf = append(buf, make([]byte, 3*len(buf))...)
		}
	}
}
