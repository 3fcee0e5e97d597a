package supervise

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A supervisor that was started on demand is two processes: a worker that does
// all the work, and a keeper that does nothing but start another worker when this
// one has ended by a signal. The worker starts another keeper. Each has the pidfd
// of the other, so that neither takes a stranger for it.

// Role is what a process of a supervisor does.
type Role string

// The roles.
const (
	Alone  Role = ""       // a worker that somebody else keeps, such as systemd
	Worker Role = "worker" // a worker that has a keeper
	Keeper Role = "keeper"
)

// Options are the command line of a supervisor's process.
type Options struct {
	Dir     string        // the folder of states, absolute
	Role    Role          //
	Partner int           // descriptor: the pidfd of the other process; 0: none
	Ready   int           // descriptor: a pipe that is told when the worker is ready; 0: none
	Idle    time.Duration // for so long with nothing to do, then the end; 0: for ever
}

// The names of the flags, which are not for people.
const (
	RoleFlag    = "role"
	PartnerFlag = "partner"
	ReadyFlag   = "ready"
	IdleFlag    = "idle"
)

func (o Options) args() []string {
	return []string{
		"agentbox", "supervise", "--state", o.Dir, "--" + RoleFlag, string(o.Role), "--" + IdleFlag, o.Idle.String(),
		"--" + PartnerFlag, strconv.Itoa(o.Partner), "--" + ReadyFlag, strconv.Itoa(o.Ready),
	}
}

// other is the other process of a pair.
type other struct {
	pidfd int
	child int // its pid, where it is a child of this process; 0: it is not
}

// spawn starts a process of a supervisor. It gets standard error, but for that
// nothing of this process: the pidfd of this one if partner is set, and ready.
func spawn(o Options, partner bool, ready *os.File) (*other, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	files := []uintptr{null.Fd(), null.Fd(), 2}
	if partner {
		self, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			return nil, fmt.Errorf("open a pidfd of this process: %w", err)
		}
		defer unix.Close(self)
		o.Partner = len(files)
		files = append(files, uintptr(self))
	}
	if ready != nil {
		o.Ready = len(files)
		files = append(files, ready.Fd())
	}
	var started other
	env := []string{"PATH=" + os.Getenv("PATH")}
	if o.Role == Keeper {
		env = append(env, "GOMAXPROCS=1") // it waits, no more
	}
	started.child, err = syscall.ForkExec("/proc/self/exe", o.args(), &syscall.ProcAttr{
		Dir: "/", Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &started.pidfd},
	})
	if err != nil {
		return nil, fmt.Errorf("start the %s of the supervisor: %w", o.Role, err)
	}
	unix.CloseOnExec(started.pidfd)
	return &started, nil
}

// partnerOf is the process that started this one.
func partnerOf(o Options) *other {
	if o.Partner == 0 {
		return nil
	}
	unix.CloseOnExec(o.Partner)
	return &other{pidfd: o.Partner}
}

// wait waits for the end. The status is known of a child only.
func (p *other) wait() (status syscall.WaitStatus, known bool, err error) {
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, false, fmt.Errorf("watch over a process: %w", err)
		}
	}
	if p.child == 0 {
		return 0, false, nil
	}
	for {
		_, err := syscall.Wait4(p.child, &status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return status, err == nil, nil
		}
	}
}

// signal sends a signal to it; one that has ended gets none.
func (p *other) signal(s unix.Signal) { _ = unix.PidfdSendSignal(p.pidfd, s, nil, 0) }

func (p *other) close() { _ = unix.Close(p.pidfd) }
