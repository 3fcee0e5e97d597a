package limits

// Mode says what agentbox does about a limit that cannot be enforced.
type Mode string

// The modes.
const (
	ModeAuto   Mode = "auto"   // enforce what this host can, report the rest
	ModeStrict Mode = "strict" // refuse to start without the dimensions of Policy.StrictRequire
	ModeOff    Mode = "off"    // change nothing, report what would be
)

// Scope says what dies when memory runs out.
type Scope string

// The scopes.
const (
	ScopeContainer Scope = "container" // every process of the sandbox, as one (memory.oom.group)
	ScopeExec      Scope = "exec"      // the one exec that ran away
	ScopeProcess   Scope = "process"   // the process that the kernel picks
)

// Policy is what the administrator allows.
type Policy struct {
	Mode          Mode
	StrictRequire []Dimension
	Defaults      Set            // for a container that asks for nothing
	Ceilings      Set            // the most a container may ask for; a missing key has a built-in ceiling, see Resolve
	Profiles      map[string]Set // over the defaults, picked by the container

	// Supervise lists dimensions, some of Supervisable, that the supervisor enforces
	// even where the kernel could.
	Supervise []Dimension

	// IODevices names the disks to limit in place of those that are found
	// behind the container's files: device nodes, or files on the disk that is
	// meant.
	IODevices []string

	OOMScope  Scope
	OOMScopes []Scope // what a container may ask for; OOMScope is always among them

	// OOMScoreAdjMin is the lowest oom_score_adj of a container's first
	// process, so that a sandbox is picked before the services of the host
	// (proc_pid_oom_score_adj(5)).
	OOMScoreAdjMin int

	// AllowAnnotations lists the annotations, by name or by prefix with a
	// trailing "*", that would be dropped otherwise because the low-level
	// runtime turns them into settings of the host.
	AllowAnnotations []string
}

// Sizes of the built-in policy.
const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// DefaultPolicy returns the policy of a host without a configuration file.
func DefaultPolicy() Policy {
	return Policy{
		Mode:          ModeAuto,
		StrictRequire: []Dimension{Memory, Swap, Pids, CPU},
		Defaults: Set{
			KeyMemory:     Limit(2 * gib),
			KeySwap:       Limit(0),
			KeyPids:       Limit(2048),
			KeyCPUs:       Limit(2_000_000),
			KeyIOReadBPS:  Limit(256 * mib),
			KeyIOWriteBPS: Limit(256 * mib),
			KeyDisk:       Limit(10 * gib),
			KeyInodes:     Limit(1_000_000),
			KeyOpenFiles:  {Soft: 65536, N: 524288},
			KeyCoreDumps:  Limit(0),
		},
		Ceilings: Set{},
		Profiles: map[string]Set{
			"small":   {KeyMemory: Limit(512 * mib), KeyCPUs: Limit(1_000_000), KeyPids: Limit(512), KeyDisk: Limit(2 * gib)},
			"build":   {KeyMemory: Limit(8 * gib), KeyCPUs: Limit(4_000_000), KeyPids: Limit(4096), KeyDisk: Limit(40 * gib)},
			"browser": {KeyMemory: Limit(4 * gib), KeyPids: Limit(4096)},
		},
		OOMScope:       ScopeContainer,
		OOMScopes:      []Scope{ScopeContainer},
		OOMScoreAdjMin: 500,
	}
}
