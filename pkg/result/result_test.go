package result_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func number(text string) *json.Number { return new(json.Number(text)) }

var created = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// full is a result in which everything is there.
func full() *result.Result {
	r := &result.Result{
		ID: "0123456789ab", Name: "agent-7", Scope: limits.ScopeContainer, Door: result.DoorRuntime,
		Mode: limits.ModeAuto, Profile: "small", CreatedAt: created, Nonce: "1898a7b6c5d4e3f2-2a",
		Enforcement: map[string]result.Enforcement{
			"memory": {
				Requested: number("402653184"), Effective: number("402653184"), Unit: "bytes", Source: limits.SourceAnnotation,
				Enforcer: limits.EnforcerKernel, Mechanism: "memory.max", Owner: "self", Precision: "exact",
			},
			"cpu": {
				Effective: number("1.5"), Unit: "cpus", Source: limits.SourceProfile,
				Enforcer: limits.EnforcerKernel, Mechanism: "cpu.max", Owner: "/sys/fs/cgroup/agents", Precision: "1 ms per CPU and period",
			},
			"io_read_bps": {
				Effective: number("268435456"), Unit: "bytes/s", Source: limits.SourceDefault,
				Enforcer: limits.EnforcerKernel, Mechanism: "io.max", Owner: "self", Precision: "3 % over a second",
			},
			"io": {
				Source: limits.SourceDefault, Enforcer: limits.EnforcerKernel, Mechanism: "io.max", Owner: "self", Precision: "3 % over a second",
				Disks: []result.Disk{{
					Device: limits.Device{Major: 254}, Name: "vda", Places: []string{"/", "/data"}, Filesystem: "ext4",
					Counted: "reads and all writes", ReadBPS: number("268435456"),
				}},
			},
			"disk": {
				Unit: "bytes", Source: limits.SourceDefault, Enforcer: limits.EnforcerNone, Precision: "none",
				Detail: "this version does not enforce disk",
			},
		},
		Usage:    &result.Usage{MemoryPeakBytes: new(int64(402653184)), PidsPeak: new(int64(12)), CPUUsec: new(int64(1500000))},
		Warnings: []string{"cpu: 4 from the spec lowered to 1.5, the ceiling in the configuration"},
	}
	events := verdict.MemoryEvents{OOM: 1, OOMKill: 3, OOMGroupKill: 1, High: 2, Max: 40}
	ev := verdict.Evidence{
		CgroupVersion: 2, Memory: &events, MemoryTree: &events, PidsMax: new(int64(0)), Throttled: new(int64(17)),
		Exit: verdict.Exit{Source: verdict.ExitWait, Code: new(137)},
	}
	held := verdict.Limits{Memory: new(limits.Limit(402653184)), GroupKill: true}
	r.Conclude(verdict.Classify(ev, held), ev, created.Add(12*time.Second))
	return r
}

