package host

import (
	"strconv"
	"strings"

	"github.com/agentbox/agentbox/pkg/cgroup"
)

// answer is what a probe for a kernel file says.
type answer uint8

const (
	unknown answer = iota // no cgroup to look at
	yes
	no
)

// look asks a witness, a cgroup in which the controller is on, for a file.
func (p *prober) look(witness, file string) answer {
	switch {
	case witness == "":
		return unknown
	case p.has(witness + "/" + file):
		return yes
	}
	return no
}

// missingSwap says why there is no memory.swap.max; empty when there is. Writing
// it where it is missing fails the create.
//
// Where no cgroup shows it, it is inferred. The file needs CONFIG_SWAP, which
// /proc/swaps shows. Since Linux 6.1 nothing else matters; from 5.8 on it can be
// switched off by swapaccount=0 on the kernel's command line; before that, it
// may be off unless swapaccount=1 is there, and without it cannot be told.
func (p *prober) missingSwap(witness string) string {
	switch p.look(witness, fileSwapMax) {
	case yes:
		return ""
	case no:
		return witness + "/" + fileSwapMax + " is missing: the kernel does not account swap (boot it with swapaccount=1)"
	}
	if !p.has("/proc/swaps") {
		return "/proc/swaps is missing: the kernel is built without swap (CONFIG_SWAP)"
	}
	release := p.release()
	if release.atLeast(6, 1) {
		return ""
	}
	switch account, given := p.swapAccount(); {
	case given && !account:
		return "swapaccount=0 in /proc/cmdline switches " + fileSwapMax + " off"
	case given, release.atLeast(5, 8):
		return ""
	}
	return p.cannotTell(fileSwapMax)
}

// missingOOMGroup says why there is no memory.oom.group; empty when there is. It
// came with Linux 4.19, and no switch takes it away.
func (p *prober) missingOOMGroup(witness string) string {
	switch p.look(witness, fileOOMGroup) {
	case yes:
		return ""
	case no:
		return witness + "/" + fileOOMGroup + " is missing: it came with Linux 4.19"
	}
	release := p.release()
	switch {
	case release.atLeast(4, 19):
		return ""
	case release == kernel{}:
		return p.cannotTell(fileOOMGroup)
	}
	return fileOOMGroup + " came with Linux 4.19, this is " + release.String()
}

// missingCPUMax says why there is no cpu.max; empty when there is. It needs
// CONFIG_CFS_BANDWIDTH, which also brings a sysctl
// (Documentation/scheduler/sched-bwc.rst).
func (p *prober) missingCPUMax(witness string) string {
	const sysctl = "/proc/sys/kernel/sched_cfs_bandwidth_slice_us"
	switch p.look(witness, fileCPUMax) {
	case yes:
		return ""
	case no:
		return witness + "/" + fileCPUMax + " is missing: the kernel is built without CONFIG_CFS_BANDWIDTH"
	}
	if p.has(sysctl) {
		return ""
	}
	return sysctl + " is missing: the kernel is built without CONFIG_CFS_BANDWIDTH"
}

// missingIOMax says why there is no io.max; empty when there is. It needs
// CONFIG_BLK_DEV_THROTTLING, which leaves no other trace than its functions.
func (p *prober) missingIOMax(witness string) string {
	const function = "throtl_pd_alloc"
	if witness != "" {
		return "" // a witness for the io controller is known by this very file
	}
	has, err := p.hasFunction(function)
	switch {
	case err != nil:
		return p.cannotTell(fileIOMax)
	case has:
		return ""
	}
	return symbolsFile + " has no " + function + ": the kernel is built without CONFIG_BLK_DEV_THROTTLING"
}

func (p *prober) cannotTell(file string) string {
	return "it cannot be told whether this kernel has " + file + ": no cgroup below " + cgroup.MountPoint + " has its controller on"
}

// kernel is a kernel release; the zero value is an unknown one.
type kernel struct{ major, minor int }

func (k kernel) atLeast(major, minor int) bool {
	return k.major > major || k.major == major && k.minor >= minor
}

func (k kernel) String() string { return strconv.Itoa(k.major) + "." + strconv.Itoa(k.minor) }

func (p *prober) release() kernel {
	data, err := p.fs.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return kernel{}
	}
	return parseRelease(string(data))
}

// parseRelease reads the first two numbers of "6.1.0-18-amd64".
func parseRelease(text string) kernel {
	first, rest, ok := strings.Cut(text, ".")
	if !ok {
		return kernel{}
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	major, err1 := strconv.ParseUint(first, 10, 16)
	minor, err2 := strconv.ParseUint(rest[:end], 10, 16)
	if err1 != nil || err2 != nil {
		return kernel{}
	}
	return kernel{int(major), int(minor)}
}

// swapAccount returns the swapaccount= of the kernel's command line.
func (p *prober) swapAccount() (on, given bool) {
	data, err := p.fs.ReadFile("/proc/cmdline")
	if err != nil {
		return false, false
	}
	return parseSwapAccount(string(data))
}

// parseSwapAccount reads the switch as the kernel does: the last one counts, and
// what is neither yes nor no is ignored
// (Documentation/admin-guide/kernel-parameters.txt).
func parseSwapAccount(cmdline string) (on, given bool) {
	for word := range strings.FieldsSeq(cmdline) {
		value, ok := strings.CutPrefix(word, "swapaccount=")
		if !ok {
			continue
		}
		switch value {
		case "0", "n", "N", "off":
			on, given = false, true
		case "1", "y", "Y", "on":
			on, given = true, true
		}
	}
	return on, given
}
