package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/harvest"
	"github.com/agentbox/agentbox/pkg/spec"
	"github.com/agentbox/agentbox/pkg/state"
)

// delete keeps the evidence, lets the low-level runtime remove the container,
// and turns the evidence into a result. The container may still be running, and
// the low-level runtime then refuses: nothing has changed in that case.
func (inv *invocation) delete() error {
	defer inv.sweep()
	st, err := inv.states.Load(inv.root, inv.cmd.ID)
	if errors.Is(err, fs.ErrNotExist) {
		inv.sweep() // passThrough does not come back
		return inv.passThrough()
	}
	if err != nil {
		return inv.deleteLost(err)
	}
	harvest.Collect(inv.states, st)
	if err := inv.states.Update(st); err != nil {
		// Better a container that is gone without a record than one that cannot
		// be removed.
		inv.warn(err)
	}
	lost := inv.cmd.Force && isLost(st)
	inv.hold(st.ID)
	if err := inv.lowLevelDelete(st.Runtime); err != nil {
		return err
	}
	if lost {
		killLost(st)
	}
	if inv.exitCode == 0 || !st.Live() {
		inv.finish(st)
	}
	return nil
}

// lowLevelDelete lets the low-level runtime delete the container, and keeps its
// exit code.
func (inv *invocation) lowLevelDelete(runtime string) error {
	path, err := inv.runtimeOf(runtime)
	if err != nil {
		return err
	}
	// Not by os/exec, which first tries out what the kernel can do: every
	// delete pays for it.
	pid, err := syscall.ForkExec(path, append([]string{path}, inv.cmd.Args...), &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2}, // and all others that were handed to us
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return fmt.Errorf("start the low-level runtime %s: %w", path, err)
	}
	var status syscall.WaitStatus
	for {
		if _, err = syscall.Wait4(pid, &status, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("wait for the low-level runtime %s: %w", path, err)
	}
	inv.exitCode = exitCodeOf(status)
	return nil
}

// isLost reports whether a sandbox runs that the low-level runtime does not know:
// it was itself killed after the start, before it wrote down what it had started.
func isLost(st *state.State) bool {
	_, known := recordedPid(st)
	return !known && st.Started != nil && st.Started.Init.Running()
}

// killLost ends a sandbox that isLost, which only a forced delete asks for.
func killLost(st *state.State) {
	fd, err := unix.PidfdOpen(st.Started.Init.Pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if !st.Started.Init.Running() { // else the descriptor is that of another process
		return
	}
	if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
		// Readable when it has ended, and with it all others of its pid namespace.
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
	}
}

// finish keeps the result of a sandbox and removes what is ours of it. The
// container is gone by now: what fails here is said, and is no failure of the
// delete, which an engine would repeat for ever.
func (inv *invocation) finish(st *state.State) {
	if st.Started == nil { // its create may have been killed
		spec.RemoveHalfWritten(st.Bundle, st.Creator.Pid)
	}
	if err := harvest.Finish(inv.states, st); err != nil {
		inv.warn(err)
	}
}

// deleteLost deletes a container whose state cannot be read: its verdict is
// lost, but the container and its id must not stay for ever.
func (inv *invocation) deleteLost(cause error) error {
	inv.warn(fmt.Errorf("the verdict of %s is lost: %w", inv.cmd.ID, cause))
	if err := inv.lowLevelDelete(inv.states.Runtime(inv.root, inv.cmd.ID)); err != nil {
		return err
	}
	if inv.exitCode != 0 {
		return nil
	}
	if err := inv.states.Remove(inv.root, inv.cmd.ID); err != nil {
		inv.warn(err)
	}
	return nil
}

// sweep finishes what lost its container: a create that failed, a shim that was
// killed before it called delete.
func (inv *invocation) sweep() {
	orphans, err := inv.states.Orphans()
	if err != nil {
		inv.warn(fmt.Errorf("look for sandboxes that lost their container: %w", err))
	}
	for _, st := range orphans {
		harvest.Collect(inv.states, st)
		inv.finish(st)
	}
}
