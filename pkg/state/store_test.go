package state_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
)

func store(t *testing.T) state.Store {
	t.Helper()
	return state.Store{Dir: filepath.Join(t.TempDir(), "agentbox")}
}

// of makes a state whose creator is gone and whose container is nowhere.
func of(root, id string) *state.State {
	return &state.State{
		Version: state.Version, ID: id, Root: root, RealRoot: root, Nonce: result.NewNonce(time.Now()),
		Runtime: "/usr/sbin/runc", CreatedAt: time.Now(),
	}
}

func create(t *testing.T, s state.Store, all ...*state.State) {
	t.Helper()
	for _, st := range all {
		if err := s.Create(st); err != nil {
			t.Fatal(err)
		}
	}
}

// deadPid returns the pid of a process that has ended and was waited for.
func deadPid(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func self(t *testing.T) procfs.Process {
	t.Helper()
	p, err := procfs.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLifeOfAState(t *testing.T) {
	s := store(t)
	if _, err := s.Load("/run/runc", "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before create: %v", err)
	}
	st := of("/run/runc", "a")
	create(t, s, st)
	if got := s.Runtime("/run/runc", "a"); got != st.Runtime {
		t.Errorf("runtime %q", got)
	}
	if got := s.Runtime("/run/other", "a"); got != "" {
		t.Errorf("runtime of the same id elsewhere: %q", got)
	}
	st.Name = "agent-7"
	if err := s.Update(st); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load("/run/runc", "a")
	if err != nil || got.Name != "agent-7" || got.Nonce != st.Nonce {
		t.Errorf("%+v, %v", got, err)
	}
	if err := s.Remove("/run/runc", "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("/run/runc", "a"); err != nil {
		t.Errorf("removing it again: %v", err)
	}
	if _, err := os.Lstat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is left in %s: %v", s.Dir, err)
	}
	if err := s.Update(st); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an update brings no state back: %v", err)
	}
}

func TestCreateIsExclusive(t *testing.T) {
	s := store(t)
	first, second := of("/run/runc", "a"), of("/run/runc", "a")
	create(t, s, first)
	if err := s.Create(second); !errors.Is(err, state.ErrExists) {
		t.Errorf("got %v, want ErrExists", err)
	}
	got, err := s.Load("/run/runc", "a")
	if err != nil || got.Nonce != first.Nonce {
		t.Errorf("the first state is not what it was: %+v, %v", got, err)
	}
	create(t, s, of("/run/other", "a")) // another container of the same id
	entries, _ := os.ReadDir(filepath.Dir(s.Path("/run/runc", "a")))
	if len(entries) != 1 {
		t.Errorf("the create that failed left something: %v", entries)
	}
}

