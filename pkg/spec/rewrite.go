package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/agentbox/agentbox/pkg/limits"
)

// ReservedAnnotation holds what an earlier rewrite was asked for, so that the
// report of a second one is the same. It explains and never raises a limit:
// a forged one can only misstate what the container itself asked for.
const ReservedAnnotation = "agentbox.dev/original"

// HookFlag is the first argument of a hook that is ours.
const HookFlag = "--agentbox-hook"

// hostAnnotations are settings of the low-level runtime that reach beyond the
// container: systemd properties of its unit, crun's own handlers, a file of the
// host for CRIU.
var hostAnnotations = []string{"org.systemd.property.*", "run.oci.*", "org.criu.config"}

// oomPolicy is a property of the container's unit, which runc and crun take from an
// annotation: the name of the property and its value as GVariant text. It makes
// systemd set memory.oom.group to 1 each time it sets the unit's limits, instead of 0
// (systemd.scope(5), OOMPolicy=).
const (
	oomPolicy     = "org.systemd.property.OOMPolicy"
	oomPolicyKill = "'kill'"
)

// Hook is a program that the low-level runtime runs on the host once the
// container's cgroup is set up (config.md, createRuntime).
type Hook struct {
	Path string
	Args []string // without argv[0]
}

// Options are what a rewrite needs besides the plan.
type Options struct {
	// AllowAnnotations names annotations that stay although they reach beyond
	// the container; a trailing "*" makes a prefix.
	AllowAnnotations []string
	// Hook is appended after all existing hooks; nil: none.
	Hook *Hook
}

// Apply makes the document carry the plan, and returns warnings for a person
// about what it took away. A plan in limits.ModeOff changes nothing.
func (d *Document) Apply(plan *limits.Plan, opts Options) (warnings []string, err error) {
	if plan.Mode == limits.ModeOff {
		return nil, nil
	}
	d.source = nil
	for _, apply := range []func(*limits.Plan) error{
		d.applyMemory, d.applyPids, d.applyCPU, d.applyUnified, d.applyRlimits, d.applyOOMScoreAdj,
	} {
		if err := apply(plan); err != nil {
			return nil, err
		}
	}
	if err := d.applyHook(opts.Hook); err != nil {
		return nil, err
	}
	dropped, err := d.applyIO(plan)
	if err != nil {
		return nil, err
	}
	warnings, err = d.applyAnnotations(plan, opts.AllowAnnotations)
	return limits.FirstWarnings(append(dropped, warnings...)), err
}

func (d *Document) applyMemory(plan *limits.Plan) error {
	limit, swap := plan.Entry(limits.KeyMemory), plan.Entry(limits.KeySwap)
	if limit.BySupervisor() {
		return d.dropFields("memory", "limit", "swap", "disableOOMKiller")
	}
	if !limit.ByKernel() {
		return nil
	}
	if swap.BySupervisor() {
		if err := d.dropFields("memory", "swap"); err != nil {
			return err
		}
	}
	memory, err := d.ensureSection("linux", "resources", "memory")
	if err != nil {
		return err
	}
	before, _, err := memory.integer("limit")
	if err != nil {
		return err
	}
	memory.setInt("limit", limit.Value.N)
	memory.remove(func(name string) bool { return name == "disableOOMKiller" })
	if swap.ByKernel() {
		memory.setInt("swap", addSwap(limit.Value.N, swap.Value.N))
		return nil
	}
	// A swap value includes the limit: below it, it fails the create; left
	// alone when the limit is lowered, it would give more swap than before.
	n, _, err := memory.integer("swap")
	if err != nil || n == 0 {
		return err
	}
	if n < 0 {
		memory.setInt("swap", -1) // no limit: beside a memory limit only this number says so
		return nil
	}
	if before <= 0 {
		before = limit.Value.N
	}
	memory.setInt("swap", addSwap(limit.Value.N, max(n-before, 0)))
	return nil
}

// addSwap is the value of memory.swap, which counts memory and swap together.
func addSwap(limit, swap int64) int64 {
	if swap > math.MaxInt64-limit {
		return math.MaxInt64
	}
	return limit + swap
}

