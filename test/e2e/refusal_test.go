//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// refused creates and runs the container, and wants a refusal each time: one
// sentence with these words on stderr and in the log, in both of its formats,
// exit code 1, and nothing that was changed or left.
func (c *Container) refused(words ...string) {
	c.t.Helper()
	path := filepath.Join(c.Bundle, "config.json")
	before := c.specText()
	stat, err := os.Lstat(path)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, verb := range []string{"create", "run"} {
		for _, format := range []string{"json", "text"} {
			log := filepath.Join(tempDir(c.t), "log")
			out := c.try("--log", log, "--log-format", format, verb, "--bundle", c.Bundle, c.ID)
			if out.Code != 1 || out.Stdout != "" {
				c.t.Errorf("%s: want exit code 1 and nothing on stdout: %v", verb, out)
			}
			sentence := oneSentence(c.t, out.Stderr, words)
			if got := lastLogged(c.t, log, format); got != sentence {
				c.t.Errorf("%s: the %s log ends with %q, and stderr has %q", verb, format, got, sentence)
			}
		}
	}
	now, err := os.Lstat(path)
	if err != nil || c.specText() != before || !os.SameFile(stat, now) {
		c.t.Errorf("config.json was touched: %v", err)
	}
	c.nothingLeft()
}

// oneSentence checks what a person gets to read, and returns it.
func oneSentence(t *testing.T, stderr string, words []string) string {
	t.Helper()
	sentence := strings.TrimSuffix(stderr, "\n")
	if strings.Contains(sentence, "\n") || !strings.HasPrefix(sentence, "agentbox: ") {
		t.Errorf("stderr is not one line of agentbox: %q", stderr)
	}
	for _, word := range words {
		if !strings.Contains(sentence, word) {
			t.Errorf("stderr does not say %q: %s", word, sentence)
		}
	}
	return sentence
}

// lastLogged returns the message of the last line of a log, and checks that the
// line is an error in the form that runc writes and that engines read.
func lastLogged(t *testing.T, name, format string) string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(readFile(t, name)), "\n")
	last := lines[len(lines)-1]
	var line struct{ Level, Msg, Time string }
	if format == "json" {
		if err := json.Unmarshal([]byte(last), &line); err != nil {
			t.Fatalf("%q: %v", last, err)
		}
	} else {
		line.Time, line.Level, line.Msg = logfmt(t, last)
	}
	if _, err := time.Parse(time.RFC3339, line.Time); err != nil || line.Level != "error" {
		t.Errorf("not a line of an error with a time: %q", last)
	}
	return line.Msg
}

// logfmt reads a line of runc's text format: time="..." level=error msg="...".
func logfmt(t *testing.T, line string) (stamp, level, msg string) {
	t.Helper()
	before, quoted, ok := strings.Cut(line, " msg=")
	if !ok || json.Unmarshal([]byte(quoted), &msg) != nil {
		t.Fatalf("not a line of a text log: %q", line)
	}
	stamp, level, _ = strings.Cut(before, " level=")
	return strings.Trim(strings.TrimPrefix(stamp, "time="), `"`), level, msg
}

// nothingLeft looks for a container, state, or cgroup of this id.
func (c *Container) nothingLeft() {
	c.t.Helper()
	if exists(filepath.Join(c.Root, c.ID)) {
		c.t.Errorf("%s knows the container", c.LowLevel)
	}
	entries, _ := os.ReadDir(c.State)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "keep-") { // remembers what the low-level runtime can do
			inside, _ := filepath.Glob(filepath.Join(c.State, e.Name(), "*", "*"))
			c.t.Errorf("the state folder has %s with %q", e.Name(), inside)
		}
	}
	for _, dir := range parents() {
		if exists(filepath.Join(dir, c.ID)) {
			c.t.Errorf("there is a cgroup %s", filepath.Join(dir, c.ID))
		}
	}
	if names, _ := filepath.Glob(filepath.Join(c.Bundle, ".config.json*")); len(names) > 0 {
		c.t.Errorf("half-written specifications are left: %v", names)
	}
}

