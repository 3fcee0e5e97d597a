package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// jsonFile is a JSON text whose top is an object, to be changed without touching
// what is not meant. Offsets are in data.
type jsonFile struct {
	name string // for errors
	data []byte
	top  int // where the object begins
}

// object is an object of the text.
type object struct {
	open    int // behind the opening brace
	members []member
}

// member is one name and its value.
type member struct {
	name  string
	start int // the opening quote of the name
	value int // the first byte of the value
	end   int // behind the value
}

// parseJSON takes what encoding/json does, which is what dockerd reads with.
func parseJSON(name string, data []byte) (*jsonFile, error) {
	if err := checkText(name, data); err != nil {
		return nil, err
	}
	f := &jsonFile{name: name, data: data}
	text := bytes.TrimPrefix(data, byteOrderMark)
	f.top = len(data) - len(bytes.TrimLeft(text, " \t\r\n"))
	var top json.RawMessage
	if err := json.Unmarshal(text, &top); err != nil {
		offset := len(data)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			offset = len(data) - len(text) + int(syntax.Offset) - 1 // Offset counts the byte that is wrong
		}
		return nil, at(name, data, offset, "is not valid JSON: %v", err)
	}
	if top = bytes.TrimSpace(top); top[0] != '{' {
		return nil, at(name, data, f.top, "is %s where an object is expected: it would not be read by the engine either", short(top))
	}
	return f, nil
}

// object reads the object that begins at an offset.
func (f *jsonFile) object(offset int) object {
	d := json.NewDecoder(bytes.NewReader(f.data[offset:]))
	_, _ = d.Token() // the brace: the text was parsed before, so nothing here fails
	here := func() int { return offset + int(d.InputOffset()) }
	o := object{open: here()}
	for d.More() {
		start := here()
		start += bytes.IndexByte(f.data[start:], '"') // behind a comma and white space
		name, _ := d.Token()
		var value json.RawMessage
		_ = d.Decode(&value)
		m := member{start: start, value: here() - len(value), end: here()}
		m.name, _ = name.(string)
		o.members = append(o.members, m)
	}
	return o
}

// find returns the index of a member, or -1. A name that is there twice, or in
// another case, means different things to different readers.
func (f *jsonFile) find(o object, name string) (int, error) {
	found := -1
	for i, m := range o.members {
		switch {
		case !strings.EqualFold(m.name, name):
		case m.name != name:
			return -1, at(f.name, f.data, m.start, "the key %q is not spelled %q: correct it, since programs disagree about such keys", m.name, name)
		case found >= 0:
			return -1, at(f.name, f.data, m.start, "the key %q is there twice: remove one of them", name)
		default:
			found = i
		}
	}
	return found, nil
}

// get returns the value at a path; nil when it is not there. A part of the path
// that is no object is an error.
func (f *jsonFile) get(path ...string) (value []byte, start int, err error) {
	offset := f.top
	for depth, name := range path {
		o := f.object(offset)
		i, err := f.find(o, name)
		if err != nil || i < 0 {
			return nil, 0, err
		}
		m := o.members[i]
		if depth == len(path)-1 {
			return f.data[m.value:m.end], m.start, nil
		}
		if offset = m.value; f.data[offset] != '{' {
			return nil, 0, f.notObject(path[:depth+1], m)
		}
	}
	return f.data[f.top:], f.top, nil
}

func (f *jsonFile) notObject(path []string, m member) error {
	return at(f.name, f.data, m.value, "%s is %s where an object is expected: correct it or remove it",
		strings.Join(path, "."), short(f.data[m.value:m.end]))
}

// layout is how a text is written.
type layout struct {
	newline string
	unit    string // one step of indentation
	lines   bool   // a member has a line of its own
	indent  string // of a member
}

// layoutOf looks how the members of an object are written, or would be. An
// object that is empty stays on as many lines as it has.
func (f *jsonFile) layoutOf(o object, depth int) layout {
	first := func(o object) string { // what is before the first member
		end := o.open + len(f.data[o.open:]) - len(bytes.TrimLeft(f.data[o.open:], " \t\r\n"))
		return string(f.data[o.open:end])
	}
	top := f.object(f.top)
	l := layout{newline: "\n", unit: "  "}
	if strings.Contains(first(top), "\r\n") {
		l.newline = "\r\n"
	}
	if i := strings.LastIndexByte(first(top), '\n'); i >= 0 && len(top.members) > 0 {
		l.unit = first(top)[i+1:]
	}
	space := first(o)
	i := strings.LastIndexByte(space, '\n')
	l.lines, l.indent = i >= 0, strings.Repeat(l.unit, depth+1)
	if l.lines && len(o.members) > 0 {
		l.indent = space[i+1:]
	}
	return l
}

// add puts a value at the end of the object that a path names, and makes the
// objects on the way that are not there. It returns what it added.
func (f *jsonFile) add(path []string, value any) ([]Added, error) {
	offset, depth := f.top, 0
	for ; depth < len(path)-1; depth++ {
		o := f.object(offset)
		i, err := f.find(o, path[depth])
		if err != nil {
			return nil, err
		}
		if i < 0 {
			break
		}
		if offset = o.members[i].value; f.data[offset] != '{' {
			return nil, f.notObject(path[:depth+1], o.members[i])
		}
	}
	var list []Added
	for i := depth + 1; i < len(path); i++ {
		list = append(list, added(slices.Clone(path[:i]), nil))
	}
	list = append(list, added(path, value))
	for _, name := range slices.Backward(path[depth+1:]) {
		value = map[string]any{name: value}
	}
	f.insert(f.object(offset), depth, path[depth], value)
	return list, nil
}

// insert puts a member behind the last one of an object.
func (f *jsonFile) insert(o object, depth int, name string, value any) {
	l := f.layoutOf(o, depth)
	key, _ := json.Marshal(name)   // neither this
	body, _ := json.Marshal(value) // nor this can fail for texts
	if l.lines {
		body, _ = json.MarshalIndent(value, l.indent, l.unit)
		body = bytes.ReplaceAll(body, []byte("\n"), []byte(l.newline))
	}
	var text []byte
	offset := o.open
	if n := len(o.members); n > 0 {
		offset = o.members[n-1].end
		text = append(text, ',')
	}
	switch {
	case l.lines:
		text = append(append(text, l.newline...), l.indent...)
	case len(o.members) > 0:
		text = append(text, ' ')
	}
	text = append(append(append(text, key...), ": "...), body...)
	f.data = slices.Insert(slices.Clone(f.data), offset, text...)
}

// remove takes out the member at a path. It undoes insert exactly.
func (f *jsonFile) remove(path []string) error {
	offset := f.top
	for depth := range path {
		o := f.object(offset)
		i, err := f.find(o, path[depth])
		if err != nil || i < 0 {
			return err
		}
		if depth < len(path)-1 {
			if offset = o.members[i].value; f.data[offset] != '{' {
				return nil
			}
			continue
		}
		from, to := o.open, o.members[i].end
		switch {
		case i > 0:
			from = o.members[i-1].end // and the comma behind it
		case len(o.members) > 1:
			to += bytes.IndexByte(f.data[to:o.members[1].start], ',') + 1
		}
		f.data = slices.Delete(slices.Clone(f.data), from, to)
	}
	return nil
}
