//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// Engines remove the bundle before they call delete, or call it without knowing
// where the bundle was.
func TestDeleteWorksWhenTheBundleIsGone(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("sleep 1000"))
		c.begin(byCreate)
		if err := os.RemoveAll(c.Bundle); err != nil {
			t.Fatal(err)
		}
		c.must("delete", "--force", c.ID)
		c.nothingLeft()
		if r := c.result(); r.Status != verdict.Ended || r.Usage == nil {
			t.Errorf("the result: %s", describe(r))
		}
	})
}

func TestDeleteOfARunningContainerIsRefusedAndChangesNothing(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("sleep 1000"))
		c.begin(byCreate)
		if out := c.try("delete", c.ID); out.Code == 0 {
			t.Fatalf("delete: %v", out)
		}
		if r := c.result(); r.Status != verdict.Running || len(c.kept(c.ID)) != 0 {
			t.Errorf("it does not count as running any more: %s", describe(r))
		}
		c.must("kill", c.ID, "KILL")
		c.waitGone(60 * time.Second)
		c.delete()
		if n := len(c.kept(c.ID)); n != 1 {
			t.Errorf("%d results are kept", n)
		}
	})
}

// A live report follows the container from its creation to its end.
func TestReportFollowsTheLifeOfAContainer(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("sleep 1000"), memoryLimit(64*mib))
		c.create()
		if r := c.result(); r.Status != verdict.Created || r.FinishedAt != nil {
			t.Errorf("after create: %s", describe(r))
		}
		c.start()
		r := c.result()
		if r.Status != verdict.Running || r.FinishedAt != nil {
			t.Errorf("after start: %s", describe(r))
		}
		if e := r.Enforcement["memory"]; e.Source != limits.SourceSpec || e.Owner != "self" || e.Enforcer != limits.EnforcerKernel {
			t.Errorf("memory: %+v", e)
		}
		sameAsReport(t, r, c.limits())
		c.must("kill", c.ID, "KILL")
		c.waitGone(60 * time.Second)
		if r := c.result(); r.Status != verdict.Ended {
			t.Errorf("after its end: %s", describe(r))
		}
		c.delete()
		if r := c.result(); r.Status != verdict.Ended || r.FinishedAt == nil {
			t.Errorf("after delete: %s", describe(r))
		}
	})
}

// Annotations that the low-level runtime turns into settings of the host are
// dropped, ours are bounded by the ceilings; both are said.
func TestAnnotationsStayWithinThePolicy(t *testing.T) {
	const policy = "[limits]\nmemory = \"64MiB\"\n[ceilings]\nmemory = \"128MiB\"\npids = 200"
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		c := newBox(t, lowLevel, policy).heldContainer("exit 0",
			annotation("org.systemd.property.MemoryMax", "'infinity'"), annotation("run.oci.keep_original_groups", "1"),
			annotation("org.criu.config", "/etc/shadow"), annotation("com.example.team", "blue"),
			annotation("agentbox.dev/memory", "64TiB"), annotation("agentbox.dev/pids", "none"))
		c.begin(w)
		have := c.limits()
		if have.Memory != 128*mib || have.Pids != 200 {
			t.Errorf("the cgroup has %+v", have)
		}
		kept := c.spec()["annotations"].(map[string]any)
		for _, name := range []string{"org.systemd.property.MemoryMax", "run.oci.keep_original_groups", "org.criu.config"} {
			if _, ok := kept[name]; ok {
				t.Errorf("%s is still there", name)
			}
		}
		if kept["com.example.team"] != "blue" {
			t.Error("an annotation of somebody else is gone")
		}
		c.release()
		_, r := c.finish(w)
		sameAsReport(t, r, have)
		for _, text := range []string{
			`"org.systemd.property.MemoryMax" is dropped`, `"run.oci.keep_original_groups" is dropped`, `"org.criu.config" is dropped`,
			"memory: 64TiB from the annotation lowered to 128MiB", "pids: none from the annotation lowered to 200",
		} {
			wantWarning(t, r, text)
		}
		if e := r.Enforcement["memory"]; e.Source != limits.SourceCeiling || e.Requested == nil || e.Requested.String() != "70368744177664" {
			t.Errorf("memory: %+v", e)
		}
	})
}

