// Package console splits what a guest prints on its console into the command's
// own output and the harness's control lines.
//
// A control line is "agentbox-vm:TOKEN VERB REST". The token is random for every
// boot, so nothing that a command prints by accident can pass for one. It may
// start in the middle of a line, behind output that has no final newline.
package console

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// maxControlLine bounds a control line, so that a guest which dies in the middle
// of one cannot make the filter collect for ever.
const maxControlLine = 4096

// Message is one control line.
type Message struct {
	Verb string // such as "PHASE", "FACT" or "EXIT"
	Rest string // everything after the verb
}

// ExitCode reads the message of a guest that ran its command to the end:
// "EXIT rc=N" with N from 0 to 255.
func (m Message) ExitCode() (int, error) {
	digits, ok := strings.CutPrefix(m.Rest, "rc=")
	if m.Verb != "EXIT" || !ok {
		return 0, fmt.Errorf("%q is not an exit message", m.Verb+" "+m.Rest)
	}
	code, err := strconv.ParseUint(digits, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("exit message with a bad code %q: %w", digits, err)
	}
	return int(code), nil
}

// Filter is an io.Writer that takes the raw console and passes everything but
// control lines on. Bytes are held back only while they could begin a control
// line, so a prompt without a newline appears at once.
type Filter struct {
	marker  []byte
	output  io.Writer
	control func(Message)

	held      []byte // begins like marker, or is a control line so far
	inControl bool
}

// NewFilter returns a Filter for the given token. control is called for each
// control line, in order with the output before and after it.
func NewFilter(token string, output io.Writer, control func(Message)) *Filter {
	return &Filter{marker: []byte("agentbox-vm:" + token + " "), output: output, control: control}
}

// SetOutput changes where output goes from now on; control callbacks may call it.
func (f *Filter) SetOutput(output io.Writer) { f.output = output }

// Write implements io.Writer; it fails only if the output does.
func (f *Filter) Write(p []byte) (int, error) {
	data := slices.Concat(f.held, p)
	f.held = nil
	for len(data) > 0 {
		if f.inControl {
			data = f.takeControl(data)
			continue
		}
		at := bytes.Index(data, f.marker)
		if at >= 0 {
			if err := f.pass(data[:at]); err != nil {
				return 0, err
			}
			data = data[at+len(f.marker):]
			f.inControl = true
			continue
		}
		keep := overlap(data, f.marker)
		if err := f.pass(data[:len(data)-keep]); err != nil {
			return 0, err
		}
		f.held = bytes.Clone(data[len(data)-keep:])
		return len(p), nil
	}
	return len(p), nil
}

// Flush passes on what was held back, for the end of the console.
func (f *Filter) Flush() error {
	held := f.held
	f.held = nil
	if f.inControl {
		return nil
	}
	return f.pass(held)
}

// takeControl eats a control line from data and returns the rest.
func (f *Filter) takeControl(data []byte) []byte {
	line, rest, complete := bytes.Cut(data, []byte("\n"))
	if !complete && len(line) < maxControlLine {
		f.held = bytes.Clone(line)
		return nil
	}
	f.inControl = false
	verb, arguments, _ := strings.Cut(strings.TrimRight(string(line), "\r"), " ")
	f.control(Message{Verb: verb, Rest: arguments})
	return rest
}

func (f *Filter) pass(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if _, err := f.output.Write(data); err != nil {
		return fmt.Errorf("pass console output on: %w", err)
	}
	return nil
}

// overlap returns the length of the longest end of data that begins marker.
func overlap(data, marker []byte) int {
	for n := min(len(data), len(marker)-1); n > 0; n-- {
		if bytes.HasSuffix(data, marker[:n]) {
			return n
		}
	}
	return 0
}
