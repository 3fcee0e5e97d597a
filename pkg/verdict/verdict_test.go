package verdict_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// seen is an exit of which only the code is known; a signal is folded into it.
func seen(code int) verdict.Exit {
	return verdict.Exit{Source: verdict.ExitWait, Code: &code}
}

// told is an exit of which code and signal are known.
func told(code, signal int) verdict.Exit {
	return verdict.Exit{Source: verdict.ExitPidfd, Code: &code, Signal: &signal}
}

var unknown = verdict.Exit{Source: verdict.ExitUnknown}

// v2 is the evidence of a cgroup v2: of the sandbox's own cgroup, and of that
// with all below.
func v2(own, tree verdict.MemoryEvents, exit verdict.Exit) verdict.Evidence {
	return verdict.Evidence{CgroupVersion: 2, Memory: &own, MemoryTree: &tree, PidsMax: new(int64(0)), Exit: exit}
}

func v1(own *verdict.MemoryEvents, exit verdict.Exit) verdict.Evidence {
	return verdict.Evidence{CgroupVersion: 1, Memory: own, PidsMax: new(int64(0)), Exit: exit}
}

// struck is the evidence of a sandbox without a cgroup that the supervisor ended.
func struck(code verdict.Code, measured, limit int64, exit verdict.Exit) verdict.Evidence {
	return with(verdict.Evidence{Exit: exit}, code, measured, limit)
}

func with(ev verdict.Evidence, code verdict.Code, measured, limit int64) verdict.Evidence {
	ev.Strike = &verdict.Strike{Code: code, Limit: limit, Measured: measured}
	return ev
}

func withPids(ev verdict.Evidence, refused int64) verdict.Evidence {
	ev.PidsMax = &refused
	return ev
}

var (
	none  = verdict.MemoryEvents{}
	group = verdict.Limits{Memory: new(limits.Limit(64 << 20)), Pids: new(limits.Limit(128)), GroupKill: true}
	loose = verdict.Limits{Memory: new(limits.Limit(64 << 20)), Pids: new(limits.Limit(128))}

	protects = verdict.Limits{Memory: new(limits.Limit(64 << 20)), Pids: new(limits.Limit(128)), GroupKill: true, MayProtect: true}

	ownOOM   = verdict.MemoryEvents{OOM: 1, OOMKill: 3, OOMGroupKill: 1, Max: 40}
	oneKill  = verdict.MemoryEvents{OOM: 1, OOMKill: 1, Max: 40}
	killOnly = verdict.MemoryEvents{OOMKill: 1}
)

