package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentbox/agentbox/pkg/install"
)

// installer is one call of agentbox install: what its command line says, and how
// it asks the machine.
type installer struct {
	file      string // empty: where the engine has it
	door      string
	program   string // empty: beside this program, or on the PATH
	records   string
	logLimits bool
	dryRun    bool
	asJSON    bool

	programs programs
}

// The doors. Which one is automatic depends on the engine.
const (
	doorAuto    = "auto"
	doorRuntime = "runtime"
	doorShim    = "shim"
)

var doors = []string{doorAuto, doorRuntime, doorShim}

func newInstall() *cobra.Command { return (&installer{programs: ourPrograms()}).command() }

func (i *installer) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "install ENGINE",
		Short: "Make agentbox a runtime of Docker, containerd, CRI-O or Podman, and its supervisor a service of systemd",
		Long: `Add agentbox to the configuration of a container engine, which then can start
containers with it: docker run --runtime=agentbox. The default runtime stays.

  ENGINE      FILE
  docker      /etc/docker/daemon.json
  containerd  /etc/containerd/config.toml, or a file of its own in a folder that
              this imports (containerd 2)
  crio        /etc/crio/crio.conf.d/50-agentbox.conf
  podman      /etc/containers/containers.conf.d/50-agentbox.conf
  systemd     /etc/systemd/system/agentbox-supervise.service

systemd is no engine: its service keeps the supervisor running, which holds
sandboxes to the limits that the kernel does not enforce (agentbox doctor shows
which). Without it, agentbox-runtime starts one when a sandbox needs it.

Comments, order and white space of a file stay as they are. A file that its
engine could not read is refused, with line and column, and not touched. The file
is replaced in one step, and a record keeps what it was before, for agentbox
uninstall. Nothing is restarted: the command that makes the engine read its
configuration is printed. Run it again after an upgrade that moved the program; a
second run changes nothing.

An engine starts agentbox through one of two doors. "runtime" is agentbox-runtime
in the place of runc, and works with every version. "shim" is
containerd-shim-agentbox-v1, which also sees exit codes; Docker has it from
version 23 on. "auto" takes the shim for containerd, if it is installed, and the
runtime for all others.

The exit code is 0 when the engine has agentbox now, 1 when it could not be added,
and 2 for a wrong command line.`,
		Example: `  sudo agentbox install docker --dry-run          # what would change
  sudo agentbox install docker --log-limits       # and bounds for the logs of containers
  sudo agentbox install containerd                # for Kubernetes, ctr and nerdctl
  sudo agentbox install podman
  sudo agentbox install systemd                   # keeps the supervisor running
  agentbox install docker --file ~/.config/docker/daemon.json \
    --records ~/.local/state/agentbox/install     # Docker without root`,
		Args: func(_ *cobra.Command, args []string) error {
			return i.check(args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return asRoot(i.run(cmd.Context(), install.Engine(args[0]), cmd.OutOrStdout()))
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return engineNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := cmd.Flags()
	flags.StringVar(&i.file, "file", "", "configuration `file` of the engine (default: see above)")
	flags.StringVar(&i.door, "door", doorAuto, "`way` in which the engine starts agentbox: "+strings.Join(doors, ", "))
	flags.StringVar(&i.program, "program", "", "absolute `path` of agentbox-runtime, or for systemd of agentbox (default: beside this program, or on the PATH)")
	flags.BoolVar(&i.logLimits, "log-limits", false, "docker: bound the logs of containers, 3 files of 10 MB each, if the file says nothing about them")
	addChangeFlags(cmd, &i.records, &i.dryRun, &i.asJSON)
	_ = cmd.RegisterFlagCompletionFunc("door", cobra.FixedCompletions(doors, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

// addChangeFlags are the flags that install and uninstall share.
func addChangeFlags(cmd *cobra.Command, records *string, dryRun, asJSON *bool) {
	flags := cmd.Flags()
	flags.StringVar(records, "records", install.DefaultDir, "`folder` of the records of what was changed")
	flags.BoolVar(dryRun, "dry-run", false, "print what would change, and change nothing")
	flags.BoolVar(asJSON, "json", false, "print JSON for programs")
	_ = cmd.MarkFlagDirname("records") // the flag exists
}

func engineNames() []string {
	names := make([]string, 0, len(install.Engines))
	for _, e := range install.Engines {
		names = append(names, string(e))
	}
	return names
}

// check looks for what the command line cannot mean.
func (i *installer) check(args []string) error {
	usage := func(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
	all := strings.Join(engineNames(), ", ")
	switch {
	case len(args) == 0:
		return usage("install needs the name of an engine: one of %s", all)
	case len(args) > 1:
		return usage("install takes one engine, not %d: run it once for each", len(args))
	case !slices.Contains(engineNames(), args[0]):
		return usage("%q is not an engine that agentbox knows: expected one of %s", args[0], all)
	case !slices.Contains(doors, i.door):
		return usage("--door %q is not a way into agentbox: expected one of %s", i.door, strings.Join(doors, ", "))
	}
	switch e := install.Engine(args[0]); {
	case i.logLimits && e != install.Docker:
		return usage("--log-limits is for docker: %s has no such setting", e)
	case e == install.Systemd && i.door != doorAuto:
		return usage("--door is for engines of containers: systemd runs the supervisor")
	case i.door == doorShim && (e == install.CRIO || e == install.Podman):
		return usage("--door shim is for containerd and docker: %s starts no shim", e)
	}
	return nil
}

// asRoot says what to do about a permission that is missing.
func asRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: run the command as root, or name files of your own with --file and --records", err)
	}
	return err
}

func (i *installer) run(ctx context.Context, e install.Engine, stdout io.Writer) error {
	store := install.Store{Dir: i.records}
	want, err := i.want(ctx, e)
	if err != nil {
		return err
	}
	path, err := i.path(e, store, &want)
	if err != nil {
		return err
	}
	change, err := store.Install(e, path, want)
	if err != nil {
		return err
	}
	if !i.dryRun {
		if err := store.Commit(change); err != nil {
			return err
		}
	}
	notes := i.notes(e, want)
	o := &installed{Door: want.Door(), Program: want.Runtime, Try: tryCommands(e, want.Shim)}
	o.take(change, i.dryRun)
	o.Notes = append(o.Notes, notes...)
	what := fmt.Sprintf("agentbox is a runtime of %s now", e)
	if e == install.Systemd {
		o.Door, what = "", "it runs the supervisor"
	}
	o.told = fmt.Sprintf("Changed %s: %s. The file as it was is kept in %s.", path, what, store.Path(e))
	switch {
	case !o.Changed:
		o.told = fmt.Sprintf("Nothing to change: %s has agentbox as it should be.", path)
	case change.Before == nil:
		o.told = fmt.Sprintf("Made %s: %s.", path, what)
	}
	return o.write(stdout, i.asJSON, false)
}

// want is what the engine is told: which program, through which door.
func (i *installer) want(ctx context.Context, e install.Engine) (install.Want, error) {
	want := install.Want{LogLimits: i.logLimits}
	var err error
	name := install.Program
	if e == install.Systemd {
		name = install.Supervisor
	}
	if want.Runtime, err = i.programs.program(name, i.program); err != nil || e == install.Systemd {
		return want, err
	}
	switch e {
	case install.Containerd:
		want.Major = i.programs.major(ctx, daemons[e])
	case install.Docker:
		if want.Major = i.programs.major(ctx, daemons[e]); i.door == doorShim && want.Major > 0 && want.Major < minShimDocker {
			return want, fmt.Errorf("--door shim needs Docker %d or later, and dockerd is of version %d: leave the flag out", minShimDocker, want.Major)
		}
	}
	shim := i.programs.shim(want.Runtime)
	switch {
	case i.door == doorShim && shim == "":
		return want, fmt.Errorf("--door shim needs %s beside %s or on the PATH, and it is not there: install it, or leave the flag out", install.ShimName, want.Runtime)
	case i.door == doorShim, i.door == doorAuto && e == install.Containerd && shim != "":
		want.Shim = true
		if !onServicePath(shim) {
			want.ShimPath = shim
		}
	}
	return want, nil
}

// notes are about programs that are not where one would think.
func (i *installer) notes(e install.Engine, want install.Want) (notes []string) {
	if name := daemons[e]; i.programs.daemon(name) == "" {
		notes = append(notes, fmt.Sprintf("%s was not found on this machine: its configuration is written all the same", name))
	}
	if dir := filepath.Dir(cmp.Or(want.ShimPath, want.Runtime)); want.Shim && dir != filepath.Dir(want.Runtime) {
		notes = append(notes, fmt.Sprintf("the shim starts the %s that is beside it, in %s", install.Program, dir))
	}
	return notes
}

// daemons are the programs of engines.
var daemons = map[install.Engine]string{
	install.Docker: "dockerd", install.Containerd: "containerd", install.CRIO: "crio", install.Podman: "podman", install.Systemd: "systemctl",
}

// minShimDocker is the first version of Docker that starts other shims than that
// of runc.
const minShimDocker = 23

// defaultFiles are the files of the engines.
var defaultFiles = map[install.Engine]string{
	install.Docker:     "/etc/docker/daemon.json",
	install.Containerd: "/etc/containerd/config.toml",
	install.CRIO:       "/etc/crio/crio.conf.d/50-agentbox.conf",
	install.Podman:     "/etc/containers/containers.conf.d/50-agentbox.conf",
	install.Systemd:    "/etc/systemd/system/" + install.UnitName,
}

// path is the file to change. For containerd it may be one that its own file
// imports; what that says then goes into want.
func (i *installer) path(e install.Engine, store install.Store, want *install.Want) (string, error) {
	path, err := filepath.Abs(cmp.Or(i.file, defaultFiles[e]))
	if err != nil {
		return "", err
	}
	rec, err := store.Load(e)
	if err != nil && !errors.Is(err, install.ErrNotInstalled) {
		return "", err
	}
	if rec != nil && i.file == "" {
		path = rec.File // where it was put before, it stays
	}
	if e != install.Containerd {
		return path, nil
	}
	main := path
	if rec != nil && i.file == "" {
		main = defaultFiles[e]
	}
	data, err := install.Read(main)
	if err != nil || data == nil {
		return path, err
	}
	dropIn, err := install.DropIn(main, data, want.Major)
	if err != nil || dropIn == "" || rec != nil && rec.File != dropIn {
		return path, err
	}
	want.Main = data
	return dropIn, nil
}
