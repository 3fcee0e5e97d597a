package limits_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"

	. "github.com/agentbox/agentbox/pkg/limits"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// fullHost is a cgroup v2 host with everything this package knows: 10 GiB,
// 8 CPUs, and the disks of ioHost.
func fullHost() Host {
	kernel := func(name string) Mechanism { return Mechanism{Name: name, Enforcer: EnforcerKernel} }
	process := func(name string) Mechanism { return Mechanism{Name: name, Enforcer: EnforcerProcess} }
	return Host{
		CgroupVersion: 2,
		MemoryBytes:   10 * gib,
		CPUs:          8,
		PidMax:        32768,
		Mechanisms: map[Key]Mechanism{
			KeyMemory:     kernel("memory.max"),
			KeyMemoryHigh: kernel("memory.high"),
			KeySwap:       kernel("memory.swap.max"),
			KeyPids:       kernel("pids.max"),
			KeyCPUs:       kernel("cpu.max"),
			KeyIOReadBPS:  kernel("io.max"), KeyIOWriteBPS: kernel("io.max"),
			KeyIOReadIOPS: kernel("io.max"), KeyIOWriteIOPS: kernel("io.max"),
			KeyOpenFiles: process("RLIMIT_NOFILE"),
			KeyFileSize:  process("RLIMIT_FSIZE"),
			KeyCoreDumps: process("RLIMIT_CORE"),
		},
		IO:            ioHost(),
		GroupKill:     kernel("memory.oom.group"),
		OpenFilesHard: 1 << 20,
		FileSizeHard:  -1,
		CoreHard:      -1,
	}
}

// without returns a host that lacks mechanisms.
func without(h Host, reason string, keys ...Key) Host {
	h.Mechanisms = maps.Clone(h.Mechanisms)
	for _, k := range keys {
		h.Mechanisms[k] = Mechanism{Enforcer: EnforcerNone, Reason: reason}
	}
	return h
}

func v1Host() Host {
	h := without(fullHost(), "cgroup v1 has no memory.high", KeyMemoryHigh)
	h.CgroupVersion = 1
	for _, k := range IOKeys {
		h.Mechanisms[k] = Mechanism{Name: "blkio.throttle", Enforcer: EnforcerKernel}
	}
	h.GroupKill = Mechanism{Enforcer: EnforcerNone, Reason: "cgroup v1 has no memory.oom.group"}
	return h
}

func mustResolve(t *testing.T, policy Policy, req Request, host Host) *Plan {
	t.Helper()
	plan, err := Resolve(policy, req, host)
	if err != nil {
		t.Fatalf("Resolve: %v", err)
	}
	return plan
}

func TestTheDefaultsHoldForAContainerThatAsksForNothing(t *testing.T) {
	plan := mustResolve(t, DefaultPolicy(), Request{}, fullHost())
	want := map[Key]struct {
		value    Value
		enforcer Enforcer
	}{
		KeyMemory:         {Limit(2 * gib), EnforcerKernel},
		KeyMemoryHigh:     {NoLimit(), EnforcerKernel},
		KeySwap:           {Limit(0), EnforcerKernel},
		KeyPids:           {Limit(2048), EnforcerKernel},
		KeyCPUs:           {Limit(2_000_000), EnforcerKernel},
		KeyIOReadBPS:      {Limit(256 * mib), EnforcerKernel},
		KeyIOWriteBPS:     {Limit(256 * mib), EnforcerKernel},
		KeyIOReadIOPS:     {NoLimit(), EnforcerKernel},
		KeyIOWriteIOPS:    {NoLimit(), EnforcerKernel},
		KeyDisk:           {Limit(10 * gib), EnforcerNone},
		KeyInodes:         {Limit(1_000_000), EnforcerNone},
		KeyCPUTime:        {NoLimit(), EnforcerNone},
		KeyWallTime:       {NoLimit(), EnforcerNone},
		KeyOpenFiles:      {Value{Soft: 65536, N: 524288}, EnforcerProcess},
		KeyFileSize:       {NoLimit(), EnforcerProcess},
		KeyCoreDumps:      {Limit(0), EnforcerProcess},
		KeyNetworkEgress:  {NoLimit(), EnforcerNone},
		KeyNetworkIngress: {NoLimit(), EnforcerNone},
		KeyConnections:    {NoLimit(), EnforcerNone},
	}
	for _, info := range Keys {
		e := plan.Entry(info.Key)
		w, ok := want[info.Key]
		if !ok {
			t.Errorf("%s: not expected", info.Key)
			continue
		}
		if e.Value != w.value || e.Enforcer != w.enforcer || e.Source != SourceDefault || e.Requested != nil {
			t.Errorf("%s = %+v, want %+v by default, enforced by %q", info.Key, e, w.value, w.enforcer)
		}
		if e.Enforcer == EnforcerNone && !e.Value.None && e.Detail == "" {
			t.Errorf("%s is not enforced and nothing says why", info.Key)
		}
		if e.Applies() != (!w.value.None && w.enforcer != EnforcerNone) {
			t.Errorf("%s.Applies() = %v", info.Key, e.Applies())
		}
	}
	if plan.CPUQuota != 200_000 || plan.CPUPeriod != 100_000 {
		t.Errorf("cpu.max = %d %d, want 200000 100000", plan.CPUQuota, plan.CPUPeriod)
	}
	if !plan.GroupKill || plan.OOMScope != ScopeContainer || plan.OOMScoreAdj != 500 || plan.Mode != ModeAuto {
		t.Errorf("plan = %+v, want the whole sandbox killed, oom_score_adj 500, mode auto", plan)
	}
	if len(plan.Warnings) != 0 {
		t.Errorf("warnings %q for a container that asked for nothing", plan.Warnings)
	}
}

// resolveCase is a request for one key and what the plan says about that key.
type resolveCase struct {
	name   string
	policy func(*Policy)
	host   func(*Host)
	req    Request
	key    Key

	want      Value
	source    Source
	requested *Value
	detail    string // a part of it
	warning   string // a part of one; empty: there is none about this key
	refused   string // a part of the error
}

