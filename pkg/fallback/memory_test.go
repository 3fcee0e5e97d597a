package fallback

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
)

const (
	private = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	shared  = unix.MAP_SHARED | unix.MAP_ANONYMOUS
)

var keep [][]byte // what a role has mapped

// memoryRoles are what a sandbox can do with memory. `say` waits for the next line.
var memoryRoles = map[string]func(say func(string)){
	"nothing": func(func(string)) {},
	"malloc":  func(func(string)) { touch(mapMemory(load, private, -1)) },
	"fork": func(func(string)) {
		touch(mapMemory(load, private, -1))
		for range 50 {
			forked(nil)
		}
	},
	"fork and write": func(say func(string)) {
		b := mapMemory(load, private, -1)
		touch(b)
		var pipe [2]int
		must(unix.Pipe(pipe[:]))
		forked(func() {
			unix.RawSyscall(unix.SYS_READ, uintptr(pipe[0]), uintptr(unsafe.Pointer(&b[0])), 1)
			touch(b)
		})
		say("done")
		got(unix.Write(pipe[1], b[:1]))
		time.Sleep(2 * time.Second)
	},
	"grow": func(say func(string)) {
		say("done")
		for b := mapMemory(growing, private, -1); len(b) > 0; b = b[mib:] {
			touch(b[:mib])
		}
		time.Sleep(time.Minute)
	},
	"many": func(func(string)) {
		b := mapMemory(load, private, -1)
		for range 32 {
			forked(func() { touch(b[:load/32]) })
		}
		time.Sleep(500 * time.Millisecond)
	},
	"tmpfs": func(func(string)) {
		mountTmpfs(dir("t"), "")
		f := create(dir("t/f"))
		writeAll(f, load)
		must(f.Close())
	},
	"tmpfs mapped": func(func(string)) {
		mountTmpfs(dir("t"), "size=1g")
		f := create(dir("t/f"))
		writeAll(f, load)
		touch(mapMemory(load, unix.MAP_SHARED, int(f.Fd())))
		forked(func() {})
		must(f.Close())
	},
	"tmpfs mounted twice": func(func(string)) {
		mountTmpfs(dir("t"), "size=1g")
		must(os.Mkdir(dir("u"), 0o755))
		must(unix.Mount(dir("t"), dir("u"), "", unix.MS_BIND, ""))
		writeAll(create(dir("t/f")), load)
	},
	"tmpfs deleted": func(func(string)) {
		mountTmpfs(dir("t"), "size=1g")
		f := create(dir("t/f"))
		writeAll(f, load)
		must(os.Remove(f.Name()))
		keepOpen(f)
	},
	"tmpfs hidden and open": func(func(string)) {
		mountTmpfs(dir("t"), "size=1g")
		f := create(dir("t/f"))
		writeAll(f, load)
		mountTmpfs(dir("t"), "size=1m")
		keepOpen(f)
	},
	"tmpfs hidden": func(func(string)) {
		mountTmpfs(dir("t"), "")
		f := create(dir("t/f"))
		writeAll(f, load)
		must(f.Close())
		mountTmpfs(dir("t"), "size=1m")
	},
	"tmpfs unmounted": func(func(string)) {
		mountTmpfs(dir("t"), "size=1g")
		f := create(dir("t/f"))
		writeAll(f, load)
		must(unix.Unmount(dir("t"), unix.MNT_DETACH))
		keepOpen(f)
	},
	"tmpfs unmounted and mapped": func(func(string)) {
		mountTmpfs(dir("t"), "size=1g")
		f := create(dir("t/f"))
		writeAll(f, load)
		keep = append(keep, mapMemory(load, unix.MAP_SHARED, int(f.Fd())))
		must(f.Close())
		must(unix.Unmount(dir("t"), unix.MNT_DETACH))
	},
	"tmpfs without a size": func(func(string)) {
		mountTmpfs(dir("t"), "size=0")
		f := create(dir("t/f"))
		writeAll(f, load)
		keepOpen(f)
	},
	"memfd": func(func(string)) {
		f := memfd()
		writeAll(f, load)
		keepOpen(f)
	},
	"memfd mapped by two": func(func(string)) {
		f := memfd()
		must(f.Truncate(load))
		b := mapMemory(load, unix.MAP_SHARED, int(f.Fd()))
		touch(b)
		forked(func() { touch(b) })
		keepOpen(f)
	},
	"memfd mapped and closed": func(func(string)) {
		f := memfd()
		must(f.Truncate(load))
		b := mapMemory(load, unix.MAP_SHARED, int(f.Fd()))
		must(f.Close()) // so that the other has none either
		touch(b)
		forked(func() { touch(b) })
	},
	"shared": func(func(string)) {
		b := mapMemory(load, shared, -1)
		touch(b)
		forked(func() { touch(b) })
	},
	"shared and let go": func(func(string)) {
		b := mapMemory(load, shared, -1)
		touch(b)
		must(unix.Madvise(b, unix.MADV_DONTNEED))
		keep = append(keep, b)
	},
	"segment attached": func(func(string)) {
		b := shmat(shmget(load), load)
		touch(b)
		forked(func() { touch(b) })
	},
	"segment": func(func(string)) {
		b := shmat(shmget(load), load)
		touch(b)
		shmdt(b)
	},
	"file": func(func(string)) {
		f := create(dir("f"))
		writeAll(f, 200*mib)
		must(f.Sync())
		b := mapMemory(200*mib, unix.MAP_SHARED, int(f.Fd()))
		look(b, 4096)
		keep = append(keep, b)
	},
	"page tables": func(func(string)) {
		size := load * 512
		b := got(unix.Mmap(-1, 0, size, unix.PROT_READ, private|unix.MAP_NORESERVE))
		must(unix.Madvise(b, unix.MADV_NOHUGEPAGE))
		look(b, 2*mib)
		keep = append(keep, b)
	},
	"free pages": func(func(string)) {
		b := mapMemory(load, private, -1)
		touch(b)
		must(unix.Madvise(b, unix.MADV_FREE))
		keep = append(keep, b)
	},
	"first thread ended": func(say func(string)) {
		go func() {
			runtime.LockOSThread()
			touch(mapMemory(load, private, -1))
			f := memfd()
			writeAll(f, load)
			keepOpen(f)
			time.Sleep(300 * time.Millisecond)
			for {
				say("done")
			}
		}()
		runtime.LockOSThread()
		unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // not raw: the other goroutine takes over
	},
	"files of a thread": func(func(string)) {
		filled := make(chan bool)
		go func() {
			runtime.LockOSThread()
			must(unix.Unshare(unix.CLONE_FILES))
			f := memfd()
			keepOpen(f)
			writeAll(f, load)
			close(filled)
			select {}
		}()
		<-filled
	},
	"memory in a user namespace": func(func(string)) {
		runtime.LockOSThread()
		forked(func() {
			unix.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWPID, 0, 0)
			id, _, _ := unix.RawSyscall(unix.SYS_SHMGET, 0, load, 0o600|0o1000)
			at, _, _ := unix.RawSyscall(unix.SYS_SHMAT, id, 0, 0)
			touch(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), load))
			unix.RawSyscall(unix.SYS_SHMDT, at, 0, 0)
		})
		time.Sleep(500 * time.Millisecond)
	},
	"ends": func(func(string)) {
		touch(mapMemory(load, private, -1))
		for range 20 {
			forked(func() { unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0) })
		}
		time.Sleep(time.Second) // while they live, memory is theirs too
	},
}

