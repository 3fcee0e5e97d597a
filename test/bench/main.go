package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/precision"
	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
)

// The parts of a run.
const (
	partStartup = "startup"
	partCPU     = "cpu"
	partShim    = "shim"
	partIO      = "io"
	// partSupervisor is measured on this machine only: it wants two CPUs, and
	// memory that is as fast as a real machine's.
	partSupervisor = "supervisor"
)

var allParts = []string{partStartup, partShim, partCPU, partIO, partSupervisor}

type options struct {
	bin    string   // folder of the built binaries
	tools  string   // folder of the programs of this benchmark; empty: they are built
	engine string   // of test/vm
	only   []string // the parts
	pairs  int      // of each start-up figure
	runs   int      // of each limit, and pairs of shims
	rounds int      // of each limit of the supervisor
	write  bool     // the page and the chart too
	guest  string   // this is the guest: the file for the results
}

func parseOptions(args []string) (o options, err error) {
	set := flag.NewFlagSet("bench", flag.ContinueOnError)
	set.StringVar(&o.bin, "bin", "bin", "folder of the built binaries")
	set.StringVar(&o.engine, "engine", "uml", "engine of the guest: uml or qemu")
	set.IntVar(&o.pairs, "pairs", 40, "pairs for each start-up figure, at least 30 for one that counts")
	set.IntVar(&o.runs, "runs", 5, "runs for each limit, and shims of each kind, at least 5 for a figure that counts")
	set.IntVar(&o.rounds, "rounds", 20, "runs for each limit of the supervisor, at least 20 for a figure that counts")
	set.BoolVar(&o.write, "write", false, "write the numbers into docs/benchmarks.md and docs/benchmarks.svg")
	set.StringVar(&o.tools, "tools", "", "used in the guest: folder of the benchmark's own programs")
	set.StringVar(&o.guest, "guest", "", "used in the guest: file for the results")
	only := set.String("only", strings.Join(allParts, ","), "what to measure, with a comma between")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	o.only = strings.Split(*only, ",")
	return o, o.check(set.Args())
}

func (o options) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("arguments that mean nothing here: %q", rest)
	}
	for _, part := range o.only {
		if !slices.Contains(allParts, part) {
			return fmt.Errorf("-only %q: the parts are %s", part, strings.Join(allParts, ", "))
		}
	}
	switch {
	case o.pairs < 1 || o.runs < 1 || o.rounds < 1:
		return fmt.Errorf("-pairs %d, -runs %d and -rounds %d have to be at least 1", o.pairs, o.runs, o.rounds)
	case o.write && !o.hasAll():
		return fmt.Errorf("-write needs all parts (%s), so that the page is from one run: leave out -only", strings.Join(allParts, ", "))
	}
	return nil
}

func (o options) has(part string) bool { return slices.Contains(o.only, part) }

// inGuests are the parts that are measured in a guest too.
func (o options) inGuests() []string {
	return slices.DeleteFunc(slices.Clone(o.only), func(part string) bool { return part == partSupervisor })
}

func (o options) hasAll() bool {
	for _, part := range allParts {
		if !o.has(part) {
			return false
		}
	}
	return true
}

func main() {
	o, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// results is what one machine has to tell; a guest writes it as JSON.
type results struct {
	Machine    machine               `json:"machine"`
	Startup    []comparison          `json:"startup,omitempty"`
	Sizes      *sizes                `json:"sizes,omitempty"`
	Shims      *shimMemory           `json:"shims,omitempty"`
	CPU        []precision.Series    `json:"cpu,omitempty"`
	IO         []precision.Series    `json:"io,omitempty"`
	Neighbours []precision.Neighbour `json:"neighbours,omitempty"`
	Supervisor *supervision          `json:"supervisor,omitempty"`
}

func run(o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root, to run containers")
	}
	dir, err := os.MkdirTemp("", "agentbox-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	if o.guest != "" {
		return inGuest(o, dir)
	}
	if o.write {
		// Not after ten minutes.
		if err := checkPage(); err != nil {
			return err
		}
	}
	if o.tools, err = buildTools(dir); err != nil {
		return err
	}
	host, err := measureHost(o, dir)
	if err != nil {
		return err
	}
	var guest results
	if len(o.inGuests()) > 0 {
		if guest, err = measureGuest(o, dir); err != nil {
			return err
		}
	}
	if host.Machine.LoadAfter, err = load(); err != nil {
		return err
	}
	list := sections(host, guest)
	for _, s := range list {
		fmt.Print("\n" + s.Text())
	}
	if !o.write {
		return nil
	}
	return writePage(list, chartOf(host, guest))
}

