package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		os.Exit(crash())
	}
	os.Exit(m.Run())
}

// host is a machine with one engine on it.
type host struct {
	t    *testing.T
	dir  string
	file string // the engine's configuration
	Store
}

func newHost(t *testing.T, name string) *host {
	t.Helper()
	dir := t.TempDir()
	return &host{t: t, dir: dir, file: filepath.Join(dir, name), Store: Store{Dir: filepath.Join(dir, "records")}}
}

func (h *host) write(data string) {
	h.t.Helper()
	if err := os.WriteFile(h.file, []byte(data), 0o640); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read() string {
	h.t.Helper()
	data, err := os.ReadFile(h.file)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(data)
}

func (h *host) install(e Engine, want Want) *Change {
	h.t.Helper()
	c, err := h.Install(e, h.file, want)
	if err == nil {
		err = h.Commit(c)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

func (h *host) uninstall(e Engine) *Change {
	h.t.Helper()
	c, err := h.Uninstall(e)
	if err == nil {
		err = h.Commit(c)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// tree lists all files below the folder, with their content.
func (h *host) tree() string {
	h.t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == h.dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", strings.TrimPrefix(path, h.dir), info.Mode())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d:%d %q", st.Uid, st.Gid, data)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return b.String()
}

// Whatever is there, uninstall leaves the machine as install found it.
func TestUninstallGivesEverythingBack(t *testing.T) {
	for _, tt := range cases {
		if tt.engine == Containerd && tt.want.Main != nil {
			continue // the same as a file that is not there
		}
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, "etc/engine/conf.d/file")
			if tt.file != "" {
				if err := os.MkdirAll(filepath.Dir(h.file), 0o755); err != nil {
					t.Fatal(err)
				}
				h.write(string(fixture(tt.file)))
			}
			before := h.tree()
			if c := h.install(tt.engine, tt.want); c.None() {
				t.Error("nothing was changed")
			}
			if with := h.tree(); !strings.Contains(with, "agentbox") || strings.Contains(with, tempPart) {
				t.Errorf("installed:\n%s", with)
			}
			rec, err := h.Load(tt.engine)
			if err != nil || rec.Engine != tt.engine || rec.Program != program || rec.File != h.file {
				t.Errorf("the record is %+v, %v", rec, err)
			}
			with := h.tree()
			if c := h.install(tt.engine, tt.want); !c.None() || h.tree() != with {
				t.Errorf("the second time changes:\n%s\nwas\n%s", h.tree(), with)
			}
			h.uninstall(tt.engine)
			if after := h.tree(); after != before {
				t.Errorf("left:\n%s\nwas\n%s", after, before)
			}
			if _, err := h.Uninstall(tt.engine); !errors.Is(err, ErrNotInstalled) {
				t.Errorf("a second time: %v", err)
			}
		})
	}
}

func TestBlankFileIsGivenBack(t *testing.T) {
	for _, blank := range []string{"", "\n", " \r\n\t", "\xef\xbb\xbf"} {
		h := newHost(t, "daemon.json")
		h.write(blank)
		h.install(Docker, byRuntime)
		// Somebody else's setting came and went.
		h.write(h.read() + "\n")
		h.uninstall(Docker)
		if got := h.read(); got != blank {
			t.Errorf("got %q, was %q", got, blank)
		}
	}
}

func TestChangedSince(t *testing.T) {
	tests := []struct {
		name          string
		engine        Engine
		before, after string // "-": there is none
		change        func(string) string
	}{
		{"a setting more", Docker, "{\n}\n", "{\n  \"debug\": true\n}\n", func(s string) string { return strings.Replace(s, "{\n", "{\n  \"debug\": true,\n", 1) }},
		{"in a file that we made", Docker, "-", "{\n  \"debug\": true\n}\n", func(s string) string { return strings.Replace(s, "{\n", "{\n  \"debug\": true,\n", 1) }},
		{"white space in a file that we made", Docker, "-", "-", func(s string) string { return s + "\n\n" }},
		{"a comment in a file that we made", CRIO, "-", "# mine\n", func(s string) string { return "# mine\n" + s }},
		{"our part in a file that we made", CRIO, "-", "-", func(s string) string { return s + "runtime_root = '/run/x'\n" }},
		{"the file is gone", Docker, "{}", "-", func(string) string { return "-" }},
		{"put back by hand", Docker, "{ }", "{ }", func(string) string { return "{ }" }},
		{"a newer file without us", Docker, "{}", `{"a": 1}`, func(string) string { return `{"a": 1}` }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, "file")
			if tt.before != "-" {
				h.write(tt.before)
			}
			h.install(tt.engine, byRuntime)
			changed := tt.change(h.read())
			if changed == "-" {
				if err := os.Remove(h.file); err != nil {
					t.Fatal(err)
				}
			} else {
				h.write(changed)
			}
			h.uninstall(tt.engine)
			if tt.after == "-" {
				if _, err := os.Lstat(h.file); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the file is there: %v, %q", err, h.read())
				}
			} else if got := h.read(); got != tt.after {
				t.Errorf("got %q, want %q", got, tt.after)
			}
			if _, err := os.Lstat(h.Dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the records are left: %v", err)
			}
		})
	}
}

