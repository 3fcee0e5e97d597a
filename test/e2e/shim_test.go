//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// The shim door: containerd alone, by its own client.

const shimType = "io.containerd.agentbox.v1"

// ctr is a containerd and its client.
const ctr feature = "ctr"

func init() {
	features[ctr] = sync.OnceValue(func() error { return installed("containerd", "ctr") })
}

// Ctr is a containerd that belongs to this run, as one test sees it. Containers
// are made from bundles like those of a Box, which has a configuration and
// results of this test; state is where it is by default, since nothing can tell a
// shim another place.
type Ctr struct {
	*Box
	*engine
	events *Process // what containerd publishes
}

var sharedCtr struct {
	once sync.Once
	*engine
	err error
}

// newCtr returns the containerd that all tests share, with a configuration of
// agentbox for this one.
func newCtr(t *testing.T, config ...string) *Ctr {
	t.Helper()
	need(t, ctr, runc)
	sharedCtr.once.Do(func() {
		sharedCtr.engine, sharedCtr.err = startCtr(bin + ":" + os.Getenv("PATH"))
		if sharedCtr.engine != nil {
			atEnd(sharedCtr.stop)
		}
	})
	if sharedCtr.err != nil {
		t.Fatalf("start containerd: %v", sharedCtr.err)
	}
	return sharedCtr.seenBy(t, config...)
}

// newOwnCtr returns a containerd for one test, which finds programs in path.
func newOwnCtr(t *testing.T, path string) *Ctr {
	t.Helper()
	need(t, ctr, runc)
	e, err := startCtr(path)
	if e != nil {
		t.Cleanup(func() {
			if err := e.stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatalf("start containerd: %v", err)
	}
	return e.seenBy(t)
}

func startCtr(path string) (*engine, error) {
	e, err := newEngine(path)
	if err != nil {
		return nil, err
	}
	if err := e.startContainerd(); err != nil {
		return e, err
	}
	return e, e.waitCtr()
}

// waitCtr waits until containerd answers.
func (e *engine) waitCtr() error {
	for deadline := time.Now().Add(scaled(60 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		out, err := e.ctr("version").CombinedOutput()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd is not ready: %w: %s\n%s", err, out, e.logs([2]int64{}))
		}
	}
}

// ctr is a command of containerd's client, in a namespace of this run.
func (e *engine) ctr(args ...string) *exec.Cmd {
	return exec.Command("ctr", append([]string{"--address", e.containerdSocket(), "--namespace", token}, args...)...)
}

// seenBy is a containerd for a test.
func (e *engine) seenBy(t *testing.T, config ...string) *Ctr {
	t.Helper()
	from := e.logSizes()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.logs(from))
			e.shown = e.logSizes()
		}
	})
	dir := tempDir(t)
	b := &Box{
		t: t, LowLevel: "runc", Config: filepath.Join(dir, "config.toml"), State: state.SystemDir,
		Root: filepath.Join("/run/containerd/runc", token), Results: result.Store{Dir: filepath.Join(dir, "results")},
	}
	writeFile(t, b.Config, fmt.Sprintf("results = %q\n", b.Results.Dir)+strings.Join(config, "\n")+"\n")
	return &Ctr{Box: b, engine: e}
}

// watch collects what containerd publishes from now on.
func (c *Ctr) watch() {
	c.t.Helper()
	c.events = launch(c.t, c.ctr("events"))
	n := 0
	eventually(c.t, 60*time.Second, func() string { // it does not say when it listens
		n++
		c.call("namespaces", "label", token, "probe="+itoa(n))
		if !strings.Contains(c.events.output().Stdout, "/namespaces/update") {
			return "containerd's events do not arrive"
		}
		return ""
	})
}

// call runs a ctr command that has to succeed.
func (c *Ctr) call(args ...string) Output {
	c.t.Helper()
	out := execute(c.t, 60*time.Second, c.ctr(args...))
	if out.Code != 0 {
		c.t.Fatalf("ctr %q: %v", args, out)
	}
	return out
}

