package harvest_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/harvest"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

const scope = "/system.slice/docker-0123456789ab.scope"

// started returns the state of a sandbox that has ended, and the recorded tree
// in which its cgroup still is.
func started(t *testing.T) (st *state.State, tree string) {
	t.Helper()
	tree = cgrouptest.Tree(t, "v2")
	held := limits.Limit(512 << 20)
	return &state.State{
		ID: "0123456789ab", Root: "/run/runc", RealRoot: t.TempDir(), Runtime: "/usr/sbin/runc", Nonce: result.NewNonce(time.Now()), Bundle: t.TempDir(),
		CreatedAt: time.Now().Add(-time.Minute), Results: result.Store{Dir: filepath.Join(t.TempDir(), "results")},
		Started: &state.Started{
			Init: procfs.Process{Pid: 1 << 30, StartTime: 1}, // no pid is that large
			Cgroup: &cgroup.Paths{Version: 2, Places: map[string]cgroup.Place{
				"": {Mount: filepath.Join(tree, "sys/fs/cgroup"), Path: scope},
			}},
			Held: verdict.Limits{Memory: &held, GroupKill: true},
		},
	}, tree
}

// noStates is a store in which the supervisor has recorded nothing.
var noStates = state.Store{Dir: "/nonexistent"}

func TestCollect(t *testing.T) {
	st, _ := started(t)
	harvest.Collect(noStates, st)
	if len(st.Warnings) != 0 {
		t.Errorf("warnings %q", st.Warnings)
	}
	if ev := st.Evidence; ev.CgroupVersion != 2 || ev.Memory.OOM != 1 || ev.MemoryTree.OOMKill != 5 || *ev.PidsMax != 7 {
		t.Errorf("evidence %+v", ev)
	}
	if u := st.Usage; u == nil || *u.MemoryPeakBytes != 512<<20 || *u.PidsPeak != 2048 || *u.CPUUsec != 2500000 || *u.Pids != 12 {
		t.Errorf("usage %+v", u)
	}
}

// TestScopeRanOut is crun's systemd driver: the scope above has the limit as well,
// and it is the one that ran out. The counters of the cgroup below know of no limit.
func TestScopeRanOut(t *testing.T) {
	st, tree := started(t)
	inner := st.Started.Cgroup.Places[""]
	unit := inner
	inner.Path += "/container"
	for _, name := range []string{"memory.events", "memory.events.local"} {
		cgrouptest.Write(t, tree, "sys/fs/cgroup"+inner.Path+"/"+name, "max 1\noom 0\noom_kill 1\noom_group_kill 0\n")
	}
	cgrouptest.Write(t, tree, "sys/fs/cgroup"+inner.Path+"/cgroup.procs", "")
	st.Started.Cgroup.Places[""] = inner
	if r := harvest.Live(noStates, st); r.ErrorCode != verdict.HostMemoryExhausted {
		t.Errorf("without its unit: %s %s", r.Status, r.ErrorCode)
	}
	st.Evidence, st.Started.Cgroup.Unit = nil, &unit
	if r := harvest.Live(noStates, st); r.Status != verdict.OOMKilled || r.ErrorCode != verdict.MemoryLimitExceeded {
		t.Errorf("%s %s %q", r.Status, r.ErrorCode, r.Warnings)
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	tests := []struct {
		name   string
		change func(st *state.State, tree string)
		says   string
		events bool // are known
	}{
		{"not started", func(st *state.State, _ string) { st.Started = nil }, "usage and events are not known: the sandbox was not started", false},
		{"no cgroup", func(st *state.State, _ string) { st.Started.Cgroup = nil }, "usage and events are not known: no cgroup", false},
		{"odd paths", func(st *state.State, _ string) { st.Started.Cgroup.Version = 7 }, "usage and events are not known: saved cgroup paths", false},
		{"removed", func(_ *state.State, tree string) {
			cgrouptest.Remove(t, tree, "sys/fs/cgroup"+scope)
		}, "it was removed before agentbox was called", false},
		{"unreadable usage", func(_ *state.State, tree string) {
			cgrouptest.Write(t, tree, "sys/fs/cgroup"+scope+"/memory.peak", "x\n")
		}, "usage is not known: ", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st, tree := started(t)
			tt.change(st, tree)
			harvest.Collect(noStates, st)
			harvest.Collect(noStates, st) // a delete that was refused, and another
			if len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], tt.says) {
				t.Errorf("warnings %q, want one with %q", st.Warnings, tt.says)
			}
			if st.Usage != nil || (st.Evidence.Memory != nil) != tt.events {
				t.Errorf("usage %+v, evidence %+v", st.Usage, st.Evidence)
			}
		})
	}
}

