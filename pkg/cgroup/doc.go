// Package cgroup reads what the kernel holds for a container: the limits that
// really apply to it, the events that happened and what was used. It writes
// nothing and creates nothing.
//
// A Cgroup is found from a process with Of while that process lives, and again
// later from its saved Paths with Open. Both cgroup versions are read; what is
// asked for is the same, the files differ.
//
// Paths come from the kernel (/proc/PID/cgroup and /proc/self/mountinfo) and
// never from a container's name. All reading goes through an FS, so that a
// recorded tree can stand in for a machine.
//
// The package is on the path of every container start: it does no work at
// start-up and opens each folder once.
//
// It follows Documentation/admin-guide/cgroup-v2.rst, and for cgroup v1
// Documentation/admin-guide/cgroup-v1/memory.rst and pids.rst and
// Documentation/scheduler/sched-bwc.rst.
package cgroup
