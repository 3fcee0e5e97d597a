package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/agentbox/agentbox/pkg/smallfile"
)

// patience is how long one look at a path may take. Behind a path can be the
// server of a network filesystem or the process of a FUSE one, and the kernel
// waits for ever for one that is gone.
const patience = 2 * time.Second

// silentError says that there was no answer about a path.
type silentError struct {
	path   string
	waited time.Duration
}

func (e *silentError) Error() string {
	return fmt.Sprintf("%s does not answer within %s", e.path, e.waited)
}

// within returns what a look at a path finds, or a *silentError when that takes
// too long. The look then goes on by itself, and must not change anything. What
// did not answer once is not asked again, nor is anything below it.
func within[T any](g *gatherer, name string, look func() (T, error)) (T, error) {
	var none T
	wait := cmp.Or(g.patience, patience)
	for _, silent := range g.facts.Silent {
		if name == silent || strings.HasPrefix(name, silent+"/") {
			return none, &silentError{silent, wait}
		}
	}
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
	case <-time.After(wait):
		g.facts.Silent = append(g.facts.Silent, name)
		return none, &silentError{name, wait}
	}
}

// stat follows symbolic links.
func (g *gatherer) stat(name string) (fs.FileInfo, error) {
	if !path.IsAbs(name) {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: errors.New("the path is not absolute")}
	}
	return within(g, name, func() (fs.FileInfo, error) { return g.statOf(g.fs.Path(name)) })
}

// can asks access(2).
func (g *gatherer) can(name string, mode uint32) error {
	_, err := within(g, name, func() (struct{}, error) { return struct{}{}, g.access(g.fs.Path(name), mode) })
	return err
}

// file returns the content of a regular file.
func (g *gatherer) file(name string, limit int64) ([]byte, error) {
	if !path.IsAbs(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("the path is not absolute")}
	}
	return within(g, name, func() ([]byte, error) { return smallfile.Read(g.fs.Path(name), limit, 0) })
}

// find looks a program up in PATH.
func (g *gatherer) find(program string) (string, error) {
	return within(g, inPath(program), func() (string, error) { return g.lookPath(program) })
}

// inPath names what is looked at for a program.
func inPath(program string) string {
	if strings.Contains(program, "/") {
		return program
	}
	return program + " in PATH"
}

// about says what is wrong with a file, and names it once.
func about(name string, err error) string {
	reason := reasonOf(err)
	if strings.Contains(reason, name) {
		return reason
	}
	return name + ": " + reason
}

// reasonOf leaves out the operation and the path of an error.
func reasonOf(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}