// TestCollectAgain covers the calls after the first: a delete that was refused, a
// sweep after a crash, the delete after run --keep.
func TestCollectAgain(t *testing.T) {
	st, tree := started(t)
	harvest.Collect(noStates, st)
	cgrouptest.Write(t, tree, "sys/fs/cgroup"+scope+"/pids.events", "max 9\n")
	harvest.Collect(noStates, st)
	if *st.Evidence.PidsMax != 9 {
		t.Errorf("not read again: %+v", st.Evidence)
	}
	cgrouptest.Remove(t, tree, "sys/fs/cgroup"+scope)
	harvest.Collect(noStates, st)
	if st.Evidence.PidsMax == nil || st.Usage == nil || len(st.Warnings) != 0 {
		t.Errorf("what was known is lost: %+v, warnings %q", st.Evidence, st.Warnings)
	}
	code := 3
	st.Evidence.Exit = verdict.Exit{Source: verdict.ExitWait, Code: &code}
	harvest.Collect(noStates, st)
	if got := st.Evidence.Exit; got.Source != verdict.ExitWait || *got.Code != 3 {
		t.Errorf("the exit that was seen is lost: %+v", got)
	}
}

// TestExitJSON has the file that containerd 2.4 writes: a go-runc Exit as
// encoding/json writes it.
func TestExitJSON(t *testing.T) {
	const pid = 4242
	record := func(pid int, status any) string {
		return fmt.Sprintf(`{"Timestamp":%q,"Pid":%d,"Status":%v}`, time.Now().Format(time.RFC3339Nano), pid, status)
	}
	tests := []struct {
		name    string
		content string
		code    int // -1: not known
	}{
		{"ended with 0", record(pid, 0), 0},
		{"a folded signal", record(pid, 137), 137},
		{"with a newline", record(pid, 3) + "\n", 3},
		{"of an earlier container of the bundle", record(pid+1, 1), -1},
		{"from before this one was created", `{"Timestamp":"2001-01-01T00:00:00Z","Pid":4242,"Status":1}`, -1},
		{"no status", fmt.Sprintf(`{"Timestamp":%q,"Pid":4242}`, time.Now().Format(time.RFC3339Nano)), -1},
		{"below 0", record(pid, -1), -1},
		{"above 255", record(pid, 256), -1},
		{"no number", record(pid, `"0"`), -1},
		{"another format", `{"exit_status":0,"pid":4242}`, -1},
		{"empty", "", -1},
		{"cut off", `{"Timestamp":"2026-`, -1},
		{"far too long", `{"x":"` + strings.Repeat("a", 1<<20) + `"}`, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st, _ := started(t)
			st.Started.Init.Pid = pid
			if err := os.WriteFile(filepath.Join(st.Bundle, "exit.json"), []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			harvest.Collect(noStates, st)
			mustExit(t, st, tt.code)
		})
	}
}

func mustExit(t *testing.T, st *state.State, code int) {
	t.Helper()
	got := st.Evidence.Exit
	if code < 0 {
		if got.Source != verdict.ExitUnknown || got.Code != nil {
			t.Errorf("got %+v, want not known", got)
		}
		return
	}
	if got.Source != verdict.ExitBundle || got.Code == nil || *got.Code != code || got.Signal != nil {
		t.Errorf("got %+v, want %d", got, code)
	}
}

