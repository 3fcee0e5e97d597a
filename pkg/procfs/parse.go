package procfs

import (
	"bytes"
	"math"
	"os"
	"time"
)

// next cuts the first word off.
func next(data []byte) (word, rest []byte) {
	i := 0
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n') {
		i++
	}
	data = data[i:]
	for i = 0; i < len(data) && data[i] != ' ' && data[i] != '\t' && data[i] != '\n'; i++ {
	}
	return data[:i], data[i:]
}

// number reads a decimal number that has to fit.
func number(word []byte) (n uint64, ok bool) {
	if len(word) == 0 {
		return 0, false
	}
	for _, c := range word {
		d := uint64(c - '0')
		if d > 9 || n > (math.MaxUint64-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// scaled reads a number of units, as a size that has to fit an int64.
func scaled(word []byte, unit int64) (n int64, ok bool) {
	u, ok := number(word)
	if !ok || u > uint64(math.MaxInt64/unit) {
		return 0, false
	}
	return int64(u) * unit, true
}

// parseStat reads the fields of Stat. The name in field 2 may hold spaces,
// brackets and newlines.
func parseStat(data []byte) (Stat, error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return Stat{}, ErrFormat
	}
	var st Stat
	rest := data[end+1:]
	for field := 3; field <= 22; field++ {
		var word []byte
		word, rest = next(rest)
		if len(word) == 0 {
			return Stat{}, ErrFormat
		}
		ok := true
		var n int64
		switch field {
		case 3:
			st.State, ok = word[0], len(word) == 1
		case 4:
			n, ok = scaled(word, 1)
			st.Parent = int(n)
		case 14:
			st.UTime, ok = ticks(word)
		case 15:
			st.STime, ok = ticks(word)
		case 16:
			st.CUTime, ok = ticks(word)
		case 17:
			st.CSTime, ok = ticks(word)
		case 20:
			n, ok = scaled(word, 1)
			st.Threads = int(n)
		case 22:
			st.StartTime, ok = number(word)
		}
		if !ok {
			return Stat{}, ErrFormat
		}
	}
	return st, nil
}

func ticks(word []byte) (time.Duration, bool) {
	n, ok := scaled(word, int64(tick))
	return time.Duration(n), ok
}

var pageSize = int64(os.Getpagesize())

func parseStatm(data []byte) (m Statm, err error) {
	size, rest := next(data)
	resident, _ := next(rest)
	var ok1, ok2 bool
	m.Size, ok1 = scaled(size, pageSize)
	m.Resident, ok2 = scaled(resident, pageSize)
	if !ok1 || !ok2 {
		return Statm{}, ErrFormat
	}
	return m, nil
}

// field splits a line such as "VmSwap:	  12 kB"; value is the first word.
func field(line []byte) (key, value []byte) {
	key, rest, found := bytes.Cut(line, colon)
	if !found {
		return nil, nil
	}
	value, _ = next(rest)
	return key, value
}

var colon, newline = []byte(":"), []byte("\n")

// line takes a line of status.
func (m *Memory) line(line []byte) error {
	key, value := field(line)
	var into *int64
	switch string(key) {
	case "RssAnon":
		into = &m.Anon
	case "RssFile":
		into = &m.File
	case "RssShmem":
		into = &m.Shmem
	case "VmSwap":
		into = &m.Swap
	case "VmPTE":
		into = &m.PageTables
	default:
		return nil
	}
	return kilobytes(into, value)
}

func kilobytes(into *int64, value []byte) error {
	n, ok := scaled(value, 1024)
	if !ok {
		return ErrFormat
	}
	*into = n
	return nil
}

func parseRollup(data []byte) (Rollup, error) {
	var (
		r               Rollup
		anonymous, swap int64
		pss             = int64(-1)
		perKind         bool
	)
	for line, rest := cut(data); line != nil; line, rest = cut(rest) {
		key, value := field(line)
		var into *int64
		switch string(key) {
		case "Pss":
			into = &pss
		case "Pss_Anon":
			into, perKind = &r.Anon, true
		case "Pss_File":
			into = &r.File
		case "Pss_Shmem":
			into = &r.Shmem
		case "Anonymous":
			into = &anonymous
		case "SwapPss":
			into = &r.Swap
		case "Swap":
			into = &swap
		case "LazyFree":
			into = &r.LazyFree
		default:
			continue
		}
		if err := kilobytes(into, value); err != nil {
			return Rollup{}, err
		}
	}
	if pss < 0 {
		return Rollup{}, ErrFormat
	}
	if !perKind { // before Linux 5.4: the tighter of two upper bounds
		r.Anon = min(pss, anonymous)
	}
	r.Others = max(0, anonymous+swap-r.Anon-r.Swap)
	return r, nil
}

func cut(data []byte) (line, rest []byte) {
	if len(data) == 0 {
		return nil, nil
	}
	line, rest, _ = bytes.Cut(data, newline)
	return line, rest
}

func parseIO(data []byte) (IO, error) {
	var io IO
	seen := 0
	for line, rest := cut(data); line != nil; line, rest = cut(rest) {
		key, value := field(line)
		var into *int64
		switch string(key) {
		case "read_bytes":
			into = &io.Read
		case "write_bytes":
			into = &io.Written
		case "cancelled_write_bytes":
			into = &io.Cancelled
		default:
			continue
		}
		n, ok := scaled(value, 1)
		if !ok {
			return IO{}, ErrFormat
		}
		*into = n
		seen++
	}
	if seen != 3 {
		return IO{}, ErrFormat
	}
	return io, nil
}

// parseNamespace reads "pid:[4026531836]".
func parseNamespace(link []byte) (uint64, error) {
	open, end := bytes.IndexByte(link, '['), bytes.IndexByte(link, ']')
	if open < 0 || end < open {
		return 0, ErrFormat
	}
	n, ok := number(link[open+1 : end])
	if !ok {
		return 0, ErrFormat
	}
	return n, nil
}
