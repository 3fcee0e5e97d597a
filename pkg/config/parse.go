package config

import (
	"bytes"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/agentbox/agentbox/pkg/limits"
)

var byteOrderMark = []byte("\xef\xbb\xbf")

// Parse parses a configuration file. The name is for errors only.
//
// The error is an *Error about the first problem in the order of lines. Only
// the finer rules of TOML, such as a table that is opened twice, come last.
func Parse(name string, data []byte) (*File, error) {
	if len(data) > MaxSize {
		return nil, &Error{File: name, Text: "is larger than 1 MiB: expected a configuration file"}
	}
	data = slices.Clip(bytes.TrimPrefix(data, byteOrderMark))
	p := parser{name: name, data: data, file: Default(), given: map[string]int{}}
	if !utf8.Valid(data) {
		return nil, p.notText()
	}
	if err := p.parse(); err != nil {
		return nil, err
	}
	// The tree shows each setting as it is written. The rules that no single
	// expression can break, and the finer points of numbers, are left to the
	// decoder proper.
	var doc map[string]any
	if err := toml.Unmarshal(data, &doc); err != nil {
		return nil, p.notTOML(err)
	}
	p.finish()
	return p.file, nil
}

// parser walks the syntax tree of a file. The tree has what decoding into Go
// values loses: where a setting stands, and a number as it is written, so that
// cpus = 0.1 is exactly that. Its API is not under the library's promise of
// stability: the tests here assert every line number and value that it gives.
type parser struct {
	name string
	data []byte
	tree unstable.Parser
	file *File

	given    map[string]int // the offset of each setting
	oomAllow []limits.Scope // nil: not given
}

func (p *parser) parse() error {
	p.tree.Reset(p.data)
	var table []string
	for p.tree.NextExpression() {
		e := p.tree.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			path, offset := keyPath(nil, e.Key())
			if err := p.table(path, offset, e.Kind == unstable.ArrayTable); err != nil {
				return err
			}
			table = path
		case unstable.KeyValue:
			if err := p.keyValue(table, e); err != nil {
				return err
			}
		}
	}
	if err := p.tree.Error(); err != nil {
		return p.notTOML(err)
	}
	return nil
}

// keyPath returns a table's path extended by a key, and where the key's last
// part is in the file.
func keyPath(table []string, key unstable.Iterator) (path []string, offset int) {
	path = slices.Clip(table)
	for key.Next() {
		path = append(path, string(key.Node().Data))
		offset = int(key.Node().Raw.Offset)
	}
	return path, offset
}

func (p *parser) keyValue(table []string, e *unstable.Node) error {
	path, offset := keyPath(table, e.Key())
	node := e.Value()
	if node.Kind != unstable.InlineTable {
		return p.set(setting{path: path, offset: offset, value: newValue(node), node: node})
	}
	if err := p.table(path, offset, false); err != nil {
		return err
	}
	for it := node.Children(); it.Next(); {
		if err := p.keyValue(path, it.Node()); err != nil {
			return err
		}
	}
	return nil
}

// The names of tables and of the settings outside limits.Keys.
const (
	tableLimits   = "limits"
	tableCeilings = "ceilings"
	tableProfiles = "profiles"
	tableOOM      = "oom"
)

var (
	topKeys = []string{
		"runtime", "mode", "strict_require", "supervise", "group", "results", "results_max", "results_max_age", "allow_annotations", "io_device",
		tableLimits, tableCeilings, tableProfiles, tableOOM,
	}
	oomKeys = []string{"scope", "allow", "score_adj_min"}
)

func isTable(name string) bool {
	return name == tableLimits || name == tableCeilings || name == tableProfiles || name == tableOOM
}

// table takes the header of a table, or an inline one.
func (p *parser) table(path []string, offset int, array bool) error {
	s := setting{path: path, offset: offset}
	profile := len(path) == 2 && path[0] == tableProfiles
	switch {
	case !profile && (len(path) != 1 || !isTable(path[0])):
		if known(path) {
			return p.fail(s, "is a table: expected a single value, written as "+quoteKey(path[len(path)-1])+" = ...")
		}
		return p.unknown(s)
	case array:
		return p.fail(s, "is an array of tables: expected ["+dotted(path)+"]")
	case profile:
		_, err := p.profile(s, path[1])
		return err
	}
	return nil
}

