package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// object is one level of a JSON object, with its fields in order. Fields whose
// value is an object are split only when somebody asks for them.
type object struct {
	path   string // for errors: "linux.resources"
	fields []field
}

type field struct {
	name  string
	raw   []byte // the name as it is spelled in the file, quotes included
	value []byte
	child *object // the value, once it was split
}

// split reads the fields of an object from valid JSON.
func split(path string, data []byte) (*object, error) {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		return nil, fmt.Errorf("%s is %s where an object is expected", named(path), kindOf(data))
	}
	o := &object{path: path, fields: make([]field, 0, 16)}
	for rest := skipSpace(data[1:]); rest[0] != '}'; {
		end := skipString(rest)
		f := field{raw: rest[:end]}
		if err := json.Unmarshal(f.raw, &f.name); err != nil {
			return nil, fmt.Errorf("%s: read the name %s: %w", named(path), f.raw, err)
		}
		rest = skipSpace(skipSpace(rest[end:])[1:]) // the colon
		end = skipValue(rest)
		f.value = rest[:end]
		o.fields = append(o.fields, f)
		rest = skipSpace(rest[end:])
		if rest[0] == ',' {
			rest = skipSpace(rest[1:])
		}
	}
	return o, nil
}

func named(path string) string {
	if path == "" {
		return "the document"
	}
	return path
}

// kindOf names the kind of a JSON value, for errors.
func kindOf(data []byte) string {
	if len(data) == 0 {
		return "nothing"
	}
	switch data[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}

// The skip functions walk over JSON that json.Valid has accepted.

func skipSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\n' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}

// skipString returns the length of the string at the start of b.
func skipString(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// skipValue returns the length of the value at the start of b.
func skipValue(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i += skipString(b[i:]) - 1
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // the end of whatever holds this value
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}

// escapedNUL returns the index of the first \u0000 in valid JSON, or -1. Valid
// JSON has backslashes only in strings, and no other way to write this character.
func escapedNUL(data []byte) int {
	for i := 0; ; i += 2 { // a backslash and what it escapes
		next := bytes.IndexByte(data[i:], '\\')
		if next < 0 {
			return -1
		}
		i += next
		if bytes.HasPrefix(data[i:], []byte(`\u0000`)) {
			return i
		}
	}
}

// elements splits a JSON list. null is an empty one.
func elements(path string, data []byte) ([][]byte, error) {
	data = bytes.TrimSpace(data)
	if isNull(data) {
		return nil, nil
	}
	if data[0] != '[' {
		return nil, fmt.Errorf("%s is %s where a list is expected", named(path), kindOf(data))
	}
	var list [][]byte
	for rest := skipSpace(data[1:]); rest[0] != ']'; {
		end := skipValue(rest)
		list = append(list, rest[:end])
		rest = skipSpace(rest[end:])
		if rest[0] == ',' {
			rest = skipSpace(rest[1:])
		}
	}
	return list, nil
}

func joinList(list [][]byte) []byte {
	return append(append([]byte{'['}, bytes.Join(list, []byte{','})...), ']')
}

func isNull(data []byte) bool { return len(data) == 0 || string(data) == "null" }

// find returns the index of a field, or -1. A field that is there twice, or in
// another case than the specification's, is an error.
func (o *object) find(name string) (int, error) {
	found := -1
	for i := range o.fields {
		have := o.fields[i].name
		if !strings.EqualFold(have, name) {
			continue
		}
		if have != name {
			return -1, fmt.Errorf("%s: the key %.80q is not spelled %q, and low-level runtimes disagree about such keys", named(o.path), have, name)
		}
		if found >= 0 {
			return -1, fmt.Errorf("%s: the key %.80q is there twice", named(o.path), name)
		}
		found = i
	}
	return found, nil
}

func (o *object) at(name string) string {
	if o.path == "" {
		return name
	}
	return o.path + "." + name
}

// get returns the value of a field; nil when it is missing or null.
func (o *object) get(name string) ([]byte, error) {
	i, err := o.find(name)
	if err != nil || i < 0 || isNull(o.fields[i].value) {
		return nil, err
	}
	return o.fields[i].value, nil
}

// object returns a field that is an object; nil when it is missing or null.
func (o *object) object(name string) (*object, error) {
	i, err := o.find(name)
	if err != nil || i < 0 {
		return nil, err
	}
	f := &o.fields[i]
	if f.child != nil {
		return f.child, nil
	}
	if isNull(f.value) {
		return nil, nil
	}
	f.child, err = split(o.at(name), f.value)
	return f.child, err
}

// ensure is object for a field that is about to get values.
func (o *object) ensure(name string) (*object, error) {
	child, err := o.object(name)
	if err != nil || child != nil {
		return child, err
	}
	child = &object{path: o.at(name)}
	i, _ := o.find(name) // object has checked it
	if i < 0 {
		o.fields = append(o.fields, newField(name))
		i = len(o.fields) - 1
	}
	o.fields[i].child = child
	return child, nil
}

func newField(name string) field {
	raw, _ := json.Marshal(name) // a string always marshals
	return field{name: name, raw: raw}
}

// set replaces or appends a field. Values are JSON.
func (o *object) set(name string, value []byte) {
	for i := range o.fields {
		if o.fields[i].name == name {
			o.fields[i].value, o.fields[i].child = value, nil
			return
		}
	}
	f := newField(name)
	f.value = value
	o.fields = append(o.fields, f)
}

func (o *object) setInt(name string, n int64) { o.set(name, fmt.Append(nil, n)) }

func (o *object) setString(name, s string) {
	value, _ := json.Marshal(s) // a string always marshals
	o.set(name, value)
}

// strings reads an object whose names and values are data: annotations and the
// unified map. Each name may be there once.
func (o *object) strings() (map[string]string, error) {
	if o == nil {
		return nil, nil
	}
	m := make(map[string]string, len(o.fields))
	for _, f := range o.fields {
		if _, ok := m[f.name]; ok {
			return nil, fmt.Errorf("%s: the key %.80q is there twice", o.path, f.name)
		}
		var s string
		if err := json.Unmarshal(f.value, &s); err != nil || isNull(f.value) {
			return nil, fmt.Errorf("%s: the value of %.80q is %s where a string is expected", o.path, f.name, kindOf(f.value))
		}
		m[f.name] = s
	}
	return m, nil
}

// remove deletes every field that the predicate picks.
func (o *object) remove(pick func(name string) bool) {
	kept := o.fields[:0]
	for _, f := range o.fields {
		if !pick(f.name) {
			kept = append(kept, f)
		}
	}
	o.fields = kept
}

// appendTo writes the object; values that were not split are written as they
// came.
func (o *object) appendTo(out []byte) []byte {
	out = append(out, '{')
	for i, f := range o.fields {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, f.raw...), ':')
		if f.child != nil {
			out = f.child.appendTo(out)
		} else {
			out = append(out, f.value...)
		}
	}
	return append(out, '}')
}
