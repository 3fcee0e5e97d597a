package supervise

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/fallback"
	"github.com/agentbox/agentbox/pkg/lease"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// The test program is agentbox supervise too, with an engine that a test can
// give orders to by files in the folder of states.
func TestMain(m *testing.M) {
	newEngine = newFake
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(asProgram(os.Args[2:]))
	}
	if len(os.Args) == 2 && os.Args[1] == "spin" {
		spin()
	}
	if len(os.Args) == 6 && os.Args[1] == "connect" {
		os.Exit(connect(os.Args[2:]))
	}
	code := m.Run()
	removeCgroups()
	os.Exit(code)
}

// removeCgroups removes those of supervisors that were killed. While others are in
// them, they stay.
func removeCgroups() {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroupName)
	for _, dir := range append(dirs, "/sys/fs/cgroup/"+cgroupName) {
		for range 20 {
			if err := os.Remove(dir); !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(10 * time.Millisecond) // its last process is about to be gone
		}
	}
}

// connect asks, through descriptor 3, for what stands on the command line, and
// prints the answer.
func connect(args []string) int {
	conn, err := net.Dial("unix", "/proc/self/fd/3/supervise.sock")
	if err == nil {
		_, err = fmt.Fprintf(conn, "agentbox-supervise 1 take %q %q %s %s\n", args[0], args[1], args[2], args[3])
	}
	var line string
	if err == nil {
		line, err = lease.ReadLine(conn)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(line)
	return 0
}

func asProgram(args []string) int {
	var o Options
	flags := flag.NewFlagSet("", flag.ExitOnError)
	detach := flags.Bool("detach", false, "")
	flags.StringVar(&o.Dir, "state", "", "")
	flags.StringVar((*string)(&o.Role), RoleFlag, "", "")
	flags.DurationVar(&o.Idle, IdleFlag, 0, "")
	flags.IntVar(&o.Partner, PartnerFlag, 0, "")
	flags.IntVar(&o.Ready, ReadyFlag, 0, "")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if !*detach {
		return Run(o)
	}
	idle := DefaultIdle
	if data, err := os.ReadFile(filepath.Join(o.Dir, "idle")); err == nil {
		idle, _ = time.ParseDuration(string(data))
	}
	if err := Detach(o.Dir, idle); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fake is an engine that looks whether processes live, and does what files in the
// folder of states tell it:
//
//	fail         Run fails, once
//	refuse       Add fails
//	strike       the sandbox is ended for its memory
//	hang         Close does not return
//	real         not this engine but the real one
//	die          this process is killed between the strike and the end, once
type fake struct {
	host fallback.Host
	dir  string
	stop chan struct{}

	mu    sync.Mutex
	boxes map[string]fallback.Sandbox
}

func newFake(h fallback.Host) (Engine, error) {
	if _, err := os.Lstat(filepath.Join(h.(host).o.States.Dir, "real")); err == nil {
		return fallback.New(h)
	}
	return &fake{host: h, dir: h.(host).o.States.Dir, stop: make(chan struct{}), boxes: map[string]fallback.Sandbox{}}, nil
}

func (f *fake) told(what string) bool {
	_, err := os.Lstat(filepath.Join(f.dir, what))
	return err == nil
}

func (f *fake) once(what string) bool { return os.Remove(filepath.Join(f.dir, what)) == nil }

func (f *fake) Run() error {
	for {
		select {
		case <-f.stop:
			return nil
		case <-time.After(2 * time.Millisecond):
		}
		if f.once("fail") {
			return errors.New("as it was told")
		}
		f.look()
	}
}

func (f *fake) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, box := range f.boxes {
		switch {
		case !box.Init.Running():
			delete(f.boxes, key)
			code := 137
			f.host.Ended(key, verdict.Exit{Source: verdict.ExitPidfd, Code: &code})
		case f.told("strike") && box.Struck == nil:
			s := verdict.Strike{Code: verdict.MemoryLimitExceeded, Limit: box.Limits.Memory, Measured: box.Limits.Memory + 1, At: time.Now()}
			if err := f.host.Strike(key, s); err != nil {
				report(err)
			}
			if f.once("die") {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			}
			box.Struck = &s
			f.boxes[key] = box
		case box.Struck != nil:
			_ = unix.Kill(box.Init.Pid, unix.SIGKILL)
		}
	}
}

func (f *fake) Add(s fallback.Sandbox) error {
	if f.told("refuse") {
		return errors.New("as it was told")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes[s.Key] = s
	return nil
}

func (f *fake) Close() {
	for f.told("hang") {
		time.Sleep(time.Second)
	}
	close(f.stop)
}

// folder is a folder of states with what supervises it.
type folder struct {
	*testing.T
	dir string
	state.Store
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	f := &folder{T: t, dir: t.TempDir()}
	f.Store = state.Store{Dir: f.dir}
	if err := os.Chmod(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.end)
	return f
}

// end ends what the test has started.
func (f *folder) end() {
	for range 100 {
		all := append(f.processes(Keeper), f.processes(Worker)...)
		if len(all) == 0 {
			return
		}
		for _, pid := range all {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
	f.Errorf("processes of the supervisor cannot be ended: %v", f.log())
}

func (f *folder) log() string {
	data, _ := os.ReadFile(lease.LogPath(f.dir))
	return string(data)
}

// processes returns the pids of keepers or workers of this folder that have not
// ended.
func (f *folder) processes(role Role) []int {
	f.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		f.Fatal(err)
	}
	var pids []int
	for _, dir := range dirs {
		data, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(data) == 0 {
			continue
		}
		args := strings.Split(string(data), "\x00")
		at := slices.Index(args, "--"+RoleFlag)
		if at < 0 || args[at+1] != string(role) || !slices.Contains(args, f.dir) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if p, err := procfs.FindProcess(pid); err == nil && p.Running() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// one returns the pid of the only process of a role.
func (f *folder) one(role Role) int {
	f.Helper()
	pids := f.processes(role)
	if len(pids) != 1 {
		f.Fatalf("there are %d of the role %s: %v; log: %s", len(pids), role, pids, f.log())
	}
	return pids[0]
}

// within waits until something holds.
func (f *folder) within(limit time.Duration, what string, holds func() bool) {
	f.Helper()
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatalf("not within %v: %s; log: %s", limit, what, f.log())
		}
	}
}

func (f *folder) tell(what, text string) {
	f.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, what), []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

// box is a sandbox whose process sleeps.
type box struct {
	lease.Request
	dir string
}

func (f *folder) sandbox(id string) box {
	f.Helper()
	return f.sandboxWith(id, limits.Entry{Key: limits.KeyMemory, Dimension: limits.Memory, Value: limits.Limit(1 << 20), Enforcer: limits.EnforcerSupervisor})
}

func (f *folder) sandboxWith(id string, entries ...limits.Entry) box {
	f.Helper()
	init, err := procfs.FindProcess(sleeper(f.T))
	if err != nil {
		f.Fatal(err)
	}
	return f.sandboxOf(id, init, entries...)
}

func (f *folder) sandboxOf(id string, init procfs.Process, entries ...limits.Entry) box {
	f.Helper()
	root := f.TempDir()
	st := &state.State{
		ID: id, Root: root, RealRoot: root, Runtime: "/bin/true", Nonce: "1", Door: "runtime",
		Plan: limits.Plan{Entries: entries}, Started: &state.Started{Init: init},
	}
	if err := f.Create(st); err != nil {
		f.Fatal(err)
	}
	return box{lease.Request{Root: root, ID: id, Init: init}, f.Path(root, id)}
}

// sleeper starts a process that is no child of this one, so that it is gone when
// it has ended.
func sleeper(t *testing.T) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "sleep 1000 >/dev/null & echo $!"}, &os.ProcAttr{Files: []*os.File{nil, w, nil}})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(r, &pid); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	return pid
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func (f *folder) ask(b box) error {
	f.Helper()
	return lease.Asker{Dir: f.dir, Program: self(f.T), Limit: 10 * time.Second}.Ask(b.dir, b.Request)
}

func (f *folder) mustAsk(b box) {
	f.Helper()
	if err := f.ask(b); err != nil {
		f.Fatalf("%v; log: %s", err, f.log())
	}
}

func held(dir string) bool {
	held, err := lease.Held(dir)
	return held && err == nil
}
