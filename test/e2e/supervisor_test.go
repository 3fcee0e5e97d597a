//go:build e2e

package e2e

import (
	"bytes"
	"encoding/binary"
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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// The supervisor, attacked on the kinds of ground that it is for. What an attack
// took is counted by the attack itself, in a file of the host; what computed, by
// the kernel's clock of each process.

const (
	supervisor feature = "supervisor" // the kernel has what the supervisor is made of
	nocgroups  feature = "nocgroups"  // crun can start a container without a cgroup
	rootless   feature = "rootless"   // runc can start a container of a user who is not root
)

func init() {
	features[supervisor] = sync.OnceValue(func() error {
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = os.ReadFile("/proc/self/smaps_rollup")
		return errors.Join(err, unix.PidfdSendSignal(fd, 0, nil, 0))
	})
	features[nocgroups] = sync.OnceValue(func() error {
		return tryGround("crun", 0, []string{noCgroupManager})
	})
	features[rootless] = sync.OnceValue(func() error { return tryGround("runc", somebody, nil) })
}

const (
	noCgroupManager = "--cgroup-manager=disabled"
	somebody        = 54321 // a user without a name, and without any right
)

// tryGround starts a container by the low-level runtime itself.
func tryGround(lowLevel string, user int, flags []string) error {
	dir, err := os.MkdirTemp(scratch, "try-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &Box{LowLevel: lowLevel, Root: filepath.Join(dir, "root"), flags: flags, user: user}
	id := token + "-try-" + filepath.Base(dir)
	s := baseSpec(id, "true")
	withoutCgroup(user)(s)
	if err := errors.Join(writeBundle(dir, s), b.own(dir)); err != nil {
		return err
	}
	return tryCommand(b.bare("run", "--bundle", dir, id))
}

// withoutCgroup makes a specification one of a container that no cgroup is made
// for, and of a user who is not root, if that is who starts it.
func withoutCgroup(user int) Tweak {
	return func(s Spec) {
		linux := s["linux"].(map[string]any)
		delete(linux, "cgroupsPath")
		if user == 0 {
			return
		}
		linux["namespaces"] = append(linux["namespaces"].([]any), map[string]any{"type": "user"})
		one := []any{map[string]any{"containerID": 0, "hostID": user, "size": 1}}
		linux["uidMappings"], linux["gidMappings"] = one, one
	}
}

// own gives what is in a folder to the user of the box.
func (b *Box) own(dir string) error {
	if b.user == 0 {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, b.user, b.user))
	})
}

// as makes a command one of the user of the box.
func (b *Box) as(cmd *exec.Cmd) *exec.Cmd {
	if b.user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(b.user), Gid: uint32(b.user)}}
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "XDG_RUNTIME_DIR=" + filepath.Dir(b.State)}
		cmd.Dir = "/"
	}
	return cmd
}

// ours is one of our programs. A user may not be able to reach those that were built.
func (b *Box) ours(name string) string {
	if b.user != 0 {
		return filepath.Join(filepath.Dir(b.State), "bin", name)
	}
	return filepath.Join(bin, name)
}

// A ground is a place with sandboxes that one supervisor holds, and where one of
// them, the neighbour, must never notice the others.
type ground struct {
	*Box
	kind      groundKind
	neighbour *Container
}

type groundKind struct {
	name     string
	needs    feature
	lowLevel string
	flags    []string
	user     int
	config   string // before the tables
}

var grounds = []groundKind{
	{name: "runc", needs: runc, lowLevel: "runc", config: everything},
	{name: "crun without cgroups", needs: nocgroups, lowLevel: "crun", flags: []string{noCgroupManager}},
	{name: "rootless runc", needs: rootless, lowLevel: "runc", user: somebody},
}

// everything has the supervisor do what the kernel could.
const everything = `supervise = ["memory", "pids", "cpu", "io"]`

// eachGround runs a test on every ground of this machine.
func eachGround(t *testing.T, test func(t *testing.T, g *ground)) {
	t.Helper()
	t.Parallel()
	for _, kind := range grounds {
		t.Run(kind.name, func(t *testing.T) {
			need(t, supervisor, kind.needs)
			t.Parallel()
			test(t, newGround(t, kind))
		})
	}
}

