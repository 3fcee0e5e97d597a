package limits

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Bounds below which a container cannot start, or the kernel refuses the value.
const (
	// MinMemory is what the low-level runtime's own init needs; Docker refuses
	// less as well.
	MinMemory = 6 * mib
	// MinPids is what the low-level runtime's init needs for its own threads
	// before it becomes the container's first process.
	MinPids = 8
	// MinOpenFiles is what a process needs for its own stdio and loader.
	MinOpenFiles = 16
	// MinCPUQuota, MaxCPUQuota, MinCPUPeriod and MaxCPUPeriod are the kernel's
	// bounds on cpu.max, in microseconds (Documentation/scheduler/sched-bwc.rst;
	// the largest quota is max_cfs_runtime in kernel/sched/core.c).
	MinCPUQuota      = 1_000
	MaxCPUQuota      = 1<<44 - 1
	MinCPUPeriod     = 1_000
	MaxCPUPeriod     = 1_000_000
	DefaultCPUPeriod = 100_000
	microCPU         = 1_000_000
	minMicroCPU      = MinCPUQuota * microCPU / MaxCPUPeriod
	memoryShare      = 80   // percent of the host's memory that is the built-in ceiling
	maxOOMScoreAdj   = 1000 // proc_pid_oom_score_adj(5)
	unlimitedRlimit  = -1
)

// Resolve decides the plan for one container. For each key:
//
//   - the default is the profile's value, else the policy's;
//   - the request is the stricter of what the specification's fields and the
//     annotations ask for, and replaces the default;
//   - a request for no limit at all counts as no request, unless an annotation
//     makes it: that one gets the ceiling;
//   - nothing exceeds the ceiling: it is lowered and said, or refused in
//     Kubernetes. Without a configured ceiling it is 80 % of the host's memory,
//     its CPUs and its kernel.pid_max, and for swap the policy's default.
//
// The swap of the specification's fields can only lower the policy's value,
// because engines fill it in by themselves (Docker sends as much swap as
// memory).
//
// The error is a *RequestError for a request that cannot be met, or an
// *UnenforceableError in strict mode, with which the plan comes too. In ModeOff the plan says what would be
// and nothing is refused for want of an enforcer.
func Resolve(policy Policy, req Request, host Host) (*Plan, error) {
	host.IO = host.IO.shortened()
	r := resolver{policy: policy, req: req, host: host}
	return r.resolve()
}

type resolver struct {
	policy  Policy
	req     Request
	host    Host
	profile Set
	plan    *Plan
}

func (r *resolver) resolve() (*Plan, error) {
	if err := r.pickProfile(); err != nil {
		return nil, err
	}
	r.plan = &Plan{
		Mode:          r.policy.Mode,
		StrictRequire: r.policy.StrictRequire,
		CgroupVersion: r.host.CgroupVersion,
		Systemd:       r.host.Systemd,
		Profile:       r.req.Profile,
		Entries:       make([]Entry, 0, len(Keys)),
	}
	for _, info := range Keys {
		entry, err := r.entry(info)
		if err != nil {
			return nil, err
		}
		r.plan.Entries = append(r.plan.Entries, entry)
	}
	if err := r.cpuPeriod(); err != nil {
		return nil, err
	}
	r.systemdCPU()
	if err := r.disks(); err != nil {
		return nil, err
	}
	if err := r.oom(); err != nil {
		return nil, err
	}
	r.plan.Warnings = FirstWarnings(r.plan.Warnings)
	return r.plan, r.strict()
}

func (r *resolver) pickProfile() error {
	if r.req.Profile == "" {
		return nil
	}
	profile, ok := r.policy.Profiles[r.req.Profile]
	if !ok {
		names := make([]string, 0, len(r.policy.Profiles))
		for name := range r.policy.Profiles {
			names = append(names, name)
		}
		slices.Sort(names)
		return &RequestError{Source: SourceAnnotation, Text: fmt.Sprintf(
			"profile %.100q from annotation agentbox.dev/profile is not known: this host has %v", r.req.Profile, names)}
	}
	r.profile = profile
	return nil
}

