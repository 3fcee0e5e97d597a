package fallback

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
	"github.com/agentbox/agentbox/test/promise"
)

// crawl is so little CPU that the sandbox is stopped nearly all the time.
const crawl = 10_000

// hostEngine watches over the sandbox in a file, until it is killed.
func hostEngine(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var s Sandbox
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	e, err := New(newRecorder())
	if err != nil {
		return err
	}
	failed := make(chan error)
	go func() { failed <- e.Run() }()
	if err := e.Add(s); err != nil {
		return err
	}
	fmt.Println("added")
	return <-failed
}

// frozen reports whether the freezer of a sandbox is on.
func frozen(t testing.TB, s Sandbox) bool {
	t.Helper()
	f := openFreezer(s.Cgroup)
	defer closeIf(f.fd)
	if f.fd < 0 {
		t.Fatal("no freezer")
	}
	return f.frozen()
}

// TestKilledEngine: what an engine had stopped when it was killed, the next one
// lets go.
func TestKilledEngine(t *testing.T) {
	for _, how := range []string{"freezer", "signals", "signals without a mark"} {
		t.Run(how, func(t *testing.T) {
			s := run(t, "2 times spin")
			used, tell := inCgroup(t, s)
			sb := Sandbox{Key: "x", Init: s.init, Limits: Limits{CPU: crawl}}
			tell(&sb)
			switch how {
			case "signals":
				sb.Cgroup = nil
			case "signals without a mark":
				sb.Cgroup, sb.HoldFile = nil, ""
			}
			file := filepath.Join(t.TempDir(), "sandbox")
			data, err := json.Marshal(sb)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			first := child([]string{"host", file})
			first.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := first.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := first.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = first.Process.Kill()
				_ = first.Wait()
			}()
			if _, err := out.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			s.begin()
			stopped := func() bool {
				if how == "freezer" {
					return frozen(t, sb)
				}
				n, all := s.stopped()
				return n == all && all == 3
			}
			until(t, 20*time.Second, "all are there and stopped", func() bool { return len(s.pids()) == 3 && stopped() })
			_ = first.Process.Kill()
			_ = first.Wait()
			if !stopped() {
				t.Fatal("nothing was left stopped: this proves nothing")
			}
			e := engine(t, newRecorder())
			sb.Limits.CPU = 0
			if err := e.Add(sb); err != nil {
				t.Fatal(err)
			}
			before := used()
			until(t, 20*time.Second, "it runs again", func() bool { return used()-before > 100*time.Millisecond && !stopped() })
		})
	}
}

// TestWhoLooksSeesNothingFrozen: as long as somebody has the shared lock, the
// sandbox is not frozen, and yet held to its limit.
func TestWhoLooksSeesNothingFrozen(t *testing.T) {
	s := run(t, "2 times spin")
	used, tell := inCgroup(t, s)
	var sb Sandbox
	tell(&sb)
	e := engine(t, newRecorder())
	add(t, e, s, Limits{CPU: 5 * crawl}, tell)
	s.begin()
	until(t, 20*time.Second, "it is frozen", func() bool { return frozen(t, sb) })
	f, err := os.Open(sb.HoldFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	until(t, 2*time.Second, "the lock is given", func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil })
	before := used()
	for start := time.Now(); time.Since(start) < 2*time.Second; time.Sleep(time.Millisecond) {
		if frozen(t, sb) {
			t.Fatal("frozen before the eyes of somebody who has the lock")
		}
	}
	if got := used() - before; got > 500*time.Millisecond {
		t.Errorf("used %v in 2 s, may use 100 ms", got)
	}
	f.Close()
	until(t, 20*time.Second, "it is frozen again", func() bool { return frozen(t, sb) })
}