func TestBrokenConfigurationRefusesEveryContainer(t *testing.T) {
	cases := []struct {
		name, text string
		words      []string
	}{
		{"not TOML", "[limits", []string{"config.toml:3"}},
		{"unknown key", "[limits]\nmemroy = \"1GiB\"", []string{"config.toml:4", "limits.memroy", "did you mean", "memory"}},
		{"malformed size", "[limits]\nmemory = \"1 GiBit\"", []string{"config.toml:4", "limits.memory", `"1 GiBit"`, "512MiB"}},
		{"number for a switch", "[limits]\ncore_dumps = 1", []string{"config.toml:4", "limits.core_dumps", "true or false"}},
		{"limit of zero", "[limits]\npids = 0", []string{"config.toml:4", "limits.pids"}},
		{"unknown mode", "mode = \"lenient\"", []string{"config.toml:3", "mode", `"lenient"`, "strict"}},
		{"unknown scope", "[oom]\nscope = \"pod\"", []string{"config.toml:4", "oom.scope", `"pod"`}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			newBox(t, "runc", tc.text).container(sh("exit 0")).refused(tc.words...)
		})
	}
	t.Run("everybody may write it", func(t *testing.T) {
		t.Parallel()
		c := newBox(t, "runc").container(sh("exit 0"))
		if err := os.Chmod(c.Config, 0o666); err != nil {
			t.Fatal(err)
		}
		c.refused("config.toml", "can be written by everybody", "chmod go-w")
	})
	t.Run("it is not there", func(t *testing.T) {
		t.Parallel()
		c := newBox(t, "runc").container(sh("exit 0"))
		if err := os.Remove(c.Config); err != nil {
			t.Fatal(err)
		}
		c.refused("config.toml", "does not exist")
	})
}

// A configuration that broke while containers run must not keep anybody from
// looking at them and stopping them.
func TestBrokenConfigurationDoesNotKeepContainersFromBeingStopped(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("sleep 1000"))
		c.begin(byCreate)
		writeFile(t, c.Config, readFile(t, c.Config)+"[limits\n")
		if out := c.must("state", c.ID); !strings.Contains(out.Stdout, `"running"`) {
			t.Errorf("state: %v", out)
		}
		c.must("kill", c.ID, "KILL")
		c.waitGone(60 * time.Second)
		c.delete()
		if r := c.kept(c.ID); len(r) != 1 {
			t.Errorf("%d results are kept", len(r))
		}
	})
}

func TestMalformedAnnotationIsRefused(t *testing.T) {
	cases := []struct {
		name, key, value string
		words            []string
	}{
		{"misspelt name", "agentbox.dev/memroy", "1g", []string{"agentbox.dev/memroy", `"1g"`, "did you mean agentbox.dev/memory?"}},
		{"malformed size", "agentbox.dev/memory", "lots", []string{"agentbox.dev/memory", `"lots"`, "512MiB"}},
		{"negative number", "agentbox.dev/pids", "-5", []string{"agentbox.dev/pids", `"-5"`}},
		{"unknown profile", "agentbox.dev/profile", "huge", []string{"agentbox.dev/profile", `"huge"`, "small"}},
		{"scope that the policy does not allow", "agentbox.dev/oom-scope", "process", []string{"oom-scope", `"process"`, "[oom] allow"}},
		{"unknown scope", "agentbox.dev/oom-scope", "pod", []string{"agentbox.dev/oom-scope", `"pod"`}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newBox(t, "runc").container(sh("exit 0"), annotation(tc.key, tc.value))
			c.refused(append(tc.words, "config.json")...)
			r := c.result()
			if r.Status != verdict.Refused || r.ErrorCode != verdict.ConfigInvalid || !strings.Contains(r.Message, tc.value) {
				t.Errorf("the result does not say why: %s", describe(r))
			}
		})
	}
}