// TestExitJSONIsNoTrap covers a bundle that somebody else prepared.
func TestExitJSONIsNoTrap(t *testing.T) {
	st, _ := started(t)
	name := filepath.Join(st.Bundle, "exit.json")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	harvest.Collect(noStates, st) // does not wait for a writer
	mustExit(t, st, -1)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "target")
	content := fmt.Sprintf(`{"Timestamp":%q,"Pid":%d,"Status":0}`, time.Now().Format(time.RFC3339Nano), st.Started.Init.Pid)
	if err := os.WriteFile(target, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
	harvest.Collect(noStates, st)
	mustExit(t, st, -1)
}

func TestFinish(t *testing.T) {
	states := state.Store{Dir: filepath.Join(t.TempDir(), "agentbox")}
	st, _ := started(t)
	if err := states.Create(st); err != nil {
		t.Fatal(err)
	}
	harvest.Collect(noStates, st)
	if err := harvest.Finish(states, st); err != nil {
		t.Fatal(err)
	}
	kept, err := st.Results.Newest(st.ID, 9)
	if err != nil || len(kept) != 1 {
		t.Fatalf("%d results, %v", len(kept), err)
	}
	r := kept[0]
	if r.Status != verdict.OOMKilled || r.ErrorCode != verdict.MemoryLimitExceeded || r.ExitCode != nil || r.FinishedAt == nil {
		t.Errorf("%+v", r)
	}
	if r.Usage == nil || r.Usage.MemoryBytes != nil || r.Usage.Pids != nil {
		t.Errorf("usage %+v: nothing is in use any more", r.Usage)
	}
	mustBeGone(t, states, st)
}

func mustBeGone(t *testing.T, states state.Store, st *state.State) {
	t.Helper()
	if _, err := states.Load(st.Root, st.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state is still there: %v", err)
	}
}

func TestFinishOfWhatNeverRan(t *testing.T) {
	states := state.Store{Dir: filepath.Join(t.TempDir(), "agentbox")}
	st, _ := started(t)
	st.Started = nil
	if err := states.Create(st); err != nil {
		t.Fatal(err)
	}
	if err := harvest.Finish(states, st); err != nil {
		t.Fatal(err)
	}
	if ids, err := st.Results.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("results of %v, %v", ids, err)
	}
	mustBeGone(t, states, st)
}

func TestFinishWithoutRoomForTheResult(t *testing.T) {
	states := state.Store{Dir: filepath.Join(t.TempDir(), "agentbox")}
	st, _ := started(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st.Results.Dir = filepath.Join(file, "results")
	if err := states.Create(st); err != nil {
		t.Fatal(err)
	}
	if err := harvest.Finish(states, st); err == nil {
		t.Error("no error")
	}
	mustBeGone(t, states, st)
}

// TestFinishWithoutEvidence is a container that is swept long after its end.
func TestFinishWithoutEvidence(t *testing.T) {
	states := state.Store{Dir: filepath.Join(t.TempDir(), "agentbox")}
	st, _ := started(t)
	if err := harvest.Finish(states, st); err != nil {
		t.Fatal(err)
	}
	kept, err := st.Results.Newest(st.ID, 1)
	if err != nil || len(kept) != 1 || kept[0].Status != verdict.Ended || kept[0].Usage != nil {
		t.Errorf("%+v, %v", kept, err)
	}
}

func TestLive(t *testing.T) {
	process := exec.Command("sleep", "60")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}()
	alive, err := procfs.FindProcess(process.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	stale := verdict.Evidence{CgroupVersion: 2, Exit: verdict.Exit{Source: verdict.ExitUnknown}}
	code := 3
	waited := verdict.Evidence{CgroupVersion: 2, Exit: verdict.Exit{Source: verdict.ExitWait, Code: &code}}
	tests := []struct {
		name   string
		change func(st *state.State)
		status verdict.Status
		kills  int64
	}{
		{"created", func(st *state.State) { st.Started = nil }, verdict.Created, 0},
		{"running", func(st *state.State) { st.Started.Init = alive }, verdict.Running, 5},
		{"running, after a delete that was refused", func(st *state.State) { st.Started.Init, st.Evidence = alive, &stale }, verdict.Running, 5},
		{"ended", func(*state.State) {}, verdict.OOMKilled, 5},
		{"ended, and the exit is known already", func(st *state.State) { st.Evidence = &waited }, verdict.Exited, 0},
		{"no pid, and the low-level runtime has it", func(st *state.State) {
			st.Started.Init = procfs.Process{}
			if err := os.Mkdir(filepath.Join(st.RealRoot, st.ID), 0o700); err != nil {
				t.Fatal(err)
			}
		}, verdict.Running, 5},
		{"no pid, and the low-level runtime has it no more", func(st *state.State) { st.Started.Init = procfs.Process{} }, verdict.OOMKilled, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st, _ := started(t)
			tt.change(st)
			r := harvest.Live(noStates, st)
			if r.Status != tt.status || r.Events.OOMKill != tt.kills {
				t.Errorf("%s with %d kills, want %s with %d", r.Status, r.Events.OOMKill, tt.status, tt.kills)
			}
			ended := !slices.Contains([]verdict.Status{verdict.Created, verdict.Running}, tt.status)
			if (r.FinishedAt != nil) != ended {
				t.Errorf("finished at %v", r.FinishedAt)
			}
			if r.Usage != nil && (r.Usage.MemoryBytes == nil) != ended {
				t.Errorf("usage %+v", r.Usage)
			}
		})
	}
}

