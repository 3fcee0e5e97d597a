package limits

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// String formats the value of a key as a person writes it in the configuration
// file. Parsing the text again gives the same value.
func (i KeyInfo) String(v Value) string {
	if i.Kind == Dumps && (v.None || v.N == 0) {
		return strconv.FormatBool(v.None)
	}
	if v.None {
		return "none"
	}
	switch i.Kind {
	case Bytes, Dumps:
		return formatBytes(v.N)
	case CPUs:
		return formatCPUs(v.N)
	case Duration:
		return time.Duration(v.N).String()
	case Files:
		return fmt.Sprintf("%d:%d", v.Soft, v.N)
	default:
		return strconv.FormatInt(v.N, 10)
	}
}

// formatBytes uses the largest binary unit that loses nothing.
func formatBytes(n int64) string {
	if n == 0 {
		return "0"
	}
	for _, u := range []struct {
		size int64
		name string
	}{{gib << 10, "TiB"}, {gib, "GiB"}, {mib, "MiB"}, {1 << 10, "KiB"}} {
		if n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

func formatCPUs(micro int64) string {
	s := fmt.Sprintf("%d.%06d", micro/1_000_000, micro%1_000_000)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
