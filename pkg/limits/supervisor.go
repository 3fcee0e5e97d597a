package limits

import (
	"cmp"
	"math"
	"slices"
)

// SupervisorName is the mechanism of a limit that the supervisor enforces.
const SupervisorName = "supervisor"

// Supervisable are the dimensions that a supervisor can enforce in place of the
// kernel. What no kernel interface enforces, cpu_time and wall_time, is always
// its own.
var Supervisable = [...]Dimension{Memory, Pids, CPU, IO}

// BySupervisor reports whether the supervisor enforces a limit of this key.
func (e Entry) BySupervisor() bool { return !e.Value.None && e.Enforcer == EnforcerSupervisor }

// Supervised reports whether a sandbox with this plan needs the supervisor.
func (p *Plan) Supervised() bool {
	if p.Mode == ModeOff {
		return false
	}
	for _, e := range p.Entries {
		if e.BySupervisor() {
			return true
		}
	}
	return false
}

// SupervisedMemory is what the supervisor holds memory and swap together to, in
// bytes; 0: it does not.
func (p *Plan) SupervisedMemory() int64 {
	memory, swap := p.Entry(KeyMemory), p.Entry(KeySwap)
	switch {
	case p.Mode == ModeOff || !memory.BySupervisor() && !swap.BySupervisor():
		return 0
	case swap.Value.None:
		return memory.Value.N
	}
	return min(memory.Value.N, math.MaxInt64-swap.Value.N) + swap.Value.N
}

// SupervisorPrecision says how exact the supervisor is about a key: a bound by its
// design, for a person. Empty: it enforces no such key.
func SupervisorPrecision(k Key) string {
	switch k {
	case KeyMemory, KeySwap:
		return "sampled every 1 ms to 1 s, most often near the limit"
	case KeyPids:
		return "sampled every 1 ms to 1 s, the newest beyond the limit are killed"
	case KeyCPUs, KeyIOReadBPS, KeyIOWriteBPS:
		return "on average, with bursts of up to 100 ms of the rate"
	case KeyCPUTime, KeyWallTime:
		return "within 1 s"
	}
	return ""
}

// BySupervisorOnly reports whether only a supervisor can enforce a key.
func (k Key) BySupervisorOnly() bool { return k == KeyCPUTime || k == KeyWallTime }

// supervise gives a limit that has a value to the supervisor where the kernel does
// not enforce it, or where the policy wants that. It comes after the kernel had
// its say.
func (r *resolver) supervise(e *Entry) {
	detail, wanted := r.forSupervisor(*e)
	if e.Value.None || !wanted {
		return
	}
	if reason := r.unsupervised(e.Key); reason != "" {
		if r.host.Supervisor != (Mechanism{}) || e.Key.BySupervisorOnly() {
			e.appendDetail("the supervisor cannot enforce it: " + reason)
		}
		return
	}
	e.Enforcer, e.Mechanism, e.Precision = EnforcerSupervisor, SupervisorName, SupervisorPrecision(e.Key)
	if detail != "" {
		e.appendDetail(detail)
	}
}

// forSupervisor reports whether a key is the supervisor's if it can, and what is
// to be said besides what the kernel lacks.
func (r *resolver) forSupervisor(e Entry) (detail string, wanted bool) {
	byKernel := e.Enforcer == EnforcerKernel
	switch e.Key {
	case KeyCPUTime, KeyWallTime:
		return "", true
	case KeySwap:
		memory := r.plan.Entry(KeyMemory)
		if memory.BySupervisor() || memory.ByKernel() && !byKernel {
			return "counted as memory", true
		}
	case KeyMemory, KeyPids, KeyCPUs, KeyIOReadBPS, KeyIOWriteBPS:
		if !byKernel {
			return "", true
		}
		if slices.Contains(r.policy.Supervise, e.Dimension) {
			return "the configuration has it in supervise", true
		}
	}
	return "", false
}

// unsupervised says why the supervisor cannot enforce a key; "" when it can.
func (r *resolver) unsupervised(k Key) string {
	info, _ := k.Info()
	switch {
	case r.host.Supervisor.Enforcer != EnforcerSupervisor:
		return cmp.Or(r.host.Supervisor.Reason, "there is none")
	case !r.req.OwnPIDNamespace:
		return "the container has no pid namespace of its own"
	case info.Dimension == IO:
		return r.host.SupervisorNoIO
	}
	return ""
}