func TestClassify(t *testing.T) {
	tests := []struct {
		name   string
		ev     verdict.Evidence
		held   verdict.Limits
		status verdict.Status
		code   verdict.Code
		exit   *int
		signal *int
		says   string // part of the message
	}{
		// Plain ends.
		{"exit 0", v2(none, none, seen(0)), group, verdict.Exited, "", new(0), new(0), "exited with code 0"},
		{"exit 1", v2(none, none, seen(1)), group, verdict.Exited, "", new(1), new(0), "exited with code 1"},
		{"exit 127", v2(none, none, seen(127)), group, verdict.Exited, "", new(127), new(0), ""},
		{"exit 128 is no signal", v2(none, none, seen(128)), group, verdict.Exited, "", new(128), new(0), ""},
		{"129 may be a signal", v2(none, none, seen(129)), group, verdict.Ended, "", new(129), nil, "signal 1"},
		{"143 may be a signal", v2(none, none, seen(143)), group, verdict.Ended, "", new(143), nil, "signal 15"},
		{"137 proves nothing", v2(none, none, seen(137)), group, verdict.Ended, "", new(137), nil, "not known which"},
		{"192 may be the last signal", v2(none, none, seen(192)), group, verdict.Ended, "", new(192), nil, "signal 64"},
		{"193 is no signal", v2(none, none, seen(193)), group, verdict.Exited, "", new(193), new(0), ""},
		{"exit 255", v2(none, none, seen(255)), group, verdict.Exited, "", new(255), new(0), ""},
		{"a program that returns 137, seen", v2(none, none, told(137, 0)), group, verdict.Exited, "", new(137), new(0), "exited with code 137"},
		{"docker kill, seen", v2(none, none, told(137, 9)), group, verdict.Signaled, "", new(137), new(9), "by no limit"},
		{"exit 143 of a trap, seen", v2(none, none, told(143, 0)), group, verdict.Exited, "", new(143), new(0), ""},
		{"nobody saw the exit", v2(none, none, unknown), group, verdict.Ended, "", nil, nil, "not known"},
		{"no cgroup at all", verdict.Evidence{Exit: seen(137)}, verdict.Limits{}, verdict.Ended, "", new(137), nil, ""},
		{"no evidence at all", verdict.Evidence{}, verdict.Limits{}, verdict.Ended, "", nil, nil, ""},

		// The sandbox's own memory limit.
		{"group kill", v2(ownOOM, ownOOM, seen(137)), group, verdict.OOMKilled, verdict.MemoryLimitExceeded, new(137), new(9), "limit of 64MiB and was killed"},
		{"group kill, exit not known", v2(ownOOM, ownOOM, unknown), group, verdict.OOMKilled, verdict.MemoryLimitExceeded, nil, nil, "64MiB"},
		{"group kill that only the counter tells", v2(ownOOM, ownOOM, unknown), loose, verdict.OOMKilled, verdict.MemoryLimitExceeded, nil, nil, ""},
		{"group kill on a kernel that does not count it", v2(oneKill, oneKill, unknown), group, verdict.OOMKilled, verdict.MemoryLimitExceeded, nil, nil, ""},
		{"the first process survives the group kill", v2(ownOOM, ownOOM, seen(3)), group, verdict.Exited, "", new(3), new(0), "did not end it"},
		{"one process kill ends it, seen", v2(oneKill, oneKill, told(137, 9)), loose, verdict.OOMKilled, verdict.MemoryLimitExceeded, new(137), new(9), "as if killed"},
		{"one process kill, folded exit", v2(oneKill, oneKill, seen(137)), loose, verdict.OOMKilled, verdict.MemoryLimitExceeded, new(137), nil, "as if killed"},
		{"one process kill, exit not known", v2(oneKill, oneKill, unknown), loose, verdict.Ended, "", nil, nil, "whether that ended it is not known"},
		{"group kill of one that may protect itself, exit not known", v2(ownOOM, ownOOM, unknown), protects, verdict.Ended, "", nil, nil, "killed a process in it for memory, and whether that ended it is not known"},
		{"group kill of one that may protect itself, folded", v2(ownOOM, ownOOM, seen(137)), protects, verdict.OOMKilled, verdict.MemoryLimitExceeded, new(137), nil, "as if killed"},
		{"group kill of one that may protect itself, seen", v2(ownOOM, ownOOM, told(137, 9)), protects, verdict.OOMKilled, verdict.MemoryLimitExceeded, new(137), new(9), "as if killed"},
		{"group kill of one that protected itself", v2(ownOOM, ownOOM, seen(0)), protects, verdict.Exited, "", new(0), new(0), "did not end it"},
		{"limit not known", v2(ownOOM, ownOOM, seen(137)), verdict.Limits{GroupKill: true}, verdict.OOMKilled, verdict.MemoryLimitExceeded, new(137), new(9), "its memory limit and was killed"},
		{"oom without a kill", v2(verdict.MemoryEvents{OOM: 2}, verdict.MemoryEvents{OOM: 2}, seen(137)), group, verdict.Ended, "", new(137), nil, ""},
		{"held at the limit and not killed", v2(verdict.MemoryEvents{Max: 900}, verdict.MemoryEvents{Max: 900}, seen(137)), group, verdict.Ended, "", new(137), nil, ""},

		// M3: a child was killed, the sandbox went on.
		{"M3: exits with 0", v2(oneKill, oneKill, seen(0)), loose, verdict.Exited, "", new(0), new(0), "did not end it"},
		{"M3: docker stop, 143 by a trap, seen", v2(oneKill, oneKill, told(143, 0)), loose, verdict.Exited, "", new(143), new(0), "did not end it"},
		{"M3: docker stop, folded", v2(oneKill, oneKill, seen(143)), loose, verdict.Ended, "", new(143), nil, "did not end it"},
		{"a shell returns 137 for a killed child, seen", v2(oneKill, oneKill, told(137, 0)), loose, verdict.Exited, "", new(137), new(0), "did not end it"},

		// M14: a limit inside the sandbox. The tree has what its own cgroup has not.
		{"M14: docker kill", v2(none, oneKill, told(137, 9)), group, verdict.Signaled, "", new(137), new(9), "whether that ended it is not known"},
		{"M14: folded", v2(none, oneKill, seen(137)), group, verdict.Ended, "", new(137), nil, ""},
		{"M14: exit not known", v2(none, oneKill, unknown), group, verdict.Ended, "", nil, nil, ""},
		{"M14: a group kill inside", v2(none, ownOOM, seen(137)), group, verdict.Ended, "", new(137), nil, ""},
		{"M14: exits with 1", v2(none, oneKill, seen(1)), group, verdict.Exited, "", new(1), new(0), "did not end it"},

		// M15: the host, or a cgroup above.
		{"M15: group kill", v2(killOnly, killOnly, seen(137)), group, verdict.OOMKilled, verdict.HostMemoryExhausted, new(137), new(9), "own limit was not reached"},
		{"M15: exit not known", v2(killOnly, killOnly, unknown), group, verdict.OOMKilled, verdict.HostMemoryExhausted, nil, nil, ""},
		{"M15: may protect itself, exit not known", v2(killOnly, killOnly, unknown), protects, verdict.Ended, "", nil, nil, "whether that ended it is not known"},
		{"M15: the victim lived further down", v2(none, killOnly, seen(137)), group, verdict.OOMKilled, verdict.HostMemoryExhausted, new(137), new(9), ""},
		{"M15: one process, seen", v2(killOnly, killOnly, told(137, 9)), loose, verdict.OOMKilled, verdict.HostMemoryExhausted, new(137), new(9), ""},
		{"M15: one process, exit not known", v2(killOnly, killOnly, unknown), loose, verdict.Ended, "", nil, nil, ""},
		{"M15: survived", v2(killOnly, killOnly, seen(0)), loose, verdict.Exited, "", new(0), new(0), "did not end it"},
		{
			"without memory.events it may have been a limit inside",
			verdict.Evidence{CgroupVersion: 2, Memory: &killOnly, Exit: seen(137)},
			group, verdict.Ended, "", new(137), nil, "whether that ended it",
		},
		{
			"without memory.events.local it may have been anybody's limit",
			verdict.Evidence{CgroupVersion: 2, MemoryTree: &oneKill, Exit: seen(137)},
			group, verdict.Ended, "", new(137), nil, "whether that ended it",
		},

		// Cgroup v1: no group kill, and counters of the one cgroup.
		{"v1: killed at the limit", v1(&oneKill, seen(137)), loose, verdict.OOMKilled, verdict.MemoryLimitExceeded, new(137), nil, "as if killed"},
		{"v1: exit not known", v1(&oneKill, unknown), loose, verdict.Ended, "", nil, nil, "whether that ended it"},
		{"v1: survived", v1(&oneKill, seen(0)), loose, verdict.Exited, "", new(0), new(0), "did not end it"},
		{"v1: M15, the limit was never met", v1(&killOnly, seen(137)), loose, verdict.OOMKilled, verdict.HostMemoryExhausted, new(137), nil, ""},
		{"v1: a kernel that does not count", v1(nil, seen(137)), loose, verdict.Ended, "", new(137), nil, ""},

		// P2: tasks.
		{"pids: a failing program", withPids(v2(none, none, seen(2)), 7), group, verdict.Exited, verdict.PidsLimitReached, new(2), new(0), "limit of 128 processes and threads refused to start a process 7 times"},
		{"pids: once", withPids(v2(none, none, seen(2)), 1), group, verdict.Exited, verdict.PidsLimitReached, new(2), new(0), "once"},
		{"pids: the exit code is left alone", withPids(v2(none, none, told(137, 9)), 7), group, verdict.Signaled, verdict.PidsLimitReached, new(137), new(9), ""},
		{"pids: exit not known", withPids(v2(none, none, unknown), 7), group, verdict.Ended, verdict.PidsLimitReached, nil, nil, ""},
		{"pids: coped with", withPids(v2(none, none, seen(0)), 7), group, verdict.Exited, "", new(0), new(0), ""},
		{"pids: memory comes first", withPids(v2(ownOOM, ownOOM, seen(137)), 7), group, verdict.OOMKilled, verdict.MemoryLimitExceeded, new(137), new(9), ""},
		{"pids: a kill that did not end it is told too", withPids(v2(oneKill, oneKill, unknown), 7), loose, verdict.Ended, verdict.PidsLimitReached, nil, nil, "7 times; the kernel killed a process"},
		{"pids: limit not known", withPids(v2(none, none, seen(1)), 2), verdict.Limits{}, verdict.Exited, verdict.PidsLimitReached, new(1), new(0), "the limit of processes"},
		{"strike: memory", struck(verdict.MemoryLimitExceeded, 2254857831, 2<<30, seen(137)), loose, verdict.LimitKilled, verdict.MemoryLimitExceeded, new(137), new(9), "used 2.1GiB of memory, and its limit is 2GiB: the supervisor ended it"},
		{"strike: memory, by a page", struck(verdict.MemoryLimitExceeded, 2<<30+4096, 2<<30, seen(137)), loose, verdict.LimitKilled, verdict.MemoryLimitExceeded, new(137), new(9), "used 2097156KiB of memory, and its limit is 2GiB"},
		{"strike: memory, an odd limit", struck(verdict.MemoryLimitExceeded, 300<<20, 1234567, seen(137)), loose, verdict.LimitKilled, verdict.MemoryLimitExceeded, new(137), new(9), "used 300MiB of memory, and its limit is 1234567 bytes"},
		{"strike: exit not known", struck(verdict.MemoryLimitExceeded, 3<<30, 2<<30, unknown), loose, verdict.LimitKilled, verdict.MemoryLimitExceeded, nil, nil, "used 3GiB"},
		{"strike: seen", struck(verdict.MemoryLimitExceeded, 3<<30, 2<<30, told(137, 9)), loose, verdict.LimitKilled, verdict.MemoryLimitExceeded, new(137), new(9), ""},
		{"strike: it ended by itself in between", struck(verdict.MemoryLimitExceeded, 3<<30, 2<<30, seen(3)), loose, verdict.Exited, verdict.MemoryLimitExceeded, new(3), new(0), "exited with code 3; the sandbox used 3GiB of memory, and its limit is 2GiB, and it ended before"},
		{"strike: it returned 137 in between, seen", struck(verdict.MemoryLimitExceeded, 3<<30, 2<<30, told(137, 0)), loose, verdict.Exited, verdict.MemoryLimitExceeded, new(137), new(0), "ended before"},
		{"strike: comes before a kill of the kernel", with(v2(ownOOM, ownOOM, seen(137)), verdict.WallTimeExceeded, 61e9, 60e9), group, verdict.LimitKilled, verdict.WallTimeExceeded, new(137), nil, "ran for 1m1s, and may run for 1m0s: the supervisor ended it"},
		{"strike: and refused forks", withPids(struck(verdict.CPUTimeExceeded, 5100e6, 5e9, told(143, 15)), 7), group, verdict.LimitKilled, verdict.CPUTimeExceeded, new(143), new(15), "used 5.1s of CPU time, and may use 5s"},
		{"strike: a time, by little", struck(verdict.CPUTimeExceeded, 5e9+1e6, 5e9, seen(137)), group, verdict.LimitKilled, verdict.CPUTimeExceeded, new(137), nil, "used 5.001s of CPU time, and may use 5s"},
		{"strike: a time, and SIGTERM was heeded", struck(verdict.WallTimeExceeded, 250e6, 200e6, seen(0)), group, verdict.LimitKilled, verdict.WallTimeExceeded, new(0), new(0), "ran for 250ms, and may run for 200ms"},
		{"strike: stalled", struck(verdict.MemoryStalled, 2<<30, 2<<30, seen(137)), loose, verdict.LimitKilled, verdict.MemoryStalled, new(137), new(9), "stood still at its memory limit, with 2GiB of 2GiB"},
		{"strike: tasks", struck(verdict.PidsLimitReached, 5000, 2048, seen(137)), loose, verdict.LimitKilled, verdict.PidsLimitReached, new(137), new(9), "had 5000 processes and threads, and its limit is 2048"},
		{"strike: for nothing that is known", struck("SANDBOX_\n", 1, 2, seen(137)), loose, verdict.Ended, "", new(137), nil, ""},

		{"pids: not counted", verdict.Evidence{CgroupVersion: 2, Exit: seen(1)}, group, verdict.Exited, "", new(1), new(0), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := verdict.Classify(tt.ev, tt.held)
			if got.Status != tt.status || got.Code != tt.code {
				t.Errorf("got %s %q, want %s %q", got.Status, got.Code, tt.status, tt.code)
			}
			if show(got.ExitCode) != show(tt.exit) || show(got.Signal) != show(tt.signal) {
				t.Errorf("got code %s signal %s, want code %s signal %s", show(got.ExitCode), show(got.Signal), show(tt.exit), show(tt.signal))
			}
			if !strings.Contains(got.Message, tt.says) {
				t.Errorf("message %q does not say %q", got.Message, tt.says)
			}
		})
	}
}

