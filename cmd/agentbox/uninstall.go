package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentbox/agentbox/pkg/harvest"
	"github.com/agentbox/agentbox/pkg/install"
	"github.com/agentbox/agentbox/pkg/state"
)

// uninstaller is one call of agentbox uninstall.
type uninstaller struct {
	records string
	dryRun  bool
	asJSON  bool
}

func newUninstall(opts *options) *cobra.Command {
	var u uninstaller
	cmd := &cobra.Command{
		Use:   "uninstall [ENGINE...]",
		Short: "Take agentbox out of the configuration of container engines again",
		Long: `Undo agentbox install for the engines that are named, or for all.

A configuration file that nobody has changed since is given back byte for byte,
or removed if there was none. From one that was changed only agentbox's own part
is taken out; a file that its engine could not read is refused, with line and
column, and not touched.

While sandboxes live, nothing is done, and they are named: their engine may need
agentbox to end them. Stop and remove them first. A stopped container that was
made with agentbox cannot be started again afterwards.

Results, in /var/lib/agentbox, and the configuration in /etc/agentbox stay, and so
do the programs. Nothing is restarted: the command that makes the engine read its
configuration is printed.

The exit code is 0 when no engine that was named has agentbox now, 1 when one
could not be changed, and 2 for a wrong command line.`,
		Example: `  sudo agentbox uninstall --dry-run
  sudo agentbox uninstall docker
  sudo agentbox uninstall && sudo systemctl reload docker`,
		Args: func(_ *cobra.Command, args []string) error {
			for _, name := range args {
				if !slices.Contains(engineNames(), name) {
					return usageError{fmt.Errorf("%q is not an engine that agentbox knows: expected some of %s", name, strings.Join(engineNames(), ", "))}
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return asRoot(u.run(opts, args, cmd.OutOrStdout()))
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			left := slices.DeleteFunc(engineNames(), func(name string) bool { return slices.Contains(args, name) })
			return left, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	addChangeFlags(cmd, &u.records, &u.dryRun, &u.asJSON)
	return cmd
}

// run undoes one engine after the other. All that can be undone is.
func (u *uninstaller) run(opts *options, args []string, stdout io.Writer) error {
	names := args
	if len(names) == 0 {
		names = engineNames()
	}
	store := install.Store{Dir: u.records}
	var changes []*install.Change
	var problems []error
	for _, name := range names {
		change, err := store.Uninstall(install.Engine(name))
		switch {
		case err == nil:
			changes = append(changes, change)
		case !errors.Is(err, install.ErrNotInstalled):
			problems = append(problems, err)
		case len(args) > 0:
			problems = append(problems, u.nothing(stdout, install.Engine(name), len(args) > 1))
		}
	}
	if len(changes) == 0 {
		if len(args) == 0 && len(problems) == 0 && !u.asJSON {
			fmt.Fprintf(stdout, "Nothing to change: %s has no record of an installation.\n", u.records)
		}
		return errors.Join(problems...)
	}
	live, err := liveSandboxes(places(opts.state))
	if err == nil && len(live) > 0 {
		err = stillLive(live)
	}
	if err != nil && !u.dryRun {
		return errors.Join(append(problems, err)...)
	}
	problems = append(problems, err)
	for _, change := range changes {
		problems = append(problems, u.undo(store, change, stdout, len(args) != 1))
	}
	return errors.Join(problems...)
}

func (u *uninstaller) undo(store install.Store, change *install.Change, stdout io.Writer, several bool) error {
	if !u.dryRun {
		if err := store.Commit(change); err != nil {
			return err
		}
	}
	o := &installed{}
	o.take(change, u.dryRun)
	switch {
	case !o.Changed:
		o.told = fmt.Sprintf("Nothing to change: %s has no agentbox.", o.File)
	case change.After == nil && change.Engine == install.Systemd:
		o.told = fmt.Sprintf("Removed %s: systemd does not run the supervisor any more.", o.File)
	case change.After == nil:
		o.told = fmt.Sprintf("Removed %s, which agentbox install had made.", o.File)
	default:
		o.told = fmt.Sprintf("Changed %s: agentbox is no runtime of %s now.", o.File, o.Engine)
	}
	return o.write(stdout, u.asJSON, several)
}

// nothing says that an engine which was named has nothing to undo.
func (u *uninstaller) nothing(stdout io.Writer, e install.Engine, several bool) error {
	o := &installed{Engine: e, DryRun: u.dryRun, Notes: []string{}, Next: []string{}}
	o.told = fmt.Sprintf("Nothing to change: agentbox install has not changed the configuration of %s.", e)
	return o.write(stdout, u.asJSON, several)
}

// liveSandboxes names the sandboxes that live. A state that cannot be read is
// taken for one.
func liveSandboxes(places []state.Store) ([]string, error) {
	var live []string
	for _, place := range places {
		refs, err := place.List()
		if err != nil {
			return nil, fmt.Errorf("see which sandboxes live: %w", err)
		}
		for _, ref := range refs {
			st, err := place.Load(ref.Root, ref.ID)
			switch {
			case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			case err != nil:
				live = append(live, clean(ref.ID)+" (its state cannot be read)")
			case st.Live():
				live = append(live, sandboxName(st))
			}
		}
	}
	return live, nil
}

func sandboxName(st *state.State) string {
	if name := harvest.Name(st); name != "" {
		return clean(name) + " (" + clean(st.ID) + ")"
	}
	return clean(st.ID)
}

func stillLive(live []string) error {
	more := ""
	if n := len(live) - maxCandidates; n > 0 {
		live, more = live[:maxCandidates], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("agentbox is in use by the live sandboxes %s%s: stop and remove them, then run the command again", strings.Join(live, ", "), more)
}
