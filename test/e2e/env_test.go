//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A feature is something of the machine that not every machine has.
type feature string

const (
	cgroup1   feature = "cgroup1"   // the controllers are on cgroup v1
	cgroup2   feature = "cgroup2"   // the controllers are on cgroup v2
	runc      feature = "runc"      // it can start a container here
	crun      feature = "crun"      // it can start a container here
	docker    feature = "docker"    // docker, dockerd and containerd are installed
	swap      feature = "swap"      // swap is on, and cgroups account it
	cpus2     feature = "cpus2"     // two CPUs or more
	swapLimit feature = "swaplimit" // cgroups can limit swap, whether it is on or not
)

// features says for each feature why it is missing; nil: it is there.
var features = map[feature]func() error{
	cgroup1:   sync.OnceValue(func() error { return wantVersion(1) }),
	cgroup2:   sync.OnceValue(func() error { return wantVersion(2) }),
	runc:      sync.OnceValue(func() error { return tryRuntime("runc") }),
	crun:      sync.OnceValue(func() error { return tryRuntime("crun") }),
	docker:    sync.OnceValue(func() error { return installed("docker", "dockerd", "containerd") }),
	swap:      sync.OnceValue(findSwap),
	swapLimit: sync.OnceValue(findSwapLimit),
	cpus2: sync.OnceValue(func() error {
		if n := runtime.NumCPU(); n < 2 {
			return fmt.Errorf("%d CPU", n)
		}
		return nil
	}),
}

// gate remembers which tests ran and which were skipped.
var gate tally

type tally struct {
	mu    sync.Mutex
	names map[string]string // test -> why it was skipped, "" when it ran
}

func (g *tally) note(t *testing.T, skipped string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.names == nil {
		g.names = map[string]string{}
	}
	g.names[t.Name()] = skipped
}

// skipped returns the names of skipped tests, by the reason.
func (g *tally) skipped() map[string][]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(g.names)) {
		if why := g.names[name]; why != "" {
			list[why] = append(list[why], name)
		}
	}
	return list
}

func (g *tally) count() (ran, skipped int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, why := range g.names {
		if why == "" {
			ran++
		} else {
			skipped++
		}
	}
	return ran, skipped
}

// need is the one gate: it skips a test on a machine that lacks a feature, and
// fails it where the run promised that feature. Every test calls it or newBox,
// which is how tests are counted.
func need(t *testing.T, wanted ...feature) {
	t.Helper()
	gate.note(t, "")
	for _, f := range wanted {
		err := features[f]()
		if err == nil {
			continue
		}
		if slices.Contains(promised(), f) {
			t.Fatalf("this run promised %s: %v", f, err)
		}
		why := fmt.Sprintf("needs %s: %v", f, err)
		gate.note(t, why)
		t.Skip(why)
	}
}

func has(f feature) bool { return features[f]() == nil }

func promised() []feature {
	var list []feature
	for name := range strings.SplitSeq(*promiseFlag, ",") {
		if name = strings.TrimSpace(name); name != "" {
			list = append(list, feature(name))
		}
	}
	return list
}

func checkPromises() error {
	for _, f := range promised() {
		missing, known := features[f]
		if !known {
			return fmt.Errorf("-promise: there is no feature %q: choose among %v", f, slices.Sorted(maps.Keys(features)))
		}
		if err := missing(); err != nil {
			return fmt.Errorf("this run promised %s: %w", f, err)
		}
	}
	return nil
}

func printFacts() {
	var u unix.Utsname
	_ = unix.Uname(&u)
	fmt.Printf("kernel: %s, %d CPU(s)\n", unix.ByteSliceToString(u.Release[:]), runtime.NumCPU())
	fmt.Printf("cgroups: v%d, controllers: %s\n", cgroupVersion(), controllersHere())
	for _, name := range []string{"runc", "crun", "docker", "containerd"} {
		fmt.Printf("%s: %s\n", name, versionOf(name))
	}
	for _, f := range slices.Sorted(maps.Keys(features)) {
		answer := "yes"
		if err := features[f](); err != nil {
			answer = "no: " + err.Error()
		}
		fmt.Printf("feature %s: %s\n", f, answer)
	}
	fmt.Printf("promised: %v; time limits times %d\n", promised(), *slowFlag)
}

func versionOf(program string) string {
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		return err.Error()
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// cgroupVersion asks the kernel what is mounted on /sys/fs/cgroup, as the
// low-level runtimes do.
var cgroupVersion = sync.OnceValue(func() int {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return 0
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return 2
	}
	return 1
})

func wantVersion(want int) error {
	if got := cgroupVersion(); got != want {
		return fmt.Errorf("the controllers are on cgroup v%d", got)
	}
	return nil
}