func (r *resolver) warnf(format string, args ...any) {
	r.plan.Warnings = append(r.plan.Warnings, Shorten(fmt.Sprintf(format, args...), MaxText))
}

// entry resolves one key.
func (r *resolver) entry(info KeyInfo) (Entry, error) {
	e := Entry{Key: info.Key, Dimension: info.Dimension}
	e.Value, e.Source = r.fallback(info.Key)
	r.request(info, &e)
	if err := r.ceiling(info, &e); err != nil {
		return Entry{}, err
	}
	r.inherit(info, &e)
	if err := r.minimum(info, e); err != nil {
		return Entry{}, err
	}
	r.recall(&e)
	r.enforcer(&e)
	r.supervise(&e)
	return e, nil
}

// fallback is the value for a container that asks for nothing.
func (r *resolver) fallback(k Key) (Value, Source) {
	if v, ok := r.profile[k]; ok {
		return v, SourceProfile
	}
	if v, ok := r.policy.Defaults[k]; ok {
		return v, SourceDefault
	}
	return NoLimit(), SourceDefault
}

// request replaces the default by what the container asks for.
func (r *resolver) request(info KeyInfo, e *Entry) {
	spec, inSpec := r.req.Spec[info.Key]
	ann, inAnn := r.req.Annotations[info.Key]
	if inAnn {
		e.Requested = &ann
		e.Value, e.Source = ann, SourceAnnotation
	}
	if !inSpec {
		return
	}
	if inAnn && !spec.None && (ann.looser(spec) || ann.Soft > spec.Soft) {
		// Also where an earlier plan has set the spec's value: its record can be
		// forged, and an engine's own limit must not be raised.
		r.warnf("%s: %s from the annotation allows more than %s from the spec: the stricter one wins", info.Key, info.String(ann), info.String(spec))
	}
	if e.Requested == nil || e.Requested.looser(spec) {
		e.Requested = &spec
	}
	switch {
	case spec.None:
		e.Value = e.Value.Tighten(spec)
		if !inAnn && !e.Value.None {
			e.Detail = fmt.Sprintf("no limit in the spec lowered to %s, the %s", info.String(e.Value), e.Source)
			r.warnf("%s: %s", info.Key, e.Detail)
		}
	case inAnn, info.Key == KeySwap:
		if e.Value.looser(spec) {
			e.Source = SourceSpec
		}
		e.Value = e.Value.Tighten(spec)
	default:
		e.Value, e.Source = spec, SourceSpec
	}
}

// recall explains a value that stands as an earlier plan set it. A rewritten
// specification that is rewritten again asks for what the first plan set; the
// plan then keeps what was asked at first, so that the report stays true.
func (r *resolver) recall(e *Entry) {
	spec, inSpec := r.req.Spec[e.Key]
	if prior, ok := r.recalled(e.Key, spec, e.Value); inSpec && ok {
		e.Requested, e.Source = prior.Requested, prior.Source
	}
}

// recalled returns the record of an earlier plan, if the specification asks for
// what it set and the value of this plan is the same.
func (r *resolver) recalled(name Key, spec, value Value) (Prior, bool) {
	prior, ok := r.req.Prior[name]
	return prior, ok && prior.Value == spec && value == spec && prior.plausible()
}

// plausible reports whether a record reads as one of a plan. A container can
// forge it: what does not look like ours must not reach a report.
func (p Prior) plausible() bool {
	switch p.Source {
	case SourceDefault, SourceProfile, SourceSpec, SourceAnnotation, SourceCeiling, SourceInherited:
	default:
		return false
	}
	return p.Value.plausible() && (p.Requested == nil || p.Requested.plausible())
}

func (v Value) plausible() bool { return v.N >= 0 && v.Soft >= 0 }

// ceilingOf returns the most that a container may have.
func (r *resolver) ceilingOf(k Key) (ceiling Value, configured bool) {
	if v, ok := r.policy.Ceilings[k]; ok {
		return v, true
	}
	switch k {
	case KeyMemory:
		if r.host.MemoryBytes > 0 {
			// Whole MiB are whole pages, as the kernel keeps them, and read well.
			return Limit(r.host.MemoryBytes / 100 * memoryShare / mib * mib), false
		}
	case KeyCPUs:
		if r.host.CPUs > 0 {
			return Limit(int64(r.host.CPUs) * microCPU), false
		}
	case KeyPids:
		if r.host.PidMax > 0 {
			return Limit(r.host.PidMax), false
		}
	case KeySwap:
		v, _ := r.fallback(k)
		return v, false
	}
	return NoLimit(), false
}

