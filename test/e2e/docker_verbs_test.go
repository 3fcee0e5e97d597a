//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Everything that docker does to a container, with the words of the container
// left open. Each is done under runc and under agentbox, and both have to answer
// the same.
var dockerVerbs = [][]string{
	{"inspect", "--format", "{{.State.Status}} {{.State.OOMKilled}} {{.HostConfig.Memory}}", "NAME"},
	{"exec", "NAME", "echo", "hello"},
	{"exec", "--env", "X=y", "--workdir", "/tmp", "--user", "1000:1000", "NAME", "sh", "-c", "echo $X $WHO; pwd; id -u; echo oops >&2; exit 3"},
	{"exec", "NAME", "no-such-program"},
	{"exec", "--tty", "NAME", "sh", "-c", "tty; test -t 1"},
	{"top", "NAME", "-eo", "pid,args"},
	{"stats", "--no-stream", "--format", "{{.Name}} {{.PIDs}}", "NAME"},
	{"cp", "FILE", "NAME:/tmp/copied"},
	{"exec", "NAME", "cat", "/tmp/copied"},
	{"cp", "NAME:/tmp/copied", "-"},
	{"diff", "NAME"},
	{"pause", "NAME"},
	{"inspect", "--format", "{{.State.Status}}", "NAME"},
	{"exec", "NAME", "true"},
	{"unpause", "NAME"},
	{"update", "--cpus", "0.25", "NAME"},
	{"LIMITS"},
	{"update", "--restart", "no", "NAME"}, // sends resources that are all zero
	{"LIMITS"},
	{"kill", "--signal", "USR1", "NAME"},
	{"AWAIT", "user signal"},
	{"stop", "--time", "50", "NAME"},
	{"wait", "NAME"},
	{"logs", "NAME"},
	{"exec", "NAME", "true"},
	{"start", "NAME"},
	{"restart", "--time", "50", "NAME"},
	{"exec", "NAME", "cat", "/tmp/copied"},
	{"kill", "NAME"},
	{"wait", "NAME"},
	{"inspect", "--format", "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}", "NAME"},
	{"create", "--runtime", "RUNTIME", "--cpu-quota", "500", "busybox"}, // refused by Docker itself
	{"rename", "NAME", "NAME-renamed"},
	{"rm", "NAME-renamed"},
	{"inspect", "NAME-renamed"},
}

func TestDockerVerbsAnswerAsWithRunc(t *testing.T) {
	newDocker(t)
	transcript := func(runtimeName string) (answers []string) {
		t.Run(runtimeName, func(t *testing.T) {
			// The limits are those that agentbox would choose too.
			c := newDocker(t).detached(runtimeName, "-m 64m --memory-swap 64m --cpus 0.5 --pids-limit 100 --env WHO=me",
				`trap 'echo stopped; exit 143' TERM; trap 'echo user signal' USR1; echo started; while :; do sleep 86400 & wait; done`)
			for _, verb := range dockerVerbs {
				answers = append(answers, c.answer(runtimeName, verb))
			}
		})
		return answers
	}
	want, got := transcript("runc"), transcript("agentbox")
	if len(got) != len(want) {
		t.Fatalf("%d answers under agentbox, %d under runc", len(got), len(want))
	}
	for i, verb := range dockerVerbs {
		if got[i] != want[i] {
			t.Errorf("docker %q\nwith runc: %s\nwith agentbox: %s", verb, want[i], got[i])
		}
	}
}

var (
	wordsOfDigits = regexp.MustCompile(`\b[0-9]+\b`)
	columns       = regexp.MustCompile(` {2,}`) // as wide as what stands in them
)

// answer does one of dockerVerbs, and takes out of the answer what differs from
// container to container.
func (c *DockerContainer) answer(runtimeName string, verb []string) string {
	c.t.Helper()
	switch verb[0] {
	case "LIMITS":
		l := c.Cgroup.limits()
		l.GroupKill = false // runc leaves it off
		return fmt.Sprintf("%+v", l)
	case "AWAIT":
		eventually(c.t, 60*time.Second, func() string {
			if logs := c.do("logs", c.Name); !strings.Contains(logs, verb[1]) {
				return fmt.Sprintf("the log of the container has no %q: %s", verb[1], logs)
			}
			return ""
		})
		return ""
	}
	pids := c.processes()
	args := make([]string, 0, len(verb))
	fill := strings.NewReplacer("NAME", c.Name, "RUNTIME", runtimeName, "FILE", filepath.Join(rootfs, "bin/sh"))
	for _, word := range verb {
		args = append(args, fill.Replace(word))
	}
	said := strings.NewReplacer(c.ID, "ID", c.Name, "NAME").Replace(c.run(args...).String())
	said = wordsOfDigits.ReplaceAllStringFunc(said, func(word string) string {
		if n, err := strconv.Atoi(word); err == nil && slices.Contains(pids, n) {
			return "PID"
		}
		return word
	})
	return columns.ReplaceAllString(said, " ")
}

// The terminal of a container is the user's, its size included.
func TestDockerAttachToATerminal(t *testing.T) {
	c := newDocker(t).detached("agentbox", "--interactive --tty", `read x; stty size; echo "got $x"; read x; exit 5`)
	screen := openScreen(t)
	if err := unix.IoctlSetWinsize(int(screen.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100}); err != nil {
		t.Fatal(err)
	}
	attached := screen.launch(c.cli("attach", c.Name))
	eventually(t, 60*time.Second, func() string {
		if got := c.about("{{.State.Running}}"); got != "true" || attached.over() {
			t.Fatalf("the container ended before it was asked for anything")
		}
		if got := c.exec("stty -F /dev/console size 2>/dev/null || stty -F /proc/1/fd/0 size"); !strings.Contains(got.Stdout, "40 100") {
			return fmt.Sprintf("the terminal has the size %v", got)
		}
		return ""
	})
	screen.typed("hello\r")
	screen.see("40 100\r\n")
	screen.see("got hello\r\n")
	screen.typed("\r")
	if out := attached.wait(60 * time.Second); out.Code != 5 {
		t.Errorf("docker attach ended with %d, want 5", out.Code)
	}
}
