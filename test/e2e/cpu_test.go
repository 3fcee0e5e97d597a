//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The tests that measure CPU time run alone, before the parallel ones.

const spinners = "for i in 1 2 3 4; do while :; do :; done & done; echo spinning; wait"

// halfTheMachine is what the spinners may use: it is less than they could get.
func halfTheMachine() float64 {
	if runtime.NumCPU() == 1 {
		return 0.5
	}
	return 1
}

// Four processes that do nothing but compute get what the limit gives, by the
// kernel's own clock. Without a limit they get more, which proves that the first
// measurement is one of the limit.
func TestSpinnersGetTheirCPULimitAndNoMore(t *testing.T) {
	limit := halfTheMachine()
	for _, lowLevel := range []feature{runc, crun} {
		t.Run(string(lowLevel), func(t *testing.T) {
			need(t, lowLevel)
			for _, w := range ways {
				t.Run(string(w), func(t *testing.T) {
					c := newBox(t, string(lowLevel), fmt.Sprintf("[limits]\ncpus = %g", limit)).container(sh(spinners))
					c.begin(w)
					preferOurs(t)
					c.printed("spinning")
					cg := cgroupOf(t, c.pid())
					used := cg.cpusUsedUpTo(limit)
					if throttled := cg.field("cpu.stat", "nr_throttled"); throttled == 0 {
						t.Error("nr_throttled is 0: the limit has not struck")
					}
					have := cg.limits()
					c.must("kill", c.ID, "KILL")
					_, r := c.finish(w)
					sameAsReport(t, r, have)
					if used < 0.96*limit {
						t.Errorf("%.3f CPUs were used, the limit is %g", used, limit)
					}
					if r.Events.CPUThrottled == 0 || r.Usage == nil || r.Usage.CPUUsec == nil || *r.Usage.CPUUsec < int64(4.5e6*limit) {
						t.Errorf("the report does not show it: %s, usage %+v", describe(r), r.Usage)
					}
				})
			}
			t.Run("control without a limit", func(t *testing.T) {
				c := newBox(t, string(lowLevel), "[limits]\ncpus = \"none\"\n[ceilings]\ncpus = \"none\"").container(sh(spinners))
				c.begin(byCreate)
				if have := c.limits(); have.Quota != unlimited {
					t.Errorf("the cgroup has a quota of %d", have.Quota)
				}
				preferOurs(t)
				c.printed("spinning")
				cg := cgroupOf(t, c.pid())
				eventually(t, 60*time.Second, func() string {
					if used := cg.cpusUsed(time.Second); used < 1.2*limit {
						return fmt.Sprintf("%.3f CPUs were used without a limit, so that the limit of %g proves nothing", used, limit)
					}
					return ""
				})
			})
		})
	}
}

// cpusUsedUpTo measures for 5 seconds. Above the limit is never right; below it may
// be because the machine is busy with something else, so that is tried again.
func (g Cgroup) cpusUsedUpTo(limit float64) float64 {
	g.t.Helper()
	used := 0.0
	for range attempts {
		now := g.cpusUsed(5 * time.Second)
		if now > 1.04*limit {
			g.t.Errorf("%.3f CPUs were used, the limit is %g", now, limit)
		}
		if used = max(used, now); used >= 0.96*limit {
			break
		}
	}
	return used
}

// cpusUsed is the CPU time that the cgroup uses in a while, per time.
func (g Cgroup) cpusUsed(while time.Duration) float64 {
	g.t.Helper()
	at, before := time.Now(), g.cpuUsec()
	time.Sleep(while)
	used := float64(g.cpuUsec() - before)
	return used / float64(time.Since(at).Microseconds())
}

// preferOurs gives the containers of this run the CPU before everything else on
// the machine, as far as their limits allow: what is measured is the limit. It
// ends before the containers that were made before it are deleted.
func preferOurs(t *testing.T) {
	t.Helper()
	file, most := filepath.Join("/sys/fs/cgroup", token, "cpu.weight"), "10000"
	if has(cgroup1) {
		file, most = filepath.Join(hierarchiesV1()["cpu"], token, "cpu.shares"), "262144"
	}
	before := strings.TrimSpace(readFile(t, file))
	set := func(value string) {
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			t.Error(err)
		}
	}
	set(most)
	t.Cleanup(func() { set(before) })
}

// What is enforced and reported is what the kernel accepted, to the microsecond.
func TestCPUQuotaAndPeriodOfTheSpecHold(t *testing.T) {
	cpus := int64(runtime.NumCPU())
	cases := []struct{ quota, period, wantQuota, wantPeriod int64 }{
		{12345, 100000, 12345, 100000},
		{20000, 10000, min(2, cpus) * 10000, 10000}, // 2 CPUs, or all there are
		{1000, 10000, 1000, 10000},                  // the least that the kernel takes
		{5000, 0, 5000, 100000},
		{0, 0, min(2, cpus) * 100000, 100000}, // the policy's default
		{-1, 100000, min(2, cpus) * 100000, 100000},
		{1 << 50, 100000, cpus * 100000, 100000},
	}
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		b := newBox(t, lowLevel)
		for _, tc := range cases {
			t.Run(fmt.Sprintf("quota %d, period %d", tc.quota, tc.period), func(t *testing.T) {
				c := b.on(t).container(sh("sleep 1000"), resource(tc.quota, "cpu", "quota"), resource(tc.period, "cpu", "period"))
				c.begin(byCreate)
				have := c.limits()
				if have.Quota != tc.wantQuota || have.Period != tc.wantPeriod {
					t.Errorf("the cgroup has quota %d and period %d, want %d and %d", have.Quota, have.Period, tc.wantQuota, tc.wantPeriod)
				}
				sameAsReport(t, c.result(), have)
				c.must("delete", "--force", c.ID)
			})
		}
	})
}

// The kernel's own answer to a quota below a millisecond is "invalid argument".
func TestCPUQuotaThatNoKernelTakesIsRefused(t *testing.T) {
	t.Parallel()
	c := newBox(t, "runc").container(sh("exit 0"), resource(500, "cpu", "quota"), resource(100000, "cpu", "period"))
	c.refused("linux.resources.cpu: cpu quota 500", "below the kernel's minimum of 1000", "raise the quota")
}
