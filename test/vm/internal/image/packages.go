package image

// Suite is the Debian suite of the guest. Its user-mode Linux is the first that
// passes the container tests, and its Docker is newer than the stable one.
const Suite = "forky"

// Packages is what the guest consists of. The workloads of the tests (Python,
// Node, a JVM, a C build) are part of it.
var Packages = []string{
	"docker.io", "docker-cli", "containerd", "runc", "crun",
	"iproute2", "iptables", "nftables", "procps", "kmod", "jq", "uidmap",
	"e2fsprogs", "xfsprogs", "btrfs-progs", "fdisk", "busybox-static",
	"python3-minimal", "nodejs", "default-jre-headless", "make", "gcc", "libc6-dev",
	// Satisfies the kernel's wish for an initramfs generator at the lowest price;
	// its result is thrown away.
	"tiny-initramfs",
	"linux-image-cloud-amd64", "user-mode-linux",
}
