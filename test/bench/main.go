package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds that the project holds itself to.
const (
	targetPass      = 1.3
	targetCreate    = 2.0
	targetStart     = 2.0
	targetLifecycle = 1.15
	targetBinary    = 8 << 20
	targetMemory    = 8 << 10 // KiB
)

func main() {
	bin := flag.String("bin", "bin", "folder of the built binaries")
	pairs := flag.Int("pairs", 40, "pairs for each figure, at least 30 for one that counts")
	flag.Parse()
	if err := run(*bin, *pairs); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is the set-up: two bundles, and a low-level runtime that does nothing.
type bench struct {
	dir       string
	agentbox  string // agentbox-runtime
	reference string // becomes the program it is given
	peak      string // prints the peak memory of the program it is given
	runc      string
	busybox   string
	nothing   string // a low-level runtime that does nothing
	pairs     int
}

func run(bin string, pairs int) (err error) {
	b := &bench{pairs: pairs}
	if b.dir, err = os.MkdirTemp("", "agentbox-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if err := b.setUp(bin); err != nil {
		return err
	}
	defer b.tearDown()
	b.printMachine()

	var rows []comparison
	for _, measure := range []func() (comparison, error){b.passThrough, b.create, b.start, b.lifecycle, b.foreground} {
		row, err := measure()
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	printTable(rows)
	return b.printSizes()
}

func (b *bench) setUp(bin string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root, to run containers")
	}
	if b.agentbox, err = filepath.Abs(filepath.Join(bin, "agentbox-runtime")); err != nil {
		return err
	}
	for name, path := range map[string]*string{"runc": &b.runc, "busybox": &b.busybox} {
		if *path, err = exec.LookPath(name); err != nil {
			return err
		}
	}
	b.reference, b.peak = filepath.Join(b.dir, "reference"), filepath.Join(b.dir, "peak")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", b.dir, "./test/bench/reference", "./test/bench/peak")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the reference: %w: %s", err, out)
	}
	// busybox under the name true, which ignores its arguments.
	b.nothing = filepath.Join(b.dir, "true")
	if err := os.Symlink(b.busybox, b.nothing); err != nil {
		return err
	}
	for name, runtime := range map[string]string{"nothing.toml": b.nothing, "runc.toml": b.runc} {
		text := fmt.Sprintf("runtime = %q\nresults = %q\n", runtime, filepath.Join(b.dir, "results"))
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return b.makeBundle()
}

func (b *bench) makeBundle() error {
	bundle := filepath.Join(b.dir, "bundle")
	if err := os.MkdirAll(filepath.Join(bundle, "rootfs/bin"), 0o755); err != nil {
		return err
	}
	data, err := os.ReadFile(b.busybox)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bundle, "rootfs/bin/true"), data, 0o755); err != nil {
		return err
	}
	spec := exec.Command(b.runc, "spec")
	spec.Dir = bundle
	if out, err := spec.CombinedOutput(); err != nil {
		return fmt.Errorf("runc spec: %w: %s", err, out)
	}
	if data, err = os.ReadFile(filepath.Join(bundle, "config.json")); err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		return err
	}
	process := config["process"].(map[string]any)
	process["terminal"] = false
	process["args"] = []string{"true"}
	if data, err = json.MarshalIndent(config, "", "\t"); err != nil {
		return err
	}
	return os.WriteFile(b.original(), data, 0o644)
}

func (b *bench) original() string { return filepath.Join(b.dir, "config.json") }

// restoreSpec puts the specification back as an engine would write it.
func (b *bench) restoreSpec() error {
	data, err := os.ReadFile(b.original())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, "bundle/config.json"), data, 0o644)
}

func (b *bench) tearDown() {
	_ = exec.Command(b.runc, "--root", filepath.Join(b.dir, "runc"), "delete", "--force", "bench").Run()
}

// ours returns an agentbox-runtime command line.
func (b *bench) ours(config string, args ...string) []string {
	return append([]string{
		b.agentbox, "--agentbox-config", filepath.Join(b.dir, config), "--agentbox-state", filepath.Join(b.dir, "state"),
		"--root", filepath.Join(b.dir, "runc"),
	}, args...)
}

func (b *bench) bare(args ...string) []string {
	return append([]string{b.runc, "--root", filepath.Join(b.dir, "runc")}, args...)
}

// referenceStep is the reference in front of the runtime that does nothing.
func (b *bench) referenceStep() step {
	return step{args: []string{b.reference, b.nothing, "state", "bench"}}
}

func (b *bench) passThrough() (comparison, error) {
	return compare("pass-through verb / reference", b.pairs,
		step{args: b.ours("nothing.toml", "state", "bench")}, b.referenceStep(), targetPass)
}

func (b *bench) create() (comparison, error) {
	return compare("create with rewriting / reference", b.pairs, step{
		before: b.restoreSpec,
		args:   b.ours("nothing.toml", "create", "--bundle", filepath.Join(b.dir, "bundle"), "bench"),
		after:  func() error { return os.RemoveAll(filepath.Join(b.dir, "state")) },
	}, b.referenceStep(), targetCreate)
}

