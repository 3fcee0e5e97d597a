//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// systemd is systemd as the first process of this machine, on cgroup v2, so that
// the systemd cgroup drivers of Docker, runc and crun work.
const systemd feature = "systemd"

func init() {
	features[systemd] = sync.OnceValue(func() error {
		if err := wantVersion(2); err != nil {
			return err
		}
		_, err := os.Stat("/run/systemd/system") // sd_booted(3)
		return err
	})
}

// newSystemdDocker returns daemons that use the systemd driver.
func newSystemdDocker(t *testing.T, wanted ...feature) *Docker {
	t.Helper()
	return newDockerOf(t, systemdUnit, append([]feature{systemd}, wanted...)...)
}

// sliceFolder is where systemd puts a slice: a-b.slice is below a.slice
// (systemd.slice(5)).
func sliceFolder(slice string) string {
	folder, parts := "/sys/fs/cgroup", strings.Split(strings.TrimSuffix(slice, ".slice"), "-")
	for i := range parts {
		folder = filepath.Join(folder, strings.Join(parts[:i+1], "-")+".slice")
	}
	return folder
}

// stopSlice stops the slice of this run, and all below it. A slice stays when it is
// empty.
var stopSlice = sync.OnceValue(func() error { return exec.Command("systemctl", "stop", token+".slice").Run() })

var stopSliceAtEnd = sync.OnceFunc(func() { atEnd(stopSlice) })

// scope is the folder of the container's unit, named as runc and crun name it.
func (c *DockerContainer) scope() string {
	return filepath.Join(c.parentFolder(), "docker-"+c.ID+".scope")
}

// folder is the cgroup of the container's first process.
func (c *DockerContainer) folder() string { return filepath.Dir(c.Cgroup.file("pids.max")) }

// systemctl runs a command of systemd that has to succeed.
func systemctl(t *testing.T, args ...string) {
	t.Helper()
	if out := execute(t, 60*time.Second, exec.Command("systemctl", args...)); out.Code != 0 {
		t.Fatalf("systemctl %q: %v", args, out)
	}
}

// limitFiles are all files of a cgroup that hold a limit of ours, or could.
var limitFiles = []string{
	"memory.max", "memory.high", "memory.low", "memory.min", "memory.swap.max", "memory.oom.group",
	"pids.max", "cpu.max", "cpu.max.burst", "cpu.weight", "io.max",
}

// shot is what these files say, in the unit's cgroup and in that of the first
// process.
func (c *DockerContainer) shot() map[string]string {
	c.t.Helper()
	return shotOf(c.t, c.scope(), c.folder())
}

// difference is what changed from one shot to the next; empty: nothing.
func difference(before, after map[string]string) string {
	var changed []string
	for name, value := range before {
		if now := after[name]; now != value {
			changed = append(changed, fmt.Sprintf("%s: %q became %q", name, value, now))
		}
	}
	slices.Sort(changed)
	return strings.Join(changed, "; ")
}

// underSystemd runs a test with runc and with crun below agentbox.
func underSystemd(t *testing.T, test func(*testing.T, *Docker, string)) {
	for name, lowLevel := range map[string]feature{"agentbox": runc, "agentbox-crun": crun} {
		t.Run(name, func(t *testing.T) { test(t, newSystemdDocker(t, lowLevel, swapLimit, ioLimit), name) })
	}
}

// A container is a scope below the slice that Docker was told, and has every limit.
func TestSystemdScopeHasTheLimits(t *testing.T) {
	newSystemdDocker(t)
	underSystemd(t, func(t *testing.T, d *Docker, runtimeName string) {
		for _, tc := range []struct {
			flags string
			want  func(*Limits)
		}{
			{"", func(*Limits) {}},
			{"-m 64m --pids-limit 100 --cpus 0.55", func(l *Limits) { l.Memory, l.Pids, l.Quota = 64*mib, 100, 55_000 }},
			{"-m 64m --memory-swap -1 --pids-limit -1", func(l *Limits) { l.Memory = 64 * mib }},
		} {
			t.Run(tc.flags, func(t *testing.T) {
				d := newSystemdDocker(t)
				c := d.detached(runtimeName, tc.flags, "exec sleep 1000")
				folder := c.scope()
				if runtimeName == "agentbox-crun" {
					folder += "/container" // crun sets the limits in a cgroup that it has from systemd
				}
				if got := c.folder(); got != folder {
					t.Errorf("the container is in %s, want %s", got, folder)
				}
				want := defaultLimits()
				tc.want(&want)
				have := c.Cgroup.limits()
				if have != want {
					t.Errorf("the cgroup has %+v, want %+v", have, want)
				}
				r, out := c.inspect(c.ID)
				if r == nil {
					t.Fatalf("agentbox inspect: %v", out)
				}
				sameAsReport(t, r, have)
				disk := d.dataDisk()
				if got, want := c.Cgroup.rates(disk), "rbps=268435456 wbps=268435456 riops=max wiops=max"; got != want {
					t.Errorf("io.max of %s is %q, want %q", disk, got, want)
				}
				sameRates(t, c.Cgroup, r)
			})
		}
	})
}