func TestMalformedSpecIsRefused(t *testing.T) {
	cases := []struct {
		name  string
		text  string // instead of the specification
		tweak Tweak
		words []string
	}{
		{"empty file", "\n", nil, []string{"config.json"}},
		{"half a file", `{"process": {"args": [`, nil, []string{"config.json"}},
		{"a list", "[]", nil, []string{"config.json"}},
		{"a key twice", `{"linux": {}, "linux": {"resources": {}}}`, nil, []string{"config.json", "linux", "twice"}},
		{"text for a number", "", resource("64m", "memory", "limit"), []string{"config.json", "linux.resources.memory.limit"}},
		{"half a byte", "", resource(64.5, "memory", "limit"), []string{"config.json", "linux.resources.memory.limit", "64.5"}},
		{
			"swap below memory", "", func(s Spec) { memoryLimit(64 * mib)(s); resource(mib, "memory", "swap")(s) },
			[]string{"config.json", "linux.resources.memory.swap 1048576", "below"},
		},
		{"memory too small for anything", "", memoryLimit(4096), []string{"config.json", "memory 4KiB from the spec", "6MiB"}},
		{"period that no kernel takes", "", resource(999, "cpu", "period"), []string{"config.json", "cpu period 999", "1000 to 1000000"}},
		{"oomScoreAdj out of range", "", with(1001, "process", "oomScoreAdj"), []string{"config.json", "oomScoreAdj 1001"}},
		{"rlimit twice", "", with([]any{
			map[string]any{"type": "RLIMIT_NOFILE", "soft": 10, "hard": 10}, map[string]any{"type": "RLIMIT_NOFILE", "soft": 20, "hard": 20},
		}, "process", "rlimits"), []string{"config.json", "RLIMIT_NOFILE", "twice"}},
		{"annotation that is not text", "", with(7, "annotations", "agentbox.dev/pids"), []string{"config.json", "agentbox.dev/pids"}},
		{"unified file outside of the cgroup", "", resource(map[string]any{"../../x": "1"}, "unified"), []string{"config.json", "../../x"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, "runc")
			c := b.container(sh("exit 0"))
			if tc.tweak != nil {
				c = b.container(sh("exit 0"), tc.tweak)
			}
			if tc.text != "" {
				writeFile(t, filepath.Join(c.Bundle, "config.json"), tc.text)
			}
			c.refused(tc.words...)
		})
	}
}

// The bundle may have been written by somebody else: what its config.json points
// at is neither read nor replaced.
func TestSpecThatIsASymbolicLinkIsRefused(t *testing.T) {
	t.Parallel()
	c := newBox(t, "runc").container(sh("exit 0"))
	path, target := filepath.Join(c.Bundle, "config.json"), filepath.Join(tempDir(t), "real.json")
	if err := os.Rename(path, target); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	c.refused("config.json", "symbolic link")
}

func TestMissingSpecIsRefused(t *testing.T) {
	t.Parallel()
	c := newBox(t, "runc").container(sh("exit 0"))
	if err := os.Remove(filepath.Join(c.Bundle, "config.json")); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"create", "run"} {
		out := c.try(verb, "--bundle", c.Bundle, c.ID)
		oneSentence(t, out.Stderr, []string{"config.json", "no such file"})
		if out.Code != 1 {
			t.Errorf("%s: %v", verb, out)
		}
	}
	c.nothingLeft()
}

func TestLowLevelRuntimeThatIsNoneIsRefused(t *testing.T) {
	self := runtimePath()
	link := func(t *testing.T) string {
		t.Helper()
		name := filepath.Join(tempDir(t), "runc")
		if err := os.Symlink(self, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	t.Run("it is not there", func(t *testing.T) {
		t.Parallel()
		newBox(t, "/nonexistent/runc").container(sh("exit 0")).refused(`"/nonexistent/runc"`, "config.toml", "install it")
	})
	t.Run("it is not on the path", func(t *testing.T) {
		t.Parallel()
		newBox(t, "runk").container(sh("exit 0")).refused(`"runk"`, "config.toml", "install it")
	})
	t.Run("it is agentbox itself under another name", func(t *testing.T) {
		t.Parallel()
		newBox(t, link(t)).container(sh("exit 0")).refused("is agentbox-runtime itself", "name runc or crun")
	})
	t.Run("it is not a program", func(t *testing.T) {
		t.Parallel()
		name := filepath.Join(tempDir(t), "runc")
		writeFile(t, name, "no program")
		newBox(t, name).container(sh("exit 0")).refused(name, "config.toml")
	})
	t.Run("the kernel cannot execute it", func(t *testing.T) {
		t.Parallel()
		name := filepath.Join(tempDir(t), "runc")
		if err := os.WriteFile(name, []byte("no program"), 0o700); err != nil {
			t.Fatal(err)
		}
		c := newBox(t, name).container(sh("exit 0"))
		for _, args := range [][]string{{"create"}, {"run"}, {"run", "--detach"}} {
			out := c.try(append(args, "--bundle", c.Bundle, c.ID)...)
			oneSentence(t, out.Stderr, []string{name, "exec format error"})
			if out.Code != 1 {
				t.Errorf("%q: %v", args, out)
			}
			c.nothingLeft()
		}
	})
}

// In strict mode a container starts with all that is required, or not at all.
func TestStrictModeRefusesWhatThisHostDoesNotEnforce(t *testing.T) {
	const policy = "mode = \"strict\"\nstrict_require = [\"memory\", \"inodes\", \"disk\"]"
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel, policy).container(sh("exit 0"))
		c.refused("strict mode", "inodes (", "disk (", "strict_require", `mode = "auto"`)
		r := c.result()
		if r.Status != verdict.Refused || r.ErrorCode != verdict.LimitUnenforceable || r.Mode != limits.ModeStrict {
			t.Errorf("the result does not say why: %s", describe(r))
		}
	})
}

