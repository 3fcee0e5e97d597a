// Command bench measures what agentbox costs and how exactly its limits hold, and
// writes docs/benchmarks.md.
//
// What a start costs is a ratio within one run: absolute times mean little on a
// shared machine. Each figure is the median over interleaved pairs: the two
// commands take turns, so that a machine that slows down slows both. The cost of
// the wrapper alone is measured in front of a low-level runtime that does nothing
// (true), against the reference, an empty Go program that does nothing but exec;
// the cost to a user against bare runc.
//
// How exactly a limit holds is the rate that a sandbox reached, by the counters
// of its cgroup and by its own count, divided by the limit. That is measured on
// this machine and in a guest of test/vm, which has cgroup v2 and a disk to put
// file systems on: there the program runs itself once more, with -guest.
//
// What the shim takes is the memory of its process while its containers do
// nothing, beside that of containerd's own shim, on this machine and in the guest.
//
// It runs as root with runc, containerd and busybox installed, and leaves nothing behind.
package main
