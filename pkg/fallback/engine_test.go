package fallback

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
	"github.com/agentbox/agentbox/test/promise"
)

// churn is a chain of children that live for some milliseconds each.
const churn = "while :; do (i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done); done\n"

// gone fails if a process of a sandbox is left that has ended.
func (s *box) gone() {
	s.t.Helper()
	if left := s.pids(); len(left) > 0 {
		s.t.Errorf("left behind: %v\n%s", left, s.list())
	}
}

func TestMemoryBomb(t *testing.T) {
	tests := []struct {
		name, words string
		limit       int64
	}{
		{"0.2 GB/s", "grow 4000000000 200000000", 256 * mib},
		{"1 GB/s", "grow 4000000000 1000000000", 1024 * mib},
		{"as fast as it goes", "grow 4000000000 0", 1024 * mib},
		{"a child in a session of its own, of another user", "away grow 4000000000 1000000000", 512 * mib},
		{"nested pid namespaces", "nested nested grow 4000000000 1000000000", 512 * mib},
		{"200 small ones", "200 times grow 20000000 0", 1024 * mib},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newRecorder()
			var at time.Time
			h.struck = func() { at = time.Now() }
			e := engine(t, h)
			s := run(t, tt.words)
			add(t, e, s, Limits{Memory: tt.limit})
			s.begin()
			s.wait(30 * time.Second)
			end := time.Now()
			<-h.ended
			strike := h.only(t, verdict.MemoryLimitExceeded)
			t.Logf("%.1f %% over, dead after %v", 100*float64(strike.Measured-tt.limit)/float64(tt.limit), end.Sub(at))
			// Who is as fast as the machine may get further while this test is held up.
			far := strike.Measured > 2*tt.limit && tt.name != "as fast as it goes"
			if strike.Limit != tt.limit || strike.Measured <= tt.limit || far {
				t.Errorf("%+v", strike)
			}
			s.gone()
		})
	}
}

// TestMemoryBelowTheLimit is the control: who stays below is left alone.
func TestMemoryBelowTheLimit(t *testing.T) {
	h := newRecorder()
	e := engine(t, h)
	s := run(t, "20 times grow 10000000 0")
	add(t, e, s, Limits{Memory: 512 * mib, Pids: 1000})
	s.begin()
	until(t, 20*time.Second, "it was measured", func() bool {
		use, ok := e.Use(fmt.Sprint(s.init.Pid))
		return ok && use.Memory > 200e6 && use.Tasks > 20
	})
	h.none(t)
}

// TestWhoEntersIsAMember: also a process that comes in from outside.
func TestWhoEntersIsAMember(t *testing.T) {
	h := newRecorder()
	e := engine(t, h)
	s := run(t, "sleep")
	add(t, e, s, Limits{Memory: 256 * mib})
	s.begin()
	c := child([]string{"enter", fmt.Sprint(s.init.Pid), "grow", "4000000000", "500000000"})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Wait() }()
	s.wait(20 * time.Second)
	<-h.ended
	h.only(t, verdict.MemoryLimitExceeded)
	s.gone()
}

func TestCPU(t *testing.T) {
	fighter := "for i in 1 2 3; do while :; do kill -CONT -1 2>/dev/null; done & done; wait\n"
	tests := []struct {
		name, words, script string
		cpu                 int64
	}{
		{"4 spinners at 0.25", "4 times spin", "", 250_000},
		{"4 spinners at 0.5", "4 times spin", "", 500_000},
		{"4 spinners at 1", "4 times spin", "", 1_000_000},
		{"short-lived children", "", churn, 500_000},
		{"who sends SIGCONT to all", "", fighter, 500_000},
	}
	for _, how := range []string{"freezer", "signals"} {
		for _, tt := range tests {
			t.Run(how+"/"+tt.name, func(t *testing.T) {
				h := newRecorder()
				e := engine(t, h)
				words := tt.words
				if tt.script != "" {
					words = script(t, tt.script)
				}
				s := run(t, words)
				used, tell := inCgroup(t, s)
				if how == "signals" {
					tell = func(*Sandbox) {}
				}
				add(t, e, s, Limits{CPU: tt.cpu}, tell)
				before := used()
				s.prefer()
				s.begin()
				time.Sleep(3 * time.Second)
				// The clock last: a test that is held up in between must not count
				// what was used meanwhile in a shorter time.
				spent := used() - before
				took := time.Since(s.start)
				got := spent.Seconds() / took.Seconds() / (float64(tt.cpu) / 1e6)
				t.Logf("used/quota %.3f", got)
				// How little it gets is for the machine to say, which does other
				// things too; that it gets something, for the engine.
				if got > 1.5 || got < 0.1 {
					t.Errorf("used/quota %.3f", got)
				}
				h.none(t)
			})
		}
	}
}

