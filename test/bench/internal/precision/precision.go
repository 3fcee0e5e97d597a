// Package precision measures how exactly limits hold: the rate that a sandbox
// reached, divided by its limit. The same without the limit shows that it was
// the limit that held it.
package precision

import (
	"github.com/agentbox/agentbox/test/bench/internal/stats"
)

// Unit is what a rate counts in a second.
type Unit string

// Units of rates.
const (
	CPUs       Unit = "CPUs" // seconds of CPU time
	Bytes      Unit = "bytes"
	Operations Unit = "operations"
)

// Series is one limit, measured several times.
type Series struct {
	Place string `json:"place"` // where: a file system, a machine
	What  string `json:"what"`  // "write, direct"
	Unit  Unit   `json:"unit"`

	Limit float64 `json:"limit"` // per second, in the unit
	// Kernel has the rate of each run by the counters of the cgroup.
	Kernel []float64 `json:"kernel"`
	// Clock has the rate that the program itself counted; it has none for CPU.
	Clock []float64 `json:"clock,omitempty"`
	// Free is the rate without the limit, by the program's count if it has one.
	Free float64 `json:"free"`
	// Tolerance is how far the rate may be from the limit, as a part of it.
	Tolerance float64 `json:"tolerance"`
}

// Ratio is the median of the kernel's rates, divided by the limit.
func (s Series) Ratio() float64 { return stats.Median(s.Kernel) / s.Limit }

// ClockRatio is the same of the program's rates; zero without any.
func (s Series) ClockRatio() float64 { return stats.Median(s.Clock) / s.Limit }

// Worst is the kernel's ratio of the run that was farthest from the limit.
func (s Series) Worst() float64 { return stats.Farthest(s.Kernel, s.Limit) / s.Limit }

// Holds says whether the limit was what held the sandbox: without it, it was
// faster than the limit's tolerance allows.
func (s Series) Holds() bool { return s.Free > s.Limit*(1+s.Tolerance) }

// Met reports whether the median is where it has to be: what the kernel counts
// within the tolerance on both sides, and the bytes that the program counts not
// above it, or they would have reached the disk in the name of somebody else.
// The program may count fewer bytes, since a file system writes more than it is
// given, and other operations, since it may join and split them.
func (s Series) Met() bool {
	escaped := s.Unit == Bytes && s.ClockRatio() > 1+s.Tolerance
	return s.Holds() && !escaped && s.Ratio() >= 1-s.Tolerance && s.Ratio() <= 1+s.Tolerance
}

// Neighbour is how long a neighbour on the same file system waits until a small
// write is on the disk.
type Neighbour struct {
	Place   string    `json:"place"`
	Hog     string    `json:"hog"`      // what else is going on: "none", "no limit", "20 MiB/s"
	HogRate float64   `json:"hog_rate"` // bytes per second that it wrote, by its own count
	Commits []float64 `json:"commits"`  // seconds of each write with its fsync
}
