package supervise

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/lease"
)

// DefaultIdle is how long a supervisor that was started on demand stays with
// nothing to do.
const DefaultIdle = time.Minute

// startTime bounds how long a supervisor takes to be ready.
const startTime = 5 * time.Second

// Detach starts a supervisor that has nothing of this process, and returns when
// it is ready, or another one is. This process must be there for nothing else: it
// changes its own cgroup and the like, for its children to have them.
func Detach(dir string, idle time.Duration) error {
	if err := closeOnExec(); err != nil {
		return err
	}
	unix.Umask(0o077)
	leaveCgroup()
	protect()
	log, err := os.OpenFile(lease.LogPath(dir), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open the supervisor's log: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	// The children get what is standard error here.
	own, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	if err := unix.Dup3(int(log.Fd()), 2, 0); err != nil {
		return err
	}
	keeper, err := spawn(Options{Dir: dir, Role: Keeper, Idle: idle}, false, w)
	w.Close()
	if back := unix.Dup3(own, 2, 0); back != nil || err != nil {
		return errors.Join(err, back)
	}
	defer keeper.close()
	return awaitReady(r, dir)
}

// awaitReady waits for what the worker says.
func awaitReady(r *os.File, dir string) error {
	if err := r.SetReadDeadline(time.Now().Add(startTime)); err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(r, 4096)).ReadString('\n')
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it was not ready within %s: see %s", startTime, lease.LogPath(dir))
	case err != nil:
		return fmt.Errorf("it ended before it was ready: see %s", lease.LogPath(dir))
	}
	if line = strings.TrimSpace(line); line != "ok" {
		return errors.New(line)
	}
	return nil
}

// closeOnExec lets no child have a descriptor that this process was given: the
// end of a pipe that stays open would keep a container's engine waiting.
func closeOnExec() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("see which descriptors are open: %w", err)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// protect asks the kernel not to pick the supervisor when memory is short, which
// would let the others take more. Without CAP_SYS_RESOURCE it may not ask.
func protect() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(oomScoreAdj), 0)
}

// oomScoreAdj is that of a daemon that others depend on, as systemd's own have.
const oomScoreAdj = "-900"
