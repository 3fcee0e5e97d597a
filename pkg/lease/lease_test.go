package lease

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// The test program is its own helper: another process with a lock.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 {
		switch os.Args[1] {
		case "take":
			if _, err := Take(os.Args[2]); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		case "hold":
			if err := Hold(os.Args[2]); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			// As agentbox-runtime does: another program, the same process.
			fmt.Println(syscall.Exec("/proc/self/exe", []string{"helper", "after", os.Args[2]}, nil))
			os.Exit(1)
		case "after":
		default:
			os.Exit(m.Run())
		}
		fmt.Println("ready")
		time.Sleep(time.Hour)
	}
	os.Exit(m.Run())
}

// helper starts another process and waits until it has what it wants.
func helper(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command("/proc/self/exe", args...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(c) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Fatalf("the helper says %q, %v", line, err)
	}
	return c
}

func kill(c *exec.Cmd) {
	_ = c.Process.Kill()
	_ = c.Wait()
}

func wantHeld(t *testing.T, dir string, want bool) {
	t.Helper()
	if held, err := Held(dir); held != want || err != nil {
		t.Errorf("held %v, %v; want %v", held, err, want)
	}
}

func TestLeaseEndsWithItsHolder(t *testing.T) {
	dir := t.TempDir()
	wantHeld(t, dir, false)
	c := helper(t, "take", dir)
	wantHeld(t, dir, true)
	if _, err := Take(dir); !errors.Is(err, ErrHeld) {
		t.Errorf("taken twice: %v", err)
	}
	kill(c)
	wantHeld(t, dir, false)
	l, err := Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(dir); !errors.Is(err, ErrHeld) {
		t.Errorf("taken twice by one process: %v", err)
	}
	l.Release()
	wantHeld(t, dir, false)
}

// A look must not keep anybody from taking the lease, as one that takes the lock
// for a moment would.
func TestALookIsInNobodysWay(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan struct{})
	defer close(stop)
	for range 4 {
		go func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = Held(dir)
				}
			}
		}()
	}
	for i := range 2000 {
		l, err := Take(dir)
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		l.Release()
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	if _, ok := Noted(dir); ok {
		t.Error("noted before there was a lease")
	}
	l, err := Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := Noted(dir); ok {
		t.Error("noted before anything was")
	}
	want := Record{Init: procfs.Process{Pid: 42, StartTime: 7_000_000}}
	for _, r := range []Record{want, {Init: procfs.Process{Pid: 1}}, want} {
		if err := l.Note(r); err != nil {
			t.Fatal(err)
		}
		if got, ok := Noted(dir); !ok || got != r {
			t.Errorf("noted %+v, %v; want %+v", got, ok, r)
		}
	}
	l.Release()
	if got, ok := Noted(dir); !ok || got != want {
		t.Errorf("after the release: %+v, %v", got, ok)
	}
	if l, err = Take(dir); err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if got, ok := Noted(dir); !ok || got != want {
		t.Errorf("taken again: %+v, %v", got, ok)
	}
	if err := l.Forget(); err != nil {
		t.Fatal(err)
	}
	if _, ok := Noted(dir); ok {
		t.Error("noted after it was forgotten")
	}
}

