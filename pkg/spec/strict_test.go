package spec_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

// This file judges a rewrite from outside: it reads specifications the way runc
// does (encoding/json into specs.Spec, keys in any case, the last one wins) and
// cgroup files the way the kernel does, and shares no code with the package.

const unlimited = math.MaxInt64

// decode reads a specification as runc does.
func decode(data []byte) (*specs.Spec, error) {
	s := new(specs.Spec)
	err := json.NewDecoder(bytes.NewReader(data)).Decode(s)
	return s, err
}

// memparse reads a number as lib/cmdline.c of the kernel does: in any of C's
// bases, with a suffix.
func memparse(text string) (n int64, ok bool) {
	digits := "0123456789"
	base := 10
	lower := strings.ToLower(text)
	switch {
	case len(lower) > 2 && strings.HasPrefix(lower, "0x") && strings.ContainsRune("0123456789abcdef", rune(lower[2])):
		base, digits, lower = 16, "0123456789abcdef", lower[2:]
	case strings.HasPrefix(lower, "0"):
		base, digits = 8, "01234567"
	}
	end := 0
	for end < len(lower) && strings.IndexByte(digits, lower[end]) >= 0 {
		end++
	}
	number, ok := new(big.Int).SetString("0"+lower[:end], base)
	if !ok {
		return 0, false
	}
	rest := lower[end:]
	if rest != "" {
		shift := strings.Index("kmgtpe", rest[:1])
		if shift < 0 || len(rest) > 1 {
			return 0, false
		}
		number.Lsh(number, uint(10*(shift+1)))
	}
	if !number.IsInt64() {
		return unlimited, true // or wraps; either way it is no limit that was meant
	}
	return number.Int64(), true
}

// kstrtoll reads a number as pids.max does.
func kstrtoll(text string) (int64, bool) {
	negative := strings.HasPrefix(text, "-")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "-"), "+")
	if text == "" || strings.HasSuffix(text, "_") || strings.HasPrefix(text, "_") {
		return 0, false
	}
	base := 10
	if lower := strings.ToLower(text); strings.HasPrefix(lower, "0x") {
		base, text = 16, text[2:]
	} else if strings.HasPrefix(text, "0") && len(text) > 1 {
		base, text = 8, text[1:]
	}
	n, err := strconv.ParseInt(text, base, 64)
	if err != nil || negative {
		return 0, false // the kernel refuses negative limits
	}
	return n, true
}

const kernelSpace = " \t\n\v\f\r"

// unifiedValue is what a file of cgroup v2 holds after the low-level runtime has
// written a value; ok is false where the kernel refuses it.
func unifiedValue(name, text string) (n int64, ok bool) {
	if strings.Contains(strings.TrimSuffix(text, "\n"), "\n") {
		return 0, false // written line by line: see the package's refusal
	}
	text = strings.Trim(text, kernelSpace)
	if text == "max" {
		return unlimited, true
	}
	if name == "pids.max" {
		n, ok = kstrtoll(text)
		return n, ok && n <= 4_194_304
	}
	return memparse(text)
}

// share is a CPU limit; quota 0 is none.
type share struct{ quota, period int64 }

func (s share) within(t share) bool {
	if t.quota == 0 {
		return true
	}
	if s.quota == 0 {
		return false
	}
	return big.NewRat(s.quota, s.period).Cmp(big.NewRat(t.quota, t.period)) <= 0
}

// cpuMax reads what was written to cpu.max; before is the period in it.
func cpuMax(text string, before int64) (s share, ok bool) {
	fields := strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(kernelSpace, c) })
	if len(fields) == 0 {
		return s, false
	}
	s.period = before
	if len(fields) > 1 {
		if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			s.period = n
		}
	}
	if fields[0] != "max" {
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return s, false
		}
		s.quota = n
		ok = n >= 1000
	} else {
		ok = true
	}
	return s, ok && s.period >= 1000 && s.period <= 1_000_000
}

// bounds is one source of limits: the fields, or the unified map, or what holds
// in the end.
type bounds struct {
	memory, high, swap, total, pids int64
	cpu                             share
	burst                           uint64
}

func noBounds() bounds {
	return bounds{memory: unlimited, high: unlimited, swap: unlimited, total: unlimited, pids: unlimited, burst: math.MaxUint64}
}

// orUnlimited reads a field of the runtime specification in which 0 is not given.
func orUnlimited(p *int64) int64 {
	if p == nil || *p <= 0 {
		return unlimited
	}
	return *p
}

