package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// machine has every kind of sandbox, and names that were used again.
func machine(t *testing.T) *fixture {
	f := newFixture(t)
	f.live("aaaa1111", "agent-1")
	f.live("aaaa2222", "twin")
	f.live("bbbb3333", "twin")
	f.live("cccc4444", "bbbb") // a name that is the beginning of an id
	f.live("dddd", "")
	f.live("dddd5555", "reused") // its name was that of others before
	f.ended("dddd5555", "reused", -60, -50)
	f.ended("eeee6666", "reused", -90, -80)
	f.ended("eeee7777", "loop", 1, 2)
	f.ended("ffff8888", "loop", 3, 4)
	f.ended("ffff9999", "pod", 1, 5)
	f.ended("0000aaaa", "pod", 3, 4)
	f.ended("0000bbbb", "", 1, 2)
	f.ended("0000bbbb", "again", 3, 4)
	return f
}

func TestResolution(t *testing.T) {
	f := machine(t)
	tests := []struct {
		name string
		ref  string
		id   string   // found
		says []string // what an error says
	}{
		{"a live id", "aaaa1111", "aaaa1111", nil},
		{"a kept id", "eeee6666", "eeee6666", nil},
		{"a live name", "agent-1", "aaaa1111", nil},
		{"the beginning of a live id", "aaaa1", "aaaa1111", nil},
		{"the beginning of a kept id", "eeee7", "eeee7777", nil},
		{"a whole id before the beginning of others", "dddd", "dddd", nil},
		{"a name before the beginning of an id", "bbbb", "cccc4444", nil},
		{"an id that is live is not its result", "dddd5555", "dddd5555", nil},
		{"a name that a live one has now", "reused", "dddd5555", nil},
		{"a name that was used one after the other", "loop", "ffff8888", nil},
		{"a name that it had last", "again", "0000bbbb", nil},
		{"a name of two live ones", "twin", "", []string{`"twin" may be `, "aaaa2222 (twin, RUNNING)", "bbbb3333 (twin, RUNNING)"}},
		{"a name of two at the same time", "pod", "", []string{"ffff9999 (pod, EXITED)", "0000aaaa (pod, EXITED)"}},
		{"the beginning of live ids", "aaaa", "", []string{"aaaa1111 (agent-1, RUNNING)", "aaaa2222 (twin, RUNNING)", "give more of the id"}},
		{"the beginning of kept ids", "eeee", "", []string{"eeee6666 (reused, EXITED)", "eeee7777 (loop, EXITED)"}},
		{"the beginning of an id without a name", "0000", "", []string{"0000aaaa", "0000bbbb"}},
		{"unknown", "zzzz", "", []string{`no sandbox "zzzz" is live in DIR/state or has a result in DIR/results`, "never started", "--state", "1000 are kept, for 168h"}},
		{"part of a name", "agent", "", []string{"no sandbox"}},
		{"the end of an id", "1111", "", []string{"no sandbox"}},
		{"empty", "", "", []string{"an empty text"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, code := f.inspect("--json", tt.ref)
			if tt.id != "" {
				if got := parse(t, stdout); got.ID != tt.id || code != 0 || stderr != "" {
					t.Errorf("found %q with code %d, want %q\n%s", got.ID, code, tt.id, stderr)
				}
				return
			}
			if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 {
				t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
			for _, says := range tt.says {
				if !strings.Contains(stderr, says) {
					t.Errorf("%q does not say %q", stderr, says)
				}
			}
		})
	}
}

func parse(t *testing.T, text string) *result.Result {
	t.Helper()
	var r result.Result
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return &r
}

func TestManyCandidates(t *testing.T) {
	f := newFixture(t)
	for _, c := range "abcdefghijklmno" {
		f.ended("x"+string(c), "", 1, 2)
	}
	_, stderr, _ := f.inspect("x")
	if !strings.Contains(stderr, "and 5 more") || strings.Count(stderr, "EXITED") != maxCandidates {
		t.Errorf("stderr %q", stderr)
	}
}

func TestPrevious(t *testing.T) {
	f := newFixture(t)
	f.live("live", "")
	first, second := f.ended("live", "", -20, -19), f.ended("live", "", -10, -9)
	_, last := f.ended("kept", "", -20, -19), f.ended("kept", "", -10, -9)
	f.live("new", "")
	tests := []struct {
		ref      string
		nonce    string // of the previous run
		previous bool
	}{{"live", second.Nonce, true}, {"kept", "", true}, {"new", "", false}}
	for _, tt := range tests {
		stdout, _, _ := f.inspect("--json", tt.ref)
		r := parse(t, stdout)
		if (r.Previous != nil) != tt.previous {
			t.Errorf("%s: previous is %v", tt.ref, r.Previous)
			continue
		}
		if tt.nonce != "" && r.Previous.Nonce != tt.nonce {
			t.Errorf("%s: previous is %s, want %s and not %s", tt.ref, r.Previous.Nonce, tt.nonce, first.Nonce)
		}
		if tt.ref == "kept" && r.Nonce != last.Nonce {
			t.Errorf("%s is not the last run", tt.ref)
		}
	}
}

// TestDeletedRightNow is the moment between the result and the end of the state.
func TestDeletedRightNow(t *testing.T) {
	f := newFixture(t)
	older := f.ended("id", "", -20, -19)
	st := f.live("id", "")
	r := exited("id", "", start, start.Add(time.Minute))
	r.Nonce = st.Nonce
	f.keep(r)
	stdout, _, _ := f.inspect("--json", "id")
	got := parse(t, stdout)
	if got.Status != verdict.Exited || got.Previous == nil || got.Previous.Nonce != older.Nonce {
		t.Errorf("%s, previous %+v", got.Status, got.Previous)
	}
}

func TestRefusal(t *testing.T) {
	f := newFixture(t)
	f.keep(refused("id"))
	stdout, _, code := f.inspect("id")
	if code != 0 || !strings.Contains(stdout, "REFUSED SANDBOX_LIMIT_UNENFORCEABLE") || strings.Contains(stdout, "Limits") {
		t.Errorf("code %d\n%s", code, stdout)
	}
}

func TestRename(t *testing.T) {
	f := newFixture(t)
	f.live("aaaa1111", "before")
	f.write("containers/aaaa1111/config.v2.json", `{"Name":"/after"}`)
	if stdout, stderr, code := f.inspect("--json", "after"); code != 0 || parse(t, stdout).Name != "after" {
		t.Errorf("code %d, %s", code, stderr)
	}
	if _, _, code := f.inspect("before"); code != 1 {
		t.Error("the old name is still found")
	}
}

func TestTheSameIDInTwoRoots(t *testing.T) {
	f := newFixture(t)
	st := f.live("id", "")
	st.Root, st.Nonce = "/run/other", result.NewNonce(time.Now())
	f.create(st)
	_, stderr, code := f.inspect("id")
	if code != 1 || !strings.Contains(stderr, "id (RUNNING, of /run/runc)") || !strings.Contains(stderr, "id (RUNNING, of /run/other)") {
		t.Errorf("code %d, %s", code, stderr)
	}
}

func TestSeveral(t *testing.T) {
	f := machine(t)
	stdout, stderr, code := f.inspect("--json", "aaaa1111", "zzzz", "eeee6666", "yyyy")
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if code != 1 || len(lines) != 2 || strings.Count(stderr, "\n") != 2 {
		t.Fatalf("code %d\n%s\n%s", code, stdout, stderr)
	}
	if parse(t, lines[0]).ID != "aaaa1111" || parse(t, lines[1]).ID != "eeee6666" {
		t.Errorf("not in the order that was asked for: %s", stdout)
	}
	// One of two is still one object on a line, so that a program need not count.
	stdout, _, _ = f.inspect("--json", "aaaa1111", "zzzz")
	if strings.Count(stdout, "\n") != 1 {
		t.Errorf("more than one line:\n%s", stdout)
	}
	stdout, _, code = f.inspect("aaaa1111", "eeee6666")
	if code != 0 || strings.Count(stdout, "Limits") != 2 {
		t.Errorf("code %d\n%s", code, stdout)
	}
}

// TestBrokenConfig: live sandboxes know their own results, so that a broken file
// hides only the kept ones.
func TestBrokenConfig(t *testing.T) {
	f := newFixture(t)
	f.ended("live", "", -20, -19)
	f.live("live", "")
	f.write("config.toml", "results = 7\n")
	stdout, stderr, code := f.inspect("--json", "live")
	if code != 0 || parse(t, stdout).Previous == nil {
		t.Errorf("code %d\n%s", code, stdout)
	}
	want := "agentbox: DIR/config.toml:1: results = 7 "
	if !strings.HasPrefix(stderr, want) || !strings.Contains(stderr, "the results are looked for in "+config.Default().ResultsDir) {
		t.Errorf("stderr %q", stderr)
	}
}

// TestBrokenFiles: what cannot be read is said once, and the rest is shown.
func TestBrokenFiles(t *testing.T) {
	f := newFixture(t)
	f.live("good", "name")
	bad := f.live("bad", "")
	if err := os.WriteFile(filepath.Join(f.states.Path(bad.Root, bad.ID), "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.ended("kept", "old", 1, 2)
	f.write("results/x~0000000000000001-1.json", "")
	stdout, stderr, code := f.inspect("--json", "old")
	if code != 0 || parse(t, stdout).ID != "kept" {
		t.Errorf("code %d, %s", code, stderr)
	}
	for _, says := range []string{"state.json", "x~0000000000000001-1.json"} {
		if strings.Count(stderr, says) != 1 {
			t.Errorf("%q says %q more or less than once", stderr, says)
		}
	}
}

// TestWithoutRoot runs the parts that a user without root meets: folders that
// may not be read.
func TestWithoutRoot(t *testing.T) {
	f := newFixture(t)
	c := &catalog{results: f.results, said: map[string]bool{}}
	var said []string
	c.out = func(text string) { said = append(said, text) }
	c.results.Group = "sandbox"
	c.check(&os.PathError{Op: "open", Path: f.results.Dir, Err: os.ErrPermission})
	c.check(&os.PathError{Op: "open", Path: f.results.Dir, Err: os.ErrPermission})
	if len(said) != 1 || !strings.Contains(said[0], "root and the group sandbox") {
		t.Errorf("said %q", said)
	}
	if os.Geteuid() == 0 {
		return // root reads everything
	}
	if err := os.Mkdir(f.states.Dir, 0); err != nil {
		t.Fatal(err)
	}
	f.ended("kept", "", 1, 2)
	stdout, stderr, code := f.inspect("--json", "kept")
	if code != 0 || parse(t, stdout).ID != "kept" || !strings.Contains(stderr, "root only") {
		t.Errorf("code %d, %s", code, stderr)
	}
}

func TestPlaces(t *testing.T) {
	if got := places("/x"); !slices.Equal(got, []state.Store{{Dir: "/x"}}) {
		t.Errorf("a folder that was given: %v", got)
	}
	if got := places(""); got[len(got)-1].Dir != state.SystemDir {
		t.Errorf("the folder of root is not looked at: %v", got)
	}
}

func TestUsage(t *testing.T) {
	f := newFixture(t)
	tests := []struct {
		args []string
		code int
		says string
	}{
		{[]string{"inspect"}, 1, "inspect needs the id or the name of a sandbox"},
		{[]string{"inspect", "--no-such-flag", "x"}, 1, "unknown flag"},
		{[]string{"bogus"}, 1, "unknown command"},
		{[]string{"version", "x"}, 1, "unknown command"},
	}
	for _, tt := range tests {
		stdout, stderr, code := f.run(tt.args...)
		if code != tt.code || stdout != "" || !strings.HasPrefix(stderr, "agentbox: ") || !strings.Contains(stderr, tt.says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: code %d, stdout %q, stderr %q", tt.args, code, stdout, stderr)
		}
	}
}

func TestHelp(t *testing.T) {
	f := newFixture(t)
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"inspect", "--help"}} {
		stdout, stderr, code := f.run(args...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "agentbox inspect agent-7") {
			t.Errorf("%v: code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	stdout, _, _ := f.run("inspect", "--help")
	if !strings.Contains(stdout, "exit code is 0") {
		t.Errorf("the exit codes are not explained:\n%s", stdout)
	}
	for _, name := range []string{"version", "--version"} {
		if stdout, _, code := f.run(name); code != 0 || !strings.HasPrefix(stdout, "agentbox ") || strings.Count(stdout, "\n") != 1 {
			t.Errorf("%s: %q", name, stdout)
		}
	}
}

func TestCompletion(t *testing.T) {
	f := machine(t)
	complete := func(args ...string) []string {
		stdout, _, _ := f.run(append([]string{"__complete", "inspect"}, args...)...)
		var words []string
		for line := range strings.Lines(stdout) {
			if word, _, described := strings.Cut(line, "\t"); described {
				words = append(words, word)
			}
		}
		return words
	}
	words := complete("")
	for _, want := range []string{"aaaa1111", "agent-1", "eeee6666", "loop", "twin"} {
		if !slices.Contains(words, want) {
			t.Errorf("%q is not offered: %v", want, words)
		}
	}
	if again := complete("aaaa1111", ""); slices.Contains(again, "aaaa1111") {
		t.Error("what is there already is offered again")
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if stdout, _, code := f.run("completion", shell); code != 0 || stdout == "" {
			t.Errorf("no completion for %s", shell)
		}
	}
}
