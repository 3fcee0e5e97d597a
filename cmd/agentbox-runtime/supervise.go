package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/agentbox/agentbox/pkg/lease"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/readback"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
)

// supervisorName is the program that is the host's supervisor.
const supervisorName = "agentbox"

// superviseTime bounds how long a start waits for a supervisor.
const superviseTime = 5 * time.Second

// supervisor returns the program that supervises containers of this door, and
// whether there is one. A shim supervises its own; the program is for when it
// does not.
func (inv *invocation) supervisor() (program string, m limits.Mechanism) {
	program, err := findSupervisor()
	if err != nil && inv.door() != result.DoorShim {
		return "", limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerNone, Reason: err.Error()}
	}
	return program, limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerSupervisor}
}

func findSupervisor() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find agentbox-runtime itself: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), supervisorName)
	if _, err := exec.LookPath(beside); err == nil {
		return beside, nil
	}
	path, err := exec.LookPath(supervisorName)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("the program %s, which is the supervisor, is neither in %s nor on the PATH", supervisorName, filepath.Dir(self))
	}
	return path, nil
}

// supervise has a sandbox supervised whose first process waits, where that is
// planned.
func supervise(states state.Store, st *state.State, pid int) readback.Supervision {
	if !st.Plan.Supervised() {
		return readback.Supervision{}
	}
	init, err := procfs.FindProcess(pid)
	if err == nil {
		a := lease.Asker{Dir: states.Dir, Program: st.Supervisor, Limit: superviseTime}
		err = a.Ask(states.Path(st.Root, st.ID), lease.Request{Root: st.Root, ID: st.ID, Init: init})
	}
	if err != nil {
		return readback.Supervision{Reason: err.Error()}
	}
	return readback.Supervision{Taken: true}
}

// hold keeps a sandbox from being frozen by its supervisor for as long as this
// process, or the low-level runtime that it becomes, looks at it: a frozen one
// would be taken for a paused one. What goes on for ever holds nobody up.
func (inv *invocation) hold(id string) {
	if inv.cmd.Verb == "events" {
		return // it reads counters until it is told to end
	}
	err := lease.Hold(inv.states.Path(inv.root, id))
	if err != nil && !errors.Is(err, os.ErrPermission) { // of a folder that is root's: as if there were no state
		inv.warn(err)
	}
}
