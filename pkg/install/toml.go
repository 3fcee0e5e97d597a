package install

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// tomlFile is a TOML text, to be changed without touching what is not meant. The
// decoder says what is in it, the parser of the same library where that stands.
type tomlFile struct {
	name  string // for errors
	data  []byte
	root  map[string]any
	parts []part
}

// part is a table's header, or a key with its value, at the top of the text.
type part struct {
	path   []string // from the root
	offset int      // of the line on which it begins
	kind   unstable.Kind
	inline bool // a value that is itself a table
}

func parseTOML(name string, data []byte) (*tomlFile, error) {
	if err := checkText(name, data); err != nil {
		return nil, err
	}
	f := &tomlFile{name: name, data: data}
	text := bytes.TrimPrefix(data, byteOrderMark)
	if err := toml.Unmarshal(text, &f.root); err != nil {
		e := &Error{File: name, Text: "is not valid TOML: " + strings.TrimPrefix(err.Error(), "toml: ")}
		if decode, ok := errors.AsType[*toml.DecodeError](err); ok {
			e.Line, e.Column = decode.Position()
		}
		return nil, e
	}
	if err := f.readParts(text, len(data)-len(text)); err != nil {
		return nil, err
	}
	return f, nil
}

// readParts lists what stands where; skipped is how many bytes of data are before
// the text.
func (f *tomlFile) readParts(text []byte, skipped int) error {
	var p unstable.Parser
	p.Reset(text)
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		var path []string
		if e.Kind == unstable.KeyValue {
			path = slices.Clone(table)
		}
		offset := -1
		for key := e.Key(); key.Next(); {
			path = append(path, string(key.Node().Data))
			if offset < 0 {
				offset = int(key.Node().Raw.Offset)
			}
		}
		pt := part{path: path, kind: e.Kind, offset: skipped + bytes.LastIndexByte(text[:offset], '\n') + 1}
		if e.Kind == unstable.KeyValue {
			pt.inline = e.Value().Kind == unstable.InlineTable
		} else {
			table = path
		}
		f.parts = append(f.parts, pt)
	}
	if err := p.Error(); err != nil { // the decoder has taken it
		return &Error{File: f.name, Text: "cannot be changed safely: " + err.Error(), Err: err}
	}
	return nil
}

// get returns the value at a path; nil when it is not there.
func (f *tomlFile) get(path ...string) any { return lookUp(f.root, path) }

func lookUp(root map[string]any, path []string) any {
	var value any = root
	for _, name := range path {
		table, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = table[name]
	}
	return value
}

// line is where something at or below a path begins first, counted from 1; 0: it
// is nowhere.
func (f *tomlFile) line(path []string) int {
	for _, p := range f.parts {
		if hasPrefix(p.path, path) || p.inline && hasPrefix(path, p.path) {
			line, _ := position(f.data, p.offset)
			return line
		}
	}
	return 0
}

func hasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && slices.Equal(path[:len(prefix)], prefix)
}

// table is one that is to be added, with its keys in order. One without a path
// is for keys at the top of a file.
type table struct {
	path []string
	keys []keyValue
	why  string // a comment above it, one of comments
	// whole tables are the unit of what is taken out again; of others it is each
	// key.
	whole bool
	// inner tables belong to the one before.
	inner bool
}

// keyValue has a string, a []string, a bool or an int64.
type keyValue struct {
	name  string
	value any
}

// marker is the comment above what agentbox has added.
const marker = `# Added by "agentbox install"; "agentbox uninstall" takes it out.`

// comments are all that stand above what was added.
var comments = []string{marker, whyRunc}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// quoted is a basic string of TOML. Paths and names are printable.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

func dotted(path []string) string {
	words := make([]string, len(path))
	for i, word := range path {
		if words[i] = word; !bareKey.MatchString(word) {
			words[i] = quoted(word)
		}
	}
	return strings.Join(words, ".")
}

func (kv keyValue) String() string {
	switch v := kv.value.(type) {
	case string:
		return kv.name + " = " + quoted(v)
	case []string:
		words := make([]string, len(v))
		for i, word := range v {
			words[i] = quoted(word)
		}
		return kv.name + " = [" + strings.Join(words, ", ") + "]"
	default:
		return fmt.Sprintf("%s = %v", kv.name, v)
	}
}

