package host

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
)

// Facts returns one line about this machine. root is its file system ("/" as an
// fs.FS); a file that cannot be read shows as "?".
func Facts(root fs.FS) string {
	kernel := "?"
	if data, err := fs.ReadFile(root, "proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(data))
	}
	cgroup := "v1 or none"
	if _, err := fs.Stat(root, "sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroup = "v2"
	} else if _, err := fs.Stat(root, "sys/fs/cgroup/unified/cgroup.controllers"); err == nil {
		cgroup = "v1 hybrid"
	}
	load := "?"
	if data, err := fs.ReadFile(root, "proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(data), " ")
	}
	return fmt.Sprintf("kernel %s, %d CPU(s), memory %s MiB, load %s, cgroup %s",
		kernel, runtime.NumCPU(), memoryTotal(root), load, cgroup)
}

func memoryTotal(root fs.FS) string {
	data, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return "?"
	}
	var kib int
	if _, err := fmt.Sscanf(string(data), "MemTotal: %d kB", &kib); err != nil {
		return "?"
	}
	return fmt.Sprint(kib / 1024)
}

// Release is what os-release(5) says about a distribution.
type Release struct {
	ID       string // "debian"
	Codename string // "bookworm"
}

// ReadRelease reads etc/os-release below root. A host that is neither Debian nor
// derived from it gives an error that wraps ErrUnsupported.
func ReadRelease(root fs.FS) (Release, error) {
	data, err := fs.ReadFile(root, "etc/os-release")
	if errors.Is(err, fs.ErrNotExist) {
		return Release{}, fmt.Errorf("%w: it has no /etc/os-release, so it is no Debian", ErrUnsupported)
	}
	if err != nil {
		return Release{}, fmt.Errorf("read os-release: %w", err)
	}
	fields := map[string]string{}
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for scanner.Scan() {
		name, value, _ := strings.Cut(scanner.Text(), "=")
		fields[name] = strings.Trim(value, `"'`)
	}
	release := Release{ID: fields["ID"], Codename: fields["VERSION_CODENAME"]}
	if release.ID != "debian" && !strings.Contains(" "+fields["ID_LIKE"]+" ", " debian ") {
		return Release{}, fmt.Errorf("%w: it is %q and the guest image is built with Debian's tools", ErrUnsupported, release.ID)
	}
	return release, nil
}

// CheckPlatform says in one sentence why this process cannot use the harness, or
// returns nil.
func CheckPlatform() error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: the guest is linux/amd64 and this is %s/%s", ErrUnsupported, runtime.GOOS, runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: building the guest image takes root, and this is user %d", ErrUnsupported, os.Geteuid())
	}
	return nil
}
