//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// spare is an empty disk that this run may do anything with. Its node is in
// AGENTBOX_SPARE_DISK.
const spare feature = "spare"

// ioLimit is an I/O limit in the cgroups of this run, and a folder on a disk.
const ioLimit feature = "io"

// allCaps is every capability that the kernel has, which a privileged container
// is given.
const allCaps feature = "capabilities"

func init() {
	features[allCaps] = sync.OnceValue(func() error {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		last, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(last)))
		if err != nil {
			return err
		}
		if want := fmt.Sprintf("CapBnd:\t%016x\n", uint64(1)<<(n+1)-1); !strings.Contains(string(status), want) {
			return errors.New("this process does not have them all")
		}
		return nil
	})
	features[spare] = sync.OnceValue(func() error {
		if spareDisk() == "" {
			return errors.New("AGENTBOX_SPARE_DISK names none")
		}
		if err := installed("sfdisk", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "dmsetup", "losetup", "blockdev"); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat(spareDisk(), &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return fmt.Errorf("%s is no block device", spareDisk())
		}
		return nil
	})
	features[ioLimit] = sync.OnceValue(func() error {
		file := filepath.Join("/sys/fs/cgroup", token, "io.max")
		if cgroupVersion() == 1 {
			file = filepath.Join(hierarchiesV1()["blkio"], token, "blkio.throttle.write_bps_device")
		}
		if _, err := os.Stat(file); err != nil {
			return err
		}
		_, err := diskOf(onDisk())
		return err
	})
}

func spareDisk() string { return os.Getenv("AGENTBOX_SPARE_DISK") }

// onDisk is the folder for what belongs on a disk: /tmp often is in memory.
// AGENTBOX_DISK_DIR names another one.
func onDisk() string {
	if dir := os.Getenv("AGENTBOX_DISK_DIR"); dir != "" {
		return dir
	}
	return "/var/tmp"
}

// diskOf is the number of the disk that a folder of this machine is on.
func diskOf(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", err
	}
	if unix.Major(st.Dev) == 0 {
		return "", fmt.Errorf("%s is on no disk: let AGENTBOX_DISK_DIR name a folder that is", dir)
	}
	sys, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return "", err
	}
	if exists(filepath.Join(sys, "partition")) {
		sys = filepath.Dir(sys)
	}
	number, err := os.ReadFile(filepath.Join(sys, "dev"))
	return strings.TrimSpace(string(number)), err
}

// Storage is a folder on some kind of storage.
type Storage struct {
	Name string
	Dir  string
	Disk string // the number of the disk that can be limited, "8:0", as it was made
	Node string // the device that is mounted there, or whose file system it is
}

