//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

const mib = 1 << 20

// A sandbox at its memory limit dies as one where the kernel can do that. On
// cgroup v1 it cannot: the report says so before and tells the truth afterwards.
func TestSandboxOutOfMemoryDiesAsOne(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		c := newBox(t, lowLevel).heldContainer("sleep 1000 & tail /dev/zero; echo survived", memoryLimit(64*mib))
		c.begin(w)
		have := c.limits()
		if have.Memory != 64*mib {
			t.Errorf("the cgroup's memory limit is %d", have.Memory)
		}
		if want := has(cgroup2); have.GroupKill != want {
			t.Errorf("memory.oom.group is on: %v, want %v", have.GroupKill, want)
		}
		c.release()
		out, r := c.finish(w)

		sameAsReport(t, r, have)
		wantOOMEvidence(t, r)
		if has(cgroup2) {
			wantOOMVerdict(t, r)
			if strings.Contains(out.Stdout, "survived") {
				t.Error("a process outlived the group kill")
			}
			if w == byRun && out.Code != 137 {
				t.Errorf("run ended with %d, want 137", out.Code)
			}
			return
		}
		if !strings.Contains(out.Stdout, "survived") {
			t.Error("cgroup v1 kills one process, and this was the whole sandbox")
		}
		wantWarning(t, r, "one process is killed, not the whole sandbox")
		wantNotMemory(t, r)
	})
}

// With the scope "process", which the policy has to allow, the kernel's choice
// dies and the sandbox goes on.
func TestScopeProcessLetsTheSandboxGoOn(t *testing.T) {
	const allow = "[oom]\nallow = [\"container\", \"process\"]"
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		c := newBox(t, lowLevel, allow).heldContainer("(tail /dev/zero); echo went on; exit 0",
			memoryLimit(64*mib), annotation("agentbox.dev/oom-scope", "process"))
		c.begin(w)
		if c.limits().GroupKill {
			t.Error("memory.oom.group is on")
		}
		c.release()
		out, r := c.finish(w)

		if !strings.Contains(out.Stdout, "went on") {
			t.Errorf("the sandbox did not go on: %v", out)
		}
		if r.Scope != limits.ScopeProcess {
			t.Errorf("the report's scope is %q", r.Scope)
		}
		wantOOMEvidence(t, r)
		wantNotMemory(t, r)
		if w == byRun {
			wantExit(t, r, verdict.Exited, 0)
		}
	})
}

// An exit code that its program chose, long after a process in the sandbox was
// killed for memory, is not the kernel's.
func TestStoppedAfterAnOOMOfAnotherProcessIsNotOutOfMemory(t *testing.T) {
	const allow = "[oom]\nscope = \"process\""
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel, allow).container(
			sh("trap 'exit 143' TERM; (tail /dev/zero); echo ready; sleep 1000 & wait"), memoryLimit(64*mib))
		c.begin(byRun)
		c.printed("ready")
		c.must("kill", c.ID, "TERM")
		out, r := c.finish(byRun)

		if out.Code != 143 {
			t.Errorf("run ended with %d, want 143", out.Code)
		}
		wantOOMEvidence(t, r)
		wantNotMemory(t, r)
		wantExit(t, r, verdict.Ended, 143) // 143 may be SIGTERM, or the program's own
	})
}

// Exit codes, signals, and what looks like either: nothing of that is memory.
func TestAnEndWithoutOOMIsNeverMemory(t *testing.T) {
	cases := []struct {
		name   string
		script string
		signal string // sent from outside when the script waits
		status verdict.Status
		code   int
	}{
		{"exit code 0", "exit 0", "", verdict.Exited, 0},
		{"exit code 3", "exit 3", "", verdict.Exited, 3},
		{"exit code 127", "exit 127", "", verdict.Exited, 127},
		{"a program that returns 137", "exit 137", "", verdict.Ended, 137},
		{"a child that kills itself", `sh -c 'kill -9 $$'; exit $?`, "", verdict.Ended, 137},
		{"SIGKILL from outside", "echo ready; sleep 1000", "KILL", verdict.Ended, 137},
		{"a signal that the program handles", "trap 'exit 0' USR1; echo ready; sleep 1000 & wait", "USR1", verdict.Exited, 0},
	}
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		for _, tc := range cases {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				c := newBox(t, lowLevel).container(sh(tc.script), memoryLimit(64*mib))
				c.begin(byRun)
				if tc.signal != "" {
					c.printed("ready")
					c.must("kill", c.ID, tc.signal)
				}
				out, r := c.finish(byRun)
				if out.Code != tc.code {
					t.Errorf("run ended with %d, want %d", out.Code, tc.code)
				}
				wantExit(t, r, tc.status, tc.code)
				wantNotMemory(t, r)
			})
		}
	})
}

