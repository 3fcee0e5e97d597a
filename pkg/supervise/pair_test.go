package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/lease"
	"github.com/agentbox/agentbox/pkg/verdict"
)

func TestAskStartsASupervisor(t *testing.T) {
	f := newFolder(t)
	a := f.sandbox("a")
	// What a container's engine hands to its runtime: it waits for the end of it.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	f.mustAsk(a)
	keeper, worker := f.one(Keeper), f.one(Worker)
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the supervisor has a descriptor of the caller's")
	}
	if !held(a.dir) {
		t.Error("nobody holds the lease")
	}
	for _, pid := range []int{keeper, worker} {
		if sid, err := unix.Getsid(pid); err != nil || sid != pid {
			t.Errorf("%d is in the session %d, %v", pid, sid, err)
		}
		if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); cwd != "/" {
			t.Errorf("%d is in %s, %v", pid, cwd, err)
		}
		for fd, want := range map[int]string{0: os.DevNull, 1: os.DevNull, 2: lease.LogPath(f.dir)} {
			if got, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); got != want {
				t.Errorf("descriptor %d of %d is %s, %v; want %s", fd, pid, got, err, want)
			}
		}
		list, err := cgroup.Host.Membership(pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			if os.Geteuid() == 0 && m.Path != "/" && m.Path != "/"+cgroupName {
				t.Errorf("%d is in the cgroup %s of %v", pid, m.Path, m.Controllers)
			}
		}
	}
	b := f.sandbox("b")
	f.mustAsk(b)
	f.mustAsk(a) // again has no effect
	if !held(b.dir) || f.one(Worker) != worker {
		t.Error("another worker, or none, took the second sandbox")
	}
}