func (t table) lines() []string {
	var list []string
	if !t.inner {
		list = append(list, marker)
	}
	if t.why != "" {
		list = append(list, t.why)
	}
	if len(t.path) > 0 {
		list = append(list, "["+dotted(t.path)+"]")
	}
	for _, kv := range t.keys {
		list = append(list, kv.String())
	}
	return list
}

// into puts the table into settings.
func (t table) into(root map[string]any) {
	for _, name := range t.path {
		next, ok := root[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			root[name] = next
		}
		root = next
	}
	for _, kv := range t.keys {
		root[kv.name] = kv.value
	}
}

// added is what to remember of tables that are added to a file.
func (f *tomlFile) added(tables []table) []Added {
	var list []Added
	for i, t := range tables {
		switch {
		case t.inner: // with the one before
		case t.whole:
			end := i + 1
			for end < len(tables) && tables[end].inner {
				end++
			}
			list = append(list, added(t.path, settings(tables[i:end], t.path)))
		default:
			if len(t.path) > 0 {
				list = append(list, added(t.path, nil))
			}
			for _, kv := range t.keys {
				list = append(list, added(append(slices.Clone(t.path), kv.name), kv.value))
			}
		}
	}
	return list
}

// settings is what tables say at a path.
func settings(tables []table, path []string) any {
	root := map[string]any{}
	for _, t := range tables {
		t.into(root)
	}
	return lookUp(root, path)
}

// append puts tables at the end of the text, and returns it parsed again. A text
// that ends without a newline stays like that, so that cut can undo it exactly.
func (f *tomlFile) append(tables []table) (*tomlFile, error) {
	for _, t := range tables {
		if err := f.canHold(t.path); err != nil {
			return nil, err
		}
	}
	newline := "\n"
	if i := bytes.IndexByte(f.data, '\n'); i > 0 && f.data[i-1] == '\r' {
		newline = "\r\n"
	}
	var list []string
	for i, t := range tables {
		if !t.inner && (i > 0 || len(f.data) > 0) {
			list = append(list, "")
		}
		list = append(list, t.lines()...)
	}
	text := strings.Join(list, newline)
	if len(f.data) == 0 || f.data[len(f.data)-1] == '\n' {
		text += newline
	}
	after, err := parseTOML(f.name, append(slices.Clip(f.data), text...))
	if err != nil {
		return nil, fmt.Errorf("agentbox cannot be added at the end of the file, add it by hand: %w", err)
	}
	return after, after.only(f, tables)
}

// canHold refuses a file in which a table cannot be added at the end, because
// what would hold it is written in one piece.
func (f *tomlFile) canHold(path []string) error {
	for _, p := range f.parts {
		if p.kind != unstable.Table && hasPrefix(path, p.path) {
			line, _ := position(f.data, p.offset)
			return &Error{File: f.name, Line: line, Text: fmt.Sprintf("%s is written in one piece, to which no table can be added: write it as [%s] and run the command again",
				dotted(p.path), dotted(p.path))}
		}
	}
	return nil
}

// only makes sure that the new text says what the old one does and the tables,
// and nothing else: a last defence against what no test has thought of.
func (f *tomlFile) only(before *tomlFile, tables []table) error {
	want := map[string]any{}
	if err := toml.Unmarshal(bytes.TrimPrefix(before.data, byteOrderMark), &want); err != nil {
		return err
	}
	for _, t := range tables {
		t.into(want)
	}
	if !same(want, f.root) {
		return &Error{File: f.name, Text: "has a form in which agentbox cannot be added without changing something else: add it by hand"}
	}
	return nil
}

