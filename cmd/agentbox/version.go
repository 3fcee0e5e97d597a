package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), version())
		},
	}
}

// release is the version that the build sets (-ldflags "-X main.release=..."); a
// build by the go command alone knows its own.
var release string

// version is one line: the version, the commit and the Go release that built
// this program, and what for.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	parts := []string{"agentbox " + cmp.Or(release, info.Main.Version, "(unknown version)")}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			parts = append(parts, "commit "+s.Value)
		}
	}
	return strings.Join(append(parts, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH), ", ")
}
