package image

// Suites are the Debian suites that a guest can consist of, the default first.
// forky has the newest engines; trixie, the stable suite, is an older column of
// everything: Docker 26, containerd 1.7, runc 1.1, systemd 257.
var Suites = []string{"forky", "trixie"}

// umlSuite is where user-mode Linux comes from, whatever the guest's suite is:
// forky's is the first that passes the container tests.
const umlSuite = "forky"

// umlPackages are user-mode Linux and the C library that it runs with.
var umlPackages = []string{"user-mode-linux", "libc6"}

// packages is what a guest of every suite consists of. The workloads of the tests
// (Python, Node, a JVM, a C build) are part of it.
var packages = []string{
	"docker.io", "docker-cli", "containerd", "runc", "crun",
	"systemd", "systemd-sysv", "dbus",
	"iproute2", "iptables", "nftables", "procps", "kmod", "jq", "uidmap",
	"e2fsprogs", "xfsprogs", "btrfs-progs", "fdisk", "busybox-static",
	"python3-minimal", "nodejs", "default-jre-headless", "make", "gcc", "libc6-dev",
	// Satisfies the kernel's wish for an initramfs generator at the lowest price;
	// its result is thrown away.
	"tiny-initramfs",
	"linux-image-cloud-amd64",
}