// Event is a line of ctr events.
type Event struct {
	Topic  string
	Fields map[string]any
}

// of returns the events about a container that have come, in order, without
// those of its making and unmaking in containerd's own books.
func (c *Ctr) of(id string) (list []Event) {
	c.t.Helper()
	text := c.events.output().Stdout
	text = text[:strings.LastIndexByte(text, '\n')+1] // the last line may be on its way
	for line := range strings.Lines(text) {
		// 2026-11-30 16:34:55.97 +0000 UTC NAMESPACE /tasks/oom {"container_id":"c2"}
		parts := strings.SplitN(strings.TrimSpace(line), " ", 7)
		if len(parts) < 7 || strings.HasPrefix(parts[5], "/containers/") {
			continue
		}
		e := Event{Topic: parts[5]}
		if err := json.Unmarshal([]byte(parts[6]), &e.Fields); err != nil {
			c.t.Fatalf("%v: %s", err, line)
		}
		if e.Fields["container_id"] == id || e.Fields["id"] == id && e.Topic == "/agentbox/verdict" {
			list = append(list, e)
		}
	}
	return list
}

// until waits for an event of a container and returns all up to then.
func (c *Ctr) until(id, topic string) []Event {
	c.t.Helper()
	var list []Event
	eventually(c.t, 60*time.Second, func() string {
		list = c.of(id)
		if !slices.Contains(topics(list), topic) {
			return fmt.Sprintf("%s has published %q, and no %s", id, topics(list), topic)
		}
		return ""
	})
	return list
}

func topics(list []Event) (names []string) {
	for _, e := range list {
		names = append(names, e.Topic)
	}
	return names
}

// told is the result in the verdict among events; nil when there is none.
func told(t *testing.T, list []Event) *result.Result {
	t.Helper()
	i := slices.IndexFunc(list, func(e Event) bool { return e.Topic == "/agentbox/verdict" })
	if i < 0 {
		return nil
	}
	labels, _ := list[i].Fields["labels"].(map[string]any)
	text, _ := labels["agentbox.dev/result"].(string)
	var r result.Result
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	if labels["agentbox.dev/status"] != string(r.Status) || r.ErrorCode != "" && labels["agentbox.dev/error-code"] != string(r.ErrorCode) {
		t.Errorf("the labels are %v, the result %s", labels, describe(&r))
	}
	return &r
}

// wantOrder checks that every TaskOOM and the verdict come before the TaskExit of
// the first process, each at least so often.
func wantOrder(t *testing.T, list []Event, ooms int) {
	t.Helper()
	seen, verdicts, ended := 0, 0, false
	for _, e := range list {
		switch e.Topic {
		case "/tasks/oom":
			seen++
		case "/agentbox/verdict":
			verdicts++
		case "/tasks/exit":
			ended = ended || e.Fields["id"] == e.Fields["container_id"]
			continue
		}
		if ended && (e.Topic == "/tasks/oom" || e.Topic == "/agentbox/verdict") {
			t.Errorf("%s came after the exit: %q", e.Topic, topics(list))
		}
	}
	if !ended || verdicts != 1 || (seen > 0) != (ooms > 0) {
		t.Errorf("%d TaskOOM and %d verdicts, want %d and 1: %q", seen, verdicts, ooms, topics(list))
	}
}

// CtrContainer is a container of containerd.
type CtrContainer struct {
	*Ctr
	ID     string
	spec   string   // the file that ctr makes the bundle from
	main   *Process // ctr run
	gate   string
	flags  []string // of ctr run
	bundle string
}

