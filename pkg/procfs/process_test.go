package procfs

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/test/promise"
)

// child starts a process that waits, and ends it with the test.
func child(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

func hold(t testing.TB, r *Reader, pid int) int {
	t.Helper()
	dir, err := r.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(dir) })
	return dir
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited 5 s in vain: %s", what)
}

func TestProcess(t *testing.T) {
	self, err := FindProcess(os.Getpid())
	if err != nil || !self.Alive() || !self.Running() {
		t.Errorf("this process: %+v, %v", self, err)
	}
	if age := SinceBoot() - self.Started(); age < -tick || age > time.Hour {
		t.Errorf("this process is %v old", age)
	}
	other := Process{Pid: self.Pid, StartTime: self.StartTime + 1}
	for name, p := range map[string]Process{"zero": {}, "negative": {Pid: -1}, "used again": other} {
		if p.Alive() || p.Running() {
			t.Errorf("%s is alive", name)
		}
		if fd, err := new(Reader).OpenPidfd(p); !errors.Is(err, ErrGone) || fd != -1 {
			t.Errorf("a pidfd of %s: %d, %v", name, fd, err)
		}
	}
	if _, err := FindProcess(1 << 30); !errors.Is(err, ErrGone) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nobody: %v", err)
	}
}

// TestEnd: from running by way of a zombie to nobody.
func TestEnd(t *testing.T) {
	var r Reader
	cmd := child(t, "sleep", "1000")
	dir := hold(t, &r, cmd.Process.Pid)
	p, err := FindProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := r.OpenPidfd(p)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(pidfd)
	if HasEnded(pidfd) || !p.Running() {
		t.Error("it has ended")
	}
	if err := Signal(dir, 0); err != nil {
		t.Error(err)
	}
	await(t, "its memory", func() bool {
		m, err := r.Memory(dir)
		if err != nil {
			t.Fatal(err)
		}
		return m.Anon > 0 && m.File > 0 && m.PageTables > 0
	})

	if err := Signal(dir, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the end", func() bool { return HasEnded(pidfd) })
	if p.Running() || !p.Alive() {
		t.Errorf("not waited for: running %t, alive %t", p.Running(), p.Alive())
	}
	if st, err := r.Stat(dir); err != nil || !st.Ended() || st.StartTime != p.StartTime {
		t.Errorf("stat of a zombie: %+v, %v", st, err)
	}
	if m, err := r.Memory(dir); err != nil || m != (Memory{}) {
		t.Errorf("memory of a zombie: %+v, %v", m, err)
	}
	if m, err := r.Statm(dir); err != nil || m != (Statm{}) {
		t.Errorf("statm of a zombie: %+v, %v", m, err)
	}
	if _, err := r.Rollup(dir); !errors.Is(err, ErrGone) {
		t.Errorf("rollup of a zombie: %v", err)
	}
	if _, err := r.IO(dir); err != nil {
		t.Errorf("io of a zombie: %v", err)
	}

	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if p.Alive() {
		t.Error("waited for, and alive")
	}
	for name, read := range map[string]func() error{
		"stat":      func() error { _, err := r.Stat(dir); return err },
		"statm":     func() error { _, err := r.Statm(dir); return err },
		"status":    func() error { _, err := r.Memory(dir); return err },
		"rollup":    func() error { _, err := r.Rollup(dir); return err },
		"io":        func() error { _, err := r.IO(dir); return err },
		"namespace": func() error { _, err := r.Namespace(dir, PIDNamespace); return err },
		"maps":      func() error { _, err := r.Maps(dir); return err },
		"fds":       func() error { _, err := r.OpenFDs(dir); return err },
		"open":      func() error { _, err := r.Open(p.Pid); return err },
		"signal":    func() error { return Signal(dir, 0) },
		"pidfd":     func() error { return Signal(pidfd, 0) },
		"clock":     func() error { _, err := CPUTime(p.Pid); return err },
	} {
		if err := read(); !errors.Is(err, ErrGone) {
			t.Errorf("%s of nobody: %v", name, err)
		}
	}
}

// TestNames: a process chooses its own.
func TestNames(t *testing.T) {
	var r Reader
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a) Z 1", "(", "new\nline", "RssAnon:\t9 kB", "x\nRssAnon:\t9 kB"} {
		// The name is that of the file.
		program := filepath.Join(t.TempDir(), name)
		if err := os.Symlink(sleep, program); err != nil {
			t.Fatal(err)
		}
		cmd := child(t, program, "1000")
		dir := hold(t, &r, cmd.Process.Pid)
		comm, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/comm")
		if want := name[:min(len(name), 15)] + "\n"; err != nil || string(comm) != want {
			t.Fatalf("the name is %q, %v", comm, err)
		}
		st, err := r.Stat(dir)
		if err != nil || st.Parent != os.Getpid() || st.Threads != 1 || !strings.ContainsRune("RSD", rune(st.State)) {
			t.Errorf("%q: %+v, %v", name, st, err)
		}
		if m, err := r.Memory(dir); err != nil || m.Anon == 0 || m.Anon == 9<<10 {
			t.Errorf("%q: %+v, %v", name, m, err)
		}
	}
}

