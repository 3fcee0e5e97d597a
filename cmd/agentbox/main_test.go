package main

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"
)

// An empty argument is mostly a variable that is not set. To take it for none
// would answer another question.
func TestEmptyArgumentsAreRefused(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"a bundle", []string{"plan", ""}, "the bundle is empty: give a folder, or nothing for the current one"},
		{"a specification", []string{"plan", "--spec", ""}, "--spec is empty: give the file, or leave the flag out"},
		{"a specification, with =", []string{"plan", "--spec="}, "--spec is empty"},
		{"a profile", []string{"plan", "--profile", ""}, "--profile is empty: give the name, or leave the flag out"},
		{"an annotation", []string{"plan", "--annotation", ""}, `--annotation "" is not NAME=VALUE`},
		{"a command", []string{"plan", "--verb", ""}, `--verb "" makes no plan`},
		{"dimensions", []string{"doctor", "--require", ""}, "--require is empty: give the dimensions, or leave the flag out"},
		{"a cgroup", []string{"doctor", "--cgroup", ""}, "--cgroup is empty: give the path"},
		{"a configuration", []string{"doctor", "--config", ""}, "--config is empty: give the file"},
		{"a configuration of plan", []string{"plan", "--config", ""}, "--config is empty: give the file"},
		{"states", []string{"inspect", "--state", "", "x"}, "--state is empty: give the folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := f.run(c.args...)
			if code != 2 || stdout != "" || !strings.HasPrefix(stderr, "agentbox: "+c.says) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}

func TestWait(t *testing.T) {
	var out bytes.Buffer
	got, err := wait(&out, "/mnt", time.Hour, func() (string, error) { return "x", fs.ErrPermission })
	if got != "x" || !errors.Is(err, fs.ErrPermission) || out.Len() > 0 {
		t.Errorf("at once: %q, %v, %q", got, err, out.String())
	}
	said := make(chan struct{})
	w := writer(func(p []byte) (int, error) {
		defer close(said)
		return out.Write(p)
	})
	got, err = wait(w, "/mnt", time.Millisecond, func() (string, error) {
		<-said
		return "y", nil
	})
	const says = "agentbox: still waiting for /mnt, which does not answer: the server or the FUSE process behind it may be gone\n"
	if got != "y" || err != nil || out.String() != says {
		t.Errorf("later: %q, %v, %q", got, err, out.String())
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