// buildTools builds the programs of this benchmark, which the guest cannot.
func buildTools(dir string) (string, error) {
	tools := filepath.Join(dir, "tools")
	if err := os.Mkdir(tools, 0o755); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", tools, "./test/bench/reference", "./test/bench/peak", "./test/bench/hog")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs of the benchmark: %w: %s", err, out)
	}
	return tools, nil
}

// Times of the parts that are precise to measure.
const (
	cpuTime       = 10 * time.Second
	ioTime        = 2 * time.Second
	neighbourTime = 4 * time.Second
)

// What limits of the kernel have to hold within.
const (
	cpuTolerance = 0.04
	ioTolerance  = 0.10
)

// cpuGroups are the CPU limits that a machine can show; those of one group are
// measured side by side. There are CPUs for twice what a group may use, so that
// one that gets too much is not held back by the others.
func cpuGroups(cpus int) [][]float64 {
	if cpus == 1 {
		return [][]float64{{0.25}, {0.5}}
	}
	return [][]float64{{0.25, 0.5}, {1}}
}

const thisHost = "this host"

func measureHost(o options, dir string) (r results, err error) {
	r, m, err := measure(o, dir, thisHost, (*startup).hostFigures)
	if err != nil {
		return r, err
	}
	if o.has(partIO) {
		if r.IO, err = measureHostIO(m); err != nil {
			return r, err
		}
	}
	if o.has(partSupervisor) {
		r.Supervisor, err = measureSupervisor(o, filepath.Join(dir, "supervisor"), r.Machine.CPUs)
	}
	return r, err
}

// measure measures what is the same on every machine. It returns the meter, for
// more.
func measure(o options, dir, place string, figures func(*startup) []func() (comparison, error)) (r results, m *precision.Meter, err error) {
	if r.Machine, err = lookAtMachine(place); err != nil {
		return r, nil, err
	}
	progress("%s", r.Machine)
	if place == thisHost && r.Machine.busy() {
		progress("this machine has other work, which shows in the numbers: better wait until its load is below 1")
	}
	if o.has(partStartup) {
		s, err := newStartup(o, filepath.Join(dir, "startup"))
		if err != nil {
			return r, nil, err
		}
		if r.Startup, err = s.measure(figures(s)); err != nil {
			return r, nil, err
		}
		if r.Sizes, err = s.sizes(); err != nil {
			return r, nil, err
		}
	}
	if o.has(partShim) {
		if r.Shims, err = measureShims(o, filepath.Join(dir, "shims"), place); err != nil {
			return r, nil, err
		}
	}
	if m, err = newMeter(o, filepath.Join(dir, "precision"), place); err != nil {
		return r, nil, err
	}
	if o.has(partCPU) {
		r.CPU, err = m.CPU(cpuGroups(r.Machine.CPUs), cpuTime)
	}
	return r, m, err
}

// measureHostIO measures on the file system of this machine's temporary files
// that outlive a boot, if that is on a disk.
func measureHostIO(m *precision.Meter) (list []precision.Series, err error) {
	folder, err := os.MkdirTemp("/var/tmp", "agentbox-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	place, err := precision.Here(folder)
	if err != nil {
		progress("no I/O limits are measured on this host: %v", err)
		return nil, nil
	}
	place.Name += ", " + thisHost
	return m.IO(place)
}

// newMeter makes a meter for a machine.
func newMeter(o options, dir, place string) (*precision.Meter, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return nil, err
	}
	return &precision.Meter{
		Runtime: &sandbox.Runtime{
			Agentbox: filepath.Join(o.bin, "agentbox-runtime"), Runc: runc,
			Hog: filepath.Join(o.tools, "hog"), Dir: dir,
		},
		Place: place, Runs: o.runs, Work: ioTime, Log: os.Stderr, CPUTolerance: cpuTolerance, IOTolerance: ioTolerance,
	}, nil
}

// progress says on standard error what is going on.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
