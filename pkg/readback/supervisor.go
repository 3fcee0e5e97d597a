package readback

import (
	"fmt"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
)

// supervises reports whether a limit is the supervisor's.
func (r *reader) supervises(e limits.Entry) bool {
	return e.BySupervisor() && r.plan.Mode != limits.ModeOff
}

// supervised completes the report of a limit that the supervisor is to hold.
func (r *reader) supervised(info limits.KeyInfo, e limits.Entry, out result.Enforcement) result.Enforcement {
	if !r.supervision.Taken {
		out.Detail = join(out.Detail, r.untaken(info, e))
		if have, found := r.found[e.Key]; found && have.Owner != "" { // of a cgroup above
			out.Effective = result.NumberOf(info, have.Value)
			out.Owner, out.Mechanism = have.Owner, have.Mechanism
			out.Enforcer, out.Precision = limits.EnforcerKernel, precision(e.Key)
		}
		return out
	}
	out.Effective = result.NumberOf(info, e.Value)
	out.Owner, out.Mechanism = cgroup.Self, limits.SupervisorName
	out.Enforcer, out.Precision = limits.EnforcerSupervisor, limits.SupervisorPrecision(e.Key)
	return out
}

// untaken says that nobody holds a limit of the supervisor.
func (r *reader) untaken(info limits.KeyInfo, e limits.Entry) string {
	return fmt.Sprintf("%s was planned and the supervisor has not taken the sandbox: %s", info.String(e.Value), r.supervision.Reason)
}
