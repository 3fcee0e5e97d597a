package blockdev

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/test/promise"
)

// The live tests ask the kernel that they run on and need no root.

// magic has the numbers by which statfs(2) tells types of file systems, which
// does not ask mountinfo.
var magic = map[string]int64{
	"ext2": unix.EXT4_SUPER_MAGIC, "ext3": unix.EXT4_SUPER_MAGIC, "ext4": unix.EXT4_SUPER_MAGIC,
	"xfs": unix.XFS_SUPER_MAGIC, "btrfs": unix.BTRFS_SUPER_MAGIC, "f2fs": unix.F2FS_SUPER_MAGIC,
	"tmpfs": unix.TMPFS_MAGIC, "devtmpfs": unix.TMPFS_MAGIC, "proc": unix.PROC_SUPER_MAGIC, "sysfs": unix.SYSFS_MAGIC,
	"cgroup": unix.CGROUP_SUPER_MAGIC, "cgroup2": unix.CGROUP2_SUPER_MAGIC, "devpts": unix.DEVPTS_SUPER_MAGIC,
	"nfs": unix.NFS_SUPER_MAGIC, "nfs4": unix.NFS_SUPER_MAGIC,
}

func TestLiveEveryMount(t *testing.T) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	f, checked := New("/"), map[string]bool{}
	for _, m := range mounts {
		b := f.Behind(m.Mountpoint)
		t.Logf("%s: %s", m.Mountpoint, show(b))
		var st unix.Statfs_t
		if err := unix.Statfs(m.Mountpoint, &st); err != nil {
			if b.Reason == "" {
				t.Errorf("%s: %v, and %s", m.Mountpoint, err, show(b))
			}
			continue
		}
		if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
			continue // what is behind it has another type
		}
		if want, known := magic[b.Filesystem]; known && st.Type != want {
			t.Errorf("%s: %s, but statfs says type %#x", m.Mountpoint, show(b), st.Type)
		}
		checked[b.Filesystem] = true
	}
	if !checked["proc"] {
		t.Errorf("/proc was not among the mounts: %v", checked)
	}
}

// The folders of /sys/block are another way to the disks and their partitions.
func TestLiveEveryDisk(t *testing.T) {
	f := New("/")
	devs, err := filepath.Glob("/sys/block/*/dev")
	if err != nil {
		t.Fatal(err)
	}
	if len(devs) == 0 {
		promise.Lacks(t, "this machine has no block device")
	}
	for _, file := range devs {
		dir := filepath.Dir(file)
		disk := Disk{Device: liveDevice(t, dir), Name: strings.ReplaceAll(filepath.Base(dir), "!", "/")}
		if got, reason := f.Whole(disk.Device); got != disk {
			t.Errorf("%+v: %+v %s", disk, got, reason)
		}
		if got := f.Scheduler(disk.Device); strings.ContainsAny(got, " []\n") {
			t.Errorf("%s: scheduler %q", disk.Name, got)
		}
		partitions, err := filepath.Glob(dir + "/*/partition")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range partitions {
			if got, reason := f.Whole(liveDevice(t, filepath.Dir(p))); got != disk {
				t.Errorf("%s: %+v %s", p, got, reason)
			}
		}
		var node unix.Stat_t
		if err := unix.Stat("/dev/"+disk.Name, &node); err == nil && number(node.Rdev) == disk.Device {
			if got, reason := f.Node("/dev/" + disk.Name); got != disk {
				t.Errorf("/dev/%s: %+v %s", disk.Name, got, reason)
			}
		}
	}
}

func liveDevice(t *testing.T, dir string) limits.Device {
	t.Helper()
	data, err := os.ReadFile(dir + "/dev")
	if err != nil {
		t.Fatal(err)
	}
	return parsed(t, string(bytes.TrimSpace(data)))
}

