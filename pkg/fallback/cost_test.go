package fallback

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// still returns an engine that does not run, with sandboxes that do nothing, for
// one thread to call.
func still(t testing.TB, n int, l Limits) *Engine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a pid namespace needs root")
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	e, err := New(newRecorder())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for len(e.all) > 0 {
			e.drop(e.all[0])
		}
		e.Close()
	})
	for i := range n {
		c := exec.Command("sleep", "1000")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: unix.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		p, err := procfs.FindProcess(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.add(Sandbox{Key: fmt.Sprint(i), Init: p, Limits: l}); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

var everything = Limits{
	Memory: 1 << 30, Pids: 1000, CPU: 500_000, ReadBPS: 100 * mib, WriteBPS: 100 * mib, CPUTime: time.Hour, WallTime: time.Hour,
}

func TestARoundAllocatesNothing(t *testing.T) {
	e := still(t, 3, everything)
	if n := testing.AllocsPerRun(100, func() {
		if err := e.tick(e.now()); err != nil {
			t.Fatal(err)
		}
		for _, w := range e.all {
			// As if it had done something, so that all is measured.
			w.changed = true
			w.memory.at, w.tasks.at = -time.Hour, -time.Hour
			e.look(w, e.now())
			w.halt(&e.roster)
			w.resume()
		}
		if err := e.roster.relist(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations in a round", n)
	}
}

// BenchmarkIdle tells what part of a CPU 500 sandboxes cost that do nothing.
func BenchmarkIdle(b *testing.B) {
	e := still(b, 500, everything)
	b.ResetTimer()
	start, cpu, rounds := time.Now(), threadTime(b), 0
	for b.Loop() {
		for end := time.Now().Add(time.Second); time.Now().Before(end); rounds++ {
			if err := e.sleep(); err != nil {
				b.Fatal(err)
			}
			n, _ := unix.EpollWait(e.poll, e.events[:], 1000)
			for i := range max(n, 0) {
				e.event(e.events[i].Fd, e.now())
			}
			if err := e.round(e.now()); err != nil {
				b.Fatal(err)
			}
		}
	}
	took := time.Since(start)
	b.ReportMetric(100*float64(threadTime(b)-cpu)/float64(took), "%CPU")
	b.ReportMetric(float64(rounds)/took.Seconds(), "rounds/s")
}

func BenchmarkLook(b *testing.B) {
	e := still(b, 1, everything)
	b.ReportAllocs()
	for b.Loop() {
		e.look(e.all[0], e.now())
	}
}

func BenchmarkTick(b *testing.B) {
	e := still(b, 1, everything)
	b.ReportAllocs()
	for b.Loop() {
		if err := e.tick(e.now()); err != nil {
			b.Fatal(err)
		}
	}
}

func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
