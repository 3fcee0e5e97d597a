package fallback

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
	"github.com/agentbox/agentbox/test/promise"
)

// box is a sandbox: a process in a pid namespace of its own, with all that is in it.
type box struct {
	t     testing.TB
	cmd   *exec.Cmd
	init  procfs.Process
	ns    uint64
	gate  *os.File
	start time.Time
	ended chan struct{}
	kill  sync.Once
	thaw  func() // what a test that failed left frozen
}

// run starts a workload, which waits for begin.
func run(t testing.TB, words string) *box {
	t.Helper()
	if os.Geteuid() != 0 {
		promise.Lacks(t, "a pid namespace needs root")
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := child(append([]string{"gate"}, strings.Fields(words)...))
	c.Stdin = out
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	s := &box{t: t, cmd: c, gate: in, ended: make(chan struct{})}
	go func() {
		_ = c.Wait()
		close(s.ended)
	}()
	t.Cleanup(s.end)
	if s.init, err = procfs.FindProcess(c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	s.ns = namespace(t, c.Process.Pid)
	return s
}

// prefer gives it more of the CPU than other sessions get (sched(7), the
// autogroup feature), so that its limit holds it back and not they.
func (s *box) prefer() {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", s.init.Pid), []byte("-8"), 0)
}

func namespace(t testing.TB, pid int) uint64 {
	t.Helper()
	var r procfs.Reader
	ns, err := r.NamespaceOf(pid, procfs.PIDNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func (s *box) begin() {
	s.t.Helper()
	s.start = time.Now()
	if _, err := s.gate.Write([]byte("\n")); err != nil {
		s.t.Fatal(err)
	}
}

// end kills the sandbox and waits for it.
func (s *box) end() {
	s.kill.Do(func() {
		_ = s.cmd.Process.Kill()
		if s.thaw != nil {
			s.thaw()
		}
		<-s.ended
		s.gate.Close()
	})
}

// wait waits until the sandbox has ended by itself.
func (s *box) wait(limit time.Duration) {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(limit):
		s.t.Fatalf("still there after %v:\n%s", limit, s.list())
	}
}

// pids lists who is in the pid namespace itself.
func (s *box) pids() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		s.t.Fatal(err)
	}
	var r procfs.Reader
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil {
			continue
		}
		if ns, err := r.NamespaceOf(pid, procfs.PIDNamespace); err == nil && ns == s.ns {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (s *box) list() string {
	var b strings.Builder
	for _, pid := range s.pids() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		b.Write(line)
	}
	return b.String()
}

// state is that of the pids' processes: how many of them are stopped.
func (s *box) stopped() (stopped, all int) {
	var r procfs.Reader
	for _, pid := range s.pids() {
		if st, err := r.StatOf(pid); err == nil && !st.Ended() {
			all++
			if st.State == 'T' {
				stopped++
			}
		}
	}
	return stopped, all
}

// recorder remembers what it was told.
type recorder struct {
	mu      sync.Mutex
	strikes []verdict.Strike
	spent   []Spent
	exits   []verdict.Exit
	ended   chan string
	// struck is called with the strike, before the sandbox is ended.
	struck func()
}

func newRecorder() *recorder { return &recorder{ended: make(chan string, 1000)} }

func (h *recorder) Strike(_ string, s verdict.Strike) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.strikes = append(h.strikes, s)
	if h.struck != nil {
		h.struck()
	}
	return nil
}

func (h *recorder) Spent(_ string, s Spent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spent = append(h.spent, s)
}

func (h *recorder) Ended(key string, exit verdict.Exit) {
	h.mu.Lock()
	h.exits = append(h.exits, exit)
	h.mu.Unlock()
	h.ended <- key
}

// only returns the one strike that there was.
func (h *recorder) only(t testing.TB, code verdict.Code) verdict.Strike {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.strikes) != 1 || h.strikes[0].Code != code {
		t.Fatalf("strikes: %+v, want one %s", h.strikes, code)
	}
	return h.strikes[0]
}

func (h *recorder) none(t testing.TB) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.strikes) != 0 {
		t.Fatalf("strikes: %+v, want none", h.strikes)
	}
}

func engine(t testing.TB, h Host) *Engine {
	t.Helper()
	e, err := New(h)
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- e.Run() }()
	t.Cleanup(func() {
		e.Close()
		if err := <-failed; err != nil {
			t.Errorf("the engine: %v", err)
		}
	})
	return e
}

func add(t testing.TB, e *Engine, s *box, l Limits, more ...func(*Sandbox)) {
	t.Helper()
	sb := Sandbox{Key: fmt.Sprint(s.init.Pid), Init: s.init, Limits: l}
	for _, f := range more {
		f(&sb)
	}
	if err := e.Add(sb); err != nil {
		t.Fatal(err)
	}
}

// inCgroup puts the first process into a cgroup of its own, on whatever this
// machine has of cgroups. used is the CPU time that the kernel counts there;
// tell tells the engine of the cgroup, with a HoldFile beside.
func inCgroup(t testing.TB, s *box) (used func() time.Duration, tell func(*Sandbox)) {
	t.Helper()
	layout, err := cgroup.Host.Layout()
	if err != nil {
		t.Fatal(err)
	}
	paths := cgroup.Paths{Version: layout.Version, Places: map[string]cgroup.Place{}}
	controllers := []string{""}
	if layout.Version == 1 {
		controllers = []string{"cpuacct", "freezer"}
	}
	mounts, err := cgroup.Host.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range controllers {
		mount := cgroup.MountPoint
		if c != "" {
			m, ok := cgroup.FindMount(mounts, c)
			if !ok {
				promise.Lacks(t, "no cgroup controller "+c)
			}
			mount = m.Point
		}
		dir := filepath.Join(mount, fmt.Sprintf("fallback-test-%d", s.init.Pid))
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
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, s.init.Pid), 0); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			t.Fatal(err)
		}
		paths.Places[c] = cgroup.Place{Mount: mount, Path: "/" + filepath.Base(dir), ID: st.Ino}
	}
	s.thaw = func() {
		f := openFreezer(&paths)
		_ = f.set(false)
		closeIf(f.fd)
	}
	counter := openCPUFile(&paths)
	t.Cleanup(func() { closeIf(counter.fd) })
	used = func() time.Duration {
		n, err := counter.read()
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(n)
	}
	hold := filepath.Join(t.TempDir(), "hold")
	return used, func(sb *Sandbox) { sb.Cgroup, sb.HoldFile = &paths, hold }
}

func until(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
