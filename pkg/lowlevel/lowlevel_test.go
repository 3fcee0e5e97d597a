package lowlevel_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/lowlevel"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(
		os.WriteFile(in("runc"), nil, 0o755), os.WriteFile(in("agentbox-runtime"), nil, 0o755), os.WriteFile(in("text"), nil, 0o644),
		os.Symlink("agentbox-runtime", in("link")), os.Link(in("agentbox-runtime"), in("hard")), os.Symlink("nowhere", in("broken")))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	const asked = "agentbox.toml"
	for _, c := range []struct {
		name, runtime, self string
		want                string // in dir; empty: an error
		itself              bool
		is                  error
		text                string
	}{
		{name: "by its path", runtime: in("runc"), self: in("agentbox-runtime"), want: "runc"},
		{name: "in PATH", runtime: "runc", self: in("agentbox-runtime"), want: "runc"},
		{name: "itself", runtime: in("agentbox-runtime"), self: in("agentbox-runtime"), itself: true},
		{name: "itself in PATH", runtime: "agentbox-runtime", self: in("agentbox-runtime"), itself: true},
		{name: "a link to itself", runtime: "link", self: in("agentbox-runtime"), itself: true},
		{name: "itself by another name", runtime: in("hard"), self: in("link"), itself: true},
		{name: "nobody knows where itself is", runtime: "link", want: "link"},
		{name: "itself is gone", runtime: "runc", self: in("gone"), is: fs.ErrNotExist, text: "look at agentbox-runtime itself"},
		{name: "not in PATH", runtime: "crun", self: in("runc"), is: exec.ErrNotFound, text: `the low-level runtime "crun" is not there: install it, or name another one as runtime in agentbox.toml: executable file not found`},
		{name: "not there", runtime: in("crun"), self: in("runc"), is: fs.ErrNotExist, text: "is not there"},
		{name: "a broken link", runtime: in("broken"), self: in("runc"), is: fs.ErrNotExist, text: "is not there"},
		{name: "not to be run", runtime: in("text"), self: in("runc"), is: fs.ErrPermission, text: "is not there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := lowlevel.Lookup{Self: c.self, Config: asked}.Find(c.runtime)
			if c.want != "" {
				if got != in(c.want) || err != nil {
					t.Errorf("%q, %v", got, err)
				}
				return
			}
			if got != "" || err == nil {
				t.Fatalf("%q, %v", got, err)
			}
			itself, ok := errors.AsType[*lowlevel.SelfError](err)
			if ok != c.itself || ok && (itself.Config != asked || !strings.Contains(err.Error(), itself.Path)) {
				t.Errorf("%v", err)
			}
			if c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %q, %v", err, c.text, c.is)
			}
		})
	}
}

func TestFindWithAnotherPath(t *testing.T) {
	runc := filepath.Join(t.TempDir(), "runc")
	if err := os.WriteFile(runc, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	l := lowlevel.Lookup{LookPath: func(name string) (string, error) { return strings.ReplaceAll(name, "short", runc), nil }}
	if got, err := l.Find("short"); got != runc || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
