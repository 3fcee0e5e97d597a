package doctor

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agentbox/agentbox/pkg/cgroup"
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

// runtime finds the low-level runtime and asks it.
func (g *gatherer) runtime(ctx context.Context, name string) Runtime {
	r := Runtime{Name: name}
	found, err := g.lookPath(name)
	if err != nil {
		return r
	}
	if r.Path, err = filepath.Abs(found); err != nil {
		r.Path, r.Problem = found, err.Error()
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
	r.Fixed = fixedIn(g.fs, r.Path)
	return r
}

// ask runs a program with --version and returns what it prints.
func ask(ctx context.Context, program string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var out, errs limited
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = within / 4 // for what a child of it keeps open
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("it does not answer --version within %s", within)
	case err != nil && len(errs.kept) > 0:
		return "", fmt.Errorf("%w: %s", err, firstLine(string(errs.kept)))
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
	return program, version, true
}

var cveName = regexp.MustCompile(`CVE-[0-9]{4}-[0-9]{4,}`)

// fixedIn returns the security fixes in the changelog of the package that a
// program came with, where its distribution has it (Debian Policy, 12.7).
func fixedIn(f cgroup.FS, program string) []string {
	real, err := filepath.EvalSymlinks(program)
	if err != nil || !slices.Contains([]string{"/usr/bin", "/usr/sbin"}, filepath.Dir(real)) {
		return nil
	}
	name := "/usr/share/doc/" + filepath.Base(real) + "/changelog.Debian.gz"
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
