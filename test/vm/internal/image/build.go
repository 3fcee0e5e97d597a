package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/guest"
	"github.com/agentbox/agentbox/test/vm/internal/host"
)

// baseSize is the size of the root disk as the guest sees it; on the host it is
// sparse.
const baseSize = "4G"

// leftOut are paths of packages that no test reads. Documentation is half of the
// files of a Debian system; lto1 and lto-dump are link-time optimisation. The
// kernel hooks would run an initramfs generator.
var leftOut = []string{
	"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/bash-completion/*",
	"/usr/libexec/gcc/*/lto1", "/usr/bin/*lto-dump*",
	"/etc/kernel/*",
}

// rootNeed is what the unpacked packages take, with the archives they come from.
const rootNeed = 3 << 30

// build makes the image of a suite in a folder beside target and renames it, so
// target is either whole or absent. The root folder, with its tens of thousands of
// files, is made in memory where there is room.
func build(ctx context.Context, progress *host.Progress, suite, cache, target, mirror string) (err error) {
	if err := host.Require(ctx, progress, "mmdebstrap", "mke2fs"); err != nil {
		return err
	}
	work, err := os.MkdirTemp(cache, "building-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(work))
		}
	}()
	scratch, err := host.NewScratch(host.Need{Bytes: rootNeed, Devices: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, scratch.Remove()) }()
	root, uml := filepath.Join(scratch.Path, "root"), filepath.Join(scratch.Path, "uml")

	done := progress.Step("unpacking Debian " + suite + " with mmdebstrap (about a minute)")
	err = runMmdebstrap(ctx, progress, root, mirror, suite, packages, "--variant=minbase")
	done()
	if err != nil {
		return err
	}
	done = progress.Step("unpacking user-mode Linux of Debian " + umlSuite)
	// Unpacked and not installed: its C library may be newer than the guest's.
	err = runMmdebstrap(ctx, progress, uml, mirror, umlSuite, umlPackages, "--variant=extract")
	done()
	if err != nil {
		return err
	}
	if err := takeKernels(ctx, progress, root, uml, work); err != nil {
		return err
	}
	if err := finishRoot(root); err != nil {
		return err
	}
	if err := writeVersions(root, filepath.Join(work, "versions")); err != nil {
		return err
	}
	done = progress.Step("making the root disk")
	err = run(ctx, "mke2fs", "-q", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0", "-d", root, filepath.Join(work, "base.img"), baseSize)
	done()
	if err != nil {
		return err
	}
	return os.Rename(work, target)
}

// runMmdebstrap unpacks packages of a suite into the folder root; flags are further
// ones of mmdebstrap.
func runMmdebstrap(ctx context.Context, progress *host.Progress, root, mirror, suite string, packages []string, flags ...string) error {
	arguments := []string{
		"--mode=root", "--include=" + strings.Join(packages, ","),
		"--aptopt=APT::Install-Recommends \"false\"",
		"--aptopt=Acquire::Languages \"none\"",
		// A suite in development may have a Release file that is past its date.
		"--aptopt=Acquire::Check-Valid-Until \"false\"",
		"--dpkgopt=force-unsafe-io",
		// The JVM's package links a manual page and fails where there is no folder for it.
		"--setup-hook=mkdir -p \"$1/usr/share/man/man1\"",
	}
	for _, path := range leftOut {
		arguments = append(arguments, "--dpkgopt=path-exclude="+path)
	}
	arguments = append(append(arguments, flags...), suite, root, mirror)
	command := groupCommand(ctx, "mmdebstrap", arguments...)
	command.Env = append(os.Environ(), "TMPDIR="+filepath.Dir(root), "LC_ALL=C.UTF-8")
	output, err := command.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		for line := range strings.Lines(tail(string(output), 15)) {
			progress.Printf("mmdebstrap: %s", strings.TrimRight(line, "\n"))
		}
		return fmt.Errorf("mmdebstrap: %w", err)
	}
	return nil
}

// groupCommand prepares a program whose helpers end with it: cancelling ctx asks
// the whole process group to stop and then kills the program.
func groupCommand(ctx context.Context, name string, arguments ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, name, arguments...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	return command
}

func run(ctx context.Context, name string, arguments ...string) error {
	output, err := groupCommand(ctx, name, arguments...).CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, host.LastLine(output))
	}
	return nil
}

// finishRoot adds what the guest needs beyond packages and removes what it does
// not need.
func finishRoot(root string) error {
	unneeded, err := filepath.Glob(filepath.Join(root, "boot", "*"))
	if err != nil {
		return err
	}
	unneeded = append(unneeded, filepath.Join(root, "etc/resolv.conf"))
	for _, name := range unneeded {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	for _, name := range []string{"payload", "data", "out"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	files := []struct {
		name        string
		permissions fs.FileMode
		content     []byte
	}{
		{guest.Library + "/boot", 0o755, guest.Script("boot")},
		{"etc/hosts", 0o644, []byte("127.0.0.1 localhost agentbox-vm\n::1 localhost\n")},
		{"etc/resolv.conf", 0o644, nil},
	}
	for _, file := range files {
		name := filepath.Join(root, file.name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, file.content, file.permissions); err != nil {
			return err
		}
	}
	return busyboxRoot(root)
}

// busyboxRoot makes a container's root file system out of the static busybox:
// small enough to copy for every test.
func busyboxRoot(root string) error {
	target := filepath.Join(root, guest.Library, "rootfs", "busybox")
	for _, name := range []string{"bin", "dev", "etc", "proc", "root", "sys", "tmp", "var"} {
		if err := os.MkdirAll(filepath.Join(target, name), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(target, "tmp"), fs.ModeSticky|0o777); err != nil {
		return err
	}
	busybox := filepath.Join(root, "usr/bin/busybox")
	program, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(target, "bin/busybox"), program, 0o755); err != nil {
		return err
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("list busybox applets: %w", err)
	}
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet == "busybox" {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(target, "bin", applet)); err != nil {
			return err
		}
	}
	accounts := map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
		"group":  "root:x:0:\nnogroup:x:65534:\n",
	}
	for name, content := range accounts {
		if err := os.WriteFile(filepath.Join(target, "etc", name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writeVersions reads the package database of root.
func writeVersions(root, target string) error {
	status, err := os.ReadFile(filepath.Join(root, "var/lib/dpkg/status"))
	if err != nil {
		return err
	}
	versions := parseStatus(status)
	var text []string
	for _, name := range []string{"docker.io", "containerd", "runc", "crun", "systemd", "linux-image-cloud-amd64"} {
		text = append(text, name+" "+versions[name])
	}
	return os.WriteFile(target, []byte(strings.Join(text, ", ")+"\n"), 0o644)
}

// parseStatus returns the version of each package in a dpkg status file.
func parseStatus(status []byte) map[string]string {
	versions := map[string]string{}
	name := ""
	for line := range bytes.Lines(status) {
		field, value, _ := strings.Cut(strings.TrimSpace(string(line)), ": ")
		switch field {
		case "Package":
			name = value
		case "Version":
			versions[name] = value
		}
	}
	return versions
}

// tail returns the last n lines of text.
func tail(text string, n int) string {
	lines := strings.SplitAfter(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

func allocated(info fs.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * 512
	}
	return info.Size()
}
