// Command vm runs tests on a real cgroup v2 kernel with Docker, containerd, runc
// and crun, on a machine that may have none of them: a container, a host with
// cgroup v1, a virtual machine without nested virtualisation.
//
//	go run ./test/vm run -payload bin -payload /tmp/e2e.test -- ./e2e.test -test.v
//	go run ./test/vm shell
//	go run ./test/vm help
//
// It needs linux/amd64, Debian or a relative of it, and root. Programs that are
// missing on the host are installed with apt-get, which is said in one line.
//
// # What happens in a run
//
// The harness finds or builds the image, packs the payload and the guest's
// scripts into a tar, and starts an engine with raw disks: the root disk, which
// is never written to, the tar, an empty disk for /data, one for swap, with -out
// one for the way back, and with -spare one that the command may do anything to. The first program of the guest unpacks the tar at
// / and hands over to the real init, which came with it. Init mounts, delegates
// every cgroup controller, turns swap on, formats /data, starts the daemons, runs
// the command, and powers off.
//
// The console is the only channel back. Lines for the harness begin with a random
// token that no command can know by accident; everything else is the command's
// output and is passed on as it comes. A guest that ends in any other way than
// with the exit line is an error, never a success.
//
// # Init and systemd
//
// By default a script is the guest's init: nothing runs but what it started, and the
// command begins two seconds after the boot. With -init systemd that script mounts
// and then becomes systemd, which starts agentbox-vm.service, the script's second run:
// it does the rest, with systemctl where it started daemons itself. Units that nothing
// here needs are masked, which leaves a boot of three to four seconds in user-mode
// Linux, and two more with Docker. The daemons are those of Debian's units, with the
// systemd cgroup driver; the command is in the cgroup of the service, which is
// delegated to it.
//
// # Layout
//
//	main.go, flags.go, help.txt   commands and flags
//	boot.go, session.go           one guest: its disks, its console, its end
//	terminal.go                   the user's terminal during a shell
//	internal/aptsource            the host's apt sources, for the mirror
//	internal/image                building and caching what is booted
//	internal/newc                 the initramfs format
//	internal/engine               user-mode Linux and QEMU
//	internal/guest                scripts that run inside; start with scripts/init
//	internal/payload              the tar into the guest and the one back
//	internal/console              splitting output from control lines
//	internal/host                 packages, facts, scratch folders, progress
//
// # Cache
//
// Images lie in $AGENTBOX_VM_CACHE, else in agentbox/vm below the user's cache
// folder, in a folder named by a hash of the suite, the package list and the
// source of internal/image. There is one for each suite in use. A changed hash builds
// a new image and removes old ones that are not in use. Only boot and initramfs of the guest's scripts are
// part of the image; the others travel with every payload, so they can be changed
// without a new image. The folder may be deleted at any time.
//
// # Suites
//
// A guest is made of the packages of one Debian suite, forky or trixie (-suite), and
// with it come the versions of Docker, containerd, runc, crun, systemd and of QEMU's
// kernel. User-mode Linux is forky's in both: it is unpacked apart with its C library,
// and its modules are copied into the guest.
//
// # Engines
//
// User-mode Linux is a kernel compiled as a program: no emulation, a boot of
// about two seconds. It has one CPU, and neither cpuset, PSI, io.weight, hugetlb
// nor nftables. It is no security boundary: run only our own tests in it.
//
// QEMU has all of that and two CPUs. It uses KVM if a guest really boots with it,
// which is tried once per boot of the host; otherwise every instruction is
// emulated, and Go programs as large as dockerd take seconds to start. Give tests
// there ten times the usual time, and do not run it beside a compilation.
//
// # Cgroups
//
// With -cgroup v2 every controller is handed down to the cgroups of the daemons and
// of the command, and Docker works as on any host. With v1 and hybrid there is a
// hierarchy for each v1 controller that the kernel has, in the places where systemd
// puts them, on a tmpfs that is read-only afterwards; command and daemons are in
// cgroups of the same names in each of them. Docker works there too.
//
// Debian builds both kernels without v1 memory and cpuset, so no guest has a memory
// limit with v1, and a v2 at unified, from which nothing is handed down, lists these
// controllers. To test "no such controller at all", add -kernel-arg
// cgroup_disable=memory; it works with v2 as well.
//
// # Disks
//
// io.max holds on whole disks, loop, dm and md devices, and for a file system it
// does not matter how many of these are between it and the one with the limit. The
// one exception is a loop device without direct I/O, whose file is written through
// the page cache of the file system below: there a limit on the disk slows down only
// fsync and write-back, and those of the neighbours too. The kernel refuses io.max
// on a partition.
//
// There is no udev and no mdadm in the image. dmsetup makes its nodes in /dev/mapper
// all the same; an md array is made through /sys/module/md_mod/parameters/new_array
// and /sys/block/md0/md.
//
// # Pitfalls
//
//   - The guest has no network beyond its loopback, and Docker has no bridge: use
//     --network none or host.
//   - User-mode Linux always exits with 0, so its exit code means nothing.
//   - Memory speed measured in user-mode Linux is meaningless: page faults are slow.
//   - dockerd in the root cgroup finds no swap limit and drops it without a word;
//     hence the cgroups of their own for the daemons.
//   - Once the command runs, kernel messages are in dmesg only; a panic still
//     shows.
//   - Scratch folders are /dev/shm/abvm-* or /tmp/abvm-*. They go away with the
//     run; one whose harness was killed with SIGKILL goes with the next run.
package main
