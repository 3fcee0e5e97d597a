package limits

// Dimension names one resource that is limited. The same word is used in the
// configuration, in results and in the documentation.
type Dimension string

// The dimensions, in the order in which reports list them.
const (
	Memory      Dimension = "memory"
	Swap        Dimension = "swap"
	Pids        Dimension = "pids"
	CPU         Dimension = "cpu"
	IO          Dimension = "io"
	Disk        Dimension = "disk"
	Inodes      Dimension = "inodes"
	CPUTime     Dimension = "cpu_time"
	WallTime    Dimension = "wall_time"
	OpenFiles   Dimension = "open_files"
	FileSize    Dimension = "file_size"
	CoreDumps   Dimension = "core_dumps"
	Network     Dimension = "network"
	Connections Dimension = "connections"
)

// Key names one setting of the configuration file. Most dimensions have one key
// of the same name; memory, io and network have several.
type Key string

// The keys, as they stand in [limits], [ceilings] and [profiles.NAME]. In an
// annotation the underscore becomes a hyphen: agentbox.dev/io-read-bps.
const (
	KeyMemory         Key = "memory"
	KeyMemoryHigh     Key = "memory_high"
	KeySwap           Key = "swap"
	KeyPids           Key = "pids"
	KeyCPUs           Key = "cpus"
	KeyIOReadBPS      Key = "io_read_bps"
	KeyIOWriteBPS     Key = "io_write_bps"
	KeyIOReadIOPS     Key = "io_read_iops"
	KeyIOWriteIOPS    Key = "io_write_iops"
	KeyDisk           Key = "disk"
	KeyInodes         Key = "inodes"
	KeyCPUTime        Key = "cpu_time"
	KeyWallTime       Key = "wall_time"
	KeyOpenFiles      Key = "open_files"
	KeyFileSize       Key = "file_size"
	KeyCoreDumps      Key = "core_dumps"
	KeyNetworkEgress  Key = "network_egress"
	KeyNetworkIngress Key = "network_ingress"
	KeyConnections    Key = "connections"
)

// Kind says how the value of a key is written and what its number counts.
type Kind uint8

// The kinds of values.
const (
	Bytes    Kind = iota // N is bytes: "512MiB"
	Count                // N is a plain number: tasks, inodes, operations per second
	CPUs                 // N is millionths of a CPU, that is microseconds of CPU time per second: "1.5" is 1500000
	Duration             // N is nanoseconds: "30s"
	Files                // Soft and N are the soft and hard number of open files: "1024:4096"
	Dumps                // a switch: false is N = 0 bytes of core file, true is None
)

// KeyInfo describes one key.
type KeyInfo struct {
	Key       Key
	Dimension Dimension
	Kind      Kind
}

// Keys lists every key in the order in which reports show them.
var Keys = []KeyInfo{
	{KeyMemory, Memory, Bytes},
	{KeyMemoryHigh, Memory, Bytes},
	{KeySwap, Swap, Bytes},
	{KeyPids, Pids, Count},
	{KeyCPUs, CPU, CPUs},
	{KeyIOReadBPS, IO, Bytes},
	{KeyIOWriteBPS, IO, Bytes},
	{KeyIOReadIOPS, IO, Count},
	{KeyIOWriteIOPS, IO, Count},
	{KeyDisk, Disk, Bytes},
	{KeyInodes, Inodes, Count},
	{KeyCPUTime, CPUTime, Duration},
	{KeyWallTime, WallTime, Duration},
	{KeyOpenFiles, OpenFiles, Files},
	{KeyFileSize, FileSize, Bytes},
	{KeyCoreDumps, CoreDumps, Dumps},
	{KeyNetworkEgress, Network, Bytes},
	{KeyNetworkIngress, Network, Bytes},
	{KeyConnections, Connections, Count},
}

// Info returns the description of a key, and whether there is such a key.
func (k Key) Info() (KeyInfo, bool) {
	for _, info := range Keys {
		if info.Key == k {
			return info, true
		}
	}
	return KeyInfo{}, false
}

// Value is the value of one key. Its unit is that of the key's Kind.
type Value struct {
	None bool  `json:"none,omitempty"` // "none": no limit
	N    int64 `json:"n"`
	Soft int64 `json:"soft,omitempty"` // Files, and rlimits that were read back (-1: none); with None, a soft number below an unlimited hard one
}

// Limit returns a value that limits to n.
func Limit(n int64) Value { return Value{N: n} }

// NoLimit returns the value that switches a limit off.
func NoLimit() Value { return Value{None: true} }

// looser reports whether v allows more than w.
func (v Value) looser(w Value) bool {
	if w.None {
		return false
	}
	return v.None || v.N > w.N
}

// Tighten returns v bounded by w, the soft number included.
func (v Value) Tighten(w Value) Value {
	switch {
	case v.None && w.None:
		return Value{None: true, Soft: stricterSoft(v.Soft, w.Soft)}
	case w.None:
		v.Soft = stricterSoft(v.Soft, w.Soft)
		return v
	case v.None:
		w.Soft = stricterSoft(w.Soft, v.Soft)
		return w
	}
	n := min(v.N, w.N)
	// A soft limit above the hard one is an error to setrlimit(2).
	return Value{N: n, Soft: min(v.Soft, w.Soft, n)}
}

// stricterSoft is the smaller of two soft numbers of which 0 is not given.
func stricterSoft(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Set holds the values that were given, by key. A missing key was not given.
type Set map[Key]Value