func init() { runtime.LockOSThread() } // so that the first thread is that of main, which a role may end

func dir(name string) string { return filepath.Join(os.Getenv("DIR"), name) }

var open []*os.File

func keepOpen(f *os.File) { open = append(open, f) }

func newHost(t testing.TB) *memoryHost {
	t.Helper()
	h, err := newMemoryHost()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return h
}

// whole reads everything, whatever the limit.
func whole(t testing.TB, h *memoryHost, members []member) int64 {
	t.Helper()
	var m memoryMeter
	if err := h.sample(); err != nil {
		t.Fatal(err)
	}
	if _, err := residentSum(&h.reader, members); err != nil {
		t.Fatal(err)
	}
	if _, _, err := privateSum(&h.reader, members); err != nil {
		t.Fatal(err)
	}
	if err := m.scanShmem(h, members, 0); err != nil {
		t.Fatal(err)
	}
	m.startExact(h, members)
	for m.underWay {
		m.continueExact(h, members, math.MaxInt64, 0)
	}
	return m.anon + m.shmem
}

// decision measures until there is an answer that holds.
func decision(t testing.TB, h *memoryHost, m *memoryMeter, members []member, limit int64) memoryUse {
	t.Helper()
	if err := h.sample(); err != nil {
		t.Fatal(err)
	}
	var use memoryUse
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var err error
		if use, err = m.measure(h, members, limit, procfs.SinceBoot()); err != nil {
			t.Fatal(err)
		}
		if use.Over || use.Bytes <= limit && !m.underWay {
			break
		}
	}
	return use
}

