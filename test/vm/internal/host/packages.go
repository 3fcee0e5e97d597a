package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// packageOf names the Debian package of each program that the harness may run on
// the host. It is the whole list: nothing else is ever installed.
var packageOf = map[string]string{
	"mmdebstrap":         "mmdebstrap",
	"mke2fs":             "e2fsprogs",
	"qemu-system-x86_64": "qemu-system-x86",
	"xz":                 "xz-utils",
	"zstd":               "zstd",
	"lz4":                "lz4",
}

// ErrUnsupported marks a host on which the harness cannot work at all.
var ErrUnsupported = errors.New("this host cannot run the VM harness")

// Require makes sure that programs are on the PATH and installs the packages of
// those that are not.
func Require(ctx context.Context, progress *Progress, programs ...string) error {
	var packages []string
	for _, program := range programs {
		if _, err := exec.LookPath(program); err == nil {
			continue
		}
		name, known := packageOf[program]
		if !known {
			return fmt.Errorf("program %s is not installed", program)
		}
		packages = append(packages, name)
	}
	if len(packages) == 0 {
		return nil
	}
	slices.Sort(packages)
	list := strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%w: it needs the packages %s and there is no apt-get to install them", ErrUnsupported, list)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it needs the packages %s, and only root can install them", ErrUnsupported, list)
	}
	done := progress.Step("installing " + list + " with apt-get")
	defer done()
	err := aptInstall(ctx, packages)
	if err != nil {
		// A fresh container has no package lists yet.
		if updateErr := apt(ctx, "update"); updateErr != nil {
			return fmt.Errorf("install %s: %w", list, updateErr)
		}
		err = aptInstall(ctx, packages)
	}
	if err != nil {
		return fmt.Errorf("install %s: %w", list, err)
	}
	return nil
}

func aptInstall(ctx context.Context, packages []string) error {
	return apt(ctx, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)...)
}

func apt(ctx context.Context, arguments ...string) error {
	command := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300", "-q"}, arguments...)...)
	command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	output, err := command.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", arguments[0], err, LastLine(output))
	}
	return nil
}

// LastLine returns the last line of a program's output that is not empty, which
// is where most programs say what went wrong.
func LastLine(output []byte) string {
	lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	return string(bytes.TrimSpace(lines[len(lines)-1]))
}
