package doctor

import (
	"encoding/json"

	"github.com/agentbox/agentbox/pkg/limits"
)

// Report is what doctor says about a host. Its JSON is a contract: fields are
// added, never renamed.
type Report struct {
	// Ready says that every required dimension is enforced and that nothing here
	// keeps a container from starting.
	Ready    bool               `json:"ready"`
	Required []limits.Dimension `json:"required"`
	Missing  []Missing          `json:"missing"` // of Required, those that are not enforced

	Kernel        string              `json:"kernel"` // its release
	Cgroup        CgroupReport        `json:"cgroup"`
	Configuration ConfigurationReport `json:"configuration"`
	Runtime       RuntimeReport       `json:"runtime"`
	Supervisor    SupervisorReport    `json:"supervisor"`

	// Dimensions has an entry for each dimension; none when the configuration
	// cannot be used by any container.
	Dimensions map[limits.Dimension]Dimension `json:"dimensions"`
	GroupKill  GroupKill                      `json:"group_kill"`
	// Disks are those behind the folders of the engines, or those that the
	// configuration names (io_device).
	Disks    []limits.BlockDevice `json:"disks"`
	Findings []Finding            `json:"findings"`
}

// Missing is a required dimension that is not enforced, by the rule of strict
// mode.
type Missing struct {
	Dimension limits.Dimension `json:"dimension"`
	Reason    string           `json:"reason"`
}

// CgroupReport says how cgroups are arranged and where a container was asked
// for.
type CgroupReport struct {
	Version int    `json:"version"` // 0, 1 or 2, as runc sees it
	Hybrid  bool   `json:"hybrid"`  // version 1, and a cgroup v2 beside it
	Driver  string `json:"driver"`  // cgroupfs or systemd
	// Folder is the deepest one that exists where a container would be placed, on
	// version 2; empty otherwise.
	Folder string `json:"folder"`
}

// ConfigurationReport names the configuration.
type ConfigurationReport struct {
	Path    string      `json:"path"`
	Found   bool        `json:"found"` // false: built-in values
	Mode    limits.Mode `json:"mode"`
	Problem string      `json:"problem"` // why the file cannot be used; empty: it can
}

// RuntimeReport names the low-level runtime.
type RuntimeReport struct {
	Name    string `json:"name"`    // what it calls itself, or what the configuration does
	Path    string `json:"path"`    // empty: not found
	Version string `json:"version"` // empty: not known
}

// SupervisorReport says whether agentbox's supervisor can enforce limits here, in
// place of the kernel.
type SupervisorReport struct {
	Available bool   `json:"available"`
	Program   string `json:"program"` // empty: none
	Reason    string `json:"reason"`  // why not, or what it cannot enforce; empty: it can do all it is for
	// Stops is by what it holds a sandbox back: cgroup.freeze, freezer.state, or
	// SIGSTOP where there is no freezer. Empty: not available.
	Stops string `json:"stops"`
}

// Answer says whether the limits of a dimension hold.
type Answer string

// The answers.
const (
	Enforced    Answer = "yes"         // by the kernel, for the sandbox as a whole
	Supervised  Answer = "supervised"  // by agentbox's supervisor, for the sandbox as a whole
	PerProcess  Answer = "per_process" // by the kernel, for each process on its own
	Partly      Answer = "partly"      // some of its limits, or in some places only
	NotEnforced Answer = "no"
	NotLimited  Answer = "not_limited" // the configuration sets no limit
)

// Dimension is the row of one dimension.
type Dimension struct {
	Answer   Answer  `json:"answer"`
	Required bool    `json:"required"`
	Limits   []Limit `json:"limits"` // those that the configuration sets
	Reason   string  `json:"reason"` // for a person: why it does not hold; empty: it does
	Detail   string  `json:"detail"` // for a person: all that a container's report would say
	Fix      *Fix    `json:"fix"`    // null: none is known, or none is needed
}

// Limit is one key of a dimension. Its numbers, units, enforcers and mechanisms
// are those that a result has under enforcement.
type Limit struct {
	Key       limits.Key      `json:"key"`
	Effective json.Number     `json:"effective"`
	Unit      string          `json:"unit"`
	Enforcer  limits.Enforcer `json:"enforcer"`
	Mechanism string          `json:"mechanism"`
	Precision string          `json:"precision"` // of the supervisor: how exact it is; empty for the others
}

// GroupKill says whether a sandbox that runs out of memory ends as one.
type GroupKill struct {
	Answer    Answer `json:"answer"` // yes, supervised, no, or not_limited where the configuration does not want it
	Mechanism string `json:"mechanism"`
	Reason    string `json:"reason"` // why not
	Fix       *Fix   `json:"fix"`
}

// Fix is what to do about something.
type Fix struct {
	Text string `json:"text"` // one sentence, without a full stop
	// Lines are to be pasted: into a root shell, or into the file that Text names.
	Lines []string `json:"lines"`
}

// Level says how bad a finding is.
type Level string

// The levels.
const (
	Error   Level = "error"   // no container can start
	Warning Level = "warning" // a risk for the host, or something is lost
	Info    Level = "info"    // worth knowing
)

// Finding is what one check found.
type Finding struct {
	Check string `json:"check"` // its name
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Fix   *Fix   `json:"fix"`
}

// MarshalJSON writes the contract: lists that have nothing in them are empty and
// not null.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report // without this method
	r.Required = orEmpty(r.Required)
	r.Missing = orEmpty(r.Missing)
	r.Disks = orEmpty(r.Disks)
	r.Findings = orEmpty(r.Findings)
	if r.Dimensions == nil {
		r.Dimensions = map[limits.Dimension]Dimension{}
	}
	return json.Marshal(plain(r))
}

// MarshalJSON writes an empty list for no limits.
func (d Dimension) MarshalJSON() ([]byte, error) {
	type plain Dimension
	d.Limits = orEmpty(d.Limits)
	return json.Marshal(plain(d))
}

// MarshalJSON writes an empty list for no lines.
func (f Fix) MarshalJSON() ([]byte, error) {
	type plain Fix
	f.Lines = orEmpty(f.Lines)
	return json.Marshal(plain(f))
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