// TestGolden pins the JSON of results of every kind: it is a contract.
func TestGolden(t *testing.T) {
	live := &result.Result{
		ID: "0123456789ab", Name: "agent-7", Status: verdict.Running, Message: "running", ExitSource: verdict.ExitUnknown,
		Scope: limits.ScopeContainer, Door: result.DoorRuntime, Mode: limits.ModeAuto, CreatedAt: created,
		Usage:    &result.Usage{MemoryBytes: new(int64(4096)), Pids: new(int64(3))},
		Previous: full(),
	}
	for name, r := range map[string]*result.Result{"full": full(), "live": live, "empty": {}} {
		t.Run(name, func(t *testing.T) {
			got, err := json.MarshalIndent(r, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", name+".golden.json"), append(got, '\n'))
			var back result.Result
			if err := json.Unmarshal(got, &back); err != nil {
				t.Fatal(err)
			}
			again, err := json.MarshalIndent(back, "", "  ")
			if err != nil || !bytes.Equal(got, again) {
				t.Errorf("reading and writing it again changes it: %v\n%s", err, again)
			}
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run the test with -update if that is right\ngot:\n%s", name, got)
	}
}

// TestContract names every key that programs rely on, with the types that a
// value can have, in a full result and in an empty one.
func TestContract(t *testing.T) {
	top := map[string]string{
		"id": "string", "name": "string", "status": "string", "error_code": "string", "message": "string",
		"retryable": "bool", "exit_code": "number or null", "signal": "number or null", "exit_source": "string",
		"scope": "string", "door": "string", "mode": "string", "created_at": "string", "finished_at": "string or null",
		"enforcement": "object", "usage": "object or null", "events": "object", "warnings": "list", "evidence": "object",
		"nonce": "string",
	}
	for name, r := range map[string]*result.Result{"full": full(), "empty": {}} {
		check(t, name, fields(t, r), top)
	}
	all := fields(t, full())
	for name, e := range all["enforcement"].(map[string]any) {
		check(t, name, e.(map[string]any), map[string]string{
			"requested": "number or null", "effective": "number or null", "unit": "string", "source": "string",
			"enforcer": "string", "mechanism": "string", "owner": "string", "precision": "string", "detail": "string",
		})
	}
	disks := all["enforcement"].(map[string]any)["io"].(map[string]any)["disks"].([]any)
	check(t, "disk", disks[0].(map[string]any), map[string]string{
		"device": "string", "name": "string", "places": "list", "filesystem": "string", "counted": "string",
		"read_bps": "number or null", "write_bps": "number or null", "read_iops": "number or null", "write_iops": "number or null",
	})
	for _, usage := range []map[string]any{all["usage"].(map[string]any), fields(t, &result.Usage{})} {
		check(t, "usage", usage, map[string]string{
			"memory_peak_bytes": "number or null", "pids_peak": "number or null", "cpu_usec": "number or null",
		})
	}
	check(t, "events", all["events"].(map[string]any), map[string]string{
		"oom_kill": "number", "oom_group_kill": "number", "pids_max": "number", "memory_max": "number", "cpu_throttled": "number",
	})
	check(t, "evidence", all["evidence"].(map[string]any), map[string]string{"cgroup_version": "number", "exit": "object"})
}

func fields(t *testing.T, v any) map[string]any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func check(t *testing.T, what string, got map[string]any, want map[string]string) {
	t.Helper()
	for key, kind := range want {
		v, there := got[key]
		kind, nullable := strings.CutSuffix(kind, " or null")
		is := kindOf(v)
		right := is == kind || nullable && is == "null"
		if !there || !right {
			t.Errorf("%s: %s is %v (there: %t), want %s", what, key, v, there, kind)
		}
	}
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "bool"
	case float64:
		return "number"
	case []any:
		return "list"
	default:
		return "object"
	}
}

func TestEventsOf(t *testing.T) {
	own := verdict.MemoryEvents{OOMKill: 1, Max: 4, OOMGroupKill: 1}
	tree := verdict.MemoryEvents{OOMKill: 5, Max: 9, OOMGroupKill: 2}
	tests := []struct {
		name string
		ev   verdict.Evidence
		want result.Events
	}{
		{"nothing known", verdict.Evidence{}, result.Events{}},
		{"v1 has no tree", verdict.Evidence{Memory: &own}, result.Events{OOMKill: 1, MemoryMax: 4, OOMGroupKill: 1}},
		{"the tree counts its own too", verdict.Evidence{Memory: &own, MemoryTree: &tree}, result.Events{OOMKill: 5, MemoryMax: 9, OOMGroupKill: 2}},
		{"a tree that counts less (memory_localevents)", verdict.Evidence{Memory: &tree, MemoryTree: &own}, result.Events{OOMKill: 5, MemoryMax: 9, OOMGroupKill: 2}},
		{"tasks and CPU", verdict.Evidence{PidsMax: new(int64(3)), Throttled: new(int64(8))}, result.Events{PidsMax: 3, CPUThrottled: 8}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := result.EventsOf(tt.ev); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestNumberOf(t *testing.T) {
	tests := []struct {
		key   limits.Key
		value limits.Value
		want  string // "" is null
		unit  string
	}{
		{limits.KeyMemory, limits.Limit(1 << 40), "1099511627776", "bytes"},
		{limits.KeyMemory, limits.NoLimit(), "", "bytes"},
		{limits.KeySwap, limits.Limit(0), "0", "bytes"},
		{limits.KeyPids, limits.Limit(2048), "2048", "tasks"},
		{limits.KeyCPUs, limits.Limit(1_500_000), "1.5", "cpus"},
		{limits.KeyCPUs, limits.Limit(2_000_000), "2", "cpus"},
		{limits.KeyCPUs, limits.Limit(1), "0.000001", "cpus"},
		{limits.KeyOpenFiles, limits.Value{Soft: 1024, N: 4096}, "4096", "files"},
		{limits.KeyCoreDumps, limits.Limit(0), "0", "bytes"},
		{limits.KeyCoreDumps, limits.NoLimit(), "", "bytes"},
		{limits.KeyWallTime, limits.Limit(int64(time.Minute)), "60000000000", "nanoseconds"},
		{limits.KeyInodes, limits.Limit(10), "10", "count"},
		{limits.KeyIOReadBPS, limits.Limit(256 << 20), "268435456", "bytes/s"},
		{limits.KeyIOWriteBPS, limits.NoLimit(), "", "bytes/s"},
		{limits.KeyIOReadIOPS, limits.Limit(1000), "1000", "operations/s"},
		{limits.KeyIOWriteIOPS, limits.NoLimit(), "", "operations/s"},
	}
	for _, tt := range tests {
		info, ok := tt.key.Info()
		if !ok {
			t.Fatal(tt.key)
		}
		got := ""
		if n := result.NumberOf(info, tt.value); n != nil {
			got = n.String()
		}
		if got != tt.want || result.UnitOf(info) != tt.unit {
			t.Errorf("%s: got %q %s, want %q %s", tt.key, got, result.UnitOf(info), tt.want, tt.unit)
		}
	}
}
