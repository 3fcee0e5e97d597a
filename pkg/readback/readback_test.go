package readback

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
)

// pid is the container's first process in every recorded tree.
const pid = 42

// dir is its cgroup in the tree "v2".
const dir = "sys/fs/cgroup/system.slice/docker-0123456789ab.scope/"

// hostOf is a machine with every mechanism of a cgroup version.
func hostOf(version int) limits.Host {
	kernel := func(name string) limits.Mechanism {
		return limits.Mechanism{Name: name, Enforcer: limits.EnforcerKernel}
	}
	process := func(name string) limits.Mechanism {
		return limits.Mechanism{Name: name, Enforcer: limits.EnforcerProcess}
	}
	h := limits.Host{
		CgroupVersion: version, MemoryBytes: 16 << 30, CPUs: 8, PidMax: 4194304,
		OpenFilesHard: -1, FileSizeHard: -1, CoreHard: -1,
		Mechanisms: map[limits.Key]limits.Mechanism{
			limits.KeyMemory: kernel("memory.max"), limits.KeyMemoryHigh: kernel("memory.high"),
			limits.KeySwap: kernel("memory.swap.max"), limits.KeyPids: kernel("pids.max"), limits.KeyCPUs: kernel("cpu.max"),
			limits.KeyOpenFiles: process("RLIMIT_NOFILE"), limits.KeyFileSize: process("RLIMIT_FSIZE"), limits.KeyCoreDumps: process("RLIMIT_CORE"),
		},
		GroupKill: kernel("memory.oom.group"),
	}
	if version == 1 {
		h.GroupKill = limits.Mechanism{Name: "memory.oom.group", Reason: "cgroup v1 has no group kill"}
		h.Mechanisms[limits.KeyMemory] = kernel("memory.limit_in_bytes")
		delete(h.Mechanisms, limits.KeyMemoryHigh)
	}
	return h
}