func TestMemory(t *testing.T) {
	tests := []struct {
		role string
		want int64 // what is added
		plus int64 // that may come to it: page tables and stacks of 50 processes
	}{
		{"nothing", 0, 0},
		{"malloc", load, 0},
		{"fork", load, 50 * 600 << 10},
		{"many", load, 32 * 600 << 10},
		{"tmpfs", load, 0},
		{"tmpfs mapped", load, 0},
		{"tmpfs mounted twice", load, 0},
		{"tmpfs deleted", load, 0},
		{"tmpfs hidden and open", load, 0},
		{"tmpfs hidden", load, 0},
		{"tmpfs unmounted", load, 0},
		{"tmpfs unmounted and mapped", load, 0},
		{"tmpfs without a size", load, 0},
		{"memfd", load, 0},
		{"memfd mapped by two", load, 0},
		{"memfd mapped and closed", load, 0},
		{"shared", load, 0},
		{"shared and let go", load, 0},
		{"segment attached", load, 0},
		{"segment", load, 0},
		{"file", 0, 0},
		{"page tables", load, 0},
		{"free pages", 0, 0},
		{"first thread ended", 2 * load, 0},
		{"files of a thread", load, 0},
		{"memory in a user namespace", load, 0},
		{"ends", load, 0},
	}
	for _, tt := range tests {
		t.Run(tt.role, func(t *testing.T) {
			s := startSandbox(t, tt.role, t.TempDir())
			h := newHost(t)
			before := whole(t, h, s.members())
			s.tell()
			members := s.members()
			after := whole(t, h, members)
			added := after - before
			// 3 %, and what a process of Go needs for doing it.
			slack := tt.want/100*3 + 2*mib
			if added < tt.want-slack || added > tt.want+tt.plus+slack {
				t.Errorf("%.1f MiB were added to %.1f, not %.1f", float64(added)/mib, float64(before)/mib, float64(tt.want)/mib)
			}
			t.Logf("%d processes, %.1f MiB and then %.1f", len(members), float64(before)/mib, float64(after)/mib)

			for _, above := range []bool{true, false} {
				limit := after + 4*mib
				if !above {
					limit = after - max(after/10, mib)
				}
				var m memoryMeter
				use := decision(t, h, &m, s.members(), limit)
				if use.Over == above {
					t.Errorf("a limit of %.1f MiB: %+v", float64(limit)/mib, use)
				}
				if above && use.Bytes < after-mib {
					t.Errorf("%d is no upper bound of %d", use.Bytes, after)
				}
			}
		})
	}
}

func TestMemoryGrowth(t *testing.T) {
	for _, role := range []string{"malloc", "tmpfs", "memfd", "segment", "fork and write"} {
		t.Run(role, func(t *testing.T) {
			s := startSandbox(t, role, t.TempDir())
			h := newHost(t)
			if role == "fork and write" {
				s.tell()
			}
			limit := whole(t, h, s.members()) + load/2
			var m memoryMeter
			members := s.members()
			if use := decision(t, h, &m, members, limit); use.Over {
				t.Fatalf("over before anything was used: %+v", use)
			}
			s.tell()
			if use := decision(t, h, &m, members, limit); !use.Over {
				t.Errorf("not over: %+v", use)
			}
		})
	}
}

// growing is how far the role grow does.
const growing = 8 * load

// TestGrowthDuringAReading: a process grows while its memory is read, which takes
// milliseconds. That must not count twice.
func TestGrowthDuringAReading(t *testing.T) {
	s := startSandbox(t, "grow", t.TempDir())
	h := newHost(t)
	members := s.members()
	const limit = growing * 3 / 4
	s.tell()
	fmt.Fprintln(s.in) // it goes
	var m memoryMeter
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		// The first reading is to find much, so that it takes its time.
		if before, _, err := privateSum(&h.reader, members); err == nil && before < limit*2/3 && time.Now().Before(end) {
			continue
		}
		if err := h.sample(); err != nil {
			t.Fatal(err)
		}
		use, err := m.measure(h, members, limit, procfs.SinceBoot())
		if err != nil {
			t.Fatal(err)
		}
		private, _, err := privateSum(&h.reader, members)
		if err != nil {
			t.Fatal(err)
		}
		if least := m.atLeast(members); m.exact.done && least > private {
			t.Fatalf("at least %d of %d bytes: %+v", least, private, use)
		}
		if use.Over && m.exact.done {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("never over: %+v of %d bytes", use, private)
		}
	}
}

