package harvest

import (
	"errors"
	"io/fs"
	"time"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// End takes in the end of a sandbox's first process from somebody who saw it,
// while the cgroup is there and before delete is called: delete then keeps what
// was found here. It returns the result, or nil for a sandbox that was never
// started, which has none. An error says that the state could not be written; it
// comes with the result.
func End(states state.Store, st *state.State, seen verdict.Exit, now time.Time) (*result.Result, error) {
	if st.Started == nil {
		return nil, nil
	}
	collect(states, st, seen)
	st.Evidence.Exit = seen
	err := states.Update(st)
	return conclude(st, now), err
}

// OOMKills returns how many processes of a running sandbox, or of cgroups in it,
// the kernel has killed for want of memory: 0 where that cannot be read. It
// over-counts, but grows with each kill.
func OOMKills(st *state.State) int64 {
	ev, _, err := read(st)
	if errors.Is(err, fs.ErrNotExist) {
		addKill(&ev, logged(st))
	}
	return result.EventsOf(ev).OOMKill
}
