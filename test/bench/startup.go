package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
	"github.com/agentbox/agentbox/test/bench/internal/stats"
)

// Bounds that the project holds itself to.
const (
	targetPass      = 1.3
	targetCreate    = 2.0
	targetStart     = 2.0
	targetLifecycle = 1.15
	targetBinary    = 8 << 20
	targetMemory    = 8 << 20
)

// startup measures what a start costs: a bundle, and a low-level runtime that
// does nothing.
type startup struct {
	dir       string
	agentbox  string // agentbox-runtime
	reference string // becomes the program it is given
	peak      string // prints the peak memory of the program it is given
	runc      string
	busybox   string
	nothing   string // a low-level runtime that does nothing
	pairs     int
}

func newStartup(o options, dir string) (s *startup, err error) {
	s = &startup{
		dir: dir, pairs: o.pairs, agentbox: filepath.Join(o.bin, "agentbox-runtime"),
		reference: filepath.Join(o.tools, "reference"), peak: filepath.Join(o.tools, "peak"),
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	for name, path := range map[string]*string{"runc": &s.runc, "busybox": &s.busybox} {
		if *path, err = exec.LookPath(name); err != nil {
			return nil, err
		}
	}
	// busybox under the name true, which ignores its arguments.
	s.nothing = filepath.Join(dir, "true")
	if err := os.Symlink(s.busybox, s.nothing); err != nil {
		return nil, err
	}
	for name, runtime := range map[string]string{"nothing.toml": s.nothing, "runc.toml": s.runc} {
		text := fmt.Sprintf("runtime = %q\nresults = %q\n", runtime, filepath.Join(dir, "results"))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return s, s.makeBundle()
}

func (s *startup) bundle() string   { return filepath.Join(s.dir, "bundle") }
func (s *startup) state() string    { return filepath.Join(s.dir, "state") }
func (s *startup) original() string { return filepath.Join(s.dir, "config.json") }

func (s *startup) makeBundle() error {
	if err := os.MkdirAll(filepath.Join(s.bundle(), "rootfs/bin"), 0o755); err != nil {
		return err
	}
	data, err := os.ReadFile(s.busybox)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.bundle(), "rootfs/bin/true"), data, 0o755); err != nil {
		return err
	}
	spec, err := sandbox.Spec(s.runc, s.bundle())
	if err != nil {
		return err
	}
	spec["process"].(map[string]any)["args"] = []string{"true"}
	spec["linux"].(map[string]any)["cgroupsPath"] = fmt.Sprintf("/agentbox-bench-%d", os.Getpid())
	if data, err = json.MarshalIndent(spec, "", "\t"); err != nil {
		return err
	}
	return os.WriteFile(s.original(), data, 0o644)
}

// restoreSpec puts the specification back as an engine would write it.
func (s *startup) restoreSpec() error { return s.putSpec(s.original()) }

func (s *startup) putSpec(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.bundle(), "config.json"), data, 0o644)
}

// forget removes what is known of the container. What agentbox has noted about
// the machine stays, as it does until the next boot.
func (s *startup) forget() error {
	entries, err := os.ReadDir(s.state())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.state(), e.Name())))
		}
	}
	return err
}

func (s *startup) tearDown() {
	_ = exec.Command(s.runc, "--root", filepath.Join(s.dir, "runc"), "delete", "--force", "bench").Run()
}

// ours returns an agentbox-runtime command line.
func (s *startup) ours(config string, args ...string) []string {
	return append([]string{
		s.agentbox, "--agentbox-config", filepath.Join(s.dir, config), "--agentbox-state", s.state(),
		"--root", filepath.Join(s.dir, "runc"),
	}, args...)
}

func (s *startup) bare(args ...string) []string {
	return append([]string{s.runc, "--root", filepath.Join(s.dir, "runc")}, args...)
}

// measure makes comparisons, and leaves no container behind.
func (s *startup) measure(figures []func() (comparison, error)) (list []comparison, err error) {
	defer s.tearDown()
	for _, figure := range figures {
		c, err := figure()
		if err != nil {
			return nil, err
		}
		progress("%s: %.2f", c.Name, c.Ratio)
		list = append(list, c)
	}
	return list, nil
}

// hostFigures is everything that does not need cgroup v2.
func (s *startup) hostFigures() []func() (comparison, error) {
	return []func() (comparison, error){s.emptyProgram, s.passThrough, s.create, s.start, s.lifecycle, s.limitsAlone, s.foreground}
}

// referenceStep is the reference in front of the runtime that does nothing.
func (s *startup) referenceStep() step {
	return step{args: []string{s.reference, s.nothing, "state", "bench"}}
}

func (s *startup) createStep() step {
	return step{
		before: s.restoreSpec,
		args:   s.ours("nothing.toml", "create", "--bundle", s.bundle(), "bench"),
		after:  s.forget,
	}
}