func show(n *int) string {
	data, _ := json.Marshal(n)
	return string(data)
}

// TestRetryable: only memory of the host comes back by itself, and a time may
// suffice on a host that has less to do; a limit of a cgroup above the sandbox does
// not.
func TestRetryable(t *testing.T) {
	host := verdict.Evidence{
		CgroupVersion: 2,
		Memory:        &verdict.MemoryEvents{OOMKill: 1},
		MemoryTree:    &verdict.MemoryEvents{OOMKill: 1},
	}
	own := host
	own.Memory = &verdict.MemoryEvents{OOM: 1, OOMKill: 1}
	refused := int64(3)
	for _, c := range []struct {
		name string
		ev   verdict.Evidence
		held verdict.Limits
		code verdict.Code
		want bool
	}{
		{"the host ran out", host, verdict.Limits{GroupKill: true}, verdict.HostMemoryExhausted, true},
		{"the host or a cgroup above ran out", host, verdict.Limits{GroupKill: true, MemoryAbove: true}, verdict.HostMemoryExhausted, false},
		{"the sandbox's own limit", own, verdict.Limits{GroupKill: true}, verdict.MemoryLimitExceeded, false},
		{"the limit of processes", verdict.Evidence{CgroupVersion: 2, PidsMax: &refused}, verdict.Limits{}, verdict.PidsLimitReached, false},
		{"a strike for memory", with(host, verdict.MemoryLimitExceeded, 2, 1), verdict.Limits{GroupKill: true}, verdict.MemoryLimitExceeded, false},
		{"a strike for a stall", with(host, verdict.MemoryStalled, 2, 1), verdict.Limits{GroupKill: true}, verdict.MemoryStalled, false},
		{"a strike for tasks", with(own, verdict.PidsLimitReached, 2, 1), verdict.Limits{}, verdict.PidsLimitReached, false},
		{"a strike for CPU time", with(own, verdict.CPUTimeExceeded, 2, 1), verdict.Limits{}, verdict.CPUTimeExceeded, false},
		{"a strike for time", with(own, verdict.WallTimeExceeded, 2, 1), verdict.Limits{}, verdict.WallTimeExceeded, true},
		{"no limit", verdict.Evidence{CgroupVersion: 2}, verdict.Limits{}, "", false},
	} {
		v := verdict.Classify(c.ev, c.held)
		if v.Code != c.code || v.Retryable != c.want {
			t.Errorf("%s: %q, retryable %v; want %q, %v", c.name, v.Code, v.Retryable, c.code, c.want)
		}
	}
}

