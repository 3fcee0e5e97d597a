//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// The main attacks through the doors of engines: under Docker the host's
// supervisor holds the sandboxes, below the shim the shim itself.

// supervised is a configuration for both.
func supervised(limits ...string) string {
	return everything + "\n[limits]\n" + strings.Join(limits, "\n") + "\n"
}

func TestSupervisorDocker(t *testing.T) {
	newDocker(t, supervisor)
	limit, wants := memoryAttack()
	start := func(t *testing.T, runtimeName, flags, script string) *DockerContainer {
		t.Helper()
		c := newDocker(t, supervisor).held(runtimeName, flags, script)
		return c
	}
	ended := func(t *testing.T, c *DockerContainer, pidns string) *result.Result {
		t.Helper()
		r := c.verdict()
		gone(t, c.ID, pidns)
		return r
	}
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		c := start(t, "agentbox-supervised", fmt.Sprintf("-m %dm", limit), fmt.Sprintf("attack take anon %d; echo survived; sleep 1000", wants))
		pidns := c.pidns()
		c.letGo()
		if out := c.ends(); out.Code != 137 || strings.Contains(out.Stdout, "survived") {
			t.Errorf("the bomb was not stopped: %v", out)
		}
		r := ended(t, c, pidns)
		wantStruck(t, r, verdict.MemoryLimitExceeded)
		wantSupervised(t, r, "memory")
	})
	t.Run("cpu", func(t *testing.T) {
		t.Parallel()
		c := start(t, "agentbox-supervised", "--cpus 0.5", "trap 'exit 7' TERM; "+spinners)
		pidns := c.pidns()
		c.letGo()
		time.Sleep(time.Second)
		if used := c.Cgroup.cpusUsed(5 * time.Second); used > 1.15*0.5 || used == 0 {
			t.Errorf("%.3f CPUs were used, the limit is 0.5", used)
		}
		for range 10 { // nobody sees that it is stopped half of the time
			if got := c.do("ps", "--filter", "name="+c.Name, "--format", "{{.Status}}"); !strings.HasPrefix(got, "Up") || strings.Contains(got, "Paused") {
				t.Errorf("docker ps says %q", got)
			}
		}
		if out := c.exec("echo hello"); out.Stdout != "hello\n" || out.Code != 0 {
			t.Errorf("docker exec: %v", out)
		}
		at := time.Now()
		c.do("stop", "--time", "20", c.Name)
		if took := time.Since(at); took > scaled(15*time.Second) {
			t.Errorf("docker stop took %v", took)
		}
		if got := c.about("{{.State.ExitCode}}"); got != "7" {
			t.Errorf("SIGTERM did not arrive: the exit code is %s", got)
		}
		r := ended(t, c, pidns)
		wantNoLimit(t, r)
		wantSupervised(t, r, "cpu")
	})
	t.Run("cpu_time", func(t *testing.T) {
		t.Parallel()
		c := start(t, "agentbox-budget", "", "trap 'exit 7' TERM; for i in 1 2 3 4; do attack spin 3000 & done; wait; echo survived")
		pidns := c.pidns()
		c.letGo()
		if out := c.ends(); out.Code != 7 || strings.Contains(out.Stdout, "survived") {
			t.Errorf("it was not told to end: %v", out)
		}
		r := ended(t, c, pidns)
		wantStruck(t, r, verdict.CPUTimeExceeded)
		wantSupervised(t, r, "cpu_time")
	})
	t.Run("docker kill", func(t *testing.T) {
		t.Parallel()
		c := start(t, "agentbox-supervised", "--cpus 0.5", "echo; sleep 1000")
		pidns := c.pidns()
		c.do("kill", c.Name)
		wantNoLimit(t, ended(t, c, pidns))
	})
}

// pidns is the pid namespace of a running container.
func (c *DockerContainer) pidns() string {
	c.t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.first))
	if err != nil {
		c.t.Fatal(err)
	}
	return ns
}

func TestSupervisorShim(t *testing.T) {
	newCtr(t)
	limit, wants := memoryAttack()
	cases := []struct {
		name, limit, script string
		dimension           string
		code                verdict.Code
		exit                int
	}{
		{"memory", fmt.Sprintf("memory = \"%dMiB\"", limit), fmt.Sprintf("attack take anon %d; echo survived; sleep 1000", wants), "memory", verdict.MemoryLimitExceeded, 137},
		{"cpu_time", `cpu_time = "5s"`, "trap 'exit 7' TERM; for i in 1 2 3 4; do attack spin 3000 & done; wait; echo survived", "cpu_time", verdict.CPUTimeExceeded, 7},
		// It counts while the low-level start still runs, which takes seconds on an emulated CPU.
		{"wall_time", `wall_time = "8s"`, "trap 'exit 7' TERM; while :; do sleep 0.1; done; echo survived", "wall_time", verdict.WallTimeExceeded, 7},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			need(t, supervisor)
			c := newCtr(t, supervised(tc.limit))
			cc := c.container(sh(tc.script), withName)
			out := cc.run().wait(60 * time.Second)
			if out.Code != tc.exit || strings.Contains(out.Stdout, "survived") {
				t.Errorf("it was not stopped: %v", out)
			}
			gone(t, cc.ID, "")
			execute(t, 60*time.Second, c.ctr("task", "rm", cc.ID)) // ctr run did, in some versions
			cc.nothingLeft()
			r := cc.result(cc.ID)
			wantStruck(t, r, tc.code)
			wantSupervised(t, r, tc.dimension)
		})
	}
	t.Run("cpu", func(t *testing.T) {
		t.Parallel()
		need(t, supervisor)
		c := newCtr(t, supervised("cpus = 0.5"))
		cc := c.container(sh("trap 'exit 7' TERM; "+spinners), withName)
		cc.detached()
		cg := cgroupOf(t, cc.pid())
		time.Sleep(time.Second)
		if used := cg.cpusUsed(5 * time.Second); used > 1.15*0.5 || used == 0 {
			t.Errorf("%.3f CPUs were used, the limit is 0.5", used)
		}
		for i := range 5 {
			if out := cc.exec("e"+itoa(i), "echo in"); out.Code != 0 || out.Stdout != "in\n" {
				t.Errorf("ctr task exec: %v", out)
			}
		}
		cc.call("task", "kill", "--signal", "TERM", cc.ID)
		eventually(t, 20*time.Second, func() string {
			if alive(cc.pid()) {
				return "it does not end"
			}
			return ""
		})
		gone(t, cc.ID, "")
		cc.call("task", "rm", cc.ID)
		cc.nothingLeft()
		wantNoLimit(t, cc.result(cc.ID))
	})
}
