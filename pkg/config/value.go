package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	units "github.com/docker/go-units"

	"github.com/agentbox/agentbox/pkg/limits"
)

// MaxCPUs is the largest number of CPUs that can be written. It is far above
// any machine and keeps quota arithmetic within 64 bits.
const MaxCPUs = 1_000_000

const (
	none     = "none"
	orNone   = `, or "none" for no limit`
	microCPU = 1_000_000
)

// ParseKey parses the value of one setting, as it is written in the
// configuration file, in an annotation or on a command line. On top of
// ParseValue it refuses a zero where zero would stop every container or is
// taken for "unlimited" elsewhere; only swap may be 0.
//
// The error is a *ValueError.
func ParseKey(key limits.Key, s string) (limits.Value, error) {
	v, problem := parseKey(key, s)
	if problem != nil {
		return limits.Value{}, problem
	}
	return v, nil
}

func parseKey(key limits.Key, s string) (limits.Value, *ValueError) {
	info, ok := key.Info()
	if !ok {
		return limits.Value{}, &ValueError{s, "is for the unknown setting " + quote(string(key)), "one of the keys of [limits]"}
	}
	v, problem := parseValue(info.Kind, s)
	if problem == nil && zero(info.Kind, v) && key != limits.KeySwap {
		problem = &ValueError{s, "is zero", expected(info.Kind)}
	}
	if problem == nil {
		return v, nil
	}
	if key == limits.KeySwap {
		problem.Expected = `a size such as 1GiB, 0 for no swap` + orNone
	}
	return limits.Value{}, problem
}

func zero(kind limits.Kind, v limits.Value) bool {
	switch {
	case v.None || kind == limits.Dumps:
		return false
	case kind == limits.Files:
		return v.Soft == 0 || v.N == 0
	default:
		return v.N == 0
	}
}

// ParseValue parses a value of the given kind:
//
//   - Bytes: 512MiB, 1.5GiB, 2g or plain bytes, in powers of 1024 and without
//     regard to case, as Docker reads them; also 512Mi, as Kubernetes writes it.
//   - Count: decimal digits.
//   - CPUs: a decimal with up to six places, or thousandths with an m: 1.5, 500m.
//   - Duration: what time.ParseDuration takes: 30s, 1h30m. There is no unit for days.
//   - Files: soft:hard, or one number for both.
//   - Dumps: true or false.
//
// "none" is no limit, except for Dumps, where it could be read either way.
// Nothing negative is accepted, nothing is rounded up, and a value that does
// not fit into 64 bits is an error. limits.KeyInfo.String is the inverse.
//
// The error is a *ValueError.
func ParseValue(kind limits.Kind, s string) (limits.Value, error) {
	v, problem := parseValue(kind, s)
	if problem != nil {
		return limits.Value{}, problem
	}
	return v, nil
}

func parseValue(kind limits.Kind, s string) (limits.Value, *ValueError) {
	if s == none && kind != limits.Dumps {
		return limits.NoLimit(), nil
	}
	v, problem := limits.Value{}, commonProblem(s)
	if problem == "" {
		switch kind {
		case limits.Bytes:
			v.N, problem = parseBytes(s)
		case limits.Count:
			v.N, problem = parseCount(s)
		case limits.CPUs:
			v.N, problem = parseCPUs(s)
		case limits.Duration:
			v.N, problem = parseDuration(s)
		case limits.Files:
			v, problem = parseFiles(s)
		case limits.Dumps:
			v, problem = parseDumps(s)
		default:
			problem = "is of an unknown kind"
		}
	}
	if problem != "" {
		return limits.Value{}, &ValueError{s, problem, expected(kind)}
	}
	return v, nil
}

func expected(kind limits.Kind) string {
	switch kind {
	case limits.Bytes:
		return "a size such as 512MiB, 1.5GiB or 2g" + orNone
	case limits.CPUs:
		return "a number of CPUs such as 2, 0.5 or 500m" + orNone
	case limits.Duration:
		return "a duration such as 30s, 15m or 1h30m" + orNone
	case limits.Files:
		return "soft:hard such as 1024:4096, or one number for both" + orNone
	case limits.Dumps:
		return "true or false"
	default:
		return "a whole number such as 2048" + orNone
	}
}