// Either of the two may be killed at any moment.
func TestKilledProcessesComeBack(t *testing.T) {
	f := newFolder(t)
	a := f.sandbox("a")
	f.mustAsk(a)
	for round := range 20 {
		role := []Role{Keeper, Worker}[round%2]
		before := f.one(role)
		other := f.one([]Role{Worker, Keeper}[round%2])
		time.Sleep(time.Duration(round*7%40) * time.Millisecond)
		if err := unix.Kill(before, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		f.within(time.Second, fmt.Sprintf("round %d: another %s, and the sandbox supervised", round, role), func() bool {
			now := f.processes(role)
			return len(now) == 1 && now[0] != before && held(a.dir)
		})
		if role == Keeper && f.one(Worker) != other {
			t.Errorf("round %d: the worker is another one too", round)
		}
	}
	time.Sleep(longLife) // a moment in which nothing may start anything
	f.one(Keeper)
	f.one(Worker)
	// Both at once: nobody is left to notice, but who comes next.
	for _, role := range []Role{Keeper, Worker} {
		_ = unix.Kill(f.one(role), unix.SIGSTOP)
	}
	for _, role := range []Role{Keeper, Worker} {
		_ = unix.Kill(f.one(role), unix.SIGKILL)
	}
	f.within(5*time.Second, "nobody", func() bool { return len(f.processes(Keeper))+len(f.processes(Worker)) == 0 })
	f.within(time.Second, "the lease of the dead is free", func() bool { return !held(a.dir) })
	b := f.sandbox("b")
	f.mustAsk(b)
	f.within(time.Second, "the first sandbox is taken over", func() bool { return held(a.dir) && held(b.dir) })
}

func TestManyStartOne(t *testing.T) {
	f := newFolder(t)
	boxes := make([]box, 8)
	for i := range boxes {
		boxes[i] = f.sandbox("c" + strconv.Itoa(i))
	}
	errs := make([]error, len(boxes))
	var all sync.WaitGroup
	for i, b := range boxes {
		all.Go(func() { errs[i] = f.ask(b) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("%v; log: %s", err, f.log())
	}
	for _, b := range boxes {
		if !held(b.dir) {
			t.Errorf("%s is not supervised", b.ID)
		}
	}
	f.within(5*time.Second, "one keeper and one worker", func() bool {
		return len(f.processes(Keeper)) == 1 && len(f.processes(Worker)) == 1
	})
}

// A supervisor in the foreground, such as that of a service manager, takes its
// turn.
func TestForegroundWaitsForItsTurn(t *testing.T) {
	f := newFolder(t)
	a := f.sandbox("a")
	f.mustAsk(a)
	c := exec.Command(self(t), "supervise", "--state", f.dir)
	var said strings.Builder
	c.Stderr = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill() }()
	time.Sleep(100 * time.Millisecond)
	if err := unix.Kill(f.one(Worker), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.within(5*time.Second, "the pair has ended", func() bool { return len(f.processes(Keeper))+len(f.processes(Worker)) == 0 })
	f.within(5*time.Second, "the other one has taken the sandbox", func() bool { return held(a.dir) })
	f.mustAsk(f.sandbox("b"))
	if n := len(f.processes(Worker)); n != 0 {
		t.Errorf("%d more workers", n)
	}
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil || !strings.Contains(said.String(), "another supervisor is there: waiting until it ends") {
		t.Errorf("%v, %q", err, said.String())
	}
	if held(a.dir) {
		t.Error("supervised after the end")
	}
}

func TestSignalEndsBoth(t *testing.T) {
	for _, role := range []Role{Keeper, Worker} {
		t.Run(string(role), func(t *testing.T) {
			f := newFolder(t)
			a := f.sandbox("a")
			f.mustAsk(a)
			if err := unix.Kill(f.one(role), unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			f.within(5*time.Second, "both have ended", func() bool { return len(f.processes(Keeper))+len(f.processes(Worker)) == 0 })
			if held(a.dir) {
				t.Error("supervised after the end")
			}
			if noted, ok := lease.Noted(a.dir); !ok || noted.Init != a.Init {
				t.Errorf("the next one does not know: %+v, %v", noted, ok)
			}
		})
	}
}

// Whoever ends a group of processes tells both, and more than once.
func TestSignalsToBothEndThem(t *testing.T) {
	f := newFolder(t)
	f.mustAsk(f.sandbox("a"))
	keeper, worker := f.one(Keeper), f.one(Worker)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if unix.Kill(worker, unix.SIGTERM) != nil {
			break
		}
		_ = unix.Kill(keeper, unix.SIGTERM)
	}
	f.within(5*time.Second, "both have ended", func() bool { return len(f.processes(Keeper))+len(f.processes(Worker)) == 0 })
	if log := f.log(); strings.Contains(log, "started again") {
		t.Errorf("the worker did not come to its end: %s", log)
	}
}

// With nothing to do the supervisor ends, and leaves nothing.
func TestIdleEnds(t *testing.T) {
	f := newFolder(t)
	f.tell("idle", "300ms")
	a := f.sandbox("a")
	f.mustAsk(a)
	time.Sleep(time.Second)
	worker := f.one(Worker)
	_ = unix.Kill(a.Init.Pid, unix.SIGKILL)
	f.within(5*time.Second, "both have ended", func() bool { return len(f.processes(Keeper))+len(f.processes(Worker)) == 0 })
	if _, err := os.Lstat(lease.SocketPath(f.dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is there: %v", err)
	}
	if data, err := os.ReadFile(lease.LogPath(f.dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a log: %q, %v", data, err)
	}
	for _, dir := range glob(t, "/sys/fs/cgroup/"+cgroupName, "/sys/fs/cgroup/*/"+cgroupName) {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err == nil && strings.TrimSpace(string(data)) == "" {
			t.Errorf("an empty cgroup is left: %s", dir)
		}
	}
	b := f.sandbox("b")
	f.mustAsk(b)
	if f.one(Worker) == worker {
		t.Error("the same worker")
	}
}

func glob(t *testing.T, patterns ...string) (found []string) {
	t.Helper()
	for _, p := range patterns {
		more, err := filepath.Glob(p)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, more...)
	}
	return found
}

func TestFolderThatGoes(t *testing.T) {
	f := newFolder(t)
	f.tell("idle", "1h")
	a := f.sandbox("a")
	f.mustAsk(a)
	_ = unix.Kill(a.Init.Pid, unix.SIGKILL)
	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	f.within(5*tickTime, "both have ended", func() bool { return len(f.processes(Keeper))+len(f.processes(Worker)) == 0 })
}

// What a supervisor that was killed between the two steps leaves: the reason is
// written down, and the sandbox lives.
func TestKilledBetweenStrikeAndKill(t *testing.T) {
	f := newFolder(t)
	a := f.sandbox("a")
	f.mustAsk(a)
	worker := f.one(Worker)
	f.tell("die", "")
	f.tell("strike", "")
	f.within(5*time.Second, "the sandbox has ended", func() bool { return !a.Init.Running() })
	if now := f.one(Worker); now == worker {
		t.Fatal("the worker was not killed")
	}
	s, err := f.Strike(a.Root, a.ID)
	if err != nil || s == nil || s.Code != verdict.MemoryLimitExceeded || s.Limit != 1<<20 || s.Measured != 1<<20+1 {
		t.Errorf("recorded %+v, %v", s, err)
	}
	f.within(5*time.Second, "the exit is recorded", func() bool {
		st, err := f.Load(a.Root, a.ID)
		return err == nil && st.Evidence != nil && st.Evidence.Exit.Source == verdict.ExitPidfd && *st.Evidence.Exit.Code == 137
	})
	if held(a.dir) {
		t.Error("the lease of a sandbox that has ended is held")
	}
}

func TestEngineThatFailsIsStartedAgain(t *testing.T) {
	f := newFolder(t)
	a := f.sandbox("a")
	f.mustAsk(a)
	keeper, worker := f.one(Keeper), f.one(Worker)
	f.tell("fail", "")
	f.within(2*time.Second, "another worker has the sandbox", func() bool {
		now := f.processes(Worker)
		return len(now) == 1 && now[0] != worker && held(a.dir)
	})
	if f.one(Keeper) != keeper {
		t.Error("the keeper is another one too")
	}
	if !strings.Contains(f.log(), "the supervisor has failed: as it was told") {
		t.Errorf("the log: %q", f.log())
	}
}

// An engine that does not end must not keep the folder from those who come.
func TestEngineThatHangsAtTheEnd(t *testing.T) {
	f := newFolder(t)
	a := f.sandbox("a")
	f.mustAsk(a)
	worker := f.one(Worker)
	f.tell("hang", "")
	if err := unix.Kill(worker, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.within(2*endTime, "another worker has the sandbox", func() bool {
		now := f.processes(Worker)
		return len(now) == 1 && now[0] != worker && held(a.dir)
	})
}

func TestReadOnlyFolder(t *testing.T) {
	f := newFolder(t)
	a := f.sandbox("a")
	readOnly(t, f.dir)
	defer func() { _ = unix.Unmount(f.dir, unix.MNT_DETACH) }()
	begin := time.Now()
	err := f.ask(a)
	if err == nil || !strings.Contains(err.Error(), "read-only file system") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v to say so", took)
	}
	if n := len(f.processes(Keeper)) + len(f.processes(Worker)); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

func TestFolderOfOthers(t *testing.T) {
	f := newFolder(t)
	a := f.sandbox("a")
	if err := os.Chmod(f.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := f.ask(a); err == nil || !strings.Contains(err.Error(), "may be written by others") {
		t.Errorf("%v", err)
	}
	f.within(5*time.Second, "nothing is left", func() bool { return len(f.processes(Keeper))+len(f.processes(Worker)) == 0 })
}
