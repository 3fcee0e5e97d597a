package doctor

import (
	"cmp"
	"math"
	"strconv"
	"strings"
)

// version is that of a kernel or of a low-level runtime. The zero value is an
// unknown one.
type version struct {
	major, minor, patch int
	candidate           int // N of -rcN or -rc.N; 0: a release
}

// parseVersion reads the numbers at the start of "6.1.0-18-amd64",
// "1.1.5+ds1-1+deb12u1", "v1.4.0-rc.3" or "1.1.12-0ubuntu2": what follows them is
// the distributor's, unless it marks a release candidate. ok is false without at
// least two numbers.
func parseVersion(text string) (v version, ok bool) {
	rest := strings.TrimPrefix(text, "v")
	for i, to := range [...]*int{&v.major, &v.minor, &v.patch} {
		if i > 0 {
			after, dotted := strings.CutPrefix(rest, ".")
			if !dotted {
				break
			}
			rest = after
		}
		n, after, isNumber := leadingNumber(rest)
		if !isNumber {
			break
		}
		*to, rest, ok = n, after, i > 0
	}
	if !ok {
		return version{}, false
	}
	v.candidate = candidate(rest)
	return v, true
}

// candidate returns the number of a release candidate in what follows a
// version; 0 when it is none.
func candidate(suffix string) int {
	for _, mark := range [...]string{"-rc", "~rc"} {
		rest, ok := strings.CutPrefix(suffix, mark)
		if !ok {
			continue
		}
		n, _, _ := leadingNumber(strings.TrimPrefix(rest, "."))
		return max(n, 1)
	}
	return 0
}

func leadingNumber(text string) (n int, rest string, ok bool) {
	end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(text)
	}
	u, err := strconv.ParseUint(text[:end], 10, 31)
	return int(u), text[end:], err == nil
}

// before reports whether v is older than w. A release candidate is older than
// its release.
func (v version) before(w version) bool {
	return cmp.Or(
		cmp.Compare(v.major, w.major), cmp.Compare(v.minor, w.minor), cmp.Compare(v.patch, w.patch),
		cmp.Compare(v.stage(), w.stage())) < 0
}

func (v version) stage() int {
	if v.candidate == 0 {
		return math.MaxInt
	}
	return v.candidate
}

// String leaves out a patch level of 0, as people do for kernels.
func (v version) String() string {
	text := strconv.Itoa(v.major) + "." + strconv.Itoa(v.minor)
	if v.patch != 0 || v.candidate != 0 {
		text += "." + strconv.Itoa(v.patch)
	}
	if v.candidate != 0 {
		text += "-rc." + strconv.Itoa(v.candidate)
	}
	return text
}