// TestNoMemoryVerdictWithoutEvidence is the promise of this package: an exit,
// whatever it is, never makes a memory verdict.
func TestNoMemoryVerdictWithoutEvidence(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		ev, held := random(r, false)
		for _, m := range []*verdict.MemoryEvents{ev.Memory, ev.MemoryTree} {
			if m != nil {
				m.OOMKill = 0
			}
		}
		mustNotBlameMemory(t, ev, held)
	}
	// A kill alone is not the sandbox's own limit.
	for range 100_000 {
		ev, held := random(r, false)
		if ev.Memory != nil {
			ev.Memory.OOM = 0
		}
		if got := verdict.Classify(ev, held); got.Code == verdict.MemoryLimitExceeded {
			t.Fatalf("%+v of %s", got, text(ev, held))
		}
	}
}

// strikeCodes are those that a supervisor records.
var strikeCodes = []verdict.Code{
	verdict.MemoryLimitExceeded, verdict.MemoryStalled, verdict.PidsLimitReached, verdict.CPUTimeExceeded, verdict.WallTimeExceeded,
}

// TestAStrikeIsTheVerdict whatever else is in the evidence, and the exit is left
// alone.
func TestAStrikeIsTheVerdict(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	count := 0
	for range 100_000 {
		ev, held := random(r, true)
		got := verdict.Classify(ev, held)
		if ev.Strike == nil {
			if got.Status == verdict.LimitKilled {
				t.Fatalf("%+v of %s", got, text(ev, held))
			}
			continue
		}
		count++
		killed := got.Status == verdict.LimitKilled
		atOnce := ev.Strike.Code != verdict.CPUTimeExceeded && ev.Strike.Code != verdict.WallTimeExceeded
		bySIGKILL := ev.Exit.Code == nil || ev.Exit.Signal != nil && *ev.Exit.Signal == 9 || ev.Exit.Signal == nil && *ev.Exit.Code == 137
		if got.Code != ev.Strike.Code || killed != (bySIGKILL || !atOnce) || show(got.ExitCode) != show(ev.Exit.Code) {
			t.Fatalf("%+v of %s", got, text(ev, held))
		}
	}
	if count < 1000 {
		t.Fatalf("only %d strikes", count)
	}
}

