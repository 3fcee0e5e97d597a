package supervise

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
	"github.com/agentbox/agentbox/test/promise"
)

// spinner is a process that burns CPU time in a pid namespace of its own.
func spinner(t *testing.T) int {
	t.Helper()
	c := exec.Command("/proc/self/exe", "spin")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		promise.Lacks(t, "pid namespaces: ", err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid
}

// spin is the spinner itself.
func spin() {
	fmt.Println("ready")
	for n := 0; ; n++ {
		_ = n * n
	}
}

// cpuTime is what a process has used.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	var ticks time.Duration
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond
}

func stateOf(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))[0]
}

// With the real engine: whenever the worker is killed, the sandbox is held to its
// CPU again within a second, and nothing of it stays stopped.
func TestKilledWhileASandboxIsStopped(t *testing.T) {
	f := newFolder(t)
	f.tell("real", "")
	pid := spinner(t)
	init, err := procfs.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	const share = 0.2
	a := f.sandboxOf("a", init, limits.Entry{Key: limits.KeyCPUs, Dimension: limits.CPU, Value: limits.Limit(share * 1e6), Enforcer: limits.EnforcerSupervisor})
	f.mustAsk(a)
	stopped := 0
	const rounds = 20
	for round := range rounds {
		time.Sleep(time.Duration(100+round*37%100) * time.Millisecond)
		before := f.one(Worker)
		if stateOf(t, pid) == "T" {
			stopped++
		}
		if err := unix.Kill(before, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		f.within(time.Second, fmt.Sprintf("round %d: another worker has the sandbox", round), func() bool {
			now := f.processes(Worker)
			return len(now) == 1 && now[0] != before && held(a.dir)
		})
	}
	if stopped == 0 {
		t.Errorf("the sandbox was not stopped once in %d rounds: this test has shown nothing", rounds)
	}
	// Enforced, and not stopped for good.
	used, begin := cpuTime(t, pid), time.Now()
	time.Sleep(3 * time.Second)
	got := (cpuTime(t, pid) - used).Seconds() / time.Since(begin).Seconds()
	if got > 1.5*share {
		t.Errorf("it uses %.2f CPUs of %.2f", got, share)
	}
	if got == 0 {
		t.Error("it stays stopped")
	}
	// Nobody comes again: what is stopped now must run on.
	for _, role := range []Role{Keeper, Worker} {
		_ = unix.Kill(f.one(role), unix.SIGSTOP)
	}
	for _, role := range []Role{Worker, Keeper} {
		_ = unix.Kill(f.one(role), unix.SIGKILL)
	}
	f.within(5*time.Second, "nobody holds the lease", func() bool { return !held(a.dir) })
	f.mustAsk(a)
	if err := unix.Kill(f.one(Worker), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.within(5*time.Second, "both have ended", func() bool { return len(f.processes(Keeper))+len(f.processes(Worker)) == 0 })
	if s := stateOf(t, pid); s == "T" {
		t.Error("the sandbox is stopped, and nobody is there to let it go on")
	}
}

// What was used of a budget outlives whoever counted it.
func TestBudgetOutlivesTheWorker(t *testing.T) {
	f := newFolder(t)
	f.tell("real", "")
	pid := spinner(t)
	init, err := procfs.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	const budget = 3 * time.Second
	a := f.sandboxOf("a", init, limits.Entry{Key: limits.KeyCPUTime, Dimension: limits.CPUTime, Value: limits.Limit(int64(budget)), Enforcer: limits.EnforcerSupervisor})
	f.mustAsk(a)
	f.within(time.Minute, "half of it is used", func() bool { return cpuTime(t, pid) > budget/2 })
	worker := f.one(Worker)
	_ = unix.Kill(worker, unix.SIGKILL)
	f.within(time.Minute, "the strike is recorded", func() bool {
		s, err := f.Strike(a.Root, a.ID)
		return err == nil && s != nil
	})
	if f.one(Worker) == worker {
		t.Fatal("the worker was not killed")
	}
	s, err := f.Strike(a.Root, a.ID)
	if err != nil || s.Code != verdict.CPUTimeExceeded || s.Limit != int64(budget) || s.Measured < int64(budget) || s.Measured > int64(2*budget) {
		t.Errorf("recorded %+v, %v", s, err)
	}
	f.within(grace+5*time.Second, "the sandbox has ended", func() bool { return !init.Running() })
	f.within(5*time.Second, "its exit is recorded", func() bool {
		st, err := f.Load(a.Root, a.ID)
		return err == nil && st.Evidence != nil && st.Evidence.Exit.Source == verdict.ExitPidfd && st.Evidence.Strike != nil
	})
}

// A container can wait for long between its create and its start. Its time runs
// from when it is taken, and goes on under the next worker.
func TestWallTimeRunsFromTheFirstTake(t *testing.T) {
	f := newFolder(t)
	f.tell("real", "")
	init, err := procfs.FindProcess(spinner(t))
	if err != nil {
		t.Fatal(err)
	}
	const budget, waits = 2 * time.Second, 3 * time.Second
	time.Sleep(waits)
	a := f.sandboxOf("a", init, limits.Entry{Key: limits.KeyWallTime, Dimension: limits.WallTime, Value: limits.Limit(int64(budget)), Enforcer: limits.EnforcerSupervisor})
	taken := time.Now()
	f.mustAsk(a)
	time.Sleep(budget / 2)
	_ = unix.Kill(f.one(Worker), unix.SIGKILL)
	f.within(time.Minute, "the strike is recorded", func() bool {
		s, err := f.Strike(a.Root, a.ID)
		return err == nil && s != nil
	})
	s, err := f.Strike(a.Root, a.ID)
	if err != nil || s.Code != verdict.WallTimeExceeded || s.Measured < int64(budget) {
		t.Fatalf("recorded %+v, %v", s, err)
	}
	if after := s.At.Sub(taken); after < budget*9/10 || time.Duration(s.Measured) > after+time.Second {
		t.Errorf("struck %v after it was taken, at %v", after, time.Duration(s.Measured))
	}
}