// container prepares a container that runs args, in a cgroup of its own. It is
// removed at the end of the test.
func (c *Ctr) container(args []string, tweaks ...Tweak) *CtrContainer {
	c.t.Helper()
	dir := tempDir(c.t)
	cc := &CtrContainer{
		Ctr: c, ID: fmt.Sprintf("%s-%d", token, containers.Add(1)), spec: filepath.Join(dir, "config.json"),
		flags: []string{"--runtime", shimType, "--runtime-config-path", c.Config},
	}
	cc.bundle = filepath.Join(c.file("containerd-state"), "io.containerd.runtime.v2.task", token, cc.ID)
	testOf.Store(cc.ID, c.t.Name())
	s := baseSpec(cc.ID, args...)
	for _, tweak := range tweaks {
		tweak(s)
	}
	if err := writeBundle(dir, s); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(cc.remove)
	return cc
}

// held is a container that waits for release.
func (c *Ctr) held(script string, tweaks ...Tweak) *CtrContainer {
	c.t.Helper()
	gate := tempDir(c.t)
	cc := c.container(held(script), append(tweaks, withGate(gate))...)
	cc.gate = gate
	return cc
}

func (c *CtrContainer) release() { c.t.Helper(); writeFile(c.t, filepath.Join(c.gate, "open"), "") }

// run starts ctr run, in the foreground.
func (c *CtrContainer) run(extra ...string) *Process {
	c.t.Helper()
	args := append([]string{"run"}, append(slices.Clone(c.flags), extra...)...)
	c.main = launch(c.t, c.ctr(append(args, "--config", c.spec, c.ID)...))
	return c.main
}

// detached starts the container and returns when it runs.
func (c *CtrContainer) detached() {
	c.t.Helper()
	if out := c.run("--detach", "--null-io").wait(60 * time.Second); out.Code != 0 {
		c.t.Fatalf("ctr run --detach: %v", out)
	}
}

// pid is the first process, as the host counts; 0 when there is none.
func (c *CtrContainer) pid() int {
	c.t.Helper()
	pid, _ := strconv.Atoi(strings.TrimSpace(c.fileOf("init.pid")))
	return pid
}

