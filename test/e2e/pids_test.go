//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// Low-level runtimes do not agree on what 0, -1 and a huge number of tasks mean.
// None of them lifts the policy's limit.
func TestPidsLimitOfThePolicyHoldsWhateverTheSpecSays(t *testing.T) {
	const policy = "[limits]\npids = 99\n[ceilings]\npids = 99"
	cases := []struct {
		name   string
		tweaks []Tweak
	}{
		{"not given", nil},
		{"0", []Tweak{resource(0, "pids", "limit")}},
		{"-1", []Tweak{resource(-1, "pids", "limit")}},
		{"the largest number", []Tweak{resource(int64(math.MaxInt64), "pids", "limit")}},
		{"one more than the ceiling", []Tweak{resource(100, "pids", "limit")}},
	}
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		b := newBox(t, lowLevel, policy)
		for _, tc := range cases {
			t.Run(tc.name, func(t *testing.T) {
				c := b.on(t).heldContainer("exit 0", tc.tweaks...)
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
	})
}

func TestStricterPidsLimitOfTheSpecHolds(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).heldContainer("exit 0", resource(17, "pids", "limit"))
		c.begin(byCreate)
		if have := c.limits(); have.Pids != 17 {
			t.Errorf("pids.max is %d, want 17", have.Pids)
		}
		c.release()
		c.finish(byCreate)
	})
}

// A fork bomb stays within its sandbox, a neighbour goes on, and the exit code is
// that of the program.
func TestForkBombIsBounded(t *testing.T) {
	const policy = "[limits]\npids = 48\ncpus = 0.5"
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		b := newBox(t, lowLevel, policy)
		// The first process must not fork any more: a loop of built-ins waits.
		c := b.heldContainer("bomb() { bomb | bomb & }; (bomb) 2>/dev/null; while [ ! -e /gate/stop ]; do :; done; exit 7")
		c.begin(w)
		cg := cgroupOf(t, c.pid())
		c.release()

		most := int64(0)
		eventually(t, 60*time.Second, func() string {
			most = max(most, cg.number("pids.current"))
			if refused := cg.field("pids.events", "max"); refused == 0 {
				return "no fork was refused"
			}
			return ""
		})
		neighbour := b.container(sh("exit 0"))
		if out, _ := neighbour.complete(byRun); out.Code != 0 {
			t.Errorf("a neighbour cannot run: %v", out)
		}
		most = max(most, cg.number("pids.current"))
		if most > 48 {
			t.Errorf("there were %d tasks, 48 are allowed", most)
		}

		writeFile(t, filepath.Join(c.gate, "stop"), "")
		out, r := c.finish(w)
		if r.Events.PidsMax < 1 || r.Usage == nil || r.Usage.PidsPeak != nil && *r.Usage.PidsPeak > 48 {
			t.Errorf("the report does not show the bomb: %s, usage %+v", describe(r), r.Usage)
		}
		if w == byRun {
			if out.Code != 7 {
				t.Errorf("run ended with %d, want 7", out.Code)
			}
			wantExit(t, r, verdict.Exited, 7)
		}
		if r.ErrorCode != verdict.PidsLimitReached {
			t.Errorf("the error code is %q: %s", r.ErrorCode, describe(r))
		}
	})
}

// A sandbox that got on well although a fork was refused has nothing to explain.
func TestRefusedForkInASuccessfulRunIsOnlyCounted(t *testing.T) {
	const policy = "[limits]\npids = 8"
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		script := "sh -c 'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done' 2>/dev/null; exit 0"
		out, r := newBox(t, lowLevel, policy).container(sh(script)).complete(byRun)
		if out.Code != 0 || r.Events.PidsMax < 1 || r.ErrorCode != "" {
			t.Errorf("%v; %s", out, describe(r))
		}
		wantExit(t, r, verdict.Exited, 0)
	})
}

// Fewer tasks than the low-level runtime needs to start anything would be an
// error that nobody understands.
func TestTooFewPidsAreRefused(t *testing.T) {
	for _, n := range []int{1, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			c := newBox(t, "runc").container(sh("exit 0"), resource(n, "pids", "limit"))
			c.refused(fmt.Sprintf("pids %d from the spec is too small", n), "at least 8")
		})
	}
}
