// Command agentbox makes agentbox a runtime of container engines, and shows people
// and programs what became of sandboxes: their limits, what they used, and why
// they ended.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/state"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit code: 0, or what exitCode says of an error.
func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.Execute(); err != nil {
		if e, ok := errors.AsType[exitStatus](err); ok {
			return int(e)
		}
		for text := range strings.Lines(err.Error()) { // one for each sandbox
			say(stderr, text)
		}
		return exitCode(err)
	}
	return 0
}

// usageError is about the command line itself, not about a container.
type usageError struct{ error }

// exitCode returns the exit code of a command that failed: 2 where the command
// line is wrong, else 1.
func exitCode(err error) int {
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

// say writes one sentence for a person to standard error.
func say(w io.Writer, text string) {
	fmt.Fprintln(w, "agentbox: "+clean(strings.Join(strings.Fields(text), " ")))
}

// emptyFlag finds a flag that was given with nothing in it, as by a variable of
// the shell that is not set: it does not mean the same as no flag.
func emptyFlag(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		list, isList := f.Value.(pflag.SliceValue)
		if isList && len(list.GetSlice()) > 0 || !isList && f.Value.String() != "" {
			return
		}
		name, _ := pflag.UnquoteUsage(f)
		err = usageError{fmt.Errorf("--%s is empty: give the %s, or leave the flag out", f.Name, name)}
	})
	return err
}

// patience is how long a command waits for an answer before it says so.
const patience = 2 * time.Second

// wait returns what a look finds. It goes on for as long as it takes, as in the
// runtime: a network filesystem can come back.
func wait[T any](stderr io.Writer, name string, patience time.Duration, look func() (T, error)) (T, error) {
	type answer struct {
		found T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		found, err := look()
		answers <- answer{found, err}
	}()
	select {
	case a := <-answers:
		return a.found, a.err
	case <-time.After(patience):
	}
	say(stderr, "still waiting for "+name+", which does not answer: the server or the FUSE process behind it may be gone")
	a := <-answers
	return a.found, a.err
}

// options are the flags of every command.
type options struct {
	config string // empty: config.DefaultPath, which need not be there
	state  string // empty: state.DefaultDir
}

func newRoot() *cobra.Command {
	var opts options
	root := &cobra.Command{
		Use:   "agentbox",
		Short: "Show the limits of sandboxes and why they ended",
		Long: `agentbox shows the limits of the sandboxes that were started with
agentbox-runtime, what they used, and why they ended. It also makes agentbox a
runtime of Docker, containerd, CRI-O and Podman.`,
		Example: `  sudo agentbox install docker                   # then: docker run --runtime=agentbox
  agentbox inspect agent-7                       # by the engine's name
  agentbox inspect 4f1c                          # by the beginning of the id
  agentbox inspect --json 4f1c | jq -r .status   # for a program`,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return emptyFlag(cmd.Flags())
		},
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.SetVersionTemplate("{{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&opts.config, "config", "", "configuration `file` (default "+config.DefaultPath+")")
	flags.StringVar(&opts.state, "state", "", "`folder` of the live sandboxes (default "+state.DefaultDir()+")")
	_ = root.MarkPersistentFlagDirname("state") // the flag exists
	root.AddCommand(newInspect(&opts), newDoctor(&opts), newPlan(&opts), newInstall(), newUninstall(&opts), newSupervise(&opts), newVersion())
	return root
}