// profile returns the profile of that name, a new one if there is none.
func (p *parser) profile(s setting, name string) (limits.Set, error) {
	if _, problem := parseProfile(name); problem != nil {
		return nil, p.fail(s, "does not name a profile: expected "+problem.Expected)
	}
	profiles := p.file.Policy.Profiles
	if profiles[name] == nil {
		profiles[name] = limits.Set{}
	}
	return profiles[name], nil
}

// setting is one key with its value.
type setting struct {
	path   []string
	offset int // of the key, in the file
	value  value
	node   *unstable.Node
}

// value is a value as it is written.
type value struct {
	kind  unstable.Kind
	text  string // what ParseKey takes: a string's content, a number without grouping
	shown string // for errors; empty if it is not a single value
	what  string // "an array", if it is not a single value
}

func newValue(n *unstable.Node) value {
	v := value{kind: n.Kind}
	switch n.Kind {
	case unstable.String:
		v.text = string(n.Data)
		v.shown = quote(v.text)
	case unstable.Integer, unstable.Float, unstable.Bool:
		raw := string(n.Data)
		v.text, v.shown = plainNumber(raw), raw
		if len(raw) > maxShown {
			v.shown = raw[:maxShown] + "..."
		}
	case unstable.Array:
		v.what = "an array"
	case unstable.InlineTable:
		v.what = "a table"
	default:
		v.what = "a date or a time"
	}
	return v
}

// plainNumber removes what TOML allows in a number and nobody else does.
func plainNumber(s string) string {
	s = strings.TrimPrefix(strings.ReplaceAll(s, "_", ""), "+")
	if len(s) > 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'o' || s[1] == 'b') {
		if n, err := strconv.ParseInt(s, 0, 64); err == nil {
			return strconv.FormatInt(n, 10)
		}
	}
	return s
}

// set takes one setting.
func (p *parser) set(s setting) error {
	path := s.path
	name := strings.Join(path, "\x00")
	if first, twice := p.given[name]; twice {
		return p.fail(s, "is given twice: expected once, and line "+strconv.Itoa(p.line(first))+" has it already")
	}
	p.given[name] = s.offset
	if len(path) == 2 {
		switch path[0] {
		case tableLimits:
			return p.limit(s, p.file.Policy.Defaults, path[1])
		case tableCeilings:
			return p.limit(s, p.file.Policy.Ceilings, path[1])
		case tableOOM:
			return p.oom(s, path[1])
		}
	}
	if len(path) == 3 && path[0] == tableProfiles {
		profile, err := p.profile(s, path[1])
		if err != nil {
			return err
		}
		return p.limit(s, profile, path[2])
	}
	if len(path) == 1 && isTable(path[0]) || len(path) == 2 && path[0] == tableProfiles {
		return p.fail(s, "has the wrong type: expected a table, written as ["+dotted(path)+"]")
	}
	if len(path) == 1 {
		return p.top(s, path[0])
	}
	return p.unknown(s)
}

// limit takes one key of [limits], [ceilings] or a profile.
func (p *parser) limit(s setting, set limits.Set, name string) error {
	key := limits.Key(name)
	info, ok := key.Info()
	if !ok {
		return p.unknown(s)
	}
	if s.value.what != "" {
		return p.wrongType(s, expected(info.Kind))
	}
	v, problem := parseKey(key, s.value.text)
	if problem != nil {
		return p.invalid(s, problem)
	}
	set[key] = v
	return nil
}