func fieldBounds(r *specs.LinuxResources, version int) bounds {
	b := noBounds()
	if r == nil {
		return b
	}
	if m := r.Memory; m != nil {
		b.memory, b.total = orUnlimited(m.Limit), orUnlimited(m.Swap)
		if b.total != unlimited {
			b.swap = max(b.total-b.memory, 0)
		}
		if b.memory == unlimited {
			b.swap = b.total
			if version == 1 {
				b.memory = b.total
			}
		}
	}
	if r.Pids != nil {
		b.pids = orUnlimited(r.Pids.Limit)
		if b.pids > 4_194_304 {
			b.pids = unlimited
		}
	}
	if c := r.CPU; c != nil {
		b.cpu.period = 100_000
		if c.Period != nil && *c.Period != 0 {
			b.cpu.period = int64(*c.Period)
		}
		if c.Quota != nil && *c.Quota > 0 {
			b.cpu.quota = *c.Quota
		}
		if c.Burst != nil {
			b.burst = *c.Burst
		}
	}
	return b
}

// unifiedBounds is what the unified map says, in the terms of what it writes
// over.
func unifiedBounds(r *specs.LinuxResources, fields bounds) bounds {
	b := noBounds()
	if r == nil {
		return b
	}
	for name, to := range map[string]*int64{"memory.max": &b.memory, "memory.high": &b.high, "memory.swap.max": &b.swap, "pids.max": &b.pids} {
		if text, ok := r.Unified[name]; ok {
			if n, ok := unifiedValue(name, text); ok {
				*to = n
			}
		}
	}
	if text, ok := r.Unified["cpu.max"]; ok {
		before := fields.cpu.period
		if before == 0 {
			before = 100_000
		}
		if s, ok := cpuMax(text, before); ok {
			b.cpu = s
		}
	}
	return b
}

// holds is what holds once the low-level runtime has written both.
func holds(r *specs.LinuxResources, version int) bounds {
	b := fieldBounds(r, version)
	if r == nil || version != 2 {
		return b
	}
	u := unifiedBounds(r, b)
	has := func(name string) bool { _, ok := r.Unified[name]; return ok }
	if has("memory.max") {
		b.memory = u.memory
	}
	if has("memory.swap.max") {
		b.swap = u.swap
	}
	if has("pids.max") {
		b.pids = u.pids
	}
	if has("cpu.max") {
		b.cpu = u.cpu
	}
	b.high = u.high
	return b
}

// verify holds a rewrite against everything that a rewrite promises.
func (w world) verify(t *testing.T, in []byte, out *rewritten) {
	t.Helper()
	if !json.Valid(out.data) {
		t.Fatalf("the output is not JSON: %s", out.data)
	}
	if w.policy.Mode == limits.ModeOff {
		if !bytes.Equal(in, out.data) {
			t.Errorf("mode off changed the file to\n%s", out.data)
		}
		return
	}
	w.verifyIdempotent(t, out)
	verifyKept(t, in, out.data)

	before, err := decode(in)
	if err != nil {
		return // the low-level runtime refuses the file
	}
	after, err := decode(out.data)
	if err != nil {
		t.Fatalf("the low-level runtime reads the input and not the output: %v\n%s", err, out.data)
	}
	w.verifyResources(t, before, after, out.plan)
	w.verifyIO(t, before, after, out)
	verifyRlimits(t, before, after, out.plan)
	verifyOOMScore(t, before, after, out.plan)
	w.verifyOracle(t, before, after, out.plan)
}

func (w world) verifyIdempotent(t *testing.T, first *rewritten) {
	t.Helper()
	second, err := w.rewrite(first.data)
	if err != nil {
		t.Fatalf("the output is refused when it comes in again: %v\n%s", err, first.data)
	}
	if !bytes.Equal(second.data, first.data) {
		t.Errorf("rewriting twice is not once:\n%s\n%s", first.data, second.data)
	}
	for i, e := range second.plan.Entries {
		want := first.plan.Entries[i]
		if strings.HasSuffix(want.Detail, e.Detail) { // why a value was lowered, which comes first, is not recorded
			want.Detail = e.Detail
		}
		if e.Applies() && !reflect.DeepEqual(e, want) {
			t.Errorf("the second report differs:\n%+v\n%+v", want, e)
		}
	}
	if len(second.plan.IO.Disks) != len(first.plan.IO.Disks) {
		t.Fatalf("the second plan is for the disks %+v, the first for %+v", second.plan.IO.Disks, first.plan.IO.Disks)
	}
	for i, disk := range second.plan.IO.Disks {
		if want := first.plan.IO.Disks[i]; disk.Device != want.Device || !reflect.DeepEqual(disk.Limits, want.Limits) {
			t.Errorf("the second report of %s differs:\n%+v\n%+v", disk.Name, want, disk)
		}
	}
}