// Kernels without mount ids in statx are asked in another way, with the same
// answer.
func TestLiveStatWithoutMountIDs(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/proc", link); err != nil {
		t.Fatal(err)
	}
	fifo := link + ".fifo"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/", "/proc/self/status", "/sys", "/dev/null", "/dev/loop0", "/dev/vda", "/dev/sda", "/dev/nvme0n1", link, fifo} {
		want, err1 := statOpen(name)
		got, err2 := stat(name)
		if got != want || (err1 == nil) != (err2 == nil) || errors.Is(err1, os.ErrNotExist) != errors.Is(err2, os.ErrNotExist) {
			t.Errorf("%s: %+v %v, and %+v %v", name, got, err2, want, err1)
		}
		if err2 == nil && got.Mount == 0 {
			t.Errorf("%s: no mount id", name)
		}
	}
	for _, ask := range []func(string) (Stat, error){stat, statOpen} {
		if _, err := ask(link + ".none"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), link+".none") {
			t.Errorf("no such file: %v", err)
		}
		if _, err := ask("/nul\x00"); err == nil {
			t.Error("a name with a NUL is accepted")
		}
	}
}

func TestLiveNoSuchFile(t *testing.T) {
	const want = "stat /no/such/file: no such file or directory"
	if got := New("/").Behind("/no/such/file").Reason; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The test program is also the one that mounts, in a namespace of its own.
const mounterEnv = "AGENTBOX_BLOCKDEV_MOUNTER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(mounterEnv); dir != "" {
		mounter(dir)
		return
	}
	os.Exit(m.Run())
}

// Overlays whose layers are named in all the ways there are lead to the same disk
// as the layer itself, on the kernel that this runs on.
func TestLiveOverlay(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), mounterEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER // Linux 5.11 for overlay
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || strings.HasPrefix(text, "cannot mount") {
		promise.Lacks(t, "mounts are not allowed here: ", err, " ", text)
	}
	if err != nil || text != "" {
		t.Errorf("%v: %s", err, text)
	}
}

// check ends the program, which has printed nothing before.
func check(ok bool, format string, args ...any) {
	if !ok {
		fmt.Printf(format+"\n", args...)
		os.Exit(1)
	}
}

func mounter(dir string) {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	check(err == nil, "cannot mount privately: %v", err)
	var st unix.Statfs_t
	err = unix.Statfs(dir, &st)
	check(err == nil, "statfs: %v", err)
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC { // takes no upper layer
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, "")
		check(err == nil, "cannot mount: %v", err)
	}
	const odd = `a,b c:d=e\f#`
	folders := []string{"low", "id/merged", "id/diff", "id/work", odd + "/up", odd + "/work", odd + "/low", "read", "inner", "shm", "read/below"}
	for _, name := range folders {
		err = os.MkdirAll(filepath.Join(dir, name), 0o755)
		check(err == nil, "%v", err)
	}
	check(os.Chdir(dir) == nil, "chdir")
	want := New("/").Behind(dir)
	check(want.Filesystem != "", "the folder itself: %s", want.Reason)

	given := strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace
	for _, m := range []struct{ name, point, options string }{
		{"relative, as Docker's", "id/merged", "lowerdir=low,upperdir=id/diff,workdir=id/work"},
		{"odd characters", "low", "lowerdir=low,upperdir=" + given(dir+"/"+odd+"/up") + ",workdir=" + given(dir+"/"+odd+"/work")},
		{"read-only, odd characters", "read", "lowerdir=" + given(dir+"/"+odd+"/low") + ":" + given(dir+"/id/diff")},
	} {
		err := unix.Mount("overlay", m.point, "overlay", 0, m.options)
		check(err == nil, "cannot mount %s: %v", m.name, err)
		got := New("/").Behind(filepath.Join(dir, m.point))
		check(reflect.DeepEqual(got, want), "%s: %+v, want %+v", m.name, got, want)
	}
	// A file of an overlay, and one over another mount.
	file := filepath.Join(dir, "low/file")
	err = os.WriteFile(file, []byte("x"), 0o600)
	check(err == nil, "write: %v", err)
	got := New("/").Behind(file)
	check(reflect.DeepEqual(got, want), "file: %+v, want %+v", got, want)

	check(unix.Mount("tmpfs", "shm", "tmpfs", 0, "") == nil, "cannot mount tmpfs")
	got = New("/").Behind(filepath.Join(dir, "shm"))
	check(got.InMemory && got.Filesystem == "tmpfs", "tmpfs: %+v", got)
	check(unix.Mount(filepath.Join(dir, "id"), "shm", "", unix.MS_BIND, "") == nil, "cannot bind")
	got = New("/").Behind(filepath.Join(dir, "shm"))
	check(reflect.DeepEqual(got, want), "bind mount over a tmpfs: %+v, want %+v", got, want)
}
