//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a caller arranges for the low-level runtime, arrives: descriptors,
// signals, a terminal, its death.

func TestStandardStreamsReachTheContainer(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		b := newBox(t, lowLevel)
		c := b.container(sh("echo to stderr >&2; cat; echo done"))
		input := filepath.Join(tempDir(t), "input")
		writeFile(t, input, "from stdin\n")
		verb := map[way][]string{byCreate: {"create"}, byRun: {"run"}, byDetach: {"run", "--detach"}}[w]
		cmd := c.command(append(verb, "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID)...)
		cmd.Stdin = newFile(t, input)
		c.main = launch(t, cmd)
		if w != byRun {
			c.main.wait(30 * time.Second)
		}
		if w == byCreate {
			c.start()
		}
		out, _ := c.finish(w)
		if out.Stdout != "from stdin\ndone\n" || out.Stderr != "to stderr\n" {
			t.Error(out)
		}
	})
}

func TestExitCodeOfARunIsTheLowLevelRuntimes(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		for _, args := range [][]string{
			sh("exit 0"), sh("exit 1"), sh("exit 3"), sh("exit 255"), sh("kill -9 $$; sh -c 'kill -9 $$'"), {"/bin/nosuchprogram"}, {"/etc"},
		} {
			b := newBox(t, lowLevel)
			ours, bare := b.container(args), b.container(args)
			sameAnswer(t, b.try("run", "--bundle", ours.Bundle, ours.ID),
				execute(t, 30*time.Second, b.bare("run", "--bundle", bare.Bundle, bare.ID)), args)
			b.try("state", "nobody")
		}
	})
}

// Extra descriptors, and sockets passed by the protocol of systemd: the same as
// without us.
func TestExtraDescriptorsReachTheContainer(t *testing.T) {
	script := sh(`echo "pid $LISTEN_PID, fds $LISTEN_FDS"; cat <&3; cat <&4`)
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		b := newBox(t, lowLevel)
		file := filepath.Join(tempDir(t), "file")
		writeFile(t, file, "secret\n")
		for _, env := range []string{"", "export LISTEN_FDS=1 LISTEN_PID=$$;"} {
			preserve := "2"
			if env != "" {
				preserve = "1" // on top of LISTEN_FDS
			}
			// LISTEN_PID names the process that is to become the runtime.
			withDescriptors := func(cmd *exec.Cmd) *exec.Cmd {
				cmd = exec.Command("/bin/sh", append([]string{"-c", env + ` exec "$@"`, "sh"}, cmd.Args...)...)
				cmd.ExtraFiles = []*os.File{newFile(t, file), newFile(t, file)}
				return cmd
			}
			bare := b.container(script)
			want := execute(t, 30*time.Second, withDescriptors(b.bare("run", "--preserve-fds", preserve, "--bundle", bare.Bundle, bare.ID)))

			c := b.container(script)
			verb := map[way][]string{byCreate: {"create"}, byRun: {"run"}, byDetach: {"run", "--detach"}}[w]
			args := append(slices.Clone(verb), "--preserve-fds", preserve, "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID)
			c.main = launch(t, withDescriptors(c.command(args...)))
			if w != byRun {
				if out := c.main.wait(30 * time.Second); out.Code != 0 {
					t.Fatal(out)
				}
			}
			if w == byCreate {
				c.start()
			}
			out, _ := c.finish(w)
			if out.Stdout != want.Stdout || !strings.Contains(out.Stdout, "secret\nsecret\n") {
				t.Errorf("%q: %v, and without us %v", env, out, want)
			}
		}
	})
}

func TestSignalToAForegroundRunReachesTheContainer(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		for _, s := range []struct {
			name   string
			signal unix.Signal
		}{{"TERM", unix.SIGTERM}, {"INT", unix.SIGINT}, {"HUP", unix.SIGHUP}, {"USR1", unix.SIGUSR1}} {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				c := newBox(t, lowLevel).container(sh("trap 'echo got it; exit 9' " + s.name + "; echo ready; while :; do sleep 0.05; done"))
				c.begin(byRun)
				c.printed("ready")
				kill(t, c.main.cmd.Process.Pid, s.signal)
				if out, _ := c.finish(byRun); out.Code != 9 || !strings.Contains(out.Stdout, "got it") {
					t.Error(out)
				}
			})
		}
	})
}

// An engine gets the terminal of a container through a socket.
func TestConsoleSocketGetsTheTerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("tty; read line; echo got $line; read line"), with(true, "process", "terminal"))
		socket := filepath.Join(tempDir(t), "console")
		listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(listener)
		if err := unix.Bind(listener, &unix.SockaddrUnix{Name: socket}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Listen(listener, 1); err != nil {
			t.Fatal(err)
		}
		c.main = launch(t, c.command("create", "--bundle", c.Bundle, "--pid-file", c.PidFile, "--console-socket", socket, c.ID))
		if out := c.main.wait(30 * time.Second); out.Code != 0 {
			t.Fatal(out)
		}
		screen := &Screen{t: t, master: receiveFile(t, listener)}
		c.start()
		screen.see("/dev/pts/0")
		screen.typed("hello\n")
		screen.see("got hello")
		screen.typed("\n")
		c.waitGone(60 * time.Second)
		c.delete()
	})
}

