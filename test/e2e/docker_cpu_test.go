//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"
)

// docker run --cpus is what four spinning processes get. Without it they get
// more.
func TestDockerCPULimitHolds(t *testing.T) {
	limit := halfTheMachine()
	newDocker(t)
	t.Run("with the limit", func(t *testing.T) {
		c := newDocker(t).held("agentbox", fmt.Sprintf("--cpus %g", limit), spinners)
		preferOurs(t) // until the container is removed: Docker needs the CPU too
		c.letGo()
		if used := c.Cgroup.cpusUsedUpTo(limit); used < 0.96*limit {
			t.Errorf("%.3f CPUs were used, the limit is %g", used, limit)
		}
		if c.Cgroup.field("cpu.stat", "nr_throttled") == 0 {
			t.Error("nr_throttled is 0: the limit has not struck")
		}
		c.do("kill", c.Name)
		if r := c.verdict(); r.Events.CPUThrottled == 0 || r.ErrorCode != "" {
			t.Errorf("the result does not tell of a limit that struck and ended nothing: %s", describe(r))
		}
	})
	t.Run("control without a limit", func(t *testing.T) {
		c := newDocker(t).held("runc", "", spinners)
		preferOurs(t)
		c.letGo()
		eventually(t, 60*time.Second, func() string {
			if used := c.Cgroup.cpusUsed(time.Second); used < 1.2*limit {
				return fmt.Sprintf("%.3f CPUs were used without a limit, so that the limit of %g proves nothing", used, limit)
			}
			return ""
		})
	})
}