// same compares settings. fmt sorts maps, and takes a NaN for equal to itself.
func same(a, b map[string]any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// cut takes out all that is at and below a path, with the comments that were
// added above it. It undoes append exactly.
func (f *tomlFile) cut(path []string) (*tomlFile, error) {
	last := len(f.parts) - 1
	for last >= 0 && !hasPrefix(f.parts[last].path, path) {
		last--
	}
	if last < 0 {
		return f, nil
	}
	first := last // of parts in a row that all go
	for first > 0 && hasPrefix(f.parts[first-1].path, path) {
		first--
	}
	from, to := f.from(first), f.to(last)
	if to == len(f.data) && f.data[to-1] != '\n' { // the text had no newline at its end
		from = len(trimNewline(f.data[:from]))
	}
	rest, err := parseTOML(f.name, slices.Delete(slices.Clone(f.data), from, to))
	if err != nil {
		return nil, err
	}
	return rest.cut(path)
}

// from is where a part begins, with the comments that were added above it and
// the empty line above those.
func (f *tomlFile) from(i int) int {
	from := f.parts[i].offset
	ours := false
	for from > 0 {
		above := bytes.LastIndexByte(f.data[:from-1], '\n') + 1
		text := string(bytes.TrimRight(f.data[above:from], "\r\n"))
		if text == "" && ours {
			return above
		}
		if !slices.Contains(comments, text) {
			break
		}
		from, ours = above, true
	}
	return from
}

// to is where a part ends: comments and empty lines before the next part belong
// to that, or to the administrator.
func (f *tomlFile) to(i int) int {
	to := len(f.data)
	if i+1 < len(f.parts) {
		to = f.parts[i+1].offset
	}
	for to > f.parts[i].offset {
		above := bytes.LastIndexByte(f.data[:to-1], '\n') + 1
		text := bytes.TrimSpace(f.data[above:to])
		if above <= f.parts[i].offset || len(text) > 0 && text[0] != '#' {
			break
		}
		to = above
	}
	return to
}

func trimNewline(text []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
}

// tomlEditor is for the engines whose files are TOML.
type tomlEditor struct {
	// tables returns what to add to a file.
	tables func(f *tomlFile, want Want) (tables []table, notes []string, err error)
	// defaultKeys are where a file may name the default runtime.
	defaultKeys [][]string
}

func (t tomlEditor) add(name string, data []byte, want Want) (Edit, error) {
	f, err := parseTOML(name, data)
	if err != nil {
		return Edit{}, err
	}
	tables, notes, err := t.tables(f, want)
	if err != nil {
		return Edit{}, err
	}
	if len(tables) == 0 {
		return Edit{Data: data, Notes: notes}, nil
	}
	after, err := f.append(tables)
	if err != nil {
		return Edit{}, err
	}
	return Edit{Data: after.data, Added: f.added(tables), Notes: notes}, nil
}

func (t tomlEditor) remove(name string, data []byte, list []Added) ([]byte, error) {
	f, err := parseTOML(name, data)
	if err != nil {
		return nil, err
	}
	for _, a := range slices.Backward(list) {
		now := f.get(a.Path...)
		if now == nil || !f.isOurs(a, now) {
			continue
		}
		if f, err = f.cut(a.Path); err != nil {
			return nil, err
		}
		if f.get(a.Path...) != nil {
			return nil, &Error{File: name, Line: f.line(a.Path), Text: dotted(a.Path) + " is written in another form than agentbox wrote it: remove it by hand"}
		}
	}
	return f.data, nil
}

// isOurs reports whether what is at a path now may go: agentbox's own entry, a
// value as it was written, or a table that was made to hold these and holds
// nothing now.
func (f *tomlFile) isOurs(a Added, now any) bool {
	switch {
	case a.Value == nil:
		m, isTable := now.(map[string]any)
		return isTable && len(m) == 0
	case len(a.Path) == 1: // the version of the file, which all the rest needs
		return len(f.root) == 1 && !a.stays(now)
	case a.Path[len(a.Path)-1] == runcName: // others need it as agentbox did
		siblings, _ := f.get(a.Path[:len(a.Path)-1]...).(map[string]any)
		return len(siblings) == 1 && !a.stays(now)
	}
	return !a.stays(now)
}

// holds counts comments too: they are somebody's.
func (tomlEditor) holds(data []byte) bool {
	return len(bytes.TrimSpace(bytes.TrimPrefix(data, byteOrderMark))) > 0
}

// unlessThere returns a table if nothing is at a path yet, and nothing if what it
// says is there already.
func (f *tomlFile) unlessThere(t table, path []string) ([]table, []string, error) {
	has := f.get(path...)
	if has == nil {
		return []table{t}, nil, nil
	}
	if wanted := added(path, settings([]table{t}, path)); !wanted.differs(has) {
		return nil, nil, nil
	}
	return nil, nil, &ExistsError{File: f.name, Line: f.line(path), Key: dotted(path), Has: shown(has)}
}

func (t tomlEditor) defaults(name string, data []byte) (line int, key string) {
	f, err := parseTOML(name, data)
	if err != nil {
		return 0, ""
	}
	for _, path := range t.defaultKeys {
		if f.get(path...) == RuntimeName {
			return f.line(path), dotted(path)
		}
	}
	return 0, ""
}