// A sandbox may be deleted and another one of its id made: a verdict about the
// first must not end up in the second.
func TestLeaseOfAnEarlierSandbox(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if !l.Current() {
		t.Error("not current at once")
	}
	if err := os.Rename(dir, dir+"-removed"); err != nil {
		t.Fatal(err)
	}
	if l.Current() {
		t.Error("current without a folder")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	next, err := Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	if l.Current() || !next.Current() {
		t.Errorf("the earlier one is current: %v, the later one: %v", l.Current(), next.Current())
	}
}

func TestLeaseIsNoLink(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(target, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, leaseName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Take(dir); err == nil {
		t.Error("a link was taken for a lease")
	}
	if _, err := Held(dir); err == nil {
		t.Error("a link was looked at")
	}
	if data, _ := os.ReadFile(target); string(data) != "untouched" {
		t.Errorf("the target is %q", data)
	}
}

func exclusive(t *testing.T, dir string) (fd int, ok bool) {
	t.Helper()
	fd, err := unix.Open(HoldFile(dir), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(fd)
		return -1, false
	}
	return fd, true
}

// A verb of the runtime keeps its hold when it becomes the low-level runtime, and
// loses it with its end.
func TestHoldStaysOverExec(t *testing.T) {
	dir := t.TempDir()
	if _, err := MakeHold(dir); err != nil {
		t.Fatal(err)
	}
	c := helper(t, "hold", dir)
	if fd, ok := exclusive(t, dir); ok {
		_ = unix.Close(fd)
		t.Error("frozen while somebody looks")
	}
	kill(c)
	fd, ok := exclusive(t, dir)
	if !ok {
		t.Fatal("held after the end")
	}
	_ = unix.Close(fd)
}

func TestHoldWaitsUntilTheSandboxRuns(t *testing.T) {
	dir := t.TempDir()
	if _, err := MakeHold(dir); err != nil {
		t.Fatal(err)
	}
	fd, ok := exclusive(t, dir)
	if !ok {
		t.Fatal("not free")
	}
	const frozen = 100 * time.Millisecond
	begin := time.Now()
	time.AfterFunc(frozen, func() { _ = unix.Close(fd) })
	if err := Hold(dir); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < frozen || took > holdTime {
		t.Errorf("waited %v for a sandbox that was frozen for %v", took, frozen)
	}
}

func TestHoldGivesUp(t *testing.T) {
	dir := t.TempDir()
	if _, err := MakeHold(dir); err != nil {
		t.Fatal(err)
	}
	fd, ok := exclusive(t, dir)
	if !ok {
		t.Fatal("not free")
	}
	defer unix.Close(fd)
	begin := time.Now()
	if err := Hold(dir); err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("%v", err)
	}
	if took := time.Since(begin); took < holdTime || took > 10*holdTime {
		t.Errorf("gave up after %v", took)
	}
}

func TestNoHoldForOthers(t *testing.T) {
	before := descriptors(t)
	if err := Hold(t.TempDir()); err != nil {
		t.Error(err)
	}
	if err := Hold("/nowhere/at/all"); err != nil {
		t.Error(err)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestProtocol(t *testing.T) {
	for _, r := range []Request{
		{Root: "/run/runc", ID: "c1", Init: procfs.Process{Pid: 1, StartTime: 0}},
		{Root: "/run/a b\n\"c\\", ID: "ü\x00", Init: procfs.Process{Pid: 4194304, StartTime: 1<<64 - 1}},
		{Root: "", ID: "", Init: procfs.Process{Pid: 7, StartTime: 8}},
	} {
		line := r.line()
		if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%q is not one line", line)
		}
		if got, err := ParseRequest(strings.TrimSuffix(line, "\n")); err != nil || got != r {
			t.Errorf("%q: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{
		"", "take", "GET / HTTP/1.1", "agentbox-supervise 2 take \"/r\" \"c\" 1 2", "agentbox-supervise 1 take",
		`agentbox-supervise 1 take "/r" "c" 1`, `agentbox-supervise 1 take "/r" "c" 0 1`, `agentbox-supervise 1 take "/r" "c" -1 1`,
		`agentbox-supervise 1 take "/r" "c" 1 -1`, `agentbox-supervise 1 take "/r" "c" 1 2 3`, `agentbox-supervise 1 take "/r" 1 2`,
		`agentbox-supervise 1 take "/r "c" 1 2`, `agentbox-supervise 1 take "/r" "c"1 2`, `agentbox-supervise 1 drop "/r" "c" 1 2`,
	} {
		if got, err := ParseRequest(line); err == nil {
			t.Errorf("%q: %+v", line, got)
		}
	}
	for line, want := range map[string]string{
		strings.TrimSpace(Answer(nil)):                      "",
		strings.TrimSpace(Answer(errors.New("two\nlines"))): "the supervisor says: two lines",
		"maybe": `the supervisor gave an answer that is none: "maybe"`,
		"":      `the supervisor gave an answer that is none: ""`,
		strings.TrimSpace(Answer(fmt.Errorf("%w", os.ErrExist))): "the supervisor says: file already exists",
	} {
		got := ""
		if err := parseAnswer(line); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add(`agentbox-supervise 1 take "/run/runc" "c1" 42 7`)
	f.Add(`agentbox-supervise 1 take "\n" "\"" 1 18446744073709551615`)
	f.Fuzz(func(t *testing.T, line string) {
		r, err := ParseRequest(line)
		if err != nil {
			return
		}
		again, err := ParseRequest(strings.TrimSuffix(r.line(), "\n"))
		if err != nil || again != r {
			t.Errorf("%q: %+v, then %+v, %v", line, r, again, err)
		}
	})
}

func TestReadLine(t *testing.T) {
	for _, tt := range []struct{ in, line, err string }{
		{"a b\nrest", "a b", ""},
		{"\n", "", ""},
		{"no end", "", "EOF"},
		{"", "", "EOF"},
		{strings.Repeat("x", maxLine-1) + "\n", strings.Repeat("x", maxLine-1), ""},
		{strings.Repeat("x", maxLine) + "\n", "", "more than 16384 bytes"},
	} {
		line, err := ReadLine(strings.NewReader(tt.in))
		if line != tt.line || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%.20q: %.20q, %v", tt.in, line, err)
		}
	}
}

// listenAt stands in for a supervisor.
func listenAt(t *testing.T, dir string, answer func(conn net.Conn)) {
	t.Helper()
	address, open, err := Address(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			answer(conn)
			conn.Close()
		}
	}()
}

func TestAsk(t *testing.T) {
	ask := func(dir string, limit time.Duration) error {
		a := Asker{Dir: dir, Limit: limit}
		return a.Ask(filepath.Join(dir, "r", "c1"), Request{Root: "/r", ID: "c1", Init: procfs.Process{Pid: 1, StartTime: 2}})
	}
	say := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = ReadLine(conn)
			_, _ = conn.Write([]byte(text))
		}
	}
	for _, tt := range []struct {
		name   string
		answer func(net.Conn)
		err    string
	}{
		{"taken", say("ok\n"), ""},
		{"refused", say("no it has no limits\n"), "the supervisor says: it has no limits"},
		{"garbage", say("HTTP/1.1 400\n"), "an answer that is none"},
		{"a long answer", say(strings.Repeat("x", maxLine+1)), "more than 16384 bytes"},
		{"it hangs", func(net.Conn) { time.Sleep(time.Second) }, "did not answer within 300ms"},
		{"it dies", func(net.Conn) {}, "the program agentbox, which is one, was not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // longer than an address can be
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			listenAt(t, dir, tt.answer)
			err := ask(dir, 300*time.Millisecond)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
		})
	}
	t.Run("the request is what was meant", func(t *testing.T) {
		dir := t.TempDir()
		got := make(chan string, 1)
		listenAt(t, dir, func(conn net.Conn) {
			line, _ := ReadLine(conn)
			got <- line
			_, _ = conn.Write([]byte("ok\n"))
		})
		if err := ask(dir, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		if line := <-got; line != `agentbox-supervise 1 take "/r" "c1" 1 2` {
			t.Errorf("%q", line)
		}
	})
	t.Run("somebody has the lease: nobody is asked", func(t *testing.T) {
		dir := t.TempDir()
		box := filepath.Join(dir, "r", "c1")
		if err := os.MkdirAll(box, 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := Take(box)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		if err := ask(dir, time.Second); err != nil {
			t.Error(err)
		}
	})
	t.Run("a program that fails", func(t *testing.T) {
		for _, tt := range []struct{ program, err string }{
			{"/bin/false", "cannot be started: exit status 1"},
			{"/nowhere/agentbox", "cannot be started: "},
		} {
			a := Asker{Dir: t.TempDir(), Program: tt.program, Limit: time.Second}
			if err := a.Ask("/nowhere", Request{}); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %v", tt.program, err)
			}
		}
	})
	t.Run("a program that starts nothing", func(t *testing.T) {
		dir := t.TempDir()
		begin := time.Now()
		a := Asker{Dir: dir, Program: "/bin/true", Limit: 300 * time.Millisecond}
		err := a.Ask("/nowhere", Request{})
		if err == nil || !strings.Contains(err.Error(), "does not stay: see "+dir) {
			t.Errorf("%v", err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("no folder", func(t *testing.T) {
		if err := ask("/nowhere", time.Second); err == nil || !strings.Contains(err.Error(), "open the folder of states /nowhere") {
			t.Errorf("%v", err)
		}
	})
}