// Nobody tells the runtime how a container that was created and started ended.
func TestEndOfACreatedContainerIsNotGuessed(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		_, r := newBox(t, lowLevel).container(sh("exit 137")).complete(byCreate)
		if r.Status != verdict.Ended || r.ExitCode != nil || r.Signal != nil || r.ExitSource != verdict.ExitUnknown || r.ErrorCode != "" {
			t.Errorf("the report guesses: %s", describe(r))
		}
	})
}

// A sandbox must not be the last that the kernel picks, nor one that it never
// does: at its limit such a sandbox would hang.
func TestProtectionFromTheOOMKillerIsTakenAway(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		c := newBox(t, lowLevel).heldContainer("exec dd if=/dev/zero of=/dev/null bs=200M count=1",
			memoryLimit(64*mib), with(-1000, "process", "oomScoreAdj"))
		c.begin(w)
		eventually(t, 60*time.Second, func() string { // run sets it just before the program starts
			adj := readFile(t, fmt.Sprintf("/proc/%d/oom_score_adj", c.pid()))
			if strings.TrimSpace(adj) != "500" {
				return "oom_score_adj is " + adj
			}
			return ""
		})
		c.release()
		_, r := c.finish(w) // one that hangs is found here
		wantOOMEvidence(t, r)
		wantWarning(t, r, "oomScoreAdj -1000 from the spec raised to 500")
		if has(cgroup2) || w == byRun { // else nobody knows that the first process was the one
			wantOOMVerdict(t, r)
		}
	})
}

// Engines fill the swap field in by themselves. Whatever stands there, the
// policy's "no swap" holds.
func TestNoSwapWhateverTheSpecSays(t *testing.T) {
	cases := []struct {
		name   string
		tweaks []Tweak
	}{
		{"swap not given", nil},
		{"swap unlimited", []Tweak{resource(-1, "memory", "swap")}},
		{"swap equal to the limit", []Tweak{resource(64*mib, "memory", "swap")}},
		{"swap twice the limit, as Docker sends it", []Tweak{resource(128*mib, "memory", "swap")}},
	}
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		need(t, swapLimit)
		b := newBox(t, lowLevel)
		for _, tc := range cases {
			t.Run(tc.name, func(t *testing.T) {
				c := b.on(t).heldContainer("exit 0", append(tc.tweaks, memoryLimit(64*mib))...)
				c.begin(w)
				have := c.limits()
				if have.Memory != 64*mib || have.Swap != 0 {
					t.Errorf("memory %d and swap %d, want %d and 0", have.Memory, have.Swap, 64*mib)
				}
				c.release()
				_, r := c.finish(w)
				sameAsReport(t, r, have)
			})
		}
	})
}

// A program that needs more memory than the limit, on a machine with swap.
const needs96MiB = "dd if=/dev/zero of=/dev/null bs=96M count=1 && echo done"

// The limit is worth nothing if what is above it goes to swap. The same program
// under a policy that allows swap shows that it would.
func TestMemoryHogCannotEscapeIntoSwap(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		need(t, swap)
		t.Run("it dies at the limit", func(t *testing.T) {
			out, peak, r := runHog(t, newBox(t, lowLevel))
			if strings.Contains(out.Stdout, "done") {
				t.Error("96 MiB fitted into 64 MiB")
			}
			if peak != 0 {
				t.Errorf("%d bytes were swapped", peak)
			}
			wantOOMEvidence(t, r)
			if has(cgroup2) {
				wantOOMVerdict(t, r)
			}
		})
		t.Run("it swaps where the policy allows that", func(t *testing.T) {
			const policy = "[limits]\nswap = \"none\"\n[ceilings]\nswap = \"none\""
			out, peak, r := runHog(t, newBox(t, lowLevel, policy))
			if !strings.Contains(out.Stdout, "done") {
				t.Errorf("it did not survive: %v, %s", out, describe(r))
			}
			if peak < 16*mib {
				t.Errorf("only %d bytes were swapped, so that this proves nothing", peak)
			}
		})
	})
}