// storages makes one of each kind on the spare disk. All are gone at the end of
// the test.
func storages(t *testing.T) []Storage {
	t.Helper()
	need(t, spare)
	disk := spareDisk()
	command(t, "label: gpt\n,1400M\n,1200M\n,1200M\n,\n", "sfdisk", "--quiet", "--wipe", "always", disk)
	part := func(n int) string {
		node := fmt.Sprintf("%s%d", disk, n)
		if last := disk[len(disk)-1]; last >= '0' && last <= '9' { // nvme0n1
			node = fmt.Sprintf("%sp%d", disk, n)
		}
		eventually(t, 60*time.Second, func() string {
			if !exists(node) {
				return node + " is not there"
			}
			return ""
		})
		return node
	}
	t.Cleanup(func() { command(t, "", "sfdisk", "--quiet", "--delete", disk) })
	number := sysfsNumber(t, filepath.Base(disk))

	ext4 := mounted(t, "ext4", part(1))
	list := []Storage{
		{"ext4 on a partition", ext4, number, part(1)},
		{"xfs on a partition", mounted(t, "xfs", part(2)), number, part(2)},
		{"btrfs on a partition", mounted(t, "btrfs", part(3)), number, part(3)},
	}

	_ = exec.Command("modprobe", "dm-mod").Run() // or built in
	linear := token + "-linear"
	size := strings.TrimSpace(command(t, "", "blockdev", "--getsz", part(4)))
	command(t, "", "dmsetup", "create", linear, "--table", "0 "+size+" linear "+part(4)+" 0")
	t.Cleanup(func() { command(t, "", "dmsetup", "remove", "--retry", linear) })
	node := "/dev/mapper/" + linear
	list = append(list, Storage{"ext4 on device-mapper", mounted(t, "ext4", node), nodeNumber(t, node), node})

	image := filepath.Join(ext4, "image")
	command(t, "", "truncate", "--size", "600M", image)
	loop := strings.TrimSpace(command(t, "", "losetup", "--find", "--show", image))
	t.Cleanup(func() { command(t, "", "losetup", "--detach", loop) })
	list = append(list, Storage{"ext4 on a loop device", mounted(t, "ext4", loop), nodeNumber(t, loop), loop})

	for _, below := range []Storage{list[0], list[2]} {
		upper, work, at := filepath.Join(below.Dir, "upper"), filepath.Join(below.Dir, "work"), tempDir(t)
		for _, dir := range []string{upper, work} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		command(t, "", "mount", "-t", "overlay", "-o", "lowerdir="+rootfs+",upperdir="+upper+",workdir="+work, "overlay", at)
		t.Cleanup(func() { unmount(t, at) })
		list = append(list, Storage{"overlay over " + below.Name, at, below.Disk, below.Node})
	}
	return list
}

// mounted makes a file system and mounts it.
func mounted(t *testing.T, kind, node string) (dir string) {
	t.Helper()
	force := "-f"
	if kind == "ext4" {
		force = "-F"
	}
	command(t, "", "mkfs."+kind, "-q", force, node)
	dir = tempDir(t)
	command(t, "", "mount", "-t", kind, node, dir)
	t.Cleanup(func() { unmount(t, dir) })
	return dir
}

// unmount waits for what a container that has just ended still holds.
func unmount(t *testing.T, dir string) {
	t.Helper()
	eventually(t, 60*time.Second, func() string {
		if err := unix.Unmount(dir, 0); err != nil {
			return fmt.Sprintf("unmount %s: %v", dir, err)
		}
		return ""
	})
}

// command runs a program of this machine that has to succeed, and returns what it
// prints.
func command(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
	return string(out)
}

// sysfsNumber is the number of a device by its name.
func sysfsNumber(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(readFile(t, "/sys/class/block/"+name+"/dev"))
}

// nodeNumber is the number of a device by its node.
func nodeNumber(t *testing.T, node string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(node, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
}

// inDelegated runs a command that has to succeed where only some controllers are
// delegated, as a container's engine in a container has it.
func inDelegated(t *testing.T, controllers string, cmd *exec.Cmd) {
	t.Helper()
	if out := tryDelegated(t, controllers, cmd); out.Code != 0 {
		t.Fatalf("%q with %s delegated: %v", cmd.Args, controllers, out)
	}
}

// tryDelegated makes a cgroup with these controllers the root of what a command
// sees, by a cgroup namespace and a mount of its own.
func tryDelegated(t *testing.T, controllers string, cmd *exec.Cmd) Output {
	t.Helper()
	parent, err := os.MkdirTemp(parents()[0], "delegated-")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(parent, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(controllers) {
		if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { removeTree(parent) })
	script := `echo 0 >"$1/cgroup.procs"; shift; exec unshare --cgroup --mount --propagation slave sh -c '
		mount -t cgroup2 cgroup2 /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/self && echo 0 >/sys/fs/cgroup/self/cgroup.procs &&
		for c in $0; do echo +$c >/sys/fs/cgroup/cgroup.subtree_control; done && exec "$@"' "$@"`
	wrapped := exec.Command("sh", append([]string{"-c", script, "sh", root, controllers}, cmd.Args...)...)
	return execute(t, 30*time.Second, wrapped)
}

// removeTree removes a cgroup and all below it.
func removeTree(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeTree(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir)
}