// planOf is a plan that the container of the recorded trees fulfils.
func planOf(t *testing.T, version int, change func(*limits.Policy)) *limits.Plan {
	t.Helper()
	policy := limits.DefaultPolicy()
	policy.Defaults[limits.KeyMemory] = limits.Limit(512 << 20)
	policy.Defaults[limits.KeyCPUs] = limits.Limit(1_500_000)
	if version == 1 {
		policy.Defaults[limits.KeyPids] = limits.Limit(512)
	}
	if change != nil {
		change(&policy)
	}
	plan, err := limits.Resolve(policy, limits.Request{}, hostOf(version))
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// rlimits are those that the default policy asks for.
func rlimits(int) (map[limits.Key]cgroup.Effective, error) {
	return map[limits.Key]cgroup.Effective{
		limits.KeyOpenFiles: {Value: limits.Value{Soft: 65536, N: 524288}, Owner: cgroup.Self, Mechanism: "RLIMIT_NOFILE"},
		limits.KeyFileSize:  {Value: limits.NoLimit(), Mechanism: "RLIMIT_FSIZE"},
		limits.KeyCoreDumps: {Value: limits.Limit(0), Owner: cgroup.Self, Mechanism: "RLIMIT_CORE"},
	}, nil
}

func readTree(root string, plan *limits.Plan, pid int) Report {
	r := reader{fs: cgroup.FS(root), rlimits: rlimits, plan: plan, at: AtStart}
	return r.read(pid)
}

func show(n *json.Number) string {
	if n == nil {
		return "null"
	}
	return n.String()
}

// line is what a report says about one dimension, in short.
func line(e result.Enforcement) string {
	return strings.Join([]string{show(e.Effective), string(e.Enforcer), e.Mechanism, e.Owner, e.Precision}, " ")
}

func TestEverythingHolds(t *testing.T) {
	tests := []struct {
		tree string
		want map[string]string
	}{
		{"v2", map[string]string{
			"memory": "536870912 kernel memory.max self exact",
			"swap":   "0 kernel memory.swap.max self exact",
			// The slice above has a lower limit of tasks.
			"pids":       "1024 kernel pids.max /sys/fs/cgroup/system.slice exact",
			"cpu":        "1.5 kernel cpu.max self 1 ms per CPU and period",
			"open_files": "524288 process RLIMIT_NOFILE self per process",
			"core_dumps": "0 process RLIMIT_CORE self per process",
			"file_size":  "null none   none",
			"disk":       "null none   none",
			"network":    "null none   none",
		}},
		{"v1", map[string]string{
			"memory":     "536870912 kernel memory.limit_in_bytes self exact",
			"swap":       "0 kernel memory.memsw.limit_in_bytes self exact",
			"pids":       "512 kernel pids.max self exact",
			"cpu":        "1.5 kernel cpu.cfs_quota_us self 1 ms per CPU and period",
			"open_files": "524288 process RLIMIT_NOFILE self per process",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.tree, func(t *testing.T) {
			version := int(tt.tree[1] - '0')
			got := readTree(cgrouptest.Tree(t, tt.tree), planOf(t, version, nil), pid)
			if len(got.Warnings) != 0 || len(got.Missing) != 0 {
				t.Errorf("warnings %q, missing %v", got.Warnings, got.Missing)
			}
			for name, want := range tt.want {
				if have := line(got.Enforcement[name]); have != want {
					t.Errorf("%s: %s\nwant %s", name, have, want)
				}
			}
			if _, there := got.Enforcement["memory_high"]; there {
				t.Error("memory_high is reported where nobody asked for it")
			}
			if got.Held.GroupKill != (version == 2) || got.Held.Memory == nil || got.Held.Memory.N != 512<<20 || got.Held.Pids == nil {
				t.Errorf("held %+v", got.Held)
			}
			if got.Cgroup == nil || got.Cgroup.Version != version {
				t.Errorf("cgroup %+v", got.Cgroup)
			}
		})
	}
}

// TestEveryDimensionIsReported makes sure that nothing is left out, whatever the
// machine can do.
func TestEveryDimensionIsReported(t *testing.T) {
	got := readTree(t.TempDir(), planOf(t, 0, nil), 0)
	for _, info := range limits.Keys {
		if _, there := got.Enforcement[string(info.Dimension)]; !there {
			t.Errorf("%s is missing", info.Dimension)
		}
	}
}

func TestWhatDoesNotHold(t *testing.T) {
	tests := []struct {
		name    string
		file    string // of the cgroup, written or removed
		content string
		key     string
		want    string // line
		detail  string
		missing []limits.Dimension
	}{
		{"memory.max was lost", "memory.max", "max\n", "memory", "null none   none", "512MiB was planned and memory.max is none", []limits.Dimension{limits.Memory}},
		{"memory.max is higher", "memory.max", "1073741824\n", "memory", "1073741824 kernel memory.max self exact", "512MiB was planned and memory.max is 1GiB", []limits.Dimension{limits.Memory}},
		{"memory.max is lower", "memory.max", "1048576\n", "memory", "1048576 kernel memory.max self exact", "", nil},
		{"swap was lost", "memory.swap.max", "max\n", "swap", "null none   none", "0 was planned and memory.swap.max is none", []limits.Dimension{limits.Swap}},
		{"no swap file", "memory.swap.max", "", "swap", "null none   none", "0 was planned and memory.swap.max is none", []limits.Dimension{limits.Swap}},
		{"the slice above limits tasks", "pids.max", "max\n", "pids", "1024 kernel pids.max /sys/fs/cgroup/system.slice exact", "", nil},
		{"systemd rounds the CPU up", "cpu.max", "151000 100000\n", "cpu", "1.51 kernel cpu.max self 1 ms per CPU and period", "", nil},
		{"the CPU is more than rounded", "cpu.max", "160000 100000\n", "cpu", "1.6 kernel cpu.max self 1 ms per CPU and period", "1.5 was planned and cpu.max is 1.6", []limits.Dimension{limits.CPU}},
		{"the slice above has more CPU", "cpu.max", "max 100000\n", "cpu", "4 kernel cpu.max /sys/fs/cgroup/system.slice 1 ms per CPU and period", "1.5 was planned and cpu.max is 4", []limits.Dimension{limits.CPU}},
		{"no group kill", "memory.oom.group", "0\n", "memory", "536870912 kernel memory.max self exact", "", []limits.Dimension{limits.Memory}},
		{"no group kill file", "memory.oom.group", "", "memory", "536870912 kernel memory.max self exact", "", []limits.Dimension{limits.Memory}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, "v2")
			if tt.content == "" {
				cgrouptest.Remove(t, root, dir+tt.file)
			} else {
				cgrouptest.Write(t, root, dir+tt.file, tt.content)
			}
			got := readTree(root, planOf(t, 2, nil), pid)
			e := got.Enforcement[tt.key]
			if line(e) != tt.want || e.Detail != tt.detail {
				t.Errorf("%s, %q\nwant %s, %q", line(e), e.Detail, tt.want, tt.detail)
			}
			var missing []limits.Dimension
			for _, m := range got.Missing {
				missing = append(missing, m.Dimension)
			}
			if !slices.Equal(missing, tt.missing) {
				t.Errorf("missing %v, want %v", missing, tt.missing)
			}
			if len(got.Warnings) != len(tt.missing) {
				t.Errorf("warnings %q", got.Warnings)
			}
		})
	}
}

