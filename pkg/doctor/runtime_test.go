package doctor

import (
	"bytes"
	"compress/gzip"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
)

func TestParseProgram(t *testing.T) {
	for _, c := range []struct {
		out, program, version string
		ok                    bool
	}{
		{"runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n", "runc", "1.1.5+ds1", true},
		{"runc version 1.4.0-rc.3\n", "runc", "1.4.0-rc.3", true},
		{"crun version 1.8.1\ncommit: f8a096be060b22ccd3d5f3ebe44108517fbf6c30\n", "crun", "1.8.1", true},
		{"runsc version release-20250707.0\nspec: 1.1.0-rc.1\n", "runsc", "release-20250707.0", true},
		{"runc version spec: 1.0.1-dev\n", "runc", "", true},
		{"runc version\n", "runc", "", true},
		{"", "", "", false},
		{"GNU bash, version 5.2\n", "", "", false},
		{"usage: runc [options]\n", "", "", false},
	} {
		program, version, ok := parseProgram(c.out)
		if program != c.program || version != c.version || ok != c.ok {
			t.Errorf("%q: %q, %q, %t", c.out, program, version, ok)
		}
	}
}

func script(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "low")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestAsk(t *testing.T) {
	const short, long = 300 * time.Millisecond, 3 * time.Second
	for _, c := range []struct {
		name, text, out, problem string
		within                   time.Duration
	}{
		{"answers", `[ "$*" = --version ] && echo runc version 1.3.6`, "runc version 1.3.6\n", "", time.Minute},
		{"fails with a reason", "echo no such thing >&2\nexit 1", "", "exit status 1: no such thing", time.Minute},
		{"fails without one", "exit 3", "", "exit status 3", time.Minute},
		{"does not answer", "exec sleep 60", "", "does not answer --version within 300ms", short},
		{"leaves a child that holds its output", "sleep 60 &\nexec sleep 60", "", "does not answer", short},
		{"answers, and leaves a child that holds its output", "echo runc version 1.3.6\nsleep 60 &", "runc version 1.3.6\n", "", long},
		{"fails, and leaves a child that holds its output", "echo no such thing >&2\nsleep 60 &\nexit 1", "", "exit status 1: no such thing", long},
		{"says very much", "head -c 1000000 /dev/zero", strings.Repeat("\x00", maxOutput), "", time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			out, err := ask(context.Background(), script(t, c.text), c.within)
			if out != c.out {
				t.Errorf("%d bytes: %.80q", len(out), out)
			}
			if c.problem == "" && err != nil || c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("error %v, want %q", err, c.problem)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// What a runtime has started ends with it, whether it has answered or not.
func TestAskLeavesNobodyBehind(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"does not answer", "sh -c 'sleep 60 & echo $! > \"$0.pid\"; wait' \"$0\""},
		{"answers", "sleep 60 >&- 2>&- & echo $! > \"$0.pid\"\necho runc version 1.3.6"},
		{"answers, and its child holds the output", "sleep 60 & echo $! > \"$0.pid\"\necho runc version 1.3.6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			program := script(t, c.text)
			out, err := ask(context.Background(), program, 3*time.Second)
			t.Logf("%q, %v", out, err)
			data, err := os.ReadFile(program + ".pid")
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
			if err != nil {
				t.Fatal(err)
			}
			for began := time.Now(); alive(pid); time.Sleep(10 * time.Millisecond) {
				if time.Since(began) > 10*time.Second {
					t.Fatalf("process %d is still there", pid)
				}
			}
		})
	}
}

// alive reports whether a process is there, and not just its exit status.
func alive(pid int) bool {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !bytes.Contains(data, []byte(") Z "))
}

