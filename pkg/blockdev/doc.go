// Package blockdev finds the disk that is behind a file or a device number, as
// far as the kernel can limit its I/O: io.max of cgroup v2 and blkio.throttle.*
// of v1 take whole disks only and refuse a partition with ENODEV
// (Documentation/admin-guide/cgroup-v2.rst, IO;
// Documentation/admin-guide/cgroup-v1/blkio-controller.rst).
//
// A device number leads to a disk through /sys/dev/block and never by its
// digits or its name: partitions of NVMe disks have a major number that is
// shared by all kinds of disks. Device mapper, md, loop and zram devices are
// disks of their own, since the I/O of a process reaches them first and in its
// name.
//
// A file leads to a disk by its mount, which statx(2) names and
// proc_pid_mountinfo(5) describes. Many file systems have an anonymous device
// number, 0:N, that says nothing: overlay is followed to all of its layers, btrfs
// to all of its devices.
//
// The package is on the path of every container start: mountinfo is read once
// and only the lines that are needed are parsed, a number costs a few system calls,
// and a file that is asked about is looked at, never opened for reading.
package blockdev
