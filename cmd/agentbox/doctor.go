package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/doctor"
	"github.com/agentbox/agentbox/pkg/limits"
)

// doctorFlags are the flags of doctor.
type doctorFlags struct {
	cgroup  string
	systemd bool
	require []string
	asJSON  bool

	supervisor string // doctor.Options.Supervisor
}

func newDoctor(opts *options) *cobra.Command {
	d := doctorFlags{supervisor: supervisorProgram()}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what this host can enforce, and how to mend what it cannot",
		Long: `Show for each dimension whether this host enforces its limit, by which mechanism,
and where it does not, why and what to do about it. What doctor says is what a
container gets that asks for nothing. It also looks at what surrounds a sandbox:
the low-level runtime, swap, the kernel's age, Docker's logs and storage, and the
folder of results.

Ask as the user who starts the containers, with --systemd-cgroup if the engine
uses the systemd driver. Nothing is changed; the low-level runtime is asked for
its version.

The exit code is 0 when every required dimension is enforced: by the kernel, or
for each process where nothing else exists. Required is what the configuration
lists as strict_require, or what --require says. It is 1 when one is not, or when
nothing can start at all (a finding of the level error). Warnings do not change
it. It is 2 for a wrong command line, and for a configuration that cannot be used.

The JSON is described in docs/doctor.md.`,
		Example: `  agentbox doctor
  agentbox doctor --require memory,pids,io && echo ready
  agentbox doctor --systemd-cgroup                # as rootless Podman does
  agentbox doctor --cgroup /docker                # asks about another place
  agentbox doctor --json | jq -r '.missing[].dimension'
  agentbox doctor --json | jq '.dimensions.memory.answer == "yes"'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("doctor takes no argument, and %q is one: try agentbox doctor --help", args[0])}
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.run(cmd.Context(), opts, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := cmd.Flags()
	flags.StringVar(&d.cgroup, "cgroup", "", "`path` of a container's cgroup, as linux.cgroupsPath has it (default: where runc puts one by hand)")
	flags.BoolVar(&d.systemd, "systemd-cgroup", false, "the low-level runtime uses its systemd driver")
	flags.StringSliceVar(&d.require, "require", nil, "`dimensions` that have to be enforced, with commas between (default: strict_require of the configuration)")
	flags.BoolVar(&d.asJSON, "json", false, "print JSON for programs")
	_ = cmd.RegisterFlagCompletionFunc("require", cobra.FixedCompletions(dimensionNames(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

// supervisorProgram is this very program; empty where it cannot be found.
func supervisorProgram() string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	return self
}

// dimensionNames returns all dimensions in their order.
func dimensionNames() []string {
	var names []string
	for _, info := range limits.Keys {
		if !slices.Contains(names, string(info.Dimension)) {
			names = append(names, string(info.Dimension))
		}
	}
	return names
}

// run prints the report. The error says why this host is not ready.
func (d *doctorFlags) run(ctx context.Context, opts *options, stdout, stderr io.Writer) error {
	required, err := d.required()
	if err != nil {
		return usageError{err}
	}
	path := cmp.Or(opts.config, config.DefaultPath)
	cfg, cfgErr := wait(stderr, path, patience, func() (*config.File, error) { return loadConfig(opts.config) })
	report := doctor.Examine(doctor.Gather(ctx, doctor.Options{
		ConfigPath:  path,
		Config:      cfg,
		ConfigErr:   cfgErr,
		CgroupsPath: d.cgroup,
		Systemd:     d.systemd,
		Supervisor:  d.supervisor,
		Required:    required,
	}))
	if err := writeReport(stdout, report, d.asJSON); err != nil {
		return err
	}
	return notReady(report)
}

// required reads --require; nil when it is not given.
func (d *doctorFlags) required() ([]limits.Dimension, error) {
	known := dimensionNames()
	var list []limits.Dimension
	for _, name := range d.require {
		if name = strings.TrimSpace(name); !slices.Contains(known, name) {
			return nil, fmt.Errorf("--require %q names no dimension: expected some of %s", name, strings.Join(known, ", "))
		}
		list = append(list, limits.Dimension(name))
	}
	return list, nil
}

func writeReport(w io.Writer, report doctor.Report, asJSON bool) error {
	if asJSON {
		data, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
		_, err = w.Write(append(data, '\n'))
		return err
	}
	p := printer{colour: wantsColour(w)}
	p.doctor(report)
	_, err := io.WriteString(w, p.String())
	return err
}

// notReady says in one sentence why the exit code is not 0; nil when it is.
func notReady(report doctor.Report) error {
	if problem := report.Configuration.Problem; problem != "" {
		return usageError{errors.New(problem)}
	}
	if report.Ready {
		return nil
	}
	var reasons []string
	if missing := missingNames(report); missing != "" {
		reasons = append(reasons, "required and not enforced: "+missing)
	}
	for _, x := range report.Findings {
		if x.Level == doctor.Error {
			reasons = append(reasons, x.Text)
		}
	}
	return fmt.Errorf("this host is not ready: %s", strings.Join(reasons, "; "))
}

// missingNames lists the required dimensions that are not enforced.
func missingNames(report doctor.Report) string {
	var missing []limits.Dimension
	for _, m := range report.Missing {
		missing = append(missing, m.Dimension)
	}
	return names(missing)
}
