package main

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/page"
	"github.com/agentbox/agentbox/test/bench/internal/precision"
	"github.com/agentbox/agentbox/test/bench/internal/pss"
	"github.com/agentbox/agentbox/test/bench/internal/shims"
	"github.com/agentbox/agentbox/test/bench/internal/supervised"
)

var update = flag.Bool("update", false, "write the golden files")

// samples are results in which every kind of row is there, met and not.
func samples() (host, guest results) {
	host = results{
		Machine: machine{Name: thisHost, Kernel: "6.1.0", Cgroup: 1, CPUs: 2, CPU: "Some CPU", MemoryMiB: 4096, Runc: "1.1.5", Go: "1.26.8", Load: "0.25", LoadAfter: "1.50"},
		Startup: []comparison{
			{Name: "create / reference", Pairs: 40, A: 0.0037, B: 0.0022, Ratio: 1.64, Low: 1.59, High: 1.71, Target: 2},
			{
				Name: "a life / bare runc", Pairs: 40, A: 0.0639, B: 0.0486, Ratio: 1.35, Low: 1.19, High: 1.48, Target: 1.15,
				PartNames: []string{"create", "delete"}, Parts: [][2]float64{{0.001, 0.001}, {0.0365, 0.0311}, {0.0121, 0.0066}},
			},
			{Name: "run / bare runc", Pairs: 40, A: 0.0672, B: 0.036, Ratio: 1.84, Low: 1.67, High: 2.14},
		},
		Sizes: &sizes{Binary: 5 << 20, Memory: 9 << 20},
		Shims: &shimMemory{Place: thisHost, Containerd: "1.6.20", Pairs: []shims.Pair{{
			Agentbox: shims.Sample{One: pss.Memory{PSS: 11 << 20, Anonymous: 3 << 20}, Pod: pss.Memory{PSS: 12 << 20}},
			Runc:     shims.Sample{One: pss.Memory{PSS: 12 << 20, Anonymous: 2 << 20}, Pod: pss.Memory{PSS: 13 << 20}},
		}}},
		CPU: []precision.Series{
			{Place: thisHost, What: "4 threads that compute", Unit: precision.CPUs, Limit: 0.25, Kernel: []float64{0.249, 0.25, 0.251}, Free: 1.99, Tolerance: 0.04},
			{Place: thisHost, What: "4 threads that compute", Unit: precision.CPUs, Limit: 1, Kernel: []float64{0.9, 0.95, 1}, Free: 1.99, Tolerance: 0.04},
		},
		IO: []precision.Series{
			{Place: "ext4, this host", What: "write, buffered", Unit: precision.Bytes, Limit: 20 << 20, Kernel: []float64{0}, Clock: []float64{400 << 20}, Free: 800 << 20, Tolerance: 0.1},
		},
		Supervisor: &supervision{
			Memory: []supervised.Memory{
				{
					What: "1 GB/s", Limit: 2 << 30, Free: 3 << 30, Target: supervised.Target{Overshoot: 0.05, Ended: 50 * time.Millisecond},
					Runs: []supervised.Growth{
						{Peak: 2<<30 + 20<<20, Rate: 1e9, Stopped: 5 * time.Millisecond, Ended: 40 * time.Millisecond},
						{Peak: 2<<30 + 40<<20, Rate: 0.9e9, Stopped: 7 * time.Millisecond, Ended: 90 * time.Millisecond},
					},
				},
				{
					What: "as fast as it goes", Limit: 2 << 30, Free: 3 << 30, Target: supervised.Target{Overshoot: 0.05, Ended: 50 * time.Millisecond},
					Runs: []supervised.Growth{{Peak: 3 << 30, Rate: 4e9, Stopped: 250 * time.Millisecond, Ended: 400 * time.Millisecond}},
				},
			},
			CPU: []precision.Series{
				{Place: thisHost, Unit: precision.CPUs, Limit: 0.5, Kernel: []float64{0.5, 0.51, 0.52}, Free: 1.9, Tolerance: 0.03},
			},
			IO: []precision.Series{
				{Place: "ext4, this host", What: "write, direct", Unit: precision.Bytes, Limit: 20 << 20, Kernel: []float64{22 << 20}, Clock: []float64{22 << 20}, Free: 900 << 20, Tolerance: 0.03},
			},
			Cost: &supervised.Cost{
				One:    supervised.Load{What: "idle", Sandboxes: 1, CPU: []float64{0.001, 0.002}, Memory: 12 << 20, Target: 0.01},
				Many:   supervised.Load{What: "idle", Sandboxes: 500, CPU: []float64{0.005, 0.025}, Memory: 50 << 20, Target: 0.01},
				Others: []supervised.Load{{What: "busy", Sandboxes: 50, CPU: []float64{0.05}, Memory: 14 << 20}},
				PSS:    []time.Duration{21 * time.Millisecond, 30 * time.Millisecond},
			},
		},
	}
	guest = results{
		Machine: machine{Name: "user-mode Linux", Kernel: "7.2.7", Cgroup: 2, CPUs: 1, MemoryMiB: 3005, Runc: "1.3.6", Go: "1.26.8"},
		Shims: &shimMemory{Place: "user-mode Linux", Containerd: "2.1.9", Pairs: []shims.Pair{{
			Agentbox: shims.Sample{One: pss.Memory{PSS: 20 << 20, Anonymous: 4 << 20}, Pod: pss.Memory{PSS: 24 << 20}},
			Runc:     shims.Sample{One: pss.Memory{PSS: 16 << 20, Anonymous: 4 << 20}, Pod: pss.Memory{PSS: 18 << 20}},
		}}},
		Startup: []comparison{{Name: "create without the note / with it", Pairs: 40, A: 0.02, B: 0.02, Ratio: 1, Low: 0.9, High: 1.1}},
		CPU: []precision.Series{
			{Place: "user-mode Linux", What: "4 threads that compute", Unit: precision.CPUs, Limit: 0.5, Kernel: []float64{0.5}, Free: 0.51, Tolerance: 0.04},
		},
		IO: []precision.Series{
			{Place: "ext4", What: "read, direct", Unit: precision.Bytes, Limit: 20 << 20, Kernel: []float64{20 << 20, 21 << 20, 25 << 20}, Clock: []float64{20 << 20}, Free: 2000 << 20, Tolerance: 0.1},
			{Place: "ext4", What: "write 4 KiB, direct", Unit: precision.Operations, Limit: 200, Kernel: []float64{210}, Clock: []float64{230}, Free: 9000, Tolerance: 0.1},
			{Place: "xfs", What: "read, direct", Unit: precision.Bytes, Limit: 20 << 20, Kernel: []float64{20 << 20}, Clock: []float64{20 << 20}, Free: 2000 << 20, Tolerance: 0.1},
		},
		Neighbours: []precision.Neighbour{
			{Place: "ext4", Hog: "none", Commits: []float64{0.001, 0.002}},
			{Place: "ext4", Hog: "no limit", HogRate: 500 << 20, Commits: []float64{0.003, 0.1}},
			{Place: "ext4", Hog: "20 MiB/s", HogRate: 20 << 20, Commits: []float64{0.001, 0.004}},
		},
	}
	return host, guest
}

