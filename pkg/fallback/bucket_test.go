package fallback

import (
	"testing"
	"time"
)

// TestBucketIsExact: however irregularly one looks, and however fast it is used
// meanwhile, over time the rate is exact.
func TestBucketIsExact(t *testing.T) {
	const (
		rate  = 250 << 20
		speed = 3000 << 20
	)
	b := newBucket(rate, 0)
	var now time.Duration
	var used float64
	stopped := false
	for i := 0; now < time.Minute; i++ {
		step := time.Duration(1+i*7%40) * time.Millisecond
		took := 0.0
		if !stopped {
			took = speed * step.Seconds()
		}
		used += took
		now += step
		b.take(now, int64(took))
		switch {
		case b.empty():
			stopped = true
		case b.enough():
			stopped = false
		}
	}
	// What one look may be late for is owed at the end, at most.
	if got, most := used/now.Seconds(), float64(rate)+speed*0.041/60; got < rate*0.99 || got > most {
		t.Errorf("%.0f bytes a second of %d", got, rate)
	}
}

func TestBucket(t *testing.T) {
	b := newBucket(1000, 0)
	b.take(time.Second, 0)
	if b.tokens != 100 {
		t.Errorf("saved up %v, want a tenth of a second's", b.tokens)
	}
	b.take(2*time.Second, 1000) // spread over the second: no more than it may
	if b.tokens != 100 || b.empty() {
		t.Errorf("after a second at the rate: %v", b.tokens)
	}
	b.take(2*time.Second, 300)
	if !b.empty() || b.enough() || b.tokens != -200 {
		t.Errorf("after too much: %v", b.tokens)
	}
	if got := b.refilled(); got != 250*time.Millisecond {
		t.Errorf("refilled in %v", got)
	}
	b.take(2*time.Second+b.refilled(), 0)
	if !b.enough() || b.refilled() != 0 {
		t.Errorf("not enough after that: %v", b.tokens)
	}
	if got := b.lasts(5000); got != 10*time.Millisecond {
		t.Errorf("lasts %v", got)
	}
	if got := b.lasts(1000); got != never {
		t.Errorf("at the rate it lasts %v", got)
	}
	b.take(time.Second, 0) // a clock that goes back
	if b.at != 2*time.Second+250*time.Millisecond {
		t.Errorf("went back to %v", b.at)
	}
	var none bucket
	none.take(time.Second, 1<<40)
	if none.empty() || !none.enough() || none.refilled() != 0 || none.lasts(1e12) != never {
		t.Error("no limit is one")
	}
}

func TestLedger(t *testing.T) {
	tests := []struct {
		name   string
		rounds [][3]int64 // grown, gone, slack
		want   int64
	}{
		{"one that lives", [][3]int64{{5, 0, 0}, {7, 0, 0}}, 12},
		{"waited for: the parent's number has it", [][3]int64{{50, 0, 0}, {60, 50, 0}}, 60},
		{"seen in the parent a round later", [][3]int64{{50, 0, 0}, {0, 50, 0}, {60, 0, 0}}, 60},
		{"never waited for", [][3]int64{{50, 0, 0}, {0, 50, 0}, {0, 0, 0}, {60, 0, 0}}, 110},
		{"the parent shows whole ticks", [][3]int64{{3, 0, 10}, {3, 3, 10}, {3, 3, 10}, {10, 3, 10}}, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var l ledger
			var sum int64
			for _, r := range tt.rounds {
				sum += l.add(r[0], r[1], r[2])
			}
			if sum != tt.want || l.total != tt.want {
				t.Errorf("%d, in all %d, want %d", sum, l.total, tt.want)
			}
		})
	}
}

func TestHeadroom(t *testing.T) {
	h := headroom{limit: 1000}
	h.measured(400, 5000, time.Second)
	tests := []struct {
		name string
		host int64
		now  time.Duration
		want bool
	}{
		{"nothing happened", 5000, 1100 * time.Millisecond, false},
		{"the machine rose by less than half of what is left", 5300, 1100 * time.Millisecond, false},
		{"by more", 5301, 1100 * time.Millisecond, true},
		{"a second is over", 5000, 2 * time.Second, true},
	}
	for _, tt := range tests {
		if got := h.due(tt.host, tt.now); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	h.measured(600, 5000, time.Second)
	if !h.due(5000, 1250*time.Millisecond) {
		t.Error("above half of the limit it is not measured four times a second")
	}
	if none := (headroom{}); none.due(1<<40, time.Hour) {
		t.Error("without a limit it is measured")
	}
}

func TestGates(t *testing.T) {
	if got := memoryGate(fastest); got != 100*time.Millisecond {
		t.Errorf("a second's head-room: %v", got)
	}
	if got := memoryGate(fastest / 8); got != 31250*time.Microsecond {
		t.Errorf("an eighth of a second's head-room: %v", got)
	}
	if got := memoryGate(-1); got != 2*time.Millisecond {
		t.Errorf("none: %v", got)
	}
	if got := taskGate(1000); got != 20*time.Millisecond {
		t.Errorf("1000 tasks: %v", got)
	}
	if got := longestLook(1); got != 10*time.Millisecond {
		t.Errorf("one sandbox: %v", got)
	}
	if got := longestLook(5000); got != 250*time.Millisecond {
		t.Errorf("5000 sandboxes: %v", got)
	}
	// Looks that are due at about the same time are at the same.
	if a, b := together(1010*time.Millisecond, 100*time.Millisecond), together(1020*time.Millisecond, 100*time.Millisecond); a != b || a != time.Second {
		t.Errorf("%v and %v", a, b)
	}
	if got := together(1001*time.Microsecond, time.Millisecond); got != 1001*time.Microsecond {
		t.Errorf("a look that is urgent: %v", got)
	}
}
