package procfs

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// Lines are those of a file of proc of any length. They are in the buffer of the
// Reader, which must not read anything else meanwhile, other than an Inode.
type Lines struct {
	r        *Reader
	fd       int
	from, to int  // what of the buffer was not handed out
	tail     bool // the rest of a line of which the start was handed out comes next
	end      bool
}

func (r *Reader) lines(dir int, name []byte) (Lines, error) {
	fd, err := openAt(dir, name, 0)
	return Lines{r: r, fd: fd}, err
}

// Mounts opens /proc/PID/mountinfo: lines for ParseMount.
func (r *Reader) Mounts(dir int) (Lines, error) { return r.lines(dir, fileMounts) }

// Maps opens /proc/PID/maps: lines for ParseMapping.
func (r *Reader) Maps(dir int) (Lines, error) { return r.lines(dir, fileMaps) }

// Smaps opens /proc/PID/smaps: as Maps, each followed by lines for ParsePss.
func (r *Reader) Smaps(dir int) (Lines, error) { return r.lines(dir, fileSmaps) }

// Close closes the file.
func (l *Lines) Close() { Close(l.fd) }

// Next returns a line, valid until the next call, and nil at the end. Of a line
// that is longer than the buffer it returns the start: a process can make one,
// by as many groups as the kernel allows.
func (l *Lines) Next() ([]byte, error) {
	buf := l.r.buf[:]
	for {
		if i := bytes.IndexByte(buf[l.from:l.to], '\n'); i >= 0 {
			line := buf[l.from : l.from+i]
			l.from += i + 1
			if l.tail {
				l.tail = false
				continue
			}
			return line, nil
		}
		if l.tail {
			l.from = l.to
		}
		if l.end {
			line := buf[l.from:l.to]
			l.from = l.to
			if len(line) == 0 {
				return nil, nil
			}
			return line, nil
		}
		if l.from == 0 && l.to == len(buf) {
			l.from, l.tail = l.to, true
			return buf, nil
		}
		l.to = copy(buf, buf[l.from:l.to])
		l.from = 0
		n, err := readFD(l.fd, buf[l.to:])
		if err != nil {
			return nil, err
		}
		l.to += n
		l.end = n == 0
	}
}

// Dev is a device number, with the minor number in the lower half.
type Dev uint64

// MakeDev puts one together.
func MakeDev(major, minor uint32) Dev { return Dev(major)<<32 | Dev(minor) }

// Anonymous reports whether the kernel made it up for a file system that is on
// no block device.
func (d Dev) Anonymous() bool { return d>>32 == 0 }

// Major and Minor are its halves.
func (d Dev) Major() uint32 { return uint32(d >> 32) }
func (d Dev) Minor() uint32 { return uint32(d) }

// Mount is a line of proc_pid_mountinfo(5).
type Mount struct {
	Dev     Dev
	Point   []byte // with octal escapes
	Type    []byte
	Options []byte // of the file system, not of the mount
}

// ParseMount reads a line of mountinfo. One that was cut off may be an error.
func ParseMount(line []byte) (Mount, error) {
	var m Mount
	_, rest := next(line) // its number
	_, rest = next(rest)  // its parent's
	dev, rest := next(rest)
	_, rest = next(rest) // its root
	m.Point, rest = next(rest)
	major, minor, found := bytes.Cut(dev, colon)
	ma, ok1 := number(major)
	mi, ok2 := number(minor)
	if !found || !ok1 || !ok2 || ma > 1<<32-1 || mi > 1<<32-1 {
		return Mount{}, ErrFormat
	}
	m.Dev = MakeDev(uint32(ma), uint32(mi))
	for {
		var word []byte
		word, rest = next(rest)
		if len(word) == 0 {
			return Mount{}, ErrFormat
		}
		if len(word) == 1 && word[0] == '-' {
			break
		}
	}
	m.Type, rest = next(rest)
	_, rest = next(rest) // its source
	m.Options, _ = next(rest)
	if len(m.Options) == 0 {
		return Mount{}, ErrFormat
	}
	return m, nil
}

// Mapping is a line of proc_pid_maps(5).
type Mapping struct {
	Start, End uint64
	Dev        Dev
	Ino        uint64
	Name       []byte // may be cut off; "" has none
}

// ParseMapping reads a line of maps, or a line of smaps that starts a mapping;
// ok is false for others.
func ParseMapping(line []byte) (m Mapping, ok bool) {
	span, rest := next(line)
	_, rest = next(rest) // permissions
	_, rest = next(rest) // offset
	dev, rest := next(rest)
	ino, rest := next(rest)
	start, end, ok1 := bytes.Cut(span, dash)
	major, minor, ok2 := bytes.Cut(dev, colon)
	if !ok1 || !ok2 {
		return Mapping{}, false
	}
	var ok3, ok4, ok5, ok6, ok7 bool
	var ma, mi uint64
	m.Start, ok3 = hexadecimal(start)
	m.End, ok4 = hexadecimal(end)
	ma, ok5 = hexadecimal(major)
	mi, ok6 = hexadecimal(minor)
	m.Ino, ok7 = number(ino)
	if !ok3 || !ok4 || !ok5 || !ok6 || !ok7 || ma > 1<<32-1 || mi > 1<<32-1 {
		return Mapping{}, false
	}
	m.Dev = MakeDev(uint32(ma), uint32(mi))
	m.Name = bytes.TrimLeft(rest, " ")
	return m, true
}

var dash = []byte("-")

func hexadecimal(word []byte) (n uint64, ok bool) {
	if len(word) == 0 || len(word) > 16 {
		return 0, false
	}
	for _, c := range word {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// ParsePss reads the "Pss:" line of a mapping in smaps, in bytes; ok is false for
// others.
func ParsePss(line []byte) (bytes int64, ok bool) {
	key, value := field(line)
	if string(key) != "Pss" {
		return 0, false
	}
	return bytes, kilobytes(&bytes, value) == nil
}

// SharedSegments opens /proc/sysvipc/shm, of the ipc namespace of this thread:
// lines for ParseSegment.
func (r *Reader) SharedSegments() (Lines, error) { return r.lines(unix.AT_FDCWD, fileSegments) }

// ParseSegment reads a line of /proc/sysvipc/shm: the number of a segment, and the
// bytes that it occupies, resident or swapped out. ok is false for the heading.
func ParseSegment(line []byte) (id uint64, held int64, ok bool) {
	const fieldID, fieldResident, fieldSwapped = 2, 15, 16
	for i := 1; i <= fieldSwapped; i++ {
		var word []byte
		word, line = next(line)
		var n int64
		switch i {
		case fieldID:
			id, ok = number(word)
		case fieldResident, fieldSwapped:
			n, ok = scaled(word, 1)
			held += n
		default:
			continue
		}
		if !ok {
			return 0, 0, false
		}
	}
	return id, held, true
}

// Number reads a decimal number.
func Number(word []byte) (n int64, ok bool) { return scaled(word, 1) }
