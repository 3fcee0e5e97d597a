//go:build e2e

package e2e

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const gib = 1024 * mib

// defaultLimits are those of a container that asks for nothing.
func defaultLimits() Limits {
	l := Limits{Memory: 2 * gib, Swap: 0, Pids: 2048, Quota: int64(min(2, runtime.NumCPU())) * 100_000, Period: 100_000, GroupKill: has(cgroup2)}
	if !has(swapLimit) {
		l.Swap = unlimited
	}
	return l
}

// What docker run is asked for, and what the kernel then has. Docker sends along
// as much swap as memory; a container gets none.
func TestDockerFlagsBecomeLimits(t *testing.T) {
	newDocker(t, swapLimit)
	cpus := int64(runtime.NumCPU())
	cases := []struct {
		flags string
		want  func(*Limits)
	}{
		{"", func(*Limits) {}},
		{"-m 64m --pids-limit 0 --cpu-period 100000 --cpu-quota 12345", func(l *Limits) {
			l.Memory, l.Quota = 64*mib, 12345
		}},
		{"-m 64m --memory-swap -1 --pids-limit -1 --cpu-period 10000 --cpu-quota 20000", func(l *Limits) {
			l.Memory, l.Quota, l.Period = 64*mib, 10_000*min(2, cpus), 10_000
		}},
		{"-m 64m --memory-swap 64m --pids-limit 9223372036854775807 --cpus 0.5", func(l *Limits) {
			l.Memory, l.Quota = 64*mib, 50_000
		}},
		{"-m 64m --memory-swap 1g --pids-limit 100", func(l *Limits) {
			l.Memory, l.Pids = 64*mib, 100
		}},
	}
	for _, runtimeName := range []string{"agentbox", "agentbox-crun"} {
		t.Run(runtimeName, func(t *testing.T) {
			if runtimeName == "agentbox-crun" {
				newDocker(t, crun)
			}
			for _, tc := range cases {
				t.Run(tc.flags, func(t *testing.T) {
					c := newDocker(t).detached(runtimeName, tc.flags, "exec sleep 1000")
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
					if tc.flags == "" {
						c.wantDefaultProcess()
					}
				})
			}
		})
	}
}

// wantDefaultProcess checks what a container gets beside its cgroup.
func (c *DockerContainer) wantDefaultProcess() {
	c.t.Helper()
	if got := strings.TrimSpace(readFile(c.t, fmt.Sprintf("/proc/%d/oom_score_adj", c.first))); got != "500" {
		c.t.Errorf("oom_score_adj is %s, want 500", got)
	}
	var own unix.Rlimit // the daemons have it from us
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		c.t.Fatal(err)
	}
	text := readFile(c.t, fmt.Sprintf("/proc/%d/limits", c.first))
	for name, want := range map[string][2]uint64{
		"Max open files":     {min(65536, own.Max), min(524288, own.Max)},
		"Max core file size": {0, 0},
	} {
		var soft, hard uint64
		_, rest, _ := strings.Cut(text, name)
		if _, err := fmt.Sscan(rest, &soft, &hard); err != nil || soft != want[0] || hard != want[1] {
			c.t.Errorf("%s: soft %d and hard %d (%v), want %v", name, soft, hard, err, want)
		}
	}
}

// Annotations reach beyond neither the ceilings nor the container.
func TestDockerAnnotationsStayBelowTheCeilings(t *testing.T) {
	d := newDocker(t, annotations)
	c := d.detached("agentbox", "--annotation agentbox.dev/memory=64GiB --annotation agentbox.dev/pids=64 "+
		"--annotation org.systemd.property.TasksMax=1 --annotation run.oci.keep_original_groups=1", "exec sleep 1000")
	have := c.Cgroup.limits()
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		t.Fatal(err)
	}
	if ceiling := int64(host.Totalram*uint64(host.Unit)) / 100 * 80; have.Memory > ceiling || have.Memory < ceiling/2 {
		t.Errorf("memory.max is %d, want the ceiling of %d", have.Memory, ceiling)
	}
	if have.Pids != 64 {
		t.Errorf("pids.max is %d, want 64", have.Pids)
	}
	r, out := d.inspect(c.ID)
	if r == nil {
		t.Fatalf("agentbox inspect: %v", out)
	}
	sameAsReport(t, r, have)
	wantWarning(t, r, "64GiB from the annotation lowered")
	wantWarning(t, r, "org.systemd.property.TasksMax")
	wantWarning(t, r, "run.oci.keep_original_groups")
}

// Who types docker run reads why it was refused, in our words.
func TestDockerShowsWhyAContainerIsRefused(t *testing.T) {
	newDocker(t)
	for _, tc := range []struct {
		name, runtimeName, flags string
		needs                    []feature
		want                     []string
	}{
		{"a configuration that is wrong", "agentbox-bad", "", nil, []string{"agentbox-bad.toml:2", "memroy is not a known key"}},
		{"a low-level runtime that is not there", "agentbox-missing", "", nil, []string{"/nonexistent/runc", "is not there"}},
		{"strict, and this host cannot", "agentbox-demanding", "", nil, []string{"strict mode", "disk"}},
		{"too few processes", "agentbox", "--pids-limit 2", nil, []string{"pids 2", "at least 8"}},
		{"an annotation with a typing error", "agentbox", "--annotation agentbox.dev/memroy=1g", []feature{annotations}, []string{"agentbox.dev/memroy", "did you mean agentbox.dev/memory"}},
		{"an annotation with a wrong value", "agentbox", "--annotation agentbox.dev/memory=2gg", []feature{annotations}, []string{"agentbox.dev/memory", "2gg"}},
		{"a profile that is not there", "agentbox", "--annotation agentbox.dev/profile=huge", []feature{annotations}, []string{`profile "huge"`, "small"}},
		{"a scope that the policy does not allow", "agentbox", "--annotation agentbox.dev/oom-scope=process", []feature{annotations}, []string{"oom-scope", "not allowed"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDocker(t, tc.needs...)
			name := d.newName()
			out := d.run(append(d.words(name, tc.runtimeName, "--rm "+tc.flags), "echo", "started")...)
			for _, text := range append(tc.want, "agentbox: ") {
				if !strings.Contains(out.Stderr, text) {
					t.Errorf("docker run does not say %q: %v", text, out)
				}
			}
			if out.Code == 0 || strings.Contains(out.Stdout, "started") {
				t.Errorf("the container started: %v", out)
			}
		})
	}
}

// A host that keeps the promises of strict mode starts containers in it.
func TestDockerStrictModeStartsWhereEverythingHolds(t *testing.T) {
	c := newDocker(t, swapLimit).detached("agentbox-strict", "", "exec sleep 1000")
	if have := c.Cgroup.limits(); have != defaultLimits() {
		t.Errorf("the cgroup has %+v, want %+v", have, defaultLimits())
	}
}