// fileOf reads a file of the bundle; "" when it is not there.
func (c *CtrContainer) fileOf(name string) string {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join(c.bundle, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
	return string(data)
}

// exec runs a shell script in the container.
func (c *CtrContainer) exec(id, script string) Output {
	c.t.Helper()
	return execute(c.t, 60*time.Second, c.ctr("task", "exec", "--exec-id", id, c.ID, "sh", "-c", script))
}

// remove removes the container, whatever state it is in.
func (c *CtrContainer) remove() {
	c.t.Helper()
	if !exists(c.bundle) {
		execute(c.t, 60*time.Second, c.ctr("containers", "rm", c.ID))
		return
	}
	execute(c.t, 60*time.Second, c.ctr("task", "rm", "--force", c.ID))
	execute(c.t, 60*time.Second, c.ctr("containers", "rm", c.ID))
	c.nothingLeft()
}

// nothingLeft waits until containerd and the shim have cleared away.
func (c *CtrContainer) nothingLeft() {
	c.t.Helper()
	eventually(c.t, 60*time.Second, func() string {
		if exists(c.bundle) {
			return c.bundle + " is left"
		}
		if exists(state.Store{Dir: c.State}.Path(c.Root, c.ID)) {
			return "a state is left"
		}
		if pids := c.shimPids(); len(pids) > 0 {
			return fmt.Sprintf("shims are left: %v", pids)
		}
		return ""
	})
}

func (c *CtrContainer) shimPids() []int { return shimPids(c.ID) }

// shimPids are the processes that were started as shims of a container.
func shimPids(id string) (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		data, _ := os.ReadFile(name)
		if args := strings.Split(string(data), "\x00"); strings.Contains(args[0], "containerd-shim-") && slices.Contains(args, id) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// socket is where the shim of a running container listens.
func (c *CtrContainer) socket() string {
	c.t.Helper()
	if text := c.fileOf("address"); text != "" {
		return strings.TrimPrefix(text, "unix://")
	}
	var told struct{ Address string }
	if err := json.Unmarshal([]byte(c.fileOf("bootstrap.json")), &told); err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimPrefix(told.Address, "unix://")
}

// wantSeen checks a result of which the shim saw the end.
func wantSeen(t *testing.T, r *result.Result, status verdict.Status, code int) {
	t.Helper()
	if r == nil {
		t.Fatal("there is no result")
	}
	if r.Status != status || r.ExitCode == nil || *r.ExitCode != code || r.ExitSource != verdict.ExitContainerd || r.Door != result.DoorShim || r.FinishedAt == nil {
		t.Errorf("want %s with %d, seen by the shim: %s, door %s", status, code, describe(r), r.Door)
	}
}

// sameResult checks that what is kept is what was told.
func sameResult(t *testing.T, kept, told *result.Result) {
	t.Helper()
	if kept.Nonce != told.Nonce || describe(kept) != describe(told) {
		t.Errorf("kept %s %s, told %s %s", kept.Nonce, describe(kept), told.Nonce, describe(told))
	}
}

func TestShimExitCode(t *testing.T) {
	c := newCtr(t, "[limits]\npids = 99")
	c.watch()
	for _, code := range []int{0, 3, 137} {
		cc := c.container(sh(fmt.Sprintf("echo hello; exit %d", code)))
		out := cc.run().wait(60 * time.Second)
		if out.Code != code || out.Stdout != "hello\n" {
			t.Errorf("ctr run: %v", out)
		}
		list := c.until(cc.ID, "/tasks/exit")
		wantOrder(t, list, 0)
		status := verdict.Exited
		if code > 128 {
			status = verdict.Ended // or a signal: the reaper does not say
		}
		r := told(t, list)
		wantSeen(t, r, status, code)
		execute(t, 60*time.Second, c.ctr("task", "rm", cc.ID)) // ctr run did, in some versions
		cc.nothingLeft()
		sameResult(t, cc.result(cc.ID), r)
		if e := r.Enforcement["pids"]; e.Effective == nil || e.Effective.String() != "99" {
			t.Errorf("the limit of the configuration does not hold: %+v", e)
		}
	}
}

func TestShimExecAndKill(t *testing.T) {
	c := newCtr(t)
	c.watch()
	cc := c.container(sh("trap 'exit 7' TERM; while :; do sleep 0.05; done"))
	cc.detached()
	if r := cc.result(cc.ID); r.Status != verdict.Running || r.Door != result.DoorShim {
		t.Errorf("running: %s, door %s", describe(r), r.Door)
	}
	if have := cgroupOf(t, cc.pid()).limits(); have != defaultLimits() {
		t.Errorf("the cgroup has %+v, want the defaults", have)
	}
	socket := cc.socket()
	if !exists(socket) {
		t.Errorf("there is no %q", socket)
	}
	if out := cc.exec("e1", "echo in; exit 5"); out.Code != 5 || out.Stdout != "in\n" {
		t.Errorf("ctr task exec: %v", out)
	}
	if out := cc.exec("e2", "kill -9 $$"); out.Code != 137 {
		t.Errorf("ctr task exec: %v", out)
	}
	if r := cc.result(cc.ID); r.Status != verdict.Running {
		t.Errorf("after an exec was killed: %s", describe(r))
	}
	cc.call("task", "kill", "--signal", "TERM", cc.ID)
	list := c.until(cc.ID, "/agentbox/verdict")
	wantSeen(t, told(t, list), verdict.Exited, 7)
	cc.call("task", "rm", cc.ID)
	cc.nothingLeft()
	if exists(socket) {
		t.Errorf("%s is left", socket)
	}
	sameResult(t, cc.result(cc.ID), told(t, list))
	list = c.until(cc.ID, "/tasks/delete")
	wantOrder(t, list, 0)
	for _, e := range list {
		if e.Topic == "/tasks/exit" && e.Fields["id"] == "e1" && e.Fields["exit_status"] != 5.0 {
			t.Errorf("the exit of the exec: %v", e.Fields)
		}
	}
}

func TestShimMemoryBomb(t *testing.T) {
	c := newCtr(t)
	c.watch()
	cc := c.held("exec tail /dev/zero", memoryLimit(64*mib))
	main := cc.run()
	cc.release()
	if out := main.wait(60 * time.Second); out.Code != 137 {
		t.Errorf("ctr run: %v", out)
	}
	list := c.until(cc.ID, "/tasks/exit")
	wantOrder(t, list, 1)
	r := told(t, list)
	wantOOMEvidence(t, r)
	wantOOMVerdict(t, r)
	wantSeen(t, r, verdict.OOMKilled, 137)
	execute(t, 60*time.Second, c.ctr("task", "rm", cc.ID))
	cc.nothingLeft()
	sameResult(t, cc.result(cc.ID), r)
}

// A tool call that runs away takes the sandbox with it, where the kernel has
// group kills, and alone where not: in either case its TaskExit comes after the
// TaskOOM.
func TestShimMemoryBombInAnExec(t *testing.T) {
	c := newCtr(t)
	c.watch()
	cc := c.container(sh("sleep 1000"), memoryLimit(64*mib))
	cc.detached()
	if out := cc.exec("bomb", "exec tail /dev/zero"); out.Code != 137 {
		t.Errorf("ctr task exec: %v", out)
	}
	if !has(cgroup2) {
		cc.call("task", "kill", "--signal", "KILL", cc.ID)
	}
	var list []Event
	eventually(t, 60*time.Second, func() string {
		list = c.of(cc.ID)
		if n := len(slices.DeleteFunc(topics(list), func(topic string) bool { return topic != "/tasks/exit" })); n != 2 {
			return fmt.Sprintf("%d processes have ended: %q", n, topics(list))
		}
		return ""
	})
	wantOrder(t, list, 1)
	if names := topics(list); slices.Index(names, "/tasks/oom") > slices.Index(names, "/tasks/exit") {
		t.Errorf("an exit was published before its reason: %q", names)
	}
	if r := told(t, list); has(cgroup2) {
		wantOOMVerdict(t, r)
	} else {
		wantOOMEvidence(t, r)
	}
}

// Many sandboxes run out of memory at the same time, and the events of each are
// in order.
func TestSoakShimMemoryBombs(t *testing.T) { newCtr(t).bombs(rounds(30)) }

func (c *Ctr) bombs(total int, tweaks ...Tweak) {
	const atOnce = 8
	t := c.t
	t.Helper()
	c.watch()
	work := make(chan *CtrContainer)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for cc := range work {
				args := append(append([]string{"run", "--rm", "--null-io"}, cc.flags...), "--config", cc.spec, cc.ID)
				if err := cc.ctr(args...).Run(); err == nil {
					t.Errorf("%s ended well", cc.ID)
				}
			}
		})
	}
	var all []*CtrContainer
	for range total {
		cc := c.container([]string{"/bin/tail", "/dev/zero"}, append(tweaks, memoryLimit(16*mib))...)
		all = append(all, cc)
		work <- cc
	}
	close(work)
	wg.Wait()
	for _, cc := range all {
		list := c.until(cc.ID, "/tasks/delete")
		wantOrder(t, list, 1)
		r := told(t, list)
		wantSeen(t, r, verdict.OOMKilled, 137)
		wantOOMVerdict(t, r)
		cc.nothingLeft()
		sameResult(t, cc.result(cc.ID), r)
	}
}