func newGround(t *testing.T, kind groundKind) *ground {
	t.Helper()
	g := &ground{Box: newBox(t, kind.lowLevel, kind.config), kind: kind}
	g.flags, g.user = kind.flags, kind.user
	if kind.user != 0 {
		dir := filepath.Dir(g.State)
		if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"agentbox", "agentbox-runtime"} {
			if err := copyProgram(filepath.Join(bin, name), filepath.Join(dir, "bin", name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.own(dir); err != nil {
			t.Fatal(err)
		}
	}
	g.neighbour = g.container(sh("while :; do read now _ </proc/uptime; echo $now; sleep 0.1; done"), withoutCgroupOf(kind))
	g.neighbour.begin(byCreate)
	t.Cleanup(func() { // after the subtests
		g.undisturbed(t, 0)
		c := g.neighbour
		if out := c.must("exec", c.ID, "echo", "hello"); out.Stdout != "hello\n" {
			t.Errorf("the neighbour does not answer: %v", out)
		}
		c.must("kill", c.ID, "KILL")
		_, r := c.finish(byCreate)
		wantNoLimit(t, r)
	})
	return g
}

// few shortens a list of attacks where there is little time: one CPU that is
// emulated gets all of them on one ground, that which no other machine has.
func few[T any](g *ground, list []T, n int) []T {
	if has(cpus2) || g.kind.needs == nocgroups {
		return list
	}
	return list[:n]
}

func withoutCgroupOf(kind groundKind) Tweak {
	if kind.config == everything {
		return func(Spec) {}
	}
	return withoutCgroup(kind.user)
}

// uptime is the clock that the neighbour tells.
func uptime(t *testing.T) float64 {
	t.Helper()
	var now float64
	if _, err := fmt.Sscan(readFile(t, "/proc/uptime"), &now); err != nil {
		t.Fatal(err)
	}
	return now
}

// undisturbed fails when the neighbour stood still in the time since then.
func (g *ground) undisturbed(t *testing.T, since float64) {
	t.Helper()
	most := 3.0 // seconds: all tests run on few CPUs
	if !has(cpus2) {
		most = 10
	}
	end := uptime(t)
	var times []float64
	eventually(t, 10*time.Second, func() string {
		times = times[:0]
		for word := range strings.FieldsSeq(readFile(t, g.neighbour.main.stdout)) {
			if at, err := strconv.ParseFloat(word, 64); err == nil { // the last may be on its way
				times = append(times, at)
			}
		}
		if len(times) == 0 || times[len(times)-1] < end {
			return "the neighbour stands still"
		}
		return ""
	})
	for i := 1; i < len(times); i++ {
		if gap := times[i] - times[i-1]; times[i] >= since && gap > most*float64(*slowFlag) {
			t.Errorf("the neighbour stood still for %.2f s", gap)
		}
	}
}

// attack is a sandbox that is watched from outside.
type attack struct {
	*Container
	ground *ground
	count  string  // the file that counts what it took
	pidns  string  // its pid namespace
	began  float64 // by the clock of uptime
}

// attack starts a sandbox under a policy.
func (g *ground) attack(t *testing.T, policy string, args []string, tweaks ...Tweak) *attack {
	t.Helper()
	a := g.prepare(t, policy, args, tweaks...)
	a.create()
	a.look()
	a.start()
	return a
}

func (g *ground) prepare(t *testing.T, policy string, args []string, tweaks ...Tweak) *attack {
	t.Helper()
	need(t)
	b := *g.Box
	b.t, b.Config = t, filepath.Join(tempDir(t), "config.toml")
	writeFile(t, b.Config, fmt.Sprintf("runtime = %q\nresults = %q\n%s\n%s\n", b.LowLevel, b.Results.Dir, g.kind.config, policy))
	if err := b.own(filepath.Dir(b.Config)); err != nil {
		t.Fatal(err)
	}
	count := countFile(t)
	a := &attack{ground: g, count: count, began: uptime(t)}
	a.Container = b.container(args, append(tweaks, withCount(count), withName, withoutCgroupOf(g.kind))...)
	return a
}

// look notes what is known of a sandbox only as long as it is there.
func (a *attack) look() {
	a.t.Helper()
	var err error
	if a.pidns, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", a.pid())); err != nil {
		a.t.Fatal(err)
	}
}

// countFile makes a file that everybody can count in.
func countFile(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	name := filepath.Join(dir, "bytes")
	writeFile(t, name, strings.Repeat("\x00", os.Getpagesize()))
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(name, 0o666)); err != nil {
		t.Fatal(err)
	}
	return name
}

