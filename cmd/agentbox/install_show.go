package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/agentbox/agentbox/pkg/install"
)

// installed is what install and uninstall print. docs/install.md promises the
// shape of its JSON.
type installed struct {
	Engine  install.Engine `json:"engine"`
	File    string         `json:"file,omitempty"`
	Changed bool           `json:"changed"` // or would be, in a dry run
	DryRun  bool           `json:"dry_run"`
	Door    string         `json:"door,omitempty"`
	Program string         `json:"program,omitempty"`
	Diff    string         `json:"diff,omitempty"` // in a dry run
	Notes   []string       `json:"notes"`
	Next    []string       `json:"next"` // commands that make the engine read the file
	Try     []string       `json:"try,omitempty"`

	told  string // one sentence for a person
	start string // where a diff starts from, and ends
	end   string
}

// take fills in what a change does.
func (o *installed) take(c *install.Change, dryRun bool) {
	o.Engine, o.File, o.Changed, o.DryRun = c.Engine, c.File, !c.None(), dryRun
	o.Notes, o.Next = append([]string{}, c.Notes...), []string{}
	if !o.Changed {
		return
	}
	next, note := reload(c)
	if next != "" {
		o.Next = append(o.Next, next)
	}
	if note != "" {
		o.Notes = append(o.Notes, note)
	}
	if dryRun {
		o.start, o.end = nameOf(c.File, c.Before), nameOf(c.File, c.After)
		o.Diff = string(diff.Diff(o.start, visible(c.Before), o.end, visible(c.After)))
	}
}

// nameOf is what a diff calls a file.
func nameOf(file string, data []byte) string {
	if data == nil {
		return "/dev/null"
	}
	return file
}

// visible makes a file safe for a terminal.
func visible(data []byte) []byte {
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	return []byte(strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text))
}

// reload is the command that makes an engine read its configuration and leaves
// containers alone, and what to know about it.
func reload(c *install.Change) (command, note string) {
	switch c.Engine {
	case install.Systemd:
		if c.After != nil {
			return "systemctl daemon-reload && systemctl enable --now " + install.UnitName, ""
		}
		wants := filepath.Join(filepath.Dir(c.File), "multi-user.target.wants", install.UnitName)
		return "systemctl stop " + install.UnitName + "; rm -f " + wants + "; systemctl daemon-reload", ""
	case install.Docker:
		return "systemctl reload docker", ""
	case install.Containerd:
		return "systemctl restart containerd", ""
	case install.CRIO:
		return "systemctl reload crio", "CRI-O before 1.26 does not reload its runtimes: there it is systemctl restart crio, which leaves containers running"
	}
	return "", ""
}

// tryCommands start a first container.
func tryCommands(e install.Engine, shim bool) []string {
	switch e {
	case install.Docker:
		return []string{"docker run --rm --runtime=agentbox busybox true"}
	case install.Containerd:
		if shim {
			return []string{"nerdctl run --rm --runtime=" + install.RuntimeType + " busybox true"}
		}
	case install.Podman:
		return []string{"podman --runtime=agentbox run --rm busybox true"}
	}
	return nil
}

// write prints it for people, or for programs on one line or on several.
func (o *installed) write(w io.Writer, asJSON, oneLine bool) error {
	if asJSON {
		data, err := json.Marshal(o)
		if !oneLine {
			data, err = json.MarshalIndent(o, "", "  ")
		}
		if err != nil {
			return fmt.Errorf("write what was done: %w", err)
		}
		_, err = w.Write(append(data, '\n'))
		return err
	}
	p := printer{colour: wantsColour(w)}
	p.installed(o)
	_, err := io.WriteString(w, p.String())
	return err
}

func (p *printer) installed(o *installed) {
	if o.Diff != "" {
		p.diff([]byte(o.Diff))
	} else {
		p.line(clean(o.told))
	}
	p.section("Notes", listRows(o.Notes))
	if o.DryRun {
		return
	}
	p.section("To make "+string(o.Engine)+" read its configuration", listRows(o.Next))
	p.section("Then try", listRows(o.Try))
}
