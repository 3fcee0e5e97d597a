package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// HoldFile returns the file whose lock (flock(2)) keeps a sandbox as it is: the
// supervisor has it while it has frozen the sandbox, and who looks at the sandbox
// shares it, so that nobody takes a frozen one for a paused one.
func HoldFile(dir string) string { return filepath.Join(dir, holdName) }

// MakeHold makes that file, and returns its name.
func MakeHold(dir string) (string, error) {
	name := HoldFile(dir)
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return "", fmt.Errorf("make the hold: %w", err)
	}
	return name, file.Close()
}

// The wait for a sandbox to run: a supervisor freezes it for milliseconds at a
// time.
const (
	holdTime = 2 * time.Second
	holdStep = 500 * time.Microsecond
)

// Hold keeps a sandbox from being frozen by its supervisor for as long as this
// process lives, whatever program it becomes. It waits until it runs, but not for
// ever: what a supervisor that hangs has frozen may as well be seen.
//
// For a sandbox without a supervisor this is one system call.
func Hold(dir string) error {
	fd, err := unix.Open(HoldFile(dir), unix.O_RDONLY|unix.O_NOFOLLOW, 0) // not O_CLOEXEC
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep the sandbox running: open %s: %w", HoldFile(dir), err)
	}
	for deadline := time.Now().Add(holdTime); ; time.Sleep(holdStep) {
		err = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			_ = unix.Close(fd)
			return fmt.Errorf("keep the sandbox running: lock %s: %w", HoldFile(dir), err)
		}
	}
}
