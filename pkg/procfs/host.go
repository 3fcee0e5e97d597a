package procfs

import "golang.org/x/sys/unix"

// LastPid keeps /proc/loadavg open.
type LastPid struct {
	fd  int
	buf [128]byte
}

// OpenLastPid opens it.
func OpenLastPid() (*LastPid, error) {
	fd, err := openAt(unix.AT_FDCWD, []byte("/proc/loadavg\x00"), 0)
	if err != nil {
		return nil, err
	}
	return &LastPid{fd: fd}, nil
}

// Read tells the pid that was given last, to a process or thread of this pid
// namespace or one below it. As long as it stays, there is no new one.
func (l *LastPid) Read() (int, error) {
	n, err := unix.Pread(l.fd, l.buf[:], 0)
	if err != nil {
		return 0, err
	}
	return parseLastPid(l.buf[:n])
}

// Close closes it.
func (l *LastPid) Close() { Close(l.fd) }

// parseLastPid reads field 5.
func parseLastPid(data []byte) (int, error) {
	var word []byte
	for range 5 {
		word, data = next(data)
	}
	n, ok := scaled(word, 1)
	if !ok {
		return 0, ErrFormat
	}
	return int(n), nil
}

// HostMemory is what all of the host uses, in bytes.
type HostMemory struct {
	Free, Shmem, FreeSwap, Swap int64
}

// ReadHostMemory asks sysinfo(2), in less than a microsecond.
func ReadHostMemory() (HostMemory, error) {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return HostMemory{}, err
	}
	unit := int64(max(s.Unit, 1))
	return HostMemory{
		Free: int64(s.Freeram) * unit, Shmem: int64(s.Sharedram) * unit,
		FreeSwap: int64(s.Freeswap) * unit, Swap: int64(s.Totalswap) * unit,
	}, nil
}

// Anonymous keeps /proc/meminfo open.
type Anonymous struct {
	fd  int
	buf [8192]byte
}

// OpenAnonymous opens it.
func OpenAnonymous() (*Anonymous, error) {
	fd, err := openAt(unix.AT_FDCWD, []byte("/proc/meminfo\x00"), 0)
	if err != nil {
		return nil, err
	}
	return &Anonymous{fd: fd}, nil
}

// Read tells the anonymous memory of the whole host, resident or swapped out, in
// bytes, each page once.
func (a *Anonymous) Read() (int64, error) {
	n, err := unix.Pread(a.fd, a.buf[:], 0)
	if err != nil {
		return 0, err
	}
	return parseAnonymous(a.buf[:n])
}

// Close closes it.
func (a *Anonymous) Close() { Close(a.fd) }

func parseAnonymous(data []byte) (int64, error) {
	var pages, swap, free int64
	pages = -1
	for line, rest := cut(data); line != nil; line, rest = cut(rest) {
		key, value := field(line)
		var into *int64
		switch string(key) {
		case "AnonPages":
			into = &pages
		case "SwapTotal":
			into = &swap
		case "SwapFree":
			into = &free
		default:
			continue
		}
		if err := kilobytes(into, value); err != nil {
			return 0, err
		}
	}
	if pages < 0 || free > swap {
		return 0, ErrFormat
	}
	return pages + swap - free, nil
}