// A program that moved, another door, log limits that come later: each time the
// file is as if it were the first time, and uninstall goes back to the start.
func TestUpgrade(t *testing.T) {
	h := newHost(t, "daemon.json")
	const before = "{ \"debug\": true }"
	h.write(before)
	steps := []struct {
		want Want
		has  string
	}{
		{byRuntime, `"path":"/usr/local/bin/agentbox-runtime"`},
		{Want{Runtime: "/opt/agentbox-runtime"}, `"path":"/opt/agentbox-runtime"`},
		{byShim, `"runtimeType":"io.containerd.agentbox.v1"`},
		{withLogs, `"max-size":"10m"`},
		{Want{Runtime: "/opt/agentbox-runtime"}, `"max-size":"10m"`}, // asked for once
	}
	for _, step := range steps {
		if c := h.install(Docker, step.want); c.None() {
			t.Errorf("%+v changes nothing", step.want)
		}
		got := strings.ReplaceAll(h.read(), " ", "")
		if !strings.Contains(got, step.has) || strings.Count(got, `"agentbox"`) != 1 || !strings.Contains(got, `"debug":true`) {
			t.Errorf("%+v gives %s", step.want, got)
		}
	}
	h.uninstall(Docker)
	if got := h.read(); got != before {
		t.Errorf("got %q", got)
	}
}

// What a reload does not do is told.
func TestLater(t *testing.T) {
	const logs, runtimes = "limits of logs", "knows agentbox until"
	tests := []struct {
		name, before, after string
		want                []string
	}{
		{"a runtime comes", `{}`, `{"runtimes": {"agentbox": {}}}`, nil},
		{"one of two runtimes goes", `{"runtimes": {"agentbox": {}, "x": {}}}`, `{"runtimes": {"x": {}}}`, nil},
		{"the only runtime goes", `{"runtimes": {"agentbox": {}}}`, `{}`, []string{runtimes}},
		{"the file goes", `{"runtimes": {"agentbox": {}}}`, ``, []string{runtimes}},
		{"log limits come", `{}`, `{"runtimes": {}, "log-opts": {}}`, []string{logs}},
		{"both go", `{"runtimes": {}, "log-opts": {}}`, `{}`, []string{logs, runtimes}},
		{"log limits stay", `{"log-opts": {}}`, `{"log-opts": {}, "runtimes": {}}`, nil},
	}
	for _, tt := range tests {
		got := dockerLater([]byte(tt.before), []byte(tt.after))
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q", tt.name, got)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], tt.want[i]) {
				t.Errorf("%s: %q", tt.name, got)
			}
		}
	}
	h := newHost(t, "daemon.json")
	if c := h.install(Docker, withLogs); len(c.Notes) != 1 {
		t.Errorf("install notes %q", c.Notes)
	}
	if c := h.install(Docker, withLogs); len(c.Notes) != 0 {
		t.Errorf("the second time it notes %q", c.Notes)
	}
	if c := h.uninstall(Docker); len(c.Notes) != 2 {
		t.Errorf("uninstall notes %q", c.Notes)
	}
}

// An upgrade of a file that was changed meanwhile keeps that change.
func TestUpgradeOfAChangedFile(t *testing.T) {
	h := newHost(t, "daemon.json")
	h.write("{\n  \"a\": 1\n}\n")
	h.install(Docker, byRuntime)
	h.write(strings.Replace(h.read(), "1", "2", 1))
	h.install(Docker, Want{Runtime: "/opt/agentbox-runtime"})
	if got := h.read(); !strings.Contains(got, `"a": 2`) || !strings.Contains(got, "/opt/agentbox-runtime") || strings.Contains(got, program) {
		t.Errorf("got %s", got)
	}
	h.uninstall(Docker)
	if got := h.read(); got != "{\n  \"a\": 2\n}\n" {
		t.Errorf("got %q", got)
	}
}

