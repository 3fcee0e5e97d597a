package limits

// Source says where a planned value came from.
type Source string

// The sources. A profile is SourceProfile; its name is in Plan.Profile.
const (
	SourceDefault    Source = "default"
	SourceProfile    Source = "profile"
	SourceSpec       Source = "spec"
	SourceAnnotation Source = "annotation"
	SourceCeiling    Source = "ceiling"   // asked for more, or for everything
	SourceInherited  Source = "inherited" // bounded by what the caller of the runtime has
)

// Entry is the plan for one key.
type Entry struct {
	Key       Key       `json:"key"`
	Dimension Dimension `json:"dimension"`
	Requested *Value    `json:"requested,omitempty"` // what the container asked for; nil: nothing
	Value     Value     `json:"value"`               // what is to hold; None: no limit
	Source    Source    `json:"source"`
	Enforcer  Enforcer  `json:"enforcer"`
	Mechanism string    `json:"mechanism,omitempty"`
	Precision string    `json:"precision,omitempty"` // of the supervisor: how exact it is, for a person
	Detail    string    `json:"detail,omitempty"`    // for a person: why lowered, why not enforced
}

// Applies reports whether the plan sets a limit for this key and something on
// this host enforces it.
func (e Entry) Applies() bool { return !e.Value.None && e.Enforcer != EnforcerNone }

// ByKernel reports whether the kernel enforces a limit of this key for the
// sandbox as a whole.
func (e Entry) ByKernel() bool { return !e.Value.None && e.Enforcer == EnforcerKernel }

// Plan is the outcome of Resolve.
type Plan struct {
	Mode          Mode        `json:"mode"`
	StrictRequire []Dimension `json:"strict_require,omitempty"`
	CgroupVersion int         `json:"cgroup_version"`
	Systemd       bool        `json:"systemd,omitempty"` // the container's cgroup is a unit of systemd, or below one
	Profile       string      `json:"profile,omitempty"`
	Entries       []Entry     `json:"entries"` // one for each of Keys, in that order

	// CPUPeriod is the period, in microseconds, over which the CPU limit
	// holds; CPUQuota the CPU time in it. 0: no CPU limit.
	CPUPeriod int64 `json:"cpu_period,omitempty"`
	CPUQuota  int64 `json:"cpu_quota,omitempty"`

	IO IOPlan `json:"io"`

	OOMScope  Scope `json:"oom_scope"`
	GroupKill bool  `json:"group_kill"` // memory.oom.group is to be 1
	// UnitGroupKill says that GroupKill is to be told to systemd too, as OOMPolicy=kill
	// of the container's unit.
	UnitGroupKill bool `json:"unit_group_kill,omitempty"`
	OOMScoreAdj   int  `json:"oom_score_adj"`

	Warnings []string `json:"warnings,omitempty"`
}

// Entry returns the entry of a key. Every plan of Resolve has one for each key;
// for a key that is unknown the zero entry, which applies nothing, is returned.
func (p *Plan) Entry(k Key) Entry {
	if e := p.entry(k); e != nil {
		return *e
	}
	return Entry{Key: k, Value: NoLimit(), Enforcer: EnforcerNone}
}

func (p *Plan) entry(k Key) *Entry {
	for i := range p.Entries {
		if p.Entries[i].Key == k {
			return &p.Entries[i]
		}
	}
	return nil
}
