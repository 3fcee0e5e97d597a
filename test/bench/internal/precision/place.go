package precision

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
)

// Place is where sandboxes read and write.
type Place struct {
	Name   string // the file system, for a person
	Folder string // what they see as sandbox.Work
	Root   string // their root file system if Folder is a part of it
	Disk   string // "MAJOR:MINOR" of the disk that is limited
}

// Files of a place, as its sandboxes see them.
const (
	dataFile = sandbox.Work + "/data" // is there, with dataSize bytes
	newFile  = sandbox.Work + "/new"  // is not
)

func (p Place) want(limits []string) sandbox.Want {
	if p.Root != "" {
		return sandbox.Want{Limits: limits, Root: p.Root}
	}
	return sandbox.Want{Limits: limits, Work: p.Folder}
}

// inside is the path of a sandbox's file for us.
func (p Place) inside(file string) string {
	return filepath.Join(p.Folder, strings.TrimPrefix(file, sandbox.Work))
}

// fill makes the file that is there. It has no holes, which would be read from no
// disk.
func (p Place) fill() error {
	block := make([]byte, bigBlock)
	for i := range block {
		block[i] = byte(i*7 + 1)
	}
	file, err := os.Create(p.inside(dataFile))
	if err != nil {
		return err
	}
	for written := 0; written < dataSize && err == nil; written += len(block) {
		_, err = file.Write(block)
	}
	return errors.Join(err, file.Sync(), file.Close())
}

// settle brings a place into the state in which each measurement starts: nothing
// waits to be written, and the file that is there is in no cache, which some file
// systems ask even for direct reads.
func (p Place) settle() error {
	if err := os.Remove(p.inside(newFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	folder, err := os.Open(p.Folder)
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := unix.Syncfs(int(folder.Fd())); err != nil {
		return fmt.Errorf("syncfs of %s: %w", p.Folder, err)
	}
	file, err := os.Open(p.inside(dataFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// OnDisk makes file systems on a disk, one after the other, and calls visit with
// a place on each. What the disk has is lost. The folder holds the mounts.
func OnDisk(node, dir string, runtime *sandbox.Runtime, visit func(Place) error) error {
	at := filepath.Join(dir, "mount")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	plain := func(name, node string, mkfs ...string) error {
		return mounted(node, at, mkfs, func() error {
			disk, err := deviceOf(node)
			if err != nil {
				return err
			}
			return visit(Place{Name: name, Folder: at, Disk: disk})
		})
	}
	// Nothing is left to be written in the background, and the disk is not asked
	// to forget what it has.
	ext4 := []string{"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"}
	for _, step := range []func() error{
		func() error { return plain("ext4", node, ext4...) },
		func() error { return plain("xfs", node, "mkfs.xfs", "-q", "-f", "-K") },
		func() error { return plain("btrfs", node, "mkfs.btrfs", "-q", "-f", "-K") },
		func() error {
			return linear(node, func(mapped string) error { return plain("ext4 on dm-linear", mapped, ext4...) })
		},
		func() error {
			return mounted(node, at, ext4, func() error { return overlay(node, at, dir, runtime, visit) })
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// mounted makes a file system on a disk and has it mounted while inside runs.
func mounted(node, at string, mkfs []string, inside func() error) (err error) {
	if err := command(append(mkfs, node)...); err != nil {
		return err
	}
	if err := command("mount", node, at); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(at, 0)) }()
	return inside()
}

// linear has a disk mapped by device mapper, one to one, while inside runs.
func linear(node string, inside func(mapped string) error) (err error) {
	size, err := exec.Command("blockdev", "--getsz", node).Output()
	if err != nil {
		return fmt.Errorf("size of %s: %w", node, err)
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(size)), 10, 64)
	if err != nil {
		return fmt.Errorf("size of %s: %w", node, err)
	}
	const name = "agentbox-bench"
	// No daemon is there that would make the node.
	if err := command("dmsetup", "create", "--noudevsync", "--noudevrules", name, "--table", fmt.Sprintf("0 %d linear %s 0", sectors, node)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, command("dmsetup", "remove", "--noudevsync", name)) }()
	return inside("/dev/mapper/" + name)
}

// overlay visits the root file system of a container as engines make it.
func overlay(node, at, dir string, runtime *sandbox.Runtime, visit func(Place) error) (err error) {
	disk, err := deviceOf(node)
	if err != nil {
		return err
	}
	upper, work := filepath.Join(at, "upper"), filepath.Join(at, "work")
	lower, root := filepath.Join(dir, "lower"), filepath.Join(dir, "root")
	for _, folder := range []string{upper, work, lower, root} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	if err := runtime.MakeRoot(lower); err != nil {
		return err
	}
	options := "lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay (%s): %w", options, err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(root, 0)) }()
	return visit(Place{Name: "overlay on ext4", Folder: filepath.Join(root, sandbox.Work), Root: root, Disk: disk})
}

// deviceOf is the number of a device node.
func deviceOf(node string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(node, &st); err != nil {
		return "", fmt.Errorf("stat %s: %w", node, err)
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}

// Here is a place in a folder that exists, which has to be on a disk.
func Here(folder string) (Place, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Stat(folder, &st), unix.Statfs(folder, &fs)); err != nil {
		return Place{}, fmt.Errorf("look at %s: %w", folder, err)
	}
	disk, err := wholeDisk("/sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return Place{}, fmt.Errorf("%s is not on one disk: %w", folder, err)
	}
	return Place{Name: fileSystem(fs), Folder: folder, Disk: disk}, nil
}

// fileSystem is the name of a file system that is on one disk (statfs(2)).
func fileSystem(fs unix.Statfs_t) string {
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	}
	return fmt.Sprintf("file system %#x", fs.Type)
}

// wholeDisk returns the number of the disk that a partition is on, or of the disk
// itself. The folder has a link for each block device.
func wholeDisk(folder, number string) (string, error) {
	device, err := filepath.EvalSymlinks(filepath.Join(folder, number))
	if err != nil {
		return "", err
	}
	// The folder of a partition lies in that of its disk.
	if _, err := os.Stat(filepath.Join(device, "partition")); err != nil {
		return number, nil
	}
	data, err := os.ReadFile(filepath.Join(device, "../dev"))
	return strings.TrimSpace(string(data)), err
}

func command(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
