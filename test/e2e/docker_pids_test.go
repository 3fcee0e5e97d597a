//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// A fork bomb fills its own container and nothing else: `command eval` keeps the
// shell alive where a fork is refused. The first process forks once: the bomb may
// be faster than anything it does afterwards.
const forkBomb = `f() { while :; do command eval 'f &' 2>/dev/null; done; }; f & wait`

// The neighbour of a fork bomb goes on as if it were not there. What else this
// machine does can slow a measurement down as much as a bomb could, so each
// attempt waits for a calm machine, and there are several.
func TestDockerForkBombLeavesTheNeighbourAlone(t *testing.T) {
	d := newDocker(t)
	neighbour := d.detached("agentbox", "", "exec sleep 1000")
	for range 5 {
		waitForCalm(t)
		before := neighbour.medianExec()
		during := neighbour.medianExecBesideABomb()
		t.Logf("docker exec takes %v, and %v beside a fork bomb", before, during)
		if during <= 3*before {
			return
		}
	}
	t.Error("a fork bomb slows its neighbour down, more than three times each time")
}

// waitForCalm waits, but not for ever, until this machine is mostly idle.
func waitForCalm(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		idle, all := cpuTicks(t)
		time.Sleep(time.Second)
		idleNow, allNow := cpuTicks(t)
		if 10*(idleNow-idle) >= 8*(allNow-all) {
			return
		}
	}
	t.Log("this machine does not come to rest, which the measurement will show")
}

// cpuTicks reads how long the CPUs were idle, and in all (proc_stat(5)).
func cpuTicks(t *testing.T) (idle, all int64) {
	t.Helper()
	line, _, _ := strings.Cut(readFile(t, "/proc/stat"), "\n")
	for i, text := range strings.Fields(line)[1:] {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all += n
		if i == 3 || i == 4 { // idle and iowait
			idle += n
		}
	}
	return idle, all
}

func (c *DockerContainer) medianExecBesideABomb() time.Duration {
	c.t.Helper()
	bomb := c.held("agentbox", "--pids-limit 128", forkBomb)
	bomb.letGo()
	bomb.full(128)
	refused := bomb.refused()
	median := c.medianExec()
	if bomb.refused() == refused {
		c.t.Error("the bomb was over while the neighbour was measured")
	}
	if n := len(bomb.processes()); n > 128 {
		c.t.Errorf("%d processes in a container that may have 128", n)
	}
	bomb.do("kill", bomb.Name)
	bomb.wantBombVerdict(137)
	return median
}

// Other bombs, and an end with an exit code of their own.
func TestDockerForkBombsAreBounded(t *testing.T) {
	newDocker(t)
	for _, tc := range []struct{ name, script string }{
		{"pipes", `f() { f | f & }; (f) 2>/dev/null; while [ ! -e /tmp/end ]; do read -t 1 x; done; exit 7`},
		{"a chain that declares itself anew", `export X='sh -c "$X" & sh -c "$X"'; command eval 'sh -c "$X" &' 2>/dev/null; while [ ! -e /tmp/end ]; do read -t 1 x; done; exit 7`},
		{"bursts that nobody reaps", `for burst in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do i=0; while [ $i -lt 40 ]; do command eval 'sleep 1000 &' 2>/dev/null; i=$((i + 1)); done; done; while [ ! -e /tmp/end ]; do read -t 1 x; done; exit 7`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newDocker(t).held("agentbox", "--pids-limit 128", tc.script)
			c.letGo()
			most := 0
			eventually(t, 60*time.Second, func() string {
				most = max(most, len(c.processes()))
				if c.refused() == 0 {
					return fmt.Sprintf("no fork was refused; %d processes at most", most)
				}
				return ""
			})
			if most > 128 {
				t.Errorf("%d processes in a container that may have 128", most)
			}
			writeFile(t, fmt.Sprintf("/proc/%d/root/tmp/end", c.first), "")
			if out := c.ends(); out.Code != 7 {
				t.Errorf("the exit code was not left alone: %v", out)
			}
			c.wantBombVerdict(7)
		})
	}
}

// medianExec is how long a docker exec takes in the container.
func (c *DockerContainer) medianExec() time.Duration {
	c.t.Helper()
	var times []time.Duration
	for range 7 {
		start := time.Now()
		c.do("exec", c.Name, "true")
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// full waits until the container has as many processes as it may.
func (c *DockerContainer) full(limit int64) {
	c.t.Helper()
	eventually(c.t, 60*time.Second, func() string {
		if n := c.Cgroup.number("pids.current"); n < limit || c.refused() == 0 {
			return fmt.Sprintf("%d processes and %d refused forks", n, c.refused())
		}
		return ""
	})
}

// refused counts the forks that the limit refused.
func (c *DockerContainer) refused() int64 {
	c.t.Helper()
	return c.Cgroup.field("pids.events", "max")
}

// wantBombVerdict checks the result of a container whose forks were refused, and
// that nothing of it is left.
func (c *DockerContainer) wantBombVerdict(code int) {
	c.t.Helper()
	c.allGone()
	if got := c.about("{{.State.ExitCode}}"); got != fmt.Sprint(code) {
		c.t.Errorf("docker inspect says exit code %s, want %d", got, code)
	}
	r := c.verdict()
	if r.Events.PidsMax < 1 || r.ErrorCode != verdict.PidsLimitReached || r.Status != verdict.Ended {
		c.t.Errorf("the result does not tell of the limit of processes: %s", describe(r))
	}
	if peak := r.Usage; peak == nil || peak.PidsPeak != nil && *peak.PidsPeak > 128 {
		c.t.Errorf("the peak of processes: %+v", peak)
	}
}
