//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// The shim door with the systemd cgroup driver. Nobody tells the shim of the driver:
// it goes by the form of cgroupsPath.

// ctrSlice has the scopes of containers of the shared containerd.
var ctrSlice = token + "-ctr.slice"

// systemdCtr is the shared containerd, for containers in scopes.
func systemdCtr(t *testing.T, lowLevel string, config ...string) *Ctr {
	t.Helper()
	need(t, systemd, feature(lowLevel))
	c := newCtr(t, append([]string{"runtime = \"" + lowLevel + "\""}, config...)...)
	stopSliceAtEnd()
	return c
}

// inScope puts a container into a scope, as Docker and Kubernetes say it.
func inScope(s Spec) {
	linux := s["linux"].(map[string]any)
	linux["cgroupsPath"] = ctrSlice + ":box:" + filepath.Base(linux["cgroupsPath"].(string))
}

// scope is the folder of the container's unit.
func (c *CtrContainer) scope() string {
	return filepath.Join(sliceFolder(ctrSlice), "box-"+c.ID+".scope")
}

// underSystemdShim runs a test with runc and with crun below the shim.
func underSystemdShim(t *testing.T, test func(*testing.T, *Ctr), config ...string) {
	need(t, systemd, ctr)
	for _, lowLevel := range []string{"runc", "crun"} {
		t.Run(lowLevel, func(t *testing.T) {
			c := systemdCtr(t, lowLevel, config...)
			c.LowLevel = lowLevel
			test(t, c)
		})
	}
}

// A container of the shim is a scope with every limit, and keeps them whatever an
// administrator does to systemd.
func TestSystemdShimReloadKeepsTheLimits(t *testing.T) {
	underSystemdShim(t, func(t *testing.T, c *Ctr) {
		cc := c.container(sh("exec sleep 1000"), inScope, memoryLimit(64*mib), resource(100, "pids", "limit"), annotation("agentbox.dev/memory-high", "48m"))
		cc.detached()
		inside := cgroupOf(t, cc.pid())
		folders := map[string]string{"runc": cc.scope(), "crun": filepath.Join(cc.scope(), "container")}
		if got := inside.dirs[""]; got != folders[c.LowLevel] {
			t.Errorf("the container is in %s, want %s", got, folders[c.LowLevel])
		}
		want := defaultLimits()
		want.Memory, want.Pids = 64*mib, 100
		if have := inside.limits(); have != want {
			t.Errorf("the cgroup has %+v, want %+v", have, want)
		}
		before := shotOf(t, cc.scope(), inside.dirs[""])
		for _, step := range unitSteps(ctrSlice) {
			step.do(t)
			after := shotOf(t, cc.scope(), inside.dirs[""])
			if changed := difference(before, after); changed != "" {
				t.Errorf("%s changed a limit: %s", step.name, changed)
			}
			before = after
		}
		sameAsReport(t, cc.result(cc.ID), inside.limits())
	})
}

// The scope of a sandbox that runs out of memory is gone when the shim hears of its
// end, and all the same the reason comes before the end, and is kept.
func TestSystemdShimMemoryBomb(t *testing.T) {
	underSystemdShim(t, func(t *testing.T, c *Ctr) {
		c.watch()
		cc := c.held("sleep 1000 & exec tail /dev/zero", inScope, memoryLimit(64*mib))
		main := cc.run("--rm")
		cc.release()
		if out := main.wait(60 * time.Second); out.Code != 137 {
			t.Errorf("ctr run: %v", out)
		}
		kept := cc.result(cc.ID) // right after
		if exists(cc.scope()) {
			t.Errorf("%s is left", cc.scope())
		}
		wantOOMEvent(t, cc, kept)
	})
}

// wantOOMEvent checks what was published and kept about a sandbox that ran out of
// memory.
func wantOOMEvent(t *testing.T, cc *CtrContainer, kept *result.Result) {
	t.Helper()
	list := cc.until(cc.ID, "/tasks/delete")
	wantOrder(t, list, 1)
	r := told(t, list)
	wantSeen(t, r, verdict.OOMKilled, 137)
	wantOOMVerdict(t, r)
	sameResult(t, kept, r)
}

// With crun the limit that strikes is mostly that of the scope, and what is killed
// lives in the cgroup below: the sandbox's own limit it is all the same.
func TestSystemdShimCountsTheScope(t *testing.T) {
	underSystemdShim(t, func(t *testing.T, c *Ctr) {
		c.watch()
		cc := c.held("(tail /dev/zero); while :; do sleep 0.05; done", inScope, memoryLimit(64*mib))
		cc.detached()
		cc.release()
		cc.until(cc.ID, "/tasks/oom")
		r := cc.result(cc.ID)
		wantOOMEvidence(t, r)
		if r.Status != verdict.Running || r.Evidence.KernelLog || *r.Usage.MemoryPeakBytes < 63*mib {
			t.Errorf("it should run, with counters: %s", describe(r))
		}
		cc.call("task", "kill", "--signal", "KILL", cc.ID)
		cc.until(cc.ID, "/tasks/exit")
	}, "[oom]", `scope = "process"`)
}

// A sandbox that ends by itself, or is killed by somebody, did not run out of memory.
func TestSystemdShimEndsWithoutOOM(t *testing.T) {
	underSystemdShim(t, func(t *testing.T, c *Ctr) {
		c.watch()
		for script, want := range map[string]verdict.Status{
			"exit 3":                           verdict.Exited,
			"sh -c 'kill -9 $$'; exit $?":      verdict.Ended,
			"(tail /dev/null); exit 137":       verdict.Ended,
			"head -c 1m /dev/zero | tail -c 1": verdict.Exited,
		} {
			cc := c.container(sh(script), inScope, memoryLimit(64*mib))
			cc.run("--rm").wait(60 * time.Second)
			list := cc.until(cc.ID, "/tasks/delete")
			wantOrder(t, list, 0)
			if r := told(t, list); r == nil || r.Status != want || r.ErrorCode != "" {
				t.Errorf("%s: %s", script, describe(r))
			}
		}
	})
}

// Scopes that vanish at the same time: the events of each sandbox are in order and its
// own.
func TestSystemdShimMemoryBombs(t *testing.T) {
	underSystemdShim(t, func(t *testing.T, c *Ctr) {
		total := 16 // with each
		if *soak {
			total = 100
		}
		c.bombs(total, inScope)
	})
}

// By Docker, which says nothing of the driver to a shim that is not runc's.
func TestSystemdShimDocker(t *testing.T) {
	d := newSystemdDocker(t, shims)
	d.State = state.SystemDir
	c := d.held("agentbox-shim", "-m 64m", "sleep 1000 & tail /dev/zero; echo survived")
	if got := c.folder(); got != c.scope() {
		t.Errorf("the container is in %s, want %s", got, c.scope())
	}
	c.letGo()
	if out := c.ends(); out.Code != 137 || strings.Contains(out.Stdout, "survived") {
		t.Errorf("the container did not die as one: %v", out)
	}
	if got := c.about("{{.State.OOMKilled}} {{.State.ExitCode}}"); got != "true 137" {
		t.Errorf("docker inspect says OOMKilled and exit code %q", got)
	}
	r := c.verdict()
	wantSeen(t, r, verdict.OOMKilled, 137)
	wantOOMVerdict(t, r)
}