// TestPausedByItsUser: what docker pause froze stays frozen.
func TestPausedByItsUser(t *testing.T) {
	s := run(t, "sleep")
	_, tell := inCgroup(t, s)
	var sb Sandbox
	tell(&sb)
	f := openFreezer(sb.Cgroup)
	defer closeIf(f.fd)
	if err := f.set(true); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.set(false) }()
	e := engine(t, newRecorder())
	add(t, e, s, Limits{CPU: crawl}, tell)
	// As if it owed much.
	if err := e.do(func() {
		e.all[0].cpu.tokens = -1e6
		e.lookAt(e.all[0], 0)
	}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if !frozen(t, sb) {
		t.Error("thawed")
	}
	e.Remove(fmt.Sprint(s.init.Pid))
	if !frozen(t, sb) {
		t.Error("thawed when it was let go")
	}
}

func TestRemoveLetsGo(t *testing.T) {
	s := run(t, "spin")
	used, _ := inCgroup(t, s)
	e := engine(t, newRecorder())
	add(t, e, s, Limits{CPU: crawl})
	s.begin()
	until(t, 20*time.Second, "it is stopped", func() bool { n, all := s.stopped(); return n == all && used() > 20*time.Millisecond })
	e.Remove(fmt.Sprint(s.init.Pid))
	before := used()
	until(t, 20*time.Second, "it runs", func() bool { return used()-before > 50*time.Millisecond })
	if _, ok := e.Use(fmt.Sprint(s.init.Pid)); ok {
		t.Error("still watched over")
	}
}

// TestStruckBefore: a sandbox whose end is recorded already is ended, and no
// other reason is recorded.
func TestStruckBefore(t *testing.T) {
	h := newRecorder()
	e := engine(t, h)
	s := run(t, "sleep")
	add(t, e, s, Limits{Memory: 1}, func(sb *Sandbox) { sb.Struck = &verdict.Strike{Code: verdict.PidsLimitReached} })
	s.wait(20 * time.Second)
	<-h.ended
	h.none(t)
	if exit := h.exits[0]; exit.Source != verdict.ExitPidfd && exit.Source != verdict.ExitUnknown || exit.Signal != nil && *exit.Signal != int(unix.SIGKILL) {
		t.Errorf("exit: %+v", exit)
	}
}

// TestSharedNamespaceIsRefused: a sandbox in the namespace of others cannot be
// told from them.
func TestSharedNamespaceIsRefused(t *testing.T) {
	e := engine(t, newRecorder())
	self, err := procfs.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Add(Sandbox{Key: "own", Init: self}); err == nil || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("this very process: %v", err)
	}
	s := run(t, "sleep")
	add(t, e, s, Limits{})
	if err := e.Add(Sandbox{Key: "again", Init: s.init}); err == nil || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("the namespace of another sandbox: %v", err)
	}
	if err := e.Add(Sandbox{Key: fmt.Sprint(s.init.Pid), Init: s.init}); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("twice: %v", err)
	}
}

// TestRecycledPid: who gets the pid of a member that has ended is not touched.
func TestRecycledPid(t *testing.T) {
	const last = "/proc/sys/kernel/ns_last_pid"
	e := still(t, 1, Limits{})
	w := e.all[0]
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	// It is taken for a member, and ends.
	dir, err := e.roster.read.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	if !e.roster.admit(w, pid, dir) {
		t.Fatal("not taken")
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	var other *exec.Cmd
	for range 100 {
		if err := os.WriteFile(last, fmt.Append(nil, pid-1), 0); err != nil {
			promise.Lacks(t, "pids cannot be chosen here: ", err)
		}
		other = exec.Command("sleep", "1000")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		if other.Process.Pid == pid {
			break
		}
		_ = other.Process.Kill()
		_ = other.Wait()
	}
	if other.Process.Pid != pid {
		t.Fatal("the pid was not to be had")
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	w.halt(&e.roster)
	w.killNewest(1 << 20)
	e.kill(w)
	time.Sleep(20 * time.Millisecond)
	if st, err := e.roster.read.StatOf(pid); err != nil || st.Ended() || st.State == 'T' {
		t.Errorf("the other one: %+v, %v", st, err)
	}
}

func TestClosedEngine(t *testing.T) {
	e, err := New(newRecorder())
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	if err := e.Add(Sandbox{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Add: %v", err)
	}
	if err := e.Run(); !errors.Is(err, ErrClosed) {
		t.Errorf("Run: %v", err)
	}
	e.Close()
}