func TestStrictModeStartsWhatThisHostEnforces(t *testing.T) {
	const policy = "mode = \"strict\"\nstrict_require = [\"memory\", \"swap\", \"pids\", \"cpu\", \"open_files\"]"
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		need(t, swapLimit)
		c := newBox(t, lowLevel, policy).heldContainer("exit 0")
		c.begin(w)
		have := c.limits()
		c.release()
		_, r := c.finish(w)
		sameAsReport(t, r, have)
		for _, dimension := range []string{"memory", "swap", "pids", "cpu"} {
			if e := r.Enforcement[dimension]; e.Enforcer != limits.EnforcerKernel || e.Effective == nil {
				t.Errorf("%s is enforced by %s: %+v", dimension, e.Enforcer, e)
			}
		}
	})
}

// Off means off: the bytes of the specification stay, the container gets what it
// asked for, and the report says what would have been.
func TestOffModeChangesNothingAndReports(t *testing.T) {
	const policy = "mode = \"off\"\n[limits]\npids = 99"
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		c := newBox(t, lowLevel, policy).heldContainer("exit 0", memoryLimit(96*mib))
		before := c.specText()
		c.begin(w)
		if w == byRun {
			eventually(t, 60*time.Second, func() string { // the user's program runs
				if adj := readFile(t, "/proc/"+itoa(c.pid())+"/comm"); strings.TrimSpace(adj) != "sh" {
					return "the program is " + adj
				}
				return ""
			})
		}
		have := c.limits()
		if have.Memory != 96*mib || have.Pids != unlimited || have.GroupKill {
			t.Errorf("the cgroup has %+v", have)
		}
		if c.specText() != before {
			t.Error("config.json was changed")
		}
		c.release()
		if w != byCreate { // run is left alone altogether: no moment to read anything at
			if out := c.await(w); w == byRun && out.Code != 0 {
				t.Errorf("run: %v", out)
			}
			return
		}
		_, r := c.finish(w)
		sameAsReport(t, r, have)
		if detail := r.Enforcement["pids"].Detail; r.Mode != limits.ModeOff || !strings.Contains(detail, "it would be 99") {
			t.Errorf("the report has mode %s, and says of pids: %q", r.Mode, detail)
		}
	})
}

// forgetful is a low-level runtime that does not set the limit of 99 tasks.
func forgetful(t *testing.T, lowLevel string) string {
	t.Helper()
	path, err := exec.LookPath(lowLevel)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(tempDir(t), lowLevel)
	script := "#!/bin/sh\nfor last; do case $last in */*) [ -e $last/config.json ] && sed -i 's/\"limit\": *99/\"limit\":-1/' $last/config.json ;; esac; done\n" +
		"exec " + path + " \"$@\"\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program
}

