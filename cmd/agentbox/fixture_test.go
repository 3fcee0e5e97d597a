package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// start is when the sandboxes of these tests began.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fixture is a machine with sandboxes on it.
type fixture struct {
	t       *testing.T
	dir     string
	states  state.Store
	results result.Store
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	dir := t.TempDir()
	f := &fixture{
		t: t, dir: dir,
		states:  state.Store{Dir: filepath.Join(dir, "state")},
		results: result.Store{Dir: filepath.Join(dir, "results")},
	}
	f.write("config.toml", fmt.Sprintf("results = %q\ngroup = \"sandbox\"\n", f.results.Dir))
	return f
}

func (f *fixture) write(name, content string) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// live adds a sandbox that runs: this very process is its first one.
func (f *fixture) live(id, name string) *state.State {
	f.t.Helper()
	self, err := procfs.FindProcess(os.Getpid())
	if err != nil {
		f.t.Fatal(err)
	}
	engineDir := filepath.Join(f.dir, "containers", id)
	if name != "" {
		f.write(filepath.Join("containers", id, "config.v2.json"), fmt.Sprintf(`{"Name":"/%s"}`, name))
	}
	st := &state.State{
		Version: state.Version, ID: id, Root: "/run/runc", RealRoot: "/run/runc", Nonce: result.NewNonce(time.Now()),
		Runtime: "/usr/sbin/runc", Creator: self, Door: result.DoorRuntime, CreatedAt: start, Results: f.results, EngineDir: engineDir,
		Plan:    limits.Plan{Mode: limits.ModeAuto, OOMScope: limits.ScopeContainer},
		Started: &state.Started{Init: self, Enforcement: enforcement()},
	}
	f.create(st)
	return st
}

func (f *fixture) create(st *state.State) {
	f.t.Helper()
	if err := f.states.Create(st); err != nil {
		f.t.Fatal(err)
	}
}

// ended keeps the result of a run that lasted from one minute to another.
func (f *fixture) ended(id, name string, from, to int) *result.Result {
	f.t.Helper()
	r := exited(id, name, start.Add(time.Duration(from)*time.Minute), start.Add(time.Duration(to)*time.Minute))
	f.keep(r)
	return r
}

func (f *fixture) keep(r *result.Result) {
	f.t.Helper()
	if err := f.results.Put(r); err != nil {
		f.t.Fatal(err)
	}
}

// inspect runs the command as a user types it.
func (f *fixture) inspect(args ...string) (stdout, stderr string, code int) {
	f.t.Helper()
	return f.run(append([]string{"inspect"}, args...)...)
}

func (f *fixture) run(args ...string) (stdout, stderr string, code int) {
	f.t.Helper()
	var out, errs bytes.Buffer
	code = run(append([]string{"--config", filepath.Join(f.dir, "config.toml"), "--state", f.states.Dir}, args...), &out, &errs)
	return out.String(), strings.ReplaceAll(errs.String(), f.dir, "DIR"), code
}

func number(text string) *json.Number { return new(json.Number(text)) }

