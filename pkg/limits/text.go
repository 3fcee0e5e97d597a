package limits

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// The sizes, in bytes, that texts from outside have at most in a plan. A
// specification can have paths of any length, and what the kernel says about one
// repeats it.
const (
	MaxText = 1000 // a sentence or a part of one
	MaxPath = 4096 // PATH_MAX: the kernel takes none that is longer
)

// MaxWarnings is more than a person reads. A specification can have any number of
// things to warn about, and a result with all of them would be too large for the
// event that carries it.
const MaxWarnings = 100

// FirstWarnings returns a list of warnings that is not too long; its last then says
// how many there are besides.
func FirstWarnings(list []string) []string {
	if len(list) <= MaxWarnings {
		return list
	}
	return append(slices.Clone(list[:MaxWarnings]), fmt.Sprintf("%d more warnings are left out", len(list)-MaxWarnings))
}

// Shorten returns a text of at most so many bytes, with its middle left out where
// it is longer.
func Shorten(text string, most int) string {
	const gap = " [...] "
	if len(text) <= most {
		return text
	}
	keep := max(most-len(gap), 0)
	head, tail := keep-keep/2, len(text)-keep/2
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return text[:head] + gap + text[tail:]
}

// shortened returns what a host says with its texts at a sane length. Nothing of
// the original is changed.
func (h HostIO) shortened() HostIO {
	h.Disks, h.Diskless = slices.Clone(h.Disks), slices.Clone(h.Diskless)
	for i := range h.Disks {
		places := slices.Clone(h.Disks[i].Places)
		for j := range places {
			places[j] = Shorten(places[j], MaxPath)
		}
		h.Disks[i].Places = places
	}
	for i := range h.Diskless {
		d := &h.Diskless[i]
		d.Place, d.Reason = Shorten(d.Place, MaxPath), Shorten(d.Reason, MaxText)
	}
	return h
}