// What is wrong with the options reaches the user of ctr, and nothing is left.
func TestShimRefusals(t *testing.T) {
	newCtr(t)
	for _, tc := range []struct {
		name, config string // config: the file, "" for one that is not there
		says         []string
		tweak        Tweak
	}{
		{"configuration that is not there", "", []string{"/config.toml", "does not exist"}, nil},
		{"configuration with a wrong key", "memroy = 1", []string{"/config.toml:2", "memroy"}, nil},
		{"low-level runtime that is missing", `runtime = "/nowhere/runc"`, []string{"/nowhere/runc", "install it"}, nil},
		{"annotation that is not known", "# fine", []string{"agentbox.dev/memroy", "did you mean agentbox.dev/memory?"}, annotation("agentbox.dev/memroy", "1g")},
		{
			"request above a ceiling in Kubernetes", "[ceilings]\nmemory = \"64MiB\"",
			[]string{"memory 128MiB from the spec is above the ceiling"},
			func(s Spec) {
				s.set("pod", "annotations", "io.kubernetes.cri.sandbox-id")
				memoryLimit(128 * mib)(s)
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCtr(t, tc.config)
			if tc.config == "" {
				if err := os.Remove(c.Config); err != nil {
					t.Fatal(err)
				}
			}
			tweak := tc.tweak
			if tweak == nil {
				tweak = func(Spec) {}
			}
			cc := c.container(sh("exit 0"), tweak)
			out := cc.run().wait(60 * time.Second)
			for _, text := range tc.says {
				if out.Code == 0 || !strings.Contains(out.Stderr, text) {
					t.Errorf("ctr run does not say %q: %v", text, out)
				}
			}
			cc.nothingLeft()
		})
	}
}

