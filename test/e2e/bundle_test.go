//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
)

// rootfs is busybox with all its applets. Containers share it, read-only.
var rootfs = filepath.Join(scratch, "rootfs")

func makeRootfs() error {
	for _, dir := range []string{"bin", "proc", "dev", "sys", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(rootfs, dir), 0o755); err != nil {
			return err
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("install busybox-static: %w", err)
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	inside := filepath.Join(rootfs, "bin/busybox")
	if err := os.WriteFile(inside, data, 0o755); err != nil {
		return err
	}
	applets, err := exec.Command(inside, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", busybox, err)
	}
	for name := range strings.FieldsSeq(string(applets)) {
		if name == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(rootfs, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// Spec is a config.json.
type Spec map[string]any

// Tweak changes a specification.
type Tweak func(Spec)

// baseSpec runs a program in the shared root file system, without any limit. Its
// cgroup is below the one of this run.
func baseSpec(id string, args ...string) Spec {
	caps := []string{"CAP_KILL", "CAP_SETUID", "CAP_SETGID"}
	mount := func(at, kind string, options ...string) map[string]any {
		return map[string]any{"destination": at, "type": kind, "source": kind, "options": options}
	}
	return Spec{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]any{"uid": 0, "gid": 0},
			"args": args,
			"env":  []string{"PATH=/bin", "HOME=/tmp"},
			"cwd":  "/",
			"capabilities": map[string]any{
				"bounding": caps, "effective": caps, "permitted": caps,
			},
			"noNewPrivileges": true,
		},
		"root":     map[string]any{"path": rootfs, "readonly": true},
		"hostname": "sandbox",
		"mounts": []any{
			mount("/proc", "proc"),
			mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
			mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
			mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777"),
			mount("/tmp", "tmpfs", "nosuid", "nodev", "mode=1777"),
		},
		"linux": map[string]any{
			"cgroupsPath": "/" + token + "/" + id,
			"namespaces": []any{
				map[string]any{"type": "pid"},
				map[string]any{"type": "ipc"},
				map[string]any{"type": "uts"},
				map[string]any{"type": "mount"},
				map[string]any{"type": "network"},
			},
		},
	}
}

// set puts a value at a path of object names: set(n, "linux", "resources",
// "pids", "limit").
func (s Spec) set(value any, path ...string) {
	at := map[string]any(s)
	for _, name := range path[:len(path)-1] {
		next, ok := at[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[name] = next
		}
		at = next
	}
	at[path[len(path)-1]] = value
}

// with is a tweak that sets one value.
func with(value any, path ...string) Tweak { return func(s Spec) { s.set(value, path...) } }

// resource sets a value below linux.resources.
func resource(value any, path ...string) Tweak {
	return with(value, append([]string{"linux", "resources"}, path...)...)
}

func memoryLimit(bytes int64) Tweak { return resource(bytes, "memory", "limit") }

func annotation(name, value string) Tweak { return with(value, "annotations", name) }

func writeBundle(dir string, s Spec) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

// Box is agentbox-runtime with one low-level runtime, and with a configuration,
// state and results of its own.
type Box struct {
	t        *testing.T
	LowLevel string // "runc" or "crun", or the path of something else
	Config   string // the configuration file
	State    string // agentbox's state folder
	Root     string // the low-level runtime's state folder
	Results  result.Store
}

// newBox makes a box. The text follows the runtime and the results folder in the
// configuration file: settings first, tables after them.
func newBox(t *testing.T, lowLevel string, config ...string) *Box {
	t.Helper()
	need(t)
	dir := tempDir(t)
	b := &Box{
		t:        t,
		LowLevel: lowLevel,
		Config:   filepath.Join(dir, "config.toml"),
		State:    filepath.Join(dir, "state"),
		Root:     filepath.Join(dir, "root"),
		Results:  result.Store{Dir: filepath.Join(dir, "results")},
	}
	head := fmt.Sprintf("runtime = %q\nresults = %q\n", lowLevel, b.Results.Dir)
	writeFile(t, b.Config, head+strings.Join(config, "\n")+"\n")
	t.Cleanup(b.checkEmpty)
	return b
}

// on is the same box for a subtest.
func (b *Box) on(t *testing.T) *Box {
	need(t)
	same := *b
	same.t = t
	return &same
}

// checkEmpty looks for what the runtime left of containers that are gone.
func (b *Box) checkEmpty() {
	b.t.Helper()
	if refs, err := (state.Store{Dir: b.State}).List(); err != nil || len(refs) > 0 {
		b.t.Errorf("states are left: %v %v", refs, err)
	}
	if entries, err := os.ReadDir(b.Root); err == nil && len(entries) > 0 {
		b.t.Errorf("%s has containers that are left: %v", b.LowLevel, entries)
	}
}

// command is agentbox-runtime with the box's global flags.
func (b *Box) command(args ...string) *exec.Cmd {
	return exec.Command(runtimePath(), append([]string{"--agentbox-config", b.Config, "--agentbox-state", b.State, "--root", b.Root}, args...)...)
}

// bare is the low-level runtime itself, looking at the same containers.
func (b *Box) bare(args ...string) *exec.Cmd {
	return exec.Command(b.LowLevel, append([]string{"--root", b.Root}, args...)...)
}

// try runs a verb, whatever comes of it.
func (b *Box) try(args ...string) Output {
	b.t.Helper()
	return execute(b.t, 30*time.Second, b.command(args...))
}

// must runs a verb that has to succeed.
func (b *Box) must(args ...string) Output {
	b.t.Helper()
	out := b.try(args...)
	if out.Code != 0 {
		b.t.Fatalf("agentbox-runtime %q: %v", args, out)
	}
	return out
}

// result is what `agentbox inspect` tells about a container, live or ended.
func (b *Box) result(id string) *result.Result {
	b.t.Helper()
	out := execute(b.t, 30*time.Second, exec.Command(filepath.Join(bin, "agentbox"), "--config", b.Config, "--state", b.State, "inspect", id, "--json"))
	var r result.Result
	if err := json.Unmarshal([]byte(out.Stdout), &r); err != nil || out.Code != 0 {
		b.t.Fatalf("agentbox inspect %s: %v: %v", id, err, out)
	}
	return &r
}

// kept returns what is on disk about containers that ended, oldest first. An id
// may be a pattern of path/filepath.
func (b *Box) kept(id string) []*result.Result {
	b.t.Helper()
	files, err := filepath.Glob(filepath.Join(b.Results.Dir, id+"~*.json")) // sorted, and the names of an id sort by time
	if err != nil {
		b.t.Fatal(err)
	}
	list := make([]*result.Result, len(files))
	for i, name := range files {
		if err := json.Unmarshal([]byte(readFile(b.t, name)), &list[i]); err != nil {
			b.t.Fatalf("%s: %v", name, err)
		}
	}
	return list
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// Container is a bundle and its id.
type Container struct {
	*Box
	ID      string
	Bundle  string
	PidFile string
	gate    string   // see release
	main    *Process // the command that started it
}

var (
	containers atomic.Int64
	testOf     sync.Map // container id -> name of the test
)

// container makes a bundle that runs args, in a cgroup of its own. The container
// is deleted at the end of the test.
func (b *Box) container(args []string, tweaks ...Tweak) *Container {
	b.t.Helper()
	dir := tempDir(b.t)
	c := &Container{Box: b, ID: fmt.Sprintf("%s-%d", token, containers.Add(1)), Bundle: dir, PidFile: filepath.Join(dir, "pid")}
	testOf.Store(c.ID, b.t.Name())
	s := baseSpec(c.ID, args...)
	for _, tweak := range tweaks {
		tweak(s)
	}
	if err := writeBundle(dir, s); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(c.cleanUp)
	return c
}

// sh is the command line of a shell script.
func sh(script string) []string { return []string{"sh", "-c", script} }

// cleanUp deletes the container if the test has not, and looks for half-written
// files beside the specification.
func (c *Container) cleanUp() {
	if exists(filepath.Join(c.Root, c.ID)) || exists(state.Store{Dir: c.State}.Path(c.Root, c.ID)) {
		c.try("delete", "--force", c.ID)
	}
	if exists(filepath.Join(c.Root, c.ID)) { // our delete failed: do not leave processes
		execute(c.t, 30*time.Second, c.bare("delete", "--force", c.ID))
	}
	if names, _ := filepath.Glob(filepath.Join(c.Bundle, ".config.json*")); len(names) > 0 {
		c.t.Errorf("half-written specifications are left: %v", names)
	}
}

// A way starts a container.
type way string

const (
	byCreate way = "create, start, delete"
	byRun    way = "run in the foreground"
	byDetach way = "run detached"
)

var ways = []way{byCreate, byRun, byDetach}

// begin starts the container, and returns when its first process is there with
// its limits; a foreground run is then about to start the user's program.
func (c *Container) begin(w way) {
	c.t.Helper()
	switch w {
	case byCreate:
		c.create()
		c.start()
	case byDetach:
		c.main = launch(c.t, c.command("run", "--detach", "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID))
		if out := c.main.wait(30 * time.Second); out.Code != 0 {
			c.t.Fatalf("run --detach: %v", out)
		}
	case byRun:
		c.main = launch(c.t, c.command("run", "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID))
		eventually(c.t, 60*time.Second, func() string {
			// crun makes the file before it writes into it.
			if data, _ := os.ReadFile(c.PidFile); len(data) == 0 && !c.main.over() {
				return "run has not written the pid file"
			}
			return ""
		})
	}
}

func (c *Container) create() {
	c.t.Helper()
	c.main = launch(c.t, c.command("create", "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID))
	if out := c.main.wait(30 * time.Second); out.Code != 0 {
		c.t.Fatalf("create: %v", out)
	}
}

func (c *Container) start() { c.t.Helper(); c.must("start", c.ID) }

func (c *Container) delete() { c.t.Helper(); c.must("delete", c.ID) }

// finish waits for the end of the container, by itself, and for its result. The
// output is the container's own; the exit code that of a foreground run, else
// -1.
func (c *Container) finish(w way) (Output, *result.Result) {
	c.t.Helper()
	out := c.await(w)
	if w != byRun {
		c.delete()
	}
	return out, c.Box.result(c.ID)
}

// await waits for the end of the container and deletes nothing.
func (c *Container) await(w way) Output {
	c.t.Helper()
	if w == byRun {
		return c.main.wait(60 * time.Second)
	}
	c.waitGone(60 * time.Second)
	out := c.main.output()
	out.Code = -1
	return out
}

// complete runs the container from its beginning to its end.
func (c *Container) complete(w way) (Output, *result.Result) {
	c.t.Helper()
	c.begin(w)
	return c.finish(w)
}

func (c *Container) result() *result.Result { c.t.Helper(); return c.Box.result(c.ID) }

// spec is the specification as it is in the bundle now.
func (c *Container) spec() Spec {
	c.t.Helper()
	var s Spec
	if err := json.Unmarshal([]byte(c.specText()), &s); err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c *Container) specText() string {
	c.t.Helper()
	return readFile(c.t, filepath.Join(c.Bundle, "config.json"))
}

// printed waits until the container has printed a text.
func (c *Container) printed(text string) {
	c.t.Helper()
	eventually(c.t, 60*time.Second, func() string {
		if out := c.main.output(); !strings.Contains(out.Stdout, text) {
			return fmt.Sprintf("the container has not printed %q: %v", text, out)
		}
		return ""
	})
}

// pid is the first process of the container.
func (c *Container) pid() int {
	c.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(readFile(c.t, c.PidFile)))
	if err != nil {
		c.t.Fatal(err)
	}
	return pid
}

// waitGone waits until the first process has ended. It may stay a zombie: who
// reaps it is not our business.
func (c *Container) waitGone(limit time.Duration) {
	c.t.Helper()
	pid := c.pid()
	eventually(c.t, limit, func() string {
		if alive(pid) {
			return fmt.Sprintf("the first process of the container, %d, is still running", pid)
		}
		return ""
	})
}

// alive reports whether a process exists and has not ended.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	return !strings.HasPrefix(rest, " Z") && !strings.HasPrefix(rest, " X")
}

// kill ends one process of a test.
func kill(t *testing.T, pid int, s unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, s); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
}

// eachRuntime runs a test with every low-level runtime, at the same time.
func eachRuntime(t *testing.T, test func(t *testing.T, lowLevel string)) {
	t.Helper()
	t.Parallel()
	for _, f := range []feature{runc, crun} {
		t.Run(string(f), func(t *testing.T) {
			need(t, f)
			t.Parallel()
			test(t, string(f))
		})
	}
}

// eachWay runs a test with every low-level runtime and every way to start a
// container.
func eachWay(t *testing.T, test func(t *testing.T, lowLevel string, w way)) {
	t.Helper()
	eachRuntime(t, func(t *testing.T, lowLevel string) {
		for _, w := range ways {
			t.Run(string(w), func(t *testing.T) {
				t.Parallel()
				test(t, lowLevel, w)
			})
		}
	})
}

// held is a script that waits for Container.release: what the test looks at
// first is in place until then.
func held(script string) []string {
	return sh("until [ -e /gate/open ]; do sleep 0.02; done; " + script)
}

// withGate gives the container the folder that held looks into.
func withGate(dir string) Tweak {
	return func(s Spec) {
		s["mounts"] = append(s["mounts"].([]any), map[string]any{
			"destination": "/gate", "type": "bind", "source": dir, "options": []string{"rbind", "ro"},
		})
	}
}

// heldContainer runs a script that waits for release.
func (b *Box) heldContainer(script string, tweaks ...Tweak) *Container {
	b.t.Helper()
	gate := tempDir(b.t)
	c := b.container(held(script), append(tweaks, withGate(gate))...)
	c.gate = gate
	return c
}

func (c *Container) release() { c.t.Helper(); writeFile(c.t, filepath.Join(c.gate, "open"), "") }