// byKernel says whether the specification is to carry a limit of a cgroup.
func byKernel(e limits.Entry) bool {
	return !e.Value.None && e.Enforcer == limits.EnforcerKernel
}

// bySupervisor says whether the specification is not to carry a limit, because
// the supervisor holds it.
func bySupervisor(e limits.Entry) bool {
	return !e.Value.None && e.Enforcer == limits.EnforcerSupervisor
}

func resourcesOf(s *specs.Spec) *specs.LinuxResources {
	if s.Linux == nil {
		return nil
	}
	return s.Linux.Resources
}

// verifyResources checks that no cgroup limit got looser, and that the kernel's
// ones carry the plan.
func (w world) verifyResources(t *testing.T, before, after *specs.Spec, plan *limits.Plan) {
	t.Helper()
	version := w.host.CgroupVersion
	inResources, outResources := resourcesOf(before), resourcesOf(after)
	in, out := holds(inResources, version), holds(outResources, version)
	fields := fieldBounds(inResources, version)
	unified := unifiedBounds(inResources, fields)

	tighter := func(name string, key limits.Key, got, held, asked int64) {
		t.Helper()
		e := plan.Entry(key)
		if bySupervisor(e) {
			if got != unlimited {
				t.Errorf("%s is %d, and the supervisor holds it", name, got)
			}
			if e.Value.N > asked || e.Value.N > held {
				t.Errorf("%s is to be held to %d, %d was asked for and held", name, e.Value.N, min(asked, held))
			}
			return
		}
		if !byKernel(e) {
			if got > held {
				t.Errorf("%s was %d and is %d, and the plan does not decide it", name, held, got)
			}
			return
		}
		if got != e.Value.N {
			t.Errorf("%s is %d, the plan says %d", name, got, e.Value.N)
		}
		if got > asked {
			t.Errorf("%s is %d, %d was asked for", name, got, asked)
		}
	}
	tighter("memory", limits.KeyMemory, out.memory, in.memory, min(fields.memory, unified.memory))
	tighter("memory.high", limits.KeyMemoryHigh, out.high, in.high, unified.high)
	tighter("pids", limits.KeyPids, out.pids, in.pids, min(fields.pids, unified.pids))
	swapAsked := unified.swap
	if fields.memory != unlimited || version == 2 {
		swapAsked = min(swapAsked, fields.swap)
	}
	tighter("swap", limits.KeySwap, out.swap, in.swap, swapAsked)
	if total := plan.SupervisedMemory(); total > 0 {
		if version == 1 && total > in.total {
			t.Errorf("memory and swap together were %d and are to be held to %d", in.total, total)
		}
	} else if version == 1 && out.total > in.total {
		t.Errorf("memory and swap together were %d and are %d", in.total, out.total)
	}

	cpu := plan.Entry(limits.KeyCPUs)
	switch {
	case byKernel(cpu):
		if want := (share{plan.CPUQuota, plan.CPUPeriod}); out.cpu != want {
			t.Errorf("cpu.max is %+v, the plan says %+v", out.cpu, want)
		}
		if !out.cpu.within(fields.cpu) && fields.cpu.quota >= 1000 || !out.cpu.within(unified.cpu) {
			t.Errorf("cpu.max is %+v, the fields ask for %+v, unified for %+v", out.cpu, fields.cpu, unified.cpu)
		}
		if outResources.CPU.Burst != nil && *outResources.CPU.Burst > uint64(plan.CPUQuota) {
			t.Errorf("cpu burst %d is above the quota %d", *outResources.CPU.Burst, plan.CPUQuota)
		}
	case bySupervisor(cpu):
		// Millionths are rounded up.
		if held := (share{cpu.Value.N - 1, 1_000_000}); !held.within(in.cpu) || !held.within(unified.cpu) || out.cpu.quota != 0 || outResources != nil && outResources.CPU != nil && outResources.CPU.Burst != nil {
			t.Errorf("cpus %d are to be held, cpu.max was %+v and is %+v, burst %d", cpu.Value.N, in.cpu, out.cpu, out.burst)
		}
		out.burst = in.burst
	case !out.cpu.within(in.cpu):
		t.Errorf("cpu.max was %+v and is %+v", in.cpu, out.cpu)
	}
	if out.burst > in.burst {
		t.Errorf("the cpu burst was %d and is %d", in.burst, out.burst)
	}

	hangs := outResources != nil && outResources.Memory != nil && outResources.Memory.DisableOOMKiller != nil && *outResources.Memory.DisableOOMKiller
	if hangs && plan.Entry(limits.KeyMemory).Applies() {
		t.Error("the OOM killer is still off")
	}
	unifiedMap := func(r *specs.LinuxResources) map[string]string {
		if r == nil {
			return nil
		}
		return r.Unified
	}
	if version != 2 {
		want := w.unifiedIO(unifiedMap(inResources))
		if version == 0 {
			want = w.unifiedIO(unifiedOf(unifiedMap(inResources), plan))
		}
		if !maps.Equal(want, unifiedMap(outResources)) {
			t.Errorf("unified was %v and is %v, and cgroup v1 has no such thing", unifiedMap(inResources), unifiedMap(outResources))
		}
		return
	}
	group := func(r *specs.LinuxResources) string { return unifiedMap(r)["memory.oom.group"] }
	if bySupervisor(plan.Entry(limits.KeyMemory)) {
		if group(outResources) != "" {
			t.Errorf("memory.oom.group is %q, and the supervisor ends the sandbox", group(outResources))
		}
	} else if plan.GroupKill && group(outResources) != "1" || !plan.GroupKill && group(outResources) != group(inResources) {
		t.Errorf("memory.oom.group was %q and is %q, the plan says %v", group(inResources), group(outResources), plan.GroupKill)
	}
	if e := plan.Entry(limits.KeySwap); byKernel(e) && outResources.Unified["memory.swap.max"] != strconv.FormatInt(e.Value.N, 10) {
		t.Errorf("memory.swap.max is %q, which a daemon-reload of systemd would lose", outResources.Unified["memory.swap.max"])
	}
}

