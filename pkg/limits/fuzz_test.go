package limits_test

import (
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	. "github.com/agentbox/agentbox/pkg/limits"
)

// world is a policy, a request and a host that were made from bytes.
type world struct {
	bytes  []byte
	policy Policy
	req    Request
	host   Host
}

func (w *world) next() byte {
	if len(w.bytes) == 0 {
		return 0
	}
	b := w.bytes[0]
	w.bytes = w.bytes[1:]
	return b
}

func (w *world) chance(percent int) bool { return int(w.next())*100/256 < percent }

var numbers = []int64{
	0, 1, -1, 2, 7, 8, 15, 16, 17, 100, 999, 1000, 1001, 4095, 4096, 10_501, 99_999, 100_000, 500_000, 1_000_000, 1_500_000, 2_000_000,
	6*mib - 1, 6 * mib, 64 * mib, gib, 2 * gib, 8 * gib, 1 << 40, 1_000_000_000_000, 1<<44 - 1, 1 << 44, math.MaxInt64 - 4096, math.MaxInt64 - 1, math.MaxInt64, math.MinInt64,
}

func (w *world) number() int64 {
	n := numbers[int(w.next())%len(numbers)]
	if w.chance(20) && n < math.MaxInt64-256 {
		n += int64(w.next())
	}
	return n
}

func (w *world) value(kind Kind) Value {
	if w.chance(15) {
		return NoLimit()
	}
	v := Limit(w.number())
	if kind == Files {
		v.Soft = min(w.number(), v.N)
	}
	return v
}

func (w *world) set(percent int) Set {
	set := Set{}
	for _, info := range Keys {
		if w.chance(percent) {
			set[info.Key] = w.value(info.Kind)
		}
	}
	return set
}

func makeWorld(data []byte) *world {
	w := &world{bytes: data}
	w.host = fullHost()
	switch w.next() % 4 {
	case 1:
		w.host = v1Host()
	case 2:
		w.host = without(w.host, "no controller", KeyMemory, KeySwap)
	case 3:
		w.host.Mechanisms, w.host.GroupKill, w.host.CgroupVersion = nil, Mechanism{}, 0
	}
	if w.chance(30) {
		w.host.MemoryBytes, w.host.CPUs, w.host.PidMax = w.number(), int(int32(w.number())), w.number()
	}
	if w.chance(30) {
		w.host.Systemd, w.host.SystemdVersion = true, int(w.next())+150
	}
	if w.chance(30) {
		w.host.OpenFilesHard, w.host.FileSizeHard, w.host.CoreHard = max(w.number(), -1), max(w.number(), -1), max(w.number(), -1)
	}
	if w.chance(50) {
		w.host = supervising(w.host)
		if w.chance(20) {
			w.host.SupervisorNoIO = "no /proc/PID/io"
		}
	}
	w.policy = DefaultPolicy()
	for _, d := range Supervisable {
		if w.chance(20) {
			w.policy.Supervise = append(w.policy.Supervise, d)
		}
	}
	w.policy.Mode = []Mode{ModeAuto, ModeStrict, ModeOff}[w.next()%3]
	if w.chance(40) {
		maps.Copy(w.policy.Defaults, w.set(30))
	}
	if w.chance(40) {
		w.policy.Ceilings = w.set(30)
	}
	if w.chance(20) {
		w.policy.OOMScopes = append(w.policy.OOMScopes, ScopeProcess)
	}
	w.req = Request{Spec: w.set(25), Annotations: w.set(20), Kubernetes: w.chance(15), GroupKillOff: w.chance(10), OOMKillDisabled: w.chance(10), OwnPIDNamespace: w.chance(80)}
	if v, ok := w.req.Spec[KeyOpenFiles]; ok && v.None {
		w.req.Spec[KeyOpenFiles] = Value{None: true, Soft: max(w.number(), 0)}
	}
	w.req.Profile = []string{"", "", "", "small", "build", "none"}[w.next()%6]
	w.req.OOMScope = []Scope{"", "", "", ScopeContainer, ScopeProcess, "x"}[w.next()%6]
	if w.chance(30) {
		adj := int(int32(w.number()))
		w.req.OOMScoreAdj = &adj
	}
	if w.chance(50) {
		w.req.CPUQuota, w.req.CPUPeriod = w.number(), w.number()
		if w.req.CPUQuota > 0 && w.req.CPUPeriod > 0 && w.chance(80) {
			w.req.Spec[KeyCPUs] = Limit(MicroCPUs(w.req.CPUQuota, w.req.CPUPeriod))
		}
	}
	if w.chance(30) {
		w.req.Prior = map[Key]Prior{}
		for k, v := range w.req.Spec {
			w.req.Prior[k] = Prior{Value: v, Source: []Source{SourceDefault, SourceCeiling, "x"}[w.next()%3]}
		}
	}
	w.makeIO()
	return w
}

