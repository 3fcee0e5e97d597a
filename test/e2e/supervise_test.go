//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// A budget of CPU time is nothing that the kernel knows: whichever way a container
// is started, the supervisor has it before its program runs.
func TestSupervisorEndsWhatUsedItsTime(t *testing.T) {
	for _, w := range ways {
		t.Run(string(w), func(t *testing.T) {
			need(t, runc)
			c := newBox(t, "runc").container(sh("trap 'exit 3' TERM; while :; do :; done"), annotation("agentbox.dev/cpu-time", "1s"))
			c.begin(w)
			_, r := c.finish(w)
			if r.Status != verdict.LimitKilled || r.ErrorCode != verdict.CPUTimeExceeded {
				t.Errorf("%s", describe(r))
			}
			if e := r.Enforcement["cpu_time"]; e.Enforcer != limits.EnforcerSupervisor || e.Effective == nil {
				t.Errorf("cpu_time is enforced by %+v", e)
			}
		})
	}
}

// The supervisor stops a sandbox many times a second to hold it to its CPU. Nobody
// who looks at it sees that.
func TestSupervisorIsNotSeen(t *testing.T) {
	need(t, runc)
	b := newBox(t, "runc", "supervise = [\"cpu\"]\n[limits]\ncpus = 0.1")
	c := b.container(sh("while :; do :; done"))
	c.begin(byCreate)
	if e := c.result().Enforcement["cpu"]; e.Enforcer != limits.EnforcerSupervisor {
		t.Fatalf("cpu is enforced by %+v", e)
	}
	before := cgroupOf(t, c.pid()).cpuUsec()
	begin := time.Now()
	for range 25 {
		if out := b.must("state", c.ID); !strings.Contains(out.Stdout, `"status": "running"`) {
			t.Fatalf("state: %v", out)
		}
		if out := b.try("exec", c.ID, "/bin/true"); out.Code != 0 {
			t.Fatalf("exec: %v", out)
		}
	}
	// Who asks the low-level runtime without agentbox sees it: it was not for want
	// of a reason that the others did not.
	eventually(t, 20*time.Second, func() string {
		if out := execute(t, 30*time.Second, b.bare("state", c.ID)); !strings.Contains(out.Stdout, `"status": "paused"`) {
			return "the sandbox is never stopped"
		}
		return ""
	})
	used := float64(cgroupOf(t, c.pid()).cpuUsec()-before) / float64(time.Since(begin).Microseconds())
	if used > 0.3 {
		t.Errorf("it used %.2f CPUs of 0.1", used)
	}
	c.must("kill", c.ID, "KILL")
	c.finish(byCreate)
}

// Where no supervisor can be started, the report says so, and strict mode that
// asks for one does not start.
func TestNoSupervisorIsSaid(t *testing.T) {
	need(t, runc)
	alone := filepath.Join(tempDir(t), "agentbox-runtime")
	data, err := os.ReadFile(runtimePath())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(alone, data, 0o755); err != nil {
		t.Fatal(err)
	}
	start := func(b *Box, c *Container) (create, start Output) {
		run := func(args ...string) Output {
			cmd := b.command(args...)
			cmd.Path, cmd.Args[0] = alone, alone
			cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
			c.main = launch(t, cmd)
			return c.main.wait(30 * time.Second)
		}
		if create = run("create", "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID); create.Code == 0 {
			start = run("start", c.ID)
		}
		return create, start
	}
	if path, err := exec.LookPath("agentbox"); err == nil && !strings.HasPrefix(path, bin) {
		t.Fatalf("%s is installed on this machine", path)
	}
	why := "the program agentbox, which is the supervisor, is neither in " + filepath.Dir(alone) + " nor on the PATH"

	b := newBox(t, "runc")
	c := b.container([]string{"sleep", "1000"}, annotation("agentbox.dev/wall-time", "1h"))
	if create, started := start(b, c); create.Code != 0 || started.Code != 0 {
		t.Fatalf("%v, %v", create, started)
	}
	if e := c.result().Enforcement["wall_time"]; e.Enforcer != limits.EnforcerNone || !strings.Contains(e.Detail, why) {
		t.Errorf("wall_time is enforced by %+v", e)
	}
	c.must("kill", c.ID, "KILL")
	c.finish(byCreate)

	strict := newBox(t, "runc", "mode = \"strict\"\nstrict_require = [\"wall_time\"]")
	c = strict.container([]string{"sleep", "1000"}, annotation("agentbox.dev/wall-time", "1h"))
	if create, _ := start(strict, c); create.Code == 0 || !strings.Contains(create.Stderr, why) {
		t.Errorf("strict mode: %v", create)
	}
}

// One that is planned and then does not come up: auto starts and says why, strict
// does not start.
func TestSupervisorThatFailsToStart(t *testing.T) {
	need(t, runc)
	own := filepath.Join(tempDir(t), "agentbox-runtime")
	data, err := os.ReadFile(runtimePath())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, data, 0o755); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(filepath.Dir(own), "agentbox")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho it is out of order >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"auto", "strict"} {
		t.Run(mode, func(t *testing.T) {
			b := newBox(t, "runc", "mode = \""+mode+"\"\nstrict_require = [\"wall_time\"]")
			c := b.container([]string{"sleep", "1000"}, annotation("agentbox.dev/wall-time", "1h"))
			run := func(args ...string) Output {
				cmd := b.command(args...)
				cmd.Path, cmd.Args[0] = own, own
				c.main = launch(t, cmd)
				return c.main.wait(30 * time.Second)
			}
			if out := run("create", "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID); out.Code != 0 {
				t.Fatalf("create: %v", out)
			}
			out := run("start", c.ID)
			const why = "the host's supervisor cannot be started: it is out of order"
			if mode == "strict" {
				if out.Code == 0 || !strings.Contains(out.Stderr, why) {
					t.Errorf("start: %v", out)
				}
				c.must("delete", "--force", c.ID)
				return
			}
			if e := c.result().Enforcement["wall_time"]; out.Code != 0 || e.Enforcer != limits.EnforcerNone || !strings.Contains(e.Detail, why) {
				t.Errorf("start: %v, enforced by %+v", out, e)
			}
			c.must("kill", c.ID, "KILL")
			c.finish(byCreate)
		})
	}
}
