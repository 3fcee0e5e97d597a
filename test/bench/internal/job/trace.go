package job

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// A trace is what a process that grows leaves behind when it is killed: a file
// that it has mapped, of numbers of 8 bytes in the order of this machine. The
// first is the memory that it had before, each other one the moment when a step
// was done: nanoseconds of CLOCK_MONOTONIC, or 0 for one that was not.

// TraceSize is the size in bytes of the trace of a growth.
func (j Job) TraceSize() int { return 8 * int(1+j.Bytes/j.Block) }

// Trace is how a process has grown.
type Trace struct {
	Before int64           // bytes that it had
	Steps  []time.Duration // when each step was done, on CLOCK_MONOTONIC, in order
}

// ParseTrace reads what was left of a trace.
func ParseTrace(data []byte) (t Trace, err error) {
	if len(data) < 8 || len(data)%8 != 0 {
		return t, fmt.Errorf("a trace of %d bytes", len(data))
	}
	t.Before = int64(binary.NativeEndian.Uint64(data))
	for at := 8; at < len(data); at += 8 {
		if moment := time.Duration(binary.NativeEndian.Uint64(data[at:])); moment > 0 {
			t.Steps = append(t.Steps, moment)
		}
	}
	slices.Sort(t.Steps)
	return t, nil
}
