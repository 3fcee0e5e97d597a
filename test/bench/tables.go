package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/test/bench/internal/chart"
	"github.com/agentbox/agentbox/test/bench/internal/page"
	"github.com/agentbox/agentbox/test/bench/internal/precision"
	"github.com/agentbox/agentbox/test/bench/internal/stats"
)

// Where the numbers go, from the root of the project.
const (
	pageFile  = "docs/benchmarks.md"
	chartFile = "docs/benchmarks.svg"
)

// sections are the marked parts of the page, without those that were not
// measured.
func sections(host, guest results) []page.Section {
	machines := "- " + host.Machine.String()
	if guest.Machine.Name != "" {
		machines += "\n- " + guest.Machine.String()
	}
	list := []page.Section{{Name: "machine", Blocks: []page.Block{{Text: machines}}}}
	if len(host.Startup) > 0 {
		list = append(list, page.Section{Name: "startup", Blocks: startupBlocks(host, guest)})
	}
	if all := present(host.Shims, guest.Shims); len(all) > 0 {
		list = append(list, page.Section{Name: "shim", Blocks: []page.Block{{Table: shimTable(all)}}})
	}
	if all := slices.Concat(host.CPU, guest.CPU); len(all) > 0 {
		list = append(list, page.Section{Name: "cpu", Blocks: []page.Block{{Text: misses(all)}, {Table: cpuTable(all)}}})
	}
	if all := slices.Concat(guest.IO, host.IO); len(all) > 0 {
		list = append(list, page.Section{Name: "io", Blocks: []page.Block{{Text: misses(all)}, {Table: ioTable(all)}}})
	}
	if len(guest.Neighbours) > 0 {
		list = append(list, page.Section{Name: "neighbour", Blocks: []page.Block{{Table: neighbourTable(guest.Neighbours)}}})
	}
	if s := host.Supervisor; s != nil {
		list = append(list, page.Section{Name: "supervisor", Blocks: supervisorBlocks(s)})
	}
	return list
}

func startupBlocks(host, guest results) []page.Block {
	blocks := []page.Block{
		{Text: fmt.Sprintf("On %s, %d pairs:", host.Machine.Name, host.Startup[0].Pairs)},
		{Table: startupTable(host.Startup)},
	}
	if len(guest.Startup) > 0 {
		blocks = append(blocks,
			page.Block{Text: fmt.Sprintf("What the probe costs, in %s, %d pairs:", guest.Machine.Name, guest.Startup[0].Pairs)},
			page.Block{Table: startupTable(guest.Startup)})
	}
	if s := host.Sizes; s != nil {
		blocks = append(blocks, page.Block{Table: &page.Table{
			Columns: []string{"agentbox-runtime", "measured", "target", ""},
			Rows: [][]string{
				{"size of the binary", mebibytes(float64(s.Binary)), mebibytes(targetBinary), page.Verdict(s.Binary <= targetBinary)},
				{"resident memory at the peak of a create", mebibytes(float64(s.Memory)), mebibytes(targetMemory), page.Verdict(s.Memory <= targetMemory)},
			},
		}})
	}
	return blocks
}

func startupTable(list []comparison) *page.Table {
	t := &page.Table{Columns: []string{"what", "ours", "other", "ratio", "quartiles", "target", ""}}
	for _, c := range list {
		target, verdict := "", ""
		if c.Target > 0 {
			target, verdict = fmt.Sprintf("%.2f", c.Target), page.Verdict(c.met())
		}
		t.Rows = append(t.Rows, []string{
			c.Name, milliseconds(c.A), milliseconds(c.B), ratio(c.Ratio), fmt.Sprintf("%.2f to %.2f", c.Low, c.High), target, verdict,
		})
		for i, name := range c.PartNames {
			part := c.Parts[i+1] // the first one is the same for both
			t.Rows = append(t.Rows, []string{"of these: " + name, milliseconds(part[0]), milliseconds(part[1]), ratio(part[0] / part[1]), "", "", ""})
		}
	}
	return t
}

func cpuTable(list []precision.Series) *page.Table {
	t := &page.Table{Columns: []string{"where", "limit", "used", "used / limit", "worst", "runs", "without the limit", "target", ""}}
	for _, s := range list {
		t.Rows = append(t.Rows, []string{
			s.Place, rate(s.Unit, s.Limit), rate(s.Unit, stats.Median(s.Kernel)), fine(s.Ratio()), fine(s.Worst()),
			fmt.Sprint(len(s.Kernel)), rate(s.Unit, s.Free), band(s.Tolerance), page.Verdict(s.Met()),
		})
	}
	return t
}

func ioTable(list []precision.Series) *page.Table {
	t := &page.Table{Columns: []string{
		"file system", "what", "limit", "kernel's count", "program's count", "kernel / limit", "worst", "program / limit", "runs", "without the limit", "target", "",
	}}
	for _, s := range list {
		t.Rows = append(t.Rows, []string{
			s.Place, s.What, rate(s.Unit, s.Limit), rate(s.Unit, stats.Median(s.Kernel)), rate(s.Unit, stats.Median(s.Clock)),
			fine(s.Ratio()), fine(s.Worst()), fine(s.ClockRatio()),
			fmt.Sprint(len(s.Kernel)), rate(s.Unit, s.Free), band(s.Tolerance), page.Verdict(s.Met()),
		})
	}
	return t
}