// A shim that was installed without the runtime says so.
func TestShimWithoutRuntime(t *testing.T) {
	need(t, ctr, runc)
	alone := tempDir(t)
	data, err := os.ReadFile(filepath.Join(bin, "containerd-shim-agentbox-v1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(alone, "containerd-shim-agentbox-v1"), data, 0o755); err != nil {
		t.Fatal(err)
	}
	c := newOwnCtr(t, alone+":/usr/sbin:/usr/bin:/sbin:/bin")
	cc := c.container(sh("exit 0"))
	out := cc.run().wait(60 * time.Second)
	if want := "agentbox-runtime was not found in " + alone; out.Code == 0 || !strings.Contains(out.Stderr, want) {
		t.Errorf("ctr run does not say %q: %v", want, out)
	}
	cc.nothingLeft()
}

// A containerd that dies while it starts a shim leaves none behind.
func TestShimThatNobodyHearsOf(t *testing.T) {
	need(t)
	bundle := tempDir(t)
	writeFile(t, filepath.Join(bundle, "config.json"), `{"ociVersion":"1.0.2"}`)
	log := filepath.Join(bundle, "log")
	if err := unix.Mkfifo(log, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(log, os.O_RDWR, 0) // a shim waits for a reader of its log
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("%s-%d", token, containers.Add(1))
	cmd := exec.Command(filepath.Join(bin, "containerd-shim-agentbox-v1"),
		"-namespace", token, "-address", filepath.Join(bundle, "nowhere"), "-id", id, "start")
	cmd.Dir, cmd.Stdout = bundle, w
	cmd.Env = append(os.Environ(), "TTRPC_ADDRESS="+filepath.Join(bundle, "nowhere"))
	if out := execute(t, 30*time.Second, cmd); out.Code != 1 || !strings.Contains(out.Stderr, "answer containerd") {
		t.Errorf("the start: %v", out)
	}
	cc := &CtrContainer{Ctr: &Ctr{Box: &Box{t: t}}, ID: id}
	eventually(t, 60*time.Second, func() string {
		if pids := cc.shimPids(); len(pids) > 0 {
			return fmt.Sprintf("shims are left: %v", pids)
		}
		return ""
	})
	if exists(filepath.Join(bundle, "address")) {
		t.Error("its address is left")
	}
}

// containerd finds its shims again after it was killed, and they find it.
func TestShimOutlivesContainerd(t *testing.T) {
	c := newOwnCtr(t, bin+":"+os.Getenv("PATH"))
	cc := c.container(sh("trap 'exit 7' TERM; while :; do sleep 0.05; done"))
	bomb := c.held("exec tail /dev/zero", memoryLimit(64*mib))
	cc.detached()
	bomb.detached()
	pid := cc.pid()

	if err := c.containerd.cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.containerd.done
	bomb.release() // ends while nobody listens
	bombPid := bomb.pid()
	eventually(t, 60*time.Second, func() string {
		if alive(bombPid) {
			return "the bomb has not gone off"
		}
		return ""
	})
	if err := c.startContainerd(); err != nil {
		t.Fatal(err)
	}
	if err := c.waitCtr(); err != nil {
		t.Fatal(err)
	}
	c.watch()
	out := c.call("task", "ls")
	for line := range strings.Lines(out.Stdout) {
		if fields := strings.Fields(line); fields[0] == cc.ID && (fields[1] != itoa(pid) || fields[2] != "RUNNING") {
			t.Errorf("containerd has lost the container: %s", line)
		}
	}
	if !strings.Contains(out.Stdout, cc.ID) {
		t.Errorf("ctr task ls: %v", out)
	}
	if out := cc.exec("e1", "echo in"); out.Stdout != "in\n" {
		t.Errorf("ctr task exec: %v", out)
	}
	cc.call("task", "kill", "--signal", "TERM", cc.ID)
	wantSeen(t, told(t, c.until(cc.ID, "/agentbox/verdict")), verdict.Exited, 7)
	execute(t, 60*time.Second, c.ctr("task", "rm", "--force", bomb.ID)) // containerd 2 has done so
	r := bomb.result(bomb.ID)
	wantSeen(t, r, verdict.OOMKilled, 137)
	wantOOMVerdict(t, r)
}

// A shim that was killed is cleared away by containerd, which calls delete.
func TestShimKilled(t *testing.T) {
	c := newCtr(t)
	c.watch()
	cc := c.container(sh("sleep 1000"))
	cc.detached()
	pids, socket := cc.shimPids(), cc.socket()
	if len(pids) != 1 || !exists(socket) {
		t.Fatalf("shims %v, at %q", pids, socket)
	}
	kill(t, pids[0], unix.SIGKILL)
	list := c.until(cc.ID, "/tasks/delete")
	if names := topics(list); slices.Index(names, "/agentbox/verdict") > slices.Index(names, "/tasks/delete") {
		t.Errorf("published %q", names)
	}
	if exists(socket) {
		t.Errorf("%s is left", socket)
	}
	r := told(t, list)
	if r == nil || r.Status != verdict.Ended || r.ErrorCode != "" || r.ExitSource != verdict.ExitUnknown {
		t.Fatalf("nobody saw the end: %q %v", topics(list), r)
	}
	sameResult(t, cc.result(cc.ID), r)
	execute(t, 60*time.Second, c.ctr("containers", "rm", cc.ID))
	cc.nothingLeft()
}

// podOf makes a specification that of a pod's container; without a pod it is the
// pause container of a new one.
func podOf(pod string) Tweak {
	return func(s Spec) {
		kind := "container"
		if pod == "" {
			kind, pod = "sandbox", filepath.Base(s["linux"].(map[string]any)["cgroupsPath"].(string)) // its own id
		}
		s.set(kind, "annotations", "io.kubernetes.cri.container-type")
		s.set(pod, "annotations", "io.kubernetes.cri.sandbox-id")
	}
}

// The containers of a pod share a shim, and the one that only holds the pod's
// namespaces is no sandbox.
func TestShimPod(t *testing.T) {
	c := newCtr(t)
	c.watch()
	pause := c.container(sh("trap 'exit 0' TERM; while :; do sleep 0.05; done"), podOf(""), with(10, "process", "oomScoreAdj"))
	pause.detached()
	member := c.held("exec tail /dev/zero", podOf(pause.ID), memoryLimit(64*mib))
	member.detached()
	if a, b := pause.shimPids(), member.shimPids(); len(a) != 1 || len(b) != 0 {
		t.Errorf("the pod has the shims %v, and its container %v", a, b)
	}
	if have := cgroupOf(t, pause.pid()).limits(); have.Memory != unlimited || have.Pids != unlimited || have.Quota != unlimited || have.GroupKill {
		t.Errorf("the pause container has limits: %+v", have)
	}
	if got := strings.TrimSpace(readFile(t, fmt.Sprintf("/proc/%d/oom_score_adj", pause.pid()))); got != "10" {
		t.Errorf("the pause container's oom_score_adj is %s", got)
	}
	want := defaultLimits()
	want.Memory = 64 * mib
	if have := cgroupOf(t, member.pid()).limits(); have != want {
		t.Errorf("the pod's container has %+v, want %+v", have, want)
	}

	member.release()
	list := c.until(member.ID, "/tasks/exit")
	wantOrder(t, list, 1)
	wantOOMVerdict(t, told(t, list))
	if names := topics(c.of(pause.ID)); slices.Contains(names, "/tasks/oom") || slices.Contains(names, "/tasks/exit") {
		t.Errorf("the pause container has published %q", names)
	}
	member.call("task", "rm", member.ID)
	pause.call("task", "kill", "--signal", "TERM", pause.ID)
	list = c.until(pause.ID, "/tasks/exit")
	if r := told(t, list); r != nil {
		t.Errorf("a verdict about the pause container: %s", describe(r))
	}
	pause.call("task", "rm", pause.ID)
	pause.nothingLeft()
	member.nothingLeft()
	if kept := pause.kept(pause.ID); len(kept) > 0 {
		t.Errorf("a result of the pause container is kept: %s", describe(kept[0]))
	}
}

// By Docker the shim is a runtime too, without a wrapper around its arguments.
func TestShimDocker(t *testing.T) {
	d := newDocker(t, shims)
	d.State = state.SystemDir
	t.Run("configured", func(t *testing.T) {
		d := newDocker(t, shims)
		d.State = state.SystemDir
		c := d.held("agentbox-shim", "-m 64m", "sleep 1000 & tail /dev/zero; echo survived")
		c.letGo()
		if out := c.ends(); out.Code != 137 {
			t.Errorf("the container was not killed: %v", out)
		}
		if got := c.about("{{.State.OOMKilled}} {{.State.ExitCode}}"); got != "true 137" {
			t.Errorf("docker inspect says OOMKilled and exit code %q", got)
		}
		r := c.verdict()
		wantOOMEvidence(t, r)
		wantOOMVerdict(t, r)
		wantSeen(t, r, verdict.OOMKilled, 137)
		if r, out := c.inspect(c.Name); r == nil || r.ID != c.ID || r.Name != c.Name {
			t.Errorf("agentbox inspect %s: %v", c.Name, out)
		}
	})
	t.Run("by the name of its type", func(t *testing.T) {
		d := newDocker(t, shims)
		d.State, d.Config = state.SystemDir, filepath.Join(tempDir(t), "none.toml")
		writeFile(t, d.Config, "") // as without one: results are in their default place
		c := d.detached(shimType, "", "exit 3")
		t.Cleanup(func() {
			names, _ := filepath.Glob("/var/lib/agentbox/results/" + c.ID + "~*")
			for _, name := range names {
				_ = os.Remove(name)
			}
		})
		if code := c.wait(); code != 3 {
			t.Errorf("docker wait says %d", code)
		}
		wantSeen(t, c.verdict(), verdict.Exited, 3)
		if got := c.about("{{.State.OOMKilled}}"); got != "false" {
			t.Errorf("docker inspect says OOMKilled %s", got)
		}
	})
	t.Run("with a wrong configuration", func(t *testing.T) {
		d := newDocker(t, shims)
		name := d.newName()
		t.Cleanup((&DockerContainer{Docker: d, Name: name}).remove)
		out := d.run(append(d.words(name, "agentbox-shim-bad", ""), "true")...)
		if out.Code == 0 || !strings.Contains(out.Stderr, "memroy") || !strings.Contains(out.Stderr, "agentbox-shim-bad.toml:2") {
			t.Errorf("docker run does not say what is wrong: %v", out)
		}
	})
}
