package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/test/promise"
)

// never is how a look ends at a file system that is dead, until the test ends.
func never(t *testing.T) func() {
	t.Helper()
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	return func() { <-end }
}

func TestWithin(t *testing.T) {
	dead := never(t)
	g := gatherer{patience: 500 * time.Millisecond}
	var looked []string
	for _, c := range []struct {
		path   string
		dead   bool
		silent string // the path that is named; empty: there is an answer
	}{
		{path: "/a"},
		{path: "/mnt/x", dead: true, silent: "/mnt/x"},
		{path: "/mnt/x", silent: "/mnt/x"},
		{path: "/mnt/x/below", silent: "/mnt/x"},
		{path: "/mnt/xy"},
		{path: "/mnt"},
		{path: "/b", dead: true, silent: "/b"},
	} {
		got, err := within(&g, c.path, func() (string, error) {
			if c.dead {
				dead()
			}
			return c.path, nil
		})
		silent, isSilent := errors.AsType[*silentError](err)
		switch {
		case c.silent == "" && (got != c.path || err != nil), c.silent != "" && (!isSilent || silent.path != c.silent || got != ""):
			t.Errorf("%s: %q, %v", c.path, got, err)
		case err == nil:
			looked = append(looked, c.path)
		}
	}
	if !slices.Equal(looked, []string{"/a", "/mnt/xy", "/mnt"}) || !slices.Equal(g.facts.Silent, []string{"/mnt/x", "/b"}) {
		t.Errorf("looked at %v, silent %v", looked, g.facts.Silent)
	}
	if text := (&silentError{"/mnt/x", patience}).Error(); text != "/mnt/x does not answer within 2s" {
		t.Error(text)
	}
	if _, err := within(&g, "/c", func() (int, error) { return 0, fs.ErrPermission }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("its own error: %v", err)
	}
}

// TestDeadFolders is a machine on which some folders lead to a server that is
// gone: there is a report all the same, and it names them.
func TestDeadFolders(t *testing.T) {
	root := cgrouptest.Tree(t, "v2-7.2")
	cgrouptest.Write(t, root, "etc/docker/daemon.json", `{"data-root": "/dead/docker", "runtimes": {"agentbox": {"path": "/dead/bin/agentbox-runtime"}}}`)
	dead := never(t)
	g := gathererOf(t, root)
	g.patience = 500 * time.Millisecond
	g.o.Config.ResultsDir = "/dead/results"
	g.statOf = func(path string) (fs.FileInfo, error) {
		if strings.HasPrefix(path, root+"/dead/") || path == root+"/var/lib/containers" {
			dead()
		}
		return os.Stat(path)
	}
	g.lookPath = func(string) (string, error) {
		dead()
		return "", exec.ErrNotFound
	}
	f := g.gather(context.Background())
	for _, want := range []string{"/dead/docker", "/dead/bin/agentbox-runtime", "/dead/results", "/var/lib/containers", "runc in PATH", "grubby in PATH"} {
		if !slices.Contains(f.Silent, want) {
			t.Errorf("%s does not answer, and only %v are named", want, f.Silent)
		}
	}
	if f.Results.Problem != "/dead/results does not answer within 500ms" || f.Runtime.Problem != "runc in PATH does not answer within 500ms" {
		t.Errorf("%+v, %+v", f.Results, f.Runtime)
	}
	if want := []limits.Diskless{
		{Place: "/dead/docker", Reason: "/dead/docker does not answer within 500ms"},
		{Place: "/var/lib/containers", Reason: "/var/lib/containers does not answer within 500ms"},
	}; !slices.Equal(f.Host.IO.Diskless, want) {
		t.Errorf("%+v", f.Host.IO)
	}
	if got := Examine(f).Dimensions[limits.IO]; got.Answer == Enforced || !strings.Contains(got.Reason, "/dead/docker does not answer") {
		t.Errorf("%+v", got)
	}
}

// deadFolder has the folder in the child of TestLiveDeadFilesystem.
const deadFolder = "AGENTBOX_TEST_DEAD_FOLDER"

// TestLiveDeadFilesystem mounts a FUSE file system that nobody serves, in a mount
// namespace of its own, and has all in it that can be there. Only root may.
func TestLiveDeadFilesystem(t *testing.T) {
	if folder := os.Getenv(deadFolder); folder != "" {
		lookAtDead(t, folder)
		return
	}
	t.Parallel() // it waits most of the time
	if os.Geteuid() != 0 {
		promise.Lacks(t, "only root may mount here")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestLiveDeadFilesystem$", "-test.v")
	cmd.Env = append(os.Environ(), deadFolder+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, unix.EPERM), strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%v\n%s", err, out)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	}
}

func lookAtDead(t *testing.T, folder string) {
	t.Helper()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("nobody", folder, "fuse.nobody", 0, "rootmode=40000,user_id=0,group_id=0,fd="+strconv.Itoa(fuse))
	}
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	in := func(name string) string { return filepath.Join(folder, name) }
	cfg := config.Default()
	cfg.Runtime, cfg.ResultsDir, cfg.Policy.IODevices = in("runc"), in("results"), []string{in("disk")}
	done := make(chan Facts, 1)
	go func() {
		done <- Gather(context.Background(), Options{ConfigPath: in("config.toml"), Config: cfg, CgroupsPath: "/x"})
	}()
	select {
	case f := <-done:
		for _, name := range []string{"runc", "results", "disk", "config.toml"} {
			// Disks are looked for where the kernel can limit them.
			if !slices.Contains(f.Silent, in(name)) && (name != "disk" || !f.Host.IO.Unknown) {
				t.Errorf("%s does not answer, and only %v are named", in(name), f.Silent)
			}
		}
	case <-time.After(30 * time.Second):
		t.Fatal("doctor waits")
	}
}
