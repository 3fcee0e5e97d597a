package limits_test

import (
	"maps"
	"math"
	"strings"
	"testing"

	. "github.com/agentbox/agentbox/pkg/limits"
)

// supervising returns a host that has a supervisor too.
func supervising(h Host) Host {
	h.Supervisor = Mechanism{Name: SupervisorName, Enforcer: EnforcerSupervisor}
	return h
}

// supervisable returns a request that a supervisor can take.
func supervisable(req Request) Request {
	req.OwnPIDNamespace = true
	return req
}

// rootlessHost has no cgroup that can be used.
func rootlessHost() Host {
	h := without(fullHost(), "no permission", KeyMemory, KeyMemoryHigh, KeySwap, KeyPids, KeyCPUs, KeyIOReadBPS, KeyIOWriteBPS, KeyIOReadIOPS, KeyIOWriteIOPS)
	h.GroupKill = Mechanism{Enforcer: EnforcerNone, Reason: "no permission"}
	h.IO = HostIO{Unknown: true}
	return h
}

// enforcers returns who enforces the keys that have a value, without the rlimits
// and what nobody enforces.
func enforcers(plan *Plan) map[Key]Enforcer {
	m := map[Key]Enforcer{}
	for _, e := range plan.Entries {
		if e.Applies() && e.Enforcer != EnforcerProcess {
			m[e.Key] = e.Enforcer
		}
	}
	return m
}

const (
	kernel     = EnforcerKernel
	supervisor = EnforcerSupervisor
)

