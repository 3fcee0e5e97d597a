package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/page"
	"github.com/agentbox/agentbox/test/bench/internal/precision"
	"github.com/agentbox/agentbox/test/bench/internal/stats"
	"github.com/agentbox/agentbox/test/bench/internal/supervised"
)

// supervision is how the supervisor holds limits that the kernel is kept from
// enforcing, and what that takes.
type supervision struct {
	Memory []supervised.Memory `json:"memory"`
	CPU    []precision.Series  `json:"cpu"`
	IO     []precision.Series  `json:"io"`
	Cost   *supervised.Cost    `json:"cost"`
}

const (
	supervisorTolerance = 0.03
	// supervisedIOTime is longer than for the kernel's limits, since the target is
	// narrower: what a limit allows at once, in its first tenth of a second, is a
	// part of the whole.
	supervisedIOTime = 6 * time.Second
)

func measureSupervisor(o options, dir string, cpus int) (s *supervision, err error) {
	m, err := newMeter(o, dir, thisHost)
	if err != nil {
		return nil, err
	}
	m.Runtime.Supervise = supervised.All
	m.Runs, m.Work, m.BytesOnly = o.rounds, supervisedIOTime, true
	m.CPUTolerance, m.IOTolerance = supervisorTolerance, supervisorTolerance
	defer func() { err = errors.Join(err, m.Runtime.EndSupervisor()) }()
	root := filepath.Join(dir, "root")
	if err := m.Runtime.MakeRoot(root); err != nil {
		return nil, err
	}
	s = &supervision{}
	meter := supervised.Meter{Runtime: m.Runtime, Root: root, Runs: o.rounds, CPUs: cpus, Log: os.Stderr}
	if s.Memory, err = meter.Memory(); err != nil {
		return nil, err
	}
	if s.CPU, err = m.CPU(cpuGroups(cpus), cpuTime); err != nil {
		return nil, err
	}
	if s.IO, err = measureHostIO(m); err != nil {
		return nil, err
	}
	s.Cost, err = meter.Cost()
	return s, err
}

// supervisorBlocks are the tables of the supervisor.
func supervisorBlocks(s *supervision) []page.Block {
	blocks := []page.Block{
		{Text: supervisorMisses(s)},
		{Table: growthTable(s.Memory)},
		{Table: cpuTable(s.CPU)},
	}
	if len(s.IO) > 0 {
		blocks = append(blocks, page.Block{Table: ioTable(s.IO)})
	}
	return append(blocks, page.Block{Table: loadTable(s.Cost)})
}

// supervisorMisses names what is not where it should be.
func supervisorMisses(s *supervision) string {
	var missed []string
	for _, m := range s.Memory {
		if !m.Met() {
			missed = append(missed, "memory, "+m.What)
		}
	}
	for _, series := range slices.Concat(s.CPU, s.IO) {
		if !series.Met() {
			missed = append(missed, miss(series))
		}
	}
	for _, row := range costRows(s.Cost) {
		if row[len(row)-1] == page.NotMet {
			missed = append(missed, row[0])
		}
	}
	if len(missed) == 0 {
		return "All targets are met."
	}
	return "Not met: " + strings.Join(missed, "; ") + "."
}

func growthTable(list []supervised.Memory) *page.Table {
	t := &page.Table{Columns: []string{
		"memory taken at", "rate reached", "limit", "over the limit", "worst", "last page after", "worst", "last process ended after", "worst", "runs", "target", "",
	}}
	for _, m := range list {
		overshoots := m.Overshoots()
		t.Rows = append(t.Rows, []string{
			m.What, fmt.Sprintf("%.2f GB/s", stats.Median(m.Rates())/1e9), fmt.Sprintf("%d MiB", m.Limit>>20),
			percent(stats.Median(overshoots)), percent(slices.Max(overshoots)),
			milliseconds(stats.Median(m.Stops()).Seconds()), milliseconds(slices.Max(m.Stops()).Seconds()),
			milliseconds(stats.Median(m.Ends()).Seconds()), milliseconds(slices.Max(m.Ends()).Seconds()),
			fmt.Sprint(len(m.Runs)), fmt.Sprintf("%s, %v", percent(m.Target.Overshoot), m.Target.Ended), page.Verdict(m.Met()),
		})
	}
	return t
}

func loadTable(c *supervised.Cost) *page.Table {
	return &page.Table{Columns: []string{"what the supervisor takes", "measured", "worst", "target", ""}, Rows: costRows(c)}
}

func costRows(c *supervised.Cost) (rows [][]string) {
	cpu := func(l supervised.Load) {
		target, verdict := "", ""
		if l.Target > 0 {
			target, verdict = percent(l.Target), page.Verdict(l.Met())
		}
		rows = append(rows, []string{
			fmt.Sprintf("CPU, %s, as a part of one core", sandboxes(l)), percent(l.Mean()), percent(slices.Max(l.CPU)), target, verdict,
		})
	}
	memory := func(l supervised.Load) {
		rows = append(rows, []string{
			"PSS in all, " + sandboxes(l), mebibytes(float64(l.Memory)), "", mebibytes(supervised.TargetMemory), page.Verdict(l.Memory <= supervised.TargetMemory),
		})
	}
	cpu(c.One)
	cpu(c.Many)
	for _, l := range c.Others {
		cpu(l)
	}
	memory(c.One)
	memory(c.Many)
	rows = append(rows, []string{
		"PSS of each further idle sandbox", kibibytes(c.Further()), "", kibibytes(supervised.TargetFurther), page.Verdict(c.Further() <= supervised.TargetFurther),
	})
	return append(rows, []string{
		"one reading of the proportional memory of a process, for each GB", milliseconds(stats.Median(c.PSS).Seconds()), milliseconds(slices.Max(c.PSS).Seconds()), "", "",
	})
}

// sandboxes says which sandboxes a load has.
func sandboxes(l supervised.Load) string {
	if l.Sandboxes == 1 {
		return "1 sandbox, " + l.What
	}
	return fmt.Sprintf("%d sandboxes, %s", l.Sandboxes, l.What)
}

func percent(part float64) string { return fmt.Sprintf("%.2f %%", part*100) }
