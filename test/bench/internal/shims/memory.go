package shims

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/agentbox/agentbox/test/bench/internal/stats"
)

// Memory is what a process takes, in bytes.
type Memory struct {
	PSS       int64 `json:"pss"`       // its pages, those shared with n processes counted as 1/n
	Anonymous int64 `json:"anonymous"` // those of no file, which no two shims share
}

// parseRollup reads /proc/PID/smaps_rollup (Documentation/filesystems/proc.rst of
// the kernel). A field that is missing is an error: zero would look like a very
// good result.
func parseRollup(data []byte) (m Memory, err error) {
	wanted := map[string]*int64{"Pss": &m.PSS, "Anonymous": &m.Anonymous}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		field := wanted[name]
		if field == nil {
			continue
		}
		words := strings.Fields(rest)
		if len(words) != 2 || words[1] != "kB" {
			return Memory{}, fmt.Errorf("smaps_rollup: %q is not a number of kB", strings.TrimSpace(line))
		}
		kib, err := strconv.ParseUint(words[0], 10, 43) // so that bytes fit
		if err != nil {
			return Memory{}, fmt.Errorf("smaps_rollup: %q: %w", strings.TrimSpace(line), err)
		}
		*field = int64(kib) << 10
		delete(wanted, name)
	}
	for name := range wanted {
		return Memory{}, fmt.Errorf("smaps_rollup has no line %s", name)
	}
	return m, nil
}

// Sample is one shim: with one container, and with Further more.
type Sample struct {
	One Memory `json:"one"`
	Pod Memory `json:"pod"`
}

// Pair is a shim of agentbox and one of containerd, at the same time.
type Pair struct {
	Agentbox Sample `json:"agentbox"`
	Runc     Sample `json:"runc"`
}

// Figure is a number of bytes of both shims: the medians, and the median of the
// ratios with its quartiles.
type Figure struct {
	Agentbox, Runc   float64
	Ratio, Low, High float64
}

// FigureOf sums up what pick takes from each sample. The other one is the
// divisor: a pair in which it is zero or less has no ratio, and is left out of
// the ratios only.
func FigureOf(pairs []Pair, pick func(Sample) float64) Figure {
	var ours, theirs, ratios []float64
	for _, p := range pairs {
		a, b := pick(p.Agentbox), pick(p.Runc)
		ours, theirs = append(ours, a), append(theirs, b)
		if b > 0 {
			ratios = append(ratios, a/b)
		}
	}
	return Figure{
		Agentbox: stats.Median(ours), Runc: stats.Median(theirs),
		Ratio: stats.Median(ratios), Low: stats.Quantile(ratios, 0.25), High: stats.Quantile(ratios, 0.75),
	}
}

// Further is by how many containers a pod is larger than one container.
const Further = 8

// PSSOfOne is that of the shim of one container.
func PSSOfOne(s Sample) float64 { return float64(s.One.PSS) }

// AnonymousOfOne is that of the shim of one container.
func AnonymousOfOne(s Sample) float64 { return float64(s.One.Anonymous) }

// PSSOfPod is that of the shim of all containers.
func PSSOfPod(s Sample) float64 { return float64(s.Pod.PSS) }

// PSSPerFurther is what each further container of a pod adds.
func PSSPerFurther(s Sample) float64 { return float64(s.Pod.PSS-s.One.PSS) / Further }
