//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// A fork bomb stays bounded without a controller that would refuse a fork, and
// whatever becomes of it, its result tells.
func TestSupervisorForkBomb(t *testing.T) {
	const limit = 64
	bombs := []struct{ name, script string }{
		{"a pipe of itself", "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 1000"},
		{"children that nobody reaps", "echo go; exec sh -c 'while :; do sleep 1000 & done' 2>/dev/null"},
		{"each in a session of its own", "bomb() { while :; do setsid sleep 1000 & done; }; (bomb); bomb"},
	}
	eachGround(t, func(t *testing.T, g *ground) {
		for _, b := range few(g, bombs, 1) {
			t.Run(b.name, func(t *testing.T) {
				t.Parallel()
				a := g.prepare(t, "[limits]\npids = 64", sh(b.script), netRlimit)
				a.create()
				a.look()
				a.spreadNet()
				a.start()
				most := 0
				for until := time.Now().Add(3 * time.Second); time.Now().Before(until) && alive(a.pid()); time.Sleep(20 * time.Millisecond) {
					most = max(most, a.tasks())
				}
				a.try("kill", a.ID, "KILL") // the supervisor may have done so
				_, r := a.ends()
				if s := r.Evidence.Strike; s != nil {
					most = max(most, int(s.Measured)) // between two looks of ours
				}
				t.Logf("%d tasks of %d; %s", most, limit, describe(r))
				// The supervisor of a user who is not root has no priority over the bomb:
				// how far that gets is not promised.
				if g.kind.name != "rootless runc" && most > safetyNet/2 {
					t.Errorf("there were %d tasks, %d are allowed", most, limit)
				}
				if r.ErrorCode != verdict.PidsLimitReached {
					t.Errorf("the result does not show the bomb: %s, strike %+v", describe(r), r.Evidence.Strike)
				}
				wantSupervised(t, r, "pids")
			})
		}
		t.Run("as many as are allowed", func(t *testing.T) {
			t.Parallel()
			a := g.attack(t, "[limits]\npids = 64", sh("i=1; while [ $i -lt 60 ]; do sleep 2 & i=$((i+1)); done; wait; echo all; exit 0"))
			out, r := a.ends()
			if !strings.Contains(out.Stdout, "all\n") {
				t.Errorf("it did not come to its end: %v", out)
			}
			wantNoLimit(t, r)
		})
	})
}

// safetyNet is what the kernel allows, so that a supervisor that fails does not take the
// machine with it: far above what the test allows.
const safetyNet = 2000

// netRlimit is the net of a user who is not root.
func netRlimit(s Spec) {
	s.set([]any{map[string]any{"type": "RLIMIT_NPROC", "hard": safetyNet, "soft": safetyNet}}, "process", "rlimits")
}

// spreadNet is the net of root: the controller that the supervisor does without.
func (a *attack) spreadNet() {
	a.t.Helper()
	if a.ground.kind.name != "runc" {
		return
	}
	if err := os.WriteFile(cgroupOf(a.t, a.pid()).file("pids.max"), []byte(itoa(safetyNet)), 0); err != nil {
		a.t.Fatal(err)
	}
}

// tasks counts the tasks in a sandbox: by the kernel where there is a cgroup that
// counts, though it limits nothing.
func (a *attack) tasks() int {
	a.t.Helper()
	if a.ground.kind.name == "runc" {
		if cg := cgroupOf(a.t, a.pid()); cg.read("pids.current") != "" {
			return int(cg.number("pids.current"))
		}
	}
	return len(insiders(a.ID, a.pidns))
}
