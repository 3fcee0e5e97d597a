package precision

import (
	"fmt"
	"io"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
)

// Meter measures on one machine.
type Meter struct {
	Runtime *sandbox.Runtime
	Place   string // the machine, for a person: "this host"
	Runs    int    // of each series
	// Work is about how long one run of an I/O limit takes.
	Work time.Duration
	Log  io.Writer // what is going on

	// What a limit has to hold within, as a part of it.
	CPUTolerance, IOTolerance float64
	// BytesOnly leaves out limits of operations.
	BytesOnly bool
}

func (m *Meter) logf(format string, args ...any) {
	fmt.Fprintf(m.Log, format+"\n", args...)
}