func (p *parser) top(s setting, name string) error {
	f := p.file
	switch name {
	case "runtime":
		return p.text(s, &f.Runtime, "the name of a runtime such as runc, or its absolute path", checkRuntime)
	case "mode":
		return p.text(s, (*string)(&f.Policy.Mode), "auto, strict or off", checkMember("a mode", limits.ModeAuto, limits.ModeStrict, limits.ModeOff))
	case "strict_require":
		return p.strictRequire(s)
	case "supervise":
		return p.dimensions(s, &f.Policy.Supervise, limits.Supervisable[:])
	case "group":
		return p.text(s, &f.Group, `the name of a group, or "" for nobody`, checkGroup)
	case "results":
		return p.text(s, &f.ResultsDir, "the absolute path of a folder", checkFolder)
	case "results_max":
		return p.integer(s, &f.ResultsMax, 1, math.MaxInt32)
	case "results_max_age":
		return p.age(s)
	case "io_device":
		return p.ioDevice(s)
	case "allow_annotations":
		return p.list(s, &f.Policy.AllowAnnotations, `["org.systemd.property.*"]`, "the name of an annotation, or its beginning with a * at the end", checkPattern)
	}
	return p.unknown(s)
}

// ioDevice takes one path, or several in an array.
func (p *parser) ioDevice(s setting) error {
	const want = "the absolute path of a device node, or of a file on the disk that is meant"
	if s.value.kind == unstable.Array {
		return p.list(s, &p.file.Policy.IODevices, `["/dev/sda"]`, want, checkFolder)
	}
	var path string
	if err := p.text(s, &path, want+", or an array of them", checkFolder); err != nil {
		return err
	}
	p.file.Policy.IODevices = []string{path}
	return nil
}

func (p *parser) oom(s setting, name string) error {
	policy := &p.file.Policy
	switch name {
	case "scope":
		return p.text(s, (*string)(&policy.OOMScope), "container or process", checkScope)
	case "allow":
		var names []string
		err := p.list(s, &names, `["container", "process"]`, "container or process", checkScope)
		p.oomAllow = []limits.Scope{}
		for _, n := range names {
			p.oomAllow = append(p.oomAllow, limits.Scope(n))
		}
		return err
	case "score_adj_min":
		return p.integer(s, &policy.OOMScoreAdjMin, -1000, 1000)
	}
	return p.unknown(s)
}

// finish settles what depends on more than one setting.
func (p *parser) finish() {
	policy := &p.file.Policy
	if p.oomAllow != nil {
		policy.OOMScopes = p.oomAllow
	}
	if !slices.Contains(policy.OOMScopes, policy.OOMScope) {
		policy.OOMScopes = append(policy.OOMScopes, policy.OOMScope)
	}
}

// text takes a string. The check returns what is wrong with it, or "".
func (p *parser) text(s setting, to *string, want string, check func(string) string) error {
	if s.value.kind != unstable.String {
		return p.wrongType(s, want+", in quotes")
	}
	if problem := check(s.value.text); problem != "" {
		return p.invalid(s, &ValueError{s.value.text, problem, want})
	}
	*to = s.value.text
	return nil
}

// list takes an array of different strings; want is about one of them.
func (p *parser) list(s setting, to *[]string, example, want string, check func(string) string) error {
	if s.value.kind != unstable.Array {
		return p.wrongType(s, "an array such as "+example)
	}
	list := []string{}
	for it := s.node.Children(); it.Next(); {
		n := it.Node()
		item := setting{path: s.path, offset: s.offset, value: newValue(n), node: n}
		if n.Kind == unstable.String {
			item.offset = int(n.Raw.Offset)
		}
		var entry string
		if err := p.text(item, &entry, want, check); err != nil {
			return err
		}
		if slices.Contains(list, entry) {
			return p.invalid(item, &ValueError{entry, "is there twice", want})
		}
		list = append(list, entry)
	}
	*to = list
	return nil
}

func (p *parser) strictRequire(s setting) error {
	var all []limits.Dimension
	for _, info := range limits.Keys {
		if !slices.Contains(all, info.Dimension) {
			all = append(all, info.Dimension)
		}
	}
	return p.dimensions(s, &p.file.Policy.StrictRequire, all)
}

