package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/agentbox/agentbox/pkg/limits"
)

// v1Unlimited is the lowest number that cgroup v1 shows for no memory limit.
// The kernel counts pages and shows the largest count in bytes:
// 9223372036854771712 with pages of 4 KiB, less with larger pages; 256 KiB are
// the largest that exist.
const v1Unlimited = math.MaxInt64 - (256 << 10) + 1

// trimNewline takes off the one newline that ends a single-value file.
func trimNewline(data []byte) []byte { return bytes.TrimSuffix(data, []byte("\n")) }

// parseCount reads a number of decimal digits and nothing else.
func parseCount(text []byte) (int64, error) {
	if len(text) == 0 {
		return 0, errors.New("not a number: empty")
	}
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("not a number: %q", text)
		}
		digit := int64(c - '0')
		if n > (math.MaxInt64-digit)/10 {
			return 0, fmt.Errorf("number out of range: %q", text)
		}
		n = n*10 + digit
	}
	return n, nil
}

// parseMax reads a limit: a number, or "max" for none.
func parseMax(data []byte) (limits.Value, error) {
	text := trimNewline(data)
	if string(text) == "max" {
		return limits.NoLimit(), nil
	}
	n, err := parseCount(text)
	if err != nil {
		return limits.Value{}, err
	}
	return limits.Limit(n), nil
}

// parseBytesV1 reads memory.limit_in_bytes and memory.memsw.limit_in_bytes.
func parseBytesV1(data []byte) (limits.Value, error) {
	n, err := parseCount(trimNewline(data))
	if err != nil {
		return limits.Value{}, err
	}
	if n >= v1Unlimited {
		return limits.NoLimit(), nil
	}
	return limits.Limit(n), nil
}

// bandwidth is a CPU limit in microseconds. A quota of -1 is no limit.
type bandwidth struct{ quota, period int64 }

// parseCPUMax reads cpu.max: "max 100000" or "200000 100000".
func parseCPUMax(data []byte) (bandwidth, error) {
	quota, period, ok := bytes.Cut(trimNewline(data), []byte(" "))
	if !ok {
		return bandwidth{}, fmt.Errorf("not a quota and a period: %q", data)
	}
	b := bandwidth{quota: -1}
	var err error
	if string(quota) != "max" {
		if b.quota, err = parseCount(quota); err != nil {
			return bandwidth{}, err
		}
	}
	b.period, err = parsePeriod(period)
	return b, err
}

// parseQuotaV1 reads cpu.cfs_quota_us, where -1 is no limit.
func parseQuotaV1(data []byte) (int64, error) {
	text := trimNewline(data)
	if string(text) == "-1" {
		return -1, nil
	}
	return parseCount(text)
}

func parsePeriod(text []byte) (int64, error) {
	n, err := parseCount(text)
	if err == nil && n == 0 {
		err = errors.New("the period is 0")
	}
	return n, err
}

// value is the share in millionths of a CPU, rounded to the nearest.
func (b bandwidth) value() limits.Value {
	if b.quota < 0 {
		return limits.NoLimit()
	}
	hi, lo := bits.Mul64(uint64(b.quota), 1_000_000)
	lo, carry := bits.Add64(lo, uint64(b.period)/2, 0)
	hi += carry
	if hi >= uint64(b.period) { // the quotient does not fit
		return limits.Limit(math.MaxInt64)
	}
	q, _ := bits.Div64(hi, lo, uint64(b.period))
	return limits.Limit(int64(min(q, math.MaxInt64)))
}

// field is one number to take out of a flat-keyed file.
type field struct {
	key   string
	to    *int64
	found bool
}

// parseFlat takes numbers out of a flat-keyed file, lines of "KEY NUMBER". Keys
// that are not asked for are skipped, whatever follows them: kernels add new
// ones.
func parseFlat(data []byte, fields []field) error {
	for line := range bytes.Lines(data) {
		key, number, ok := bytes.Cut(trimNewline(line), []byte(" "))
		if !ok {
			return fmt.Errorf("not a key and a number: %q", line)
		}
		for i := range fields {
			if fields[i].key != string(key) {
				continue
			}
			n, err := parseCount(number)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			*fields[i].to, fields[i].found = n, true
		}
	}
	return nil
}
