package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
	"github.com/agentbox/agentbox/pkg/state"
)

// specPath returns the file that the low-level runtime would read; empty when
// none was named and the current folder has none.
func (p *planner) specPath() (string, error) {
	name := p.spec
	if name == "" {
		name = filepath.Join(p.bundle, spec.ConfigName)
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", fmt.Errorf("find the specification: %w", err)
	}
	if p.spec == "" && p.bundle == "" {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
	}
	return path, nil
}

// bundleOf is what the runtime takes for the bundle of a specification.
func bundleOf(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Dir(path)
}

// invalid names the file in which something is wrong, as the runtime does.
func invalid(path string, err error) error {
	if path == "" || errors.As(err, new(*limits.UnenforceableError)) {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// document reads a specification and adds the annotations of the command line.
// Without a file it has nothing else.
func (p *planner) document(path string) (*spec.Document, error) {
	data := []byte("{}")
	if path != "" {
		file, err := spec.Open(path)
		if err != nil {
			return nil, err
		}
		file.Close()
		data = file.Data
	}
	doc, err := spec.Parse(data)
	if err != nil {
		return nil, invalid(path, err)
	}
	added := p.added()
	if added == nil {
		return doc, nil
	}
	for _, text := range added {
		name, value, _ := strings.Cut(text, "=") // check has looked
		data = annotate(data, name, value)
	}
	if doc, err = spec.Parse(data); err != nil {
		return nil, invalid(path, err)
	}
	return doc, nil
}

// added returns the annotations of the command line, as NAME=VALUE.
func (p *planner) added() []string {
	added := slices.Clone(p.annotations)
	if p.profile != "" {
		added = append(added, config.ProfileAnnotation+"="+p.profile)
	}
	if p.kubernetes {
		added = append(added, "io.kubernetes.cri.container-type=container") // containerd's own mark
	}
	return added
}

// annotate sets an annotation of a specification that spec.Parse has accepted.
// Everything else stays as it stands.
func annotate(doc []byte, name, value string) []byte {
	const field = "annotations"
	annotations := []byte("{}")
	if start, end, _ := findField(doc, field); start < end && doc[start] == '{' { // not null
		annotations = doc[start:end]
	}
	return setField(doc, field, setField(annotations, name, quoteJSON(value)))
}

// setField replaces or appends a field of a JSON object.
func setField(object []byte, name string, value []byte) []byte {
	start, end, others := findField(object, name)
	if start < end {
		return slices.Concat(object[:start], value, object[end:])
	}
	comma := ""
	if others {
		comma = ","
	}
	return slices.Concat(object[:start], []byte(comma), quoteJSON(name), []byte{':'}, value, object[start:])
}

// findField returns where the value of a field of a valid JSON object is, the
// first of several. Where there is none, start and end are where one can be
// appended, and others says whether the object has any field.
func findField(object []byte, name string) (start, end int, others bool) {
	d := json.NewDecoder(bytes.NewReader(object))
	_, _ = d.Token() // the brace; valid JSON gives no errors
	for d.More() {
		key, _ := d.Token()
		var value json.RawMessage
		if d.Decode(&value) != nil {
			break
		}
		if end := int(d.InputOffset()); key == name {
			return end - len(value), end, true
		}
		others = true
	}
	end = bytes.LastIndexByte(object, '}')
	return end, end, others
}

func quoteJSON(s string) []byte {
	data, _ := json.Marshal(s) // a string always marshals
	return data
}

// hook returns the hook that the runtime adds where there is no start; nil for
// create. Its program is taken to be beside this one, as it is installed.
func (p *planner) hook(opts *options) (*spec.Hook, error) {
	if p.verb == verbs[0] {
		return nil, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find agentbox itself: %w", err)
	}
	dir := opts.state
	if dir == "" {
		dir = state.DefaultDir()
	}
	return &spec.Hook{Path: filepath.Join(filepath.Dir(self), "agentbox-runtime"), Args: []string{dir, lowLevelRoot()}}, nil
}

// lowLevelRoot is the low-level runtime's state folder where no --root is given
// (runc(8)).
func lowLevelRoot() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && os.Geteuid() != 0 {
		return filepath.Join(dir, "runc")
	}
	return "/run/runc"
}