// dimensions takes an array of some of these dimensions.
func (p *parser) dimensions(s setting, to *[]limits.Dimension, all []limits.Dimension) error {
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = string(d)
	}
	var list []string
	err := p.list(s, &list, `["memory", "pids"]`, "one of "+strings.Join(names, ", "), checkMember("a dimension", names...))
	if err != nil {
		return err
	}
	*to = make([]limits.Dimension, 0, len(list))
	for _, d := range list {
		*to = append(*to, limits.Dimension(d))
	}
	return nil
}

func (p *parser) integer(s setting, to *int, low, high int64) error {
	want := "a whole number from " + strconv.FormatInt(low, 10) + " to " + strconv.FormatInt(high, 10)
	if s.value.kind != unstable.Integer {
		return p.wrongType(s, want)
	}
	n, err := strconv.ParseInt(s.value.text, 10, 64)
	if err != nil || n < low || n > high {
		return p.invalid(s, &ValueError{s.value.text, "is out of range", want})
	}
	*to = int(n)
	return nil
}

func (p *parser) age(s setting) error {
	const want = "a duration such as 168h"
	if s.value.what != "" {
		return p.wrongType(s, want)
	}
	text := s.value.text
	problem := commonProblem(text)
	var n int64
	if problem == "" {
		n, problem = parseDuration(text)
	}
	if problem == "" && n == 0 {
		problem = "is zero"
	}
	if problem != "" {
		return p.invalid(s, &ValueError{text, problem, want})
	}
	p.file.ResultsMaxAge = time.Duration(n)
	return nil
}

// checkRuntime says what is wrong with the name of the low-level runtime.
func checkRuntime(s string) string {
	base := filepath.Base(s)
	switch {
	case s == "":
		return "is empty"
	case !isPrintable(s):
		return "has characters that cannot be printed"
	case strings.Contains(s, "/") && !filepath.IsAbs(s):
		return "is a relative path"
	case !strings.Contains(s, "/") && strings.ContainsAny(s, " "):
		return "has a space, and arguments cannot be given here"
	case base == "." || base == ".." || base == "/" || strings.HasSuffix(s, "/"):
		return "is a folder"
	case base == "agentbox-runtime":
		return "would start agentbox again and again"
	}
	return ""
}

func checkGroup(s string) string {
	if !isPrintable(s) || strings.ContainsAny(s, ":,/") || strings.TrimSpace(s) != s {
		return "is not the name of a group"
	}
	return ""
}

func checkFolder(s string) string {
	switch {
	case s == "":
		return "is empty"
	case !isPrintable(s):
		return "has characters that cannot be printed"
	case !filepath.IsAbs(s):
		return "is a relative path"
	case filepath.Clean(s) != strings.TrimSuffix(s, "/") || s == "/":
		return "is not the plain path of a folder of its own"
	}
	return ""
}

// checkPattern says what is wrong with an entry of allow_annotations.
func checkPattern(s string) string {
	name := strings.TrimSuffix(s, "*")
	switch {
	case s == "":
		return "is empty"
	case name == "":
		return "would allow every annotation"
	case strings.Contains(name, "*"):
		return "has a * that is not at its end"
	case !isPrintable(s) || strings.Contains(s, " "):
		return "is not the name of an annotation"
	}
	return ""
}

func checkScope(s string) string {
	if _, problem := parseScope(s); problem != nil {
		return problem.Problem
	}
	return ""
}

func checkMember[T ~string](what string, members ...T) func(string) string {
	return func(s string) string {
		if slices.Contains(members, T(s)) {
			return ""
		}
		return "is not " + what
	}
}

// fail returns an error about a setting.
func (p *parser) fail(s setting, text string) error {
	return &Error{File: p.name, Line: p.line(s.offset), Key: dotted(s.path), Value: s.value.shown, Text: text}
}

func (p *parser) wrongType(s setting, want string) error {
	problem := "has the wrong type"
	if s.value.what != "" {
		problem = "is " + s.value.what
	}
	return p.fail(s, problem+": expected "+want)
}

func (p *parser) invalid(s setting, problem *ValueError) error {
	return &Error{File: p.name, Line: p.line(s.offset), Key: dotted(s.path), Value: s.value.shown, Text: problem.text(), Err: problem}
}

