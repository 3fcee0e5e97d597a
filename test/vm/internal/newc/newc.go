// Package newc writes cpio archives in the "newc" format, the one the Linux
// kernel unpacks as an initramfs (Documentation/driver-api/early-userspace/
// buffer-format.rst in the kernel tree).
package newc

import (
	"fmt"
	"io"
)

// File type bits of the mode field, as in inode(7).
const (
	typeDirectory = 0o040000
	typeRegular   = 0o100000
	typeSymlink   = 0o120000

	trailer = "TRAILER!!!"
)

// Writer appends entries to an archive. The first error sticks: later calls do
// nothing and Close returns it, so callers may check once at the end.
type Writer struct {
	w     io.Writer
	inode uint32
	err   error
}

// NewWriter returns a Writer that writes to w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w}
}

// Directory adds a folder; name has no leading slash. Parents come first.
func (w *Writer) Directory(name string, permissions uint32) {
	w.entry(name, typeDirectory|permissions, nil)
}

// File adds a regular file with the given content.
func (w *Writer) File(name string, permissions uint32, content []byte) {
	w.entry(name, typeRegular|permissions, content)
}

// Symlink adds a symbolic link that points to target.
func (w *Writer) Symlink(name, target string) {
	w.entry(name, typeSymlink|0o777, []byte(target))
}

// Close writes the end marker and returns the first error of all writes. It does
// not close the underlying writer.
func (w *Writer) Close() error {
	w.entry(trailer, 0, nil)
	return w.err
}

// entry writes one header (thirteen 8-digit hexadecimal fields after the magic),
// the name with a final zero byte, and the content, each padded to four bytes.
// Everything belongs to root and carries no time, so equal input gives equal bytes.
func (w *Writer) entry(name string, mode uint32, content []byte) {
	if w.err != nil {
		return
	}
	w.inode++
	const links, uid, gid, mtime, device, check = 1, 0, 0, 0, 0, 0
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		w.inode, mode, uid, gid, links, mtime, len(content), device, device, device, device, len(name)+1, check, name)
	w.padded([]byte(header))
	w.padded(content)
}

func (w *Writer) padded(data []byte) {
	if w.err != nil {
		return
	}
	if _, err := w.w.Write(data); err != nil {
		w.err = fmt.Errorf("write initramfs: %w", err)
		return
	}
	if rest := len(data) % 4; rest != 0 {
		if _, err := w.w.Write(make([]byte, 4-rest)); err != nil {
			w.err = fmt.Errorf("write initramfs: %w", err)
		}
	}
}