// commonProblem recognises what is wrong for values of every kind.
func commonProblem(s string) string {
	switch {
	case s == "":
		return "is empty"
	case strings.TrimSpace(s) != s:
		return "has a space at its start or end"
	case len(s) > 1 && s[0] == '-' && (isDigit(s[1]) || s[1] == '.'):
		return "is negative"
	case s != none && strings.EqualFold(s, none):
		return "is not written in lower case"
	}
	return ""
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// digits returns how many ASCII digits s starts with.
func digits(s string) int {
	i := 0
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return i
}

// parseBytes parses a size in bytes. The unit is read by the library that
// Docker uses. What that library does quietly is excluded before and after:
// it computes in floating point, so it is inexact for plain numbers above
// 2^53 and wraps around above 2^63, and it takes "0x10", "1e400" and "NaN".
func parseBytes(s string) (int64, string) {
	whole := digits(s)
	number := whole
	if number < len(s) && s[number] == '.' {
		number += 1 + digits(s[number+1:])
	}
	fraction := number > whole
	if whole == 0 && number < 2 || number == whole+1 {
		return 0, "is not a size"
	}
	unit := strings.TrimPrefix(s[number:], " ")
	for i := range len(unit) {
		if c := unit[i] | 0x20; c < 'a' || c > 'z' {
			return 0, "is not a size"
		}
	}
	switch {
	case unit == "" || unit == "b" || unit == "B":
		if fraction {
			return 0, "is a fraction without a unit"
		}
		return parseCount(s[:whole])
	case len(unit) == 2 && unit[1]|0x20 == 'i': // the library knows MiB and M, not Mi
		unit += "b"
	}
	n, err := units.RAMInBytes(s[:number] + unit)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && (n < 0 || n == math.MaxInt64):
		return 0, tooLarge
	case err != nil:
		return 0, "has the unknown unit " + quote(unit)
	case n == 0 && strings.ContainsAny(s[:number], "123456789"):
		return 0, "is less than one byte"
	}
	return n, ""
}

const tooLarge = "is more than 9223372036854775807"

func parseCount(s string) (int64, string) {
	if digits(s) != len(s) || s == "" {
		return 0, "is not a whole number"
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, tooLarge
	}
	return n, ""
}

// parseCPUs returns millionths of a CPU. It works on the decimal text, because
// 0.1 has no exact binary form.
func parseCPUs(s string) (int64, string) {
	const notCPUs = "is not a number of CPUs"
	number, places := s, 6
	if n, ok := strings.CutSuffix(s, "m"); ok {
		number, places = n, 3
	}
	whole, fraction, dot := strings.Cut(number, ".")
	if digits(whole) != len(whole) || digits(fraction) != len(fraction) || whole+fraction == "" || dot && fraction == "" {
		return 0, notCPUs
	}
	fraction = strings.TrimRight(fraction, "0")
	if len(fraction) > places {
		return 0, "is finer than a millionth of a CPU"
	}
	fraction += "000000"[:places-len(fraction)]
	n, err := strconv.ParseInt(whole+fraction, 10, 64)
	if err != nil || n > MaxCPUs*microCPU {
		return 0, "is more than " + strconv.Itoa(MaxCPUs) + " CPUs"
	}
	return n, ""
}

func parseDuration(s string) (int64, string) {
	d, err := time.ParseDuration(s)
	switch {
	case err == nil && d >= 0:
		return int64(d), ""
	case digits(s) == len(s):
		return 0, "has no unit"
	case digits(s) > 9:
		return 0, "is longer than 292 years"
	case strings.HasSuffix(s, "d") && digits(s) == len(s)-1:
		return 0, "is in days, which are not a unit here (1d is 24h)"
	}
	return 0, "is not a duration"
}

func parseFiles(s string) (limits.Value, string) {
	first, second, both := strings.Cut(s, ":")
	if !both {
		second = first
	}
	soft, problem := parseCount(first)
	if problem == "" {
		var hard int64
		if hard, problem = parseCount(second); problem == "" {
			if soft > hard {
				return limits.Value{}, "has a soft limit above the hard one"
			}
			return limits.Value{Soft: soft, N: hard}, ""
		}
	}
	if problem != tooLarge {
		problem = "is not a number of open files"
	}
	return limits.Value{}, problem
}

func parseDumps(s string) (limits.Value, string) {
	switch s {
	case "true":
		return limits.NoLimit(), ""
	case "false":
		return limits.Limit(0), ""
	}
	return limits.Value{}, "is neither true nor false"
}

// parseScope parses what dies when memory runs out.
func parseScope(s string) (limits.Scope, *ValueError) {
	const available = "container or process"
	switch scope := limits.Scope(s); scope {
	case limits.ScopeContainer, limits.ScopeProcess:
		return scope, nil
	case limits.ScopeExec:
		return "", &ValueError{s, "is not available in this version", available}
	}
	return "", &ValueError{s, "is not a scope", available}
}

// maxName bounds the name of a profile, in bytes.
const maxName = 63

// parseProfile checks the name of a profile.
func parseProfile(s string) (string, *ValueError) {
	problem := ""
	switch {
	case s == "":
		problem = "is empty"
	case len(s) > maxName:
		problem = "is longer than " + strconv.Itoa(maxName) + " characters"
	case !isName(s):
		problem = "is not the name of a profile"
	default:
		return s, nil
	}
	return "", &ValueError{s, problem, "a name of letters, digits, '-', '_' and '.', such as small"}
}

func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if l := c | 0x20; (l < 'a' || l > 'z') && !isDigit(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return s != "" && s[0] != '-' && s[0] != '.'
}
