package limits

// Request is what one container asks for.
type Request struct {
	Profile string // agentbox.dev/profile; empty: none asked for

	// Spec holds what the OCI runtime specification's own fields ask for
	// (linux.resources with its unified map, process.rlimits). A value of None
	// says that the field asked for no limit in so many words (-1, "max").
	//
	// Swap is memory.swap less memory.limit, since the specification counts
	// both together.
	Spec Set

	// Annotations holds what agentbox.dev/* annotations ask for.
	Annotations Set

	// Places is where the container's files come from, and RawDisks the block
	// devices that it gets as such. DeviceRules say in order which others it may
	// open if it makes a node for them.
	Places      []Place
	RawDisks    []RawDisk
	DeviceRules []DeviceRule

	// Devices holds what the specification asks for single block devices: rates
	// of the io keys. The number may be that of a partition.
	Devices map[Device]Set

	// IOWeight says that the specification has an I/O weight, IOWeightDevices
	// for which devices it has one apart, and IOFiles which files "io.*" of
	// cgroup v2 besides io.max it wants to write. A host is asked only for what
	// is wanted.
	IOWeight        bool
	IOWeightDevices []Device
	IOFiles         []string

	// OwnPIDNamespace says that the container gets a pid namespace that no other
	// process is in: what the supervisor tells its processes by.
	OwnPIDNamespace bool

	// CPUQuota and CPUPeriod are the fields behind Spec's cpus, in
	// microseconds; 0 is not given. The period is kept when the quota is
	// lowered.
	CPUQuota, CPUPeriod int64

	// Prior is what an earlier plan recorded in a specification that was
	// rewritten before; for the rate of a disk under the name Key.On. It
	// explains values and never changes one.
	Prior map[Key]Prior

	OOMScope    Scope // empty: none asked for
	OOMScoreAdj *int  // nil: not given

	// OOMKillDisabled is linux.resources.memory.disableOOMKiller: a container
	// at its limit would hang instead of ending (cgroup v1).
	OOMKillDisabled bool

	// GroupKillOff is unified["memory.oom.group"] = "0".
	GroupKillOff bool

	// Kubernetes says that a scheduler has counted the request: one above a
	// ceiling is refused, not lowered.
	Kubernetes bool
}

// Prior is one recorded entry of an earlier plan. It holds no text, because a
// container can forge it.
type Prior struct {
	Requested *Value `json:"requested,omitempty"`
	Value     Value  `json:"value"`
	Source    Source `json:"source"`
	// Removed says that no field has the value any more, because the supervisor
	// enforces it.
	Removed bool `json:"removed,omitempty"`
}

// Place is a part of the container's file tree that comes from the host.
type Place struct {
	Path string // in the container
	// Source is a folder, a file or a device node of the host. With a Type it is
	// what a file system of that type is mounted from, for the container alone.
	Source   string
	Type     string
	Writable bool
	// Recursive says that what is mounted below Source comes with it. It can be
	// written even if the place cannot, unless RecursiveReadOnly.
	Recursive, RecursiveReadOnly bool
}

// AnyNumber is a part of a device number that a DeviceRule leaves open.
const AnyNumber = -1

// DeviceRule is an element of linux.resources.devices, as far as it is about
// reading or writing block devices. Of all that match a device, the last one
// counts; without one it cannot be opened.
type DeviceRule struct {
	Allow  bool
	Device Device // each part may be AnyNumber
}

// RawDisk is a block device that the container can open.
type RawDisk struct {
	Path   string // in the container
	Device Device
}