func TestProfileIsPickedByAnnotation(t *testing.T) {
	const policy = "[profiles.tiny]\nmemory = \"48MiB\"\npids = 33\ncpus = \"250m\""
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel, policy).heldContainer("exit 0", annotation("agentbox.dev/profile", "tiny"), annotation("agentbox.dev/pids", "22"))
		c.begin(byCreate)
		have := c.limits()
		if have.Memory != 48*mib || have.Pids != 22 || have.Quota != 25000 {
			t.Errorf("the cgroup has %+v", have)
		}
		c.release()
		_, r := c.finish(byCreate)
		sameAsReport(t, r, have)
		if r.Profile != "tiny" || r.Enforcement["memory"].Source != limits.SourceProfile || r.Enforcement["pids"].Source != limits.SourceAnnotation {
			t.Errorf("profile %q, enforcement %+v", r.Profile, r.Enforcement)
		}
	})
}

// The limits of open files and core dumps are each process's own.
func TestRlimitsHoldForTheFirstProcess(t *testing.T) {
	const policy = "[limits]\nopen_files = \"100:200\""
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		c := newBox(t, lowLevel, policy).container(sh("ulimit -Sn; ulimit -Hn; ulimit -Hc"))
		out, r := c.complete(w)
		if out.Stdout != "100\n200\n0\n" {
			t.Errorf("open files soft and hard, core: %q", out.Stdout)
		}
		for _, dimension := range []string{"open_files", "core_dumps"} {
			if e := r.Enforcement[dimension]; e.Enforcer != limits.EnforcerProcess || e.Precision != "per process" {
				t.Errorf("%s: %+v", dimension, e)
			}
		}
	})
}

// A rewrite touches what it has to. Everything else, also what agentbox does not
// know, keeps its value, its digits and its place.
func TestRewriteKeepsWhatItDoesNotKnow(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("exit 0"))
		path := filepath.Join(c.Bundle, "config.json")
		plain, err := json.Marshal(c.spec())
		if err != nil {
			t.Fatal(err)
		}
		const foreign = `{"zebra":{"n":12345678901234567890123,"f":1.50e+20,"list":[1.0,null,"\u00e9\/"]},"ant":[true],`
		writeFile(t, path, foreign+string(plain[1:]))
		if err := os.Chmod(path, 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 12, 34); err != nil {
			t.Fatal(err)
		}

		c.complete(byCreate)
		after := c.specText()
		if !strings.HasPrefix(after, foreign) {
			t.Errorf("it begins with %.200s", after)
		}
		for name, value := range map[string]any{"process": c.spec()["process"].(map[string]any)["args"], "root": c.spec()["root"]} {
			text, _ := json.Marshal(value)
			if !strings.Contains(after, string(text)) {
				t.Errorf("%s changed: %s", name, after)
			}
		}
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o640 || st.Uid != 12 || st.Gid != 34 {
			t.Errorf("mode %v, owner %d:%d", info.Mode(), st.Uid, st.Gid)
		}
	})
}

// A bundle may be used again, rewritten as it is.
func TestRewritingTwiceIsRewritingOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		c := newBox(t, lowLevel).heldContainer("exit 0", memoryLimit(64*mib), resource(128*mib, "memory", "swap"),
			annotation("agentbox.dev/cpus", "0.25"), resource(-1, "pids", "limit"))
		var texts [2]string
		var have [2]Limits
		var reports [2]map[string]any
		for i := range 2 {
			c.begin(w)
			texts[i], have[i] = c.specText(), c.limits()
			c.release()
			_, r := c.finish(w)
			for dimension, e := range r.Enforcement {
				e.Detail = "" // why a value was lowered is not carried along: a container could write anything there
				r.Enforcement[dimension] = e
			}
			reports[i] = map[string]any{"enforcement": r.Enforcement, "scope": r.Scope}
			for _, file := range []string{c.PidFile, filepath.Join(c.gate, "open")} {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
		}
		if texts[0] != texts[1] {
			t.Errorf("config.json was\n%s\nand is\n%s", texts[0], texts[1])
		}
		if have[0] != have[1] {
			t.Errorf("the limits were %+v and are %+v", have[0], have[1])
		}
		if !reflect.DeepEqual(reports[0], reports[1]) {
			t.Errorf("the report was\n%+v\nand is\n%+v", reports[0], reports[1])
		}
	})
}

// An id that is taken stays with its container.
func TestSecondContainerOfTheSameIDIsRefused(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		b := newBox(t, lowLevel, "[limits]\npids = 99")
		c, other := b.container(sh("sleep 1000")), b.container(sh("sleep 1000"))
		c.begin(byCreate)
		before := other.specText()
		for _, verb := range []string{"create", "run"} {
			out := b.try(verb, "--bundle", other.Bundle, c.ID)
			oneSentence(t, out.Stderr, []string{c.ID, "is there already", "delete it first"})
			if out.Code != 1 || other.specText() != before {
				t.Errorf("%s of an id that is taken: %v", verb, out)
			}
		}
		if r := c.result(); r.Status != verdict.Running {
			t.Errorf("the first one: %s", describe(r))
		}
	})
}

