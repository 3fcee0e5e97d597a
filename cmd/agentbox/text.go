package main

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// clean makes a text safe for a terminal: names and details can come from the
// container's own specification.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// roughBytes writes a size to about three digits.
func roughBytes(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	size, unit := float64(n), 0
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for size >= step && unit < len(units)-1 {
		size /= step
		unit++
	}
	return fmt.Sprintf("%.1f %s", size, units[unit])
}

// shortDuration rounds to what a person wants to know, and leaves out what is
// zero at the end: 168h, not 168h0m0s.
func shortDuration(d time.Duration) string {
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// A style is an ANSI escape sequence (ECMA-48, SGR).
type style string

const (
	bold   style = "\x1b[1m"
	green  style = "\x1b[32m"
	yellow style = "\x1b[33m"
	red    style = "\x1b[31m"
	reset  style = "\x1b[0m"
)

func (p *printer) paint(s style, text string) string {
	if !p.colour {
		return text
	}
	return string(s) + text + string(reset)
}

// colourOf is green for what is well, red where a limit or a refusal ended it,
// and yellow for every other end.
func colourOf(r *result.Result) style {
	switch r.Status {
	case verdict.Created, verdict.Running:
		return green
	case verdict.OOMKilled, verdict.LimitKilled, verdict.Refused:
		return red
	case verdict.Exited:
		if r.ExitCode != nil && *r.ExitCode == 0 {
			return green
		}
	}
	return yellow
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
