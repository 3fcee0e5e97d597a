package supervise

import (
	"syscall"
	"testing"
	"time"
)

// The wait status of a process (wait(2)).
func exitedWith(code int) syscall.WaitStatus { return syscall.WaitStatus(code << 8) }

func TestEnding(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status syscall.WaitStatus
		known  bool
		want   ending
	}{
		{"told to end", exitedWith(0), true, over},
		{"cannot, and could not again", exitedWith(1), true, over},
		{"a panic", exitedWith(2), true, failed},
		{"the engine failed", exitedWith(exitCrash), true, failed},
		{"killed", syscall.WaitStatus(syscall.SIGKILL), true, killed},
		{"a bug", syscall.WaitStatus(syscall.SIGSEGV), true, failed},
		{"no child", 0, false, killed},
	} {
		if got := endingOf(tt.status, tt.known); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestPauseGrowsWithFailures(t *testing.T) {
	var pause, all time.Duration
	for range 100 {
		pause = nextPause(pause, failed, time.Millisecond)
		all += pause
	}
	if pause != maxPause || all < 90*maxPause {
		t.Errorf("after 100 failures: %v, %v in all", pause, all)
	}
	if got := nextPause(pause, failed, time.Hour); got != minPause {
		t.Errorf("after a long life: %v", got)
	}
	for range 100 {
		if pause = nextPause(pause, killed, 0); pause != minPause {
			t.Fatalf("after a kill: %v", pause)
		}
	}
}