func render(list []page.Section, one func(page.Section) string) string {
	var out strings.Builder
	for _, s := range list {
		out.WriteString("== " + s.Name + "\n" + one(s))
	}
	return out.String()
}

func TestGolden(t *testing.T) {
	host, guest := samples()
	list := sections(host, guest)
	tests := []struct{ golden, got string }{
		{"testdata/sections.md", render(list, page.Section.Markdown)},
		{"testdata/sections.txt", render(list, page.Section.Text)},
		{"testdata/chart.svg", chartOf(host, guest)},
	}
	for _, tt := range tests {
		t.Run(tt.golden, func(t *testing.T) {
			if *update {
				if err := os.WriteFile(tt.golden, []byte(tt.got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(tt.golden)
			if err != nil {
				t.Fatal(err)
			}
			if tt.got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", tt.got, want)
			}
		})
	}
}

// What was not measured has no section, and a full run has one for each part of
// the page.
func TestSections(t *testing.T) {
	host, guest := samples()
	names := func(list []page.Section) string {
		var all []string
		for _, s := range list {
			all = append(all, s.Name)
		}
		return strings.Join(all, " ")
	}
	if got, want := names(sections(host, guest)), strings.Join(parts, " "); got != want {
		t.Errorf("all parts: %s, want %s", got, want)
	}
	if got := names(sections(results{CPU: host.CPU}, results{CPU: guest.CPU})); got != "machine cpu" {
		t.Errorf("CPU alone: %s", got)
	}
	if got := names(sections(results{}, results{Shims: guest.Shims})); got != "machine shim" {
		t.Errorf("shims alone: %s", got)
	}
	if got := names(sections(results{Supervisor: host.Supervisor}, results{})); got != "machine supervisor" {
		t.Errorf("the supervisor alone: %s", got)
	}
	if got := names(sections(results{}, results{IO: guest.IO})); got != "machine io" {
		t.Errorf("I/O alone: %s", got)
	}
}

func TestMissesAreNamed(t *testing.T) {
	host, guest := samples()
	if got := misses(host.CPU[:1]); got != "All 1 limits meet their target." {
		t.Error(got)
	}
	got := misses(append(append(host.CPU, guest.CPU...), host.IO...))
	for _, part := range []string{
		"1 of 4 limits", "1 CPU on this host (0.950 by the kernel's count)", "0.5 CPU on user-mode Linux (not faster without the limit)",
		"write, buffered on ext4, this host (0.000 by the kernel's count, 20.000 by the program's)",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("%q does not say %q", got, part)
		}
	}
}

func TestMissesOfTheSupervisorAreNamed(t *testing.T) {
	host, _ := samples()
	got := supervisorMisses(host.Supervisor)
	for _, part := range []string{
		"memory, 1 GB/s", "memory, as fast as it goes", "write, direct on ext4, this host (1.100", "CPU, 500 sandboxes, idle", "PSS in all, 500", "PSS of each further",
	} {
		if part == "memory, 1 GB/s" { // its median is met
			if strings.Contains(got, part) {
				t.Errorf("%q says %q", got, part)
			}
			continue
		}
		if !strings.Contains(got, part) {
			t.Errorf("%q does not say %q", got, part)
		}
	}
	host.Supervisor.Memory, host.Supervisor.IO, host.Supervisor.Cost.Many = nil, nil, host.Supervisor.Cost.One
	host.Supervisor.Cost.Many.Sandboxes = 2
	if got := supervisorMisses(host.Supervisor); got != "All targets are met." {
		t.Error(got)
	}
}

// The page of the project takes the numbers of a run.
func TestThePageHasAllParts(t *testing.T) {
	t.Chdir("../..")
	if err := checkPage(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "benchmarks.svg") {
		t.Error("the page does not show the chart")
	}
}
