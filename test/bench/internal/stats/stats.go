// Package stats has the few numbers that the benchmarks publish about many runs.
package stats

import (
	"cmp"
	"math"
	"slices"
)

// Quantile returns the value below or at which a part q of all values lies, from
// 0 to 1, by the nearest rank: it is always one that was measured. Without
// values it is zero.
func Quantile[T cmp.Ordered](values []T, q float64) T {
	if len(values) == 0 {
		var none T
		return none
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Median is the half quantile.
func Median[T cmp.Ordered](values []T) T { return Quantile(values, 0.5) }

// Farthest returns the value that is farthest from a goal, zero without values.
func Farthest(values []float64, goal float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.MaxFunc(values, func(a, b float64) int {
		return cmp.Compare(math.Abs(a-goal), math.Abs(b-goal))
	})
}
