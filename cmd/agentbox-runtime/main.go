// Command agentbox-runtime stands in the place of an OCI runtime (runc, crun):
// it takes the same command line and hands every command on to the low-level
// runtime. On the way, create, run and restore give the container its limits,
// start reads them back, and delete keeps why it ended.
package main

import (
	"os"
	"runtime"

	"github.com/agentbox/agentbox/pkg/ocicli"
	"github.com/agentbox/agentbox/pkg/spec"
)

// A death signal (PR_SET_PDEATHSIG) belongs to one thread: an exec from another
// thread loses the one that our caller has set, and one that we set for a child
// is sent when the thread that started it ends. So all is done on the first one.
func init() { runtime.LockOSThread() }

func main() { os.Exit(run(os.Args[1:])) }

// run returns the exit code, unless the process has become the low-level
// runtime.
func run(args []string) int {
	if len(args) > 0 {
		switch args[0] {
		case spec.HookFlag:
			return runHook(args[1:])
		case execFlag:
			return runExec(args[1:])
		}
	}
	cmd, err := ocicli.Parse(args)
	if err != nil {
		return fail(cmd, err)
	}
	inv := newInvocation(cmd)
	if err := inv.dispatch(); err != nil {
		return fail(cmd, err)
	}
	return inv.exitCode
}

// dispatch runs the part of a command that is ours. Everything else is decided
// here, before anything is loaded.
func (inv *invocation) dispatch() error {
	switch {
	case inv.cmd.Help:
		return inv.passThrough()
	case inv.cmd.Creates():
		return inv.create()
	case inv.cmd.Verb == "start" && inv.cmd.ID != "":
		return inv.start()
	case inv.cmd.Verb == "delete" && inv.cmd.ID != "":
		return inv.delete()
	default:
		return inv.passThrough()
	}
}
