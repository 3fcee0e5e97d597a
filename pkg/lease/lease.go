// Package lease says which process holds a sandbox to its limits where the
// kernel does not, and asks for one: a shim for its own containers, or the host's
// supervisor.
//
// The runtime links it: it is small.
package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/smallfile"
)

// The files in the folder of a sandbox's state.
const (
	leaseName = "lease"
	holdName  = "hold"
)

// ErrHeld says that somebody holds the lease of a sandbox already.
var ErrHeld = errors.New("somebody supervises the sandbox already")

// Record is what the next holder has to know of a sandbox. A sandbox that has
// none was never supervised.
type Record struct {
	Init   procfs.Process `json:"init"`
	Cgroup *cgroup.Paths  `json:"cgroup,omitempty"` // nil: none was found
	Since  time.Duration  `json:"since"`            // of the first holder, on the clock of procfs.SinceBoot
}

// Lease is the right, and the duty, to supervise one sandbox. It ends with its
// holder, however that ends.
type Lease struct {
	file *os.File
	path string
}

// Take takes the lease of the sandbox whose state is in a folder. It fails with
// ErrHeld where somebody has it.
//
// The lock is one of an open file description (fcntl(2), F_OFD_SETLK): it ends
// with its last descriptor as that of flock(2) does, and can be looked at without
// being taken, so that a look gets in nobody's way.
func Take(dir string) (*Lease, error) {
	path := filepath.Join(dir, leaseName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("take the lease: %w", err)
	}
	lock := wholeFile(unix.F_WRLCK)
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		err = ErrHeld
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("take the lease %s: %w", path, err)
	}
	return &Lease{file: file, path: path}, nil
}

// Release gives the lease up. What was noted stays.
func (l *Lease) Release() { l.file.Close() }

// Current reports whether the sandbox still has this lease: its state may have
// been removed, and another sandbox of that name have been made.
func (l *Lease) Current() bool {
	mine, err := l.file.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(l.path)
	return err == nil && os.SameFile(mine, now)
}

// Note writes down what the next holder has to know.
func (l *Lease) Note(r Record) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = l.file.Truncate(0)
	}
	if err == nil {
		_, err = l.file.WriteAt(data, 0)
	}
	if err != nil {
		return fmt.Errorf("write the lease %s: %w", l.path, err)
	}
	return nil
}

// Forget removes what was noted: the sandbox has ended, or was never supervised.
func (l *Lease) Forget() error { return l.file.Truncate(0) }

// maxRecord bounds what is read of a record, in bytes.
const maxRecord = 64 << 10

// Noted returns what the last holder noted; ok is false when there was none, or
// when it gave the sandbox up.
func Noted(dir string) (r Record, ok bool) {
	data, err := smallfile.Read(filepath.Join(dir, leaseName), maxRecord, smallfile.NoFollow)
	if err != nil || len(data) == 0 || json.Unmarshal(data, &r) != nil {
		return Record{}, false
	}
	return r, r.Init.Pid > 0
}

// Held reports whether somebody supervises the sandbox whose state is in a folder.
func Held(dir string) (bool, error) {
	file, err := os.OpenFile(filepath.Join(dir, leaseName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the lease: %w", err)
	}
	defer file.Close()
	lock := wholeFile(unix.F_WRLCK)
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("look at the lease %s: %w", file.Name(), err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

func wholeFile(kind int16) unix.Flock_t {
	return unix.Flock_t{Type: kind, Whence: 0, Start: 0, Len: 0}
}
