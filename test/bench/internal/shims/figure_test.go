package shims

import (
	"testing"

	"github.com/agentbox/agentbox/test/bench/internal/pss"
)

func TestParseParent(t *testing.T) {
	tests := []struct {
		name, data string
		want       int
		bad        bool
	}{
		{name: "recorded", data: "Name:\tcat\nUmask:\t0022\nState:\tR (running)\nTgid:\t26229\nNgid:\t0\nPid:\t26229\nPPid:\t26217\nTracerPid:\t0\n", want: 26217},
		{name: "of another PID namespace", data: "Pid:\t1\nPPid:\t0\n", want: 0},
		{name: "a name that says it too", data: "Name:\tPPid: 7\nPPid:\t8\n", want: 8},
		{name: "no such line", data: "Pid:\t1\n", bad: true},
		{name: "not a number", data: "PPid:\tx\n", bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseParent([]byte(tt.data))
			if (err != nil) != tt.bad || got != tt.want {
				t.Errorf("got %d, %v, want %d", got, err, tt.want)
			}
		})
	}
}

func FuzzParseParent(f *testing.F) {
	f.Add([]byte("Name:\tcat\nPPid:\t26217\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if pid, err := parseParent(data); pid < 0 || err != nil && pid != 0 {
			t.Errorf("%d, %v", pid, err)
		}
	})
}

func TestFigureOf(t *testing.T) {
	one := func(bytes int64) Sample { return Sample{One: pss.Memory{PSS: bytes}} }
	tests := []struct {
		name  string
		pairs []Pair
		want  Figure
	}{
		{name: "no pairs"},
		{
			name:  "the ratio is that of pairs, and not of the medians",
			pairs: []Pair{{one(10), one(20)}, {one(30), one(10)}, {one(20), one(40)}},
			want:  Figure{Agentbox: 20, Runc: 20, Ratio: 0.5, Low: 0.5, High: 3},
		},
		{
			name:  "nothing to divide by",
			pairs: []Pair{{one(10), one(0)}, {one(10), one(5)}},
			want:  Figure{Agentbox: 10, Runc: 0, Ratio: 2, Low: 2, High: 2},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := FigureOf(tt.pairs, PSSOfOne); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestWhatIsPicked(t *testing.T) {
	s := Sample{One: pss.Memory{PSS: 1000, Anonymous: 300}, Pod: pss.Memory{PSS: 1000 + 50*Further, Anonymous: 500}}
	for name, tt := range map[string]struct{ got, want float64 }{
		"one container":          {PSSOfOne(s), 1000},
		"its anonymous memory":   {AnonymousOfOne(s), 300},
		"a pod":                  {PSSOfPod(s), 1000 + 50*Further},
		"each further container": {PSSPerFurther(s), 50},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %v, want %v", name, tt.got, tt.want)
		}
	}
}
