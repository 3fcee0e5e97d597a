package blockdev

import (
	"fmt"
	"os"
	"path"
	"slices"

	"github.com/agentbox/agentbox/pkg/limits"
)

const sysBtrfs = "/sys/fs/btrfs"

// btrfsDisks returns the disks of the btrfs that a device belongs to; mountinfo
// names only one of them. The file system's folder in sysfs has them all
// (btrfs(5), SYSFS INTERFACE).
func (f Finder) btrfsDisks(source string) ([]Disk, string) {
	folder, reason := f.btrfsFolder(source)
	if reason == "" {
		return f.btrfsMembers(folder)
	}
	// If there is just one, it must be this one, whatever the source is called.
	if folders, _ := f.btrfsFolders(); len(folders) == 1 {
		return f.btrfsMembers(folders[0])
	}
	return nil, reason
}

// btrfsFolder returns the folder that lists the devices of the btrfs that a
// device belongs to, as long as it is mounted.
func (f Finder) btrfsFolder(source string) (folder, reason string) {
	folders, reason := f.btrfsFolders()
	if reason != "" {
		return "", reason
	}
	member := f.sysfsName(source)
	i := slices.IndexFunc(folders, func(devices string) bool { return f.exists(devices + "/" + member) })
	if i < 0 {
		return "", fmt.Sprintf("no filesystem in %s has the device %q of the mount's source %q", sysBtrfs, member, source)
	}
	return folders[i], ""
}

// btrfsFolders returns the folder that lists the devices, for each btrfs that is
// mounted.
func (f Finder) btrfsFolders() (folders []string, reason string) {
	entries, err := os.ReadDir(f.path(sysBtrfs))
	if err != nil {
		return nil, fmt.Sprintf("the devices of the btrfs cannot be found: %v", err)
	}
	for _, entry := range entries {
		// There is a folder "features" too.
		if devices := path.Join(sysBtrfs, entry.Name(), "devices"); f.exists(devices) {
			folders = append(folders, devices)
		}
	}
	return folders, ""
}

func (f Finder) btrfsMembers(folder string) ([]Disk, string) {
	entries, err := os.ReadDir(f.path(folder))
	if err != nil {
		return nil, fmt.Sprintf("the devices of the btrfs cannot be found: %v", err)
	}
	if len(entries) == 0 {
		return nil, fmt.Sprintf("%s lists no device", folder)
	}
	var devices []limits.Device
	for _, entry := range entries {
		d, err := f.number(path.Join(folder, entry.Name()))
		if err != nil {
			return nil, fmt.Sprintf("the device %s of the btrfs cannot be found: %v", entry.Name(), err)
		}
		devices = append(devices, d)
	}
	return f.disks(devices...)
}

// sysfsName is what sysfs calls the device of a node such as
// /dev/mapper/vg-data: "dm-0". Where the node is not there (/dev/root), it is
// the last part of its name.
func (f Finder) sysfsName(node string) string {
	if st, err := f.stat(node); err == nil && st.Node != (limits.Device{}) {
		if dir, err := f.sysfsDir(st.Node); err == nil {
			return path.Base(dir)
		}
	}
	return path.Base(node)
}
