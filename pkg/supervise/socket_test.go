package supervise

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/lease"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/test/promise"
)

// readOnly makes a folder one that cannot be written.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		promise.Lacks(t, "mounts: ", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		promise.Lacks(t, "mounts: ", err)
	}
}

// serving is a worker in this process, which listens.
func serving(t *testing.T) (*folder, *Owner) {
	t.Helper()
	f := newFolder(t)
	o := &Owner{States: f.Store, Say: func(err error) { t.Log(err) }}
	s, err := listen(f.dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.close()
		o.Close()
	})
	return f, o
}

func (f *folder) connect() net.Conn {
	f.Helper()
	address, open, err := lease.Address(f.dir)
	if err != nil {
		f.Fatal(err)
	}
	defer open.Close()
	conn, err := net.Dial("unix", address)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		f.Fatal(err)
	}
	return conn
}

func TestSocketMisuse(t *testing.T) {
	f, o := serving(t)
	a := f.sandbox("a")
	take := func(root, id string, p procfs.Process) string {
		return "agentbox-supervise 1 take " + strconv.Quote(root) + " " + strconv.Quote(id) + " " +
			strconv.Itoa(p.Pid) + " " + strconv.FormatUint(p.StartTime, 10) + "\n"
	}
	for _, tt := range []struct{ name, say, hear string }{
		{"garbage", "GET / HTTP/1.1\n", "no this is no request that this supervisor knows"},
		{"zeros", strings.Repeat("\x00", 100) + "\n", "no this is no request"},
		{"a line without end", strings.Repeat("x", 1<<20), "no read what is asked: a line has more than"},
		{"a later version", "agentbox-supervise 2 take \"/r\" \"c\" 1 1\n", "no this is no request"},
		{"a sandbox that is not there", take(a.Root, "nobody", a.Init), "no take the lease: "},
		{"a way out of the folder", take(a.Root, "../../../../../../etc", a.Init), "no \"../../../../../../etc\" names no sandbox"},
		{"a root that is none", take("..", a.ID, a.Init), "no \"..\" is no folder of a low-level runtime"},
		{"no id", take(a.Root, "", a.Init), "no \"\" names no sandbox"},
		{"a process that has ended", take(a.Root, a.ID, procfs.Process{Pid: a.Init.Pid, StartTime: a.Init.StartTime + 1}), "no the first process of a, "},
		{"a right one", take(a.Root, a.ID, a.Init), "ok"},
		{"twice", take(a.Root, a.ID, a.Init) + take(a.Root, a.ID, a.Init), "ok"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := f.connect()
			go func() { _, _ = conn.Write([]byte(tt.say)) }()
			line, err := lease.ReadLine(conn)
			if err != nil || !strings.HasPrefix(line, tt.hear) {
				t.Errorf("%q, %v; want %q", line, err, tt.hear)
			}
		})
	}
	if o.Count() != 1 || !held(a.dir) {
		t.Errorf("%d are supervised", o.Count())
	}
	if _, err := os.Lstat("/etc/lease"); err == nil {
		t.Error("there is a lease in /etc")
	}
}

// Those who say nothing keep nobody else waiting for long, however many.
func TestSlowClients(t *testing.T) {
	f, _ := serving(t)
	for range 3 * maxClients / 2 {
		conn := f.connect()
		if _, err := conn.Write([]byte("agentbox-super")); err != nil {
			t.Fatal(err)
		}
	}
	a := f.sandbox("a")
	begin := time.Now()
	f.mustAsk(a) // behind all of them
	if took := time.Since(begin); took > 2*clientTime {
		t.Errorf("it took %v", took)
	}
	if n := len(f.processes(Worker)); n != 0 {
		t.Errorf("%d other workers were started", n)
	}
}

// Who comes so far although the folder is closed to others is turned away.
func TestAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		promise.Lacks(t, "root")
	}
	f, o := serving(t)
	a := f.sandbox("a")
	if err := errors.Join(os.Chmod(f.dir, 0o711), os.Chmod(lease.SocketPath(f.dir), 0o666)); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c := exec.Command("/proc/self/exe", "connect", a.Root, a.ID, strconv.Itoa(a.Init.Pid), strconv.FormatUint(a.Init.StartTime, 10))
	c.ExtraFiles = []*os.File{dir}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	if err != nil || string(out) != "no user 65534 may not ask for anything here\n" {
		t.Errorf("%q, %v", out, err)
	}
	if o.Count() != 0 {
		t.Error("it was given a sandbox")
	}
}

func TestTakesOnlyWhatIsItsOwn(t *testing.T) {
	f := newFolder(t)
	o := &Owner{States: f.Store, Say: func(err error) { t.Error(err) }}
	defer o.Close()
	memory := limits.Entry{Key: limits.KeyMemory, Value: limits.Limit(1), Enforcer: limits.EnforcerSupervisor}
	kernel := memory
	kernel.Enforcer = limits.EnforcerKernel
	none := memory
	none.Value = limits.NoLimit()
	for _, b := range []box{f.sandboxWith("kernel", kernel), f.sandboxWith("none", none), f.sandboxWith("empty")} {
		err := o.Take(b.Root, b.ID, b.Init)
		if err == nil || !strings.Contains(err.Error(), b.ID+" has no limit that a supervisor enforces") {
			t.Errorf("%s: %v", b.ID, err)
		}
		if held(b.dir) {
			t.Errorf("%s is held", b.ID)
		}
		if _, err := os.Lstat(lease.HoldFile(b.dir)); err == nil {
			t.Errorf("%s has a hold file, which every verb would open", b.ID)
		}
	}
	other, err := lease.Take(f.sandboxWith("other", memory).dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	if err := o.TakeOver(); err != nil || o.Count() != 0 {
		t.Errorf("took over %d, %v", o.Count(), err)
	}
}

func TestStaleSocket(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, f *folder){
		"of one that was killed": func(t *testing.T, f *folder) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: lease.SocketPath(f.dir), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
		},
		"a file": func(t *testing.T, f *folder) {
			if err := os.WriteFile(lease.SocketPath(f.dir), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a link": func(t *testing.T, f *folder) {
			if err := os.Symlink("/nowhere", lease.SocketPath(f.dir)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFolder(t)
			leave(t, f)
			a := f.sandbox("a")
			f.mustAsk(a)
			if !held(a.dir) {
				t.Error("not supervised")
			}
		})
	}
}
