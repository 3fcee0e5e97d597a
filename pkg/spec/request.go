package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/agentbox/agentbox/pkg/limits"
)

// The largest values that mean a limit; above, the kernel has no room for the
// number and it means none.
const (
	maxPids = 4_194_304        // PID_MAX_LIMIT of a 64-bit kernel
	maxCPUs = int64(1_000_000) // no machine has that many
	page    = int64(4096)      // memory limits are whole pages
	maxMem  = math.MaxInt64 - page
)

// Request returns what the document asks for. Annotations under agentbox.dev/
// are not read here. The bundle is the folder that relative paths of the
// document start from.
func (d *Document) Request(bundle string) (limits.Request, error) {
	req := limits.Request{Spec: limits.Set{}, Prior: d.prior()}
	for _, read := range []func(*limits.Request) error{
		d.readMemory, d.readPids, d.readCPU, d.readUnified, d.readRemoved, d.readIO, d.readRlimits, d.readOOMScoreAdj,
		d.readNamespaces,
	} {
		if err := read(&req); err != nil {
			return limits.Request{}, err
		}
	}
	var err error
	if req.Places, err = d.places(bundle); err != nil {
		return limits.Request{}, err
	}
	if req.RawDisks, err = d.rawDisks(); err != nil {
		return limits.Request{}, err
	}
	if req.DeviceRules, err = d.deviceRules(); err != nil {
		return limits.Request{}, err
	}
	req.Kubernetes = d.kubernetes()
	return req, nil
}

// kubernetes reports whether a kubelet stands behind the container: containerd
// and CRI-O say so in annotations. Podman marks its own containers with some of
// CRI-O's names.
func (d *Document) kubernetes() bool {
	if d.annotations["io.container.manager"] == "libpod" {
		return false
	}
	for name := range d.annotations {
		if strings.HasPrefix(name, "io.kubernetes.") {
			return true
		}
	}
	return false
}

// tighten records a value that the document asks for; of two, the stricter one.
func tighten(set limits.Set, key limits.Key, v limits.Value) {
	if have, ok := set[key]; ok {
		v = v.Tighten(have)
	}
	set[key] = v
}

func (d *Document) readMemory(req *limits.Request) error {
	memory, err := d.section("linux", "resources", "memory")
	if err != nil || memory == nil {
		return err
	}
	limit, _, err := memory.integer("limit")
	if err != nil {
		return err
	}
	if limit > 0 && limit < maxMem {
		tighten(req.Spec, limits.KeyMemory, limits.Limit(limit))
	} else if limit != 0 {
		tighten(req.Spec, limits.KeyMemory, limits.NoLimit())
	}
	swap, given, err := memory.integer("swap")
	if err != nil {
		return err
	}
	switch {
	case !given || swap == 0:
	case limit <= 0 && swap > 0 && swap < maxMem:
		// A bound on both together, which cgroup v1 keeps and v2 has no file
		// for: what it gives to memory is then all there is.
		tighten(req.Spec, limits.KeyMemory, limits.Limit(swap))
		tighten(req.Spec, limits.KeySwap, limits.Limit(0))
	case swap < 0 || swap >= maxMem && limit < maxMem:
		tighten(req.Spec, limits.KeySwap, limits.NoLimit())
	case swap >= limit:
		tighten(req.Spec, limits.KeySwap, limits.Limit(swap-limit))
	default:
		return &limits.RequestError{Key: limits.KeySwap, Source: limits.SourceSpec, Text: fmt.Sprintf(
			"linux.resources.memory.swap %d is below linux.resources.memory.limit %d, which it includes", swap, limit)}
	}
	raw, err := memory.get("disableOOMKiller")
	if err != nil {
		return err
	}
	req.OOMKillDisabled = string(raw) == "true"
	return nil
}

func (d *Document) readPids(req *limits.Request) error {
	pids, err := d.section("linux", "resources", "pids")
	if err != nil || pids == nil {
		return err
	}
	n, _, err := pids.integer("limit")
	if err != nil {
		return err
	}
	if n != 0 {
		tighten(req.Spec, limits.KeyPids, pidsValue(n))
	}
	return nil
}

func pidsValue(n int64) limits.Value {
	if n < 0 || n > maxPids {
		return limits.NoLimit()
	}
	return limits.Limit(n)
}

func (d *Document) readCPU(req *limits.Request) error {
	cpu, err := d.section("linux", "resources", "cpu")
	if err != nil || cpu == nil {
		return err
	}
	quota, _, err := cpu.integer("quota")
	if err != nil {
		return err
	}
	period, _, err := cpu.integer("period")
	if err != nil {
		return err
	}
	if quota == 0 && period == 0 {
		return nil
	}
	return askCPU(req, quota, period, "linux.resources.cpu")
}

