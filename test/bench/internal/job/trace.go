package job

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// A trace is what a process that grows leaves behind when it is killed: a file
// that it has mapped, of numbers of 8 bytes in the order of this machine, one for
// each step: when it was done, in nanoseconds of CLOCK_MONOTONIC, or 0.

// TraceSize is the size in bytes of the trace of a growth.
func (j Job) TraceSize() int { return 8 * int(j.Bytes/j.Block) }

// ParseTrace reads what was left of a trace: when each step was done, on
// CLOCK_MONOTONIC, in order.
func ParseTrace(data []byte) (steps []time.Duration, err error) {
	if len(data)%8 != 0 {
		return nil, fmt.Errorf("a trace of %d bytes", len(data))
	}
	for at := 0; at < len(data); at += 8 {
		if moment := time.Duration(binary.NativeEndian.Uint64(data[at:])); moment > 0 {
			steps = append(steps, moment)
		}
	}
	slices.Sort(steps)
	return steps, nil
}