// receiveFile takes the one descriptor that a connection brings; it has arrived
// already.
func receiveFile(t *testing.T, listener int) *os.File {
	t.Helper()
	conn, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(conn)
	data, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(conn, data, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages: %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%d descriptors: %v", len(fds), err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "terminal")
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// A person runs a container in a terminal: keys, Ctrl-C and the exit code.
func TestForegroundRunInATerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("trap 'echo interrupted; exit 5' INT; tty; read line; echo got $line; while :; do sleep 0.05; done"),
			with(true, "process", "terminal"))
		screen := openScreen(t)
		c.main = screen.launch(c.command("run", "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID))
		screen.see("/dev/pts/0")
		screen.typed("hello\r")
		screen.see("got hello")
		screen.typed("\x03")
		screen.see("interrupted")
		out, r := c.finish(byRun)
		if out.Code != 5 {
			t.Errorf("run ended with %d", out.Code)
		}
		wantExit(t, r, "EXITED", 5)
	})
}

// Screen is a terminal, and who sits in front of it.
type Screen struct {
	t             *testing.T
	master, slave *os.File
	shown         string // up to now
}

func openScreen(t *testing.T) *Screen {
	t.Helper()
	master, slave := openTerminal(t)
	return &Screen{t: t, master: master, slave: slave}
}

// launch starts a command that has this terminal, once.
func (s *Screen) launch(cmd *exec.Cmd) *Process {
	s.t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p := launch(s.t, cmd)
	if err := s.slave.Close(); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// see waits until the terminal has shown a text.
func (s *Screen) see(text string) {
	s.t.Helper()
	eventually(s.t, 60*time.Second, func() string {
		_ = s.master.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		buf := make([]byte, 4096)
		n, _ := s.master.Read(buf)
		if s.shown += string(buf[:n]); !strings.Contains(s.shown, text) {
			return fmt.Sprintf("the terminal does not show %q: %q", text, s.shown)
		}
		return ""
	})
}

func (s *Screen) typed(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// slowRuntime is a low-level runtime that writes its pid into a file and waits a
// moment before a verb that starts something.
func slowRuntime(t *testing.T, lowLevel string) (program, pidFile string) {
	t.Helper()
	path, err := exec.LookPath(lowLevel)
	if err != nil {
		t.Fatal(err)
	}
	dir := tempDir(t)
	program, pidFile = filepath.Join(dir, lowLevel), filepath.Join(dir, "pid")
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in\n*--help*) ;;\n*\" create \"*|*\" run \"*) echo $$ >%[1]s.new; mv %[1]s.new %[1]s; "+
		"i=0; while [ -e %[1]s.wait ] && [ $i -lt 200 ]; do i=$((i+1)); sleep 0.1; done ;;\nesac\nexec %[2]s \"$@\"\n", pidFile, path)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program, pidFile
}

// A low-level runtime may be a script around the real one.
func TestLowLevelRuntimeMayBeAScript(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		program, _ := slowRuntime(t, lowLevel)
		c := newBox(t, program, "[limits]\npids = 99").heldContainer("exit 0")
		c.begin(w)
		have := c.limits()
		if have.Pids != 99 {
			t.Errorf("pids.max is %d, want 99", have.Pids)
		}
		c.release()
		_, r := c.finish(w)
		sameAsReport(t, r, have)
	})
}

// containerd asks the kernel to kill the runtime when containerd dies. That has
// to reach the low-level runtime, or it would go on creating a container that
// nobody knows.
func TestSoakStartDiesWithItsParent(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		program, pidFile := slowRuntime(t, lowLevel)
		writeFile(t, pidFile+".wait", "")
		b := newBox(t, program)
		c := b.container(sh("sleep 1000"))
		verb := map[way][]string{byCreate: {"create"}, byRun: {"run"}, byDetach: {"run", "--detach"}}[w]
		for range rounds(5) {
			pid := 0
			dieAfter(t, b.command(append(verb, "--bundle", c.Bundle, c.ID)...), func() {
				eventually(t, 60*time.Second, func() string {
					if !exists(pidFile) {
						return "the low-level runtime was not called"
					}
					return ""
				})
				if _, err := fmt.Sscan(readFile(t, pidFile), &pid); err != nil {
					t.Fatal(err)
				}
			})
			eventually(t, 60*time.Second, func() string {
				if alive(pid) {
					return fmt.Sprintf("the low-level runtime, %d, outlived the caller", pid)
				}
				return ""
			})
			if err := os.Remove(pidFile); err != nil {
				t.Fatal(err)
			}
			b.try("delete", "--force", "nobody")
			c.nothingLeft()
		}
	})
}

// dieAfter starts a command that dies with its parent. The parent is one thread
// here, which ends when then has returned.
func dieAfter(t *testing.T, cmd *exec.Cmd, then func()) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started, over := make(chan error), make(chan struct{})
	go onThreadThatEnds(func() {
		started <- cmd.Start()
		<-over
	})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // the kernel kills it
	defer close(over)
	then()
}

// onThreadThatEnds calls do, and then ends the thread. The main thread does not
// end; a second call lands on another one, since this one is not let go.
func onThreadThatEnds(do func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		do()
		return
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		onThreadThatEnds(do)
	}()
	<-done
}
