// Package lowlevel finds the low-level runtime: the one that agentbox-runtime
// hands every container to, such as runc.
package lowlevel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// SelfError says that the low-level runtime is agentbox-runtime, which would hand
// a container to itself for ever.
type SelfError struct {
	Path   string // of the low-level runtime, absolute
	Config string // the configuration that names it
}

// Error says what to do too.
func (e *SelfError) Error() string {
	return fmt.Sprintf("the low-level runtime %s is agentbox-runtime itself: name runc or crun as runtime in %s", e.Path, e.Config)
}

// Lookup is how a low-level runtime is looked up.
type Lookup struct {
	Self   string // the program of agentbox-runtime; empty: not known
	Config string // the configuration that names the low-level runtime, for errors

	LookPath func(name string) (string, error) // nil: exec.LookPath
}

// Find returns the absolute path of the low-level runtime with a name, in PATH or
// as a path. One that is agentbox-runtime, by whatever name, gives a *SelfError.
func (l Lookup) Find(name string) (string, error) {
	look := l.LookPath
	if look == nil {
		look = exec.LookPath
	}
	path, err := look(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("the low-level runtime %q is not there: install it, or name another one as runtime in %s: %w", name, l.Config, cause(err))
	}
	low, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("look at the low-level runtime: %w", err)
	}
	if l.Self == "" {
		return path, nil
	}
	self, err := os.Stat(l.Self)
	if err != nil {
		return "", fmt.Errorf("look at agentbox-runtime itself: %w", err)
	}
	if os.SameFile(low, self) {
		return "", &SelfError{Path: path, Config: l.Config}
	}
	return path, nil
}

// cause leaves out the name, which the sentence has already.
func cause(err error) error {
	if lookup, ok := errors.AsType[*exec.Error](err); ok {
		return lookup.Err
	}
	return err
}
