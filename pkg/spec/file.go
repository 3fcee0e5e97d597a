package spec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ConfigName is the name of the specification in a bundle.
const ConfigName = "config.json"

// maxSize bounds what is read into memory. Real files have 10 to 100 KiB.
const maxSize = 16 << 20

// File is a config.json that was read and may be replaced.
type File struct {
	Path string // for errors
	Data []byte // as read; the caller must not change it

	dir  int // the folder, held open: a folder swapped meanwhile changes nothing
	name string
	stat unix.Stat_t
}

// Open reads a specification. The file itself must be a regular one, not a
// symbolic link, since a bundle may have been written by somebody else than the
// caller. Close must be called.
func Open(path string) (_ *File, err error) {
	f := &File{Path: path, name: filepath.Base(path)}
	f.dir, err = unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the bundle %s: %w", filepath.Dir(path), err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	// O_NONBLOCK: opening a named pipe must not wait for a writer.
	fd, err := unix.Openat(f.dir, f.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link: agentbox replaces only a regular file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if err := unix.Fstat(fd, &f.stat); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	if f.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if f.stat.Size > maxSize {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d that agentbox reads", path, f.stat.Size, maxSize)
	}
	f.Data = make([]byte, f.stat.Size)
	if _, err := io.ReadFull(file, f.Data); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return f, nil
}

// Close releases the folder.
func (f *File) Close() { _ = unix.Close(f.dir) }

var replaced atomic.Int64

// tempPart is what the name of a half-written file has in the middle: the pid of
// its writer.
const tempPart = ".agentbox-%d-"

// RemoveHalfWritten removes from a bundle what a Replace of a process that was
// killed left there. It does what it can: the bundle may be gone.
func RemoveHalfWritten(bundle string, pid int) {
	entries, _ := os.ReadDir(bundle)
	part := fmt.Sprintf(tempPart, pid)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && strings.Contains(e.Name(), part) && e.Type().IsRegular() {
			_ = os.Remove(filepath.Join(bundle, e.Name()))
		}
	}
}

// Replace puts data in the place of the file, with its mode and owner. A crash
// at any moment leaves either the old file or the new one; what a power failure
// leaves is not looked after, since a bundle does not outlive it.
func (f *File) Replace(data []byte) (err error) {
	// The number keeps two calls in one process apart.
	temp := fmt.Sprintf(".%s"+tempPart+"%d", f.name, os.Getpid(), replaced.Add(1))
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(f.dir, temp, flags, 0o600)
	if errors.Is(err, unix.EEXIST) {
		// Left by a crash of an earlier process with our pid.
		if err = unix.Unlinkat(f.dir, temp, 0); err == nil {
			fd, err = unix.Openat(f.dir, temp, flags, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("write beside %s: %w", f.Path, err)
	}
	file := os.NewFile(uintptr(fd), temp)
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = unix.Unlinkat(f.dir, temp, 0)
		}
	}()
	if _, err := file.Write(data); err != nil {
		return fmt.Errorf("write beside %s: %w", f.Path, err)
	}
	var made unix.Stat_t // a set-group-ID folder gives its own group
	if err := unix.Fstat(fd, &made); err != nil {
		return fmt.Errorf("stat beside %s: %w", f.Path, err)
	}
	if made.Uid != f.stat.Uid || made.Gid != f.stat.Gid {
		if err := unix.Fchown(fd, int(f.stat.Uid), int(f.stat.Gid)); err != nil {
			return fmt.Errorf("keep the owner of %s: %w", f.Path, err)
		}
	}
	if err := unix.Fchmod(fd, f.stat.Mode&0o7777); err != nil {
		return fmt.Errorf("keep the mode of %s: %w", f.Path, err)
	}
	if err := unix.Renameat(f.dir, temp, f.dir, f.name); err != nil {
		return fmt.Errorf("replace %s: %w", f.Path, err)
	}
	return nil
}