// runHog returns the most swap that the container used.
func runHog(t *testing.T, b *Box) (Output, int64, *result.Result) {
	t.Helper()
	c := b.heldContainer(needs96MiB, memoryLimit(64*mib))
	c.begin(byCreate)
	cg := cgroupOf(t, c.pid())
	c.release()
	peak := int64(0)
	eventually(t, 60*time.Second, func() string {
		peak = max(peak, cg.swapBytes())
		if alive(c.pid()) {
			return "the hog is still running"
		}
		return ""
	})
	// It may have done all of it between the last two looks; where the kernel
	// keeps the most there was, it is there until the delete.
	peak = max(peak, cg.swapBytes())
	out, r := c.finish(byCreate)
	return out, peak, r
}

// swapBytes is what the cgroup has in swap, or the most it had where the kernel
// knows (memory.swap.peak, since Linux 6.5).
func (g Cgroup) swapBytes() int64 {
	g.t.Helper()
	if has(cgroup1) {
		return g.field("memory.stat", "swap")
	}
	if g.read("memory.swap.peak") != "" {
		return g.number("memory.swap.peak")
	}
	return g.number("memory.swap.current")
}

// The unified map is written last by the low-level runtimes, so that what stands
// there would win over the fields that agentbox sets.
func TestUnifiedMapCannotLiftALimit(t *testing.T) {
	const policy = "[limits]\nmemory = \"96MiB\"\npids = 99\ncpus = 0.5"
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		need(t, cgroup2)
		c := newBox(t, lowLevel, policy).heldContainer("exit 0", resource(map[string]any{
			"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0", "pids.max": "max", "cpu.max": "max 100000",
		}, "unified"))
		c.begin(w)
		have := c.limits()
		if want := (Limits{Memory: 96 * mib, Swap: 0, Pids: 99, Quota: 50000, Period: 100000, GroupKill: true}); have != want {
			t.Errorf("the cgroup has %+v, want %+v", have, want)
		}
		c.release()
		_, r := c.finish(w)
		sameAsReport(t, r, have)
		wantWarning(t, r, "memory: no limit in the spec lowered to 96MiB")
		wantWarning(t, r, "pids: no limit in the spec lowered to 99")
		wantWarning(t, r, "cpus: no limit in the spec lowered to 0.5")
		wantWarning(t, r, "memory.oom.group=0 from the spec is dropped")
	})
}

// wantOOMEvidence: the kernel's own counters say that the limit of this cgroup
// was hit and that a process was killed.
func wantOOMEvidence(t *testing.T, r *result.Result) {
	t.Helper()
	if m := r.Evidence.Memory; m == nil || m.OOM < 1 || m.OOMKill < 1 || r.Events.OOMKill < 1 {
		t.Errorf("no evidence of an OOM kill: %s", describe(r))
	}
}

func wantOOMVerdict(t *testing.T, r *result.Result) {
	t.Helper()
	if r.Status != verdict.OOMKilled || r.ErrorCode != verdict.MemoryLimitExceeded || r.FinishedAt == nil {
		t.Errorf("no verdict about memory: %s", describe(r))
	}
}

func wantNotMemory(t *testing.T, r *result.Result) {
	t.Helper()
	if r.Status == verdict.OOMKilled || r.ErrorCode != "" {
		t.Errorf("a verdict that is not the truth: %s", describe(r))
	}
}

// wantExit checks what a foreground run knows: an exit code, in which a signal n
// is folded into 128+n.
func wantExit(t *testing.T, r *result.Result, status verdict.Status, code int) {
	t.Helper()
	if r.Status != status || r.ExitCode == nil || *r.ExitCode != code || r.ExitSource != verdict.ExitWait {
		t.Errorf("want %s with %d, known from waiting: %s", status, code, describe(r))
	}
	if folded := code > 128; folded != (r.Signal == nil) {
		t.Errorf("the signal of a code of %d: %s", code, describe(r))
	}
}

func wantWarning(t *testing.T, r *result.Result, text string) {
	t.Helper()
	if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, text) }) {
		t.Errorf("no warning says %q: %q", text, r.Warnings)
	}
}

// describe shows what matters of a report in one line.
func describe(r *result.Result) string {
	show := func(n *int) string {
		if n == nil {
			return "null"
		}
		return fmt.Sprint(*n)
	}
	return fmt.Sprintf("%s %s %q, exit code %s, signal %s, source %s, events %+v, memory %+v, warnings %q", r.Status, r.ErrorCode,
		r.Message, show(r.ExitCode), show(r.Signal), r.ExitSource, r.Events, r.Evidence.Memory, r.Warnings)
}