// An entry that somebody wrote by hand is not ours, whether or not it is right.
func TestEntryByHand(t *testing.T) {
	h := newHost(t, "daemon.json")
	h.write(`{"runtimes": {"agentbox": {"path": "` + program + `"}}}`)
	before := h.tree()
	if c := h.install(Docker, byRuntime); !c.None() || h.tree() != before {
		t.Errorf("changed: %s", h.tree())
	}
	if _, err := h.Uninstall(Docker); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("got %v", err)
	}
	if _, err := h.Install(Docker, h.file, byShim); err == nil || !strings.Contains(err.Error(), "did not write") {
		t.Errorf("got %v", err)
	}
}

func TestModeAndOwnerStay(t *testing.T) {
	h := newHost(t, "daemon.json")
	h.write("{}")
	if err := os.Chmod(h.file, 0o2604); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(h.file, 12, 34); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(h.file, 0o2604); err != nil { // chown takes it away
			t.Fatal(err)
		}
	}
	var before, with, after unix.Stat_t
	stat := func(st *unix.Stat_t) {
		if err := unix.Stat(h.file, st); err != nil {
			t.Fatal(err)
		}
	}
	stat(&before)
	h.install(Docker, byRuntime)
	stat(&with)
	h.uninstall(Docker)
	stat(&after)
	for _, st := range []unix.Stat_t{with, after} {
		if st.Mode != before.Mode || st.Uid != before.Uid || st.Gid != before.Gid {
			t.Errorf("mode %o, owner %d:%d, was %o, %d:%d", st.Mode, st.Uid, st.Gid, before.Mode, before.Uid, before.Gid)
		}
	}
	if with.Ino == before.Ino {
		t.Error("the file was written over, not replaced")
	}
}

