//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Whoever boots a kernel for a purpose says what it must be able to do, so that a
// switch that did not work fails a test.
var expectFlag = flag.String("expect", os.Getenv("AGENTBOX_EXPECT"), "what this kernel can limit, as memory=yes,io=no: doctor has to say the same (AGENTBOX_EXPECT)")

// doctor is `agentbox doctor --json`, as far as these tests read it.
type doctorReport struct {
	Ready   bool
	Missing []struct{ Dimension, Reason string }
	Cgroup  struct {
		Version int
		Hybrid  bool
	}
	Supervisor struct {
		Available bool
		Reason    string // what it cannot enforce
	}
	Dimensions map[string]struct {
		Answer, Reason, Detail string
		Fix                    *struct{ Text string }
	}
}

// lacking is what doctor has to answer where the kernel does not enforce a
// dimension: the supervisor takes over, but for io where no process says what it
// reads and writes.
func (r doctorReport) lacking(dimension string) string {
	if r.Supervisor.Available && (dimension != "io" || r.Supervisor.Reason == "") {
		return "supervised"
	}
	return "no"
}

// doctorCommand asks about a host with the built-in configuration.
func doctorCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	config := filepath.Join(tempDir(t), "config.toml")
	writeFile(t, config, "")
	return exec.Command(filepath.Join(bin, "agentbox"), append([]string{"--config", config, "doctor"}, args...)...)
}

// diagnose reads what doctor said.
func diagnose(t *testing.T, out Output) doctorReport {
	t.Helper()
	var r doctorReport
	if err := json.Unmarshal([]byte(out.Stdout), &r); err != nil || out.Code > 1 {
		t.Fatalf("agentbox doctor --json: %v: %v", err, out)
	}
	if r.Ready != (out.Code == 0) || r.Ready != (len(r.Missing) == 0) {
		t.Errorf("ready is %v, missing is %v, and the exit code is %d", r.Ready, r.Missing, out.Code)
	}
	return r
}

// What doctor says is what happens when somebody tries.
func TestDoctorSaysWhatThisKernelDoes(t *testing.T) {
	need(t)
	r := diagnose(t, execute(t, 30*time.Second, doctorCommand(t, "--json")))
	want := map[string]string{}
	for dimension, try := range trials() {
		err := try()
		want[dimension] = "yes"
		if err != nil {
			want[dimension] = r.lacking(dimension)
		}
		got := r.Dimensions[dimension]
		t.Logf("%s: doctor says %s %s; the kernel: %v", dimension, got.Answer, got.Reason, err)
		if got.Answer != want[dimension] {
			t.Errorf("%s: doctor says %q (%s), and when it is tried: %v", dimension, got.Answer, got.Reason, err)
		}
		if err != nil && (got.Reason+got.Detail == "" || got.Fix == nil) {
			t.Errorf("%s: not the kernel, without a reason and a fix: %+v", dimension, got)
		}
	}
	if *expectFlag == "" {
		return
	}
	for pair := range strings.SplitSeq(*expectFlag, ",") {
		dimension, answer, _ := strings.Cut(pair, "=")
		if answer == "no" { // by the kernel
			answer = r.lacking(dimension)
		}
		if got := r.Dimensions[dimension].Answer; got != answer {
			t.Errorf("%s: doctor says %q of a kernel that was booted for %q", dimension, got, answer)
		}
		if got, tried := want[dimension]; tried && got != answer {
			t.Errorf("%s: %q when it is tried, on a kernel that was booted for %q", dimension, got, answer)
		}
	}
}

// trials set a limit for real, in a cgroup that is removed again.
func trials() map[string]func() error {
	set := func(controller, file2, file1, value string) func() error {
		return func() error {
			parent, file := filepath.Join("/sys/fs/cgroup", token), file2
			if cgroupVersion() == 1 {
				mount, ok := hierarchiesV1()[controller]
				if !ok {
					return fmt.Errorf("%s is not mounted", controller)
				}
				parent, file = filepath.Join(mount, token), file1
			}
			dir := filepath.Join(parent, "trial")
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
			defer os.Remove(dir)
			// Not O_CREATE: the kernel would refuse it with another error.
			f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString(value)
			return errors.Join(err, f.Close())
		}
	}
	disk, err := diskOf(onDisk())
	io := set("blkio", "io.max", "blkio.throttle.write_bps_device", map[bool]string{true: disk + " wbps=1048576", false: disk + " 1048576"}[cgroupVersion() == 2])
	if err != nil {
		io = func() error { return err }
	}
	quota := map[bool]string{true: "50000 100000", false: "50000"}[cgroupVersion() == 2]
	return map[string]func() error{
		"memory": set("memory", "memory.max", "memory.limit_in_bytes", "67108864"),
		"swap":   set("memory", "memory.swap.max", "memory.memsw.limit_in_bytes", map[bool]string{true: "0", false: "9223372036854771712"}[cgroupVersion() == 2]),
		"pids":   set("pids", "pids.max", "pids.max", "10"),
		"cpu":    set("cpu", "cpu.max", "cpu.cfs_quota_us", quota),
		"io":     io,
	}
}

// Where only some controllers are delegated, doctor says so of the others.
func TestDoctorWithSomeControllersDelegated(t *testing.T) {
	need(t, cgroup2)
	out := tryDelegated(t, "memory pids", doctorCommand(t, "--json"))
	r := diagnose(t, out)
	for dimension, want := range map[string]string{"memory": "yes", "swap": "yes", "pids": "yes", "cpu": "no", "io": "no"} {
		got, absent := r.Dimensions[dimension], want == "no"
		if absent {
			want = r.lacking(dimension)
		}
		if got.Answer != want {
			t.Errorf("%s: %+v, want %s", dimension, got, want)
		}
		if absent && !strings.Contains(got.Reason+got.Detail, "the "+dimension+" controller is not in") {
			t.Errorf("%s: the reason is %q, the detail %q", dimension, got.Reason, got.Detail)
		}
	}
	missing := slices.ContainsFunc(r.Missing, func(m struct{ Dimension, Reason string }) bool { return m.Dimension == "cpu" })
	if r.Ready || !missing || out.Code != 1 {
		t.Errorf("cpu is required and not there: ready %v, missing %v, exit code %d", r.Ready, r.Missing, out.Code)
	}
}

// A script asks for what it needs.
func TestDoctorExitCode(t *testing.T) {
	need(t)
	r := diagnose(t, execute(t, 30*time.Second, doctorCommand(t, "--json")))
	for _, dimension := range []string{"pids", "cpu", "io", "disk"} {
		want := 1
		if r.Dimensions[dimension].Answer == "yes" {
			want = 0
		}
		if out := execute(t, 30*time.Second, doctorCommand(t, "--require", dimension)); out.Code != want {
			t.Errorf("--require %s, which is %q: %v", dimension, r.Dimensions[dimension].Answer, out)
		}
	}
	if out := execute(t, 30*time.Second, doctorCommand(t, "--require", "nonsense")); out.Code != 2 || !strings.Contains(out.Stderr, "nonsense") {
		t.Errorf("--require nonsense: %v", out)
	}
}