// TestMemoryOfNobody: members that have ended, one of which was not waited for.
func TestMemoryOfNobody(t *testing.T) {
	s := startSandbox(t, "malloc", t.TempDir())
	h := newHost(t)
	members := s.members()
	s.tell()
	var m memoryMeter
	if use := decision(t, h, &m, members, load/2); !use.Over {
		t.Fatalf("not over: %+v", use)
	}
	s.cmd.Process.Kill()
	s.cmd.Wait()
	if n := whole(t, h, members); n != 0 {
		t.Errorf("%d bytes of nobody", n)
	}
	if use := decision(t, h, &m, members, load/2); use.Over || use.Bytes > load/2 {
		t.Errorf("%+v of nobody", use)
	}
}

func TestMeasuringAllocatesNothing(t *testing.T) {
	s := startSandbox(t, "fork", t.TempDir())
	s.tell()
	h := newHost(t)
	members := s.members()
	whole(t, h, members) // makes the buffers
	var m memoryMeter
	cheap := testing.AllocsPerRun(10, func() {
		h.sample()
		m.measure(h, members, math.MaxInt64/2, procfs.SinceBoot())
	})
	dear := testing.AllocsPerRun(3, func() {
		m.scanShmem(h, members, 0)
		m.startExact(h, members)
		for m.underWay {
			m.continueExact(h, members, math.MaxInt64, 0)
		}
	})
	if cheap != 0 || dear != 0 {
		t.Errorf("%v and %v allocations", cheap, dear)
	}
}

// TestTmpfsOfTheHost: /dev/shm of the host is in the sandbox's mounts as well; the
// folder of an engine's container is too, and counts.
func TestTmpfsOfTheHost(t *testing.T) {
	for _, tt := range []struct {
		name  string
		deep  bool
		added int64
	}{{"the host's", false, 0}, {"a container's", true, load}} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			at := "/dev/shm"
			if tt.deep {
				at = filepath.Join(t.TempDir(), "containers/id/shm")
				if err := os.MkdirAll(at, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=1g"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
			}
			s := startSandbox(t, "nothing", t.TempDir())
			before := whole(t, h, s.members())
			f, err := os.CreateTemp(at, "agentbox-test")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(f.Name()) })
			writeAll(f, load)
			f.Close()
			if added := whole(t, h, s.members()) - before; added < tt.added-mib || added > tt.added+mib {
				t.Errorf("%d bytes were added, not %d", added, tt.added)
			}
		})
	}
}

func TestTmpfsSize(t *testing.T) {
	tests := []struct {
		options string
		size    int64
		ok      bool
	}{
		{"rw,size=1024k", 1 << 20, true},
		{"size=65536k,mode=755", 64 << 20, true},
		{"rw,size=0k", 0, false},
		{"rw,size=xk", 0, false},
		{"rw,size=99999999999999999999k", 0, false},
	}
	for _, tt := range tests {
		if size, ok := tmpfsSize([]byte(tt.options)); ok != tt.ok || ok && size != tt.size {
			t.Errorf("%s: %d, %v", tt.options, size, ok)
		}
	}
	if size, ok := tmpfsSize([]byte("rw,inode64")); !ok || size < 100<<20 {
		t.Errorf("the default: %d, %v", size, ok)
	}
}

func BenchmarkMemory(b *testing.B) {
	s := startSandbox(b, "malloc", b.TempDir())
	s.tell()
	h := newHost(b)
	members := s.members()
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			start := procfs.OwnCPUTime()
			for b.Loop() {
				f()
			}
			// What others on the machine do does not change it.
			b.ReportMetric(float64(procfs.OwnCPUTime()-start)/float64(b.N), "cpu-ns/op")
		})
	}
	var m memoryMeter
	for _, n := range []int{2, 200} {
		many := slices.Repeat(members[:1], n)
		run(fmt.Sprintf("cheap/%d", n), func() {
			h.sample()
			m.measure(h, many, math.MaxInt64/2, 0)
		})
		run(fmt.Sprintf("status/%d", n), func() { privateSum(&h.reader, many) })
		run(fmt.Sprintf("scan/%d", n), func() { m.scanShmem(h, many, 0) })
	}
	run(fmt.Sprintf("smaps_rollup/%dMiB", load/mib), func() { h.reader.Rollup(members[0].dir) })
}