func rlimitsOf(s *specs.Spec) map[string]specs.POSIXRlimit {
	m := map[string]specs.POSIXRlimit{}
	if s.Process != nil {
		for _, r := range s.Process.Rlimits {
			m[r.Type] = r
		}
	}
	return m
}

func verifyRlimits(t *testing.T, before, after *specs.Spec, plan *limits.Plan) {
	t.Helper()
	in, out := rlimitsOf(before), rlimitsOf(after)
	for kind, was := range in {
		if is, ok := out[kind]; !ok || is.Soft > was.Soft || is.Hard > was.Hard {
			t.Errorf("%s was %+v and is %+v", kind, was, is)
		}
	}
	for kind, key := range map[string]limits.Key{"RLIMIT_NOFILE": limits.KeyOpenFiles, "RLIMIT_FSIZE": limits.KeyFileSize, "RLIMIT_CORE": limits.KeyCoreDumps} {
		e, is := plan.Entry(key), out[kind]
		soft := uint64(e.Value.N)
		if key == limits.KeyOpenFiles {
			soft = uint64(e.Value.Soft)
		}
		if e.Applies() && e.Enforcer != limits.EnforcerSupervisor && (is.Hard != uint64(e.Value.N) || is.Soft > soft || is.Soft > is.Hard) {
			t.Errorf("%s is %+v, the plan says %+v", kind, is, e.Value)
		}
	}
}

func verifyOOMScore(t *testing.T, before, after *specs.Spec, plan *limits.Plan) {
	t.Helper()
	if after.Process == nil || after.Process.OOMScoreAdj == nil || *after.Process.OOMScoreAdj != plan.OOMScoreAdj {
		t.Errorf("oomScoreAdj is not the plan's %d", plan.OOMScoreAdj)
		return
	}
	if before.Process != nil && before.Process.OOMScoreAdj != nil && *before.Process.OOMScoreAdj > *after.Process.OOMScoreAdj {
		t.Errorf("oomScoreAdj was %d and is %d", *before.Process.OOMScoreAdj, *after.Process.OOMScoreAdj)
	}
}

