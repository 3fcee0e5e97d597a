//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// cpuClock is the CPU time of a process, all its threads, by the kernel's clock
// for it (clock_getcpuclockid(3)).
func cpuClock(pid int) time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|2), &now) != nil {
		return 0 // it has ended
	}
	return time.Duration(now.Nano())
}

// spend is the CPU time that the processes of a sandbox use in a while, per time.
// Those that end meanwhile are not counted.
func (a *attack) spend(while time.Duration) float64 {
	a.t.Helper()
	before := map[int]time.Duration{}
	at := time.Now()
	for _, pid := range insiders(a.ID, a.pidns) {
		before[pid] = cpuClock(pid)
	}
	time.Sleep(while)
	used := time.Duration(0)
	for _, pid := range insiders(a.ID, a.pidns) {
		if now := cpuClock(pid); now > before[pid] {
			used += now - before[pid]
		}
	}
	return used.Seconds() / time.Since(at).Seconds()
}

// The CPU time of a sandbox is bounded, however it defends itself. How exactly is
// measured by the benchmark; here others use the machine too, so that less than
// the limit proves nothing.
func TestSupervisorCPU(t *testing.T) {
	const limit = 0.5
	attacks := []struct{ name, script string }{
		{"four spinners", spinners},
		{"two who wake each other and all others", "attack wake & attack wake & " + spinners},
		{"one who hides stops from those it traces", "attack trace 3 & attack trace 3 & echo spinning; wait"},
		{"one in nested namespaces", "attack nested spin 1000000 & attack nested spin 1000000 & echo spinning; wait"},
	}
	eachGround(t, func(t *testing.T, g *ground) {
		for _, s := range few(g, attacks, 2) {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				a := g.attack(t, fmt.Sprintf("[limits]\ncpus = %g", limit), sh(s.script), mayNest)
				a.printed("spinning")
				time.Sleep(500 * time.Millisecond) // the head start
				used := a.spend(5 * time.Second)
				t.Logf("%.3f CPUs of %g", used, limit)
				if used > 1.15*limit {
					t.Errorf("%.3f CPUs were used, the limit is %g", used, limit)
				}
				a.mustGoOn("held to its limit")
				a.must("kill", a.ID, "KILL")
				_, r := a.ends()
				wantNoLimit(t, r)
				wantSupervised(t, r, "cpu")
			})
		}
	})
}

// A signal ends a sandbox in time also while it is kept from computing.
func TestSupervisorKillWhileStopped(t *testing.T) {
	eachGround(t, func(t *testing.T, g *ground) {
		const script = "trap 'echo told; exit 0' TERM; " + spinners
		a := g.attack(t, "[limits]\ncpus = 0.05", sh(script)) // stopped nearly always
		a.printed("spinning")
		time.Sleep(time.Second)
		at := time.Now()
		a.must("kill", a.ID, "TERM")
		out, r := a.ends()
		if took := time.Since(at); took > scaled(8*time.Second) {
			t.Errorf("SIGTERM took %v", took)
		}
		if !strings.Contains(out.Stdout, "told") {
			t.Errorf("SIGTERM did not arrive: %v", out)
		}
		wantNoLimit(t, r)
	})
}