func TestOnlyOneCreateWins(t *testing.T) {
	s := store(t)
	var wg sync.WaitGroup
	won := make(chan string, 16)
	for range cap(won) {
		st := of("/run/runc", "a")
		wg.Go(func() {
			switch err := s.Create(st); {
			case err == nil:
				won <- st.Nonce
			case !errors.Is(err, state.ErrExists):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d creates won", len(won))
	}
	if got, err := s.Load("/run/runc", "a"); err != nil || got.Nonce != <-won {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestCreateAndRemoveRace makes the folder of the root come and go under the
// creates of others.
func TestCreateAndRemoveRace(t *testing.T) {
	s := store(t)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 200 {
				st := of("/run/runc", fmt.Sprintf("w%d-%d", w, i))
				if err := s.Create(st); err != nil {
					t.Error(err)
					return
				}
				if err := s.Update(st); err != nil {
					t.Error(err)
				}
				if err := s.Remove(st.Root, st.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			if _, err := s.List(); err != nil {
				t.Error(err)
			}
			if _, err := s.Orphans(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if _, err := os.Lstat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}

func TestRootsAndIDs(t *testing.T) {
	long := "/run/" + strings.Repeat("very-long-folder/", 40) + "runc"
	roots := []string{"/run/runc", "/", "/run/%2Frunc", "/run/%25", "/run/a b\n", long, long + "2", "/run/" + strings.Repeat("%", 70)}
	ids := []string{"a", ".tmp-1-x", ".hidden", "-", "+x", strings.Repeat("i", 255), "state.json"}
	s := store(t)
	for _, root := range roots {
		for _, id := range ids {
			create(t, s, of(root, id))
		}
	}
	refs, err := s.List()
	if err != nil || len(refs) != len(roots)*len(ids) {
		t.Fatalf("%d listed, want %d: %v", len(refs), len(roots)*len(ids), err)
	}
	for _, ref := range refs {
		st, err := s.Load(ref.Root, ref.ID)
		if err != nil || st.Root != ref.Root || st.ID != ref.ID {
			t.Errorf("%q %q: %v", ref.Root, ref.ID, err)
		}
		if got, want := s.PidFile(ref.Root, ref.ID), filepath.Join(s.Path(ref.Root, ref.ID), "pid"); got != want {
			t.Errorf("pid file %s, want %s", got, want)
		}
		if err := s.Remove(ref.Root, ref.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}

func TestStateIsRootOnly(t *testing.T) {
	s := store(t)
	create(t, s, of("/run/runc", "a"))
	dir := s.Path("/run/runc", "a")
	for path, want := range map[string]fs.FileMode{
		s.Dir: 0o700, filepath.Dir(dir): 0o700, dir: 0o700, filepath.Join(dir, "state.json"): 0o600,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
	}
}

func TestOrphans(t *testing.T) {
	init := exec.Command("sleep", "60")
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = init.Process.Kill()
		_ = init.Wait()
	}()
	alive, err := procfs.FindProcess(init.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	reused := alive
	reused.StartTime++
	dead := procfs.Process{Pid: deadPid(t), StartTime: 1}

	low := t.TempDir() // the low-level runtime's folder
	other := t.TempDir()
	pidFile := func(pid int) string {
		name := filepath.Join(t.TempDir(), "pid")
		if err := os.WriteFile(name, []byte(strconv.Itoa(pid)), 0o600); err != nil {
			t.Fatal(err)
		}
		// The clock of files is coarse: a create takes longer than its tick.
		if err := os.Chtimes(name, time.Time{}, time.Now()); err != nil {
			t.Fatal(err)
		}
		return name
	}
	tests := []struct {
		name   string
		change func(st *state.State)
		orphan bool
	}{
		{"nothing-is-left", func(*state.State) {}, true},
		{"creator-alive", func(st *state.State) { st.Creator = self(t) }, false},
		{"creator-dead", func(st *state.State) { st.Creator = dead }, true},
		{"creator-pid-used-again", func(st *state.State) { st.Creator = reused }, true},
		{"init-alive", func(st *state.State) { st.Started = &state.Started{Init: alive} }, false},
		{"init-dead", func(st *state.State) { st.Started = &state.Started{Init: dead} }, true},
		{"init-pid-used-again", func(st *state.State) { st.Started = &state.Started{Init: reused} }, true},
		{"init-dead-creator-alive", func(st *state.State) { st.Creator, st.Started = self(t), &state.Started{Init: dead} }, true},
		{"created-not-started", func(st *state.State) { st.Creator, st.PidFile = dead, pidFile(init.Process.Pid) }, false},
		{"created-and-gone", func(st *state.State) { st.Creator, st.PidFile = dead, pidFile(dead.Pid) }, true},
		{"pid-file-of-an-earlier-run", func(st *state.State) {
			st.Creator, st.PidFile = dead, pidFile(init.Process.Pid)
			st.CreatedAt = time.Now().Add(time.Millisecond)
		}, true},
		{"pid-file-missing", func(st *state.State) { st.PidFile = filepath.Join(low, "no-such-file") }, true},
		{"low-level-folder", func(st *state.State) { mkdir(t, filepath.Join(low, st.ID)) }, false},
		{"low-level-folder-elsewhere", func(st *state.State) { st.RealRoot = other; mkdir(t, filepath.Join(other, st.ID)) }, false},
	}
	s := store(t)
	want := map[string]bool{}
	for _, tt := range tests {
		st := of(low, tt.name)
		tt.change(st)
		create(t, s, st)
		want[tt.name] = tt.orphan
	}
	orphans, err := s.Orphans()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, st := range orphans {
		got[st.ID] = true
	}
	for id, orphan := range want {
		if got[id] != orphan {
			t.Errorf("%s: orphan is %t, want %t", id, got[id], orphan)
		}
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestHalfWritten(t *testing.T) {
	s := store(t)
	create(t, s, of("/run/runc", "a"))
	dir := filepath.Dir(s.Path("/run/runc", "a"))
	mine := filepath.Join(dir, fmt.Sprintf("~tmp-%d-1", os.Getpid()))
	dead := filepath.Join(dir, fmt.Sprintf("~tmp-%d-1", deadPid(t)))
	odd := filepath.Join(dir, "~tmp-x")
	for _, d := range []string{mine, dead, odd} {
		mkdir(t, d)
	}
	if _, err := s.Orphans(); err != nil {
		t.Fatal(err)
	}
	for d, there := range map[string]bool{mine: true, dead: false, odd: true} {
		if _, err := os.Lstat(d); (err == nil) != there {
			t.Errorf("%s is there: %t, want %t", d, err == nil, there)
		}
	}
	refs, err := s.List()
	if err != nil || len(refs) != 1 {
		t.Errorf("listed %v, %v", refs, err)
	}
}

func TestBrokenState(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "cut off": `{"version":1,"id":"a`, "not an object": `[1]`, "wrong type": `{"id":7}`, "nul": "\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t)
			create(t, s, of("/run/runc", "a"), of("/run/runc", "b"))
			file := filepath.Join(s.Path("/run/runc", "a"), "state.json")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Load("/run/runc", "a"); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("the error does not name the file: %v", err)
			}
			orphans, err := s.Orphans()
			if err == nil {
				t.Error("no error about the broken one")
			}
			if len(orphans) != 1 || orphans[0].ID != "b" {
				t.Errorf("the others are not found: %v", orphans)
			}
			if got := s.Runtime("/run/runc", "a"); got == "" {
				t.Error("the runtime can be read without the state")
			}
			if err := s.Remove("/run/runc", "a"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestUnreadableFolder covers a user who may not look.
func TestUnreadableFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := state.Store{Dir: file}
	if _, err := s.List(); err == nil {
		t.Error("no error")
	}
	if err := s.Create(of("/run/runc", "a")); err == nil {
		t.Error("no error")
	}
}

func TestStateSurvivesJSON(t *testing.T) {
	st := of("/run/runc", "a")
	st.Creator = self(t)
	data, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	var back state.State
	if err := json.Unmarshal(data, &back); err != nil || back.Creator != st.Creator {
		t.Errorf("%+v, %v", back.Creator, err)
	}
	if r := back.Result(); r.Status != "CREATED" || r.Nonce != st.Nonce || r.ID != "a" {
		t.Errorf("%+v", r)
	}
}

func TestReadPid(t *testing.T) {
	tests := []struct {
		content string
		pid     int
	}{{"42", 42}, {"42\n", 42}, {"", 0}, {"0", 0}, {"-3", 0}, {"x", 0}, {"42 43", 0}, {"99999999999999999999", 0}}
	for _, tt := range tests {
		name := filepath.Join(t.TempDir(), "pid")
		if err := os.WriteFile(name, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := state.ReadPid(name)
		if got != tt.pid || (err == nil) != (tt.pid != 0) {
			t.Errorf("%q: %d, %v", tt.content, got, err)
		}
	}
	if _, err := state.ReadPid(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestTrapAsPidFile covers a caller that chose an odd place for the pid.
func TestTrapAsPidFile(t *testing.T) {
	dir := t.TempDir()
	fifo, long, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "long"), filepath.Join(dir, "link")
	err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(long, []byte("1"+strings.Repeat(" ", 64)), 0o600), os.Symlink("pid", link))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fifo, long, "/dev/zero", dir} {
		within(t, 10*time.Second, name, func() {
			if pid, err := state.ReadPid(name); err == nil {
				t.Errorf("%s: %d", name, pid)
			}
			st := of("/run/runc", "a")
			st.PidFile = name
			if st.Live() {
				t.Errorf("%s keeps a state alive", name)
			}
		})
	}
	if err := os.WriteFile(filepath.Join(dir, "pid"), []byte("42"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, err := state.ReadPid(link); pid != 42 {
		t.Errorf("through a link: %d, %v", pid, err)
	}
}

// within fails when something hangs.
func within(t *testing.T, limit time.Duration, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s: hangs", what)
	}
}

// TestFolderWithoutState is what no create leaves: the id can be used again.
func TestFolderWithoutState(t *testing.T) {
	low := t.TempDir()
	for _, root := range []string{low, "/run/" + strings.Repeat("long/", 60)} {
		s := store(t)
		create(t, s, of(root, "a"), of(root, "b"))
		if err := os.Remove(filepath.Join(s.Path(root, "a"), "state.json")); err != nil {
			t.Fatal(err)
		}
		orphans, err := s.Orphans()
		if err != nil || len(orphans) != 1 || orphans[0].ID != "b" {
			t.Errorf("%v, %v", orphans, err)
		}
		create(t, s, of(root, "a"))
	}
	// The low-level runtime knows the container: a delete of it needs the link.
	s := store(t)
	create(t, s, of(low, "c"))
	mkdir(t, filepath.Join(low, "c"))
	if err := os.Remove(filepath.Join(s.Path(low, "c"), "state.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Orphans(); err != nil || s.Runtime(low, "c") == "" {
		t.Errorf("the link is gone, %v", err)
	}
}

func TestManyBrokenStates(t *testing.T) {
	s := store(t)
	for i := range 3 {
		st := of("/run/runc", fmt.Sprint("a", i))
		create(t, s, st)
		if err := os.WriteFile(filepath.Join(s.Path(st.Root, st.ID), "state.json"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Orphans()
	if err == nil || !strings.HasPrefix(err.Error(), "3 states cannot be read, the first: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

// TestOrphansReadsNoLiveState covers a low-level runtime that keeps its
// containers in a folder of its own: a state that cannot be read is not missed.
func TestOrphansReadsNoLiveState(t *testing.T) {
	s, real := store(t), t.TempDir()
	st := of("/run/runc", "a")
	st.RealRoot = real
	create(t, s, st)
	mkdir(t, filepath.Join(real, "a"))
	file := filepath.Join(s.Path(st.Root, st.ID), "state.json")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if orphans, err := s.Orphans(); err != nil || len(orphans) != 0 {
		t.Errorf("%v, %v", orphans, err)
	}
	if err := os.Remove(filepath.Join(real, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Orphans(); err == nil {
		t.Error("the link counts although its target is gone")
	}
}

// A folder has one name, before it is made and after.
func TestCleanRoot(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for root, want := range map[string]string{
		"link": "real", "link/new": "real/new", "link/new/deep": "real/new/deep", "new": "new", "link/../new": "new", ".": "",
	} {
		before := state.CleanRoot(root)
		if want := filepath.Join(dir, want); before != want {
			t.Errorf("%s: %s, want %s", root, before, want)
		}
		if err := os.MkdirAll(root, 0o755); err != nil {
			t.Fatal(err)
		}
		if after := state.CleanRoot(filepath.Join(dir, root)); after != before {
			t.Errorf("%s: %s before it was made, %s after", root, before, after)
		}
	}
	if got := state.CleanRoot("/no/such/folder"); got != "/no/such/folder" {
		t.Error(got)
	}
}