func TestTheSupervisorEnforcesWhatTheKernelDoesNot(t *testing.T) {
	times := Set{KeyCPUTime: Limit(5e9), KeyWallTime: Limit(60e9)}
	byKernel := map[Key]Enforcer{KeyMemory: kernel, KeySwap: kernel, KeyPids: kernel, KeyCPUs: kernel, KeyIOReadBPS: kernel, KeyIOWriteBPS: kernel}
	but := func(e Enforcer, keys ...Key) map[Key]Enforcer {
		m := maps.Clone(byKernel)
		for _, k := range keys {
			m[k] = e
			if e == "" {
				delete(m, k)
			}
		}
		return m
	}
	own := Request{OwnPIDNamespace: true}
	for _, c := range []struct {
		name   string
		host   Host
		policy func(*Policy)
		req    Request
		want   map[Key]Enforcer
		key    Key
		detail string // of key
	}{
		{name: "the kernel does all", host: fullHost(), req: own, want: byKernel, key: KeyMemory},
		{
			name: "no cgroup", host: rootlessHost(), req: own,
			want: map[Key]Enforcer{KeyMemory: supervisor, KeySwap: supervisor, KeyPids: supervisor, KeyCPUs: supervisor, KeyIOReadBPS: supervisor, KeyIOWriteBPS: supervisor},
			key:  KeyMemory, detail: "no permission",
		},
		{
			name: "operations are beyond it", host: without(fullHost(), "no io.max", IOKeys[:]...), policy: func(p *Policy) { p.Defaults[KeyIOReadIOPS] = Limit(100) }, req: own,
			want: but(supervisor, KeyIOReadBPS, KeyIOWriteBPS), key: KeyIOReadIOPS, detail: "no io.max",
		},
		{
			name: "memory.high is beyond it", host: without(fullHost(), "no such file", KeyMemoryHigh), policy: func(p *Policy) { p.Defaults[KeyMemoryHigh] = Limit(gib) }, req: own,
			want: byKernel, key: KeyMemoryHigh, detail: "no such file",
		},
		{name: "swap goes with memory", host: without(fullHost(), "no memory.max", KeyMemory), req: own, want: but(supervisor, KeyMemory, KeySwap), key: KeySwap, detail: "counted as memory"},
		{
			name: "swap alone, beside memory of the kernel", host: without(v1Host(), "swap is not accounted", KeySwap), req: own,
			want: but(supervisor, KeySwap), key: KeySwap, detail: "swap is not accounted; counted as memory",
		},
		{
			name: "swap without a limit of memory", host: without(v1Host(), "swap is not accounted", KeySwap), req: own, policy: func(p *Policy) { p.Defaults[KeyMemory] = NoLimit() },
			want: but("", KeyMemory, KeySwap), key: KeySwap, detail: "only together with memory",
		},
		{
			name: "the policy wants it for cpu", host: fullHost(), policy: func(p *Policy) { p.Supervise = []Dimension{CPU} }, req: own,
			want: but(supervisor, KeyCPUs), key: KeyCPUs, detail: "the configuration has it in supervise",
		},
		{
			name: "the policy wants it for memory", host: fullHost(), policy: func(p *Policy) { p.Supervise = []Dimension{Memory} }, req: own,
			want: but(supervisor, KeyMemory, KeySwap), key: KeyMemory, detail: "the configuration has it in supervise",
		},
		{
			name: "the policy wants it for io", host: fullHost(), req: own,
			policy: func(p *Policy) { p.Supervise, p.Defaults[KeyIOReadIOPS] = []Dimension{IO}, Limit(100) },
			want:   with(but(supervisor, KeyIOReadBPS, KeyIOWriteBPS), KeyIOReadIOPS, kernel), key: KeyIOWriteBPS, detail: "in supervise",
		},
		{
			name: "the policy wants it and it cannot: the kernel", host: fullHost(), policy: func(p *Policy) { p.Supervise = []Dimension{Pids} },
			want: byKernel, key: KeyPids, detail: "the supervisor cannot enforce it: the container has no pid namespace of its own",
		},
		{
			name: "times are always its own", host: fullHost(), policy: func(p *Policy) { maps.Copy(p.Defaults, times) }, req: own,
			want: with(with(byKernel, KeyCPUTime, supervisor), KeyWallTime, supervisor), key: KeyCPUTime,
		},
		{
			name: "times in another's pid namespace", host: fullHost(), policy: func(p *Policy) { maps.Copy(p.Defaults, times) },
			want: byKernel, key: KeyWallTime, detail: "the supervisor cannot enforce it: the container has no pid namespace of its own",
		},
		{
			name: "what a process reads is not told", host: noIO(rootlessHost()), req: own,
			want: map[Key]Enforcer{KeyMemory: supervisor, KeySwap: supervisor, KeyPids: supervisor, KeyCPUs: supervisor},
			key:  KeyIOReadBPS, detail: "no permission; the supervisor cannot enforce it: no /proc/PID/io",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy := DefaultPolicy()
			if c.policy != nil {
				c.policy(&policy)
			}
			plan := mustResolve(t, policy, c.req, supervising(c.host))
			if got := enforcers(plan); !maps.Equal(got, c.want) {
				t.Errorf("enforcers\n%v, want\n%v", got, c.want)
			}
			if e := plan.Entry(c.key); !strings.Contains(e.Detail, c.detail) || (c.detail == "") != (e.Detail == "") {
				t.Errorf("%s: detail %q, want %q", c.key, e.Detail, c.detail)
			}
			anybody := false
			for _, e := range c.want {
				anybody = anybody || e == supervisor
			}
			if plan.Supervised() != anybody {
				t.Errorf("supervised: %v, want %v", plan.Supervised(), anybody)
			}
			policy.Mode = ModeOff
			if off := mustResolve(t, policy, c.req, supervising(c.host)); off.Supervised() || off.SupervisedMemory() != 0 {
				t.Error("mode off needs a supervisor")
			}
		})
	}
}

func with(m map[Key]Enforcer, k Key, e Enforcer) map[Key]Enforcer {
	m = maps.Clone(m)
	m[k] = e
	return m
}

func noIO(h Host) Host {
	h.SupervisorNoIO = "no /proc/PID/io"
	return h
}

func TestWithoutASupervisorNobodyEnforcesAndTheReportSaysWhy(t *testing.T) {
	host := rootlessHost()
	host.Supervisor = Mechanism{Enforcer: EnforcerNone, Reason: "there is no agentbox program"}
	policy := DefaultPolicy()
	policy.Defaults[KeyWallTime] = Limit(60e9)
	plan := mustResolve(t, policy, Request{OwnPIDNamespace: true}, host)
	if plan.Supervised() || len(enforcers(plan)) != 0 {
		t.Errorf("enforcers %v, want none", enforcers(plan))
	}
	for key, want := range map[Key]string{
		KeyMemory:   "no permission; the supervisor cannot enforce it: there is no agentbox program",
		KeyWallTime: "the supervisor cannot enforce it: there is no agentbox program",
	} {
		if e := plan.Entry(key); e.Detail != want {
			t.Errorf("%s: detail %q, want %q", key, e.Detail, want)
		}
	}
	host.Supervisor = Mechanism{} // nobody looked
	if e := mustResolve(t, policy, Request{}, host).Entry(KeyMemory); e.Detail != "no permission" {
		t.Errorf("detail %q, want nothing of a supervisor", e.Detail)
	}
}