// The administrator may name another low-level runtime while containers run: each
// is looked at and stopped by the one that made it.
func TestContainerKeepsTheRuntimeThatMadeIt(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		b := newBox(t, lowLevel)
		c := b.container(sh("sleep 1000"))
		c.begin(byCreate)
		other := *b
		other.Config = filepath.Join(tempDir(t), "config.toml")
		writeFile(t, other.Config, fmt.Sprintf("runtime = \"/nonexistent/runc\"\nresults = %q\n", b.Results.Dir))
		for _, args := range [][]string{
			{"state", c.ID},
			{"ps", c.ID},
			{"events", "--stats", c.ID},
			{"exec", c.ID, "true"},
			{"update", "--cpu-share", "512", c.ID},
			{"pause", c.ID},
			{"resume", c.ID},
			{"kill", c.ID, "KILL"},
			{"delete", "--force", c.ID},
		} {
			if args[0] != "events" || lowLevel == "runc" { // crun has none
				other.must(args...)
			}
		}
	})
}

// An engine starts a container again under its id. The last verdict is then
// still what somebody wants to see.
func TestRestartUnderTheSameIDShowsThePreviousVerdict(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		b := newBox(t, lowLevel)
		c := b.container(sh("exit 3"))
		c.complete(byRun)
		if err := os.Remove(c.PidFile); err != nil {
			t.Fatal(err)
		}
		if err := writeBundle(c.Bundle, baseSpec(c.ID, "sleep", "1000")); err != nil {
			t.Fatal(err)
		}
		c.begin(byCreate)
		r := c.result()
		if r.Status != verdict.Running {
			t.Errorf("the second run: %s", describe(r))
		}
		kept := c.kept(c.ID)
		if len(kept) != 1 || kept[0].Status != verdict.Exited || *kept[0].ExitCode != 3 {
			t.Errorf("%d results are kept", len(kept))
		}
		if p := r.Previous; p == nil || p.Status != verdict.Exited || p.ExitCode == nil || *p.ExitCode != 3 {
			t.Errorf("the previous run: %+v", p)
		}
	})
}

// A create that the low-level runtime fails leaves state behind, since the
// runtime took our place. The next verb clears it away.
func TestFailedCreateIsSweptByTheNextVerb(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		b := newBox(t, lowLevel)
		c := b.container([]string{"/bin/nosuchprogram"})
		args := map[way][]string{byCreate: {"create"}, byRun: {"run"}, byDetach: {"run", "--detach"}}[w]
		if out := b.try(append(args, "--bundle", c.Bundle, c.ID)...); out.Code == 0 {
			t.Fatalf("%q: %v", args, out)
		}
		b.try("delete", "nobody")
		c.nothingLeft()
		if err := writeBundle(c.Bundle, baseSpec(c.ID, "true")); err != nil {
			t.Fatal(err)
		}
		c.complete(w) // the id can be used
	})
}

var soak = flag.Bool("soak", false, "repeat what depends on chance a thousand times")

func rounds(usual int) int {
	if *soak {
		return 1000
	}
	return usual
}

// Whatever moment a starting runtime is killed at: nothing runs without limits,
// the next verb clears away, and the id can be used again.
func TestSoakRuntimeKilledAtAnyMoment(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		b := newBox(t, lowLevel, "[limits]\npids = 99")
		c := b.container(sh("sleep 1000"))
		verb := map[way][]string{byCreate: {"create"}, byRun: {"run"}, byDetach: {"run", "--detach"}}[w]
		args := append(slices.Clone(verb), "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID)

		usual := time.Duration(0) // how long a start takes when nobody disturbs it
		for i := range rounds(20) {
			p := launch(t, b.command(args...))
			if i == 0 {
				at := time.Now()
				eventually(t, 60*time.Second, func() string {
					if !exists(c.PidFile) {
						return "no pid file"
					}
					return ""
				})
				usual = time.Since(at)
			} else {
				time.Sleep(rand.N(usual * 5 / 4)) // the moment, not a wait for anything
			}
			kill(t, p.cmd.Process.Pid, unix.SIGKILL)
			p.wait(60 * time.Second)

			// The low-level runtime's init may be without limits, and ends.
			eventually(t, 60*time.Second, func() string {
				for _, pid := range membersOf(c.ID) {
					if n, ok := pidsMaxOf(pid); ok && n != "99" {
						return fmt.Sprintf("round %d: process %d runs with pids.max %s", i, pid, n)
					}
				}
				return ""
			})
			// What an engine does next, and then anything else.
			b.try("delete", "--force", c.ID)
			b.try("delete", "--force", "nobody")
			removeRemains(t, c)
			c.nothingLeft()
			if t.Failed() {
				t.Fatalf("round %d", i)
			}
		}
		c.begin(byCreate)
		if have := c.limits(); have.Pids != 99 {
			t.Errorf("afterwards pids.max is %d", have.Pids)
		}
	})
}

