package result_test

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

var now = time.Now()

// of makes a result of a run that began some time ago.
func of(id string, ago time.Duration) *result.Result {
	at := now.Add(-ago)
	return &result.Result{ID: id, Nonce: result.NewNonce(at), Status: verdict.Exited, CreatedAt: at, FinishedAt: &at}
}

func put(t *testing.T, s result.Store, all ...*result.Result) {
	t.Helper()
	for _, r := range all {
		if err := s.Put(r); err != nil {
			t.Fatal(err)
		}
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func newest(t *testing.T, s result.Store, id string, n int) []string {
	t.Helper()
	found, err := s.Newest(id, n)
	if err != nil {
		t.Fatal(err)
	}
	var nonces []string
	for _, r := range found {
		nonces = append(nonces, r.Nonce)
	}
	return nonces
}

func TestNewest(t *testing.T) {
	s := result.Store{Dir: filepath.Join(t.TempDir(), "results"), Max: 10, MaxAge: time.Hour}
	if got := newest(t, s, "a", 2); got != nil {
		t.Errorf("an empty store has %v", got)
	}
	first, second, third := of("a", 3*time.Minute), of("a", 2*time.Minute), of("a", time.Minute)
	put(t, s, second, third, of("ab", 0), first)
	if got, want := fmt.Sprint(newest(t, s, "a", 2)), fmt.Sprint([]string{third.Nonce, second.Nonce}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	all, err := s.All()
	if err != nil || len(all) != 4 || all[0].ID != "ab" || all[3].Nonce != first.Nonce {
		t.Errorf("All: %d results, %v", len(all), err)
	}
	ids, err := s.IDs()
	if err != nil || fmt.Sprint(ids) != "[a ab]" {
		t.Errorf("IDs: %v, %v", ids, err)
	}
}

func TestPutPrunes(t *testing.T) {
	tests := []struct {
		name   string
		max    int
		maxAge time.Duration
		ago    []time.Duration
		left   int
	}{
		{"too many", 3, time.Hour, []time.Duration{5, 4, 3, 2, 1}, 3},
		{"too old", 100, time.Hour, []time.Duration{3 * time.Hour, 2 * time.Hour, time.Minute}, 1},
		{"exactly as many", 3, time.Hour, []time.Duration{3, 2, 1}, 3},
		{"no bounds", 0, 0, []time.Duration{1000 * time.Hour, 1}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := result.Store{Dir: t.TempDir(), Max: tt.max, MaxAge: tt.maxAge}
			for i, ago := range tt.ago {
				put(t, s, of(fmt.Sprintf("id%d", i), ago))
			}
			if got := names(t, s.Dir); len(got) != tt.left {
				t.Errorf("%d left, want %d: %v", len(got), tt.left, got)
			}
			// The newest are the ones that stay.
			if got := newest(t, s, "id0", 1); tt.left < len(tt.ago) && got != nil {
				t.Errorf("the oldest is still there")
			}
		})
	}
}

// TestPruneGoesOn makes sure that a foreign file does not stop it.
func TestPruneGoesOn(t *testing.T) {
	s := result.Store{Dir: t.TempDir(), Max: 100, MaxAge: time.Hour}
	foreign := filepath.Join(s.Dir, "a~!not-a-time.json")
	if err := os.WriteFile(foreign, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, s, of("old", 2*time.Hour), of("young", 0))
	if got := names(t, s.Dir); len(got) != 2 {
		t.Errorf("the old one is still there: %v", got)
	}
}

func TestPutMode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lib", "results")
	defer syscall.Umask(syscall.Umask(0o022))
	put(t, result.Store{Dir: dir}, of("a", 0))
	for path, want := range map[string]os.FileMode{
		filepath.Dir(dir):                    0o755 | os.ModeDir, // the group has to get there
		dir:                                  0o750 | os.ModeDir,
		filepath.Join(dir, names(t, dir)[0]): 0o640,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
}

func TestPutGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give a file to another group")
	}
	const name = "daemon" // gid 1 everywhere
	g, err := user.LookupGroup(name)
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(t.TempDir(), "results")
	put(t, result.Store{Dir: dir, Group: name}, of("a", 0))
	for _, path := range []string{dir, filepath.Join(dir, names(t, dir)[0])} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; strconv.Itoa(int(gid)) != g.Gid {
			t.Errorf("%s is of group %d, want %s", path, gid, g.Gid)
		}
	}
	put(t, result.Store{Dir: dir, Group: "no-such-group-here"}, of("b", 0))
}