func TestStrictModeWantsTheKernelWhereThereIsOne(t *testing.T) {
	policy := DefaultPolicy()
	policy.Mode, policy.StrictRequire = ModeStrict, []Dimension{Memory, WallTime}
	policy.Defaults[KeyWallTime] = Limit(60e9)
	mustResolve(t, policy, supervisable(Request{}), supervising(fullHost()))
	plan, err := Resolve(policy, supervisable(Request{}), supervising(without(fullHost(), "no memory.max", KeyMemory)))
	if err == nil || plan == nil || !strings.Contains(err.Error(), "memory (only the supervisor does: no memory.max)") || strings.Contains(err.Error(), "wall_time") {
		t.Errorf("error = %v, want memory alone to be missing", err)
	}
	policy.Supervise = []Dimension{Memory}
	if _, err := Resolve(policy, supervisable(Request{}), supervising(fullHost())); err == nil || !strings.Contains(err.Error(), "in supervise") {
		t.Errorf("error = %v, want it to name supervise", err)
	}
}

func TestASupervisedMemoryLimitEndsTheWholeSandbox(t *testing.T) {
	policy := DefaultPolicy()
	policy.OOMScopes = append(policy.OOMScopes, ScopeProcess)
	req := supervisable(Request{OOMScope: ScopeProcess, OOMKillDisabled: true})
	plan := mustResolve(t, policy, req, supervising(rootlessHost()))
	all := strings.Join(plan.Warnings, "\n")
	if plan.OOMScope != ScopeContainer || plan.GroupKill || !strings.Contains(all, "ends the whole sandbox, whatever oom scope process says") || !strings.Contains(all, "disableOOMKiller is dropped") {
		t.Errorf("scope %s, group kill %v, warnings %q", plan.OOMScope, plan.GroupKill, plan.Warnings)
	}
	plan = mustResolve(t, policy, req, supervising(fullHost()))
	if plan.OOMScope != ScopeProcess {
		t.Errorf("scope %s where the kernel enforces, want process", plan.OOMScope)
	}
}

func TestSupervisedMemoryCountsSwap(t *testing.T) {
	for _, c := range []struct {
		name         string
		host         Host
		memory, swap Value
		want         int64
	}{
		{"no swap", rootlessHost(), Limit(gib), Limit(0), gib},
		{"some swap", rootlessHost(), Limit(gib), Limit(mib), gib + mib},
		{"any swap", rootlessHost(), Limit(gib), NoLimit(), gib},
		{"more than there are numbers", rootlessHost(), Limit(gib), Limit(math.MaxInt64 - 1), math.MaxInt64},
		{"no memory limit", rootlessHost(), NoLimit(), Limit(0), 0},
		{"the kernel holds memory", without(v1Host(), "not accounted", KeySwap), Limit(gib), Limit(mib), gib + mib},
		{"the kernel holds both", fullHost(), Limit(gib), Limit(mib), 0},
	} {
		policy := DefaultPolicy()
		policy.Defaults[KeyMemory], policy.Defaults[KeySwap] = c.memory, c.swap
		if got := mustResolve(t, policy, supervisable(Request{}), supervising(c.host)).SupervisedMemory(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestASupervisedCPUShareIsKeptAsItIs(t *testing.T) {
	req := supervisable(Request{Spec: Set{KeyCPUs: Limit(333_334)}, CPUQuota: 10_000, CPUPeriod: 30_000})
	plan := mustResolve(t, DefaultPolicy(), req, supervising(rootlessHost()))
	if e := plan.Entry(KeyCPUs); e.Value != Limit(333_334) || plan.CPUQuota != 0 || plan.CPUPeriod != 0 {
		t.Errorf("cpus %+v, quota %d in %d, want the share and no quota", e, plan.CPUQuota, plan.CPUPeriod)
	}
	req = supervisable(Request{Annotations: Set{KeyCPUs: Limit(999)}})
	if _, err := Resolve(DefaultPolicy(), req, supervising(rootlessHost())); err == nil || !strings.Contains(err.Error(), "below the 0.001") {
		t.Errorf("error = %v, want a share that is too small refused", err)
	}
}
