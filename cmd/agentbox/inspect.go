package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentbox/agentbox/pkg/result"
)

func newInspect(opts *options) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect SANDBOX...",
		Short: "Show a sandbox: its limits, what it used, why it ended",
		Long: `Show sandboxes that live, and those that ended for as long as their results are
kept.

SANDBOX is an id, the beginning of an id that no other sandbox shares, or the
name that Docker or another engine gave. A name that was used again means the
sandbox that has it now, or had it last.

With --json one sandbox is one JSON object. Several are one object each, on a
line of its own, so that the same jq filter works for one and for many. The
fields are described in docs/verdicts.md.

Live sandboxes can be read by root only, kept results also by the group that the
configuration names (docker). A configuration file that is missing or wrong does
not stop inspect: it says so and looks at the default folder of results.

The exit code is 0 when every sandbox was found, 2 for a flag with nothing in it,
and 1 when a sandbox was not found, or anything else went wrong.`,
		Example: `  agentbox inspect agent-7
  agentbox inspect 4f1c 77ab
  agentbox inspect --json agent-7 | jq -r '.status + " " + .error_code'
  agentbox inspect --json agent-7 | jq .enforcement.memory
  agentbox --state /run/user/1000/agentbox inspect agent-7   # started without root`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("inspect needs the id or the name of a sandbox: try agentbox inspect --help")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			stderr := cmd.ErrOrStderr()
			c := newCatalog(*opts, func(text string) { say(stderr, text) })
			results, err := c.findAll(args)
			return errors.Join(write(cmd.OutOrStdout(), results, asJSON, len(args) > 1), err)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			c := newCatalog(*opts, func(string) {})
			return c.completions(args), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON for programs")
	return cmd
}

// findAll looks every reference up. What was found comes with the error.
func (c *catalog) findAll(refs []string) ([]*result.Result, error) {
	var found []*result.Result
	var errs []error
	for _, ref := range refs {
		r, err := c.find(ref)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found = append(found, r)
	}
	return found, errors.Join(errs...)
}

// write prints results. several says that more than one was asked for, however
// many there are.
func write(w io.Writer, results []*result.Result, asJSON, several bool) error {
	if asJSON {
		return writeJSON(w, results, several)
	}
	p := printer{colour: wantsColour(w), location: time.Local}
	for i, r := range results {
		if i > 0 {
			p.line("")
		}
		p.result(r)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

func writeJSON(w io.Writer, results []*result.Result, several bool) error {
	for _, r := range results {
		data, err := json.Marshal(r)
		if !several {
			data, err = json.MarshalIndent(r, "", "  ")
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", r.ID, err)
		}
		if _, err := w.Write(append(data, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// wantsColour follows no-color.org: only on a terminal that can show it, and not
// when NO_COLOR has a value.
func wantsColour(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(f)
}
