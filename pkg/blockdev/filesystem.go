package blockdev

import "strings"

// inMemory reports whether a type of file system never has to do with a disk.
func inMemory(fstype string) bool {
	switch fstype {
	case "tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs",
		"proc", "sysfs", "cgroup", "cgroup2", "cpuset", "resctrl",
		"devpts", "mqueue", "nsfs", "pipefs", "sockfs", "bpf", "binder", "fusectl", "functionfs",
		"configfs", "debugfs", "tracefs", "securityfs", "selinuxfs", "smackfs",
		"binfmt_misc", "nfsd", "rpc_pipefs", "xenfs", "efivarfs", "pstore":
		return true
	}
	return false
}

// elsewhere says why the I/O of a type of file system does not reach a disk of
// this machine in the name of the process that asked for it; empty when it does,
// or the type is not known.
func elsewhere(fstype string) string {
	base, _, _ := strings.Cut(fstype, ".") // "fuse.sshfs"
	switch base {
	case "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "afs", "coda", "ncpfs",
		"lustre", "gpfs", "glusterfs", "beegfs", "orangefs", "pvfs2", "panfs", "wekafs":
		return fstype + " is a network filesystem"
	case "virtiofs", "vboxsf", "vmhgfs", "prl_fs":
		return fstype + " is a folder of the virtual machine's host"
	case "fuse", "fuseblk":
		return fstype + " does its I/O in a process of its own"
	case "zfs":
		return fstype + " does its I/O in threads of its own"
	case "jffs2", "ubifs":
		return fstype + " is on raw flash memory"
	case "autofs":
		return "nothing is mounted there yet: autofs does it when somebody looks inside"
	}
	return ""
}
