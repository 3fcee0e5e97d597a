// Package harvest turns what the kernel still knows about a sandbox into a
// result: before its cgroup is removed, or while it lives.
package harvest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/engine"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// Collect reads the evidence into the state. It does not fail: a counter that
// cannot be read is missing from the result, and a warning says why.
//
// It can be called again. Evidence that has an exit is final, and what was read
// once is better than nothing when the cgroup is gone meanwhile.
func Collect(states state.Store, st *state.State) { collect(states, st, exitOf(st)) }

// collect is Collect for an exit that was seen, or not.
func collect(states state.Store, st *state.State, exit verdict.Exit) {
	st.Name = Name(st)
	if st.Evidence != nil && st.Evidence.Exit.Code != nil {
		return
	}
	ev, usage, err := read(st)
	var killed *kill
	if errors.Is(err, fs.ErrNotExist) && mayBeKilled(exit) {
		killed = logged(st)
	}
	if err == nil || st.Evidence == nil {
		st.Evidence, st.Usage = &ev, usage
		switch {
		case killed != nil:
			warn(st, err.Error()+"; that it was killed for memory is known from the kernel's log")
		case err != nil:
			warn(st, err.Error())
		}
	}
	addKill(st.Evidence, killed)
	st.Evidence.Exit = exit
	strike, err := states.Strike(st.Root, st.ID)
	if err != nil {
		warn(st, "whether the supervisor ended the sandbox is not known: "+err.Error())
		return
	}
	st.Evidence.Strike = strike
}

// warn adds a warning once: a delete that the low-level runtime refused is
// followed by another.
func warn(st *state.State, text string) {
	if !slices.Contains(st.Warnings, text) {
		st.Warnings = append(st.Warnings, text)
	}
}

// Name returns what the engine calls a sandbox now, or "". An engine may rename
// it at any time.
func Name(st *state.State) string {
	if name := engine.DockerName(st.EngineDir); name != "" {
		return name
	}
	return st.Name
}

// What is missing is said in these words, and then why.
const (
	allUnknown   = "usage and events are not known"
	usageUnknown = "usage is not known"
)

var (
	errNotStarted = errors.New("the sandbox was not started")
	errNoCgroup   = errors.New("no cgroup of the sandbox was found when it started")
)

func read(st *state.State) (verdict.Evidence, *result.Usage, error) {
	if st.Started == nil {
		return verdict.Evidence{}, nil, fmt.Errorf("%s: %w", allUnknown, errNotStarted)
	}
	if st.Started.Cgroup == nil {
		return verdict.Evidence{}, nil, fmt.Errorf("%s: %w", allUnknown, errNoCgroup)
	}
	cg, err := cgroup.Open(cgroup.Host, *st.Started.Cgroup)
	if err != nil {
		return verdict.Evidence{}, nil, fmt.Errorf("%s: %w", allUnknown, err)
	}
	ev, err := cg.Evidence()
	if err != nil {
		return verdict.Evidence{}, nil, fmt.Errorf("%s: %w", allUnknown, gone(err))
	}
	u, err := cg.Usage()
	if err != nil {
		return ev, nil, fmt.Errorf("%s: %w", usageUnknown, gone(err))
	}
	return ev, &result.Usage{
		MemoryPeakBytes: u.MemoryPeakBytes, PidsPeak: u.PidsPeak, CPUUsec: u.CPUUsec,
		MemoryBytes: u.MemoryBytes, Pids: u.Pids,
	}, nil
}

func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: it was removed before agentbox was called", err)
	}
	return err
}

// Finish keeps the result of a sandbox and forgets its state. One that never ran
// leaves no result. The state goes in any case: a full disk must not keep a
// container's id in use.
func Finish(states state.Store, st *state.State) error {
	var err error
	if st.Started != nil && !startFailed(states, st) {
		err = st.Results.Put(conclude(st, time.Now()))
	}
	return errors.Join(err, states.Remove(st.Root, st.ID))
}

// startFailed reports whether the low-level runtime failed after its hook had
// read the limits back, as the run of a program that is not there does: it never
// left the pid, and nothing was seen of the container. Only a pid file of our own
// tells: a caller may have removed its own.
func startFailed(states state.Store, st *state.State) bool {
	if ev := st.Evidence; ev != nil && (ev.CgroupVersion != 0 || ev.Exit.Code != nil || ev.Strike != nil) {
		return false
	}
	if st.PidFile != states.PidFile(st.Root, st.ID) {
		return false
	}
	_, err := os.Lstat(st.PidFile)
	return errors.Is(err, fs.ErrNotExist)
}

func conclude(st *state.State, now time.Time) *result.Result {
	ev := verdict.Evidence{Exit: verdict.Exit{Source: verdict.ExitUnknown}}
	if st.Evidence != nil {
		ev = *st.Evidence
	}
	if st.Usage != nil { // nothing is in use any more
		st.Usage.MemoryBytes, st.Usage.Pids = nil, nil
	}
	r := st.Result()
	r.Conclude(verdict.Classify(ev, st.Started.Held), ev, now)
	return r
}

// Live describes a sandbox that has a state: created, running, or ended and not
// deleted yet.
func Live(states state.Store, st *state.State) *result.Result {
	if st.Started == nil {
		st.Name = Name(st)
		return st.Result()
	}
	running := isRunning(st) // before the evidence, which else could miss the end
	Collect(states, st)
	if !running {
		return conclude(st, time.Now())
	}
	r := st.Result()
	r.Evidence, r.Events = *st.Evidence, result.EventsOf(*st.Evidence)
	return r
}

// isRunning looks at the first process, and where its pid is not known at
// whether the low-level runtime has the container.
func isRunning(st *state.State) bool {
	if st.Started.Init.Pid > 0 {
		return st.Started.Init.Running()
	}
	return st.Live()
}
