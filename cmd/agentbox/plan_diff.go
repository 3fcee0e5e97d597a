package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/rogpeppe/go-internal/diff"
)

// maxIndented bounds the text of one side of a diff, in bytes. Real files have
// some 100 KiB; one of 16 MiB that is made of nested lists would have hundreds
// of gigabytes.
const maxIndented = 16 << 20

const cyan style = "\x1b[36m"

// writeDiff writes the change to a specification as a unified diff; nothing if
// there is none.
func writeDiff(w io.Writer, o *outcome) error {
	before, err := indent(o.before)
	if err != nil {
		return err
	}
	after, err := indent(o.after)
	if err != nil {
		return err
	}
	name := "config.json"
	if o.path != "" {
		name = clean(o.path)
	}
	p := printer{colour: wantsColour(w)}
	p.diff(diff.Diff(name, before, name+" with limits", after))
	_, err = io.WriteString(w, p.String())
	return err
}

// diff writes a unified diff, coloured as git does.
func (p *printer) diff(text []byte) {
	header := true
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "@@") {
			header = false
		}
		if s := diffStyle(line, header); s != "" {
			line = p.paint(s, line)
		}
		p.line(line)
	}
}

func diffStyle(line string, header bool) style {
	if header {
		return bold
	}
	switch line[0] { // no line is empty: each has its mark
	case '@':
		return cyan
	case '+':
		return green
	case '-':
		return red
	}
	return ""
}

// indent writes valid JSON in lines, with its keys in their order. What is not
// printable is escaped, which is the same to every reader of JSON and keeps a
// terminal safe.
func indent(data []byte) ([]byte, error) {
	data = bytes.TrimSpace(data)
	if size := indentedSize(data); size > maxIndented {
		return nil, fmt.Errorf("config.json has %d bytes when it is indented, more than the %d that --diff shows: look at the plan without --diff", size, maxIndented)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", "  "); err != nil {
		return nil, fmt.Errorf("indent config.json: %w", err)
	}
	out := make([]byte, 0, b.Len()+1)
	for _, r := range b.String() { // bytes that are no text are U+FFFD, as to every reader
		switch {
		case r == '\n' || r != unicode.ReplacementChar && unicode.IsPrint(r):
			out = append(out, string(r)...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return append(out, '\n'), nil
}

// indentedSize is the most that valid JSON without spaces at its ends has when
// json.Indent has indented it by two spaces.
func indentedSize(data []byte) int {
	const brk = 1 // a line break
	size, depth, inString := len(data), 0, false
	for i := 0; i < len(data); i++ {
		c := data[i]
		switch {
		case inString && c == '\\':
			i++ // and what it escapes
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			size += brk + 2*depth
		case c == '}' || c == ']':
			depth--
			size += brk + 2*depth
		case c == ',':
			size += brk + 2*depth
		case c == ':':
			size++
		}
	}
	return size
}
