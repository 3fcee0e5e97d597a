package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/decide"
	"github.com/agentbox/agentbox/pkg/host"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

// planner is one call of agentbox plan: what its command line says.
type planner struct {
	bundle      string   // empty: the current folder, if it is one
	spec        string   // in place of the bundle: its config.json
	annotations []string // NAME=VALUE
	profile     string
	kubernetes  bool
	systemd     bool
	verb        string
	asJSON      bool
	diff        bool

	probe func(host.Input) limits.Host // decide.Call.Probe

	supervisor limits.Mechanism // decide.Call.Supervisor

	stderr io.Writer // for what is waited for
}

// verbs are the commands of the runtime that make a plan.
var verbs = []string{"create", "run", "restore"}

func newPlan(opts *options) *cobra.Command { return new(planner).command(opts) }

func (p *planner) command(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan [BUNDLE]",
		Short: "Show the limits that a container would get, and why",
		Long: `Show what agentbox-runtime would set for a container: each value, where it came
from, who enforces it, and what was lowered, dropped or is missing. Nothing is
started and nothing is written.

BUNDLE is a folder with a config.json; without one it is the current folder, if
that has one. Where there is no bundle, the plan is for a container that asks
for what --profile and --annotation say. With a bundle they are added to its
annotations.

The plan depends on who asks: run it as the user who starts the containers. Open
files and core dumps are bounded by what the calling process has, which for a
daemon can be other than for a shell.

With --diff, the change to config.json is shown in place of the plan, both sides
indented the same way. Nothing is printed where nothing changes.

The exit code is 0 when agentbox would let the container start, 1 when it would
refuse it, with the reason on standard error, and 2 for a wrong command line.`,
		Example: `  agentbox plan                                              # the bundle here, or the defaults
  agentbox plan --profile small                              # what a profile gives on this host
  agentbox plan --annotation agentbox.dev/memory=64GiB       # is that more than the ceiling?
  agentbox plan --config try.toml /run/bundle                # before a new configuration is installed
  agentbox plan --diff --verb run /run/bundle                # what changes in its config.json
  agentbox plan --kubernetes --annotation agentbox.dev/pids=100000 || echo refused
  agentbox plan --json | jq '.entries[] | select(.enforcer == "none") | .key'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				p.bundle = args[0]
			}
			return p.check(args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.run(opts, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	p.addFlags(cmd, opts)
	return cmd
}

func (p *planner) addFlags(cmd *cobra.Command, opts *options) {
	flags := cmd.Flags()
	flags.StringVar(&p.spec, "spec", "", "specification `file`, in place of a bundle's config.json")
	flags.StringArrayVar(&p.annotations, "annotation", nil, "annotation `name=value` that the container has besides; may be repeated")
	flags.StringVar(&p.profile, "profile", "", "`name` of a profile: short for --annotation "+config.ProfileAnnotation+"=name")
	flags.BoolVar(&p.kubernetes, "kubernetes", false, "a scheduler has counted the request: what is above a ceiling is refused, not lowered")
	flags.BoolVar(&p.systemd, "systemd-cgroup", false, "the low-level runtime uses its systemd driver")
	flags.BoolVar(&p.asJSON, "json", false, "print JSON for programs")
	flags.BoolVar(&p.diff, "diff", false, "print what changes in config.json")
	flags.StringVar(&p.verb, "verb", verbs[0], "`command` of the runtime that --diff is about: "+strings.Join(verbs, ", "))
	_ = cmd.MarkFlagFilename("spec", "json") // this flag and those below exist
	_ = cmd.RegisterFlagCompletionFunc("verb", cobra.FixedCompletions(verbs, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("annotation", cobra.FixedCompletions(annotationNames(), cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("profile", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return profileNames(opts.config), cobra.ShellCompDirectiveNoFileComp
	})
}

// annotationNames returns what --annotation can begin with.
func annotationNames() []cobra.Completion {
	names := []cobra.Completion{config.ProfileAnnotation + "=", config.OOMScopeAnnotation + "="}
	for _, info := range limits.Keys {
		names = append(names, config.AnnotationName(info.Key)+"=")
	}
	return names
}

// profileNames returns the profiles of a configuration; none if it is wrong.
func profileNames(path string) []cobra.Completion {
	cfg, err := loadConfig(path)
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(cfg.Policy.Profiles))
}

// check looks for what the flags cannot mean.
func (p *planner) check(args []string) error {
	usage := func(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
	switch {
	case len(args) > 1:
		return usage("plan takes one bundle, not %d: try agentbox plan --help", len(args))
	case len(args) == 1 && args[0] == "":
		return usage("the bundle is empty: give a folder, or nothing for the current one")
	case len(args) == 1 && p.spec != "":
		return usage("%q is a bundle and --spec is a file in place of one: give one of them", args[0])
	case p.asJSON && p.diff:
		return usage("--json prints the plan and --diff the change that it makes: give one of them")
	case !slices.Contains(verbs, p.verb):
		return usage("--verb %q makes no plan: expected %s", p.verb, strings.Join(verbs, ", "))
	case p.verb != verbs[0] && !p.diff:
		return usage("--verb %s makes a difference for --diff only: add --diff", p.verb)
	}
	for _, a := range p.annotations {
		if !utf8.ValidString(a) {
			return usage("--annotation %q is not UTF-8, and config.json holds nothing else", a)
		}
		if name, _, ok := strings.Cut(a, "="); !ok || name == "" {
			return usage("--annotation %q is not NAME=VALUE, such as agentbox.dev/memory=512MiB", a)
		}
	}
	return nil
}

// outcome is what would become of one container.
type outcome struct {
	path     string // of its specification; empty: there is none
	plan     *limits.Plan
	warnings []string // of the plan and of the rewriting
	refused  bool

	before, after []byte // the specification
}

// run prints the plan. The error says why the container would be refused.
func (p *planner) run(opts *options, stdout, stderr io.Writer) error {
	p.stderr = stderr
	cfg, err := wait(stderr, cmp.Or(opts.config, config.DefaultPath), patience, func() (*config.File, error) { return loadConfig(opts.config) })
	if err != nil {
		return err
	}
	if p.probe == nil {
		p.probe, p.supervisor = probing(stderr), supervisorHere()
	}
	o, err := p.decide(cfg, opts)
	if err != nil && cfg.Policy.Mode == limits.ModeOff && !errors.Is(err, fs.ErrNotExist) {
		say(stderr, "mode off, the container starts as it is; under another mode: "+err.Error())
		return nil
	}
	if o == nil {
		return err
	}
	return errors.Join(p.print(stdout, o), err)
}

// supervisorHere says that this program is the supervisor, as the runtime finds it
// beside itself or in PATH.
func supervisorHere() limits.Mechanism {
	if supervisorProgram() == "" {
		return limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerNone, Reason: "the program agentbox cannot be found"}
	}
	return limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerSupervisor}
}

// probing is host.Probe that says what it waits for.
func probing(stderr io.Writer) func(host.Input) limits.Host {
	return func(in host.Input) limits.Host {
		in.Look = func(path string, look func()) error {
			_, err := wait(stderr, path, patience, func() (struct{}, error) {
				look()
				return struct{}{}, nil
			})
			return err
		}
		return host.Probe(cgroup.Host, in)
	}
}

// decide does what the runtime does before it touches anything. The outcome
// comes with a *limits.UnenforceableError too: what strict mode misses on this
// host is best read beside what is there.
func (p *planner) decide(cfg *config.File, opts *options) (*outcome, error) {
	path, err := p.specPath()
	if err != nil {
		return nil, err
	}
	doc, err := wait(p.stderr, path, patience, func() (*spec.Document, error) { return p.document(path) })
	if err != nil {
		return nil, err
	}
	o := &outcome{path: path, before: doc.Bytes()}
	call := decide.Call{Bundle: bundleOf(path), NoBundle: path == "", Systemd: p.systemd, Probe: p.probe, Supervisor: p.supervisor}
	plan, refusal := decide.Plan(cfg, doc, call)
	if plan == nil {
		return nil, invalid(path, refusal)
	}
	o.plan, o.refused = plan, refusal != nil
	hook, err := p.hook(opts)
	if err != nil {
		return nil, err
	}
	warnings, err := doc.Apply(plan, spec.Options{AllowAnnotations: cfg.Policy.AllowAnnotations, Hook: hook})
	if err != nil {
		return nil, invalid(path, err)
	}
	o.warnings = slices.Concat(plan.Warnings, warnings)
	o.after = doc.Bytes()
	return o, refusal
}

func (p *planner) print(w io.Writer, o *outcome) error {
	switch {
	case p.asJSON:
		return writePlan(w, o)
	case p.diff && o.refused: // nothing would be rewritten
		return nil
	case p.diff:
		return writeDiff(w, o)
	}
	out := printer{colour: wantsColour(w)}
	out.plan(o)
	_, err := io.WriteString(w, out.String())
	return err
}

// writePlan writes a plan for programs. docs/plan.md promises its shape.
func writePlan(w io.Writer, o *outcome) error {
	plan := *o.plan
	plan.Warnings = o.warnings
	data, err := json.MarshalIndent(plan, "", "  ")
	if err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}