// known reports whether a path is that of a setting.
func known(path []string) bool {
	names := candidates(path)
	return names != nil && slices.Contains(names, path[len(path)-1])
}

// candidates returns the names that could stand at the end of a path.
func candidates(path []string) []string {
	switch {
	case len(path) == 1:
		return topKeys
	case len(path) == 2 && (path[0] == tableLimits || path[0] == tableCeilings) || len(path) == 3 && path[0] == tableProfiles:
		names := make([]string, 0, len(limits.Keys))
		for _, info := range limits.Keys {
			names = append(names, string(info.Key))
		}
		return names
	case len(path) == 2 && path[0] == tableOOM:
		return oomKeys
	}
	return nil
}

func (p *parser) unknown(s setting) error {
	s.value.shown = "" // what it is set to does not matter
	if !slices.Contains(topKeys, s.path[0]) {
		s.path = s.path[:1]
	}
	name, names := s.path[len(s.path)-1], candidates(s.path)
	hint := "expected nothing below " + dotted(s.path[:len(s.path)-1])
	switch near := nearest(name, names); {
	case len(s.path) == 1 && known([]string{tableLimits, name}):
		hint = "it belongs below [limits], [ceilings] or a profile"
	case len(s.path) > 1 && slices.Contains(topKeys, name):
		hint = "it belongs at the top of the file, before the first [table]"
	case near != "":
		hint = "did you mean " + near + "?"
	case names != nil:
		hint = "expected one of " + strings.Join(names, ", ")
	}
	return p.fail(s, "is not a known key: "+hint)
}

// line returns the line, counted from 1, at an offset in the file.
func (p *parser) line(offset int) int {
	return 1 + bytes.Count(p.data[:offset], []byte("\n"))
}

func (p *parser) notText() error {
	offset := 0
	for offset < len(p.data) {
		r, size := utf8.DecodeRune(p.data[offset:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		offset += size
	}
	return &Error{File: p.name, Line: p.line(offset), Text: "is not UTF-8 text: expected a TOML file"}
}

// notTOML explains an error of the TOML library.
func (p *parser) notTOML(err error) error {
	e := &Error{File: p.name, Text: "is not valid TOML: ", Err: err}
	message := strings.TrimPrefix(err.Error(), "toml: ")
	var syntax *unstable.ParserError
	var decode *toml.DecodeError
	switch {
	case errors.As(err, &syntax):
		e.Line = p.line(int(p.tree.Range(syntax.Highlight).Offset))
		e.Err = nil // it refers to the parser
	case errors.As(err, &decode):
		e.Line, _ = decode.Position()
	}
	if len(message) > 2*maxShown || !isPrintable(message) {
		message = quote(message)
	}
	e.Text += message
	if e.Line > 0 {
		text := p.lineText(e.Line)
		e.Text += ", in the line " + quote(text)
		if _, v, ok := strings.Cut(text, "="); ok && unquoted(strings.TrimSpace(v)) {
			e.Text += " (write text, sizes and durations in quotes)"
		}
	}
	return e
}

// unquoted reports whether a value looks like a text without its quotes.
func unquoted(v string) bool {
	v, _, _ = strings.Cut(v, "#")
	for i := range len(v) {
		if c := v[i]; c == '"' || c == '\'' {
			return false
		} else if c|0x20 >= 'a' && c|0x20 <= 'z' || c == '/' {
			return true
		}
	}
	return false
}

func (p *parser) lineText(n int) string {
	for line := range bytes.Lines(p.data) {
		if n--; n == 0 {
			return string(bytes.TrimSpace(line))
		}
	}
	return ""
}

// dotted writes a path as TOML does, bounded.
func dotted(path []string) string {
	const most = 4
	parts := make([]string, 0, most)
	for _, name := range path[:min(len(path), most)] {
		parts = append(parts, quoteKey(name))
	}
	if len(path) > most {
		return strings.Join(parts, ".") + "..."
	}
	return strings.Join(parts, ".")
}

func quoteKey(name string) string {
	if isName(name) && !strings.Contains(name, ".") && len(name) <= maxName {
		return name
	}
	return quote(name)
}