func enforcement() map[string]result.Enforcement {
	kernel := func(requested, effective *json.Number, unit string, source limits.Source, mechanism string) result.Enforcement {
		return result.Enforcement{
			Requested: requested, Effective: effective, Unit: unit, Source: source,
			Enforcer: limits.EnforcerKernel, Mechanism: mechanism, Owner: "self", Precision: "exact",
		}
	}
	pids := kernel(nil, number("1024"), "tasks", limits.SourceDefault, "pids.max")
	pids.Owner = "/sys/fs/cgroup/system.slice"
	cpu := kernel(number("4"), number("1.5"), "cpus", limits.SourceCeiling, "cpu.max")
	cpu.Detail = "4 from the spec lowered to 1.5, the ceiling in the configuration"
	files := kernel(number("4096"), number("4096"), "files", limits.SourceSpec, "RLIMIT_NOFILE")
	files.Enforcer, files.Precision = limits.EnforcerProcess, "per process"
	reads := kernel(number("1073741824"), number("268435456"), "bytes/s", limits.SourceCeiling, "io.max")
	reads.Precision, reads.Detail = "3 % over a second", "1GiB from the annotation lowered to 256MiB, the ceiling in the configuration"
	operations := kernel(nil, number("1000"), "operations/s", limits.SourceDefault, "io.max")
	operations.Owner, operations.Precision = "/sys/fs/cgroup/system.slice", "3 % over a second"
	io := kernel(nil, nil, "", limits.SourceCeiling, "io.max")
	io.Owner, io.Precision, io.Detail = "", "3 % over a second", "io_read_bps: "+reads.Detail
	io.Disks = disks()
	return map[string]result.Enforcement{
		"io":            io,
		"io_read_bps":   reads,
		"io_write_iops": operations,

		"memory":     kernel(number("67108864"), number("67108864"), "bytes", limits.SourceSpec, "memory.max"),
		"swap":       kernel(nil, number("0"), "bytes", limits.SourceDefault, "memory.swap.max"),
		"pids":       pids,
		"cpu":        cpu,
		"open_files": files,
		"disk": {
			Unit: "bytes", Source: limits.SourceDefault, Enforcer: limits.EnforcerNone, Precision: "none",
			Detail: "this version does not enforce disk",
		},
		"wall_time": kernel(number("90000000000"), number("90000000000"), "nanoseconds", limits.SourceAnnotation, "timer"),
		"later":     {Unit: "count", Source: limits.SourceDefault, Enforcer: limits.EnforcerNone, Precision: "none"},
	}
}

// disks are those of a sandbox with a volume of its own.
func disks() []result.Disk {
	return []result.Disk{
		{
			Device: limits.Device{Major: 8, Minor: 16}, Name: "sdb", Places: []string{"/data"}, Filesystem: "vfat",
			Counted: "reads, direct writes and what fsync flushes", ReadBPS: number("268435456"), WriteIOPS: number("1000"),
		},
		{
			Device: limits.Device{Major: 254}, Name: "vda", Places: []string{"/", "/home", "/dev/vda1"}, Filesystem: "ext4, xfs",
			Counted: "reads and all writes", ReadBPS: number("268435456"), WriteIOPS: number("500"),
		},
	}
}

// base is what all results of these tests share.
func base(id, name string, from time.Time) *result.Result {
	return &result.Result{
		ID: id, Name: name, Scope: limits.ScopeContainer, Door: result.DoorRuntime, Mode: limits.ModeAuto,
		CreatedAt: from, Nonce: fmt.Sprintf("%016x-1", from.UnixNano()), Enforcement: enforcement(),
	}
}

func exited(id, name string, from, to time.Time) *result.Result {
	r := base(id, name, from)
	ev := verdict.Evidence{CgroupVersion: 2, Exit: verdict.Exit{Source: verdict.ExitWait, Code: new(3)}}
	r.Conclude(verdict.Classify(ev, verdict.Limits{}), ev, to)
	return r
}

func oomKilled(id, name string) *result.Result {
	r := base(id, name, start)
	r.Profile = "small"
	r.Usage = &result.Usage{MemoryPeakBytes: new(int64(67108864)), PidsPeak: new(int64(12)), CPUUsec: new(int64(1234567))}
	r.Warnings = []string{"cpu: 4 from the spec lowered to 1.5, the ceiling in the configuration"}
	m := verdict.MemoryEvents{OOM: 1, OOMKill: 3, OOMGroupKill: 1, Max: 40}
	ev := verdict.Evidence{
		CgroupVersion: 2, Memory: &m, MemoryTree: &m, PidsMax: new(int64(0)), Throttled: new(int64(17)),
		Exit: verdict.Exit{Source: verdict.ExitWait, Code: new(137)},
	}
	held := verdict.Limits{Memory: new(limits.Limit(67108864)), GroupKill: true}
	r.Conclude(verdict.Classify(ev, held), ev, start.Add(12*time.Second))
	return r
}

func refused(id string) *result.Result {
	return &result.Result{
		ID: id, Status: verdict.Refused, ErrorCode: verdict.LimitUnenforceable, Door: result.DoorRuntime, Mode: limits.ModeStrict,
		Message: "strict mode: this host does not enforce disk", ExitSource: verdict.ExitUnknown,
		CreatedAt: start, FinishedAt: &start, Nonce: "18000000000000a1-1",
	}
}
