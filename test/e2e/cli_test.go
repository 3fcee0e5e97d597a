//go:build e2e

package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// However a container is started, it has its limits; what the low-level runtime
// does not understand starts nothing.
func TestEveryFormOfACommandLineGetsItsLimits(t *testing.T) {
	const policy = "[limits]\npids = 99"
	both, onlyCrun := []string{"runc", "crun"}, []string{"crun"}
	cases := []struct {
		name   string
		args   []string // B stands for the bundle, S for its config.json, ID for the id
		dir    string   // the current folder: "/", B, or the one that has "bundle"
		starts []string // with which low-level runtimes; with others it is refused
	}{
		{"long flag", []string{"create", "--bundle", "B", "ID"}, "/", both},
		{"long flag with an equals sign", []string{"create", "--bundle=B", "ID"}, "/", both},
		{"short flag", []string{"create", "-b", "B", "ID"}, "/", both},
		{"short flag with an equals sign", []string{"create", "-b=B", "ID"}, "/", []string{"runc"}},
		{"long flag with one dash", []string{"create", "-bundle", "B", "ID"}, "/", []string{"runc"}},
		{"flag behind the id", []string{"create", "ID", "-b", "B"}, "/", []string{"runc"}},
		{"switch before the id and bundle behind, which runc misreads", []string{"create", "--no-pivot", "ID", "--bundle=B"}, "/", nil},
		{"letter with its value", []string{"create", "-bB", "ID"}, "/", onlyCrun},
		{"shortened flag", []string{"create", "--bun=B", "ID"}, "/", onlyCrun},
		{"no bundle is the current folder", []string{"create", "ID"}, "B", both},
		{"relative bundle", []string{"create", "-b", "bundle", "ID"}, "above", both},
		{"dashes before the id", []string{"create", "--bundle", "B", "--", "ID"}, "/", both},
		{"other specification", []string{"create", "--bundle", "B", "-f", "S", "ID"}, "/", onlyCrun},
		{"other specification by its long name", []string{"create", "-b", "B", "--config=S", "ID"}, "/", onlyCrun},
		{"run", []string{"run", "-d", "-b", "B", "ID"}, "/", both},
		{"run with flags behind the id", []string{"run", "ID", "--detach", "-b", "B"}, "/", []string{"runc"}},
	}
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		for _, tc := range cases {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				c := newBox(t, lowLevel, policy).container(sh("sleep 1000"))
				above := tempDir(t)
				if err := exec.Command("ln", "-s", c.Bundle, filepath.Join(above, "bundle")).Run(); err != nil {
					t.Fatal(err)
				}
				words := strings.NewReplacer("ID", c.ID, "B", c.Bundle, "S", filepath.Join(c.Bundle, "config.json"))
				args := slices.Clone(tc.args)
				for i := range args {
					args[i] = words.Replace(args[i])
				}
				cmd := c.command(slices.Insert(args, 1, "--pid-file", c.PidFile)...)
				cmd.Dir = map[string]string{"/": "/", "B": c.Bundle, "above": above}[tc.dir]

				out := execute(t, 30*time.Second, cmd)
				if !slices.Contains(tc.starts, lowLevel) {
					if out.Code == 0 {
						t.Errorf("it starts: %v", out)
					}
					return // cleanUp looks whether anything is left
				}
				if out.Code != 0 {
					t.Fatalf("it does not start: %v", out)
				}
				if have := c.limits(); have.Pids != 99 {
					t.Errorf("pids.max is %d, want 99", have.Pids)
				}
				c.must("delete", "--force", c.ID)
			})
		}
	})
}

// Folders and containers may have the names of verbs.
func TestNamesThatAreVerbsAreNotTakenForOne(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel, "[limits]\npids = 99").container(sh("sleep 1000"))
		above := tempDir(t)
		root := "create"
		if lowLevel == "crun" { // it reads a relative root from two folders
			root = filepath.Join(above, "create")
		}
		command := func(args ...string) {
			t.Helper()
			cmd := exec.Command(runtimePath(), append([]string{
				"--root", root, "--log=create.log",
				"--agentbox-config", c.Config, "--agentbox-state", c.State,
			}, args...)...)
			cmd.Dir = above
			out := execute(t, 30*time.Second, cmd)
			if out.Code != 0 {
				t.Fatalf("%q: %v", args, out)
			}
		}
		command("create", "--bundle", c.Bundle, "--pid-file", c.PidFile, "create")
		if have := c.limits(); have.Pids != 99 {
			t.Errorf("pids.max is %d, want 99", have.Pids)
		}
		command("start", "create")
		command("delete", "--force", "create")
		if r := c.kept("create"); len(r) != 1 {
			t.Errorf("%d results are kept", len(r))
		}
	})
}