func TestHalfWritten(t *testing.T) {
	s := result.Store{Dir: t.TempDir(), Max: 10}
	old, young := filepath.Join(s.Dir, "~new-1"), filepath.Join(s.Dir, "~new-2")
	for _, name := range []string{old, young} {
		if err := os.WriteFile(name, []byte(`{"id":`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	put(t, s, of(".new-x", 0))
	left := strings.Join(names(t, s.Dir), " ")
	if strings.Contains(left, "~new-1") || !strings.Contains(left, "~new-2") {
		t.Errorf("only what a dead writer left goes: %s", left)
	}
	if ids, err := s.IDs(); err != nil || fmt.Sprint(ids) != "[.new-x]" {
		t.Errorf("IDs: %v, %v", ids, err)
	}
}

func TestBrokenResult(t *testing.T) {
	s := result.Store{Dir: t.TempDir()}
	older, broken := of("a", time.Minute), of("a", 0)
	put(t, s, older, of("b", 0))
	name := filepath.Join(s.Dir, "a~"+broken.Nonce+".json")
	if err := os.WriteFile(name, nil, 0o600); err != nil { // as a power cut leaves it
		t.Fatal(err)
	}
	found, err := s.Newest("a", 1)
	if err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("the error does not name the file: %v", err)
	}
	if len(found) != 1 || found[0].Nonce != older.Nonce {
		t.Errorf("the older result is not found: %v", found)
	}
	if all, err := s.All(); err == nil || len(all) != 2 {
		t.Errorf("All: %d results, %v", len(all), err)
	}
}

func TestConcurrentPut(t *testing.T) {
	const writers, each, most = 8, 25, 20
	s := result.Store{Dir: filepath.Join(t.TempDir(), "results"), Max: most, MaxAge: time.Hour}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := s.Put(of(fmt.Sprintf("w%d-%d", w, i), time.Duration(i)*time.Nanosecond)); err != nil {
					t.Error(err)
				}
				if _, err := s.All(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if left := names(t, s.Dir); len(left) != most {
		t.Errorf("%d left, want %d", len(left), most)
	}
}

func TestPutFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := result.Store{Dir: file}.Put(of("a", 0))
	if err == nil || !strings.Contains(err.Error(), "a") {
		t.Errorf("a folder that is a file: %v", err)
	}
}

func TestNonceSortsByTime(t *testing.T) {
	last := ""
	for _, at := range []time.Time{time.Unix(0, 1), time.Unix(1, 0), now, now.Add(1), now.AddDate(200, 0, 0)} {
		nonce := result.NewNonce(at)
		if nonce <= last {
			t.Errorf("%s of %v is not behind %s", nonce, at, last)
		}
		last = nonce
	}
}

func refused(id string, ago time.Duration) *result.Result {
	r := of(id, ago)
	r.Status = verdict.Refused
	return r
}

// TestRefusalsPushNothingOut: anybody who may start containers can be refused a
// thousand times.
func TestRefusalsPushNothingOut(t *testing.T) {
	tests := []struct{ max, put, left int }{{3, 15, 10}, {200, 25, 20}, {0, 15, 15}}
	for _, tt := range tests {
		s := result.Store{Dir: t.TempDir(), Max: tt.max, MaxAge: time.Hour}
		put(t, s, of("a", time.Minute), of("b", time.Minute))
		for i := range tt.put {
			put(t, s, refused("x", time.Duration(tt.put-i)*time.Millisecond))
		}
		put(t, s, of("c", 0), refused("old", 2*time.Hour))
		ids, err := s.IDs()
		if err != nil || fmt.Sprint(ids) != "[a b c x]" {
			t.Errorf("IDs: %v, %v", ids, err)
		}
		found, err := s.Newest("x", 100)
		if err != nil || len(found) != tt.left || found[0].Status != verdict.Refused {
			t.Fatalf("max %d: %d refusals left, want %d, %v", tt.max, len(found), tt.left, err)
		}
		if want := refused("x", time.Millisecond).Nonce; found[0].Nonce != want {
			t.Errorf("the newest is %s, want %s", found[0].Nonce, want)
		}
	}
}

// TestForeignEntries: what cannot be removed or read does not make Put fail.
func TestForeignEntries(t *testing.T) {
	s := result.Store{Dir: t.TempDir(), Max: 1, MaxAge: time.Hour}
	folder := filepath.Join(s.Dir, "a~0000000000000001-1.json")
	if err := os.MkdirAll(filepath.Join(folder, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(s.Dir, "a~0000000000000002-1.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, s, of("a", time.Minute), of("a", 0))
	if all, err := s.All(); err != nil || len(all) != 1 {
		t.Errorf("%d results, %v", len(all), err)
	}
}

func TestPutModeUnderAnyUmask(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "lib", "agentbox", "results")
	defer syscall.Umask(syscall.Umask(0o077))
	if err := os.Chmod(base, 0o711); err != nil {
		t.Fatal(err)
	}
	put(t, result.Store{Dir: dir}, of("a", 0))
	for path, want := range map[string]os.FileMode{
		base:                                 0o711, // not made by Put
		filepath.Join(base, "lib"):           0o755,
		filepath.Dir(dir):                    0o755,
		dir:                                  0o750,
		filepath.Join(dir, names(t, dir)[0]): 0o640,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil { // the administrator's choice
		t.Fatal(err)
	}
	put(t, result.Store{Dir: dir}, of("b", 0))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestAlso: results of other folders are found and never removed.
func TestAlso(t *testing.T) {
	other := result.Store{Dir: t.TempDir()}
	put(t, other, of("a", 3*time.Minute), of("b", 2*time.Minute))
	s := result.Store{Dir: filepath.Join(t.TempDir(), "results"), Max: 1, MaxAge: time.Minute, Also: []string{other.Dir, filepath.Join(other.Dir, "none")}}
	put(t, s, of("a", 0))
	all, err := s.All()
	if err != nil || len(all) != 3 || all[0].ID != "a" || all[1].ID != "b" {
		t.Errorf("%d results, %v", len(all), err)
	}
	if got := newest(t, s, "a", 9); len(got) != 2 {
		t.Errorf("of a: %v", got)
	}
	// One that cannot be read hides no other.
	s.Also = []string{filepath.Join(other.Dir, names(t, other.Dir)[0])}
	if ids, err := s.IDs(); err == nil || fmt.Sprint(ids) != "[a]" {
		t.Errorf("%v, %v", ids, err)
	}
}
