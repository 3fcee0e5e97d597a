package config

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxShown is how many bytes of something that was read an error repeats.
const maxShown = 80

// Error says what is wrong in or with a configuration file.
type Error struct {
	File  string // the path as it was given
	Line  int    // counted from 1; 0 when the file as a whole is meant
	Key   string // the setting with its table: "limits.memory"; empty when none is meant
	Value string // the value as it is shown; empty when none is meant
	Text  string // what is wrong and what is expected, to be read after the key and the value

	Err error // the cause: a *ValueError, an error of the file system, or nil
}

// Error returns one sentence: file, line, key, value, what is expected.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(printable(e.File))
	if e.Line > 0 {
		b.WriteByte(':')
		b.WriteString(strconv.Itoa(e.Line))
	}
	b.WriteString(": ")
	if e.Key != "" {
		b.WriteString(e.Key)
		b.WriteByte(' ')
	}
	if e.Value != "" {
		b.WriteString("= ")
		b.WriteString(e.Value)
		b.WriteByte(' ')
	}
	b.WriteString(e.Text)
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AnnotationError says that an annotation under Prefix is unknown or malformed.
type AnnotationError struct {
	Key   string // the full name: "agentbox.dev/memory"
	Value string
	Text  string // what is wrong and what is expected

	Err error // the *ValueError behind a malformed value; nil for an unknown name
}

// Error returns one sentence: name, value, what is expected.
func (e *AnnotationError) Error() string {
	name := e.Key
	if !isPrintable(name) || strings.Contains(name, " ") || len(name) > maxShown {
		name = quote(name)
	}
	return "annotation " + name + " = " + quote(e.Value) + " " + e.Text
}

// Unwrap returns the cause.
func (e *AnnotationError) Unwrap() error { return e.Err }

// ValueError says that a text is not a value of the wanted kind.
type ValueError struct {
	Value    string // the text as it was given
	Problem  string // what is wrong: "is negative"
	Expected string // what would be right: "a size such as 512MiB"
}

// Error returns one sentence: value, problem, what is expected.
func (e *ValueError) Error() string { return quote(e.Value) + " " + e.text() }

func (e *ValueError) text() string { return e.Problem + ": expected " + e.Expected }

// quote shows a text that came from outside: on one line, printable, bounded.
func quote(s string) string {
	suffix := ""
	if len(s) > maxShown {
		s, suffix = cut(s), "..."
	}
	// A U+FFFD that was in the text looks like bytes that are no text.
	return strings.ReplaceAll(strconv.Quote(s), "\ufffd", `\ufffd`) + suffix
}

// cut shortens to maxShown bytes without splitting a character.
func cut(s string) string {
	n := maxShown
	for n > maxShown-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// printable returns s as it is, or escaped if it holds anything that could
// disturb a line of a log.
func printable(s string) string {
	if isPrintable(s) {
		return s
	}
	return strconv.Quote(s)
}

func isPrintable(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return false
		}
	}
	return true
}