func (r *resolver) ceiling(info KeyInfo, e *Entry) error {
	ceiling, configured := r.ceilingOf(info.Key)
	if !e.Value.looser(ceiling) {
		// The soft number of open files is bounded by the ceiling's too.
		if info.Kind == Files && !ceiling.None && e.Value.Soft > ceiling.Soft {
			e.Detail = fmt.Sprintf("soft limit %d from the %s lowered to %d, the ceiling's", e.Value.Soft, e.Source, ceiling.Soft)
			e.Value = e.Value.Tighten(ceiling)
		}
		return nil
	}
	asked := e.Source == SourceSpec || e.Source == SourceAnnotation
	if !asked && e.Value.None && !configured {
		return nil // switched off by the policy, which says nothing else
	}
	what := "the built-in ceiling of this host"
	if configured {
		what = "the ceiling in the configuration"
	}
	if asked && !e.Value.None && r.req.Kubernetes {
		return &RequestError{Key: info.Key, Source: e.Source, Text: fmt.Sprintf(
			"%s %s from the %s is above %s (%s): ask for less, or raise [ceilings] %s",
			info.Key, info.String(e.Value), e.Source, what, info.String(ceiling), info.Key)}
	}
	e.Detail = fmt.Sprintf("%s from the %s lowered to %s, %s", info.String(e.Value), e.Source, info.String(ceiling), what)
	if asked {
		r.warnf("%s: %s", info.Key, e.Detail)
	}
	e.Value, e.Source = e.Value.Tighten(ceiling), SourceCeiling
	return nil
}

// inherit bounds an rlimit by the hard limit that the caller of the runtime
// has: raising it needs a privilege, and would give the container more than
// whoever starts it.
func (r *resolver) inherit(info KeyInfo, e *Entry) {
	hard := int64(unlimitedRlimit)
	switch info.Key {
	case KeyOpenFiles:
		hard = r.host.OpenFilesHard
	case KeyFileSize:
		hard = r.host.FileSizeHard
	case KeyCoreDumps:
		hard = r.host.CoreHard
	}
	if hard == unlimitedRlimit || e.Value.None || e.Value.N <= hard {
		return
	}
	e.Detail = fmt.Sprintf("%s from the %s lowered to %d, the hard limit of the calling process", info.String(e.Value), e.Source, hard)
	e.Value, e.Source = e.Value.Tighten(Value{N: hard, Soft: hard}), SourceInherited
}

func (r *resolver) minimum(info KeyInfo, e Entry) error {
	low := int64(0)
	switch info.Key {
	case KeyMemory:
		low = MinMemory
	case KeyPids:
		low = MinPids
	case KeyOpenFiles:
		low = MinOpenFiles
	case KeyIOReadBPS, KeyIOWriteBPS:
		low = MinIOBytes
	case KeyIOReadIOPS, KeyIOWriteIOPS:
		low = MinIOOps
	}
	n := e.Value.N
	if info.Kind == Files {
		n = min(n, e.Value.Soft)
	}
	if e.Value.None || n >= low {
		return nil
	}
	return &RequestError{Key: info.Key, Source: e.Source, Text: fmt.Sprintf(
		"%s %s from the %s is too small for a container to start: give at least %s",
		info.Key, info.String(e.Value), e.Source, info.String(Value{N: low, Soft: low}))}
}

