// Package install puts agentbox into the configuration of a container engine and
// takes it out again.
//
// What is done to a file is pure: [Add] and [Remove] take bytes and return bytes,
// and leave everything that is not agentbox's as it is, comments, order and white
// space included. [Store] does it to the file itself, remembers in a record of
// its own what was done, and gives the file back byte for byte where nobody else
// has changed it since.
package install

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Engine is a container engine that can be told about agentbox.
type Engine string

// The engines.
const (
	Docker     Engine = "docker"
	Containerd Engine = "containerd"
	CRIO       Engine = "crio"
	Podman     Engine = "podman"
	// Systemd is no engine of containers: it runs the supervisor, as the service
	// UnitName.
	Systemd Engine = "systemd"
)

// Engines are all engines, in the order in which people are told of them.
var Engines = []Engine{Docker, Containerd, CRIO, Podman, Systemd}

// RuntimeName is what agentbox is called in every engine: docker run
// --runtime=agentbox, and the handler of a Kubernetes RuntimeClass.
const RuntimeName = "agentbox"

// RuntimeType is the name by which containerd finds the program ShimName
// (containerd, docs/runtime-v2.md).
const RuntimeType = "io.containerd.agentbox.v1"

// The programs that engines start.
const (
	Program    = "agentbox-runtime"
	Supervisor = "agentbox"
	ShimName   = "containerd-shim-agentbox-v1"
)

// Want is what an engine is to be told.
type Want struct {
	Runtime string // absolute path of agentbox-runtime, or for Systemd of agentbox
	Shim    bool   // containerd starts the shim, which starts agentbox-runtime
	// ShimPath is the absolute path of the shim where containerd would not find
	// it on its own PATH; empty: it does.
	ShimPath string
	// LogLimits asks for bounds on Docker's logs where the administrator has none.
	LogLimits bool
	// Major is the first number of containerd's version; 0: not known.
	Major int
	// Main is containerd's own file when the one to change is imported by it; nil:
	// it is that file.
	Main []byte
}

// Edit is a file with agentbox in it.
type Edit struct {
	Data  []byte
	Added []Added  // in the order in which it was added; none: the file had it all
	Notes []string // what the administrator should know, a sentence each
}

// Added is one key that was added to a file.
type Added struct {
	Path  []string        `json:"path"`
	Value json.RawMessage `json:"value,omitempty"` // none: a table that holds others
}

// Add returns a file with what is wanted in it. The file is named for errors;
// data is nil when there is none.
//
// The error is an *Error that says where a file is not what its engine would
// take, or an *ExistsError when agentbox is there in another form.
func Add(e Engine, name string, data []byte, want Want) (Edit, error) {
	ed, err := editorOf(e)
	if err != nil {
		return Edit{}, err
	}
	for _, path := range []string{want.Runtime, want.ShimPath} {
		if strings.ContainsFunc(path, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
			return Edit{}, fmt.Errorf("the path %q has characters that a configuration file cannot name safely: move the program", path)
		}
	}
	return ed.add(name, data, want)
}

// Remove returns a file without what Add once added, whatever else was changed
// in it since. Directly after Add it returns what was there before, but for a
// file that had nothing in it.
//
// What the administrator changed stays: a log limit with another value is his.
// Only agentbox's own entry goes in any case. The error is an *Error.
func Remove(e Engine, name string, data []byte, added []Added) ([]byte, error) {
	ed, err := editorOf(e)
	if err != nil {
		return nil, err
	}
	return ed.remove(name, data, added)
}

// Holds reports whether there is anything in a file that parses: a setting, or a
// comment.
func Holds(e Engine, data []byte) bool {
	ed, err := editorOf(e)
	return err == nil && ed.holds(data)
}

// editor knows one kind of file.
type editor interface {
	// defaults says where a file that parses makes agentbox the default runtime;
	// 0: nowhere.
	defaults(name string, data []byte) (line int, key string)
	add(name string, data []byte, want Want) (Edit, error)
	remove(name string, data []byte, added []Added) ([]byte, error)
	holds(data []byte) bool
}

func editorOf(e Engine) (editor, error) {
	switch e {
	case Docker:
		return dockerFile{}, nil
	case Containerd:
		return tomlEditor{containerdTables, containerdDefaults()}, nil
	case CRIO:
		return tomlEditor{crioTables, [][]string{{"crio", "runtime", "default_runtime"}}}, nil
	case Podman:
		return tomlEditor{podmanTables, [][]string{{"engine", "runtime"}}}, nil
	case Systemd:
		return unitFile{}, nil
	}
	return nil, fmt.Errorf("%q is not an engine that agentbox knows: expected one of %v", e, Engines)
}

// stays reports whether a key that was added is the administrator's now: it has
// another value, and is not agentbox's own entry.
func (a Added) stays(now any) bool {
	return a.Value != nil && !slices.Contains(a.Path, RuntimeName) && a.differs(now)
}

// differs reports whether a value is another than the one that was added.
func (a Added) differs(now any) bool {
	var was bytes.Buffer // a record is indented
	data, err := json.Marshal(now)
	return err != nil || json.Compact(&was, a.Value) != nil || !bytes.Equal(data, was.Bytes())
}

func added(path []string, value any) Added {
	if value == nil {
		return Added{Path: path}
	}
	data, _ := json.Marshal(value) // texts, and lists and maps of them, always marshal
	return Added{Path: path, Value: data}
}
