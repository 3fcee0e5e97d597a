package fallback

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/verdict"
)


func TestMemoryBomb(t *testing.T) {
	tests := []struct {
		name, words string
		limit       int64
		slack       int64 // what else its processes have
	}{
		{"0.2 GB/s", "grow 4000000000 200000000", 256 * mib, 0},
		{"1 GB/s", "grow 4000000000 1000000000", 1024 * mib, 0},
		{"full speed", "grow 4000000000 0", 1024 * mib, 0},
		{"a child that is away", "away grow 4000000000 1000000000", 512 * mib, 0},
		{"nested pid namespaces", "nested nested grow 4000000000 1000000000", 512 * mib, 0},
		{"many small ones", "200 times grow 20000000 0", 1024 * mib, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newRecorder()
			var at time.Time
			h.struck = func() { at = time.Now() }
			e := engine(t, h)
			s := run(t, tt.words)
			add(t, e, s, Limits{Memory: tt.limit})
			s.begin()
			s.wait(20 * time.Second)
			end := time.Now()
			<-h.ended
			strike := h.only(t, verdict.MemoryLimitExceeded)
			t.Logf("measured %d MiB over %d MiB: %.1f %%; dead %v after", strike.Measured/mib, tt.limit/mib,
				100*float64(strike.Measured-tt.limit)/float64(tt.limit), end.Sub(at))
			if strike.Measured <= tt.limit || strike.Measured > tt.limit*3/2 {
				t.Errorf("struck at %d bytes", strike.Measured)
			}
			if left := s.pids(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestCPU(t *testing.T) {
	churn := script(t, "while :; do (i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done); done\n")
	fighter := script(t, "for i in 1 2 3; do while :; do kill -CONT -1 2>/dev/null; done & done; wait\n")
	for _, how := range []string{"freezer", "signals"} {
		for _, tt := range []struct {
			words string
			cpu   int64
		}{
			{"4 times spin", 250_000}, {"4 times spin", 500_000}, {"4 times spin", 1_000_000},
			{churn, 500_000}, {fighter, 500_000},
		} {
			t.Run(fmt.Sprint(how, " ", filepath.Base(tt.words), " ", tt.cpu), func(t *testing.T) {
				h := newRecorder()
				e := engine(t, h)
				s := run(t, tt.words)
				used, tell := inCgroup(t, s)
				var more []func(*Sandbox)
				if how == "freezer" {
					more = append(more, tell)
				}
				add(t, e, s, Limits{CPU: tt.cpu}, more...)
				before := used()
				s.begin()
				time.Sleep(5 * time.Second)
				took := time.Since(s.start)
				use, _ := e.Use(fmt.Sprint(s.init.Pid))
				got := (used() - before).Seconds() / took.Seconds() / (float64(tt.cpu) / 1e6)
				t.Logf("used/quota %.3f (counted %v of %v)", got, use.CPU, used())
				if got > 1.15 || got < 0.8 {
					t.Errorf("used/quota %.3f", got)
				}
				h.none(t)
			})
		}
	}
}

func TestPids(t *testing.T) {
	h := newRecorder()
	e := engine(t, h)
	s := run(t, script(t, "f() { f | f & }; f 2>/dev/null; sleep 100\n"))
	net := "/sys/fs/cgroup/pids/fallback-test-net"
	os.Mkdir(net, 0o755)
	os.WriteFile(net+"/pids.max", []byte("3000"), 0)
	os.WriteFile(net+"/cgroup.procs", fmt.Append(nil, s.init.Pid), 0)
	add(t, e, s, Limits{Pids: 100})
	s.begin()
	most := 0
	for range 50 {
		data, _ := os.ReadFile(net + "/pids.current")
		n := 0
		fmt.Sscan(string(data), &n)
		most = max(most, n)
		time.Sleep(10 * time.Millisecond)
	}
	use, _ := e.Use(fmt.Sprint(s.init.Pid))
	t.Logf("most %d, %+v, %+v", most, use, h.strikes)
}

func TestIO(t *testing.T) {
	for _, direct := range []string{"", " direct"} {
		t.Run("write"+direct, func(t *testing.T) {
			h := newRecorder()
			e := engine(t, h)
			name := filepath.Join("/var/tmp", fmt.Sprint("fallback-test-", os.Getpid()))
			defer os.Remove(name)
			s := run(t, "write "+name+direct)
			const rate = 20 * mib
			add(t, e, s, Limits{WriteBPS: rate})
			s.begin()
			time.Sleep(5 * time.Second)
			use, _ := e.Use(fmt.Sprint(s.init.Pid))
			took := time.Since(s.start)
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.init.Pid))
			s.end()
			t.Logf("%.3f; %s", float64(use.Written)/took.Seconds()/rate, strings.ReplaceAll(string(data), "\n", " "))
		})
	}
}

func TestBudgets(t *testing.T) {
	churn := script(t, "while :; do (i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done); done\n")
	for _, words := range []string{"4 times spin", churn} {
		h := newRecorder()
		e := engine(t, h)
		s := run(t, words)
		use, _ := inCgroup(t, s)
		add(t, e, s, Limits{CPUTime: 2 * time.Second, Grace: 100 * time.Millisecond})
		s.begin()
		s.wait(10 * time.Second)
		<-h.ended
		k := h.only(t, verdict.CPUTimeExceeded)
		t.Logf("%+v cpu %v, spent %v", k, use(), h.spent)
	}
	h := newRecorder()
	e := engine(t, h)
	s := run(t, "deaf sleep")
	add(t, e, s, Limits{WallTime: 1 * time.Second, Grace: 500 * time.Millisecond})
	s.begin()
	s.wait(10 * time.Second)
	<-h.ended
	k := h.only(t, verdict.WallTimeExceeded)
	t.Logf("%+v after %v, exit %v %v", k, time.Since(s.start), *h.exits[0].Code, h.exits[0].Source)
	_ = unix.SIGTERM
}

func hostEngine(string) error { return nil }