func (r *resolver) enforcer(e *Entry) {
	if e.Key == KeySwap && r.host.CgroupVersion == 1 && !r.plan.Entry(KeyMemory).ByKernel() {
		e.Enforcer = EnforcerNone
		e.appendDetail("cgroup v1 limits swap only together with memory")
		return
	}
	m, ok := r.host.Mechanisms[e.Key]
	if !ok {
		e.Enforcer = EnforcerNone
		if !e.Value.None && !e.Key.BySupervisorOnly() {
			e.appendDetail("this version does not enforce " + string(e.Dimension))
		}
		return
	}
	e.Enforcer, e.Mechanism = m.Enforcer, m.Name
	if m.Enforcer == EnforcerNone {
		e.Mechanism = ""
		e.appendDetail(m.Reason)
	}
}

func (e *Entry) appendDetail(text string) {
	if e.Detail != "" {
		e.Detail += "; "
	}
	e.Detail += Shorten(text, MaxText)
}

// cpuPeriod turns the CPU share into a quota and a period. A request that
// stands keeps both of its numbers.
func (r *resolver) cpuPeriod() error {
	quota, period := r.req.CPUQuota, r.req.CPUPeriod
	e := r.plan.entry(KeyCPUs)
	if e.Value.None {
		return nil
	}
	if e.BySupervisor() {
		if e.Value.N < minMicroCPU {
			return cpuTooSmall(*e)
		}
		return nil
	}
	if period < MinCPUPeriod || period > MaxCPUPeriod {
		quota, period = 0, DefaultCPUPeriod
	}
	if quota >= MinCPUQuota && quota <= MaxCPUQuota && MicroCPUs(quota, period) == e.Value.N {
		r.plan.CPUQuota, r.plan.CPUPeriod = quota, period
		return nil
	}
	q := quotaFor(e.Value.N, period)
	if q < MinCPUQuota && period < DefaultCPUPeriod {
		period = DefaultCPUPeriod
		q = quotaFor(e.Value.N, period)
	}
	if q < MinCPUQuota && period < MaxCPUPeriod {
		period = MaxCPUPeriod
		q = quotaFor(e.Value.N, period)
	}
	if q < MinCPUQuota {
		return cpuTooSmall(*e)
	}
	r.plan.CPUQuota, r.plan.CPUPeriod = q, period
	e.Value.N = MicroCPUs(q, period) // what the two numbers really give
	return nil
}

func cpuTooSmall(e Entry) error {
	info, _ := KeyCPUs.Info() // KeyCPUs is a key
	return &RequestError{Key: KeyCPUs, Source: e.Source, Text: fmt.Sprintf(
		"cpus %s from the %s is below the 0.001 that can be enforced: give at least 0.01", info.String(e.Value), e.Source)}
}

// systemdCPU says where systemd will not set the quota that was asked for: it knows
// hundredths of a CPU only, rounded up by the low-level runtime.
func (r *resolver) systemdCPU() {
	e := r.plan.entry(KeyCPUs)
	if !r.host.Systemd || !e.ByKernel() || r.plan.CPUQuota*100%r.plan.CPUPeriod == 0 {
		return
	}
	e.appendDetail("systemd rounds it up to hundredths of a CPU, at the start or at a daemon-reload")
}

// MicroCPUs is the share that a quota and a period give, in millionths of a CPU,
// rounded up. The period must not be 0.
func MicroCPUs(quota, period int64) int64 { return mulDiv(quota, microCPU, period, period-1) }

// quotaFor is the largest quota that gives no more than a share. The roundings
// are such that the quota of the share of a quota is that quota again.
func quotaFor(micro, period int64) int64 {
	return min(mulDiv(micro, period, microCPU, 0), MaxCPUQuota)
}

// mulDiv returns (a*b + add) / c for numbers that are not negative, and
// math.MaxInt64 when the result is larger.
func mulDiv(a, b, c, add int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(add), 0)
	hi += carry
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	n, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(n, math.MaxInt64))
}