// askCPU records a quota and a period; quota <= 0 is none, period 0 the kernel's
// default.
func askCPU(req *limits.Request, quota, period int64, where string) error {
	if period != 0 && (period < limits.MinCPUPeriod || period > limits.MaxCPUPeriod) {
		return &limits.RequestError{Key: limits.KeyCPUs, Source: limits.SourceSpec, Text: fmt.Sprintf(
			"%s: cpu period %d µs is outside the kernel's range of %d to %d µs: use 100000", where, period, limits.MinCPUPeriod, limits.MaxCPUPeriod)}
	}
	if quota > 0 && quota < limits.MinCPUQuota {
		return quotaTooSmall(quota, where)
	}
	if req.CPUPeriod == 0 {
		req.CPUPeriod = period
	}
	over := period
	if over == 0 {
		over = limits.DefaultCPUPeriod
	}
	switch {
	case quota == 0:
		return nil
	case quota < 0, quota/over > maxCPUs:
		tighten(req.Spec, limits.KeyCPUs, limits.NoLimit())
		return nil
	}
	v := limits.Limit(limits.MicroCPUs(quota, over))
	tighten(req.Spec, limits.KeyCPUs, v)
	if req.Spec[limits.KeyCPUs] == v {
		req.CPUQuota, req.CPUPeriod = quota, over
	}
	return nil
}

func quotaTooSmall(quota int64, where string) error {
	return &limits.RequestError{Key: limits.KeyCPUs, Source: limits.SourceSpec, Text: fmt.Sprintf(
		"%s: cpu quota %d µs is below the kernel's minimum of %d µs: raise the quota, and the period with it for the same share", where, quota, limits.MinCPUQuota)}
}