func TestName(t *testing.T) {
	dir := t.TempDir()
	st := &state.State{Name: "from-the-specification", EngineDir: dir}
	if got := harvest.Name(st); got != "from-the-specification" {
		t.Errorf("got %q", got)
	}
	for _, name := range []string{"agent-7", "renamed"} {
		if err := os.WriteFile(filepath.Join(dir, "config.v2.json"), []byte(`{"Name":"/`+name+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := harvest.Name(st); got != name {
			t.Errorf("got %q, want %q", got, name)
		}
	}
}

// TestFinishOfAFailedStart is run --detach of a program that is not there: the
// hook read the limits back, and the low-level runtime failed after it.
func TestFinishOfAFailedStart(t *testing.T) {
	code := 137
	none := verdict.Evidence{Exit: verdict.Exit{Source: verdict.ExitUnknown}}
	tests := []struct {
		name   string
		change func(st *state.State)
		kept   int
	}{
		{"nothing was seen of it", func(*state.State) {}, 0},
		{"nor found", func(st *state.State) { st.Evidence = &none }, 0},
		{"the pid was left", func(st *state.State) {
			if err := os.WriteFile(st.PidFile, []byte("7"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, 1},
		{"the caller's pid file may have been removed", func(st *state.State) { st.PidFile = filepath.Join(st.Bundle, "pid") }, 1},
		{"its cgroup was read", func(st *state.State) { st.Evidence = &verdict.Evidence{CgroupVersion: 2} }, 1},
		{"its exit was seen", func(st *state.State) {
			st.Evidence = &verdict.Evidence{Exit: verdict.Exit{Source: verdict.ExitWait, Code: &code}}
		}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			states := state.Store{Dir: filepath.Join(t.TempDir(), "agentbox")}
			st, _ := started(t)
			st.PidFile = states.PidFile(st.Root, st.ID)
			if err := states.Create(st); err != nil {
				t.Fatal(err)
			}
			tt.change(st)
			if err := harvest.Finish(states, st); err != nil {
				t.Fatal(err)
			}
			if kept, err := st.Results.All(); err != nil || len(kept) != tt.kept {
				t.Errorf("%d results, want %d, %v", len(kept), tt.kept, err)
			}
			mustBeGone(t, states, st)
		})
	}
}

// TestEndIsWhatDeleteKeeps has a shim tell how a sandbox ended, and then a delete
// of which the cgroup and the bundle say something else.
func TestEndIsWhatDeleteKeeps(t *testing.T) {
	st, tree := started(t)
	states := state.Store{Dir: t.TempDir()}
	if err := states.Create(st); err != nil {
		t.Fatal(err)
	}
	code := 137
	at := time.Now()
	told, err := harvest.End(states, st, verdict.Exit{Source: verdict.ExitContainerd, Code: &code}, at)
	if err != nil {
		t.Fatal(err)
	}
	if told.Status != verdict.OOMKilled || told.ExitSource != verdict.ExitContainerd || *told.ExitCode != 137 || !told.FinishedAt.Equal(at) {
		t.Errorf("the result is %+v", told)
	}
	cgrouptest.Remove(t, tree, "sys/fs/cgroup"+scope)
	record := fmt.Sprintf(`{"Timestamp":%q,"Pid":%d,"Status":3}`, time.Now().Format(time.RFC3339Nano), st.Started.Init.Pid)
	if err := os.WriteFile(filepath.Join(st.Bundle, "exit.json"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	later, err := states.Load(st.Root, st.ID)
	if err != nil {
		t.Fatal(err)
	}
	harvest.Collect(states, later)
	if err := harvest.Finish(states, later); err != nil {
		t.Fatal(err)
	}
	kept, err := st.Results.Newest(st.ID, 1)
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept %v, %v", kept, err)
	}
	if k := kept[0]; k.Status != told.Status || k.ExitSource != told.ExitSource || *k.ExitCode != 137 || k.Events != told.Events || k.Message != told.Message {
		t.Errorf("kept %+v, told %+v", k, told)
	}
}

// TestAStrikeOfTheSupervisorIsTheVerdict also where there is no cgroup and nobody
// saw the exit.
func TestAStrikeOfTheSupervisorIsTheVerdict(t *testing.T) {
	strike := verdict.Strike{Code: verdict.MemoryLimitExceeded, Limit: 1 << 30, Measured: 3 << 29, At: time.Now().UTC()}
	for name, change := range map[string]func(st *state.State){
		"a cgroup":  func(*state.State) {},
		"no cgroup": func(st *state.State) { st.Started.Cgroup = nil },
	} {
		t.Run(name, func(t *testing.T) {
			st, _ := started(t)
			change(st)
			states := state.Store{Dir: t.TempDir()}
			st.PidFile = states.PidFile(st.Root, st.ID) // which nobody left
			if err := states.Create(st); err != nil {
				t.Fatal(err)
			}
			if err := states.PutStrike(st.Root, st.ID, strike); err != nil {
				t.Fatal(err)
			}
			harvest.Collect(states, st)
			if err := harvest.Finish(states, st); err != nil {
				t.Fatal(err)
			}
			kept, err := st.Results.Newest(st.ID, 1)
			if err != nil || len(kept) != 1 {
				t.Fatalf("kept %v, %v", kept, err)
			}
			if k := kept[0]; k.Status != verdict.LimitKilled || k.ErrorCode != strike.Code || k.Evidence.Strike == nil || *k.Evidence.Strike != strike || !strings.Contains(k.Message, "1.5GiB") {
				t.Errorf("kept %+v with the strike %+v", k, k.Evidence.Strike)
			}
		})
	}
}

func TestAStrikeThatCannotBeReadIsSaid(t *testing.T) {
	st, _ := started(t)
	states := state.Store{Dir: t.TempDir()}
	if err := states.Create(st); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(states.Path(st.Root, st.ID), "strike"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	harvest.Collect(states, st)
	if len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "whether the supervisor ended the sandbox is not known") {
		t.Errorf("warnings %q", st.Warnings)
	}
}

func TestEndOfWhatWasNotStarted(t *testing.T) {
	st, _ := started(t)
	st.Started = nil
	if r, err := harvest.End(state.Store{Dir: t.TempDir()}, st, verdict.Exit{}, time.Now()); r != nil || err != nil {
		t.Errorf("result %+v, %v", r, err)
	}
}

func TestOOMKills(t *testing.T) {
	st, tree := started(t)
	if n := harvest.OOMKills(st); n != 5 {
		t.Errorf("%d kills, want those of the tree", n)
	}
	cgrouptest.Remove(t, tree, "sys/fs/cgroup"+scope)
	if n := harvest.OOMKills(st); n != 0 {
		t.Errorf("%d kills in a cgroup that is gone", n)
	}
}
