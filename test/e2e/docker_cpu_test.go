//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"
)

const spinners = "for i in 1 2 3 4; do while :; do :; done & done; wait"

// Four processes that spin get the CPU time of the limit and no more. Without
// the limit they get more than that.
func TestDockerCPULimitHolds(t *testing.T) {
	share := float64(runtime.NumCPU()) / 2
	if share > 1 {
		share = 1
	}
	d := newDocker(t)
	t.Run("with the limit", func(t *testing.T) {
		c := newDocker(t).detached("agentbox", fmt.Sprintf("--cpus %g", share), spinners)
		before := c.Cgroup.field("cpu.stat", "nr_throttled")
		// A machine that is busy with something else may give less than the
		// limit, never more.
		var got []float64
		for range 4 {
			got = append(got, c.cpuShare(5*time.Second))
			if last := got[len(got)-1]; last > share*1.04 {
				t.Fatalf("got %.3f CPUs, the limit is %g", last, share)
			} else if last > share*0.96 {
				break
			}
		}
		if got[len(got)-1] < share*0.96 {
			t.Errorf("got %.3f CPUs, and never the %g of the limit", got, share)
		}
		if c.Cgroup.field("cpu.stat", "nr_throttled") == before {
			t.Error("nr_throttled did not grow: the limit was never met")
		}
		d.do("kill", c.Name)
		if r := c.verdict(); r.Events.CPUThrottled == 0 || r.ErrorCode != "" {
			t.Errorf("the result does not tell of a limit that was met and ended nothing: %s", describe(r))
		}
	})
	t.Run("without it", func(t *testing.T) {
		c := newDocker(t).detached("runc", "", spinners)
		most := 0.0
		eventually(t, 30*time.Second, func() string {
			most = math.Max(most, c.cpuShare(time.Second))
			if most < share*1.1 {
				return fmt.Sprintf("got %.3f CPUs, which proves nothing about a limit of %g", most, share)
			}
			return ""
		})
	})
}

// cpuShare measures over some time how many CPUs the container uses.
func (c *DockerContainer) cpuShare(over time.Duration) float64 {
	c.t.Helper()
	start, used := time.Now(), c.Cgroup.cpuUsec()
	time.Sleep(over)
	used = c.Cgroup.cpuUsec() - used
	return float64(used) / float64(time.Since(start).Microseconds())
}