// makeIO adds disks, and rates that the request wants of devices.
func (w *world) makeIO() {
	for _, key := range IOKeys {
		delete(w.req.Spec, key) // the specification has rates for single devices only
		if w.chance(10) {
			delete(w.host.Mechanisms, key)
		}
	}
	io := &w.host.IO
	switch w.next() % 8 {
	case 1:
		io.Disks = nil
	case 2:
		io.Disks, io.Diskless = nil, []Diskless{{Place: "/", Reason: "a network"}}
	case 3:
		io.Diskless = []Diskless{{Place: "/mnt", Reason: "a network"}}
	case 4:
		*io = HostIO{Unknown: true}
	}
	for _, device := range []Device{sda.Device, sda1, sdb.Device, sdb1, vda.Device, loop, gone} {
		if !w.chance(30) {
			continue
		}
		rates := Set{}
		for _, key := range IOKeys {
			if w.chance(50) {
				rates[key] = NoLimit()
				if n := w.number(); n > 0 { // 0 is none to the kernel
					rates[key] = Limit(n)
				}
			}
		}
		if w.req.Devices == nil {
			w.req.Devices = map[Device]Set{}
		}
		w.req.Devices[device] = rates
		if w.chance(30) && w.req.Prior != nil {
			for key, v := range rates {
				w.req.Prior[key.On(device)] = Prior{Value: v, Source: SourceDefault}
			}
		}
	}
}

// within reports whether v allows no more than w does.
func within(v, w Value) bool {
	return v.None && w.None || (w.None || !v.None && v.N <= w.N) && (w.Soft == 0 || v.Soft <= w.Soft)
}

// check holds a plan against what Resolve promises, and reports whether there
// was one.
func (w *world) check(t *testing.T) bool {
	plan, err := Resolve(w.policy, w.req, w.host)
	again, errAgain := Resolve(w.policy, w.req, w.host)
	if !reflect.DeepEqual(plan, again) || !reflect.DeepEqual(err, errAgain) {
		t.Fatalf("the same inputs gave two plans:\n%+v, %v\n%+v, %v", plan, err, again, errAgain)
	}
	if err != nil {
		if err.Error() == "" {
			t.Fatal("a refusal without a word")
		}
		return false
	}
	if len(plan.Entries) != len(Keys) {
		t.Fatalf("%d entries for %d keys", len(plan.Entries), len(Keys))
	}
	for i, e := range plan.Entries {
		if e.Key != Keys[i].Key || e.Dimension != Keys[i].Dimension {
			t.Fatalf("entry %d is %s of %s, want %s of %s", i, e.Key, e.Dimension, Keys[i].Key, Keys[i].Dimension)
		}
		w.checkEntry(t, e)
	}
	w.checkCPU(t, plan)
	w.checkDisks(t, plan)
	if plan.OOMScoreAdj < w.policy.OOMScoreAdjMin || plan.OOMScoreAdj > 1000 {
		t.Errorf("oom_score_adj %d is outside %d to 1000", plan.OOMScoreAdj, w.policy.OOMScoreAdjMin)
	}
	if plan.GroupKill && (!plan.Entry(KeyMemory).ByKernel() || plan.OOMScope != ScopeContainer) {
		t.Errorf("group kill with %+v, scope %q", plan.Entry(KeyMemory), plan.OOMScope)
	}
	if want := plan.GroupKill && w.host.Systemd && w.host.SystemdVersion >= 253 && plan.Mode != ModeOff; plan.UnitGroupKill != want {
		t.Errorf("systemd is told of the group kill: %v, with %+v", plan.UnitGroupKill, w.host)
	}
	// What an earlier plan recorded explains; without it the values are the same.
	w.req.Prior = nil
	plain, err := Resolve(w.policy, w.req, w.host)
	if err != nil {
		t.Fatalf("without the record of an earlier plan: %v", err)
	}
	for i, e := range plain.Entries {
		if e.Value != plan.Entries[i].Value || e.Enforcer != plan.Entries[i].Enforcer {
			t.Errorf("the record of an earlier plan changed %+v to %+v", e, plan.Entries[i])
		}
	}
	for i, disk := range plain.IO.Disks {
		for j, l := range disk.Limits {
			if have := plan.IO.Disks[i].Limits[j]; l.Key != have.Key || l.Value != have.Value {
				t.Errorf("the record of an earlier plan changed %+v of %s to %+v", l, disk.Name, have)
			}
		}
	}
	return true
}