func mustNotBlameMemory(t *testing.T, ev verdict.Evidence, held verdict.Limits) {
	t.Helper()
	got := verdict.Classify(ev, held)
	if got.Status == verdict.OOMKilled || got.Code == verdict.MemoryLimitExceeded || got.Code == verdict.HostMemoryExhausted {
		t.Fatalf("%+v of %s", got, text(ev, held))
	}
}

func text(ev verdict.Evidence, held verdict.Limits) string {
	data, _ := json.Marshal(struct {
		Evidence verdict.Evidence
		Held     verdict.Limits
	}{ev, held})
	return string(data)
}

// random makes evidence in which everything may be there or not.
func random(r *rand.Rand, strikes bool) (verdict.Evidence, verdict.Limits) {
	count := func() int64 { return int64(r.IntN(3)) }
	events := func() *verdict.MemoryEvents {
		if r.IntN(4) == 0 {
			return nil
		}
		return &verdict.MemoryEvents{OOM: count(), OOMKill: count(), OOMGroupKill: count(), High: count(), Max: count()}
	}
	ev := verdict.Evidence{CgroupVersion: r.IntN(3), Memory: events(), MemoryTree: events(), Exit: unknown}
	if r.IntN(3) != 0 {
		ev.PidsMax = new(count())
	}
	if strikes && r.IntN(3) == 0 {
		ev = with(ev, strikeCodes[r.IntN(len(strikeCodes))], count(), count())
	}
	if r.IntN(4) != 0 {
		ev.Exit = seen([]int{0, 1, 128, 129, 137, 143, 192, 193, 255, r.IntN(256)}[r.IntN(10)])
		if r.IntN(2) == 0 {
			ev.Exit.Signal = new([]int{0, 9, 15}[r.IntN(3)])
		}
	}
	return ev, verdict.Limits{GroupKill: r.IntN(2) == 0, MayProtect: r.IntN(4) == 0}
}

