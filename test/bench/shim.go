package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/agentbox/agentbox/test/bench/internal/page"
	"github.com/agentbox/agentbox/test/bench/internal/shims"
)

// targetShim is the bound of the memory of a shim, compared with containerd's own.
const targetShim = 1.15

// shimMemory is what the shims of one machine take.
type shimMemory struct {
	Place      string       `json:"place"`
	Containerd string       `json:"containerd"` // its version, which is that of its shim
	Pairs      []shims.Pair `json:"pairs"`
}

func measureShims(o options, dir, place string) (*shimMemory, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	m := shims.Meter{Bin: o.bin, Dir: dir}
	for name, path := range map[string]*string{"runc": &m.Runc, "busybox": &m.Busybox} {
		var err error
		if *path, err = exec.LookPath(name); err != nil {
			return nil, err
		}
	}
	version, err := exec.Command("containerd", "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("containerd --version: %w", err)
	}
	progress("%d shims of each kind, which idle twice for half a minute", o.runs)
	pairs, err := m.Measure(o.runs)
	return &shimMemory{Place: place, Containerd: containerdVersion(string(version)), Pairs: pairs}, err
}

// containerdVersion reads "containerd github.com/containerd/containerd v2.1.4 COMMIT",
// without what a distribution adds to the version; empty where that is not there.
func containerdVersion(out string) string {
	words := strings.Fields(out)
	if len(words) < 3 {
		return ""
	}
	version := strings.TrimPrefix(words[2], "v")
	if end := strings.IndexAny(version, "~+-"); end >= 0 {
		version = version[:end]
	}
	return version
}

// present are the machines that were measured.
func present(all ...*shimMemory) (list []*shimMemory) {
	for _, m := range all {
		if m != nil {
			list = append(list, m)
		}
	}
	return list
}

func shimTable(list []*shimMemory) *page.Table {
	t := &page.Table{Columns: []string{"where", "containerd", "what", "ours", "containerd's", "ratio", "quartiles", "pairs", "target", ""}}
	figures := []struct {
		what   string
		pick   func(shims.Sample) float64
		target float64
	}{
		{"PSS, one container", shims.PSSOfOne, targetShim},
		{"of these: anonymous", shims.AnonymousOfOne, 0},
		{fmt.Sprintf("PSS, a pod of %d", 1+shims.Further), shims.PSSOfPod, targetShim},
		{"of these: each further container", shims.PSSPerFurther, 0},
	}
	for _, m := range list {
		for _, figure := range figures {
			f := shims.FigureOf(m.Pairs, figure.pick)
			target, verdict := "", ""
			if figure.target > 0 {
				target, verdict = ratio(figure.target), page.Verdict(f.Ratio <= figure.target)
			}
			t.Rows = append(t.Rows, []string{
				m.Place, m.Containerd, figure.what, kibibytes(f.Agentbox), kibibytes(f.Runc), ratio(f.Ratio),
				fmt.Sprintf("%.2f to %.2f", f.Low, f.High), fmt.Sprint(len(m.Pairs)), target, verdict,
			})
		}
	}
	return t
}

func kibibytes(bytes float64) string { return fmt.Sprintf("%.0f KiB", bytes/1024) }