func asks(k Key, v Value) Request            { return Request{Spec: Set{k: v}} }
func annotates(k Key, v Value) Request       { return Request{Annotations: Set{k: v}} }
func ceiling(k Key, v Value) func(*Policy)   { return func(p *Policy) { p.Ceilings[k] = v } }
func byDefault(k Key, v Value) func(*Policy) { return func(p *Policy) { p.Defaults[k] = v } }

func (c resolveCase) run(t *testing.T) {
	policy, host := DefaultPolicy(), fullHost()
	if c.policy != nil {
		c.policy(&policy)
	}
	if c.host != nil {
		c.host(&host)
	}
	plan, err := Resolve(policy, c.req, host)
	if c.refused != "" {
		var refusal *RequestError
		if !errors.As(err, &refusal) || !strings.Contains(err.Error(), c.refused) {
			t.Fatalf("error = %v, want a refusal with %q", err, c.refused)
		}
		if refusal.Key != c.key {
			t.Errorf("the refusal is about %q, want %q", refusal.Key, c.key)
		}
		return
	}
	if err != nil {
		t.Fatalf("Resolve: %v", err)
	}
	e := plan.Entry(c.key)
	if e.Value != c.want || e.Source != c.source {
		t.Errorf("%s = %+v from the %s, want %+v from the %s", c.key, e.Value, e.Source, c.want, c.source)
	}
	if !reflect.DeepEqual(e.Requested, c.requested) {
		t.Errorf("requested = %v, want %v", show(e.Requested), show(c.requested))
	}
	if !strings.Contains(e.Detail, c.detail) || c.detail == "" && e.Detail != "" && e.Enforcer != EnforcerNone {
		t.Errorf("detail = %q, want %q in it", e.Detail, c.detail)
	}
	warned := ""
	for _, w := range plan.Warnings {
		if strings.HasPrefix(w, string(c.key)+": ") {
			warned = w
		}
	}
	if !strings.Contains(warned, c.warning) || c.warning == "" && warned != "" {
		t.Errorf("warning = %q, want %q in it", warned, c.warning)
	}
}

func show(v *Value) string {
	if v == nil {
		return "nothing"
	}
	return fmt.Sprintf("%+v", *v)
}