func (d *Document) applyPids(plan *limits.Plan) error {
	e := plan.Entry(limits.KeyPids)
	if e.BySupervisor() {
		return d.dropPids()
	}
	if !e.ByKernel() {
		return nil
	}
	pids, err := d.ensureSection("linux", "resources", "pids")
	if err != nil {
		return err
	}
	pids.setInt("limit", e.Value.N)
	return nil
}

func (d *Document) applyCPU(plan *limits.Plan) error {
	e := plan.Entry(limits.KeyCPUs)
	if e.BySupervisor() {
		return d.dropFields("cpu", "quota", "period", "burst")
	}
	if !e.ByKernel() {
		return nil
	}
	cpu, err := d.ensureSection("linux", "resources", "cpu")
	if err != nil {
		return err
	}
	cpu.setInt("quota", plan.CPUQuota)
	cpu.setInt("period", plan.CPUPeriod)
	// The kernel refuses a burst above the quota.
	burst, _, err := cpu.integer("burst")
	if err != nil {
		return err
	}
	if burst > plan.CPUQuota {
		cpu.setInt("burst", plan.CPUQuota)
	}
	return nil
}

// applyUnified removes what would override the plan, and sets what has no field
// of its own. memory.swap.max stands here besides memory.swap because only this
// one survives a systemd daemon-reload.
func (d *Document) applyUnified(plan *limits.Plan) error {
	if plan.CgroupVersion == 1 {
		return nil
	}
	decided := map[string]limits.Entry{
		"memory.max":      plan.Entry(limits.KeyMemory),
		"memory.high":     plan.Entry(limits.KeyMemoryHigh),
		"memory.swap.max": plan.Entry(limits.KeySwap),
		"pids.max":        plan.Entry(limits.KeyPids),
		"cpu.max":         plan.Entry(limits.KeyCPUs),
	}
	drop := func(name string) bool {
		if name == "memory.oom.group" {
			return plan.GroupKill || decided["memory.max"].BySupervisor()
		}
		if name == "cpu.max.burst" {
			burst, err := strconv.ParseInt(d.unified[name], 10, 64)
			cpu := decided["cpu.max"]
			return cpu.BySupervisor() || cpu.ByKernel() && (err != nil || burst > plan.CPUQuota)
		}
		e, ok := decided[name]
		return ok && (e.ByKernel() || e.BySupervisor())
	}
	high, swap := decided["memory.high"], decided["memory.swap.max"]
	sets := plan.GroupKill || high.ByKernel() || swap.ByKernel()
	unified, err := d.section("linux", "resources", "unified")
	if err == nil && unified == nil && sets {
		unified, err = d.ensureSection("linux", "resources", "unified")
	}
	if err != nil || unified == nil {
		return err
	}
	unified.remove(drop)
	if high.ByKernel() {
		unified.setString("memory.high", strconv.FormatInt(high.Value.N, 10))
	}
	if swap.ByKernel() {
		unified.setString("memory.swap.max", strconv.FormatInt(swap.Value.N, 10))
	}
	if plan.GroupKill {
		unified.setString("memory.oom.group", "1")
	}
	return nil
}

func (d *Document) applyRlimits(plan *limits.Plan) error {
	raw, list, err := d.rlimits()
	if err != nil {
		return err
	}
	changed := false
	for _, k := range rlimitKeys {
		e := plan.Entry(k.key)
		if !e.Applies() || e.Enforcer == limits.EnforcerSupervisor {
			continue
		}
		want := rlimit{kind: k.kind, hard: uint64(e.Value.N), soft: uint64(e.Value.N)}
		if k.key == limits.KeyOpenFiles {
			want.soft = uint64(e.Value.Soft)
		}
		i := slices.IndexFunc(list, func(r rlimit) bool { return r.kind == k.kind })
		if i < 0 {
			raw, changed = append(raw, want.json()), true
			continue
		}
		want.soft = min(want.soft, list[i].soft)
		if want == list[i] {
			continue
		}
		if raw[i], err = want.over(raw[i]); err != nil {
			return err
		}
		changed = true
	}
	if !changed {
		return nil
	}
	process, err := d.ensureSection("process")
	if err != nil {
		return err
	}
	process.set("rlimits", joinList(raw))
	return nil
}

