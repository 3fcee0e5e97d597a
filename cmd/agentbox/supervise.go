package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/supervise"
)

// supervisor is one call of agentbox supervise.
type supervisor struct {
	detach bool
	supervise.Options
	role string
}

func newSupervise(opts *options) *cobra.Command {
	var s supervisor
	cmd := &cobra.Command{
		Use:   "supervise",
		Short: "Hold sandboxes to the limits that the kernel does not enforce here",
		Long: `Run the host's supervisor: it measures what sandboxes use, and stops or ends those
that go beyond a limit which agentbox plan and agentbox inspect show as enforced by
the supervisor. There is one for each folder of live sandboxes.

Nobody has to run this command. agentbox-runtime starts a supervisor in the
background (--detach) with the first sandbox that needs one, and that ends by
itself a minute after the last. What goes wrong is in FOLDER/supervise.log then.

In the foreground it stays until SIGTERM, for a service manager that starts it
again when it has ended: see agentbox install systemd. Where another supervisor
is there already, it waits until that has ended. Limits of the supervisor hold
only while it runs; when it is killed, the next one takes over its sandboxes,
within a second where it was started in the background or by systemd.

The exit code is 0 when it was told to end or, with --detach, when a supervisor is
ready; 1 when it could not start; 2 for a wrong command line; and 3 when it failed
and should be started again.`,
		Example: `  agentbox supervise                       # in the foreground, until Ctrl-C
  agentbox supervise --detach              # in the background
  agentbox inspect agent-7                 # shows which limits it enforces`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("supervise takes no argument, and %q is one: try agentbox supervise --help", args[0])}
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			return s.run(opts)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := cmd.Flags()
	flags.BoolVar(&s.detach, "detach", false, "start it in the background, and return when it is ready")
	flags.DurationVar(&s.Idle, supervise.IdleFlag, 0, "end after so `long` without a sandbox (default: never; with --detach: "+shortDuration(supervise.DefaultIdle)+")")
	// How the processes of a supervisor start each other.
	flags.StringVar(&s.role, supervise.RoleFlag, "", "")
	flags.IntVar(&s.Partner, supervise.PartnerFlag, 0, "")
	flags.IntVar(&s.Ready, supervise.ReadyFlag, 0, "")
	for _, name := range []string{supervise.RoleFlag, supervise.PartnerFlag, supervise.ReadyFlag} {
		_ = flags.MarkHidden(name) // the flag exists
	}
	_ = cmd.RegisterFlagCompletionFunc(supervise.IdleFlag, cobra.FixedCompletions([]string{"1m", "10m", "1h"}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

// exitStatus is the end of a process with an exit code, which has said why.
type exitStatus int

func (e exitStatus) Error() string { return "" }

func (s *supervisor) run(opts *options) error {
	if s.Idle < 0 {
		return usageError{fmt.Errorf("--%s %s is in the past: give a duration such as %s", supervise.IdleFlag, s.Idle, shortDuration(time.Minute))}
	}
	dir, err := filepath.Abs(cmp.Or(opts.state, state.DefaultDir()))
	if err != nil {
		return fmt.Errorf("find the folder of live sandboxes: %w", err)
	}
	s.Dir, s.Role = state.CleanRoot(dir), supervise.Role(s.role)
	if s.detach {
		return supervise.Detach(s.Dir, cmp.Or(s.Idle, supervise.DefaultIdle))
	}
	if code := supervise.Run(s.Options); code != 0 {
		return exitStatus(code)
	}
	return nil
}
