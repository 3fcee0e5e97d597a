package fallback

import "time"

// burst is how much of the rate can be saved up.
const burst = 100 * time.Millisecond

// bucket is a token bucket. What is taken beyond its content is owed, so that
// over time the rate is exact however late somebody looks. The unit is that of
// the rate: bytes, or nanoseconds of CPU time.
type bucket struct {
	rate   float64 // for a second; 0: there is no limit
	tokens float64 // negative: owed
	at     time.Duration
}

func newBucket(rate int64, now time.Duration) bucket {
	b := bucket{rate: float64(rate), at: now}
	b.tokens = b.size()
	return b
}

func (b *bucket) limited() bool { return b.rate > 0 }
func (b *bucket) size() float64 { return b.rate * burst.Seconds() }

// take fills in what has been earned since the last time, and takes what was
// used meanwhile. What was earned and not used is kept up to the bucket's size.
func (b *bucket) take(now time.Duration, used int64) {
	if !b.limited() {
		return
	}
	if now > b.at {
		b.tokens += b.rate * (now - b.at).Seconds()
		b.at = now
	}
	b.tokens = min(b.tokens-float64(used), b.size())
}

// empty reports whether whoever uses it has to stop.
func (b *bucket) empty() bool { return b.limited() && b.tokens <= 0 }

// enough reports whether whoever was stopped may continue.
func (b *bucket) enough() bool { return !b.limited() || b.tokens >= b.portion() }

// portion is what has to be there before a stopped sandbox continues: so little
// that stops are short, so much that they are not many. It is earned in 50 ms.
func (b *bucket) portion() float64 { return b.size() / 2 }

// refilled returns how long it takes until there is enough.
func (b *bucket) refilled() time.Duration {
	if b.enough() {
		return 0
	}
	return seconds((b.portion() - b.tokens) / b.rate)
}

// lasts returns how long the content lasts at a speed, in units for a second.
func (b *bucket) lasts(speed float64) time.Duration {
	if !b.limited() || speed <= b.rate {
		return never
	}
	return seconds(max(0, b.tokens) / speed)
}

// seconds converts, and gives an hour for anything longer.
func seconds(s float64) time.Duration {
	return time.Duration(min(s, time.Hour.Seconds()) * float64(time.Second))
}

const never = time.Hour