func (r rlimit) json() []byte {
	return fmt.Appendf(nil, `{"type":%q,"hard":%d,"soft":%d}`, r.kind, r.hard, r.soft)
}

// over replaces the numbers of an element and keeps what else it has.
func (r rlimit) over(element []byte) ([]byte, error) {
	o, err := split("process.rlimits", element)
	if err != nil {
		return nil, err
	}
	o.set("hard", strconv.AppendUint(nil, r.hard, 10))
	o.set("soft", strconv.AppendUint(nil, r.soft, 10))
	return o.appendTo(nil), nil
}

func (d *Document) applyOOMScoreAdj(plan *limits.Plan) error {
	process, err := d.ensureSection("process")
	if err != nil {
		return err
	}
	process.setInt("oomScoreAdj", int64(plan.OOMScoreAdj))
	return nil
}

// applyHook replaces hooks of ours by the one given.
func (d *Document) applyHook(hook *Hook) error {
	hooks, err := d.section("hooks")
	if err != nil {
		return err
	}
	if hooks == nil {
		if hook == nil {
			return nil
		}
		if hooks, err = d.ensureSection("hooks"); err != nil {
			return err
		}
	}
	value, err := hooks.get("createRuntime")
	if err != nil {
		return err
	}
	list, err := elements("hooks.createRuntime", value)
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(slices.Clone(list), isOurHook)
	if hook != nil {
		kept = append(kept, hook.json())
	}
	if hook == nil && len(kept) == len(list) {
		return nil
	}
	hooks.set("createRuntime", joinList(kept))
	return nil
}

func (h *Hook) json() []byte {
	data, _ := json.Marshal(map[string]any{ // strings always marshal
		"path": h.Path,
		"args": append([]string{h.Path, HookFlag}, h.Args...),
	})
	return data
}

func isOurHook(data []byte) bool {
	var h struct {
		Args []string `json:"args"`
	}
	return json.Unmarshal(data, &h) == nil && len(h.Args) > 1 && h.Args[1] == HookFlag
}

func (d *Document) applyAnnotations(plan *limits.Plan, allow []string) (warnings []string, err error) {
	annotations, err := d.ensureSection("annotations")
	if err != nil {
		return nil, err
	}
	annotations.remove(func(name string) bool {
		if name == oomPolicy && plan.UnitGroupKill {
			return true
		}
		if !matches(name, hostAnnotations) || matches(name, allow) {
			return false
		}
		warnings = append(warnings, fmt.Sprintf("annotation %.80q is dropped: it reaches beyond the container, allow_annotations does not list it", name))
		return true
	})
	record := make(map[limits.Key]limits.Prior, len(plan.Entries))
	for _, e := range plan.Entries {
		if e.Applies() && e.Dimension != limits.IO {
			record[e.Key] = limits.Prior{
				Requested: e.Requested, Value: e.Value, Source: e.Source,
				Removed: e.BySupervisor() && slices.Contains(removable, e.Key),
			}
		}
	}
	for _, disk := range plan.IO.Disks {
		for _, l := range disk.Limits {
			record[l.Key.On(disk.Device)] = limits.Prior{Requested: l.Requested, Value: l.Value, Source: l.Source}
		}
	}
	text, err := json.Marshal(record) // keys are sorted
	if err != nil {
		return nil, fmt.Errorf("record the request: %w", err)
	}
	annotations.setString(ReservedAnnotation, string(text))
	if plan.UnitGroupKill {
		annotations.setString(oomPolicy, oomPolicyKill)
	}
	return warnings, nil
}

// matches reports whether a name is in a list of names and "prefix*" patterns.
func matches(name string, patterns []string) bool {
	for _, p := range patterns {
		prefix, isPrefix := strings.CutSuffix(p, "*")
		if name == p || isPrefix && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
