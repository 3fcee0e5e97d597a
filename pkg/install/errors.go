package install

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Error says what is wrong with a configuration file. Nothing was written.
type Error struct {
	File   string
	Line   int    // counted from 1; 0: the file as a whole
	Column int    // in characters, counted from 1; 0: the line as a whole
	Text   string // what is wrong and what to do, to be read after the place

	Err error // the cause, or nil
}

// Error returns one sentence: file, line, column, what is wrong.
func (e *Error) Error() string { return place(e.File, e.Line, e.Column) + ": " + e.Text }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ExistsError says that agentbox is in a file already, with other values than
// those that are wanted.
type ExistsError struct {
	File string
	Line int
	Key  string // as the file's format writes it
	Has  string // its value, in short
}

// Error returns one sentence: place, key, value, what to do.
func (e *ExistsError) Error() string {
	return fmt.Sprintf("%s: %s is %s already, which this agentbox did not write: remove it and run the command again, or keep it as it is",
		place(e.File, e.Line, 0), e.Key, e.Has)
}

func place(file string, line, column int) string {
	switch {
	case line > 0 && column > 0:
		return fmt.Sprintf("%s:%d:%d", file, line, column)
	case line > 0:
		return fmt.Sprintf("%s:%d", file, line)
	}
	return file
}

// position returns the line and the column, both counted from 1, of a byte.
func position(data []byte, offset int) (line, column int) {
	before := data[:min(max(offset, 0), len(data))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return 1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[start:])
}

// at is an *Error about a byte of a file.
func at(name string, data []byte, offset int, format string, args ...any) error {
	line, column := position(data, offset)
	return &Error{File: name, Line: line, Column: column, Text: fmt.Sprintf(format, args...)}
}

// maxShown is how many bytes of something that was read a sentence repeats.
const maxShown = 80

// short shows a value from a file on one line.
func short(value []byte) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(value), "?")), " ")
	if len(text) > maxShown {
		return strings.ToValidUTF8(text[:maxShown], "") + "..."
	}
	return text
}

// shown is short for a value that was decoded.
func shown(value any) string {
	data, err := json.Marshal(value)
	if err != nil { // a NaN, which JSON has not
		data = fmt.Append(nil, value)
	}
	return short(data)
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// checkText refuses what no engine reads as UTF-8.
func checkText(name string, data []byte) error {
	for offset := 0; offset < len(data); {
		r, size := utf8.DecodeRune(data[offset:])
		if r == utf8.RuneError && size == 1 {
			return at(name, data, offset, "is not UTF-8 text: save it as UTF-8")
		}
		offset += size
	}
	return nil
}