// TestCrunInAScope has the limits twice, in the scope and in crun's cgroup below it.
// Nothing above the sandbox has a limit of memory.
func TestCrunInAScope(t *testing.T) {
	root := cgrouptest.Tree(t, "v2")
	const inner = dir + "container/"
	cgrouptest.Write(t, root, "proc/42/cgroup", "0::/system.slice/docker-0123456789ab.scope/container\n")
	for file, content := range map[string]string{
		"cgroup.procs": "42\n", "memory.max": "536870912\n", "memory.swap.max": "0\n", "memory.oom.group": "1\n", "pids.max": "2048\n", "cpu.max": "150000 100000\n",
	} {
		cgrouptest.Write(t, root, inner+file, content)
	}
	plan := planOf(t, 2, nil)
	for _, systemd := range []bool{false, true} {
		plan.Systemd = systemd
		got := readTree(root, plan, pid)
		if got.Held.MemoryAbove == systemd || (got.Cgroup.Unit != nil) != systemd || !got.Held.GroupKill {
			t.Errorf("systemd %t: held %+v, unit %v", systemd, got.Held, got.Cgroup.Unit)
		}
	}
}

// TestNoFileAnywhere is a kernel without the controller, from the cgroup up to
// the root.
func TestNoFileAnywhere(t *testing.T) {
	root := cgrouptest.Tree(t, "v2")
	for _, folder := range []string{dir, "sys/fs/cgroup/system.slice/", "sys/fs/cgroup/init.scope/"} {
		cgrouptest.Remove(t, root, folder+"memory.max")
	}
	got := readTree(root, planOf(t, 2, nil), pid)
	e := got.Enforcement["memory"]
	if line(e) != "null none   none" || e.Detail != "512MiB was planned and memory.max is not there" {
		t.Errorf("%s, %q", line(e), e.Detail)
	}
	if got.Held.Memory != nil {
		t.Errorf("held %+v", got.Held)
	}
}

func TestStrictListDecides(t *testing.T) {
	root := cgrouptest.Tree(t, "v2")
	for file, content := range map[string]string{"memory.max": "max\n", "memory.oom.group": "0\n", "cpu.max": "max 100000\n"} {
		cgrouptest.Write(t, root, dir+file, content)
	}
	plan := planOf(t, 2, func(p *limits.Policy) {
		p.StrictRequire = []limits.Dimension{limits.Pids, limits.CPU, limits.OpenFiles}
	})
	got := readTree(root, plan, pid)
	if len(got.Missing) != 1 || got.Missing[0].Dimension != limits.CPU {
		t.Errorf("missing %v: memory is not required, and neither is its group kill", got.Missing)
	}
}

