package ocicli

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/test/promise"
)

// These tests ask the installed low-level runtimes themselves. Each is run in
// an empty folder, where it fails at the first thing that is not there, and
// says what it was looking for.

// program returns the path of a low-level runtime. Without it the test is
// skipped, or fails where AGENTBOX_TEST_REQUIRE=1 promises it.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	promise.Lacks(t, err)
	return ""
}

// output runs a program in folder, and returns all it says, also in log files.
func output(t *testing.T, folder, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %q: %v", program, args, err)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if info, err := os.Lstat(file); err == nil && info.Mode().IsRegular() {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			out = append(append(out, '\n'), text...)
		}
	}
	return string(out)
}

// nested returns an empty folder in which "--root .." does no harm.
func nested(t *testing.T) string {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	folder = filepath.Join(folder, "a", "b")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	return folder
}

var (
	missingBundle = regexp.MustCompile("(?:realpath|chdir) `(.*)` failed|chdir (.*): (?:no such file|not a dir)")
	missingConfig = regexp.MustCompile("error loading config.json|open `config.json`|config.json not found")
)

// bundleSeen returns the bundle that the program would create a container
// from; ok says whether it got so far.
func bundleSeen(t *testing.T, program string, args []string) (bundle string, ok bool) {
	t.Helper()
	folder := nested(t)
	for _, file := range []string{"F", "=F", "P", "1", "create", "a_b"} { // crun looks for its --config first
		if err := os.WriteFile(filepath.Join(folder, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := output(t, folder, program, append([]string{"--root", "root"}, args...)...)
	if m := missingBundle.FindStringSubmatch(out); m != nil {
		return strings.TrimPrefix(m[1]+m[2], folder+"/"), true
	}
	return "", missingConfig.MatchString(out)
}

// harmless maps a line into the folder it is run in; ok is false where that
// does not help.
func harmless(args []string) (mapped []string, ok bool) {
	for _, arg := range args {
		if strings.Contains(arg, "..") {
			return nil, false
		}
		mapped = append(mapped, strings.ReplaceAll(arg, "/", "_"))
	}
	return mapped, true
}

func TestBundleAgainstPrograms(t *testing.T) {
	var lines [][]string
	for _, tt := range understood {
		lines = append(lines, argv(tt.line))
	}
	for _, tt := range refused {
		lines = append(lines, argv(tt.line))
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 150 {
		lines = append(lines, randomLine(rnd))
	}
	for _, name := range []string{"runc", "crun"} {
		t.Run(name, func(t *testing.T) {
			program, started := program(t, name), 0
			for _, line := range lines {
				args, ok := harmless(withoutOwn(line))
				if !ok {
					continue
				}
				t.Chdir(t.TempDir())
				bundle, ok := bundleSeen(t, program, args)
				if !ok {
					continue
				}
				started++
				c, err := Parse(args)
				if err == nil && (!c.Creates() || c.Bundle != bundle && !failsAtSecondReading(args, bundle)) {
					t.Errorf("%q: %s looks for the bundle %q, Parse says %+v", args, name, bundle, got(c))
				}
			}
			t.Logf("%d of %d lines got as far as their bundle", started, len(lines))
			if started < 40 {
				t.Error("too few lines get as far as their bundle")
			}
		})
	}
}

// failsAtSecondReading says that crun looked for -b=B's "=B" or -bundle=B's
// "undle=B", which Parse has seen not to exist.
func failsAtSecondReading(args []string, bundle string) bool {
	return slices.ContainsFunc(args, func(arg string) bool { return createFlags.otherValue(arg) == bundle })
}

// crun names the container that is there already.
func TestIDAgainstCrun(t *testing.T) {
	crun, found := program(t, "crun"), 0
	exists := regexp.MustCompile("container `(.*)` already exists")
	for _, tt := range understood {
		c, err := Parse(argv(tt.line))
		if err != nil || !c.Creates() || c.PidFile != "" || c.SpecFile != "" {
			continue
		}
		folder := nested(t)
		bundle := filepath.Join(folder, strings.ReplaceAll(c.Bundle, "/", "_"))
		if err := os.MkdirAll(bundle, 0o700); err != nil {
			t.Fatal(err)
		}
		output(t, bundle, crun, "spec") // its rootfs does not exist: nothing ever starts
		config := filepath.Join(bundle, "config.json")
		text, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.Replace(string(text), `"terminal": true`, `"terminal": false`, 1))
		if err := os.WriteFile(config, text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"c1", "create", "help", "--keep", "B"} {
			if err := os.MkdirAll(filepath.Join(folder, "root", id), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		args, _ := harmless(c.Args[c.verb:])
		out := output(t, folder, crun, append([]string{"--root", filepath.Join(folder, "root")}, args...)...)
		if m := exists.FindStringSubmatch(out); m != nil {
			found++
			if m[1] != c.ID {
				t.Errorf("%q: crun sees the id %q, Parse %q", tt.line, m[1], c.ID)
			}
		}
	}
	if found < 8 {
		t.Errorf("crun named a container %d times", found)
	}
}

// Every flag that the installed runtimes list in their help is known, and as
// what it is.
func TestFlagsAgainstHelp(t *testing.T) {
	// runc: "   --bundle value, -b value  path"; crun: "  -b, --bundle=DIR           container".
	line := regexp.MustCompile(`^ +(?:-(\w), +)?--([a-z0-9-]+)(?:(\[=)|(=| value))?`)
	for _, name := range []string{"runc", "crun"} {
		t.Run(name, func(t *testing.T) {
			program := program(t, name)
			for _, verb := range []string{"", "create", "run", "restore", "delete", "exec", "update", "start", "state"} {
				flags, args := globalFlags, []string{"--help"}
				if verb != "" {
					flags, args = verbFlags(verb), []string{verb, "--help"}
				}
				seen := 0
				for text := range strings.Lines(output(t, nested(t), program, args...)) {
					m := line.FindStringSubmatch(text)
					if m == nil {
						continue
					}
					seen++
					want := boolean
					switch {
					case m[3] != "" || name == "runc" && m[2] == "tty":
						want = optional
					case m[4] != "":
						want = valued
					}
					if f := flags.find(m[2], false); f == nil || f.kind != want || !strings.Contains(f.short, m[1]) {
						t.Errorf("%s %s has %q, here it is %+v", name, verb, strings.TrimSpace(text), f)
					}
				}
				if seen == 0 && verb != "start" && verb != "state" && (name != "crun" || verb != "restore") {
					t.Errorf("%s %s lists no flag", name, verb)
				}
			}
		})
	}
}
