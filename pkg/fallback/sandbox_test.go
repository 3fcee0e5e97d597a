package fallback

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/test/promise"
)

// The tests start this binary again, as the first process of a sandbox. It waits
// for a line, does what it is told, says so, and waits for the next.

const roleVariable = "AGENTBOX_TEST_ROLE"

const mib = 1 << 20

// what the processes of the tests use; divisible by all that they divide it by
const load = 64 * mib

func TestMain(m *testing.M) {
	runWorkload()
	if role := os.Getenv(roleVariable); role != "" {
		playRole(role)
		return
	}
	os.Exit(m.Run())
}

func playRole(name string) {
	role, ok := memoryRoles[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such role:", name)
		os.Exit(1)
	}
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	in := bufio.NewReader(os.Stdin)
	say := func(word string) {
		fmt.Println(word)
		if _, err := in.ReadString('\n'); err != nil {
			os.Exit(0)
		}
	}
	say("waits")
	role(say)
	for {
		say("done")
	}
}

func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func got[T any](v T, err error) T {
	must(err)
	return v
}

// sandbox is a process in namespaces of its own, with what it starts.
type sandbox struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.Writer
	out  *bufio.Scanner
	root int
	r    procfs.Reader
}

func startSandbox(t testing.TB, role string, dir string) *sandbox {
	t.Helper()
	if os.Getuid() != 0 {
		promise.Lacks(t, "root: to make namespaces and to see all that is mapped")
	}
	s := &sandbox{t: t, cmd: exec.Command("/proc/self/exe")}
	// A small heap that does not move: what is measured is what the role does.
	s.cmd.Env = []string{roleVariable + "=" + role, "GOGC=off", "GOMAXPROCS=1", "DIR=" + dir}
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	in, err := s.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.in, s.out = in, bufio.NewScanner(out)
	runtime.LockOSThread() // the death signal is this thread's
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	})
	if s.root, err = procfs.OpenRoot(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { procfs.Close(s.root) })
	s.hear("waits")
	return s
}

func (s *sandbox) hear(word string) {
	s.t.Helper()
	if !s.out.Scan() || s.out.Text() != word {
		s.t.Fatalf("the sandbox says %q and not %q: %v", s.out.Text(), word, s.out.Err())
	}
}

func (s *sandbox) tell() {
	s.t.Helper()
	fmt.Fprintln(s.in)
	s.hear("done")
}

// members are the processes of the pid namespace now.
func (s *sandbox) members() []member {
	s.t.Helper()
	ns, err := s.r.NamespaceOf(s.cmd.Process.Pid, procfs.PIDNamespace)
	if err != nil {
		s.t.Fatal(err)
	}
	entries, err := s.r.List(s.root, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	var members []member
	for _, e := range entries {
		if n, err := s.r.NamespaceOf(e.Number, procfs.PIDNamespace); err != nil || n != ns {
			continue
		}
		dir, err := s.r.Open(e.Number)
		if err != nil {
			continue
		}
		s.t.Cleanup(func() { procfs.Close(dir) })
		members = append(members, member{pid: e.Number, dir: dir})
	}
	return members
}

// What follows runs in the sandbox.

func mapMemory(size int, flags, fd int) []byte {
	return got(unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags))
}

func touch(b []byte) {
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
}

var seen byte

func look(b []byte, step int) {
	for i := 0; i < len(b); i += step {
		seen += b[i]
	}
}

func writeAll(f *os.File, size int) {
	block := make([]byte, mib)
	for range size / mib {
		got(f.Write(block))
	}
}

// forked makes a process that shares all memory until one of the two writes. It
// runs what makes system calls only, and waits for ever.
func forked(child func()) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		must(errno)
	}
	if pid == 0 {
		if child != nil {
			child()
		}
		for {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
}

func mountTmpfs(at, options string) {
	must(os.MkdirAll(at, 0o755))
	must(unix.Mount("tmpfs", at, "tmpfs", 0, options))
}

func create(name string) *os.File { return got(os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)) }

func memfd() *os.File { return os.NewFile(uintptr(got(unix.MemfdCreate("x", 0))), "memfd") }

func shmget(size int) uintptr {
	id, _, errno := unix.Syscall(unix.SYS_SHMGET, 0, uintptr(size), 0o600|0o1000)
	if errno != 0 {
		must(errno)
	}
	return id
}

func shmat(id uintptr, size int) []byte {
	at, _, errno := unix.Syscall(unix.SYS_SHMAT, id, 0, 0)
	if errno != 0 {
		must(errno)
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), size)
}

func shmdt(b []byte) {
	if _, _, errno := unix.Syscall(unix.SYS_SHMDT, uintptr(unsafe.Pointer(&b[0])), 0, 0); errno != 0 {
		must(errno)
	}
}
