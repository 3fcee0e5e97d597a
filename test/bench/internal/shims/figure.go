package shims

import (
	"github.com/agentbox/agentbox/test/bench/internal/pss"
	"github.com/agentbox/agentbox/test/bench/internal/stats"
)

// Sample is one shim: with one container, and with Further more.
type Sample struct {
	One pss.Memory `json:"one"`
	Pod pss.Memory `json:"pod"`
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