// TestIO writes beyond the page cache and into it: the second is counted when
// it is written, not when it reaches the disk.
func TestIO(t *testing.T) {
	const rate = 20 * mib
	for _, how := range []string{"", " direct"} {
		t.Run("write"+how, func(t *testing.T) {
			e := engine(t, newRecorder())
			name := filepath.Join("/var/tmp", fmt.Sprint("agentbox-test-", os.Getpid()))
			defer os.Remove(name)
			s := run(t, "write "+name+how)
			add(t, e, s, Limits{WriteBPS: rate})
			written := func() int64 {
				dir, err := e.roster.read.Open(s.init.Pid)
				if err != nil {
					t.Fatal(err)
				}
				defer procfs.Close(dir)
				var r procfs.Reader
				io, err := r.IO(dir)
				if err != nil {
					t.Fatal(err)
				}
				return io.Written
			}
			// continues waits until it is let go again: there is as much in its
			// bucket then, each time.
			continues := func() {
				for _, state := range []bool{true, false} {
					until(t, 30*time.Second, fmt.Sprint("it is stopped: ", state), func() bool {
						var r procfs.Reader
						st, err := r.StatOf(s.init.Pid)
						return err == nil && (st.State == 'T') == state
					})
				}
			}
			s.begin()
			continues()
			start, before := time.Now(), written()
			for time.Since(start) < 3*time.Second {
				continues()
			}
			wrote := float64(written() - before)
			got := wrote / time.Since(start).Seconds() / rate
			t.Logf("written/limit %.3f", got)
			if got > 1.5 || got < 0.1 {
				t.Errorf("written/limit %.3f", got)
			}
		})
	}
}

// TestForkBomb: it does not get far. Either what is killed of it is its end, or
// the sandbox is ended. A limit of the kernel's protects this machine from the
// test.
func TestForkBomb(t *testing.T) {
	const net, limit = 3000, 100
	h := newRecorder()
	e := engine(t, h)
	s := run(t, script(t, "f() { f | f & }; f 2>/dev/null; sleep 1000\n"))
	most := pidsCgroup(t, s, net)
	add(t, e, s, Limits{Pids: limit})
	s.begin()
	var refused int64
	until(t, 30*time.Second, "it is ended, or has no more tasks than it may", func() bool {
		use, ok := e.Use(fmt.Sprint(s.init.Pid))
		refused = use.Refused
		return !ok || refused > 0 && len(s.pids()) <= limit
	})
	n := most()
	t.Logf("most %d, killed %d, %+v", n, refused, h.strikes)
	if n <= limit {
		t.Errorf("it had %d tasks: this proves nothing", n)
	}
	if len(h.ended) == 0 {
		if n >= net {
			t.Errorf("it had %d tasks, and was not ended", n)
		}
		return
	}
	s.wait(30 * time.Second)
	<-h.ended
	// How many there are until the first process has ended is up to the kernel:
	// it waits for locks that all of them want.
	if strike := h.only(t, verdict.PidsLimitReached); strike.Limit != limit || strike.Measured <= limit || strike.Measured > 5*limit {
		t.Errorf("%+v", strike)
	}
	s.gone()
}

// TestTooManyProcesses: the newest go, the others stay.
func TestTooManyProcesses(t *testing.T) {
	h := newRecorder()
	e := engine(t, h)
	s := run(t, script(t, "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do sleep 1000 & done; wait; sleep 1000\n"))
	add(t, e, s, Limits{Pids: 10})
	s.begin()
	until(t, 20*time.Second, "some are killed", func() bool {
		use, ok := e.Use(fmt.Sprint(s.init.Pid))
		return ok && use.Refused > 0 && use.Tasks <= 10
	})
	time.Sleep(200 * time.Millisecond)
	if n := len(s.pids()); n > 13 || n < 5 {
		t.Errorf("%d processes are left:\n%s", n, s.list())
	}
	h.none(t)
}