func (w *world) checkEntry(t *testing.T, e Entry) {
	if !e.Value.None && (e.Value.N < 0 || e.Value.Soft < 0 || e.Value.Soft > e.Value.N) {
		t.Errorf("%s = %+v, which is no limit that can be set", e.Key, e.Value)
	}
	if ceiling, ok := w.policy.Ceilings[e.Key]; ok && !within(e.Value, ceiling) {
		t.Errorf("%s = %+v exceeds the ceiling %+v", e.Key, e.Value, ceiling)
	} else if !ok && e.Key == KeyMemory && w.host.MemoryBytes > 0 && !e.Value.None && e.Value.N > w.host.MemoryBytes {
		t.Errorf("memory = %d exceeds the host's %d", e.Value.N, w.host.MemoryBytes)
	}
	hard := map[Key]int64{KeyOpenFiles: w.host.OpenFilesHard, KeyFileSize: w.host.FileSizeHard, KeyCoreDumps: w.host.CoreHard}
	if h, ok := hard[e.Key]; ok && h >= 0 && !e.Value.None && e.Value.N > h {
		t.Errorf("%s = %+v exceeds the inherited %d", e.Key, e.Value, h)
	}
	spec, inSpec := w.req.Spec[e.Key]
	ann, inAnn := w.req.Annotations[e.Key]
	if inSpec && !within(e.Value, spec) {
		t.Errorf("%s = %+v is looser than the spec's %+v", e.Key, e.Value, spec)
	}
	if inAnn && !within(e.Value, ann) {
		t.Errorf("%s = %+v is looser than the annotation's %+v", e.Key, e.Value, ann)
	}
	if e.Dimension == IO {
		return // see checkDisks
	}
	fallback := w.fallback(e.Key)
	if !inAnn && (!inSpec || spec.None || e.Key == KeySwap) && !within(e.Value, fallback) {
		t.Errorf("%s = %+v is looser than the default %+v and nobody asked", e.Key, e.Value, fallback)
	}
	m, ok := w.host.Mechanisms[e.Key]
	if e.Enforcer == EnforcerSupervisor {
		w.checkSupervised(t, e)
	} else if e.Enforcer != EnforcerNone && (!ok || m.Enforcer != e.Enforcer || m.Name != e.Mechanism) {
		t.Errorf("%s is enforced by %q (%s), the host has %+v", e.Key, e.Enforcer, e.Mechanism, m)
	}
	if (e.Requested != nil) != (inSpec || inAnn) && w.req.Prior == nil {
		t.Errorf("%s: requested %v", e.Key, e.Requested)
	}
}

// fallback is the policy's value of a key.
func (w *world) fallback(key Key) Value {
	for _, set := range []Set{w.policy.Profiles[w.req.Profile], w.policy.Defaults} {
		if v, ok := set[key]; ok {
			return v
		}
	}
	return NoLimit()
}

// stricter is the smaller of two values.
func stricter(a, b Value) Value {
	if a.None || !b.None && b.N < a.N {
		return b
	}
	return a
}

// checkDisks computes in its own way what each disk is to give, and holds the
// plan and what its entries say about it against that.
func (w *world) checkDisks(t *testing.T, plan *Plan) {
	own, all := map[Device]bool{}, map[Device]bool{}
	for _, disk := range w.host.IO.Disks {
		own[disk.Device], all[disk.Device] = true, true
	}
	for device := range w.req.Devices {
		if to, ok := w.host.IO.Asked[device]; ok && to.Reason == "" {
			all[to.Disk.Device] = true
		}
	}
	for _, key := range IOKeys {
		e := plan.Entry(key)
		if w.host.Mechanisms[key].Enforcer != EnforcerKernel || e.Enforcer == EnforcerSupervisor {
			if e.Enforcer == EnforcerKernel {
				t.Errorf("%s = %+v without a mechanism", key, e)
			}
			for _, disk := range plan.IO.Disks {
				for _, l := range disk.Limits {
					if l.Key == key {
						t.Errorf("%s has %+v without a mechanism", disk.Name, l)
					}
				}
			}
			continue
		}
		loosest, limited, open := Limit(0), false, false
		for device := range all {
			want := w.rateOf(key, device, own[device])
			limited = limited || !want.None
			open = open || own[device] && want.None
			if !want.None && want.N > loosest.N {
				loosest = want
			}
			if have := rateOf(plan, device, key); have != want {
				t.Errorf("%s of %s is %+v, want %+v", key, device, have, want)
			}
		}
		switch {
		case w.host.IO.Unknown:
		case limited && !open && e.Value != loosest:
			t.Errorf("%s = %+v, and the loosest disk has %+v", key, e, loosest)
		case limited != (e.Enforcer == EnforcerKernel) && !e.Value.None:
			t.Errorf("%s = %+v, and a disk has such a limit: %v", key, e, limited)
		}
	}
}

