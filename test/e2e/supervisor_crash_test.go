//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// Whatever moment the supervisor is killed at: a second later its sandboxes are
// held to their limits again, none of them stays stopped, and no verdict is wrong.
func TestSoakSupervisorKilledAtAnyMoment(t *testing.T) {
	const cpus = 0.25
	limit, wants := memoryAttack()
	eachGround(t, func(t *testing.T, g *ground) {
		a := g.attack(t, fmt.Sprintf("[limits]\ncpus = %g", cpus), sh(spinners))
		a.printed("spinning")
		many := len(few(g, make([]struct{}, 20), 6))
		if *soak {
			many = 200
		}
		for i := range many {
			before := g.pair(t)
			victim := []string{"worker", "keeper", "worker"}[i%3]
			var bomb *attack
			if i%3 == 2 { // what is above its limit meanwhile is ended by the next
				bomb = g.attack(t, fmt.Sprintf("[limits]\nmemory = \"%dMiB\"", limit), sh(fmt.Sprintf("attack take anon %d; sleep 1000", wants)))
			}
			time.Sleep(rand.N(300 * time.Millisecond)) // the moment, not a wait for anything
			kill(t, before[victim], unix.SIGKILL)
			time.Sleep(scaled(time.Second))

			if after := g.pair(t); after[victim] == before[victim] {
				t.Fatalf("round %d: the %s is %d again", i, victim, after[victim])
			}
			const window = 600 * time.Millisecond
			used := a.spend(window)
			if used > 2*cpus {
				t.Errorf("round %d: a second after the %s was killed %.3f CPUs are used, the limit is %g", i, victim, used, cpus)
			}
			a.mustGoOn(fmt.Sprintf("round %d, after the %s was killed", i, victim))
			if bomb != nil {
				_, r := bomb.ends()
				wantStruck(t, r, verdict.MemoryLimitExceeded)
			}
			if t.Failed() {
				t.Fatalf("round %d", i)
			}
		}
		// With both of them gone the next sandbox brings the next supervisor.
		for _, pid := range g.pair(t) {
			kill(t, pid, unix.SIGKILL)
		}
		next := g.attack(t, "", sh("exit 0"))
		_, r := next.ends()
		wantNoLimit(t, r)
		g.pair(t)
		time.Sleep(scaled(time.Second))
		if used := a.spend(time.Second); used > 2*cpus {
			t.Errorf("after both were killed %.3f CPUs are used, the limit is %g", used, cpus)
		}
		a.mustGoOn("after both were killed")
		a.must("kill", a.ID, "KILL")
		_, r = a.ends()
		wantNoLimit(t, r)
	})
}

// mustGoOn waits until a sandbox has computed. What it used while nobody watched it
// has to be waited for.
func (a *attack) mustGoOn(when string) {
	a.t.Helper()
	eventually(a.t, 5*time.Second, func() string {
		if a.spend(100*time.Millisecond) == 0 {
			return when + ": the sandbox stands still"
		}
		return ""
	})
}

// pair waits until there are both processes of the ground's supervisor.
func (g *ground) pair(t *testing.T) map[string]int {
	t.Helper()
	var found map[string]int
	eventually(t, 5*time.Second, func() string {
		if found = supervisors(g.State); found["worker"] == 0 || found["keeper"] == 0 {
			return fmt.Sprintf("the supervisor is not complete: %v", found)
		}
		return ""
	})
	return found
}