// TestManyGroups: the line of groups is longer than any buffer, and comes before
// what counts.
func TestManyGroups(t *testing.T) {
	if os.Getuid() != 0 {
		promise.Lacks(t, "only root can have many groups")
	}
	var r Reader
	// Groups are of the thread, and this one is not used again.
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		groups := make([]uint32, 65536)
		for i := range groups {
			groups[i] = uint32(4000000000 + i)
		}
		_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0)
		if errno != 0 {
			done <- errno
			return
		}
		dir, err := openAt(unix.AT_FDCWD, []byte("/proc/thread-self\x00"), unix.O_DIRECTORY)
		if err != nil {
			done <- err
			return
		}
		defer Close(dir)
		m, err := r.Memory(dir)
		if err == nil && (m.Anon < 1<<20 || m.PageTables == 0) {
			err = errors.New("memory is missing")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestKernelThread(t *testing.T) {
	var r Reader
	root, err := OpenRoot()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(root)
	entries, err := r.List(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, e := range entries {
		st, err := r.StatOf(e.Number)
		if err != nil || st.Parent != 2 {
			continue
		}
		dir := hold(t, &r, e.Number)
		found++
		if m, err := r.Memory(dir); err == nil && m != (Memory{}) {
			t.Errorf("kernel thread %d: %+v", e.Number, m)
		}
		if m, err := r.Statm(dir); err == nil && m != (Statm{}) {
			t.Errorf("kernel thread %d: %+v", e.Number, m)
		}
	}
	if found == 0 {
		t.Skip("this pid namespace has no kernel threads")
	}
}

func TestList(t *testing.T) {
	var r Reader
	root, err := OpenRoot()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(root)
	cmd := child(t, "sleep", "1000")
	find := func(pid int) (found []Entry) {
		entries, err := r.List(root, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Number == pid {
				found = append(found, e)
			}
		}
		return found
	}
	first, again := find(cmd.Process.Pid), find(cmd.Process.Pid)
	if len(first) != 1 || first[0].Ino == 0 || !slices.Equal(first, again) {
		t.Errorf("%v, then %v", first, again)
	}
	if len(find(1)) != 1 || len(find(os.Getpid())) != 1 {
		t.Error("process 1 or this one is not in the list")
	}

	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.WriteString(strings.Repeat("x", 100<<10))
	f.Sync()
	dir := hold(t, &r, os.Getpid())
	fds, err := r.OpenFDs(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fds)
	list, err := r.List(fds, nil)
	if err != nil || !slices.ContainsFunc(list, func(e Entry) bool { return e.Number == int(f.Fd()) }) {
		t.Errorf("descriptor %d in %v, %v", f.Fd(), list, err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	inode, err := r.FD(fds, int(f.Fd()))
	if err != nil || !inode.Regular || inode.Bytes < 100<<10 || inode.Bytes > 200<<10 || inode.Ino != info.Sys().(*syscall.Stat_t).Ino {
		t.Errorf("%+v, %v", inode, err)
	}
}

func TestLastPid(t *testing.T) {
	l, err := OpenLastPid()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before, err := l.Read()
	if err != nil || before < 1 {
		t.Errorf("%d, %v", before, err)
	}
	child(t, "sleep", "1000")
	if after, err := l.Read(); err != nil || after == before {
		t.Errorf("a new process: %d, then %d, %v", before, after, err)
	}
}

func TestCPUTime(t *testing.T) {
	cmd := child(t, "sh", "-c", "while :; do :; done")
	await(t, "50 ms of CPU time", func() bool {
		used, err := CPUTime(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return used >= 50*time.Millisecond
	})
	var r Reader
	dir := hold(t, &r, cmd.Process.Pid)
	if err := Signal(dir, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await(t, "the stop", func() bool {
		st, err := r.Stat(dir)
		return err == nil && st.State == 'T'
	})
	exact, err := CPUTime(cmd.Process.Pid)
	st, err2 := r.Stat(dir)
	if rough := st.UTime + st.STime; err != nil || err2 != nil || (exact-rough).Abs() > 2*tick {
		t.Errorf("the clock says %v, stat %v, %v, %v", exact, rough, err, err2)
	}
}

func TestThreads(t *testing.T) {
	var r Reader
	dir := hold(t, &r, os.Getpid())
	before, err := r.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	ready := make(chan struct{})
	for range 20 {
		go func() {
			runtime.LockOSThread()
			ready <- struct{}{}
			<-stop
		}()
	}
	for range 20 {
		<-ready
	}
	defer close(stop)
	if after, err := r.Stat(dir); err != nil || after.Threads < 20 || after.Threads < before.Threads {
		t.Errorf("%d threads, then %d, %v", before.Threads, after.Threads, err)
	}
}

func TestIO(t *testing.T) {
	dir := t.TempDir()
	cmd := child(t, "sh", "-c", `dd if=/dev/zero of="$1" bs=1M count=8 conv=fsync 2>&1; echo done >"$1.done"; exec sleep 1000`, "-", dir+"/f")
	await(t, "8 MiB", func() bool { _, err := os.Stat(dir + "/f.done"); return err == nil })
	var r Reader
	got, err := r.IO(hold(t, &r, cmd.Process.Pid))
	if err != nil || got.Written < 8<<20 || got.Written > 9<<20 {
		t.Errorf("written by a child that was waited for: %+v, %v", got, err)
	}
}

func TestNamespace(t *testing.T) {
	var r Reader
	self := hold(t, &r, os.Getpid())
	for _, kind := range []Namespace{PIDNamespace, MountNamespace, IPCNamespace} {
		name := "/proc/self/" + string(bytes.TrimRight(kind, "\x00"))
		want, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		held, err1 := r.Namespace(self, kind)
		of, err2 := r.NamespaceOf(os.Getpid(), kind)
		if err1 != nil || err2 != nil || held != want.Sys().(*syscall.Stat_t).Ino || of != held {
			t.Errorf("%s: %d, %d, %v, %v", name, held, of, err1, err2)
		}
	}
}

// TestEndMeanwhile: whatever is read of processes that end at once is right, or
// the error is ErrGone.
func TestEndMeanwhile(t *testing.T) {
	var r Reader
	gone := 0
	for range 300 {
		cmd := exec.Command("true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		dir, err := r.Open(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		waited := make(chan error)
		go func() { waited <- cmd.Wait() }()
		for ended := false; !ended; {
			st, err1 := r.Stat(dir)
			_, err2 := r.Statm(dir)
			_, err3 := r.Memory(dir)
			_, err4 := r.Rollup(dir)
			_, err5 := r.IO(dir)
			_, err6 := r.Namespace(dir, PIDNamespace)
			for _, err := range []error{err1, err2, err3, err4, err5, err6} {
				if err != nil && !errors.Is(err, ErrGone) {
					t.Fatal(err)
				}
			}
			if err1 == nil && st.Parent != os.Getpid() && st.State != 'X' {
				t.Fatalf("%+v is of another process", st)
			}
			if ended = err1 != nil; ended {
				gone++
			}
		}
		Close(dir)
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
	}
	if gone != 300 {
		t.Errorf("%d of 300 ended", gone)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	r := new(Reader)
	cmd := child(t, "sleep", "1000")
	dir := hold(t, r, cmd.Process.Pid)
	gone := hold(t, r, child(t, "sleep", "1000").Process.Pid)
	Signal(gone, unix.SIGKILL)
	await(t, "a zombie", func() bool { st, err := r.Stat(gone); return err == nil && st.Ended() })
	root, err := OpenRoot()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(root)
	fds, err := r.OpenFDs(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fds)
	last, err := OpenLastPid()
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	anonymous, err := OpenAnonymous()
	if err != nil {
		t.Fatal(err)
	}
	defer anonymous.Close()
	self, err := FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	entries := make([]Entry, 0, 10000)
	for name, read := range map[string]func() error{
		"stat":      func() error { _, err := r.Stat(dir); return err },
		"stat of":   func() error { _, err := r.StatOf(cmd.Process.Pid); return err },
		"statm":     func() error { _, err := r.Statm(dir); return err },
		"status":    func() error { _, err := r.Memory(dir); return err },
		"rollup":    func() error { _, err := r.Rollup(dir); return err },
		"io":        func() error { _, err := r.IO(dir); return err },
		"namespace": func() error { _, err := r.Namespace(dir, PIDNamespace); return err },
		"open":      func() error { fd, err := r.Open(cmd.Process.Pid); Close(fd); return err },
		"pidfd":     func() error { fd, err := r.OpenPidfd(self); HasEnded(fd); Close(fd); return err },
		"signal":    func() error { return Signal(dir, 0) },
		"clock":     func() error { _, err := CPUTime(cmd.Process.Pid); return err },
		"list":      func() error { _, err := r.List(root, entries); return err },
		"fd":        func() error { _, err := r.FD(fds, 0); return err },
		"last pid":  func() error { _, err := last.Read(); return err },
		"anonymous": func() error { _, err := anonymous.Read(); return err },
		"host":      func() error { _, err := ReadHostMemory(); return err },
		"maps": func() error {
			lines, err := r.Maps(dir)
			if err != nil {
				return err
			}
			defer lines.Close()
			for {
				line, err := lines.Next()
				if err != nil || line == nil {
					return err
				}
				if _, ok := ParseMapping(line); !ok {
					return ErrFormat
				}
			}
		},
		"mounts": func() error {
			lines, err := r.Mounts(dir)
			if err != nil {
				return err
			}
			defer lines.Close()
			for {
				line, err := lines.Next()
				if err != nil || line == nil {
					return err
				}
				if _, err := ParseMount(line); err != nil {
					return err
				}
			}
		},
		"of nobody": func() error {
			if _, err := r.Rollup(gone); !errors.Is(err, ErrGone) {
				return errors.New("a zombie has memory")
			}
			return nil
		},
	} {
		var err error
		allocs := testing.AllocsPerRun(20, func() {
			if e := read(); e != nil {
				err = e
			}
		})
		if err != nil || allocs != 0 {
			t.Errorf("%s: %v allocations, %v", name, allocs, err)
		}
	}
}

func BenchmarkReader(b *testing.B) {
	r := new(Reader)
	cmd := child(b, "sleep", "1000")
	pid := cmd.Process.Pid
	dir := hold(b, r, pid)
	root, err := OpenRoot()
	if err != nil {
		b.Fatal(err)
	}
	defer Close(root)
	last, err := OpenLastPid()
	if err != nil {
		b.Fatal(err)
	}
	defer last.Close()
	anonymous, err := OpenAnonymous()
	if err != nil {
		b.Fatal(err)
	}
	defer anonymous.Close()
	entries := make([]Entry, 0, 10000)
	for _, bench := range []struct {
		name string
		read func() error
	}{
		{"stat", func() error { _, err := r.Stat(dir); return err }},
		{"stat-by-path", func() error { _, err := r.StatOf(pid); return err }},
		{"statm", func() error { _, err := r.Statm(dir); return err }},
		{"status", func() error { _, err := r.Memory(dir); return err }},
		{"smaps_rollup-of-sleep", func() error { _, err := r.Rollup(dir); return err }},
		{"io", func() error { _, err := r.IO(dir); return err }},
		{"ns-pid", func() error { _, err := r.Namespace(dir, PIDNamespace); return err }},
		{"open-close", func() error { fd, err := r.Open(pid); Close(fd); return err }},
		{"signal-0", func() error { return Signal(dir, 0) }},
		{"cpu-clock", func() error { _, err := CPUTime(pid); return err }},
		{"sysinfo", func() error { _, err := ReadHostMemory(); return err }},
		{"meminfo", func() error { _, err := anonymous.Read(); return err }},
		{"loadavg", func() error { _, err := last.Read(); return err }},
		{"list-proc", func() error { _, err := r.List(root, entries); return err }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			start := OwnCPUTime()
			for b.Loop() {
				if err := bench.read(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(OwnCPUTime()-start)/float64(b.N), "cpu-ns/op")
		})
	}
}
