package doctor

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/lowlevel"
	"github.com/agentbox/agentbox/pkg/smallfile"
)

// askTimeout is how long a low-level runtime has to say its version.
const askTimeout = 2 * time.Second

// maxOutput bounds what is read of a program, maxChangelog of a package's
// changelog; both are far above what there is.
const (
	maxOutput    = 64 << 10
	maxChangelog = 4 << 20
)

// lowLevel is what is found before the low-level runtime is asked.
type lowLevel struct {
	path   string
	itself bool
}

// runtime finds the low-level runtime, as agentbox-runtime does, and asks it.
func (g *gatherer) runtime(ctx context.Context, name string) Runtime {
	r := Runtime{Name: name}
	lookup := lowlevel.Lookup{Self: g.facts.Self, Config: g.o.ConfigPath, LookPath: g.lookPath}
	low, err := within(g, inPath(name), func() (lowLevel, error) {
		path, err := lookup.Find(name)
		return lowLevel{path, err == nil && builtFrom(path) == runtimePackage}, err
	})
	if itself, ok := errors.AsType[*lowlevel.SelfError](err); ok {
		low, err = lowLevel{itself.Path, true}, nil
	}
	if errors.As(err, new(*silentError)) {
		r.Problem = err.Error()
	}
	r.Path, r.Itself = low.path, low.itself
	if err != nil || r.Itself {
		return r
	}
	out, err := ask(ctx, r.Path, askTimeout)
	if err != nil {
		r.Problem = err.Error()
		return r
	}
	var ok bool
	if r.Program, r.Version, ok = parseProgram(out); !ok {
		r.Problem = fmt.Sprintf("it answers --version with %.80q", firstLine(out))
		return r
	}
	r.Fixed, _ = within(g, docFolder, func() ([]string, error) { return fixedIn(g.fs, r.Path), nil })
	return r
}

// runtimePackage is what agentbox-runtime is built from.
const runtimePackage = "github.com/agentbox/agentbox/cmd/agentbox-runtime"

// builtFrom returns the package that a Go program is built from; empty for any
// other file. A copy of agentbox-runtime is no less agentbox-runtime.
func builtFrom(program string) string {
	f, err := os.OpenFile(program, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	info, err := buildinfo.Read(f)
	if err != nil {
		return ""
	}
	return info.Path
}

// ask runs a program with --version and returns what it prints. Whatever it
// started ends with it.
func ask(ctx context.Context, program string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var out, errs limited
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = within / 4 // for what a child of it keeps open
	runtime.LockOSThread()     // a death signal comes with the end of a thread
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if cmd.Process != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // its group, in which mostly nobody is left
	}
	switch {
	case errors.Is(err, exec.ErrWaitDelay): // it has answered and ended well, and a child of it holds the pipe
		return string(out.kept), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("it does not answer --version within %s", within)
	case err != nil && cmd.Process == nil:
		return "", fmt.Errorf("it cannot be started: %s", reasonOf(err))
	case err != nil && len(errs.kept) > 0:
		return "", fmt.Errorf("%w: %s", err, limits.Shorten(firstLine(string(errs.kept)), limits.MaxText))
	case err != nil:
		return "", err
	}
	return string(out.kept), nil
}

// limited keeps the first maxOutput bytes that are written.
type limited struct{ kept []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.kept = append(l.kept, p[:min(len(p), maxOutput-len(l.kept))]...)
	return len(p), nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// maxName bounds what a program calls itself and its version, in bytes.
const maxName = 100

// parseProgram reads the first line of --version: "runc version 1.1.5+ds1". A
// build without a version says "runc version spec: 1.0.2", or nothing.
func parseProgram(out string) (program, version string, ok bool) {
	program, rest, ok := strings.Cut(firstLine(out), " version")
	if !ok || program == "" || strings.ContainsAny(program, " \t") {
		return "", "", false
	}
	fields := strings.Fields(rest)
	if len(fields) == 1 {
		version = fields[0]
	}
	return limits.Shorten(program, maxName), limits.Shorten(version, maxName), true
}

// docFolder is where distributions keep changelogs.
const docFolder = "/usr/share/doc"

var cveName = regexp.MustCompile(`CVE-[0-9]{4}-[0-9]{4,}`)

// fixedIn returns the security fixes in the changelog of the package that a
// program came with, where its distribution has it (Debian Policy, 12.7).
func fixedIn(f cgroup.FS, program string) []string {
	real, err := filepath.EvalSymlinks(program)
	if err != nil || !slices.Contains([]string{"/usr/bin", "/usr/sbin"}, filepath.Dir(real)) {
		return nil
	}
	name := docFolder + "/" + filepath.Base(real) + "/changelog.Debian.gz"
	data, err := smallfile.Read(f.Path(name), maxChangelog, 0)
	if err != nil {
		return nil
	}
	return parseChangelog(data)
}

// parseChangelog returns the names of security fixes in a compressed changelog,
// each once. What cannot be read is left out.
func parseChangelog(data []byte) []string {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(r, maxChangelog))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	names := cveName.FindAllString(string(text), -1)
	slices.Sort(names)
	return slices.Compact(names)
}
