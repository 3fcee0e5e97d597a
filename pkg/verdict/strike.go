package verdict

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
)

// strikeOf is what is to be said about the codes that a strike can have.
var strikeOf = map[Code]struct {
	atOnce    bool // the sandbox gets SIGKILL, without a SIGTERM before
	retryable bool
	what      func(s Strike) string // that was crossed
	advice    string
}{
	MemoryLimitExceeded: {
		atOnce: true,
		what: func(s Strike) string {
			used, limit := apart(s, bytesWords, exactBytes)
			return fmt.Sprintf("the sandbox used %s of memory, and its limit is %s", used, limit)
		},
		advice: "it needs a higher limit, or less work at once",
	},
	MemoryStalled: {
		atOnce: true,
		what: func(s Strike) string {
			used, limit := apart(s, bytesWords, exactBytes)
			return fmt.Sprintf("the sandbox stood still at its memory limit, with %s of %s", used, limit)
		},
		advice: "it needs a higher limit, or less work at once",
	},
	PidsLimitReached: {
		atOnce: true,
		what: func(s Strike) string {
			return fmt.Sprintf("the sandbox had %d processes and threads, and its limit is %d", s.Measured, s.Limit)
		},
		advice: "it needs a higher limit, or fewer of them",
	},
	CPUTimeExceeded: {
		what: func(s Strike) string {
			used, limit := apart(s, timeWords, exactTime)
			return fmt.Sprintf("the sandbox used %s of CPU time, and may use %s", used, limit)
		},
		advice: "it needs a higher cpu_time, or less work",
	},
	WallTimeExceeded: {
		retryable: true, // how fast it gets on depends on others too
		what: func(s Strike) string {
			used, limit := apart(s, timeWords, exactTime)
			return fmt.Sprintf("the sandbox ran for %s, and may run for %s", used, limit)
		},
		advice: "it needs a higher wall_time, or less work",
	},
}

// strikeVerdict is the verdict of a sandbox that the supervisor ended. Between the
// record of a strike and the kill the first process may have ended by itself: its
// status is then its own. What a time ends may answer SIGTERM with any exit.
func strikeVerdict(s *Strike, e exit) (Verdict, bool) {
	if s == nil {
		return Verdict{}, false
	}
	of, known := strikeOf[s.Code]
	if !known {
		return Verdict{}, false
	}
	v := plainVerdict(e)
	v.Code, v.Retryable = s.Code, of.retryable
	if of.atOnce && !e.killed() {
		v.Message += "; " + of.what(*s) + ", and it ended before the supervisor had ended it"
		return v, true
	}
	v.Status = LimitKilled
	v.Message = of.what(*s) + ": the supervisor ended it; " + of.advice
	if of.atOnce && e.known {
		signal := sigkill
		v.Signal = &signal
	}
	return v, true
}

// apart writes the limit exactly and what was measured roughly, but exactly too
// where it would read as the limit.
func apart(s Strike, rough, exact func(int64) string) (measured, limit string) {
	if measured = rough(s.Measured); measured == rough(s.Limit) {
		measured = exact(s.Measured)
	}
	return measured, exact(s.Limit)
}

// exactBytes is how the configuration has it.
func exactBytes(n int64) string {
	text := limits.KeyInfo{Kind: limits.Bytes}.String(limits.Limit(n))
	if !strings.HasSuffix(text, "B") {
		text += " bytes"
	}
	return text
}

// bytesWords writes bytes with at most one digit after the point.
func bytesWords(n int64) string {
	unit, name := int64(1), "B"
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 10, "KiB"}, {1 << 20, "MiB"}, {1 << 30, "GiB"}, {1 << 40, "TiB"}} {
		if n >= u.size {
			unit, name = u.size, u.name
		}
	}
	tenths := n / unit * 10
	if unit > 1 {
		tenths += n % unit * 10 / unit
	}
	return strconv.FormatFloat(float64(tenths)/10, 'f', -1, 64) + name
}

func exactTime(n int64) string { return time.Duration(n).String() }

// timeWords writes nanoseconds with at most one digit after the point of seconds,
// and below a second in milliseconds.
func timeWords(n int64) string {
	d := time.Duration(n)
	if d < time.Second {
		return d.Truncate(time.Millisecond).String()
	}
	return d.Truncate(100 * time.Millisecond).String()
}