// FuzzClassify checks that there is a verdict for everything that can be read
// back from a state, and that it is consistent.
func FuzzClassify(f *testing.F) {
	for _, seed := range []string{
		`{}`,
		`{"Evidence":{"cgroup_version":2,"memory_events_local":{"oom":1,"oom_kill":1},"memory_events":{"oom":1,"oom_kill":1},"exit":{"source":"wait","code":137}},"Held":{"group_kill":true}}`,
		`{"Evidence":{"cgroup_version":1,"memory_events_local":{"oom_kill":1},"pids_max":9,"exit":{"code":-1,"signal":-9}},"Held":{"memory":{"n":-1},"pids":{"none":true}}}`,
		`{"Evidence":{"exit":{"code":9223372036854775807,"signal":9223372036854775807}}}`,
		`{"Evidence":{"exit":{"code":-9223372036854775808}}}`,
		`{"Evidence":{"exit":{"code":137},"strike":{"code":"SANDBOX_MEMORY_LIMIT_EXCEEDED","limit":9223372036854775807,"measured":-9223372036854775808}}}`,
		`{"Evidence":{"exit":{"code":3},"strike":{"code":"SANDBOX_WALL_TIME_EXCEEDED","limit":-1,"measured":9223372036854775807}}}`,
		`{"Evidence":{"exit":{"source":"unknown"},"strike":{"code":"SANDBOX_PIDS_LIMIT_REACHED"}}}`,
	} {
		f.Add([]byte(seed))
	}
	statuses := map[verdict.Status]bool{verdict.Exited: true, verdict.Signaled: true, verdict.Ended: true, verdict.OOMKilled: true, verdict.LimitKilled: true}
	codes := map[verdict.Code]bool{"": true, verdict.MemoryLimitExceeded: true, verdict.HostMemoryExhausted: true, verdict.PidsLimitReached: true}
	for _, code := range strikeCodes {
		codes[code] = true
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var in struct {
			Evidence verdict.Evidence
			Held     verdict.Limits
		}
		if json.Unmarshal(data, &in) != nil {
			return
		}
		got := verdict.Classify(in.Evidence, in.Held)
		if !statuses[got.Status] || !codes[got.Code] {
			t.Errorf("no such verdict: %+v", got)
		}
		if got.Message == "" || strings.ContainsAny(got.Message, "\n\r") || !utf8.ValidString(got.Message) {
			t.Errorf("message %q is not one sentence", got.Message)
		}
		strike := in.Evidence.Strike
		isStruck := strike != nil && slices.Contains(strikeCodes, strike.Code)
		if isStruck && got.Code != strike.Code || got.Status == verdict.LimitKilled && !isStruck {
			t.Errorf("the verdict is not the strike's: %+v", got)
		}
		byOOM := got.Code == verdict.MemoryLimitExceeded || got.Code == verdict.HostMemoryExhausted
		if (got.Status == verdict.OOMKilled) != (byOOM && !isStruck) {
			t.Errorf("status and code differ: %+v", got)
		}
		if got.ExitCode == nil != (in.Evidence.Exit.Code == nil) {
			t.Errorf("the exit code is that of the evidence: %+v", got)
		}
		if got.Signal != nil && got.ExitCode == nil {
			t.Errorf("a signal of an exit that nobody saw: %+v", got)
		}
		if got.Status != verdict.LimitKilled && (got.Status == verdict.Exited) != (got.Signal != nil && *got.Signal == 0) {
			t.Errorf("EXITED is an end without a signal: %+v", got)
		}
	})
}