// unifiedKeys are the files of cgroup v2 that a plan decides. The low-level
// runtimes write the unified map last, so what stands there wins over the
// fields.
var unifiedKeys = []string{"memory.max", "memory.high", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max"}

func (d *Document) readUnified(req *limits.Request) error {
	for name := range d.unified {
		if strings.Contains(name, "/") {
			return fmt.Errorf("linux.resources.unified: the key %q is not a file name", name)
		}
		if strings.HasPrefix(name, "cgroup.") {
			// cgroup.procs moves processes of the host in, cgroup.freeze and
			// cgroup.kill act at once: none is a resource.
			return fmt.Errorf("linux.resources.unified: %.40q is no resource of a container: remove it", name)
		}
	}
	for _, name := range unifiedKeys {
		text, ok := d.unified[name]
		if !ok {
			continue
		}
		if err := readUnifiedKey(req, name, strings.Trim(text, kernelSpace)); err != nil {
			return err
		}
	}
	return nil
}

// kernelSpace is what the kernel strips from the ends of a written value.
const kernelSpace = " \t\n\v\f\r"

// kernelNumber reads a decimal number. The kernel reads more forms, and in some
// of these files takes a leading zero for octal: refused, so that a value is
// never read in two ways.
func kernelNumber(text string) (int64, bool) {
	n, ok := kernelUint(text)
	if !ok || n > math.MaxInt64 {
		return 0, false
	}
	return int64(n), true
}

// kernelUint is kernelNumber for files that hold 64 bits without a sign.
func kernelUint(text string) (uint64, bool) {
	if text == "" || text[0] < '0' || text[0] > '9' || text[0] == '0' && text != "0" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

func readUnifiedKey(req *limits.Request, name, text string) error {
	where := fmt.Sprintf("linux.resources.unified[%q]", name)
	switch name {
	case "memory.oom.group":
		req.GroupKillOff = text == "0"
		return nil
	case "cpu.max":
		return readCPUMax(req, text, where)
	}
	v := limits.NoLimit()
	if text != "max" {
		n, ok := kernelNumber(text)
		if !ok {
			return fmt.Errorf(`%s is %.40q where a whole number without a unit, or "max", is expected`, where, text)
		}
		v = limits.Limit(n)
		if name == "pids.max" {
			v = pidsValue(n)
		} else if n >= maxMem {
			v = limits.NoLimit()
		}
	}
	switch name {
	case "memory.max":
		tighten(req.Spec, limits.KeyMemory, v)
	case "memory.high":
		tighten(req.Spec, limits.KeyMemoryHigh, v)
	case "memory.swap.max":
		tighten(req.Spec, limits.KeySwap, v)
	case "pids.max":
		tighten(req.Spec, limits.KeyPids, v)
	}
	return nil
}

func readCPUMax(req *limits.Request, text, where string) error {
	quotaText, periodText, _ := strings.Cut(text, " ")
	// A quota alone leaves the period as it is: that of the fields, which the
	// low-level runtimes write first, or the kernel's default.
	quota, period, ok := int64(-1), req.CPUPeriod, true
	if quotaText != "max" {
		quota, ok = kernelNumber(quotaText)
	}
	if periodText = strings.Trim(periodText, kernelSpace); ok && periodText != "" {
		period, ok = kernelNumber(periodText)
	}
	if !ok || period == 0 && periodText != "" {
		return fmt.Errorf(`%s is %.40q where "QUOTA PERIOD" or "max PERIOD" is expected, in microseconds`, where, text)
	}
	if quota == 0 {
		return quotaTooSmall(0, where)
	}
	return askCPU(req, quota, period, where)
}

// rlimit is an element of process.rlimits.
type rlimit struct {
	kind       string
	soft, hard uint64
}

// rlimitKeys are the rlimits that a plan decides, in the order in which they are
// added.
var rlimitKeys = []struct {
	kind string
	key  limits.Key
}{
	{"RLIMIT_NOFILE", limits.KeyOpenFiles},
	{"RLIMIT_FSIZE", limits.KeyFileSize},
	{"RLIMIT_CORE", limits.KeyCoreDumps},
}

// rlimits returns process.rlimits: the elements as they stand and as read.
func (d *Document) rlimits() (raw [][]byte, list []rlimit, err error) {
	process, err := d.section("process")
	if err != nil || process == nil {
		return nil, nil, err
	}
	value, err := process.get("rlimits")
	if err != nil {
		return nil, nil, err
	}
	if raw, err = elements("process.rlimits", value); err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{}
	for i, element := range raw {
		r, err := readRlimit(fmt.Sprintf("process.rlimits[%d]", i), element)
		if err != nil {
			return nil, nil, err
		}
		if seen[r.kind] {
			return nil, nil, fmt.Errorf("process.rlimits has %.40q twice", r.kind)
		}
		seen[r.kind] = true
		list = append(list, r)
	}
	return raw, list, nil
}

func readRlimit(path string, data []byte) (r rlimit, err error) {
	o, err := split(path, data)
	if err != nil {
		return r, err
	}
	kind, err := o.get("type")
	if err != nil {
		return r, err
	}
	if json.Unmarshal(kind, &r.kind) != nil {
		return r, fmt.Errorf("%s.type is %s where a string is expected", path, kindOf(kind))
	}
	for name, to := range map[string]*uint64{"soft": &r.soft, "hard": &r.hard} {
		raw, err := o.get(name)
		if err != nil {
			return r, err
		}
		if raw == nil {
			continue // 0, as the low-level runtimes read it
		}
		if *to, err = strconv.ParseUint(string(raw), 10, 64); err != nil {
			return r, fmt.Errorf("%s.%s is %.40s where a whole number below 2^64 is expected", path, name, raw)
		}
	}
	return r, nil
}

func (d *Document) readRlimits(req *limits.Request) error {
	_, list, err := d.rlimits()
	if err != nil {
		return err
	}
	for _, r := range list {
		for _, k := range rlimitKeys {
			if r.kind != k.kind {
				continue
			}
			switch {
			case r.hard > math.MaxInt64 && k.key == limits.KeyOpenFiles && r.soft < limits.MinOpenFiles:
				return &limits.RequestError{Key: k.key, Source: limits.SourceSpec, Text: fmt.Sprintf(
					"process.rlimits: the soft limit %d of RLIMIT_NOFILE is too small for a container to start: give at least %d", r.soft, limits.MinOpenFiles)}
			case r.hard > math.MaxInt64: // RLIM_INFINITY
				req.Spec[k.key] = limits.NoLimit()
				if k.key == limits.KeyOpenFiles && r.soft <= math.MaxInt64 {
					req.Spec[k.key] = limits.Value{None: true, Soft: int64(r.soft)}
				}
			case k.key == limits.KeyOpenFiles:
				req.Spec[k.key] = limits.Value{N: int64(r.hard), Soft: int64(min(r.soft, r.hard))}
			default:
				req.Spec[k.key] = limits.Limit(int64(r.hard))
			}
		}
	}
	return nil
}

func (d *Document) readOOMScoreAdj(req *limits.Request) error {
	process, err := d.section("process")
	if err != nil {
		return err
	}
	n, given, err := process.integer("oomScoreAdj")
	if err != nil || !given {
		return err
	}
	if n < -1000 || n > 1000 {
		return &limits.RequestError{Source: limits.SourceSpec, Text: fmt.Sprintf(
			"process.oomScoreAdj %d is outside the kernel's range of -1000 to 1000", n)}
	}
	adj := int(n)
	req.OOMScoreAdj = &adj
	return nil
}