// rateOf is what a disk is to give: the strictest request for it, the annotation
// and the ceiling; the policy's value where nobody asks.
func (w *world) rateOf(key Key, disk Device, own bool) Value {
	ceiling, ok := w.policy.Ceilings[key]
	if !ok {
		ceiling = NoLimit()
	}
	asked := NoLimit()
	for device, rates := range w.req.Devices {
		to, known := w.host.IO.Asked[device]
		if v, given := rates[key]; known && given && to.Reason == "" && to.Disk.Device == disk {
			asked = stricter(asked, v)
		}
	}
	ann, inAnn := w.req.Annotations[key]
	switch {
	case !inAnn:
		ann = NoLimit()
		if asked.None {
			ann = w.fallback(key)
		}
	case ann.None:
		ann = ceiling
	}
	if asked.None && !own {
		return NoLimit()
	}
	return stricter(stricter(asked, ann), ceiling)
}

// rateOf is what a plan gives.
func rateOf(plan *Plan, device Device, key Key) Value {
	found := NoLimit()
	for _, disk := range plan.IO.Disks {
		for _, l := range disk.Limits {
			if disk.Device == device && l.Key == key {
				found = l.Value
			}
		}
	}
	return found
}

func (w *world) checkCPU(t *testing.T, plan *Plan) {
	e := plan.Entry(KeyCPUs)
	if e.Value.None || e.Enforcer == EnforcerSupervisor {
		if plan.CPUQuota != 0 || plan.CPUPeriod != 0 {
			t.Errorf("cpu.max = %d %d without a limit of the kernel", plan.CPUQuota, plan.CPUPeriod)
		}
		return
	}
	if plan.CPUPeriod < MinCPUPeriod || plan.CPUPeriod > MaxCPUPeriod || plan.CPUQuota < 1 {
		t.Errorf("cpu.max = %d %d, which the kernel refuses", plan.CPUQuota, plan.CPUPeriod)
		return
	}
	if share := big.NewRat(plan.CPUQuota, plan.CPUPeriod); share.Cmp(big.NewRat(e.Value.N, 1_000_000)) > 0 {
		t.Errorf("cpu.max = %d %d is more than the planned %d millionths", plan.CPUQuota, plan.CPUPeriod, e.Value.N)
	}
}

func FuzzResolve(f *testing.F) {
	f.Add([]byte{})
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { makeWorld(data).check(t) })
}

// The same check on many random worlds, so that it runs without a fuzzer too;
// most of them must lead to a plan, or nothing was checked.
func TestNoRandomRequestGetsMoreThanItMay(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, 400)
	planned := 0
	const rounds = 5_000
	for range rounds {
		sparse := r.IntN(3) // keeps most keys away, so that few of them refuse the whole
		for i := range data {
			data[i] = byte(r.Uint32())
			if sparse > 0 && r.IntN(8) > 0 {
				data[i] |= 0xc0
			}
		}
		if makeWorld(data).check(t) {
			planned++
		}
		if t.Failed() {
			t.Fatalf("from % x", data)
		}
	}
	if planned < rounds/20 {
		t.Errorf("%d of %d random requests had a plan, too few to mean much", planned, rounds)
	}
	t.Logf("%d of %d random requests had a plan", planned, rounds)
}

// checkSupervised: the supervisor is asked only where it can and where nothing
// better is there, or where the policy wants it.
func (w *world) checkSupervised(t *testing.T, e Entry) {
	can := w.host.Supervisor.Enforcer == EnforcerSupervisor && w.req.OwnPIDNamespace && (e.Dimension != IO || w.host.SupervisorNoIO == "")
	dimension := e.Dimension
	if dimension == Swap {
		dimension = Memory
	}
	better := w.host.Mechanisms[e.Key].Enforcer == EnforcerKernel && !slices.Contains(w.policy.Supervise, dimension)
	if better && e.Key == KeySwap { // it goes with memory
		better = w.host.Mechanisms[KeyMemory].Enforcer == EnforcerKernel && w.host.CgroupVersion != 1
	}
	if !can || better || e.Value.None || e.Mechanism != SupervisorName || SupervisorPrecision(e.Key) == "" {
		t.Errorf("%+v is supervised, the host has %+v, %+v", e, w.host.Mechanisms[e.Key], w.host.Supervisor)
	}
}
