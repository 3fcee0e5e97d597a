// Package result is what agentbox tells about a sandbox: the contract that
// people and programs read, and the store that keeps it after the container is
// gone.
package result

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// Door says how a sandbox was started.
type Door string

// The doors.
const (
	DoorRuntime Door = "runtime" // agentbox-runtime in the place of runc
	DoorShim    Door = "shim"    // containerd-shim-agentbox-v1
)

// Result describes one sandbox, live or ended. Its JSON is a contract: fields
// are added, never renamed.
type Result struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"` // the engine's name, where it has one
	Status    verdict.Status `json:"status"`
	ErrorCode verdict.Code   `json:"error_code"`
	Message   string         `json:"message"`
	Retryable bool           `json:"retryable"`

	ExitCode   *int               `json:"exit_code"` // null: not known, or still running
	Signal     *int               `json:"signal"`    // null: not known; 0: no signal
	ExitSource verdict.ExitSource `json:"exit_source"`

	Scope   limits.Scope `json:"scope"` // what dies when memory runs out
	Door    Door         `json:"door"`
	Mode    limits.Mode  `json:"mode"`
	Profile string       `json:"profile,omitempty"`

	CreatedAt  time.Time  `json:"created_at"`
	FinishedAt *time.Time `json:"finished_at"` // when agentbox learned of the end; null: live

	// Enforcement has one entry for each dimension, and by their keys one more
	// for memory_high and for each io key that has a limit. Rates have no single
	// number: the entry of io has none, and lists the disks.
	Enforcement map[string]Enforcement `json:"enforcement"`
	Usage       *Usage                 `json:"usage"` // null: it could not be read, a warning says why
	Events      Events                 `json:"events"`
	Warnings    []string               `json:"warnings"`
	Evidence    verdict.Evidence       `json:"evidence"`

	// Previous is the last ended run of the same id.
	Previous *Result `json:"previous,omitempty"`

	Nonce string `json:"nonce"` // tells runs of the same id apart; sorts by time
}

// MarshalJSON writes the contract: objects and lists that have nothing in them
// are empty and not null.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result // without this method
	if r.Enforcement == nil {
		r.Enforcement = map[string]Enforcement{}
	}
	if r.Warnings == nil {
		r.Warnings = []string{}
	}
	if r.ExitSource == "" {
		r.ExitSource = verdict.ExitUnknown
	}
	if r.Evidence.Exit.Source == "" {
		r.Evidence.Exit.Source = verdict.ExitUnknown
	}
	return json.Marshal(plain(r))
}

// Enforcement is the truth about one dimension.
type Enforcement struct {
	Requested *json.Number    `json:"requested"` // null: the container did not ask, or asked for no limit
	Effective *json.Number    `json:"effective"` // what holds; null: no limit
	Unit      string          `json:"unit"`      // bytes, tasks, cpus, files, bytes/s, operations/s; empty for io
	Source    limits.Source   `json:"source"`
	Enforcer  limits.Enforcer `json:"enforcer"`
	Mechanism string          `json:"mechanism"`
	Owner     string          `json:"owner"`     // self, or the cgroup above that is tighter; empty for io where its keys differ
	Precision string          `json:"precision"` // exact, by how much it may differ, per process, or none
	Detail    string          `json:"detail"`
	Disks     []Disk          `json:"disks,omitempty"` // of io: those behind the sandbox's files
}

// Number is a limit; nil: none.
type Number = *json.Number

// Disk is what one disk gives the sandbox. A rate is null where there is no
// limit, or where it could not be read; the detail of io says that.
type Disk struct {
	Device     limits.Device `json:"device"` // "8:0"
	Name       string        `json:"name"`   // the kernel's: "sda"
	Places     []string      `json:"places"` // the sandbox's paths whose files are on it: the first of them
	MorePlaces int           `json:"more_places,omitempty"`
	Filesystem string        `json:"filesystem"` // that takes its writes there
	Counted    string        `json:"counted"`    // which I/O the kernel counts there, for a person
	ReadBPS    Number        `json:"read_bps"`   // bytes per second
	WriteBPS   Number        `json:"write_bps"`
	ReadIOPS   Number        `json:"read_iops"` // operations per second
	WriteIOPS  Number        `json:"write_iops"`
}

// Usage is what the sandbox used. A field is null where the kernel does not
// count it.
type Usage struct {
	MemoryPeakBytes *int64 `json:"memory_peak_bytes"`
	PidsPeak        *int64 `json:"pids_peak"`
	CPUUsec         *int64 `json:"cpu_usec"`
	// Current use, of a live sandbox only.
	MemoryBytes *int64 `json:"memory_bytes,omitempty"`
	Pids        *int64 `json:"pids,omitempty"`
}

// Events counts what happened to the sandbox, 0 where nothing was counted.
type Events struct {
	OOMKill      int64 `json:"oom_kill"`       // over-counts: a flag, not a number
	OOMGroupKill int64 `json:"oom_group_kill"` // since Linux 5.17
	PidsMax      int64 `json:"pids_max"`       // forks that were refused
	MemoryMax    int64 `json:"memory_max"`     // times usage was held at memory.max
	CPUThrottled int64 `json:"cpu_throttled"`  // periods in which cpu.max held it back
}

// EventsOf sums the evidence up.
func EventsOf(ev verdict.Evidence) Events {
	var e Events
	for _, m := range []*verdict.MemoryEvents{ev.Memory, ev.MemoryTree} {
		if m != nil { // the tree counts the sandbox's own too
			e.OOMKill = max(e.OOMKill, m.OOMKill)
			e.OOMGroupKill = max(e.OOMGroupKill, m.OOMGroupKill)
			e.MemoryMax = max(e.MemoryMax, m.Max)
		}
	}
	if ev.PidsMax != nil {
		e.PidsMax = *ev.PidsMax
	}
	if ev.Throttled != nil {
		e.CPUThrottled = *ev.Throttled
	}
	return e
}

// Conclude fills in the verdict.
func (r *Result) Conclude(v verdict.Verdict, ev verdict.Evidence, at time.Time) {
	r.Status, r.ErrorCode, r.Message, r.Retryable = v.Status, v.Code, v.Message, v.Retryable
	r.ExitCode, r.Signal, r.ExitSource = v.ExitCode, v.Signal, ev.Exit.Source
	r.Evidence, r.Events, r.FinishedAt = ev, EventsOf(ev), &at
}

// NumberOf writes a value in the unit of its key: a whole number of bytes, tasks
// or files, or CPUs with a fraction. nil: no limit.
func NumberOf(info limits.KeyInfo, v limits.Value) *json.Number {
	if v.None {
		return nil
	}
	n := json.Number(strconv.FormatInt(v.N, 10))
	if info.Kind == limits.CPUs {
		n = json.Number(info.String(v))
	}
	return &n
}

// UnitOf names the unit of a key's numbers.
func UnitOf(info limits.KeyInfo) string {
	switch info.Key {
	case limits.KeyIOReadBPS, limits.KeyIOWriteBPS:
		return "bytes/s"
	case limits.KeyIOReadIOPS, limits.KeyIOWriteIOPS:
		return "operations/s"
	}
	switch info.Kind {
	case limits.Bytes, limits.Dumps:
		return "bytes"
	case limits.CPUs:
		return "cpus"
	case limits.Duration:
		return "nanoseconds"
	case limits.Files:
		return "files"
	}
	if info.Key == limits.KeyPids {
		return "tasks"
	}
	return "count"
}
