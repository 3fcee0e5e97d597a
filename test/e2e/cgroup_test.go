//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
)

// hierarchiesV1 returns where each v1 controller is mounted.
var hierarchiesV1 = sync.OnceValue(func() map[string]string {
	found := map[string]string{}
	data, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if fields[2] != "cgroup" {
			continue
		}
		for option := range strings.SplitSeq(fields[3], ",") {
			switch option {
			case "memory", "pids", "cpu", "cpuacct", "cpuset", "freezer", "blkio", "devices":
				found[option] = fields[1]
			}
		}
	}
	return found
})

// parents are the folders below which all cgroups of this run are.
func parents() []string {
	if cgroupVersion() == 2 {
		return []string{filepath.Join("/sys/fs/cgroup", token)}
	}
	var dirs []string
	for _, mount := range hierarchiesV1() {
		dirs = append(dirs, filepath.Join(mount, token))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// makeCgroupParent makes the cgroup of this run and hands all controllers down.
func makeCgroupParent() error {
	for _, dir := range parents() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if cgroupVersion() != 2 {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(parents()[0], "cgroup.controllers"))
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(data)) {
		if err := os.WriteFile(filepath.Join(parents()[0], "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return fmt.Errorf("hand down %s: %w", name, err)
		}
	}
	return nil
}

// removeCgroupParent removes it as far as it is empty; the rest is reported as
// left behind. The low-level runtimes make such a folder in hierarchies, such as
// systemd's, that we do not use.
func removeCgroupParent() {
	dirs, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", token))
	more, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", token))
	for _, dir := range append(dirs, more...) {
		_ = os.Remove(dir)
	}
}

// Cgroup is the cgroup of a process, by its files' own names.
type Cgroup struct {
	t    *testing.T
	dirs map[string]string // controller -> folder; on v2 one with the empty name
}

// cgroupOf asks the kernel where a process is.
func cgroupOf(t *testing.T, pid int) Cgroup {
	t.Helper()
	g := Cgroup{t: t, dirs: map[string]string{}}
	for line := range strings.Lines(readFile(t, fmt.Sprintf("/proc/%d/cgroup", pid))) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // "4:memory:/path"
		if cgroupVersion() == 2 && parts[1] == "" {
			g.dirs[""] = filepath.Join("/sys/fs/cgroup", parts[2])
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			if mount, ok := hierarchiesV1()[name]; ok && cgroupVersion() == 1 {
				g.dirs[name] = filepath.Join(mount, parts[2])
			}
		}
	}
	return g
}

// file returns the path of a file such as memory.max.
func (g Cgroup) file(name string) string {
	controller, _, _ := strings.Cut(name, ".")
	if cgroupVersion() == 2 {
		controller = ""
	}
	return filepath.Join(g.dirs[controller], name)
}

// read returns the content of a file; "" when there is no such file.
func (g Cgroup) read(name string) string {
	g.t.Helper()
	data, err := os.ReadFile(g.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func (g Cgroup) number(name string) int64 {
	g.t.Helper()
	return parseNumber(g.t, name, g.read(name))
}

// field returns a number of a file of "key number" lines; 0 without that line.
func (g Cgroup) field(name, key string) int64 {
	g.t.Helper()
	for line := range strings.Lines(g.read(name)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return parseNumber(g.t, name, v)
		}
	}
	return 0
}

// unlimited is "max", and what v1 shows instead.
const unlimited = -1

func parseNumber(t *testing.T, what, text string) int64 {
	t.Helper()
	if text == "max" {
		return unlimited
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	const maxV1 = 1 << 62 // v1 shows the largest number of whole pages
	if n >= maxV1 {
		return unlimited
	}
	return n
}

// cpuUsec is the CPU time that the cgroup has used, in microseconds.
func (g Cgroup) cpuUsec() int64 {
	g.t.Helper()
	if cgroupVersion() == 2 {
		return g.field("cpu.stat", "usage_usec")
	}
	return g.number("cpuacct.usage") / 1000
}

// Limits are the limits of one cgroup as the kernel's files have them; unlimited
// is -1. Swap is what comes on top of the memory; on v1 it is unlimited when the
// kernel cannot tell.
type Limits struct {
	Memory, Swap, Pids int64
	Quota, Period      int64
	GroupKill          bool
}

func (g Cgroup) limits() Limits {
	g.t.Helper()
	if cgroupVersion() == 2 {
		quota, period, _ := strings.Cut(g.read("cpu.max"), " ")
		return Limits{
			Memory: g.number("memory.max"), Swap: g.number("memory.swap.max"), Pids: g.number("pids.max"),
			Quota: parseNumber(g.t, "cpu.max", quota), Period: parseNumber(g.t, "cpu.max", period),
			GroupKill: g.read("memory.oom.group") == "1",
		}
	}
	l := Limits{
		Memory: g.number("memory.limit_in_bytes"), Swap: unlimited, Pids: g.number("pids.max"),
		Quota: g.number("cpu.cfs_quota_us"), Period: g.number("cpu.cfs_period_us"),
	}
	if has(swapLimit) {
		if both := g.number("memory.memsw.limit_in_bytes"); both != unlimited {
			l.Swap = both - l.Memory
		}
	}
	return l
}

// limits are those of the container's first process.
func (c *Container) limits() Limits {
	c.t.Helper()
	return cgroupOf(c.t, c.pid()).limits()
}

// sameAsReport fails when a report and the kernel's files do not say the same.
func sameAsReport(t *testing.T, r *result.Result, have Limits) {
	t.Helper()
	check := func(dimension string, want int64) {
		t.Helper()
		got := int64(unlimited)
		if e, ok := r.Enforcement[dimension]; !ok {
			t.Errorf("the report has no %s", dimension)
		} else if e.Enforcer == limits.EnforcerSupervisor {
			if want != unlimited {
				t.Errorf("the supervisor holds %s, and the cgroup has %d besides", dimension, want)
			}
			return
		} else if e.Effective != nil {
			n, err := e.Effective.Float64()
			if err != nil {
				t.Fatal(err)
			}
			if dimension == "cpu" {
				n *= float64(have.Period)
			}
			got = int64(n + 0.5)
		}
		if got != want {
			t.Errorf("the report says that %s is %d, and the cgroup has %d", dimension, got, want)
		}
	}
	check("memory", have.Memory)
	check("swap", have.Swap)
	check("pids", have.Pids)
	check("cpu", have.Quota)
}
