package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	runc "github.com/containerd/go-runc"
)

// commandLines adds the options of agentbox-runtime to the command lines that
// containerd's service makes, which has no place for them. A container is known
// by its bundle, where the runtime's log is.
type commandLines struct {
	runc.ProcessMonitor
	mu    sync.Mutex
	flags map[string][]string // by bundle
}

// set says which options the commands of a container get; nil: none any more.
func (l *commandLines) set(bundle string, flags []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flags == nil {
		l.flags = map[string][]string{}
	}
	if flags == nil {
		delete(l.flags, bundle)
		return
	}
	l.flags[bundle] = flags
}

func (l *commandLines) of(bundle string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flags[bundle]
}

// Start starts a command of the runtime.
func (l *commandLines) Start(c *exec.Cmd) (chan runc.Exit, error) {
	c.Args = withFlags(c.Args, l.of)
	return l.ProcessMonitor.Start(c)
}

// StartLocked is Start on a thread of its own.
func (l *commandLines) StartLocked(c *exec.Cmd) (chan runc.Exit, error) {
	c.Args = withFlags(c.Args, l.of)
	return l.ProcessMonitor.StartLocked(c)
}

// withFlags puts a container's options in front of all others.
func withFlags(args []string, of func(bundle string) []string) []string {
	i := slices.Index(args, "--log")
	if i < 0 || i+1 == len(args) {
		return args
	}
	return slices.Insert(slices.Clone(args), 1, of(filepath.Dir(args[i+1]))...)
}
