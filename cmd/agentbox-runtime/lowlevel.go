package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/lowlevel"
	"github.com/agentbox/agentbox/pkg/ocicli"
	"github.com/agentbox/agentbox/pkg/state"
)

// invocation is one call of agentbox-runtime.
type invocation struct {
	cmd      *ocicli.Command
	states   state.Store
	root     string // the low-level runtime's state folder
	exitCode int    // of a low-level runtime that was waited for
}

func newInvocation(cmd *ocicli.Command) *invocation {
	dir := state.DefaultDir()
	if cmd.State != "" {
		dir = state.CleanRoot(cmd.State) // the hook of a run works in another folder
	}
	return &invocation{cmd: cmd, states: state.Store{Dir: dir}, root: stateRoot(cmd.Root)}
}

// stateRoot returns the low-level runtime's state folder: the one given, or the
// default of runc (runc(8)). crun has another default; it is named as runc's
// here, since it only has to be the same in every command.
func stateRoot(root string) string {
	if root != "" {
		return state.CleanRoot(root)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && os.Geteuid() != 0 {
		return filepath.Join(dir, "runc")
	}
	return "/run/runc"
}

func (inv *invocation) configPath() string {
	if inv.cmd.Config != "" {
		return inv.cmd.Config
	}
	return config.DefaultPath
}

func (inv *invocation) loadConfig() (*config.File, error) {
	if inv.cmd.Config != "" {
		return config.Load(inv.cmd.Config)
	}
	return config.LoadOptional(config.DefaultPath)
}

// passThrough becomes the low-level runtime with the same arguments. A container
// of ours keeps the runtime that made it; for all others the configuration
// decides, and a broken one is no reason not to kill or show a container.
func (inv *invocation) passThrough() error {
	if id, path := inv.madeBy(); path != "" {
		inv.hold(id)
		if _, err := os.Stat(path); err == nil {
			return become(path, inv.cmd.Args)
		}
	}
	path, err := inv.configuredRuntime()
	if err != nil {
		return err
	}
	return become(path, inv.cmd.Args)
}

// madeBy returns the id and the low-level runtime of the container that a command
// is about; "" when it is none of ours. Where the place of the id in the command line is
// not known, any word behind the verb that is the id of a container of ours is
// it.
func (inv *invocation) madeBy() (id, path string) {
	if inv.cmd.ID != "" {
		return inv.cmd.ID, inv.states.Runtime(inv.root, inv.cmd.ID)
	}
	if inv.cmd.Verb == "" {
		return "", ""
	}
	for _, word := range inv.cmd.Args[len(inv.cmd.Globals()):] {
		if !ocicli.ValidID(word) {
			continue
		}
		if path := inv.states.Runtime(inv.root, word); path != "" {
			return word, path
		}
	}
	return "", ""
}

// configuredRuntime returns the path of the runtime that the configuration names,
// however broken the rest of it is.
func (inv *invocation) configuredRuntime() (string, error) {
	name := config.LenientRuntime(inv.configPath())
	if name == "" {
		name = config.Default().Runtime
	}
	return findRuntime(name, inv.configPath())
}

// runtimeOf returns the low-level runtime of a sandbox, or the configured one
// when that is not there any more: it was moved, or updated to another path.
func (inv *invocation) runtimeOf(path string) (string, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return inv.configuredRuntime()
	}
	return path, nil
}

// becomeOf becomes the low-level runtime of a sandbox.
func (inv *invocation) becomeOf(st *state.State) error {
	path, err := inv.runtimeOf(st.Runtime)
	if err != nil {
		return err
	}
	return become(path, inv.cmd.Args)
}

// findRuntime returns the absolute path of the low-level runtime.
func findRuntime(name, configPath string) (string, error) {
	return lowlevel.Lookup{Self: "/proc/self/exe", Config: configPath}.Find(name)
}

// become replaces this process by the low-level runtime: the same pid, so that
// death signals, readiness protocols, descriptors and signals stay as the caller
// arranged them. It returns only an error.
func become(path string, args []string) error {
	err := syscall.Exec(path, append([]string{path}, args...), os.Environ())
	return fmt.Errorf("start the low-level runtime %s: %w", path, err)
}

// execFlag asks for runExec.
const execFlag = "--agentbox-exec"

// runExec is the first half of a child that has to tell its own pid: LISTEN_PID
// (sd_listen_fds(3)) names the process that sockets are meant for.
func runExec(args []string) int {
	_ = os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	return fail(nil, become(args[0], args[1:]))
}

// child prepares the low-level runtime as a child: same descriptors, same
// process group, and it does not outlive us (see init).
func child(path string, args []string) *exec.Cmd {
	c := exec.Command(path, args...)
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		c = exec.Command("/proc/self/exe", append([]string{execFlag, path}, args...)...)
	}
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// exitCodeOf returns the exit code of a child, in the shell's convention.
func exitCodeOf(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