// The paths that a plan sets, and the ones that a plan may have to create.
var (
	owned = []string{
		"linux.resources.memory.limit", "linux.resources.memory.swap", "linux.resources.memory.disableOOMKiller",
		"linux.resources.pids.limit", "linux.resources.cpu.quota", "linux.resources.cpu.period", "linux.resources.cpu.burst",
		"linux.resources.unified.memory.max", "linux.resources.unified.memory.high", "linux.resources.unified.memory.swap.max",
		"linux.resources.unified.memory.oom.group", "linux.resources.unified.pids.max", "linux.resources.unified.cpu.max", "linux.resources.unified.cpu.max.burst",
		"linux.resources.blockIO.throttleReadBpsDevice", "linux.resources.blockIO.throttleWriteBpsDevice",
		"linux.resources.blockIO.throttleReadIOPSDevice", "linux.resources.blockIO.throttleWriteIOPSDevice",
		"linux.resources.blockIO.weight", "linux.resources.blockIO.leafWeight", "linux.resources.blockIO.weightDevice",
		"process.oomScoreAdj", "annotations." + spec.ReservedAnnotation,
	}
	sections = []string{
		"linux", "linux.resources", "linux.resources.memory", "linux.resources.pids", "linux.resources.cpu", "linux.resources.unified", "linux.resources.blockIO",
		"process", "annotations", "hooks", "hooks.createRuntime", "process.rlimits",
	}
)

// verifyKept checks that everything a plan does not set is in the output as it
// was, numbers to the digit and keys in their order.
func verifyKept(t *testing.T, in, out []byte) {
	t.Helper()
	before, after := leaves(t, in), leaves(t, out)
	if i := firstDifference(before, after); i >= 0 {
		t.Errorf("something else was changed:\nwas %q\nis  %q", tail(before, i), tail(after, i))
	}
}

func firstDifference(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

func tail(list []string, i int) []string {
	if i >= len(list) {
		return nil
	}
	return list[i:min(i+3, len(list))]
}

// leaves lists every value that a plan does not set, in order, with its path.
func leaves(t *testing.T, data []byte) []string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var list []string
	var walk func(path string, keep bool) error
	walk = func(path string, keep bool) error {
		token, err := d.Token()
		if err != nil {
			return err
		}
		keep = keep && !slices.Contains(owned, path) && !hostAnnotation(path) && !strings.HasPrefix(path, "linux.resources.unified.io.")
		delim, isDelim := token.(json.Delim)
		if !isDelim {
			if keep && (token != nil || !slices.Contains(sections, path)) {
				list = append(list, fmt.Sprintf("%s=%T:%v", path, token, token))
			}
			return nil
		}
		if keep && !slices.Contains(sections, path) {
			list = append(list, path+delim.String())
		}
		for i := 0; d.More(); i++ {
			next := fmt.Sprintf("%s[%d]", path, i)
			if delim == '{' {
				key, err := d.Token()
				if err != nil {
					return err
				}
				next = strings.TrimPrefix(path+"."+key.(string), ".")
			}
			if delim == '[' && (path == "process.rlimits" || path == "hooks.createRuntime") {
				var element json.RawMessage
				if err := d.Decode(&element); err != nil {
					return err
				}
				if text := foreignElement(element); text != "" {
					list = append(list, path+"="+text)
				}
				continue
			}
			if err := walk(next, keep); err != nil {
				return err
			}
		}
		_, err = d.Token()
		return err
	}
	if err := walk("", true); err != nil {
		t.Fatalf("walk the JSON: %v", err)
	}
	return list
}

func hostAnnotation(path string) bool {
	name, ok := strings.CutPrefix(path, "annotations.")
	return ok && (strings.HasPrefix(name, "org.systemd.property.") || strings.HasPrefix(name, "run.oci.") || name == "org.criu.config")
}

// foreignElement renders an rlimit or a hook without what a plan sets in it; ""
// when nothing is left.
func foreignElement(data []byte) string {
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&m) != nil {
		return string(data)
	}
	if kind, ok := m["type"].(string); ok && slices.Contains([]string{"RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CORE"}, kind) {
		delete(m, "type")
		delete(m, "hard")
		delete(m, "soft")
		if len(m) == 0 {
			return ""
		}
	}
	if args, ok := m["args"].([]any); ok && len(args) > 1 && args[1] == spec.HookFlag {
		return ""
	}
	return fmt.Sprint(m) // keys are sorted
}
