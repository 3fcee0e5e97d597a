//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// A memory bomb in one process ends the whole container, where the kernel has
// group kills, and everybody is told. On cgroup v1 it ends that process, and
// nobody is told anything else.
func TestDockerMemoryBomb(t *testing.T) {
	d := newDocker(t)
	c := d.held("agentbox", "-m 64m", "sleep 1000 & tail /dev/zero; echo survived; exit 0")
	var processes, groups int64
	if has(cgroup2) {
		processes, groups = d.killsSoFar()
	}
	c.letGo()
	out := c.ends()
	c.allGone()
	r := c.verdict()
	wantOOMEvidence(t, r)

	if !has(cgroup2) {
		if !strings.Contains(out.Stdout, "survived") || out.Code != 0 {
			t.Errorf("cgroup v1 kills one process, and this was the whole container: %v", out)
		}
		wantWarning(t, r, "one process is killed, not the whole sandbox")
		wantEnded(t, r)
		return
	}
	if p, g := d.killsSoFar(); p == processes || g != groups+1 {
		t.Errorf("the kernel counted %d killed processes and %d group kills, want some and 1", p-processes, g-groups)
	}
	if strings.Contains(out.Stdout, "survived") || out.Code != 137 {
		t.Errorf("the container did not die as one: %v", out)
	}
	if got := c.about("{{.State.OOMKilled}} {{.State.ExitCode}}"); got != "true 137" {
		t.Errorf("docker inspect says OOMKilled and exit code %q", got)
	}
	for _, ref := range []string{c.Name, c.ID[:12], c.ID} {
		r, out := d.inspect(ref)
		if r == nil {
			t.Errorf("agentbox inspect %s: %v", ref, out)
			continue
		}
		wantOOMVerdict(t, r)
		if r.ID != c.ID || r.Name != c.Name {
			t.Errorf("the result by %q is of %q, named %q", ref, r.ID, r.Name)
		}
	}
}

// A container whose policy leaves the choice to the kernel goes on after a kill,
// and ends as it likes.
func TestDockerOOMOfOneProcess(t *testing.T) {
	newDocker(t)
	for _, tc := range []struct {
		name, script string
		stop         bool
		code         int
	}{
		{"then exits with 0", "(tail /dev/zero); exit 0", false, 0},
		{"then is stopped", "trap 'exit 143' TERM; (tail /dev/zero); sleep 1000 & wait", true, 143},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDocker(t)
			runtimeName, flags := "agentbox-process", "-m 64m"
			if has(annotations) {
				runtimeName, flags = "agentbox-may", "-m 64m --annotation agentbox.dev/oom-scope=process"
			}
			c := d.held(runtimeName, flags, tc.script)
			c.letGo()
			if tc.stop {
				c.waitForKill()
				d.do("stop", "--time", "50", c.Name)
			}
			out := c.ends()
			if out.Code != tc.code {
				t.Errorf("the container ended with %d, want %d", out.Code, tc.code)
			}
			r := c.verdict()
			wantOOMEvidence(t, r)
			wantEnded(t, r)
			if r.Scope != limits.ScopeProcess {
				t.Errorf("the scope is %q", r.Scope)
			}
		})
	}
}

// waitForKill waits until the kernel has killed a process of the container for
// memory.
func (c *DockerContainer) waitForKill() {
	c.t.Helper()
	file := "memory.events"
	if !has(cgroup2) {
		file = "memory.oom_control"
	}
	eventually(c.t, 60*time.Second, func() string {
		if c.Cgroup.field(file, "oom_kill") == 0 {
			return "the kernel has killed nothing for memory"
		}
		return ""
	})
}

// Nobody tells the runtime how a container of Docker ended: it says so and
// guesses nothing, however much 137 looks like a kill for memory.
func TestDockerEndWithoutOOM(t *testing.T) {
	d := newDocker(t)
	t.Run("docker kill", func(t *testing.T) {
		c := newDocker(t).detached("agentbox", "-m 64m", "exec sleep 1000")
		d.do("kill", "--signal", "KILL", c.Name)
		c.wantEndWithoutOOM("137")
	})
	t.Run("a child that kills itself", func(t *testing.T) {
		c := newDocker(t).detached("agentbox", "-m 64m", "sh -c 'kill -9 $$'; exit $?")
		c.wantEndWithoutOOM("137")
	})
	t.Run("a program that returns 137", func(t *testing.T) {
		c := newDocker(t).detached("agentbox", "-m 64m", "exit 137")
		c.wantEndWithoutOOM("137")
	})
	t.Run("an exec that kills itself", func(t *testing.T) {
		c := newDocker(t).detached("agentbox", "-m 64m", "trap 'exit 0' TERM; sleep 1000 & wait")
		if out := c.exec("kill -9 $$"); out.Code != 137 {
			t.Errorf("docker exec: %v", out)
		}
		if r, out := d.inspect(c.Name); r == nil || r.Status != verdict.Running || r.ErrorCode != "" {
			t.Errorf("the container lives, and agentbox inspect says %v", out)
		}
		d.do("stop", "--time", "50", c.Name)
		c.wantEndWithoutOOM("0")
	})
}

func (c *DockerContainer) wantEndWithoutOOM(code string) {
	c.t.Helper()
	c.wait()
	if got := c.about("{{.State.OOMKilled}} {{.State.ExitCode}}"); got != "false "+code {
		c.t.Errorf("docker inspect says OOMKilled and exit code %q", got)
	}
	r := c.verdict()
	wantEnded(c.t, r)
	if r.Events.OOMKill != 0 || r.Evidence.Memory == nil {
		c.t.Errorf("memory events are counted, or none could be: %s", describe(r))
	}
}

// wantEnded checks the result of a container of which nobody said how it ended,
// and which no limit ended.
func wantEnded(t *testing.T, r *result.Result) {
	t.Helper()
	wantNotMemory(t, r)
	if r.Status != verdict.Ended || r.ExitCode != nil || r.Signal != nil || r.ExitSource != verdict.ExitUnknown {
		t.Errorf("the result guesses: %s", describe(r))
	}
}

// A process that may not be killed would make its container hang at the limit.
func TestDockerOOMProtectionIsTakenAway(t *testing.T) {
	newDocker(t)
	flags := map[string]string{"score": "--oom-score-adj -1000"}
	if !has(cgroup2) { // Docker itself drops this one on cgroup v2
		flags["killer"] = "--oom-kill-disable"
	}
	for name, flag := range flags {
		t.Run(name, func(t *testing.T) {
			c := newDocker(t).held("agentbox", "-m 64m "+flag, "exec tail /dev/zero")
			c.letGo()
			if out := c.ends(); out.Code != 137 {
				t.Errorf("the container was not killed: %v", out)
			}
			r := c.verdict()
			wantOOMEvidence(t, r)
			if has(cgroup2) {
				wantOOMVerdict(t, r)
			}
		})
	}
}