func TestSymbolicLinks(t *testing.T) {
	h := newHost(t, "daemon.json")
	real := filepath.Join(h.dir, "store", "real.json")
	if err := os.Mkdir(filepath.Dir(real), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("store/real.json", h.file); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Install(Docker, h.file, byRuntime); err == nil || !strings.Contains(err.Error(), "symbolic link to a file that is not there") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(real, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := h.tree()
	h.install(Docker, byRuntime)
	if target, err := os.Readlink(h.file); err != nil || target != "store/real.json" || !strings.Contains(h.read(), "agentbox") {
		t.Errorf("the link is %q, %v: %s", target, err, h.read())
	}
	h.uninstall(Docker)
	if after := h.tree(); after != before {
		t.Errorf("left:\n%s\nwas\n%s", after, before)
	}
}

func TestNoRegularFile(t *testing.T) {
	h := newHost(t, "daemon.json")
	if err := unix.Mkfifo(h.file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Install(Docker, h.file, byRuntime); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v", err)
	}
	if _, err := h.Install(Docker, "daemon.json", byRuntime); err == nil || !strings.Contains(err.Error(), "not absolute") {
		t.Errorf("got %v", err)
	}
}

// A file that nobody can read is not touched, and neither is the record.
func TestBrokenFileIsNotTouched(t *testing.T) {
	h := newHost(t, "daemon.json")
	h.write("{}")
	h.install(Docker, byRuntime)
	h.write(h.read() + "}")
	before := h.tree()
	for name, do := range map[string]func() (*Change, error){
		"install":   func() (*Change, error) { return h.Install(Docker, h.file, byRuntime) },
		"uninstall": func() (*Change, error) { return h.Uninstall(Docker) },
	} {
		if _, err := do(); err == nil || !strings.Contains(err.Error(), "daemon.json:1:") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := h.tree(); after != before {
		t.Errorf("changed:\n%s", after)
	}
}

func TestAnotherFile(t *testing.T) {
	h := newHost(t, "daemon.json")
	h.install(Docker, byRuntime)
	if _, err := h.Install(Docker, h.file+"2", byRuntime); err == nil || !strings.Contains(err.Error(), "is in "+h.file+" already") {
		t.Errorf("got %v", err)
	}
}

// Somebody who writes between the look and the deed is not overwritten.
func TestChangedMeanwhile(t *testing.T) {
	h := newHost(t, "daemon.json")
	h.write("{}")
	c, err := h.Install(Docker, h.file, byRuntime)
	if err != nil {
		t.Fatal(err)
	}
	h.write("{ }")
	if err := h.Commit(c); err == nil || !strings.Contains(err.Error(), "changed by somebody else") || h.read() != "{ }" {
		t.Errorf("got %v, %q", err, h.read())
	}
	h.write("{}")
	twin := h.install(Docker, byRuntime)
	h.write("{}")
	if err := h.Commit(c); err == nil || !strings.Contains(err.Error(), "docker.json was changed by somebody else") {
		t.Errorf("got %v", err)
	}
	h.write(string(twin.After))
}

func TestOneAtATime(t *testing.T) {
	h := newHost(t, "daemon.json")
	c, err := h.Install(Docker, h.file, byRuntime)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := h.lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Commit(c); err == nil || !strings.Contains(err.Error(), "at work") {
		t.Errorf("got %v", err)
	}
	unlock()
	if err := h.Commit(c); err != nil {
		t.Error(err)
	}
}

func TestBrokenRecord(t *testing.T) {
	for name, tt := range map[string]struct{ record, says string }{
		"half written":      {`{"version":1`, "unexpected end"},
		"of a later one":    {`{"version":7,"file":"/x"}`, "of version 7"},
		"a relative file":   {`{"version":1,"file":"x"}`, "absolute"},
		"a key with no end": {`{"version":1,"file":"/x","added":[{}]}`, "without a name"},
	} {
		h := newHost(t, "daemon.json")
		h.write("{}")
		if err := os.Mkdir(h.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(h.Path(Docker), []byte(tt.record), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := h.Install(Docker, h.file, byRuntime)
		_, err2 := h.Uninstall(Docker)
		for _, err := range []error{err, err2} {
			if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "docker.json") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// crashEnv tells the test program to end itself at a step of a commit:
// "FILE RECORDS install|uninstall STEP".
const crashEnv = "AGENTBOX_TEST_CRASH"

// crash does one command and is killed on the way; 0 when it was not.
func crash() int {
	var file, records, verb string
	var at int
	if _, err := fmt.Sscan(os.Getenv(crashEnv), &file, &records, &verb, &at); err != nil {
		return 3
	}
	s := Store{Dir: records, step: func() {
		if at--; at < 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}}
	c, err := s.Install(Docker, file, withLogs)
	if verb == "uninstall" {
		c, err = s.Uninstall(Docker)
	}
	if err == nil {
		err = s.Commit(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// A crash between any two steps leaves the old file or the new one; either
// command then works, and nothing is left after uninstall.
func TestCrash(t *testing.T) {
	const text = "{\n  \"debug\": true\n}\n"
	for _, absent := range []bool{false, true} {
		for _, verb := range []string{"install", "uninstall"} {
			for _, next := range []string{"install", "uninstall"} {
				crashed := 0
				for at := 0; ; at++ {
					if at > 50 {
						t.Fatal("there is no end")
					}
					h := newHost(t, "etc/daemon.json.d/file")
					if !absent {
						if err := os.MkdirAll(filepath.Dir(h.file), 0o755); err != nil {
							t.Fatal(err)
						}
						h.write(text)
					}
					before := h.tree()
					if verb == "uninstall" {
						h.install(Docker, withLogs)
					}
					if !h.dies(verb, at) {
						break // it came to its end
					}
					crashed++
					name := fmt.Sprintf("absent %t, %s killed at step %d, then %s", absent, verb, at, next)
					data, err := os.ReadFile(h.file)
					whole := err == nil && (string(data) == text || bytes.Contains(data, []byte(program)) && bytes.HasSuffix(data, []byte("}\n")))
					if !whole && (!absent || !errors.Is(err, fs.ErrNotExist)) {
						t.Errorf("%s: %q, %v", name, data, err)
					}
					if entries, err := os.ReadDir(filepath.Dir(h.file)); err == nil && len(entries) > 1 {
						t.Errorf("%s: half written in the folder of drop-ins: %v", name, entries)
					}
					if next == "install" {
						h.install(Docker, withLogs)
						if !strings.Contains(h.read(), program) {
							t.Errorf("%s: %s", name, h.read())
						}
					}
					if c, err := h.Uninstall(Docker); err == nil {
						if err := h.Commit(c); err != nil {
							t.Errorf("%s: %v", name, err)
						}
					} else if !errors.Is(err, ErrNotInstalled) {
						t.Errorf("%s: %v", name, err)
					}
					after := h.tree()
					if next == "uninstall" { // a crash before the first record left this, if there is none to undo
						after = withoutTemps(after)
					}
					if after != before {
						t.Errorf("%s left\n%s\nwas\n%s", name, after, before)
					}
				}
				if crashed < 3 {
					t.Errorf("%s was killed at %d steps only", verb, crashed)
				}
			}
		}
	}
}

// withoutTemps takes out of a tree the record that was being written when there
// was no other, with its folder.
func withoutTemps(tree string) string {
	if strings.Contains(tree, "/records/docker.json ") {
		return tree
	}
	var kept []string
	for line := range strings.Lines(tree) {
		if !strings.HasPrefix(line, "/records") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// dies runs a command in a process of its own, and reports whether it was killed.
func (h *host) dies(verb string, at int) bool {
	h.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashEnv+"="+h.file+" "+h.Dir+" "+verb+" "+strconv.Itoa(at))
	out, err := cmd.CombinedOutput()
	exit, failed := errors.AsType[*exec.ExitError](err)
	if err != nil && !failed || failed && exit.ExitCode() > 0 {
		h.t.Fatalf("%s at %d: %v: %s", verb, at, err, out)
	}
	return failed
}

// A comment like ours that was there before is taken for ours when the text is
// looked at; the copy in the record knows better.
func TestTheCopyIsExact(t *testing.T) {
	h := newHost(t, "50-agentbox.conf")
	before := "[containers]\n" + marker
	h.write(before)
	h.install(Podman, byRuntime)
	rec, err := h.Load(Podman)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := Remove(Podman, h.file, []byte(h.read()), rec.Added); err != nil || string(text) == before {
		t.Fatalf("%v: the text alone gives it back, so that this shows nothing", err)
	}
	h.uninstall(Podman)
	if got := h.read(); got != before {
		t.Errorf("got %q, was %q", got, before)
	}
}

// Without its default runtime an engine does not start.
func TestDefaultRuntime(t *testing.T) {
	tests := []struct {
		engine Engine
		text   string // makes agentbox the default
		behind bool   // our entry, not before it
		says   string
	}{
		{Docker, "", false, ":2: default-runtime is agentbox"},
		{Containerd, "[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'agentbox'\n", true, `plugins."io.containerd.grpc.v1.cri".containerd.default_runtime_name is agentbox`},
		{CRIO, "[crio.runtime]\ndefault_runtime = 'agentbox'\n", true, "crio.runtime.default_runtime is agentbox"},
		{Podman, "[engine]\nruntime = 'agentbox'\n", true, "engine.runtime is agentbox"},
	}
	for _, tt := range tests {
		h := newHost(t, "file")
		h.install(tt.engine, byRuntime)
		plain := h.read()
		if tt.behind {
			h.write(plain + tt.text)
		} else {
			h.write(strings.Replace(plain, "{\n", "{\n  \"default-runtime\": \"agentbox\",\n", 1))
		}
		with := h.tree()
		if _, err := h.Uninstall(tt.engine); err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "choose another default first") {
			t.Errorf("%s: %v", tt.engine, err)
		}
		if h.tree() != with {
			t.Errorf("%s: changed", tt.engine)
		}
		// An upgrade is no end.
		h.install(tt.engine, Want{Runtime: "/opt/agentbox-runtime"})
		h.write(plain)
		h.uninstall(tt.engine)
	}
}

func TestModesOfNewFiles(t *testing.T) {
	h := newHost(t, "daemon.json")
	h.Dir, h.file = filepath.Join(h.dir, "var", "agentbox", "install"), filepath.Join(h.dir, "etc", "docker", "daemon.json")
	old := unix.Umask(0o077)
	h.install(Docker, byRuntime)
	unix.Umask(old)
	for dir, want := range map[string]fs.FileMode{filepath.Dir(h.Dir): 0o755, h.Dir: 0o700, filepath.Dir(h.file): 0o755, h.file: 0o644, h.Path(Docker): 0o600} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the mode %v, want %v (%v)", dir, info.Mode(), want, err)
		}
	}
}