// start measures start on a real container that waits, in front of the runtime
// that does nothing, so that it can be started again and again.
func (b *bench) start() (c comparison, err error) {
	if err := b.restoreSpec(); err != nil {
		return c, err
	}
	args := b.ours("runc.toml", "create", "--bundle", filepath.Join(b.dir, "bundle"), "bench")
	// The container's first process keeps the descriptors it is given.
	if err := exec.Command(args[0], args[1:]...).Run(); err != nil {
		return c, fmt.Errorf("%v: %w", args, err)
	}
	defer func() {
		del := b.bare("delete", "--force", "bench")
		err = errors.Join(err, exec.Command(del[0], del[1:]...).Run(), os.RemoveAll(filepath.Join(b.dir, "state")))
	}()
	if err := b.pretendRuntime(); err != nil {
		return c, err
	}
	return compare("start with read-back / reference", b.pairs,
		step{args: b.ours("runc.toml", "start", "bench")}, b.referenceStep(), targetStart)
}

// pretendRuntime makes the state of the one sandbox name the runtime that does
// nothing.
func (b *bench) pretendRuntime() error {
	names, err := filepath.Glob(filepath.Join(b.dir, "state/*/bench/state.json"))
	if err != nil || len(names) != 1 {
		return fmt.Errorf("%d states: %w", len(names), err)
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		return err
	}
	data = []byte(strings.Replace(string(data), strconv.Quote(b.runc), strconv.Quote(b.nothing), 1))
	return os.WriteFile(names[0], data, 0o600)
}

func (b *bench) lifecycle() (comparison, error) {
	pidFile := filepath.Join(b.dir, "pid")
	life := func(verb func(args ...string) []string) step {
		return step{
			before: b.restoreSpec,
			args:   []string{b.nothing}, // the same for both
			then: []func() error{
				detached(verb("create", "--bundle", filepath.Join(b.dir, "bundle"), "--pid-file", pidFile, "bench")),
				command(verb("start", "bench")),
				func() error { return waitEnded(pidFile) },
				command(verb("delete", "bench")),
			},
		}
	}
	ours := func(args ...string) []string { return b.ours("runc.toml", args...) }
	c, err := compare("create, start, wait, delete / bare runc", b.pairs, life(ours), life(b.bare), targetLifecycle)
	c.partNames = []string{"create", "start", "wait", "delete"}
	return c, err
}

// waitEnded waits until the process in a pid file has ended, reaped or not.
func waitEnded(pidFile string) error {
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		stat, err := os.ReadFile("/proc/" + string(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return nil
		}
	}
	return fmt.Errorf("process %s does not end", pid)
}

func (b *bench) foreground() (comparison, error) {
	args := []string{"run", "--bundle", filepath.Join(b.dir, "bundle"), "bench"}
	return compare("run / bare runc", b.pairs,
		step{before: b.restoreSpec, args: b.ours("runc.toml", args...)},
		step{before: b.restoreSpec, args: b.bare(args...)}, 0)
}

func (b *bench) printMachine() {
	var u unix.Utsname
	_ = unix.Uname(&u)
	version, _ := exec.Command(b.runc, "--version").Output()
	first, _, _ := strings.Cut(string(version), "\n")
	fmt.Printf("%s, %s, %d CPUs, %s, %d pairs\n\n", unix.ByteSliceToString(u.Release[:]), first, runtime.NumCPU(), runtime.Version(), b.pairs)
}

func printTable(rows []comparison) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tours\tother\tratio\tquartiles\ttarget\t")
	for _, r := range rows {
		target, met := "-", ""
		if r.target > 0 {
			target, met = fmt.Sprintf("%.2f", r.target), "met"
			if r.ratio > r.target {
				met = "NOT met"
			}
		}
		fmt.Fprintf(w, "%s\t%.1f ms\t%.1f ms\t%.2f\t%.2f to %.2f\t%s\t%s\n",
			r.name, r.a.Seconds()*1e3, r.b.Seconds()*1e3, r.ratio, r.low, r.high, target, met)
		for i, name := range r.partNames {
			part := r.parts[i+1] // the first one is the same for both
			fmt.Fprintf(w, "  %s\t%.1f ms\t%.1f ms\t%.2f\t\t\t\n", name, part[0].Seconds()*1e3, part[1].Seconds()*1e3, part[0].Seconds()/part[1].Seconds())
		}
	}
	w.Flush()
}

func (b *bench) printSizes() error {
	info, err := os.Stat(b.agentbox)
	if err != nil {
		return err
	}
	fmt.Printf("\nbinary %.1f MiB (target %d)\n", float64(info.Size())/(1<<20), targetBinary>>20)
	var peaks []int
	for range 9 {
		if err := b.restoreSpec(); err != nil {
			return err
		}
		args := b.ours("nothing.toml", "create", "--bundle", filepath.Join(b.dir, "bundle"), "bench")
		out, err := exec.Command(b.peak, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
		kib, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			return err
		}
		peaks = append(peaks, kib)
		if err := os.RemoveAll(filepath.Join(b.dir, "state")); err != nil {
			return err
		}
	}
	slices.Sort(peaks)
	fmt.Printf("peak memory of create %.1f MiB (target %d)\n", float64(peaks[len(peaks)/2])/(1<<10), targetMemory>>10)
	return nil
}
