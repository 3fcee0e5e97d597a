//go:build e2e

// Package e2e runs the real programs against the real kernel: agentbox-runtime
// in front of runc and crun, by hand and under Docker.
//
// The tests need root and the folder of the built programs:
//
//	CGO_ENABLED=0 go test -c -tags e2e -o bin/e2e.test ./test/e2e
//	AGENTBOX_BIN=$PWD/bin bin/e2e.test -test.v
//
// What a machine lacks skips the tests that need it, and the end of the run lists
// them. A run that knows its machine promises what it has, and then a lack fails:
//
//	bin/e2e.test -promise=cgroup2,crun,docker,swap
//
// Everything that a run makes carries its token in the name. The last thing a run
// does is to look for what it left behind.
package e2e

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	promiseFlag = flag.String("promise", os.Getenv("AGENTBOX_PROMISE"), "features, with commas between, that this machine has: a lack fails instead of skipping (AGENTBOX_PROMISE)")
	slowFlag    = flag.Int("slow", intFromEnv("AGENTBOX_SLOW", 1), "by how much all time limits are multiplied; 10 in an emulated machine (AGENTBOX_SLOW)")
	leastFlag   = flag.Int("least", 40, "how many tests have to run and not be skipped; not looked at when -test.run or -test.skip choose some")
)

// A run owns everything with its token in the name: cgroups, container ids,
// folders.
var (
	token   = fmt.Sprintf("agentbox-e2e-%d", os.Getpid())
	scratch = filepath.Join(os.TempDir(), token) // every file of the run is below
	bin     = os.Getenv("AGENTBOX_BIN")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	if err := ready(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		removeCgroupParent()
		_ = os.RemoveAll(scratch)
		os.Exit(1)
	}
	if runtime.GOMAXPROCS(0) < parallel && !chosen("test.parallel") {
		_ = flag.Set("test.parallel", fmt.Sprint(parallel)) // most tests wait for a container
	}
	code := m.Run()
	if !tearDown() {
		code = max(code, 1)
	}
	os.Exit(code)
}

// parallel is how many tests run at the same time.
const parallel = 4

func chosen(name string) bool {
	found := false
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// ready looks for what no test can do without.
func ready() error {
	switch {
	case os.Geteuid() != 0:
		return fmt.Errorf("these tests start containers: run them as root")
	case bin == "":
		return fmt.Errorf("set AGENTBOX_BIN to the absolute path of the folder that has agentbox, agentbox-runtime and the shim")
	case !filepath.IsAbs(bin):
		return fmt.Errorf("AGENTBOX_BIN has to be an absolute path, and is %q", bin)
	}
	for _, name := range []string{"agentbox-runtime", "agentbox", "containerd-shim-agentbox-v1"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("AGENTBOX_BIN lacks a program: %w", err)
		}
	}
	return nil
}

func runtimePath() string { return filepath.Join(bin, "agentbox-runtime") }

// setUp makes the root file system that all containers share, and says what this
// machine is. A promise that it does not keep ends the run here.
func setUp() error {
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return err
	}
	// What else makes temporary files makes them where we look for them.
	if err := os.Setenv("TMPDIR", scratch); err != nil {
		return err
	}
	if err := makeRootfs(); err != nil {
		return fmt.Errorf("make a root file system of busybox: %w", err)
	}
	if err := makeCgroupParent(); err != nil {
		return fmt.Errorf("make a cgroup for the containers of this run: %w", err)
	}
	printFacts()
	return checkPromises()
}

var sharedThings []func() error

// atEnd stops something that several tests share, when all tests are over.
func atEnd(stop func() error) { sharedThings = append(sharedThings, stop) }

// tearDown removes what is common to all tests, says what was skipped, and
// reports whether nothing is left and enough tests ran.
func tearDown() bool {
	good := true
	for _, stop := range sharedThings {
		if err := stop(); err != nil {
			good = false
			fmt.Println("FAIL:", err)
		}
	}
	removeCgroupParent()
	if left := leftovers(); len(left) > 0 {
		good = false
		fmt.Printf("FAIL: this run left behind:\n  %s\n", strings.Join(left, "\n  "))
	}
	if err := os.RemoveAll(scratch); err != nil {
		good = false
		fmt.Println("FAIL: remove the files of this run:", err)
	}
	skipped := gate.skipped()
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		fmt.Printf("skipped, %s:\n  %s\n", why, strings.Join(skipped[why], "\n  "))
	}
	ran, notRan := gate.count()
	fmt.Printf("%d tests and subtests ran, %d were skipped\n", ran, notRan)
	if ran < *leastFlag && !chosen("test.run") && !chosen("test.skip") {
		good = false
		fmt.Printf("FAIL: only %d tests ran, at least %d were expected (-least)\n", ran, *leastFlag)
	}
	return good
}

// leftovers lists everything with the token of this run that is still there. What
// has just been ended may take a moment to go.
func leftovers() []string {
	var left []string
	for deadline := time.Now().Add(scaled(30 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		left = append(leftProcesses(), leftMounts()...)
		left = append(left, leftCgroups()...)
		left = append(left, leftFiles()...)
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// leftProcesses finds processes that are in a cgroup of ours, or whose command
// line names a folder of ours.
func leftProcesses() []string {
	var left []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if filepath.Base(dir) == fmt.Sprint(os.Getpid()) {
			continue
		}
		cmdline, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue // gone
		}
		cgroup, _ := os.ReadFile(dir + "/cgroup")
		if strings.Contains(string(cmdline)+string(cgroup), token) {
			left = append(left, fmt.Sprintf("process %s: %q", filepath.Base(dir), strings.ReplaceAll(string(cmdline), "\x00", " ")))
		}
	}
	return left
}

func leftMounts() []string {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var left []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, token) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	return left
}

func leftCgroups() []string {
	var left []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // a cgroup of somebody else that went away meanwhile
		}
		if strings.Contains(path, token) {
			name, ok := testOf.Load(d.Name())
			if !ok {
				name = "the parent of all"
			}
			left = append(left, fmt.Sprintf("cgroup %s (%s)", path, name))
		}
		return nil
	})
	return left
}

// leftFiles looks where the programs keep things by default, which no test lets
// them do, and below the folder of this run, which every test has cleaned.
func leftFiles() []string {
	var left []string
	for _, dir := range []string{"/run/agentbox", "/var/lib/agentbox", "/run/runc", "/run/crun", "/run/user/0"} {
		_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil && strings.Contains(path, token) {
				left = append(left, "file "+path)
			}
			return nil
		})
	}
	onDisks, _ := filepath.Glob(filepath.Join(onDisk(), token+"*"))
	for _, name := range onDisks {
		left = append(left, "file "+name)
	}
	entries, err := os.ReadDir(scratch)
	if err != nil {
		return append(left, err.Error())
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(rootfs) {
			left = append(left, "file "+filepath.Join(scratch, e.Name()))
		}
	}
	return left
}