// Who looks at a sandbox while its CPU is limited never sees that it is stopped.
func TestSupervisorIsNotSeen(t *testing.T) {
	eachGround(t, func(t *testing.T, g *ground) {
		const limit = 0.1 // stopped nearly always, also where others want the CPU
		a := g.attack(t, fmt.Sprintf("[limits]\ncpus = %g", limit), sh(spinners))
		a.printed("spinning")
		calls := 20
		if *soak || g.kind.name == "runc" && has(cpus2) {
			calls = 100 // of exec, and of state
		}
		const callers = 4
		type answer struct {
			what string
			Output
		}
		answers := make(chan answer, 2*calls)
		var running sync.WaitGroup
		for i := range callers {
			running.Go(func() {
				for range calls / callers {
					answers <- answer{"exec", a.quietly("exec", a.ID, "echo", "hello")}
					answers <- answer{"state", a.quietly("state", a.ID)}
				}
				if i == 0 && g.kind.name == "runc" { // ps needs a cgroup
					answers <- answer{"ps", a.quietly("ps", a.ID)}
				}
			})
		}
		go func() { running.Wait(); close(answers) }()
		seen := 0
		for out := range answers {
			seen++
			if out.Code != 0 || out.what == "exec" && out.Stdout != "hello\n" || out.what == "state" && !strings.Contains(out.Stdout, `"status": "running"`) {
				t.Errorf("%s: %v", out.what, out.Output)
			}
		}
		if seen < 2*calls-2*callers {
			t.Errorf("only %d answers", seen)
		}
		if used := a.spend(2 * time.Second); used > 2*limit {
			t.Errorf("%.3f CPUs are used afterwards, the limit is %g", used, limit)
		}
		if g.kind.name == "runc" {
			// Who asks the low-level runtime without agentbox sees it: it was not for
			// want of a reason that the others did not.
			eventually(t, 20*time.Second, func() string {
				if out := execute(t, 30*time.Second, a.bare("state", a.ID)); !strings.Contains(out.Stdout, `"status": "paused"`) {
					return "the sandbox is never stopped"
				}
				return ""
			})
			// What its user has paused stays so.
			a.must("pause", a.ID)
			time.Sleep(300 * time.Millisecond)
			if out := a.must("state", a.ID); !strings.Contains(out.Stdout, `"status": "paused"`) {
				t.Errorf("a paused container: %v", out)
			}
			if used := a.spend(time.Second); used > 0 {
				t.Errorf("a paused container uses %.3f CPUs", used)
			}
			a.must("resume", a.ID)
		}
		a.must("kill", a.ID, "KILL")
		_, r := a.ends()
		wantNoLimit(t, r)
	})
}

// A process that the sandbox has stopped by itself stays stopped.
func TestSupervisorLeavesStoppedOnesAlone(t *testing.T) {
	eachGround(t, func(t *testing.T, g *ground) {
		a := g.attack(t, "[limits]\ncpus = 0.5", sh("sh -c 'kill -STOP $$; echo woken' & "+spinners))
		a.printed("spinning")
		idle := func() (stopped []int) {
			for _, pid := range insiders(a.ID, a.pidns) {
				if cpuClock(pid) < 50*time.Millisecond && stateOf(pid) == 'T' {
					stopped = append(stopped, pid)
				}
			}
			return stopped
		}
		time.Sleep(time.Second)
		before := idle()
		time.Sleep(2 * time.Second)
		if after := idle(); len(before) == 0 || !slices.ContainsFunc(before, func(pid int) bool { return slices.Contains(after, pid) }) {
			t.Errorf("stopped by the sandbox itself were %v, and then %v", before, after)
		}
		a.must("kill", a.ID, "KILL")
		out, r := a.ends()
		if strings.Contains(out.Stdout, "woken") {
			t.Errorf("it was let continue: %v", out)
		}
		wantNoLimit(t, r)
	})
}

// stateOf is the letter of a process' state (proc_pid_stat(5)); 0 when it is gone.
func stateOf(pid int) byte {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	return data[bytes.LastIndexByte(data, ')')+2]
}

