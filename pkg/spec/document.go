package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/agentbox/agentbox/pkg/limits"
)

// Document is a parsed config.json. The zero value is of no use; see Parse.
type Document struct {
	source      []byte // as it came; nil once something was changed
	root        *object
	annotations map[string]string
	unified     map[string]string
}

// Parse reads config.json. It looks only at what a plan can touch; everything
// else is the low-level runtime's to judge. An error is one sentence that names
// the field.
func Parse(data []byte) (*Document, error) {
	if !json.Valid(data) {
		return nil, syntaxError(data)
	}
	if i := escapedNUL(data); i >= 0 {
		return nil, fmt.Errorf(`the text at byte %d holds \u0000, where some low-level runtimes end a key or a value: remove it`, i)
	}
	root, err := split("", data)
	if err != nil {
		return nil, err
	}
	d := &Document{source: data, root: root}
	annotations, err := root.object("annotations")
	if err != nil {
		return nil, err
	}
	if d.annotations, err = annotations.strings(); err != nil {
		return nil, err
	}
	unified, err := d.section("linux", "resources", "unified")
	if err != nil {
		return nil, err
	}
	if d.unified, err = unified.strings(); err != nil {
		return nil, err
	}
	return d, nil
}

// syntaxError says where data stops being JSON.
func syntaxError(data []byte) error {
	var v json.RawMessage
	err := json.Unmarshal(data, &v)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("not valid JSON at byte %d: %w", syntax.Offset, err)
	}
	return fmt.Errorf("not valid JSON: %w", err)
}

// Annotations returns the container's annotations. The caller must not change
// the map.
func (d *Document) Annotations() map[string]string { return d.annotations }

// CgroupsPath returns linux.cgroupsPath, or "" when there is none.
func (d *Document) CgroupsPath() (string, error) {
	linux, err := d.section("linux")
	if err != nil || linux == nil {
		return "", err
	}
	raw, err := linux.get("cgroupsPath")
	if err != nil || raw == nil {
		return "", err
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("linux.cgroupsPath is %s where a string is expected", kindOf(raw))
	}
	return s, nil
}

// Bytes returns the document as it stands. What Parse was given is returned as
// it came while nothing was changed; the caller must not change it.
func (d *Document) Bytes() []byte {
	if d.source != nil {
		return d.source
	}
	return d.root.appendTo(make([]byte, 0, 16<<10))
}

// section walks down through objects; nil when one is missing.
func (d *Document) section(names ...string) (*object, error) {
	o := d.root
	for _, name := range names {
		next, err := o.object(name)
		if err != nil || next == nil {
			return nil, err
		}
		o = next
	}
	return o, nil
}

// ensureSection is section that creates what is missing.
func (d *Document) ensureSection(names ...string) (*object, error) {
	o := d.root
	for _, name := range names {
		next, err := o.ensure(name)
		if err != nil {
			return nil, err
		}
		o = next
	}
	return o, nil
}

// integer reads an integer field of a section that may be missing.
func (o *object) integer(name string) (n int64, given bool, err error) {
	if o == nil {
		return 0, false, nil
	}
	raw, err := o.get(name)
	if err != nil || raw == nil {
		return 0, false, err
	}
	n, err = strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("%s is %.40s where a whole number below 2^63 is expected", o.at(name), raw)
	}
	return n, true, nil
}

// prior reads the reserved annotation. One that does not read as ours is a
// container's own invention and explains nothing.
func (d *Document) prior() map[limits.Key]limits.Prior {
	text, ok := d.annotations[ReservedAnnotation]
	if !ok {
		return nil
	}
	var prior map[limits.Key]limits.Prior
	if json.Unmarshal([]byte(text), &prior) != nil {
		return nil
	}
	return prior
}

// MountSource returns where the file or folder at a place in the container is
// mounted from; "" when nothing is mounted there, or mounts cannot be read,
// which is the low-level runtime's to say.
func (d *Document) MountSource(destination string) string {
	raw, err := d.root.get("mounts")
	if err != nil {
		return ""
	}
	list, err := elements("mounts", raw)
	if err != nil {
		return ""
	}
	for _, element := range list {
		var m struct{ Destination, Source string }
		if bytes.Contains(element, []byte(destination)) && json.Unmarshal(element, &m) == nil && m.Destination == destination {
			return m.Source
		}
	}
	return ""
}
