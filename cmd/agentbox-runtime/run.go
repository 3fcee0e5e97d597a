package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/harvest"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/note"
	"github.com/agentbox/agentbox/pkg/readback"
	"github.com/agentbox/agentbox/pkg/spec"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// runForeground waits for the low-level run, because run removes the cgroup
// with its counters before it returns: it is asked to keep the container, and
// the delete is ours.
func (inv *invocation) runForeground(st *state.State) error {
	keeps := inv.canKeep(st.Runtime)
	args := inv.cmd.Args
	if keeps && !inv.cmd.Keep {
		args = inv.cmd.WithFlags("--keep")
	}
	c := child(st.Runtime, args)
	stop := forwardSignals(c)
	err := c.Run()
	stop()
	if c.ProcessState == nil {
		return errors.Join(fmt.Errorf("start the low-level runtime %s: %w", st.Runtime, err), inv.states.Remove(st.Root, st.ID))
	}
	inv.exitCode = exitCodeOf(c.ProcessState.Sys().(syscall.WaitStatus))
	if c.ProcessState.ExitCode() < 0 {
		// The low-level runtime itself was killed. The container may live on,
		// as it would without us; its state waits for whoever deletes it.
		return nil
	}
	return inv.afterRun(st, keeps)
}

// afterRun keeps the evidence of a run and removes its container.
func (inv *invocation) afterRun(st *state.State, keeps bool) error {
	// The hook has written into the state meanwhile.
	st, err := inv.states.Load(st.Root, st.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody deleted the container; the result is kept already
	}
	if err != nil {
		return err
	}
	if st.Started != nil {
		harvest.Collect(inv.states, st)
		if !keeps {
			st.Usage = nil
			st.Warnings = append(st.Warnings, "usage is not known: "+filepath.Base(st.Runtime)+" has no run --keep and removed the cgroup with its counters")
		}
		code := inv.exitCode
		st.Evidence.Exit = verdict.Exit{Source: verdict.ExitWait, Code: &code}
	}
	if inv.cmd.Keep {
		// The caller deletes, and the evidence waits for that.
		return inv.states.Update(st)
	}
	if keeps {
		if err := inv.states.Update(st); err != nil {
			inv.warn(err)
		}
		inv.deleteKept(st)
	}
	if st.Started == nil && inv.exitCode == 0 {
		// Where it did not run, the low-level runtime has said why and failed.
		err = fmt.Errorf("%s ran although its limits were never read back: its config.json was changed after agentbox wrote it", st.ID)
	}
	inv.finish(st)
	if err != nil && st.Plan.Mode != limits.ModeStrict {
		inv.warn(err)
		return nil
	}
	return err
}

// deleteKept removes what --keep left. A run that failed early left nothing.
func (inv *invocation) deleteKept(st *state.State) {
	if _, err := os.Lstat(filepath.Join(st.RealRoot, st.ID)); errors.Is(err, fs.ErrNotExist) {
		return
	}
	out, err := exec.Command(st.Runtime, append(inv.cmd.Globals(), "delete", "--force", st.ID)...).CombinedOutput()
	if err != nil {
		inv.warn(fmt.Errorf("delete the container %s after its run: %w: %s", st.ID, err, bytes.TrimSpace(out)))
	}
}

const keepNote = "keep"

// canKeep reports whether the low-level runtime's run has --keep. Asking costs a
// start of it, so the answer is kept until its file changes.
func (inv *invocation) canKeep(path string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return false
	}
	key := fmt.Sprintf("%d-%d-%d-%d", st.Dev, st.Ino, st.Size, st.Mtim.Nano())
	if answer, ok := note.Read(inv.states.Dir, keepNote, key); ok {
		return answer == "yes"
	}
	out, err := exec.Command(path, "run", "--help").Output()
	keeps := err == nil && bytes.Contains(out, []byte("--keep"))
	answer := "no"
	if keeps {
		answer = "yes"
	}
	note.Write(inv.states.Dir, keepNote, key, answer)
	return keeps
}

// forwardSignals hands signals on to the low-level runtime, which hands them to
// the container. What the terminal sends goes to both of us by itself.
func forwardSignals(c *exec.Cmd) (stop func()) {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	done := make(chan struct{})
	_, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	terminal := err == nil
	go func() {
		for {
			select {
			case s := <-signals:
				if forwards(s.(syscall.Signal), terminal) && c.Process != nil {
					_ = c.Process.Signal(s)
				}
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

func forwards(s syscall.Signal, terminal bool) bool {
	switch s {
	case unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE: // SIGURG is the Go scheduler's
		return false
	case unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGWINCH:
		return !terminal
	}
	return true
}

// hook returns the createRuntime hook that stands in for start where there is no
// start: it runs when the cgroup is set up and before the user's program.
func (inv *invocation) hook() (*spec.Hook, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find agentbox-runtime itself: %w", err)
	}
	return &spec.Hook{Path: self, Args: []string{inv.states.Dir, inv.root}}, nil
}

// runHook is that hook. The container's state comes on standard input
// (runtime.md, State): the hook is the same for all containers of a bundle. One
// that has no state of ours was made by somebody else from a bundle that we once
// rewrote.
func runHook(args []string) int {
	if len(args) != 2 {
		return fail(nil, errors.New("the hook of agentbox-runtime is called by the low-level runtime, with the folder of states and the low-level state folder"))
	}
	var container struct {
		ID  string `json:"id"`
		Pid int    `json:"pid"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&container); err != nil {
		return fail(nil, fmt.Errorf("read the container's state from standard input: %w", err))
	}
	states := state.Store{Dir: args[0]}
	st, err := states.Load(args[1], container.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		return fail(nil, err)
	}
	if err := verify(states, st, container.Pid, readback.AtHook); err != nil {
		return fail(nil, err)
	}
	return 0
}
