package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/readback"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
)

// start reads the limits back where they hold, while the container's first
// process waits and the user's program has not run, and then becomes the
// low-level start.
func (inv *invocation) start() error {
	st, err := inv.states.Load(inv.root, inv.cmd.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return inv.passThrough() // not a container of ours
	}
	if err != nil {
		return err
	}
	if st.Pause {
		return inv.becomeOf(st)
	}
	if st.Started != nil {
		// The low-level runtime refuses a second start; what the first one
		// found stays.
		return inv.becomeOf(st)
	}
	pid, err := initPid(st)
	if err != nil && st.Plan.Mode == limits.ModeStrict {
		return fmt.Errorf("strict mode: the limits of %s cannot be read back: %w", st.ID, err)
	}
	if err := verify(inv.states, st, pid, readback.AtStart); err != nil {
		return err
	}
	return inv.becomeOf(st)
}

// verify reads the limits back and records them. In strict mode it fails when a
// required one does not hold.
func verify(states state.Store, st *state.State, pid int, at readback.Moment) error {
	report := readback.Read(&st.Plan, pid, at, supervise(states, st, pid))
	if st.Plan.Mode == limits.ModeStrict && len(report.Missing) > 0 {
		err := &limits.UnenforceableError{Missing: report.Missing}
		keepRefusal(st.Results, &result.Result{ID: st.ID, Door: st.Door, Mode: st.Plan.Mode}, err)
		return err
	}
	report.Held.MayProtect = st.MayProtect
	st.Started = &state.Started{
		Cgroup:      report.Cgroup,
		Enforcement: report.Enforcement,
		Held:        report.Held,
		Warnings:    report.Warnings,
	}
	if init, err := procfs.FindProcess(pid); err == nil {
		st.Started.Init = init
	}
	return states.Update(st)
}
