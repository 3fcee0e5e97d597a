package blockdev

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
)

const sysBlock = "/sys/dev/block"

// Whole returns the disk that takes the limits for a device number: the whole
// disk for a partition, and the device itself for any other. Without one the
// reason says why.
func (f Finder) Whole(d limits.Device) (disk Disk, reason string) {
	if d.Major == 0 {
		return Disk{}, fmt.Sprintf("%s is no block device: filesystems without a disk have such numbers", d)
	}
	dir, err := f.sysfsDir(d)
	if errors.Is(err, fs.ErrNotExist) {
		return Disk{}, fmt.Sprintf("the kernel knows no block device %s: there is no %s/%s", d, sysBlock, d)
	}
	if err != nil {
		return Disk{}, err.Error()
	}
	if !f.exists(dir + "/partition") {
		return Disk{Device: d, Name: kernelName(dir)}, ""
	}
	parent := path.Dir(dir)
	whole, err := f.number(parent)
	if err != nil {
		return Disk{}, fmt.Sprintf("the disk of the partition %s (%s) cannot be found: %v", kernelName(dir), d, err)
	}
	return Disk{Device: whole, Name: kernelName(parent)}, ""
}

// disks returns the disks for some device numbers, each once; or none, and the
// reason, when one of them cannot be limited.
func (f Finder) disks(devices ...limits.Device) ([]Disk, string) {
	var list []Disk
	for _, d := range devices {
		disk, reason := f.Whole(d)
		if reason != "" {
			return nil, reason
		}
		if !slices.Contains(list, disk) {
			list = append(list, disk)
		}
	}
	return list, ""
}

// Devices returns the number of every block device of this machine, partitions
// too.
func (f Finder) Devices() ([]limits.Device, error) {
	entries, err := os.ReadDir(f.path(sysBlock))
	if err != nil {
		return nil, err
	}
	var list []limits.Device
	for _, entry := range entries {
		if d, ok := limits.ParseDevice(entry.Name()); ok {
			list = append(list, d)
		}
	}
	return list, nil
}

// Scheduler returns the I/O scheduler of a whole disk, such as "bfq" or "none";
// empty when it is not known. A partition has none
// (Documentation/block/switching-sched.rst).
func (f Finder) Scheduler(d limits.Device) string {
	data, err := os.ReadFile(f.path(sysBlock + "/" + d.String() + "/queue/scheduler"))
	if err != nil {
		return ""
	}
	return parseScheduler(data)
}

// parseScheduler returns the active one of "none [mq-deadline] kyber bfq". A
// device that cannot have one says just "none".
func parseScheduler(data []byte) string {
	text := strings.TrimSpace(string(data))
	if _, rest, ok := strings.Cut(text, "["); ok {
		name, _, _ := strings.Cut(rest, "]")
		return strings.TrimSpace(name)
	}
	if strings.ContainsAny(text, " \t\n") {
		return ""
	}
	return text
}

// sysfsDir returns the folder of a block device below /sys/devices, of which
// /sys/dev/block has a link for each number.
func (f Finder) sysfsDir(d limits.Device) (string, error) {
	target, err := os.Readlink(f.path(sysBlock + "/" + d.String()))
	if err != nil {
		return "", err
	}
	return path.Join(sysBlock, target), nil
}

// number returns the device number of a folder of sysfs.
func (f Finder) number(dir string) (limits.Device, error) {
	data, err := os.ReadFile(f.path(dir + "/dev"))
	if err != nil {
		return limits.Device{}, err
	}
	text := string(bytes.TrimSuffix(data, []byte("\n")))
	d, ok := limits.ParseDevice(text)
	if !ok {
		return limits.Device{}, fmt.Errorf("%s/dev: %q is no device number", dir, text)
	}
	return d, nil
}

// kernelName is the name of a device with this folder: sysfs writes the "/" of
// "cciss/c0d0" as "!".
func kernelName(dir string) string { return strings.ReplaceAll(path.Base(dir), "!", "/") }

func (f Finder) exists(name string) bool { return unix.Access(f.path(name), unix.F_OK) == nil }