// membersOf returns the processes in the cgroup of a container, if there is one.
func membersOf(id string) []int {
	var pids []int
	for _, dir := range parents() {
		data, err := os.ReadFile(filepath.Join(dir, id, "cgroup.procs"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			pid := 0
			if _, err := fmt.Sscan(line, &pid); err == nil && alive(pid) {
				pids = append(pids, pid)
			}
		}
		if len(pids) > 0 {
			return pids
		}
	}
	return nil
}

// pidsMaxOf returns pids.max of the cgroup of a process that may end right now.
func pidsMaxOf(pid int) (string, bool) {
	data, err := os.ReadFile("/proc/" + itoa(pid) + "/cgroup")
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		mount := "/sys/fs/cgroup"
		if has(cgroup1) {
			mount = hierarchiesV1()["pids"]
		}
		if has(cgroup1) == (parts[1] == "pids") {
			value, err := os.ReadFile(filepath.Join(mount, parts[2], "pids.max"))
			return strings.TrimSpace(string(value)), err == nil
		}
	}
	return "", false
}

// removeRemains removes what a low-level runtime leaves that is killed: its half
// of a pid file, the cgroup, and of crun at times an init that waits for ever to
// be told to go on. The user's program must not be among it.
func removeRemains(t *testing.T, c *Container) {
	t.Helper()
	eventually(t, 60*time.Second, func() string {
		pids := membersOf(c.ID)
		for _, pid := range pids {
			cmdline, _ := os.ReadFile("/proc/" + itoa(pid) + "/cmdline")
			if program, _, _ := strings.Cut(string(cmdline), "\x00"); filepath.Base(program) == "crun" {
				kill(t, pid, unix.SIGKILL)
			}
		}
		if len(pids) > 0 {
			return fmt.Sprintf("processes %v of the container are left", pids)
		}
		for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			dirs, _ := filepath.Glob(filepath.Join(pattern, token, c.ID))
			for _, dir := range dirs {
				if err := os.Remove(dir); err != nil { // busy until its last process is quite gone
					return err.Error()
				}
			}
		}
		return ""
	})
	_ = os.Remove(c.PidFile)
	_ = os.Remove(filepath.Join(filepath.Dir(c.PidFile), ".pid"))
}

// A low-level runtime that is killed at the wrong moment may have started a
// sandbox and not have written it down. Who asks for its removal by force gets
// that.
func TestForcedDeleteEndsASandboxThatItsRuntimeLost(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(folder string) error
	}{
		{"before its folder", os.RemoveAll},
		{"between its folder and its record", func(folder string) error {
			return errors.Join(os.RemoveAll(filepath.Join(folder, "state.json")), os.RemoveAll(filepath.Join(folder, "status")))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, lowLevel string, w way) { forcedDeleteOfALostSandbox(t, lowLevel, w, c.lose) })
		})
	}
}

func forcedDeleteOfALostSandbox(t *testing.T, lowLevel string, w way, lose func(folder string) error) {
	b := newBox(t, lowLevel)
	c := b.container(sh("echo ready; sleep 1000"))
	c.begin(w)
	c.printed("ready")
	pid := c.pid()
	if w == byRun { // nor its wrapper
		kill(t, c.main.cmd.Process.Pid, unix.SIGKILL)
		c.main.wait(60 * time.Second)
	}
	if err := lose(filepath.Join(b.Root, c.ID)); err != nil {
		t.Fatal(err)
	}
	b.try("delete", "--force", c.ID)
	if alive(pid) {
		t.Errorf("the first process, %d, is still running", pid)
		kill(t, pid, unix.SIGKILL)
	}
	removeRemains(t, c)
	c.nothingLeft()
	if r := c.kept(c.ID); len(r) != 1 {
		t.Errorf("%d results are kept", len(r))
	}
}
