package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// scratchPrefix is short for a reason: see NewScratch.
const scratchPrefix = "abvm-"

// Scratch is a folder that lives as long as one run.
type Scratch struct {
	Path string
	lock *os.File
}

// scratchParents are the places for a scratch folder, best first. They are not
// taken from TMPDIR, since user-mode Linux needs paths of at most 27 characters
// there.
var scratchParents = []string{"/dev/shm", "/tmp"}

// Need is what a scratch folder is used for.
type Need struct {
	Bytes   uint64
	Devices bool // device nodes work there
}

// NewScratch makes a folder on a file system that meets the need and lets
// programs run, in memory if possible. It first removes folders of runs that were
// killed so hard that they could not clean up: those hold no lock any more.
func NewScratch(need Need) (*Scratch, error) {
	for _, parent := range scratchParents {
		sweep(parent)
	}
	for _, parent := range scratchParents {
		if !suitable(parent, need) {
			continue
		}
		folder, err := os.MkdirTemp(parent, scratchPrefix)
		if err != nil {
			return nil, fmt.Errorf("make a folder for this run: %w", err)
		}
		lock, err := TryLock(filepath.Join(folder, "lock"))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock the folder of this run: %w", err), os.RemoveAll(folder))
		}
		return &Scratch{Path: folder, lock: lock}, nil
	}
	return nil, fmt.Errorf("none of %v has %d MiB free and allows programs to run", scratchParents, need.Bytes>>20)
}

// Remove deletes the folder and everything in it.
func (s *Scratch) Remove() error {
	err := os.RemoveAll(s.Path)
	return errors.Join(err, s.lock.Close())
}

func suitable(parent string, need Need) bool {
	var stat unix.Statfs_t
	if err := unix.Statfs(parent, &stat); err != nil {
		return false
	}
	if need.Devices && stat.Flags&unix.ST_NODEV != 0 {
		return false
	}
	return stat.Flags&unix.ST_NOEXEC == 0 && stat.Bavail*uint64(stat.Bsize) >= need.Bytes
}

func sweep(parent string) {
	folders, err := filepath.Glob(filepath.Join(parent, scratchPrefix+"*"))
	if err != nil {
		return
	}
	for _, folder := range folders {
		// No lock file yet: another run is just making it.
		if _, err := os.Stat(filepath.Join(folder, "lock")); err != nil {
			continue
		}
		lock, err := TryLock(filepath.Join(folder, "lock"))
		if err != nil {
			continue
		}
		// A leftover that cannot be removed does no harm to this run.
		_ = os.RemoveAll(folder)
		_ = lock.Close()
	}
}

// ErrLocked is returned by TryLock when another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// TryLock takes an exclusive lock on the file at name, which is created if
// needed. The lock ends when the returned file is closed or the process dies.
func TryLock(name string) (*os.File, error) {
	return lock(name, unix.LOCK_EX|unix.LOCK_NB)
}

// Lock is TryLock that waits.
func Lock(name string) (*os.File, error) {
	return lock(name, unix.LOCK_EX)
}

// SharedLock takes a lock that any number of processes may hold at once and that
// keeps TryLock and Lock out.
func SharedLock(name string) (*os.File, error) {
	return lock(name, unix.LOCK_SH)
}

func lock(name string, how int) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, fs.FileMode(0o644))
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		return file, nil
	}
	file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrLocked
	}
	return nil, fmt.Errorf("lock %s: %w", name, err)
}