// CPU time is a budget of the whole sandbox, whoever uses it.
func TestSupervisorCPUTime(t *testing.T) {
	const budget = 5
	chains := []struct {
		name, script string
		kinds        string
	}{
		{name: "four spinners of three seconds", script: "for i in 1 2 3 4; do attack spin 3000 & done; wait"},
		{name: "thousands of short-lived children", script: "i=0; while [ $i -lt 100000 ]; do /bin/true; i=$((i+1)); done"},
		{name: "children that nobody waits for", script: "exec attack chain 4000 5", kinds: "runc"},
		{name: "orphans", script: "while :; do (attack spin 20 &); sleep 0.01; done"},
	}
	eachGround(t, func(t *testing.T, g *ground) {
		for _, s := range few(g, chains, 1) {
			if s.kinds != "" && s.kinds != g.kind.name {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				const trap = "trap 'echo told; exit 0' TERM; "
				a := g.attack(t, fmt.Sprintf("[limits]\ncpu_time = \"%ds\"", budget), sh(trap+s.script+"; echo survived"))
				out, r := a.ends()
				if strings.Contains(out.Stdout, "survived") {
					t.Errorf("it came to its end: %v", out)
				}
				wantStruck(t, r, verdict.CPUTimeExceeded)
				wantSupervised(t, r, "cpu_time")
				if g.kind.name == "runc" { // else there is no counter of the sandbox's own
					u := r.Usage
					if u == nil || u.CPUUsec == nil {
						t.Fatalf("the result tells no CPU time: %+v", u)
					}
					t.Logf("%.2f s of %d", float64(*u.CPUUsec)/1e6, budget)
					if s := float64(*u.CPUUsec) / 1e6; s < budget || s > 1.4*budget {
						t.Errorf("it used %.2f s, and may use %d", s, budget)
					}
				}
			})
		}
	})
}

// A first process that does not want to end is ended all the same.
func TestSupervisorWallTime(t *testing.T) {
	eachGround(t, func(t *testing.T, g *ground) {
		for _, c := range []struct {
			name, script string
			least, most  float64
		}{
			{"it ends when it is told", "trap 'echo told; exit 0' TERM; while :; do sleep 0.1; done", 2, 5},
			{"it ignores SIGTERM", "trap '' TERM; while :; do sleep 0.1; done", 12, 16},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				a := g.attack(t, "[limits]\nwall_time = \"2s\"", sh(c.script))
				_, r := a.ends()
				wantStruck(t, r, verdict.WallTimeExceeded)
				wantSupervised(t, r, "wall_time")
				if took := uptime(t) - a.began; took < c.least || took > c.most*float64(*slowFlag) {
					t.Errorf("it ended after %.1f s", took)
				}
			})
		}
	})
}

// Signals from outside and inside are never a limit.
func TestSupervisorOtherEndsAreNoLimit(t *testing.T) {
	const policy = "[limits]\nmemory = \"64MiB\"\ncpus = 0.5\npids = 64\ncpu_time = \"60s\"\nwall_time = \"60s\""
	cases := []struct {
		name, script, signal string
		code                 int
	}{
		{"SIGKILL from outside", "echo ready; sleep 1000", "KILL", 137},
		{"SIGTERM that is handled", "trap 'exit 143' TERM; echo ready; sleep 1000 & wait", "TERM", 143},
		{"a child that kills itself", "sh -c 'kill -9 $$'; exit $?", "", 137},
		{"a program that returns 137", "exit 137", "", 137},
		{"nothing at all", "exit 0", "", 0},
	}
	eachGround(t, func(t *testing.T, g *ground) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				a := g.attack(t, policy, sh(c.script))
				if c.signal != "" {
					a.printed("ready")
					a.must("kill", a.ID, c.signal)
				}
				_, r := a.ends()
				wantNoLimit(t, r)
				if r.ExitCode == nil || *r.ExitCode != c.code {
					t.Errorf("the supervisor saw no exit code of %d: %s", c.code, describe(r))
				}
			})
		}
	})
}

// quietly runs a verb, whatever comes of it, on any goroutine.
func (c *Container) quietly(args ...string) Output {
	cmd := c.command(args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	out := Output{Stdout: stdout.String(), Stderr: stderr.String()}
	if err != nil {
		out.Code, out.Stderr = -1, fmt.Sprint(out.Stderr, err)
	}
	return out
}
