package fallback

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test program is also what runs in the sandboxes of its tests.
const workloadEnv = "FALLBACK_TEST_WORKLOAD"

// runWorkload is called before the tests, and ends the program when it is one.
func runWorkload() {
	work := os.Getenv(workloadEnv)
	if work == "" {
		return
	}
	if err := workload(strings.Fields(work)); err != nil {
		fmt.Fprintln(os.Stderr, work+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// workload runs a word of this little language:
//
//	sleep, spin, grow BYTES BYTES-A-SECOND, write FILE [direct], sh SCRIPT-FILE
//	N times WORD...    as so many children, and waits for them
//	away WORD...       by a grandchild in a session of its own, of another user
//	nested WORD...     as the first process of a pid namespace of its own
//	deaf WORD...       with SIGTERM ignored
//	gate WORD...       when a line comes in
//	host FILE          an engine that watches over the sandbox that FILE tells
func workload(words []string) error {
	word, rest := words[0], words[1:]
	if n, err := strconv.Atoi(word); err == nil {
		return times(n, rest[1:])
	}
	switch word {
	case "gate":
		var line [1]byte
		if _, err := os.Stdin.Read(line[:]); err != nil {
			return err
		}
		return workload(rest)
	case "sleep":
		for {
			time.Sleep(time.Hour)
		}
	case "spin":
		runtime.GOMAXPROCS(1)
		// As long as others want the CPU too, only a limit holds it back.
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -19)
		for {
		}
	case "grow":
		return grow(number(rest[0]), number(rest[1]))
	case "write":
		return write(rest[0], len(rest) > 1)
	case "sh":
		return syscall.Exec("/bin/sh", append([]string{"sh"}, rest...), os.Environ())
	case "nested":
		c := child(rest)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		return c.Run()
	case "away":
		c := child(append([]string{"orphan"}, rest...))
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: 4242, Gid: 4242}}
		if err := c.Run(); err != nil {
			return err
		}
		return workload([]string{"sleep"})
	case "orphan":
		return child(rest).Start()
	case "deaf":
		signal.Ignore(unix.SIGTERM)
		return workload(rest)
	case "host":
		return hostEngine(rest[0])
	}
	return fmt.Errorf("no such workload: %s", word)
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func child(words []string) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), workloadEnv+"="+strings.Join(words, " "))
	c.Stderr = os.Stderr
	return c
}

func times(n int, words []string) error {
	all := make([]*exec.Cmd, n)
	for i := range all {
		all[i] = child(words)
		if err := all[i].Start(); err != nil {
			return err
		}
	}
	for _, c := range all {
		if err := c.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// grow fills memory, 1 MiB at a time, at a speed; 0: as fast as it goes.
func grow(bytes, speed int) error {
	data, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	start := time.Now()
	for at := 0; at < bytes; at += 4096 {
		data[at] = 1
		if speed > 0 && at%(64<<10) == 0 {
			for time.Since(start).Seconds()*float64(speed) < float64(at) {
				time.Sleep(50 * time.Microsecond)
			}
		}
	}
	return workload([]string{"sleep"})
}

func write(name string, direct bool) error {
	flags := os.O_WRONLY | os.O_CREATE
	if direct {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(name, flags, 0o600)
	if err != nil {
		return err
	}
	block, err := unix.Mmap(-1, 0, 256<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for at := int64(0); ; at = (at + int64(len(block))) % (512 << 20) {
		if _, err := f.WriteAt(block, at); err != nil {
			return err
		}
	}
}

// script writes a shell script and returns the workload that runs it.
func script(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return "sh " + name
}
