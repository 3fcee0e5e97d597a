package cgroup

import (
	"errors"
	"math"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

func TestOOMScoreAdj(t *testing.T) {
	f := tree(t, "v2")
	if got, err := OOMScoreAdj(f, 42); got != 500 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
	if _, err := OOMScoreAdj(f, 43); !isGone(err) {
		t.Errorf("no process: %v", err)
	}
	for content, want := range map[string]int{"-1000\n": -1000, "0\n": 0, "1000\n": 1000} {
		cgrouptest.Write(t, string(f), "proc/42/oom_score_adj", content)
		if got, err := OOMScoreAdj(f, 42); got != want || err != nil {
			t.Errorf("%q: %d, %v", content, got, err)
		}
	}
	for _, content := range []string{"", "1001\n", "--1\n", "+1\n", "-\n"} {
		cgrouptest.Write(t, string(f), "proc/42/oom_score_adj", content)
		if _, err := OOMScoreAdj(f, 42); err == nil {
			t.Errorf("%q is accepted", content)
		}
	}
}

func TestRlimits(t *testing.T) {
	all, err := Rlimits(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var want unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &want); err != nil {
		t.Fatal(err)
	}
	if got := all[limits.KeyOpenFiles]; got != rlimit("RLIMIT_NOFILE", want) {
		t.Errorf("open files %+v, want %+v", got, want)
	}
	if len(all) != 3 {
		t.Errorf("%d keys", len(all))
	}
	if _, err := Rlimits(math.MaxInt32); !errors.Is(err, unix.ESRCH) {
		t.Errorf("no process: %v", err)
	}
}

func TestRlimit(t *testing.T) {
	const inf = math.MaxUint64
	for _, c := range []struct {
		got  unix.Rlimit
		want Effective
	}{
		{unix.Rlimit{Cur: 1024, Max: 4096}, Effective{Value: limits.Value{N: 4096, Soft: 1024}, Owner: Self, Mechanism: "x"}},
		{unix.Rlimit{Cur: 0, Max: 0}, Effective{Value: limits.Value{}, Owner: Self, Mechanism: "x"}},
		{unix.Rlimit{Cur: 0, Max: inf}, Effective{Value: limits.Value{None: true}, Mechanism: "x"}},
		{unix.Rlimit{Cur: inf, Max: inf}, Effective{Value: limits.Value{None: true, Soft: -1}, Mechanism: "x"}},
	} {
		if got := rlimit("x", c.got); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.got, got, c.want)
		}
	}
}
