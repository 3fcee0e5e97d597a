package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/agentbox/agentbox/pkg/install"
)

// programs is where the programs of agentbox and of the engines are.
type programs struct {
	self    string                                           // the folder of this program; empty: not known
	path    string                                           // PATH
	daemons []string                                         // folders of daemons, which a PATH of a user may lack
	version func(ctx context.Context, program string) string // what PROGRAM --version prints; "" when it cannot be run
}

func ourPrograms() programs {
	p := programs{path: os.Getenv("PATH"), daemons: servicePath, version: programVersion}
	if self, err := os.Executable(); err == nil {
		p.self = filepath.Dir(self)
	}
	return p
}

// servicePath is the PATH that systemd gives to services (systemd.exec(5)).
var servicePath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

const versionTimeout = 10 * time.Second

func programVersion(ctx context.Context, program string) string {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// find returns the first program of that name in folders; "" when there is none.
func find(name string, dirs []string) string {
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); filepath.IsAbs(path) && checkProgram(path) == nil {
			return path
		}
	}
	return ""
}

func checkProgram(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return errors.New("it is not a program")
	}
	return nil
}

// program returns the absolute path of the program of a name that an engine is to
// start. Symbolic links are kept: the engine is told the name that an upgrade
// leaves as it is.
func (p programs) program(name, given string) (string, error) {
	if given == "" {
		dirs := slices.Concat([]string{p.self}, filepath.SplitList(p.path))
		if path := find(name, dirs); path != "" {
			return path, nil
		}
		return "", fmt.Errorf("%s is neither beside this program, in %s, nor on the PATH: install it, or say where it is with --program", name, p.self)
	}
	if !filepath.IsAbs(given) {
		return "", usageError{fmt.Errorf("--program %q is not absolute: give the whole path, since an engine has another current folder", given)}
	}
	if err := checkProgram(given); err != nil {
		return "", fmt.Errorf("--program %s cannot be used: %w", given, err)
	}
	return filepath.Clean(given), nil
}

// shim returns the absolute path of the shim that belongs to a runtime; "" when it
// is not installed.
func (p programs) shim(runtime string) string {
	return find(install.ShimName, slices.Concat([]string{filepath.Dir(runtime), p.self}, filepath.SplitList(p.path)))
}

// onServicePath reports whether a service finds a program by its name.
func onServicePath(path string) bool {
	return find(filepath.Base(path), servicePath) == path
}

// daemon returns where a program of an engine is; "" when it is not installed.
func (p programs) daemon(name string) string {
	return find(name, slices.Concat(filepath.SplitList(p.path), p.daemons))
}

// major asks a program of an engine for its version; 0: not known.
func (p programs) major(ctx context.Context, name string) int {
	path := p.daemon(name)
	if path == "" {
		return 0
	}
	return install.Major(p.version(ctx, path))
}
