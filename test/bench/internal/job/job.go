// Package job is what the program in a sandbox is told to do, and what it did:
// lines of JSON on its standard input and output.
package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Kind is a sort of work.
type Kind string

// Kinds of work.
const (
	Spin  Kind = "spin"  // compute in Threads threads, for Seconds
	Read  Kind = "read"  // calls of Block bytes
	Write Kind = "write" // the same
	Fork  Kind = "fork"  // have Processes children, which wait
	Grow  Kind = "grow"  // take Bytes of memory, and keep them
)

// Job is one piece of work. A Read or Write job ends after Bytes, or with Bytes
// 0 after Seconds.
type Job struct {
	Kind    Kind    `json:"kind"`
	Seconds float64 `json:"seconds,omitempty"`
	Threads int     `json:"threads,omitempty"`

	File   string `json:"file,omitempty"`
	Direct bool   `json:"direct,omitempty"` // O_DIRECT
	Block  int64  `json:"block,omitempty"`  // bytes of one call
	Bytes  int64  `json:"bytes,omitempty"`  // of all calls
	// Size is that of the file, where calls start again at its beginning; 0:
	// there is no such place.
	Size int64 `json:"size,omitempty"`
	// Fsync says after how many bytes fsync(2) is called; 0: never. It is called
	// at the end too.
	Fsync int64 `json:"fsync,omitempty"`
	// Pause is between calls, in seconds.
	Pause float64 `json:"pause,omitempty"`

	Processes int `json:"processes,omitempty"`
	// First is how many of the Bytes of memory are taken at once; the others at
	// Rate bytes per second, or with Rate 0 as fast as Threads can. Each step has
	// Block bytes, and goes into the Trace in File, if there is one.
	First int64 `json:"first,omitempty"`
	Rate  int64 `json:"rate,omitempty"`
	Huge  bool  `json:"huge,omitempty"` // pages of 2 MiB
}

// Outcome is what was done.
type Outcome struct {
	Calls   int64   `json:"calls"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"` // by the monotonic clock, with every fsync
	// Commits has, for each fsync, the seconds from the first write that it was
	// about to its end.
	Commits []float64 `json:"commits,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// Check returns an error for a job that cannot be done.
func (j Job) Check() error {
	switch {
	case j.Kind == Spin && j.Threads > 0 && j.Seconds > 0, j.Kind == Fork && j.Processes > 0:
		return nil
	case j.Kind == Grow:
		if j.Threads < 1 || j.Block < 1 || j.Bytes < j.Block || j.Bytes%j.Block != 0 || j.First < 0 || j.Rate < 0 {
			return fmt.Errorf("no growth: %d bytes in steps of %d, %d threads", j.Bytes, j.Block, j.Threads)
		}
		return nil
	case j.Kind != Read && j.Kind != Write:
		return fmt.Errorf("no job: kind %q, %d threads, %v s", j.Kind, j.Threads, j.Seconds)
	case j.Block <= 0, j.Bytes < 0, j.Size < 0, j.Fsync < 0, j.Seconds < 0, j.Pause < 0:
		return fmt.Errorf("a size or time of the %s job is out of range", j.Kind)
	case j.Size != 0 && j.Size < j.Block:
		return fmt.Errorf("calls of %d bytes do not fit into a file of %d", j.Block, j.Size)
	case j.Bytes == 0 && j.Seconds == 0:
		return fmt.Errorf("the %s job has no end", j.Kind)
	}
	return nil
}

// Position is where in the file call number i starts.
func (j Job) Position(i int64) int64 {
	if j.Size == 0 {
		return i * j.Block
	}
	return i % (j.Size / j.Block) * j.Block
}

// Serve does the jobs that come in, one after the other, until there are no
// more. A job that fails is an Outcome with an Error.
func Serve(in io.Reader, out io.Writer, do func(Job) (Outcome, error)) error {
	jobs, outcomes := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var j Job
		if err := jobs.Decode(&j); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a job: %w", err)
		}
		o, err := do(j)
		if err != nil {
			o.Error = err.Error()
		}
		if err := outcomes.Encode(o); err != nil {
			return fmt.Errorf("tell the outcome: %w", err)
		}
	}
}

// Client gives jobs to a program that serves them.
type Client struct {
	jobs     *json.Encoder
	outcomes *json.Decoder
}

// NewClient returns a client that writes jobs and reads outcomes.
func NewClient(jobs io.Writer, outcomes io.Reader) *Client {
	return &Client{jobs: json.NewEncoder(jobs), outcomes: json.NewDecoder(outcomes)}
}

// Do has a job done and waits for its end.
func (c *Client) Do(j Job) (Outcome, error) {
	if err := j.Check(); err != nil {
		return Outcome{}, err
	}
	if err := c.jobs.Encode(j); err != nil {
		return Outcome{}, fmt.Errorf("give the %s job: %w", j.Kind, err)
	}
	var o Outcome
	if err := c.outcomes.Decode(&o); err != nil {
		return Outcome{}, fmt.Errorf("wait for the %s job: %w", j.Kind, err)
	}
	if o.Error != "" {
		return Outcome{}, fmt.Errorf("the %s job: %s", j.Kind, o.Error)
	}
	return o, nil
}