func controllersHere() string {
	if cgroupVersion() == 2 {
		data, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		return strings.TrimSpace(string(data))
	}
	return strings.Join(slices.Sorted(maps.Keys(hierarchiesV1())), " ")
}

func installed(programs ...string) error {
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			return err
		}
	}
	return nil
}

func findSwapLimit() error {
	file := filepath.Join("/sys/fs/cgroup", token, "memory.swap.max")
	if cgroupVersion() == 1 {
		file = filepath.Join(hierarchiesV1()["memory"], token, "memory.memsw.limit_in_bytes")
	}
	_, err := os.Stat(file)
	return err
}

func findSwap() error {
	data, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return err
	}
	if strings.Count(string(data), "\n") < 2 { // the first line is a heading
		return errors.New("no swap area is on")
	}
	return findSwapLimit()
}

// tryRuntime starts a container with the low-level runtime itself: crun, for
// one, does not do that on every arrangement of cgroups.
func tryRuntime(name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(scratch, "try-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	id := token + "-try-" + name
	if err := writeBundle(dir, baseSpec(id, "true")); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), scaled(20*time.Second))
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--root", filepath.Join(dir, "root"), "run", "--bundle", dir, id).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func intFromEnv(name string, fallback int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil || n < 1 {
		return fallback
	}
	return n
}

func itoa(n int) string { return strconv.Itoa(n) }

// scaled is a time limit for this machine.
func scaled(d time.Duration) time.Duration { return d * time.Duration(*slowFlag) }

// attempts of a measurement that a busy machine can spoil in one direction. What is
// off in the other direction fails at once.
const attempts = 8

// eventually polls until done returns "", and fails with the last answer, which
// says what is still missing.
func eventually(t *testing.T, limit time.Duration, done func() string) {
	t.Helper()
	for deadline := time.Now().Add(scaled(limit)); ; time.Sleep(10 * time.Millisecond) {
		missing := done()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", scaled(limit), missing)
		}
	}
}

// Output is what a command said.
type Output struct {
	Stdout, Stderr string
	Code           int // exit code; 128+n when signal n ended it; -1 when it was killed for being too slow
}

func (o Output) String() string {
	return fmt.Sprintf("exit code %d\nstdout: %s\nstderr: %s", o.Code, o.Stdout, o.Stderr)
}

// execute runs a command that is over within the time limit. Its output goes
// through files, so that a container that keeps the descriptors does not hold us
// up. A command that has its Stdout or Stderr keeps them.
func execute(t *testing.T, limit time.Duration, cmd *exec.Cmd) Output {
	t.Helper()
	running := launch(t, cmd)
	return running.wait(limit)
}

// Process is a command that was started.
type Process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr string // files; "" where the caller has its own
	done           chan struct{}
}

// launch starts a command. It is killed at the end of the test if it still runs.
func launch(t *testing.T, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t: t, cmd: cmd, done: make(chan struct{})}
	dir := tempDir(t)
	if cmd.Stdout == nil {
		p.stdout = filepath.Join(dir, "stdout")
		cmd.Stdout = newFile(t, p.stdout)
	}
	if cmd.Stderr == nil {
		p.stderr = filepath.Join(dir, "stderr")
		cmd.Stderr = newFile(t, p.stderr)
	}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // ProcessState has it
		close(p.done)
	}()
	t.Cleanup(func() {
		select {
		case <-p.done:
		default:
			_ = cmd.Process.Kill()
			<-p.done
		}
	})
	return p
}

// wait returns what the command said. One that is too slow fails the test.
func (p *Process) wait(limit time.Duration) Output {
	p.t.Helper()
	select {
	case <-p.done:
		return p.output()
	case <-time.After(scaled(limit)):
	}
	p.t.Errorf("%q was not over after %v", p.cmd.Args, scaled(limit))
	_ = p.cmd.Process.Kill()
	<-p.done
	return p.output()
}

func (p *Process) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// output is what the command said up to now.
func (p *Process) output() Output {
	p.t.Helper()
	out := Output{Code: -1}
	if p.stdout != "" {
		out.Stdout = readFile(p.t, p.stdout)
	}
	if p.stderr != "" {
		out.Stderr = readFile(p.t, p.stderr)
	}
	if p.over() {
		out.Code = p.cmd.ProcessState.ExitCode()
		if ws, ok := p.cmd.ProcessState.Sys().(unix.WaitStatus); ok && ws.Signaled() {
			out.Code = 128 + int(ws.Signal())
		}
	}
	return out
}

// tempDir returns a new folder with a short name (a socket's path has 108 bytes
// at most), which is removed at the end of the test.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// newFile opens a file that is closed at the end of the test.
func newFile(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