func withCount(file string) Tweak {
	return func(s Spec) {
		s["mounts"] = append(s["mounts"].([]any), map[string]any{
			"destination": "/count", "type": "bind", "source": filepath.Dir(file), "options": []string{"rbind"},
		})
	}
}

const nameOf = "AGENTBOX_E2E_SANDBOX="

// withName puts the id into the environment of all processes, wherever they go.
func withName(s Spec) {
	id := filepath.Base(s["linux"].(map[string]any)["cgroupsPath"].(string))
	process := s["process"].(map[string]any)
	process["env"] = append(process["env"].([]string), nameOf+id)
}

// taken is what an attack has taken, in bytes.
func taken(t *testing.T, count string) int64 {
	t.Helper()
	return int64(binary.NativeEndian.Uint64([]byte(readFile(t, count))))
}

// insiders are the processes of a sandbox: those in its pid namespace, where that
// is known, and those that have its environment.
func insiders(id, pidns string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		ns, _ := os.Readlink(dir + "/ns/pid")
		env, _ := os.ReadFile(dir + "/environ")
		if pidns != "" && ns == pidns || slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return string(v) == nameOf+id }) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// ends waits for the end of an attack and returns its result, after it has made
// sure that nothing is left of it and that the neighbour has noticed nothing.
func (a *attack) ends() (Output, *result.Result) {
	a.t.Helper()
	out := a.await(byCreate)
	gone(a.t, a.ID, a.pidns)
	a.delete()
	a.ground.undisturbed(a.t, a.began)
	return out, a.result()
}

func gone(t *testing.T, id, pidns string) {
	t.Helper()
	eventually(t, 5*time.Second, func() string {
		for _, pid := range insiders(id, pidns) {
			if alive(pid) {
				cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				return fmt.Sprintf("process %d of the sandbox is left: %q", pid, cmdline)
			}
		}
		return ""
	})
}

// wantStruck checks that the supervisor ended a sandbox for a limit.
func wantStruck(t *testing.T, r *result.Result, code verdict.Code) {
	t.Helper()
	s := r.Evidence.Strike
	if r.Status != verdict.LimitKilled || r.ErrorCode != code || s == nil || s.Code != code || s.Measured < s.Limit || r.FinishedAt == nil {
		t.Errorf("want %s: %s, strike %+v", code, describe(r), s)
	}
}

// wantNoLimit checks that no limit has ended a sandbox that has ended.
func wantNoLimit(t *testing.T, r *result.Result) {
	t.Helper()
	if r.ErrorCode != "" || r.Status == verdict.LimitKilled || r.Status == verdict.OOMKilled || r.Evidence.Strike != nil || r.FinishedAt == nil {
		t.Errorf("a verdict that is not the truth: %s, strike %+v", describe(r), r.Evidence.Strike)
	}
}

// wantSupervised checks who is reported to enforce a dimension.
func wantSupervised(t *testing.T, r *result.Result, dimension string) {
	t.Helper()
	if e := r.Enforcement[dimension]; e.Enforcer != limits.EnforcerSupervisor || e.Effective == nil {
		t.Errorf("%s is not enforced by the supervisor: %+v", dimension, e)
	}
}

// supervisors are the processes of the supervisor of a folder of states, by their
// roles.
func supervisors(dir string) map[string]int {
	found := map[string]int{}
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		data, _ := os.ReadFile(name)
		args := strings.Split(string(data), "\x00")
		at, role := slices.Index(args, "--state"), slices.Index(args, "--role")
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if slices.Contains(args, "supervise") && at > 0 && role > 0 && args[at+1] == dir && alive(pid) {
			found[args[role+1]] = pid
		}
	}
	return found
}

// stopSupervisor tells the supervisor of a folder of states to end, if there is
// one, and waits until both of its processes have.
func stopSupervisor(dir string) error {
	if pid := supervisors(dir)["worker"]; pid > 0 {
		_ = unix.Kill(pid, unix.SIGTERM) // it may have ended by itself
	}
	for deadline := time.Now().Add(scaled(10 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		left := supervisors(dir)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the supervisor does not end: %v", left)
		}
	}
}
