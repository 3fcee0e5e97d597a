//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// The low-level runtime's own record says which process is the container's first:
// a pid file may be shared, or written by anybody who can write the bundle.
func TestPidFileThatNamesAnotherProcessIsNotBelieved(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		b := newBox(t, lowLevel)
		c := b.container(sh("sleep 1000"))
		c.create()
		bystander := exec.Command("sleep", "1000")
		if err := bystander.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = bystander.Process.Kill()
			_ = bystander.Wait()
		}()
		writeFile(t, c.PidFile, fmt.Sprint(bystander.Process.Pid))
		c.start()
		r := c.result()
		if got := r.Enforcement["memory"].Effective; got == nil || got.String() != "2147483648" && r.Enforcement["memory"].Source != "ceiling" {
			t.Errorf("the limits of another process were reported: %v", r.Enforcement["memory"])
		}
		c.must("delete", "--force", c.ID)
		if !alive(bystander.Process.Pid) {
			t.Error("a forced delete killed a process that is not the container's")
		}
	})
}

// What becomes of a result is no reason for an engine to try a delete again and
// again.
func TestDeleteSucceedsWhereResultsCannotBeKept(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		blocked := filepath.Join(tempDir(t), "file")
		writeFile(t, blocked, "")
		b := newBox(t, lowLevel)
		config := filepath.Join(tempDir(t), "config.toml")
		writeFile(t, config, strings.Replace(readFile(t, b.Config), b.Results.Dir, filepath.Join(blocked, "results"), 1))
		b.Config = config
		c := b.container(sh("exit 0"))
		c.begin(byCreate)
		c.waitGone(60 * time.Second)
		if out := c.try("delete", c.ID); out.Code != 0 {
			t.Errorf("delete: %v", out)
		}
		if out := c.try("run", "--bundle", c.Bundle, c.ID); out.Code != 0 {
			t.Errorf("run: %v", out)
		}
	})
}

// The hook of a run is the same for all containers of a bundle.
func TestRunsOfOneBundleAtOnceKeepTheirVerdicts(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		b := newBox(t, lowLevel)
		c := b.container(sh("sleep 0.3; exit 3"), with(nil, "linux", "cgroupsPath"))
		var runs []*Process
		var ids []string
		for i := range 4 {
			id := fmt.Sprintf("%s-at-once-%d", c.ID, i)
			ids = append(ids, id)
			runs = append(runs, launch(t, b.command("run", "--bundle", c.Bundle, id)))
		}
		for i, run := range runs {
			if out := run.wait(30 * time.Second); out.Code != 3 {
				t.Errorf("%s: %v", ids[i], out)
				continue
			}
			if r := b.result(ids[i]); r.Status != verdict.Exited || r.ExitCode == nil || *r.ExitCode != 3 {
				t.Errorf("%s: %s", ids[i], describe(r))
			}
		}
	})
}

// A bundle that agentbox has rewritten still runs without it.
func TestRewrittenBundleRunsInThePlainRuntime(t *testing.T) {
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("exit 3"))
		if _, r := c.complete(byRun); r.Status != verdict.Exited {
			t.Fatalf("%s", describe(r))
		}
		if out := execute(t, 30*time.Second, c.bare("run", "--bundle", c.Bundle, c.ID)); out.Code != 3 {
			t.Errorf("the plain runtime: %v", out)
		}
	})
}

// A start that the low-level runtime refuses leaves what the first one found.
func TestSecondStartChangesNoEvidence(t *testing.T) {
	need(t, cgroup2)
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		c := newBox(t, lowLevel).container(sh("exec tail /dev/zero"), memoryLimit(64*mib))
		c.begin(byCreate)
		c.waitGone(30 * time.Second)
		if out := c.try("start", c.ID); out.Code == 0 {
			t.Fatalf("a second start: %v", out)
		}
		c.delete()
		if r := c.result(); r.Status != verdict.OOMKilled {
			t.Errorf("%s", describe(r))
		}
	})
}

// The pid file of a create that failed is looked at by the next command, and may
// be anything.
func TestPidFileThatIsAPipeHangsNothing(t *testing.T) {
	b := newBox(t, "runc")
	c := b.container(sh("exit 0"), with("missing", "root", "path"))
	pipe := filepath.Join(tempDir(t), "pid")
	if out, err := exec.Command("mkfifo", pipe).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v: %s", err, out)
	}
	if out := c.try("create", "--bundle", c.Bundle, "--pid-file", pipe, c.ID); out.Code == 0 {
		t.Fatalf("create without a root file system: %v", out)
	}
	if _, r := b.container(sh("exit 3")).complete(byRun); r.Status != verdict.Exited {
		t.Errorf("%s", describe(r))
	}
}

// A container that says it is the pause container of a pod has no more than it
// could ask for: the id of a pod cannot be known before, and where there is none
// in the mark, the ceilings hold.
func TestForgedPauseContainerHasLimits(t *testing.T) {
	eachWay(t, func(t *testing.T, lowLevel string, w way) {
		for name, tt := range map[string]struct {
			marks []Tweak
			pids  int64
		}{
			"containerd":  {[]Tweak{annotation("io.kubernetes.cri.container-type", "sandbox"), annotation("io.kubernetes.cri.sandbox-id", "another")}, 99},
			"CRI-O":       {[]Tweak{annotation("io.kubernetes.cri-o.ContainerType", "sandbox")}, 99},
			"cri-dockerd": {[]Tweak{annotation("io.kubernetes.docker.type", "podsandbox")}, 200},
		} {
			t.Run(name, func(t *testing.T) {
				b := newBox(t, lowLevel, "[limits]\npids = 99\n[ceilings]\npids = 200")
				c := b.heldContainer("exit 0", append(tt.marks, with(-1000, "process", "oomScoreAdj"))...)
				c.begin(w)
				if have := c.limits(); have.Pids != tt.pids || have.Memory == unlimited {
					t.Errorf("the container has %+v, want %d pids", have, tt.pids)
				}
				c.release()
				_, r := c.finish(w)
				if r.ID != c.ID {
					t.Errorf("the result is %s", describe(r))
				}
			})
		}
	})
}