func (r *resolver) oom() error {
	p := r.plan
	p.OOMScope = r.policy.OOMScope
	if want := r.req.OOMScope; want != "" && want != p.OOMScope {
		if !slices.Contains(r.policy.OOMScopes, want) {
			return &RequestError{Source: SourceAnnotation, Text: fmt.Sprintf(
				"oom-scope %q from annotation agentbox.dev/oom-scope is not allowed here: add it to [oom] allow in the configuration, or use one of %v", want, r.policy.OOMScopes)}
		}
		p.OOMScope = want
	}
	memory := p.Entry(KeyMemory)
	if memory.BySupervisor() && p.OOMScope != ScopeContainer {
		if p.Mode != ModeOff {
			r.warnf("memory: the supervisor ends the whole sandbox, whatever oom scope %s says", p.OOMScope)
		}
		p.OOMScope = ScopeContainer
	}
	if p.OOMScope == ScopeContainer && memory.ByKernel() {
		p.GroupKill = r.host.GroupKill.Enforcer == EnforcerKernel
		if !p.GroupKill && p.Mode != ModeOff {
			r.warnf("memory: one process is killed, not the whole sandbox: %s", r.host.GroupKill.Reason)
		}
	}
	if p.GroupKill && r.host.Systemd && p.Mode != ModeOff {
		r.unitGroupKill()
	}
	if r.req.GroupKillOff && p.GroupKill {
		r.warnf("memory: memory.oom.group=0 from the spec is dropped, a sandbox ends as one")
	}
	if r.req.OOMKillDisabled && memory.Applies() {
		r.warnf("memory: disableOOMKiller is dropped, a sandbox at its limit ends instead of hanging")
	}
	p.OOMScoreAdj = r.policy.OOMScoreAdjMin
	if adj := r.req.OOMScoreAdj; adj != nil {
		if *adj < p.OOMScoreAdj {
			if *adj != 0 { // 0 is what engines send when nobody asked
				r.warnf("oomScoreAdj %d from the spec raised to %d, the policy's floor", *adj, p.OOMScoreAdj)
			}
		} else {
			p.OOMScoreAdj = min(*adj, maxOOMScoreAdj)
		}
	}
	return nil
}

// minOOMPolicy is the first systemd that takes OOMPolicy= for a scope
// (systemd.scope(5)). All that know memory.oom.group set it by that policy each time
// they set a unit's limits, and so to 0 where nothing is said.
const minOOMPolicy = 253

// unitGroupKill makes systemd keep memory.oom.group, or says that it may not.
func (r *resolver) unitGroupKill() {
	if r.host.SystemdVersion >= minOOMPolicy {
		r.plan.UnitGroupKill = true
		return
	}
	systemd := "a systemd whose version cannot be told"
	if r.host.SystemdVersion > 0 {
		systemd = fmt.Sprintf("systemd %d", r.host.SystemdVersion)
	}
	r.warnf("memory: %s may set memory.oom.group to 0 at a daemon-reload, and then one process is killed, not the whole sandbox: use the cgroupfs driver, or systemd %d or later", systemd, minOOMPolicy)
}

// strict collects the required dimensions that nothing here enforces.
func (r *resolver) strict() error {
	if r.plan.Mode != ModeStrict {
		return nil
	}
	var missing []Missing
	for _, d := range r.policy.StrictRequire {
		if m, ok := r.plan.unenforced(d); !ok {
			missing = append(missing, m)
		}
	}
	if missing != nil {
		return &UnenforceableError{Missing: missing}
	}
	return nil
}

// unenforced looks whether a dimension that strict mode requires holds: each of
// its keys that has a limit needs the kernel, or a rlimit or the supervisor where
// nothing else exists.
func (p *Plan) unenforced(d Dimension) (Missing, bool) {
	limited := false
	for _, e := range p.Entries {
		if e.Dimension != d || e.Value.None {
			continue
		}
		limited = true
		if d == IO && p.IO.NoDisk {
			continue
		}
		if d == IO && len(p.IO.Diskless) > 0 {
			return Missing{Dimension: d, Reason: e.Detail}, false
		}
		switch {
		case e.Enforcer == EnforcerKernel, e.Enforcer == EnforcerProcess:
		case e.Enforcer == EnforcerSupervisor && e.Key.BySupervisorOnly():
		case e.Enforcer == EnforcerSupervisor:
			return Missing{Dimension: d, Reason: "only the supervisor does: " + e.Detail}, false
		default:
			return Missing{Dimension: d, Reason: e.Detail}, false
		}
	}
	if !limited {
		return Missing{Dimension: d, Reason: "it has no limit in the configuration"}, false
	}
	return Missing{}, true
}