// What an administrator does to systemd while a container runs changes none of its
// limits, and what may change is in the report before.
func TestSystemdReloadKeepsTheLimits(t *testing.T) {
	newSystemdDocker(t)
	underSystemd(t, func(t *testing.T, d *Docker, runtimeName string) {
		c := d.detached(runtimeName, "-m 64m --pids-limit 100 --cpus 0.55 --annotation agentbox.dev/memory-high=48m", "exec sleep 1000")
		if high := c.Cgroup.number("memory.high"); high != 48*mib {
			t.Errorf("memory.high is %d, want %d", high, 48*mib)
		}
		for _, step := range d.systemdSteps() {
			before := c.shot()
			step.do(t)
			if changed := difference(before, c.shot()); changed != "" {
				t.Errorf("%s changed a limit: %s", step.name, changed)
			}
		}
		r, _ := c.inspect(c.ID)
		sameAsReport(t, r, c.Cgroup.limits())
	})
	// The control: the same steps take from a container of runc what systemd was
	// not told about.
	t.Run("without agentbox", func(t *testing.T) {
		d := newSystemdDocker(t, swapLimit)
		c := d.detached("runc", "-m 64m --memory-swap 64m", "exec sleep 1000")
		before := c.shot()
		for _, step := range d.systemdSteps() {
			step.do(t)
		}
		if changed := difference(before, c.shot()); !strings.Contains(changed, `memory.swap.max: "0" became "max"`) {
			t.Errorf("systemd wrote no cgroup anew, so this test proves nothing: %q", changed)
		}
	})
}

// A share that systemd cannot express is rounded up by whoever writes it last. The
// report says so, and no more than a hundredth of a CPU is added.
func TestSystemdCPUShareIsRoundedUp(t *testing.T) {
	d := newSystemdDocker(t)
	c := d.detached("agentbox", "--cpus 0.555", "exec sleep 1000")
	r, out := c.inspect(c.ID)
	if r == nil {
		t.Fatalf("agentbox inspect: %v", out)
	}
	if detail := r.Enforcement["cpu"].Detail; !strings.Contains(detail, "systemd rounds it up to hundredths of a CPU") {
		t.Errorf("the report says %q of the cpu", detail)
	}
	first := c.Cgroup.limits().Quota
	for _, step := range d.systemdSteps() {
		step.do(t)
	}
	if last := c.Cgroup.limits().Quota; first != 55_500 && first != 56_000 || last != 56_000 {
		t.Errorf("the quota was %d and is %d, want 55500 or 56000 and then 56000", first, last)
	}
}

type systemdStep struct {
	name string
	do   func(*testing.T)
}

// systemdSteps are what happens on a host every day. A reload alone writes nothing
// on some versions: the units are written anew when one beside them changes.
func (d *Docker) systemdSteps() []systemdStep {
	another := systemdStep{"another container", func(*testing.T) {
		d.do(append(d.words(d.newName(), "agentbox", "--rm"), "true")...)
	}}
	return slices.Insert(unitSteps(d.cgroupParent()), 2, another)
}

// After a reload a sandbox still dies as one.
func TestSystemdMemoryBomb(t *testing.T) {
	newSystemdDocker(t)
	underSystemd(t, func(t *testing.T, d *Docker, runtimeName string) {
		for _, reload := range []bool{false, true} {
			t.Run(fmt.Sprintf("reload %v", reload), func(t *testing.T) {
				d := newSystemdDocker(t)
				c := d.held(runtimeName, "-m 64m", "sleep 1000 & tail /dev/zero; echo survived; exit 0")
				if reload {
					for _, step := range d.systemdSteps() {
						step.do(t)
					}
				}
				processes, groups := d.killsSoFar()
				c.letGo()
				out := c.ends()
				if strings.Contains(out.Stdout, "survived") || out.Code != 137 {
					t.Errorf("the container did not die as one: %v", out)
				}
				if p, g := d.killsSoFar(); p == processes || g != groups+1 {
					t.Errorf("the kernel counted %d killed processes and %d group kills, want some and 1", p-processes, g-groups)
				}
				c.allGone()
				wantOOMVerdict(t, c.verdict()) // with the scope, its counters went before the delete
			})
		}
	})
}

// unitSteps are what an administrator does that makes systemd write cgroups anew.
func unitSteps(slice string) []systemdStep {
	ctl := func(args ...string) func(*testing.T) {
		return func(t *testing.T) { t.Helper(); systemctl(t, args...) }
	}
	return []systemdStep{
		{"systemctl daemon-reload", ctl("daemon-reload")},
		{"the restart of a service", ctl("restart", "dbus.service")},
		{"a property of the slice", ctl("set-property", "--runtime", slice, "CPUWeight=90")},
		{"systemctl daemon-reload again", ctl("daemon-reload")},
		{"systemctl daemon-reexec", ctl("daemon-reexec")},
	}
}

// shotOf is what the files of limits say in some cgroups.
func shotOf(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, folder := range folders {
		g := Cgroup{t: t, dirs: map[string]string{"": folder}}
		for _, name := range limitFiles {
			all[strings.TrimPrefix(filepath.Join(folder, name), "/sys/fs/cgroup")] = g.read(name)
		}
	}
	return all
}
