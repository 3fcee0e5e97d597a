// Package note remembers answers that are dear to find out and cheap to check:
// whether a program knows a flag, which files this kernel's cgroups have.
//
// A note is a symbolic link: it appears at once, is read by one system call, and
// its name says what the answer depends on, so that one which no longer holds is
// not found. A note only saves asking again: every failure reads as "no note".
package note

import (
	"os"
	"path/filepath"
	"strings"
)

// maxSize is the longest text that a symbolic link can hold (PATH_MAX, with its
// closing zero).
const maxSize = 4095

// Read returns the text of the note about a subject, if there is one that was
// written for the same key. Subject and key are parts of a file name; a subject
// has no hyphen. In no folder, an empty dir, there are no notes.
func Read(dir, subject, key string) (text string, ok bool) {
	if dir == "" {
		return "", false
	}
	text, err := os.Readlink(filepath.Join(dir, subject+"-"+key))
	return text, err == nil
}

// Write keeps a text about a subject for a key, in place of what was kept for
// others. A text that is empty or too long is not kept.
func Write(dir, subject, key, text string) {
	if dir == "" || text == "" || len(text) > maxSize {
		return
	}
	name := subject + "-" + key
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), subject+"-") && e.Type()&os.ModeSymlink != 0 {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Symlink(text, filepath.Join(dir, name))
}