// emptyProgram is what any wrapper written in Go costs.
func (s *startup) emptyProgram() (comparison, error) {
	return compare("reference / no wrapper at all", s.pairs, s.referenceStep(), step{args: []string{s.nothing, "state", "bench"}}, 0)
}

func (s *startup) passThrough() (comparison, error) {
	return compare("pass-through verb / reference", s.pairs,
		step{args: s.ours("nothing.toml", "state", "bench")}, s.referenceStep(), targetPass)
}

func (s *startup) create() (comparison, error) {
	return compare("create with rewriting / reference", s.pairs, s.createStep(), s.referenceStep(), targetCreate)
}

// start measures start on a real container that waits, in front of the runtime
// that does nothing, so that it can be started again and again.
func (s *startup) start() (c comparison, err error) {
	if err := s.restoreSpec(); err != nil {
		return c, err
	}
	// The container's first process keeps the descriptors it is given.
	if err := detached(s.ours("runc.toml", "create", "--bundle", s.bundle(), "bench"))(); err != nil {
		return c, err
	}
	defer func() {
		err = errors.Join(err, command(s.bare("delete", "--force", "bench"))(), s.forget())
	}()
	if err := s.pretendRuntime(); err != nil {
		return c, err
	}
	return compare("start with read-back / reference", s.pairs,
		step{args: s.ours("runc.toml", "start", "bench")}, s.referenceStep(), targetStart)
}

// pretendRuntime makes the state of the one sandbox name the runtime that does
// nothing.
func (s *startup) pretendRuntime() error {
	names, err := filepath.Glob(filepath.Join(s.state(), "*/bench/state.json"))
	if err != nil || len(names) != 1 {
		return fmt.Errorf("%d states: %w", len(names), err)
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		return err
	}
	data = []byte(strings.Replace(string(data), strconv.Quote(s.runc), strconv.Quote(s.nothing), 1))
	return os.WriteFile(names[0], data, 0o600)
}

// life is a container from its create to its delete.
func (s *startup) life(before func() error, verb func(args ...string) []string) step {
	pidFile := filepath.Join(s.dir, "pid")
	return step{
		before: before,
		args:   []string{s.nothing}, // the same for both
		then: []func() error{
			detached(verb("create", "--bundle", s.bundle(), "--pid-file", pidFile, "bench")),
			command(verb("start", "bench")),
			func() error { return sandbox.WaitEnded(pidFile, 10*time.Second) },
			command(verb("delete", "bench")),
		},
	}
}

func (s *startup) lifecycle() (comparison, error) {
	ours := func(args ...string) []string { return s.ours("runc.toml", args...) }
	c, err := compare("create, start, wait, delete / bare runc", s.pairs,
		s.life(s.restoreSpec, ours), s.life(s.restoreSpec, s.bare), targetLifecycle)
	c.PartNames = []string{"create", "start", "wait", "delete"}
	return c, err
}

// limitsAlone compares bare runc with the file that was rewritten, and with the
// one that was not.
func (s *startup) limitsAlone() (c comparison, err error) {
	create := s.createStep()
	if _, _, err := create.time(); err != nil {
		return c, err
	}
	rewritten := filepath.Join(s.dir, "rewritten.json")
	if err := os.Rename(filepath.Join(s.bundle(), "config.json"), rewritten); err != nil {
		return c, err
	}
	return compare("bare runc with the limits / without", s.pairs,
		s.life(func() error { return s.putSpec(rewritten) }, s.bare), s.life(s.restoreSpec, s.bare), 0)
}

func (s *startup) foreground() (comparison, error) {
	args := []string{"run", "--bundle", s.bundle(), "bench"}
	return compare("run / bare runc", s.pairs,
		step{before: s.restoreSpec, args: s.ours("runc.toml", args...)},
		step{before: s.restoreSpec, args: s.bare(args...)}, 0)
}

// sizes are those of agentbox-runtime, in bytes.
type sizes struct {
	Binary int64 `json:"binary"`
	Memory int64 `json:"memory"` // resident at the peak of a create
}

func (s *startup) sizes() (*sizes, error) {
	info, err := os.Stat(s.agentbox)
	if err != nil {
		return nil, err
	}
	create := s.createStep()
	var peaks []int64
	for range 9 {
		if err := create.before(); err != nil {
			return nil, err
		}
		out, err := exec.Command(s.peak, create.args...).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%v: %w: %s", create.args, err, out)
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
		if err != nil {
			return nil, err
		}
		peaks = append(peaks, kib<<10)
		if err := create.after(); err != nil {
			return nil, err
		}
	}
	return &sizes{Binary: info.Size(), Memory: stats.Median(peaks)}, nil
}