func TestModeOff(t *testing.T) {
	root := cgrouptest.Tree(t, "v2")
	cgrouptest.Write(t, root, dir+"memory.max", "max\n")
	cgrouptest.Write(t, root, dir+"memory.oom.group", "0\n")
	plan := planOf(t, 2, func(p *limits.Policy) { p.Mode = limits.ModeOff })
	got := readTree(root, plan, pid)
	if len(got.Warnings) != 0 {
		t.Errorf("warnings about what was not tried: %q", got.Warnings)
	}
	for name, want := range map[string]string{
		"memory":     "mode off: it would be 512MiB",
		"cpu":        "mode off: it would be 1.5",
		"disk":       "this version does not enforce disk; mode off: it would be 10GiB",
		"core_dumps": "mode off: it would be false",
		"wall_time":  "no limit is configured",
	} {
		if e := got.Enforcement[name]; e.Detail != want {
			t.Errorf("%s: %q, want %q", name, e.Detail, want)
		}
	}
	// What the container has of its own is told.
	if e := got.Enforcement["cpu"]; line(e) != "1.5 kernel cpu.max self 1 ms per CPU and period" {
		t.Errorf("cpu: %s", line(e))
	}
}

func TestAtHook(t *testing.T) {
	plan := planOf(t, 2, nil)
	r := reader{fs: cgroup.FS(cgrouptest.Tree(t, "v2")), plan: plan, at: AtHook, rlimits: func(int) (map[limits.Key]cgroup.Effective, error) {
		t.Error("the rlimits are not set yet")
		return nil, nil
	}}
	got := r.read(pid)
	e := got.Enforcement["open_files"]
	if line(e) != "524288 process RLIMIT_NOFILE self per process" || !strings.Contains(e.Detail, "not read back") {
		t.Errorf("%s, %q", line(e), e.Detail)
	}
	if len(got.Warnings)+len(got.Missing) != 0 {
		t.Errorf("warnings %q, missing %v", got.Warnings, got.Missing)
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	refused := func(int) (map[limits.Key]cgroup.Effective, error) { return nil, errors.New("not permitted") }
	tests := []struct {
		name    string
		pid     int
		rlimits func(int) (map[limits.Key]cgroup.Effective, error)
		memory  string // detail
		files   string // detail
	}{
		{"no pid", 0, rlimits, "could not be read back: the low-level runtime left no pid", "could not be read back: the low-level runtime left no pid"},
		{"the process is gone", 43, rlimits, "could not be read back: ", ""},
		{"no rlimits", pid, refused, "", "could not be read back: not permitted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			plan := planOf(t, 2, func(p *limits.Policy) { p.StrictRequire = append(p.StrictRequire, limits.OpenFiles) })
			r := reader{fs: cgroup.FS(cgrouptest.Tree(t, "v2")), rlimits: tt.rlimits, plan: plan, at: AtStart}
			got := r.read(tt.pid)
			for name, want := range map[string]string{"memory": tt.memory, "open_files": tt.files} {
				e := got.Enforcement[name]
				if (want == "") != (e.Detail == "") || !strings.Contains(e.Detail, want) {
					t.Errorf("%s: %q, want %q", name, e.Detail, want)
				}
				dimension := limits.Dimension(name)
				missing := slices.ContainsFunc(got.Missing, func(m limits.Missing) bool { return m.Dimension == dimension })
				if missing != (want != "") {
					t.Errorf("%s: missing is %t", name, missing)
				}
			}
			if len(got.Warnings) == 0 {
				t.Error("no warning")
			}
		})
	}
}

// TestRead reads this very process, on whatever machine.
func TestRead(t *testing.T) {
	got := Read(planOf(t, 0, nil), os.Getpid(), AtStart, Supervision{})
	if e := got.Enforcement["open_files"]; e.Mechanism != "RLIMIT_NOFILE" {
		t.Errorf("%+v", e)
	}
	if got.Cgroup != nil || got.Held.GroupKill {
		t.Errorf("a plan without cgroups, and %+v", got)
	}
}