func TestARequestReplacesTheDefaultWithinTheCeiling(t *testing.T) {
	for _, c := range []resolveCase{
		{
			name: "less than the default from the spec", req: asks(KeyMemory, Limit(64*mib)), key: KeyMemory,
			want: Limit(64 * mib), source: SourceSpec, requested: new(Limit(64 * mib)),
		},
		{
			name: "more than the default from the spec", req: asks(KeyMemory, Limit(4*gib)), key: KeyMemory,
			want: Limit(4 * gib), source: SourceSpec, requested: new(Limit(4 * gib)),
		},
		{
			name: "an annotation", req: annotates(KeyPids, Limit(100)), key: KeyPids,
			want: Limit(100), source: SourceAnnotation, requested: new(Limit(100)),
		},
		{
			name: "above 80 % of the host's memory", req: asks(KeyMemory, Limit(9*gib)), key: KeyMemory,
			want: Limit(8191 * mib), source: SourceCeiling, requested: new(Limit(9 * gib)),
			detail: "9GiB from the spec lowered to 8191MiB", warning: "built-in ceiling",
		},
		{
			name: "above the host's CPUs", req: annotates(KeyCPUs, Limit(64_000_000)), key: KeyCPUs,
			want: Limit(8_000_000), source: SourceCeiling, requested: new(Limit(64_000_000)),
			detail: "64 from the annotation lowered to 8", warning: "lowered",
		},
		{
			name: "above kernel.pid_max", req: asks(KeyPids, Limit(4_000_000)), key: KeyPids,
			want: Limit(32768), source: SourceCeiling, requested: new(Limit(4_000_000)),
			detail: "lowered to 32768", warning: "lowered",
		},
		{
			name: "above a configured ceiling", policy: ceiling(KeyMemory, Limit(gib)), req: asks(KeyMemory, Limit(3*gib)), key: KeyMemory,
			want: Limit(gib), source: SourceCeiling, requested: new(Limit(3 * gib)),
			detail: "the ceiling in the configuration", warning: "lowered to 1GiB",
		},
		{
			name: "exactly the ceiling", policy: ceiling(KeyMemory, Limit(gib)), req: asks(KeyMemory, Limit(gib)), key: KeyMemory,
			want: Limit(gib), source: SourceSpec, requested: new(Limit(gib)),
		},
		{
			name: "a ceiling of none takes the built-in one away", policy: ceiling(KeyMemory, NoLimit()), req: asks(KeyMemory, Limit(64*gib)), key: KeyMemory,
			want: Limit(64 * gib), source: SourceSpec, requested: new(Limit(64 * gib)),
		},
		{
			name: "a default above the ceiling", policy: ceiling(KeyMemory, Limit(gib)), key: KeyMemory,
			want: Limit(gib), source: SourceCeiling, detail: "2GiB from the default lowered to 1GiB",
		},
		{name: "a default of none above a configured ceiling", policy: func(p *Policy) {
			p.Defaults[KeyMemory], p.Ceilings[KeyMemory] = NoLimit(), Limit(gib)
		}, key: KeyMemory, want: Limit(gib), source: SourceCeiling, detail: "none from the default lowered"},
		{
			name: "a default of none is the policy's word against the built-in ceiling", policy: byDefault(KeyMemory, NoLimit()), key: KeyMemory,
			want: NoLimit(), source: SourceDefault,
		},
		{
			name: "a host of unknown size has no built-in ceiling", host: func(h *Host) { h.MemoryBytes = 0 }, req: asks(KeyMemory, Limit(900*gib)), key: KeyMemory,
			want: Limit(900 * gib), source: SourceSpec, requested: new(Limit(900 * gib)),
		},
		{
			name: "the ceiling bounds the soft number of open files as well", policy: ceiling(KeyOpenFiles, Value{Soft: 256, N: 4096}),
			req: asks(KeyOpenFiles, Value{Soft: 4096, N: 4096}), key: KeyOpenFiles,
			want: Value{Soft: 256, N: 4096}, source: SourceSpec, requested: &Value{Soft: 4096, N: 4096}, detail: "soft limit 4096",
		},
		{
			name: "the ceiling bounds both numbers of open files", policy: ceiling(KeyOpenFiles, Value{Soft: 256, N: 4096}),
			req: asks(KeyOpenFiles, Value{Soft: 8192, N: 8192}), key: KeyOpenFiles,
			want: Value{Soft: 256, N: 4096}, source: SourceCeiling, requested: &Value{Soft: 8192, N: 8192}, detail: "lowered", warning: "lowered",
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestUnlimitedInTheSpecIsNoRequestAndInAnAnnotationTheCeiling(t *testing.T) {
	for _, c := range []resolveCase{
		{
			name: "memory -1 in the spec", req: asks(KeyMemory, NoLimit()), key: KeyMemory,
			want: Limit(2 * gib), source: SourceDefault, requested: new(NoLimit()),
			detail: "no limit in the spec lowered to 2GiB", warning: "no limit in the spec",
		},
		{
			name: "pids -1 in the spec", req: asks(KeyPids, NoLimit()), key: KeyPids,
			want: Limit(2048), source: SourceDefault, requested: new(NoLimit()),
			detail: "lowered to 2048", warning: "no limit in the spec",
		},
		{
			name: "core dumps without limit in the spec", req: asks(KeyCoreDumps, NoLimit()), key: KeyCoreDumps,
			want: Limit(0), source: SourceDefault, requested: new(NoLimit()), detail: "lowered to false", warning: "no limit",
		},
		{
			name: "memory none in an annotation", req: annotates(KeyMemory, NoLimit()), key: KeyMemory,
			want: Limit(8191 * mib), source: SourceCeiling, requested: new(NoLimit()),
			detail: "none from the annotation lowered", warning: "lowered",
		},
		{
			name: "memory none in an annotation below a configured ceiling", policy: ceiling(KeyMemory, Limit(3*gib)),
			req: annotates(KeyMemory, NoLimit()), key: KeyMemory,
			want: Limit(3 * gib), source: SourceCeiling, requested: new(NoLimit()), detail: "lowered to 3GiB", warning: "lowered",
		},
		{
			name: "none in an annotation where nothing is the ceiling", req: annotates(KeyFileSize, NoLimit()), key: KeyFileSize,
			want: NoLimit(), source: SourceAnnotation, requested: new(NoLimit()),
		},
		{
			name: "none in an annotation in Kubernetes is the ceiling too", policy: ceiling(KeyPids, Limit(512)),
			req: Request{Kubernetes: true, Annotations: Set{KeyPids: NoLimit()}}, key: KeyPids,
			want: Limit(512), source: SourceCeiling, requested: new(NoLimit()), detail: "lowered to 512", warning: "lowered",
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestOfSpecAndAnnotationTheStricterOneWins(t *testing.T) {
	both := func(k Key, spec, annotation Value) Request {
		return Request{Spec: Set{k: spec}, Annotations: Set{k: annotation}}
	}
	for _, c := range []resolveCase{
		{
			name: "the spec is stricter", req: both(KeyMemory, Limit(gib), Limit(3*gib)), key: KeyMemory,
			want: Limit(gib), source: SourceSpec, requested: new(Limit(gib)), warning: "3GiB from the annotation allows more than 1GiB from the spec",
		},
		{
			name: "the annotation is stricter", req: both(KeyMemory, Limit(3*gib), Limit(gib)), key: KeyMemory,
			want: Limit(gib), source: SourceAnnotation, requested: new(Limit(gib)),
		},
		{
			name: "they agree", req: both(KeyMemory, Limit(gib), Limit(gib)), key: KeyMemory,
			want: Limit(gib), source: SourceAnnotation, requested: new(Limit(gib)),
		},
		{
			name: "the spec has no limit", req: both(KeyMemory, NoLimit(), Limit(3*gib)), key: KeyMemory,
			want: Limit(3 * gib), source: SourceAnnotation, requested: new(Limit(3 * gib)),
		},
		{
			name: "the annotation says none", req: both(KeyMemory, Limit(gib), NoLimit()), key: KeyMemory,
			want: Limit(gib), source: SourceSpec, requested: new(Limit(gib)), warning: "none from the annotation allows more than 1GiB from the spec",
		},
		{
			name: "both are above the ceiling", policy: ceiling(KeyMemory, Limit(gib)), req: both(KeyMemory, Limit(2*gib), Limit(3*gib)), key: KeyMemory,
			want: Limit(gib), source: SourceCeiling, requested: new(Limit(2 * gib)), detail: "2GiB from the spec", warning: "lowered",
		},
		{
			name: "a soft number below an unlimited hard one", req: asks(KeyOpenFiles, Value{None: true, Soft: 1024}), key: KeyOpenFiles,
			want: Value{Soft: 1024, N: 524288}, source: SourceDefault, requested: &Value{None: true, Soft: 1024}, detail: "lowered to 1024:524288", warning: "no limit in the spec",
		},
		{
			name: "the soft numbers of open files count by themselves", req: both(KeyOpenFiles, Value{Soft: 100, N: 4096}, Value{Soft: 1000, N: 2048}), key: KeyOpenFiles,
			want: Value{Soft: 100, N: 2048}, source: SourceAnnotation, requested: &Value{Soft: 1000, N: 2048}, warning: "1000:2048 from the annotation allows more than 100:4096 from the spec",
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestTheSpecCanOnlyTightenSwap(t *testing.T) {
	for _, c := range []resolveCase{
		{
			name: "what Docker fills in is lowered to the default", req: asks(KeySwap, Limit(64*mib)), key: KeySwap,
			want: Limit(0), source: SourceDefault, requested: new(Limit(64 * mib)),
		},
		{
			name: "swap without limit in the spec", req: asks(KeySwap, NoLimit()), key: KeySwap,
			want: Limit(0), source: SourceDefault, requested: new(NoLimit()), detail: "lowered to 0", warning: "no limit in the spec",
		},
		{
			name: "less than a generous default", policy: byDefault(KeySwap, Limit(gib)), req: asks(KeySwap, Limit(mib)), key: KeySwap,
			want: Limit(mib), source: SourceSpec, requested: new(Limit(mib)),
		},
		{
			name: "a default of none is tightened too", policy: byDefault(KeySwap, NoLimit()), req: asks(KeySwap, Limit(mib)), key: KeySwap,
			want: Limit(mib), source: SourceSpec, requested: new(Limit(mib)),
		},
		{
			name: "an annotation is bounded by the default, which is the built-in ceiling", req: annotates(KeySwap, Limit(gib)), key: KeySwap,
			want: Limit(0), source: SourceCeiling, requested: new(Limit(gib)), detail: "lowered to 0", warning: "lowered",
		},
		{
			name: "an annotation below a configured ceiling", policy: ceiling(KeySwap, Limit(2*gib)), req: annotates(KeySwap, Limit(gib)), key: KeySwap,
			want: Limit(gib), source: SourceAnnotation, requested: new(Limit(gib)),
		},
		{
			name: "the ceiling of swap alone does not give any", policy: ceiling(KeySwap, Limit(2*gib)), req: asks(KeySwap, Limit(gib)), key: KeySwap,
			want: Limit(0), source: SourceDefault, requested: new(Limit(gib)),
		},
		{
			name: "a profile's swap is the built-in ceiling", policy: func(p *Policy) { p.Profiles["build"][KeySwap] = Limit(gib) },
			req: Request{Profile: "build", Annotations: Set{KeySwap: Limit(4 * gib)}}, key: KeySwap,
			want: Limit(gib), source: SourceCeiling, requested: new(Limit(4 * gib)), detail: "lowered to 1GiB", warning: "lowered",
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestAProfileReplacesTheDefaults(t *testing.T) {
	for _, c := range []resolveCase{
		{
			name: "a key that the profile has", req: Request{Profile: "small"}, key: KeyMemory,
			want: Limit(512 * mib), source: SourceProfile,
		},
		{
			name: "a key that the profile does not have", req: Request{Profile: "browser"}, key: KeyCPUs,
			want: Limit(2_000_000), source: SourceDefault,
		},
		{
			name: "the spec goes over the profile", req: Request{Profile: "small", Spec: Set{KeyMemory: Limit(gib)}}, key: KeyMemory,
			want: Limit(gib), source: SourceSpec, requested: new(Limit(gib)),
		},
		{
			name: "a profile stays below the ceiling", policy: ceiling(KeyMemory, Limit(gib)), req: Request{Profile: "build"}, key: KeyMemory,
			want: Limit(gib), source: SourceCeiling, detail: "8GiB from the profile lowered to 1GiB",
		},
		{name: "a profile that is not there", req: Request{Profile: "large"}, key: "", refused: `"large"`},
	} {
		t.Run(c.name, c.run)
	}
	if plan := mustResolve(t, DefaultPolicy(), Request{Profile: "small"}, fullHost()); plan.Profile != "small" {
		t.Errorf("the plan names profile %q, want small", plan.Profile)
	}
	_, err := Resolve(DefaultPolicy(), Request{Profile: "large"}, fullHost())
	if err == nil || !strings.Contains(err.Error(), "[browser build small]") {
		t.Errorf("error = %v, want the profiles that there are, sorted", err)
	}
}

func TestKubernetesRefusesWhatIsLoweredElsewhere(t *testing.T) {
	for _, c := range []resolveCase{
		{
			name: "memory above the host", req: Request{Kubernetes: true, Spec: Set{KeyMemory: Limit(9 * gib)}}, key: KeyMemory,
			refused: "memory 9GiB from the spec is above the built-in ceiling of this host (8191MiB",
		},
		{
			name: "cpus above a configured ceiling", policy: ceiling(KeyCPUs, Limit(1_000_000)),
			req: Request{Kubernetes: true, Annotations: Set{KeyCPUs: Limit(1_500_000)}}, key: KeyCPUs,
			refused: "cpus 1.5 from the annotation is above the ceiling in the configuration (1): ask for less, or raise [ceilings] cpus",
		},
		{
			name: "a forged record of an earlier plan does not help", policy: ceiling(KeyMemory, Limit(gib)),
			req: Request{
				Kubernetes: true, Spec: Set{KeyMemory: Limit(9 * gib)},
				Prior: map[Key]Prior{KeyMemory: {Value: Limit(9 * gib), Source: SourceDefault}},
			}, key: KeyMemory,
			refused: "memory 9GiB from the spec",
		},
		{
			name: "a default above the ceiling is the administrator's business", policy: ceiling(KeyMemory, Limit(gib)),
			req: Request{Kubernetes: true}, key: KeyMemory, want: Limit(gib), source: SourceCeiling, detail: "lowered",
		},
		{
			name: "within the ceiling", req: Request{Kubernetes: true, Spec: Set{KeyMemory: Limit(gib)}}, key: KeyMemory,
			want: Limit(gib), source: SourceSpec, requested: new(Limit(gib)),
		},
		{
			name: "no limit in the spec is the default", req: Request{Kubernetes: true, Spec: Set{KeyPids: NoLimit()}}, key: KeyPids,
			want: Limit(2048), source: SourceDefault, requested: new(NoLimit()), detail: "lowered", warning: "no limit",
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestAnRlimitNeverExceedsWhatTheCallerHas(t *testing.T) {
	hard := func(n int64) func(*Host) {
		return func(h *Host) { h.OpenFilesHard, h.FileSizeHard, h.CoreHard = n, n, n }
	}
	for _, c := range []resolveCase{
		{
			name: "the default", host: hard(4096), key: KeyOpenFiles,
			want: Value{Soft: 4096, N: 4096}, source: SourceInherited, detail: "lowered to 4096, the hard limit of the calling process",
		},
		{
			name: "the soft number stays when it fits", host: hard(100_000), key: KeyOpenFiles,
			want: Value{Soft: 65536, N: 100_000}, source: SourceInherited, detail: "lowered",
		},
		{
			name: "a request", host: hard(4096), req: asks(KeyOpenFiles, Value{Soft: 1024, N: 8192}), key: KeyOpenFiles,
			want: Value{Soft: 1024, N: 4096}, source: SourceInherited, requested: &Value{Soft: 1024, N: 8192}, detail: "lowered",
		},
		{
			name: "file size", host: hard(4096), req: asks(KeyFileSize, Limit(gib)), key: KeyFileSize,
			want: Limit(4096), source: SourceInherited, requested: new(Limit(gib)), detail: "lowered",
		},
		{
			name: "core dumps", host: hard(4096), policy: byDefault(KeyCoreDumps, Limit(mib)), key: KeyCoreDumps,
			want: Limit(4096), source: SourceInherited, detail: "lowered",
		},
		{name: "no limit is inherited as it is", host: hard(4096), key: KeyFileSize, want: NoLimit(), source: SourceDefault},
		{name: "a caller without limits", host: hard(-1), key: KeyOpenFiles, want: Value{Soft: 65536, N: 524288}, source: SourceDefault},
	} {
		t.Run(c.name, c.run)
	}
}

func TestARequestTooSmallToStartIsRefused(t *testing.T) {
	for _, c := range []resolveCase{
		{name: "memory", req: asks(KeyMemory, Limit(6*mib-1)), key: KeyMemory, refused: "from the spec is too small for a container to start: give at least 6MiB"},
		{name: "the least memory", req: asks(KeyMemory, Limit(6*mib)), key: KeyMemory, want: Limit(6 * mib), source: SourceSpec, requested: new(Limit(6 * mib))},
		{name: "one task", req: asks(KeyPids, Limit(1)), key: KeyPids, refused: "pids 1 from the spec is too small for a container to start: give at least 8"},
		{name: "no task at all", req: asks(KeyPids, Limit(0)), key: KeyPids, refused: "too small"},
		{name: "the fewest tasks", req: asks(KeyPids, Limit(8)), key: KeyPids, want: Limit(8), source: SourceSpec, requested: new(Limit(8))},
		{name: "open files", req: annotates(KeyOpenFiles, Value{Soft: 15, N: 15}), key: KeyOpenFiles, refused: "from the annotation is too small"},
		{name: "open files whose soft number is too small", req: asks(KeyOpenFiles, Value{Soft: 0, N: 4096}), key: KeyOpenFiles, refused: "0:4096 from the spec is too small"},
		{name: "a ceiling can be too small as well", policy: ceiling(KeyMemory, Limit(mib)), key: KeyMemory, refused: "from the ceiling is too small"},
		{name: "a negative number", req: asks(KeyDisk, Limit(-1)), key: KeyDisk, refused: "too small"},
		{
			name: "a rate at which nothing ends", req: annotates(KeyIOWriteBPS, Limit(64<<10-1)), key: KeyIOWriteBPS,
			refused: "io_write_bps 65535 from the annotation is too small for a container to start: give at least 64KiB",
		},
		{
			name: "the least rate", req: annotates(KeyIOReadBPS, Limit(64<<10)), key: KeyIOReadBPS,
			want: Limit(64 << 10), source: SourceAnnotation, requested: new(Limit(64 << 10)),
		},
		{name: "a read rate in the policy", policy: byDefault(KeyIOReadBPS, Limit(1)), key: KeyIOReadBPS, refused: "io_read_bps 1 from the default is too small"},
		{name: "a rate that is a ceiling", policy: ceiling(KeyIOReadIOPS, Limit(9)), key: KeyIOReadIOPS, refused: "io_read_iops 9 from the ceiling is too small for a container to start: give at least 10"},
		{name: "operations", req: annotates(KeyIOWriteIOPS, Limit(9)), key: KeyIOWriteIOPS, refused: "io_write_iops 9 from the annotation is too small"},
		{
			name: "the fewest operations", req: annotates(KeyIOWriteIOPS, Limit(10)), key: KeyIOWriteIOPS,
			want: Limit(10), source: SourceAnnotation, requested: new(Limit(10)),
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestTheCPUQuotaAndItsPeriod(t *testing.T) {
	for _, c := range []struct {
		name          string
		policy        func(*Policy)
		host          func(*Host)
		req           Request
		quota, period int64
		share         int64
		refused       string
	}{
		{
			name: "both numbers of the spec stand", req: Request{Spec: Set{KeyCPUs: Limit(123_450)}, CPUQuota: 12345, CPUPeriod: 100_000},
			quota: 12345, period: 100_000, share: 123_450,
		},
		{
			name: "an unusual period stands", req: Request{Spec: Set{KeyCPUs: Limit(2_000_000)}, CPUQuota: 20_000, CPUPeriod: 10_000},
			quota: 20_000, period: 10_000, share: 2_000_000,
		},
		{
			name: "the period is kept when the quota is lowered", req: Request{Spec: Set{KeyCPUs: Limit(100_000_000)}, CPUQuota: 1_000_000, CPUPeriod: 10_000},
			quota: 80_000, period: 10_000, share: 8_000_000,
		},
		{
			name: "a period without a quota is kept for the default", req: Request{CPUPeriod: 20_000},
			quota: 40_000, period: 20_000, share: 2_000_000,
		},
		{name: "the annotation is stricter than the quota", req: Request{
			Spec: Set{KeyCPUs: Limit(4_000_000)}, CPUQuota: 200_000, CPUPeriod: 50_000,
			Annotations: Set{KeyCPUs: Limit(500_000)},
		}, quota: 25_000, period: 50_000, share: 500_000},
		{
			name: "a ceiling that the period does not divide is never exceeded", policy: ceiling(KeyCPUs, Limit(1_500_000)),
			req:   Request{Spec: Set{KeyCPUs: Limit(4_000_000)}, CPUQuota: 28_004, CPUPeriod: 7_001},
			quota: 10_501, period: 7_001, share: 1_499_929,
		},
		{
			name: "a quota below the kernel's minimum gets the default period", req: Request{Annotations: Set{KeyCPUs: Limit(50_000)}, CPUPeriod: 10_000},
			quota: 5_000, period: 100_000, share: 50_000,
		},
		{
			name: "and then the longest period", req: Request{Annotations: Set{KeyCPUs: Limit(5_000)}},
			quota: 5_000, period: 1_000_000, share: 5_000,
		},
		{
			name: "lowered to a ceiling below the minimum of the period", policy: ceiling(KeyCPUs, Limit(5_000)),
			req: Request{Spec: Set{KeyCPUs: Limit(1_000_000)}, CPUQuota: 100_000, CPUPeriod: 100_000}, quota: 5_000, period: 1_000_000, share: 5_000,
		},
		{name: "less than any period can hold", req: Request{Annotations: Set{KeyCPUs: Limit(999)}}, refused: "below the 0.001 that can be enforced"},
		{name: "nothing at all", req: Request{Annotations: Set{KeyCPUs: Limit(0)}}, refused: "below the 0.001"},
		{name: "no limit", policy: byDefault(KeyCPUs, NoLimit()), quota: 0, period: 0},
		{
			name: "more than can be multiplied", policy: ceiling(KeyCPUs, NoLimit()), req: annotates(KeyCPUs, Limit(math.MaxInt64)),
			quota: MaxCPUQuota, period: 100_000, share: MaxCPUQuota * 10,
		},
		{
			name: "a period that no kernel takes is not used", req: Request{CPUPeriod: -1, CPUQuota: 5, Spec: Set{KeyCPUs: Limit(1_000_000)}},
			quota: 100_000, period: 100_000, share: 1_000_000,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy, host := DefaultPolicy(), fullHost()
			if c.policy != nil {
				c.policy(&policy)
			}
			plan, err := Resolve(policy, c.req, host)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Fatalf("error = %v, want %q in it", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if plan.CPUQuota != c.quota || plan.CPUPeriod != c.period {
				t.Errorf("cpu.max = %d %d, want %d %d", plan.CPUQuota, plan.CPUPeriod, c.quota, c.period)
			}
			if e := plan.Entry(KeyCPUs); e.Value.N != c.share {
				t.Errorf("cpus = %d, want %d", e.Value.N, c.share)
			}
		})
	}
}

func TestTheQuotaOfAShareOfAQuotaIsThatQuota(t *testing.T) {
	for _, period := range []int64{MinCPUPeriod, 7_001, 33_333, 99_999, 100_000, 999_983, MaxCPUPeriod} {
		for _, quota := range []int64{MinCPUQuota, 1_001, 10_501, 12_345, 333_333, 7_999_999} {
			share := MicroCPUs(quota, period)
			policy := DefaultPolicy()
			policy.Ceilings[KeyCPUs] = NoLimit()
			plan, err := Resolve(policy, Request{Annotations: Set{KeyCPUs: Limit(share)}, CPUPeriod: period}, fullHost())
			if err != nil {
				t.Fatal(err)
			}
			if plan.CPUQuota != quota || plan.CPUPeriod != period {
				t.Errorf("%d/%d is %d millionths, which is %d/%d", quota, period, share, plan.CPUQuota, plan.CPUPeriod)
			}
		}
	}
}

// systemd has its own idea of a CPU share, which the report says beforehand.
func TestSystemdRoundsTheCPUShare(t *testing.T) {
	const word = "systemd rounds it up to hundredths of a CPU"
	for _, c := range []struct {
		name          string
		quota, period int64
		systemd, said bool
	}{
		{"half a CPU", 50_000, 100_000, true, false},
		{"a hundredth", 1_000, 100_000, true, false},
		{"a thousandth more than half", 50_100, 100_000, true, true},
		{"half a CPU in an odd period", 16_667, 33_333, true, true},
		{"the cgroupfs driver", 50_100, 100_000, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := fullHost()
			host.Systemd, host.SystemdVersion = c.systemd, 257
			req := Request{CPUQuota: c.quota, CPUPeriod: c.period, Spec: Set{KeyCPUs: Limit(MicroCPUs(c.quota, c.period))}}
			plan := mustResolve(t, DefaultPolicy(), req, host)
			if said := strings.Contains(plan.Entry(KeyCPUs).Detail, word); said != c.said {
				t.Errorf("detail %q of %d/%d", plan.Entry(KeyCPUs).Detail, plan.CPUQuota, plan.CPUPeriod)
			}
		})
	}
	host := without(fullHost(), "no cpu controller", KeyCPUs)
	host.Systemd = true
	if plan := mustResolve(t, DefaultPolicy(), Request{}, host); strings.Contains(plan.Entry(KeyCPUs).Detail, word) {
		t.Errorf("detail %q where nobody enforces it", plan.Entry(KeyCPUs).Detail)
	}
}

func TestWhoIsKilledWhenMemoryRunsOut(t *testing.T) {
	systemd := func(version int) func(*Host) {
		return func(h *Host) { h.Systemd, h.SystemdVersion = true, version }
	}
	noGroup := func(h *Host) {
		h.GroupKill = Mechanism{Enforcer: EnforcerNone, Reason: "the kernel is older than 4.19"}
	}
	for _, c := range []struct {
		name    string
		policy  func(*Policy)
		host    func(*Host)
		req     Request
		scope   Scope
		group   bool
		unit    bool // systemd is told too
		warning string
		refused string
	}{
		{name: "the whole sandbox by default", scope: ScopeContainer, group: true},
		{name: "asking for the policy's own scope", req: Request{OOMScope: ScopeContainer}, scope: ScopeContainer, group: true},
		{
			name: "one process, if the policy allows it", policy: func(p *Policy) { p.OOMScopes = append(p.OOMScopes, ScopeProcess) },
			req: Request{OOMScope: ScopeProcess}, scope: ScopeProcess,
		},
		{name: "one process, which the policy does not allow", req: Request{OOMScope: ScopeProcess}, refused: `oom-scope "process"`},
		{name: "a scope that does not exist", req: Request{OOMScope: "planet"}, refused: `oom-scope "planet"`},
		{name: "one process by policy", policy: func(p *Policy) { p.OOMScope = ScopeProcess }, scope: ScopeProcess},
		{name: "no group kill on this host", host: noGroup, scope: ScopeContainer, warning: "one process is killed, not the whole sandbox: the kernel is older than 4.19"},
		{name: "nothing to kill for without a memory limit", policy: byDefault(KeyMemory, NoLimit()), scope: ScopeContainer},
		{name: "nothing to kill for where memory is not enforced", host: func(h *Host) { *h = without(*h, "no memory controller", KeyMemory) }, scope: ScopeContainer},
		{name: "systemd is told too", host: systemd(253), scope: ScopeContainer, group: true, unit: true},
		{name: "systemd is told whatever the spec says", host: systemd(262), req: Request{GroupKillOff: true}, scope: ScopeContainer, group: true, unit: true, warning: "memory.oom.group=0 from the spec is dropped"},
		{name: "a systemd that cannot be told", host: systemd(252), scope: ScopeContainer, group: true, warning: "systemd 252 may set memory.oom.group to 0 at a daemon-reload"},
		{name: "a systemd of which nothing is known", host: systemd(0), scope: ScopeContainer, group: true, warning: "a systemd whose version cannot be told may set memory.oom.group to 0"},
		{name: "systemd, and one process by policy", host: systemd(257), policy: func(p *Policy) { p.OOMScope = ScopeProcess }, scope: ScopeProcess},
		{name: "systemd, and nothing is to be changed", host: systemd(252), policy: func(p *Policy) { p.Mode = ModeOff }, scope: ScopeContainer, group: true},
		{name: "the version of a systemd that makes no cgroups here", host: func(h *Host) { h.SystemdVersion = 257 }, scope: ScopeContainer, group: true},
		{name: "the spec switches the group kill off", req: Request{GroupKillOff: true}, scope: ScopeContainer, group: true, warning: "memory.oom.group=0 from the spec is dropped"},
		{name: "the spec switches the OOM killer off", req: Request{OOMKillDisabled: true}, scope: ScopeContainer, group: true, warning: "disableOOMKiller is dropped"},
		{name: "the spec switches the OOM killer off where memory is not limited", policy: byDefault(KeyMemory, NoLimit()), req: Request{OOMKillDisabled: true}, scope: ScopeContainer},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy, host := DefaultPolicy(), fullHost()
			if c.policy != nil {
				c.policy(&policy)
			}
			if c.host != nil {
				c.host(&host)
			}
			plan, err := Resolve(policy, c.req, host)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Fatalf("error = %v, want %q in it", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if plan.OOMScope != c.scope || plan.GroupKill != c.group || plan.UnitGroupKill != c.unit {
				t.Errorf("scope %q, group kill %v, of the unit %v; want %q, %v, %v", plan.OOMScope, plan.GroupKill, plan.UnitGroupKill, c.scope, c.group, c.unit)
			}
			if all := strings.Join(plan.Warnings, "\n"); !strings.Contains(all, c.warning) || c.warning == "" && all != "" {
				t.Errorf("warnings = %q, want %q", all, c.warning)
			}
		})
	}
}

func TestTheOOMScoreHasAFloor(t *testing.T) {
	for _, c := range []struct {
		name    string
		asked   *int
		want    int
		warning bool
	}{
		{"nothing asked", nil, 500, false},
		{"0 is what engines send when nobody asked", new(0), 500, false},
		{"never killed", new(-1000), 500, true},
		{"below the floor", new(499), 500, true},
		{"the floor", new(500), 500, false},
		{"above the floor", new(985), 985, false},
		{"above the kernel's range", new(2000), 1000, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := mustResolve(t, DefaultPolicy(), Request{OOMScoreAdj: c.asked}, fullHost())
			if plan.OOMScoreAdj != c.want {
				t.Errorf("oom_score_adj = %d, want %d", plan.OOMScoreAdj, c.want)
			}
			if warned := strings.Contains(strings.Join(plan.Warnings, "\n"), "oomScoreAdj"); warned != c.warning {
				t.Errorf("warnings = %q, want one: %v", plan.Warnings, c.warning)
			}
		})
	}
}

func TestStrictModeListsEverythingThatIsNotEnforced(t *testing.T) {
	strict := func(dimensions ...Dimension) Policy {
		p := DefaultPolicy()
		p.Mode, p.StrictRequire = ModeStrict, dimensions
		return p
	}
	t.Run("a complete host", func(t *testing.T) {
		mustResolve(t, strict(Memory, Swap, Pids, CPU, OpenFiles, CoreDumps), Request{}, fullHost())
	})
	t.Run("the full list with its reasons", func(t *testing.T) {
		host := without(fullHost(), "the pids controller is not delegated", KeyPids)
		host = supervising(without(host, "no cpu.max", KeyCPUs))
		_, err := Resolve(strict(Memory, Pids, CPU, Disk, WallTime), Request{}, host)
		var missing *UnenforceableError
		if !errors.As(err, &missing) {
			t.Fatalf("error = %v, want an UnenforceableError", err)
		}
		var got []Dimension
		for _, m := range missing.Missing {
			got = append(got, m.Dimension)
		}
		if want := []Dimension{Pids, CPU, Disk, WallTime}; !reflect.DeepEqual(got, want) {
			t.Errorf("missing %v, want %v", got, want)
		}
		for _, part := range []string{"pids (the pids controller is not delegated; the supervisor cannot enforce it: the container has no pid namespace of its own)", "cpu (no cpu.max; ", "disk (this version does not enforce disk)", "wall_time (it has no limit in the configuration)", `mode = "auto"`} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("error %q does not say %q", err, part)
			}
		}
	})
	t.Run("a second key of the dimension counts", func(t *testing.T) {
		policy := strict(Memory)
		policy.Defaults[KeyMemoryHigh] = Limit(gib)
		_, err := Resolve(policy, Request{}, without(fullHost(), "no memory.high", KeyMemoryHigh))
		if err == nil || !strings.Contains(err.Error(), "memory (no memory.high)") {
			t.Errorf("error = %v, want memory to be missing", err)
		}
	})
	for _, mode := range []Mode{ModeAuto, ModeOff} {
		t.Run("not in mode "+string(mode), func(t *testing.T) {
			policy := strict(Memory, Disk)
			policy.Mode = mode
			plan := mustResolve(t, policy, Request{}, without(fullHost(), "no controller", KeyMemory))
			if plan.Mode != mode {
				t.Errorf("mode = %q, want %q", plan.Mode, mode)
			}
			if e := plan.Entry(KeyMemory); e.Applies() || e.Detail != "no controller" {
				t.Errorf("memory = %+v, want it reported as not enforced", e)
			}
		})
	}
}

func TestCgroupV1LimitsSwapOnlyTogetherWithMemory(t *testing.T) {
	swap := func(policy Policy, host Host) Entry { return mustResolve(t, policy, Request{}, host).Entry(KeySwap) }
	if e := swap(DefaultPolicy(), v1Host()); !e.Applies() {
		t.Errorf("swap with memory = %+v, want it to apply", e)
	}
	noMemory := DefaultPolicy()
	noMemory.Defaults[KeyMemory] = NoLimit()
	if e := swap(noMemory, v1Host()); e.Applies() || !strings.Contains(e.Detail, "only together with memory") {
		t.Errorf("swap without a memory limit = %+v, want it not to apply", e)
	}
	if e := swap(DefaultPolicy(), without(v1Host(), "no controller", KeyMemory)); e.Applies() {
		t.Errorf("swap without the memory controller = %+v, want it not to apply", e)
	}
	if e := swap(noMemory, fullHost()); !e.Applies() {
		t.Errorf("swap without memory on cgroup v2 = %+v, want it to apply", e)
	}
}

func TestTheRecordOfAnEarlierPlanExplainsAndNeverChanges(t *testing.T) {
	record := Prior{Requested: new(Limit(64 * gib)), Value: Limit(8 * gib), Source: SourceCeiling}
	prior := func(p Prior) map[Key]Prior { return map[Key]Prior{KeyMemory: p} }
	for _, c := range []resolveCase{
		{
			name: "the value stands as it was set", req: Request{Spec: Set{KeyMemory: Limit(8 * gib)}, Prior: prior(record)}, host: func(h *Host) { h.MemoryBytes = 100 * gib },
			key: KeyMemory, want: Limit(8 * gib), source: SourceCeiling, requested: new(Limit(64 * gib)),
		},
		{
			name: "somebody changed the field since", req: Request{Spec: Set{KeyMemory: Limit(gib)}, Prior: prior(record)},
			key: KeyMemory, want: Limit(gib), source: SourceSpec, requested: new(Limit(gib)),
		},
		{
			name: "the ceiling was lowered since", policy: ceiling(KeyMemory, Limit(4*gib)), req: Request{Spec: Set{KeyMemory: Limit(8 * gib)}, Prior: prior(record)},
			key: KeyMemory, want: Limit(4 * gib), source: SourceCeiling, requested: new(Limit(8 * gib)), detail: "lowered to 4GiB", warning: "lowered",
		},
		{name: "nothing is in the field", req: Request{Prior: prior(record)}, key: KeyMemory, want: Limit(2 * gib), source: SourceDefault},
		{
			name: "a source that does not exist", req: Request{Spec: Set{KeyMemory: Limit(gib)}, Prior: prior(Prior{Value: Limit(gib), Source: "god"})},
			key: KeyMemory, want: Limit(gib), source: SourceSpec, requested: new(Limit(gib)),
		},
		{
			name: "a negative request", req: Request{Spec: Set{KeyMemory: Limit(gib)}, Prior: prior(Prior{Requested: new(Limit(-1)), Value: Limit(gib), Source: SourceDefault})},
			key: KeyMemory, want: Limit(gib), source: SourceSpec, requested: new(Limit(gib)),
		},
		{
			name: "a negative soft number", req: Request{Spec: Set{KeyMemory: Limit(gib)}, Prior: prior(Prior{Requested: &Value{N: gib, Soft: -1}, Value: Limit(gib), Source: SourceDefault})},
			key: KeyMemory, want: Limit(gib), source: SourceSpec, requested: new(Limit(gib)),
		},
		{
			name: "an annotation does not raise what an earlier plan is said to have set",
			req:  Request{Spec: Set{KeyMemory: Limit(gib)}, Annotations: Set{KeyMemory: Limit(4 * gib)}, Prior: prior(Prior{Value: Limit(gib), Source: SourceDefault})},
			key:  KeyMemory, want: Limit(gib), source: SourceDefault, warning: "4GiB from the annotation allows more than 1GiB from the spec: the stricter one wins",
		},
	} {
		t.Run(c.name, c.run)
	}
}

func TestAnUnknownKeyHasAnEntryThatAppliesNothing(t *testing.T) {
	plan := mustResolve(t, DefaultPolicy(), Request{}, fullHost())
	if e := plan.Entry("gpus"); e.Applies() || e.ByKernel() || !e.Value.None {
		t.Errorf("Entry(gpus) = %+v, want nothing that applies", e)
	}
	if _, ok := Key("gpus").Info(); ok {
		t.Error("gpus is a key")
	}
}