// The path stands in the finding already.
func TestAskNamesNoPath(t *testing.T) {
	name := filepath.Join(t.TempDir(), "low")
	if err := os.WriteFile(name, []byte("\x7fELF"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := ask(context.Background(), name, time.Minute)
	if err == nil || err.Error() != "it cannot be started: exec format error" {
		t.Errorf("%v", err)
	}
}

func TestAVersionOfSaneLength(t *testing.T) {
	long := strings.Repeat("1", 60_000)
	for _, text := range []string{"runc version " + long, long + " version 1"} {
		program, version, ok := parseProgram(text)
		if !ok || len(program) > maxName || len(version) > maxName {
			t.Errorf("%d and %d bytes, %t", len(program), len(version), ok)
		}
	}
	_, err := ask(context.Background(), script(t, "echo "+long+" >&2\nexit 1"), time.Minute)
	if err == nil || len(err.Error()) > limits.MaxText+20 {
		t.Errorf("%.80v", err)
	}
}

// agentbox-runtime refuses to be its own low-level runtime, and doctor says so.
func TestRuntimeThatIsAgentbox(t *testing.T) {
	self := script(t, "echo runc version 1.3.6")
	other := filepath.Join(t.TempDir(), "runc")
	if err := os.Symlink(self, other); err != nil {
		t.Fatal(err)
	}
	g := gatherer{fs: cgroup.FS(t.TempDir()), lookPath: lookIn(map[string]string{"runc": other}), facts: Facts{Self: self}}
	if r := g.runtime(context.Background(), "runc"); !r.Itself || r.Path != other || r.Version != "" {
		t.Errorf("a link: %+v", r)
	}
	g.facts.Self = ""
	if r := g.runtime(context.Background(), "runc"); r.Itself || r.Version != "1.3.6" {
		t.Errorf("nobody knows where it is: %+v", r)
	}
}

func TestBuiltFrom(t *testing.T) {
	me, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o700); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{
		me: "github.com/agentbox/agentbox/pkg/doctor.test", script(t, "exit 0"): "", "/bin/sh": "", "/nowhere": "", pipe: "", t.TempDir(): "",
	} {
		if got := builtFrom(program); got != want {
			t.Errorf("%s: %q, want %q", program, got, want)
		}
	}
}

// A copy of agentbox-runtime is no less agentbox-runtime than a link to it.
func TestRuntimeThatIsACopyOfAgentbox(t *testing.T) {
	program := filepath.Join(t.TempDir(), "runc")
	if out, err := exec.Command("go", "build", "-o", program, runtimePackage).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	g := gatherer{fs: cgroup.FS(t.TempDir()), lookPath: lookIn(map[string]string{"runc": program})}
	if r := g.runtime(context.Background(), "runc"); !r.Itself || r.Path != program {
		t.Errorf("%+v", r)
	}
}

func TestRuntime(t *testing.T) {
	good := script(t, "echo runc version 1.3.6")
	paths := map[string]string{"good": good, "odd": script(t, "echo hello"), "failing": script(t, "exit 1")}
	g := gatherer{fs: cgroup.FS(t.TempDir()), lookPath: lookIn(paths)}
	for _, c := range []struct{ name, program, version, problem string }{
		{"good", "runc", "1.3.6", ""},
		{"odd", "", "", `it answers --version with "hello"`},
		{"failing", "", "", "exit status 1"},
		{"missing", "", "", ""},
	} {
		r := g.runtime(context.Background(), c.name)
		if r.Itself || r.Name != c.name || r.Path != paths[c.name] || r.Program != c.program || r.Version != c.version || r.Problem != c.problem {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

func compress(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(text))
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// changelog is the beginning of the one of Debian 12.
const changelog = `runc (1.1.5+ds1-1+deb12u1) bookworm-security; urgency=high

  * Team upload.
  * CVE-2024-21626: several container breakouts due to internally leaked fds

 -- Shengjing Zhu <zhsj@debian.org>  Fri, 02 Feb 2024 21:53:05 +0800

runc (1.1.5+ds1-1) unstable; urgency=medium

  * New upstream version 1.1.5+ds1
    + CVE-2023-28642: AppArmor/SELinux bypass with symlinked /proc
    + CVE-2023-27561: Incorrect Authorization vulnerability
      (re-introduced CVE-2019-19921) (Closes: #1033520)
`

func TestParseChangelog(t *testing.T) {
	whole := compress(t, changelog)
	want := []string{"CVE-2019-19921", "CVE-2023-27561", "CVE-2023-28642", "CVE-2024-21626"}
	if got := parseChangelog(whole); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := parseChangelog(compress(t, "CVE-2024-1 CVE-20244-21626 CVE-2024-2162 CVE-2024-2162")); !slices.Equal(got, []string{"CVE-2024-2162"}) {
		t.Errorf("%v", got)
	}
	for name, data := range map[string][]byte{"empty": nil, "not compressed": []byte(changelog), "nothing in it": compress(t, "")} {
		if got := parseChangelog(data); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzParseRuntime(f *testing.F) {
	f.Add([]byte("runc version 1.1.5+ds1\ncommit: x\n"))
	f.Add(compress(f, changelog))
	f.Fuzz(func(t *testing.T, data []byte) {
		if program, _, ok := parseProgram(string(data)); ok == (program == "") {
			t.Errorf("program %q, %t", program, ok)
		}
		for _, name := range parseChangelog(data) {
			if !strings.HasPrefix(name, "CVE-") {
				t.Errorf("%q", name)
			}
		}
	})
}
