// Command containerd-shim-agentbox-v1 is the containerd shim of agentbox
// (runtime type io.containerd.agentbox.v1): containerd's own runc task service
// with agentbox-runtime as its runtime. It adds what only a shim knows: the exit
// status goes into the verdict, TaskOOM is published before TaskExit, and the
// verdict is an event of its own.
//
// It rewrites no specification. All limits are agentbox-runtime's.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/pkg/shim"
)

func main() {
	m := newManager()
	if err := bootstrap(context.Background(), m, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", m.Name(), err)
		os.Exit(1)
	}
	published := register()
	shim.RunShim(context.Background(), m)
	published()
}