// A container whose command line nobody understood would start without limits.
func TestUnknownFlagBeforeAStartIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"--nonsense"}, {"--nonsense=1"}, {"-x"}, {"--agentbox-stat=/tmp/x"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			c := newBox(t, "runc").container(sh("exit 0"))
			before := c.specText()
			for _, verb := range []string{"create", "run", "restore"} {
				out := execute(t, 30*time.Second, c.command(append(slices.Clone(args), verb, "--bundle", c.Bundle, c.ID)...))
				oneSentence(t, out.Stderr, []string{"command line", args[0]})
				if out.Code != 1 || out.Stdout != "" {
					t.Errorf("%s: %v", verb, out)
				}
			}
			if c.specText() != before {
				t.Error("config.json was changed")
			}
			c.nothingLeft()
		})
	}
}

// What is not about starting a container reaches the low-level runtime as it is,
// and so does its answer.
func TestEveryOtherVerbAnswersAsTheLowLevelRuntime(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		b := newBox(t, lowLevel)
		c := b.container(sh("echo ready; sleep 1000"))
		c.begin(byCreate)
		c.printed("ready")
		cases := [][]string{
			{"--version"},
			{"--help"},
			{"features"},
			{"help"},
			{},
			{"frobnicate"},
			{"frobnicate", "--now", c.ID},
			{"--nonsense"},
			{"--nonsense", "state", c.ID},
			{"--version", "create"},
			{"state", c.ID},
			{"state", "nobody"},
			{"state"},
			{"list"},
			{"list", "-q"},
			{"list", "--format", "json"},
			{"ps", c.ID, "-o", "pid,args"}, // the usual columns have its share of the CPU
			{"ps", "--format", "json", c.ID},
			{"ps", "nobody"},
			{"events", "--stats", c.ID},
			{"kill", c.ID, "0"},
			{"kill", c.ID, "NOSUCH"},
			{"kill", "nobody", "KILL"},
			{"exec", c.ID, "echo", "hello"},
			{"exec", c.ID, "sh", "-c", "exit 42"},
			{"exec", "nobody", "true"},
			{"create", "--help"},
			{"run", "-h"},
			{"delete", "--help"},
			{"start", "nobody"},
			{"start"},
			{"delete", "nobody"},
			{"delete", "--force", "nobody"},
			{"delete"},
			{"delete", c.ID},
			{"resume", c.ID},
			{"pause", "nobody"},
			{"checkpoint", "--image-path", filepath.Join(c.Bundle, "image"), "nobody"},
		}
		for _, args := range cases {
			sameAnswer(t, execute(t, 30*time.Second, b.command(args...)), execute(t, 30*time.Second, b.bare(args...)), args)
		}
	})
}

// varying is what changes from one call to the next: times and pids, and
// counters of a running container.
var varying = regexp.MustCompile(`time="[^"]*"|"time":"[^"]*"|\d{4}-\d\d-\d\dT[\d:.]+Z|[0-9]{2,}`)

func sameAnswer(t *testing.T, ours, bare Output, args []string) {
	t.Helper()
	if ours.Code != bare.Code {
		t.Errorf("%q: exit code %d, the low-level runtime has %d: %v", args, ours.Code, bare.Code, ours)
	}
	ignore := func(text string) string {
		// Help texts and error messages name the program by its own path.
		text = regexp.MustCompile(`/\S*/(runc|crun)\b`).ReplaceAllString(text, "$1")
		return varying.ReplaceAllString(text, "N")
	}
	if ignore(ours.Stdout) != ignore(bare.Stdout) {
		t.Errorf("%q: stdout\n%s\nthe low-level runtime has\n%s", args, ours.Stdout, bare.Stdout)
	}
	if ignore(ours.Stderr) != ignore(bare.Stderr) {
		t.Errorf("%q: stderr\n%s\nthe low-level runtime has\n%s", args, ours.Stderr, bare.Stderr)
	}
}

func TestSpecWritesTheLowLevelRuntimesExample(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		b := newBox(t, lowLevel)
		written := func(cmd *exec.Cmd) string {
			t.Helper()
			cmd.Dir = tempDir(t)
			if out := execute(t, 30*time.Second, cmd); out.Code != 0 {
				t.Fatal(out)
			}
			return readFile(t, filepath.Join(cmd.Dir, "config.json"))
		}
		if written(b.command("spec")) != written(b.bare("spec")) {
			t.Error("the two examples differ")
		}
	})
}

func TestPauseAndResumeWorkOnOurContainers(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("sleep 1000"))
		c.begin(byCreate)
		status := func(want string) {
			t.Helper()
			if out := c.must("state", c.ID); !strings.Contains(out.Stdout, `"status": "`+want+`"`) {
				t.Errorf("want it %s: %v", want, out)
			}
		}
		status("running")
		c.must("pause", c.ID)
		status("paused")
		c.must("resume", c.ID)
		status("running")
		if out := c.must("exec", c.ID, "echo", "hello"); out.Stdout != "hello\n" {
			t.Errorf("exec: %v", out)
		}
	})
}
