// Package engine starts a guest on one of two engines that share image, init and
// payload: user-mode Linux, a kernel that is an ordinary program, and QEMU.
package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/host"
	"github.com/agentbox/agentbox/test/vm/internal/image"
)

// Disk is one raw disk besides the root disk. Role becomes the kernel parameter
// abvm_ROLE, whose value is the device's name in the guest.
type Disk struct {
	Role     string // "payload", "data", "swap", "out", "spare"
	Path     string
	ReadOnly bool
}

// Machine is a guest to start.
type Machine struct {
	Image      *image.Image
	Scratch    string // folder of this run
	Token      string // for the guest's control lines
	CPUs       int
	MemoryMiB  int
	Disks      []Disk
	KernelArgs []string // further words for the kernel command line
	Terminal   bool     // the console takes input too
}

// Engine makes the command line for a machine.
type Engine interface {
	// Name is what the user calls the engine.
	Name() string
	// Prepare checks the host, installs what is missing and decides what can be
	// decided only once.
	Prepare(ctx context.Context, progress *host.Progress, image *image.Image) error
	// Detail says more than Name about how the guest runs; valid after Prepare.
	Detail() string
	// Defaults returns CPUs, the time a boot may take and the time a whole run
	// may take.
	Defaults() Defaults
	// Command returns the program to run.
	Command(machine Machine) (Command, error)
}

// Defaults are an engine's values for flags that were left out.
type Defaults struct {
	CPUs        int
	BootTimeout time.Duration
	Timeout     time.Duration
}

// Command is a program with its arguments and what it needs in its environment.
type Command struct {
	Program     string
	Arguments   []string
	Environment []string
}

// Names lists the engines, the default first.
var Names = []string{"uml", "qemu"}

// New returns the engine of that name.
func New(name string) (Engine, error) {
	switch name {
	case "uml":
		return &uml{}, nil
	case "qemu":
		return &qemu{}, nil
	default:
		return nil, fmt.Errorf("unknown engine %q: it is one of %s", name, strings.Join(Names, ", "))
	}
}

// kernelParameters are the words that both engines put on the kernel command
// line. The kernel hands the ones with "abvm_" to init as environment. The user's
// words come last, since of a word that is given twice the last one holds.
func kernelParameters(machine Machine, disk func(i int) string, console string) []string {
	words := []string{"quiet", "panic=-1", "random.trust_cpu=on", "abvm_token=" + machine.Token, "abvm_tty=" + console}
	for i, d := range machine.Disks {
		words = append(words, "abvm_"+d.Role+"="+disk(i))
	}
	return append(words, machine.KernelArgs...)
}

// Process is a running engine with everything it started.
type Process struct {
	command *exec.Cmd
	done    chan struct{}
	err     error
}

// Start runs the command in a session and process group of its own, so that the
// kernel of user-mode Linux may change the settings of a terminal that is not its
// own without being stopped for it. Nil input is an empty one. The engine dies
// with this process even if this process is killed.
func Start(command Command, input io.Reader, output io.Writer) (*Process, error) {
	process := &Process{done: make(chan struct{})}
	process.command = exec.Command(command.Program, command.Arguments...)
	process.command.Env = append(os.Environ(), command.Environment...)
	process.command.Stdout = output
	process.command.Stderr = output
	process.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if file, ok := input.(*os.File); ok {
		process.command.Stdin = file
	}
	started := make(chan error)
	go func() {
		// Pdeathsig is about the thread that forked, so that thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := process.command.Start()
		started <- err
		if err != nil {
			return
		}
		// A helper that outlives the engine would keep the output open.
		process.command.WaitDelay = 5 * time.Second
		process.err = process.command.Wait()
		close(process.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Program, err)
	}
	return process, nil
}

// Done is closed when the engine ended and its output was read to the end.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the engine ended; valid after Done.
func (p *Process) Err() error { return p.err }

// Kill ends the engine and its helpers and waits for the end.
func (p *Process) Kill() {
	// Fails only if the group is gone, which is what is wanted.
	_ = syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL)
	<-p.done
	// Helpers that the engine started between the signal and its own end.
	_ = syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL)
}