// Limits are read back from the kernel. In strict mode a container without a
// required one does not start, whoever forgot it.
func TestStrictModeRefusesALimitThatDoesNotHold(t *testing.T) {
	const policy = "mode = \"strict\"\nstrict_require = [\"memory\", \"pids\"]\n[limits]\npids = 99"
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		c := newBox(t, forgetful(t, lowLevel), policy).container(sh("echo I run"))
		var out Output
		switch w {
		case byCreate:
			c.create()
			out = c.try("start", c.ID)
			oneSentence(t, out.Stderr, []string{"strict mode", "pids (99 was planned and pids.max is none)"})
			c.must("delete", "--force", c.ID)
			out.Stdout += c.main.output().Stdout
		case byRun:
			out = c.try("run", "--bundle", c.Bundle, c.ID)
		case byDetach:
			out = c.try("run", "--detach", "--bundle", c.Bundle, c.ID)
			c.try("delete", "nobody") // sweeps
		}
		if out.Code == 0 || strings.Contains(out.Stdout, "I run") {
			t.Errorf("it ran: %v", out)
		}
		c.nothingLeft()
		r := c.result()
		if r.Status != verdict.Refused || r.ErrorCode != verdict.LimitUnenforceable {
			t.Errorf("the result does not say why: %s", describe(r))
		}
	})
}

// Docker's /var/run is a symbolic link, and the folder below it is made by the
// first container: what create remembers is found again by start.
func TestStrictModeRefusesTheFirstContainerToo(t *testing.T) {
	const policy = "mode = \"strict\"\nstrict_require = [\"pids\"]\n[limits]\npids = 99"
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		b := newBox(t, forgetful(t, lowLevel), policy)
		dir := tempDir(t)
		if err := os.Mkdir(filepath.Join(dir, "run"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("run", filepath.Join(dir, "var-run")); err != nil {
			t.Fatal(err)
		}
		b.Root = filepath.Join(dir, "var-run/runtime/moby")
		c := b.container(sh("echo I run"))
		c.create()
		out := c.try("start", c.ID)
		oneSentence(t, out.Stderr, []string{"strict mode", "pids (99 was planned and pids.max is none)"})
		c.must("delete", "--force", c.ID)
		c.nothingLeft()
	})
}

// The hook of a run works in another folder than its caller.
func TestRelativeStateFolderIsFoundByTheHook(t *testing.T) {
	const policy = "mode = \"strict\"\nstrict_require = [\"pids\"]\n[limits]\npids = 99"
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel, policy).container(sh("echo I run"))
		cmd := exec.Command(runtimePath(), "--agentbox-config", c.Config, "--agentbox-state", filepath.Base(c.State), "--root", c.Root,
			"run", "--bundle", c.Bundle, c.ID)
		cmd.Dir = filepath.Dir(c.State)
		if out := execute(t, 30*time.Second, cmd); out.Code != 0 || !strings.Contains(out.Stdout, "I run") {
			t.Errorf("it did not run: %v", out)
		}
		if e := c.result().Enforcement["pids"]; e.Enforcer != limits.EnforcerKernel {
			t.Errorf("its limits were not read back: %+v", e)
		}
	})
}

func TestLimitThatDoesNotHoldIsReported(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		c := newBox(t, forgetful(t, lowLevel), "[limits]\npids = 99").container(sh("exit 0"))
		_, r := c.complete(w)
		wantWarning(t, r, "pids: 99 was planned and pids.max is none")
		if e := r.Enforcement["pids"]; e.Enforcer != limits.EnforcerNone || e.Effective != nil {
			t.Errorf("pids: %+v", e)
		}
	})
}

// Who tries agentbox out in mode off keeps what works without it.
func TestOffModeRefusesNothing(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		b := newBox(t, lowLevel, "mode = \"off\"")
		c := b.container(sh("echo I run"), annotation("agentbox.dev/memory", "lots"))
		args := map[way][]string{byCreate: {"create"}, byRun: {"run"}, byDetach: {"run", "--detach"}}[w]
		log := filepath.Join(tempDir(t), "log")
		c.main = launch(t, c.command(append([]string{"--log", log}, append(args, "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID)...)...))
		bare := b.container(sh("echo I run"))
		without := execute(t, 30*time.Second, b.bare(append(args, "--bundle", bare.Bundle, bare.ID)...))
		if out := c.main.wait(30 * time.Second); out.Code != without.Code {
			t.Errorf("%v, and without us %v", out, without)
		}
		if text := readFile(t, log); !strings.Contains(text, "mode off") || !strings.Contains(text, "agentbox.dev/memory") {
			t.Errorf("the log does not say what is wrong: %q", text)
		}
		for _, c := range []*Container{c, bare} {
			execute(t, 30*time.Second, b.bare("delete", "--force", c.ID))
		}
	})
}