func TestCPUTime(t *testing.T) {
	const budget = time.Second
	for name, text := range map[string]string{"4 spinners": "", "short-lived children": churn} {
		t.Run(name, func(t *testing.T) {
			h := newRecorder()
			e := engine(t, h)
			words := "4 times spin"
			if text != "" {
				words = script(t, text)
			}
			s := run(t, words)
			used, _ := inCgroup(t, s)
			add(t, e, s, Limits{CPUTime: budget, Grace: 100 * time.Millisecond})
			s.begin()
			var at time.Duration
			h.struck = func() { at = used() }
			s.wait(60 * time.Second)
			<-h.ended
			h.only(t, verdict.CPUTimeExceeded)
			t.Logf("used %v", at)
			if at < budget*9/10 || at > budget*3/2 {
				t.Errorf("ended when it had used %v", at)
			}
			if last := h.spent[len(h.spent)-1]; last.CPU < budget {
				t.Errorf("spent at last: %v", last.CPU)
			}
			s.gone()
		})
	}
}

// TestSpentBefore: what was used under an earlier engine counts.
func TestSpentBefore(t *testing.T) {
	h := newRecorder()
	e := engine(t, h)
	s := run(t, "sleep")
	add(t, e, s, Limits{CPUTime: time.Hour}, func(sb *Sandbox) { sb.Spent.CPU = time.Hour })
	s.wait(20 * time.Second)
	<-h.ended
	h.only(t, verdict.CPUTimeExceeded)
}

func TestWallTime(t *testing.T) {
	const grace = 500 * time.Millisecond
	for _, words := range []string{"deaf sleep", "sleep"} {
		t.Run(words, func(t *testing.T) {
			h := newRecorder()
			var at time.Time
			h.struck = func() { at = time.Now() }
			e := engine(t, h)
			s := run(t, words)
			s.begin()
			if words == "deaf sleep" {
				time.Sleep(300 * time.Millisecond) // until it is
			}
			add(t, e, s, Limits{WallTime: time.Second, Grace: grace})
			s.wait(20 * time.Second)
			end := time.Now()
			<-h.ended
			strike := h.only(t, verdict.WallTimeExceeded)
			if strike.Measured < int64(time.Second) || strike.Measured > int64(10*time.Second) {
				t.Errorf("%+v", strike)
			}
			// Who hears SIGTERM may end at once: Go's programs do.
			if killed := end.Sub(at) >= grace; killed != (words == "deaf sleep") {
				t.Errorf("ended %v after SIGTERM, grace %v", end.Sub(at), grace)
			}
			if exit := h.exits[0]; exit.Source == verdict.ExitPidfd && exit.Code == nil {
				t.Errorf("exit: %+v", exit)
			}
		})
	}
}

// pidsCgroup puts a sandbox under a limit of the kernel's, and tells how many
// tasks it has had.
func pidsCgroup(t *testing.T, s *box, limit int) (most func() int) {
	t.Helper()
	dir := "/sys/fs/cgroup/pids"
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		dir = "/sys/fs/cgroup"
	}
	dir = filepath.Join(dir, fmt.Sprint("fallback-test-", s.init.Pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		promise.Lacks(t, "no cgroup can be made: ", err)
	}
	t.Cleanup(func() {
		s.end()
		for range 100 {
			if unix.Rmdir(dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s cannot be removed", dir)
	})
	if err := os.WriteFile(filepath.Join(dir, "pids.max"), fmt.Append(nil, limit), 0); err != nil {
		promise.Lacks(t, "no limit of processes: ", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, s.init.Pid), 0); err != nil {
		t.Fatal(err)
	}
	return func() int {
		for _, name := range []string{"pids.peak", "pids.events"} {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				n := 0
				if _, err := fmt.Sscan(strings.TrimPrefix(string(data), "max "), &n); err == nil && (name == "pids.peak" || n > 0) {
					return max(n, 0)
				}
			}
		}
		return 0
	}
}
