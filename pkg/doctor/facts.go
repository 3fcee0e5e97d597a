package doctor

import (
	"github.com/agentbox/agentbox/pkg/limits"
)

// Facts is what Gather found out about a host.
type Facts struct {
	// Host is what limits.Resolve decides on: the probe that every container
	// start makes.
	Host limits.Host
	// Required are the dimensions that have to be enforced.
	Required []limits.Dimension

	Config  Config
	Kernel  Kernel
	Cgroup  Cgroup
	Runtime Runtime
	Results Results
	Docker  *Docker // nil: there is none

	// Silent are the paths about which there was no answer in time.
	Silent []string

	Root      bool   // this process is root
	Systemd   bool   // systemd runs this machine
	SwapBytes int64  // size of all swap that is on
	Self      string // absolute path of agentbox-runtime; empty: not found

	Supervisor string // absolute path of the program that is the supervisor; empty: nobody has looked
	Freezer    string // the file by which it could stop a sandbox; empty: none, it sends signals

	RootDisk string // the kernel's name of the disk behind "/"; empty: not known or several
	Tools    Tools
}

// Config is agentbox's own configuration.
type Config struct {
	Path    string // of the file, which need not be there
	Found   bool   // there is a file
	Problem string // why the file cannot be used; the rest is then built-in
	Policy  limits.Policy
}

// Presence is the answer of a probe.
type Presence string

// The answers.
const (
	Yes     Presence = "yes"
	No      Presence = "no"
	Unknown Presence = "unknown" // there was nothing to look at
)

// Kernel is what the kernel says about itself.
type Kernel struct {
	Release string // as uname(2) has it
	Cmdline string // Documentation/admin-guide/kernel-parameters.rst

	// Controllers is /proc/cgroups by its names, which are those of cgroup v1
	// (cgroups(7)); nil: it could not be read. A kernel that has a controller for
	// v2 only does not list it.
	Controllers map[string]Controller
	Cgroup2     bool // the kernel knows the cgroup2 file system
	Swap        bool // it is built with CONFIG_SWAP
	Bandwidth   bool // it is built with CONFIG_CFS_BANDWIDTH
	Throttling  Presence
	// Features has the answer for each of features, by name.
	Features map[string]Presence
}

// Controller is one line of /proc/cgroups.
type Controller struct {
	Hierarchy int  // of cgroup v1 that it is mounted in; 0: none
	Enabled   bool // not switched off by the kernel's command line
}

// Cgroup is how the cgroup file systems look from here.
type Cgroup struct {
	Systemd bool // a container would be placed by the systemd driver

	V1       map[string]string // controller to mount point, of cgroup v1
	V2       string            // where cgroup v2 is mounted; empty: nowhere
	V2Has    []string          // controllers of the cgroup at that mount point
	True     bool              // that is the root of the hierarchy, and not of a cgroup namespace
	ReadOnly []string          // mount points that are read-only

	// Chain is the way on cgroup v2 from the mount point to the deepest folder
	// that exists where a container would be placed. Empty on v1.
	Chain []Folder
}

// threaded is the Type of a cgroup whose parent is not a domain of its own.
const threaded = "threaded"

// Folder is one cgroup of cgroup v2.
type Folder struct {
	Path        string   // such as /sys/fs/cgroup/system.slice
	Controllers []string // it has
	Passed      []string // controllers that it passes on (cgroup.subtree_control)
	Controls    bool     // this process may change which ones
	Writable    bool     // this process may create a cgroup in it

	// Type is that of cgroup.type: "domain", "domain threaded", "domain invalid"
	// or "threaded"; empty for the root, and before Linux 4.14.
	Type      string
	Processes bool // it has processes of its own, or its threaded cgroups have; not looked at where Type is empty
	Threads   bool // a cgroup right below it is threaded
}

// Runtime is the low-level runtime.
type Runtime struct {
	Name    string // as the configuration has it
	Path    string // absolute; empty: not found
	Itself  bool   // it is agentbox-runtime
	Problem string // why it could not be asked
	Program string // what it calls itself: "runc"
	Version string // its own text: "1.1.5+ds1"; empty: it does not say
	// Fixed are the security fixes (CVE-...) that the changelog of its package
	// names. Distributors add fixes to old versions.
	Fixed []string
}

// Results is the folder of kept results.
type Results struct {
	Dir     string
	Problem string // why nothing can be kept there
}

// Docker is the configuration that a Docker daemon has, or would start with:
// its file and its flags.
type Docker struct {
	File    string // its daemon.json, which need not be there
	Found   bool   // there is such a file
	Problem string // why the file cannot be used

	Settings DockerSettings
	// Flags are the settings that the command line of the daemon gives, by their
	// names in the file.
	Flags []string

	OnRoot bool  // DataRoot is on the file system of "/"
	Free   int64 // bytes that are free there
	Size   int64 // of the file system; 0: not known
	// Broken are the runtimes by the name of agentbox-runtime whose program is
	// not there, by their names.
	Broken []string
}

// DockerSettings are those of a daemon.json that doctor looks at.
type DockerSettings struct {
	LogDriver string                   `json:"log-driver"`
	LogOpts   map[string]string        `json:"log-opts"`
	DataRoot  string                   `json:"data-root"`
	Runtimes  map[string]DockerRuntime `json:"runtimes"`
	ExecOpts  []string                 `json:"exec-opts"`
}

// DockerRuntime is one entry of runtimes.
type DockerRuntime struct {
	Path string `json:"path"`
	Type string `json:"runtimeType"`
}

// Tools are the programs of this host that a fix can use.
type Tools struct {
	Grubby, UpdateGrub bool
}