func neighbourTable(list []precision.Neighbour) *page.Table {
	t := &page.Table{Columns: []string{"file system", "limit of the hog", "the hog wrote", "commits", "p50", "p99", "longest"}}
	for _, n := range list {
		hog, wrote := n.Hog, rate(precision.Bytes, n.HogRate)
		if n.HogRate == 0 {
			hog, wrote = "no hog", ""
		}
		t.Rows = append(t.Rows, []string{
			n.Place, hog, wrote, fmt.Sprint(len(n.Commits)),
			milliseconds(stats.Quantile(n.Commits, 0.5)), milliseconds(stats.Quantile(n.Commits, 0.99)), milliseconds(stats.Quantile(n.Commits, 1)),
		})
	}
	return t
}

// misses says in a sentence how many limits are where they should be, and names
// those that are not.
func misses(list []precision.Series) string {
	var missed []string
	for _, s := range list {
		if !s.Met() {
			missed = append(missed, miss(s))
		}
	}
	if len(missed) == 0 {
		return fmt.Sprintf("All %d limits meet their target.", len(list))
	}
	return fmt.Sprintf("%d of %d limits meet their target. Not: %s.", len(list)-len(missed), len(list), strings.Join(missed, ", "))
}

// miss says which limit does not meet its target, and why.
func miss(s precision.Series) string {
	what := s.What
	if s.Unit == precision.CPUs {
		what = rate(s.Unit, s.Limit)
	}
	why := fine(s.Ratio()) + " by the kernel's count"
	if len(s.Clock) > 0 {
		why += ", " + fine(s.ClockRatio()) + " by the program's"
	}
	if !s.Holds() {
		why = "not faster without the limit"
	}
	return fmt.Sprintf("%s on %s (%s)", what, s.Place, why)
}

// chartOf draws the limits: those of the CPU, those of each file system, and those
// of the supervisor.
func chartOf(host, guest results) string {
	cpu := chart.Group{Title: "CPU time"}
	for _, s := range slices.Concat(host.CPU, guest.CPU) {
		cpu.Bars = append(cpu.Bars, barOf(rate(s.Unit, s.Limit)+", "+s.Place, s))
	}
	groups := []chart.Group{cpu}
	for _, s := range slices.Concat(guest.IO, host.IO) {
		if last := groups[len(groups)-1]; last.Title != s.Place {
			groups = append(groups, chart.Group{Title: s.Place})
		}
		last := &groups[len(groups)-1]
		last.Bars = append(last.Bars, barOf(s.What, s))
	}
	if s := host.Supervisor; s != nil {
		group := chart.Group{Title: "Enforced by the supervisor"}
		for _, cpu := range s.CPU {
			group.Bars = append(group.Bars, barOf(rate(cpu.Unit, cpu.Limit), cpu))
		}
		for _, io := range s.IO {
			group.Bars = append(group.Bars, barOf(io.What, io))
		}
		groups = append(groups, group)
	}
	return chart.SVG("Measured rate / limit: median (bar), worst run (tick), target (green)", groups)
}

func barOf(label string, s precision.Series) chart.Bar {
	return chart.Bar{Label: label, Value: s.Ratio(), Worst: s.Worst(), Tolerance: s.Tolerance, Met: s.Met()}
}

func milliseconds(seconds float64) string { return fmt.Sprintf("%.1f ms", seconds*1e3) }
func mebibytes(bytes float64) string      { return fmt.Sprintf("%.1f MiB", bytes/(1<<20)) }
func ratio(r float64) string              { return fmt.Sprintf("%.2f", r) }
func fine(r float64) string               { return fmt.Sprintf("%.3f", r) }
func band(tolerance float64) string       { return fmt.Sprintf("%.2f to %.2f", 1-tolerance, 1+tolerance) }

// rate is a rate for a person.
func rate(unit precision.Unit, r float64) string {
	switch unit {
	case precision.CPUs:
		return fmt.Sprintf("%.3g CPU", r)
	case precision.Bytes:
		return fmt.Sprintf("%.1f MiB/s", r/(1<<20))
	default:
		return fmt.Sprintf("%.0f/s", r)
	}
}

// parts are the marks that the page has to have.
var parts = []string{"machine", "startup", "shim", "cpu", "io", "neighbour", "supervisor"}

// checkPage returns an error if the numbers cannot be put into the page.
func checkPage() error {
	data, err := readPage()
	if err != nil {
		return err
	}
	for _, name := range parts {
		if _, err := page.Replace(data, name, ""); err != nil {
			return fmt.Errorf("%s: %w", pageFile, err)
		}
	}
	return nil
}

func readPage() ([]byte, error) {
	data, err := os.ReadFile(pageFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not there: run this in the root of the project", pageFile)
	}
	return data, err
}

// writePage puts the sections into the page, and writes the chart.
func writePage(list []page.Section, svg string) error {
	data, err := readPage()
	if err != nil {
		return err
	}
	for _, s := range list {
		if data, err = page.Replace(data, s.Name, s.Markdown()); err != nil {
			return fmt.Errorf("%s: %w", pageFile, err)
		}
	}
	return errors.Join(os.WriteFile(pageFile, data, 0o644), os.WriteFile(chartFile, []byte(svg), 0o644))
}
