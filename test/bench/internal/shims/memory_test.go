package shims

import (
	"os"
	"strings"
	"testing"
)

func TestParseRollup(t *testing.T) {
	recorded, err := os.ReadFile("testdata/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, data string
		want       Memory
		problem    string // part of the message, empty if there is none
	}{
		{name: "recorded", data: string(recorded), want: Memory{PSS: 201 << 10, Anonymous: 112 << 10}},
		{name: "other fields begin alike", data: "Pss_Anon: 7 kB\nPss: 3 kB\nPss_File: 8 kB\nAnonymous: 2 kB\nAnonHugePages: 9 kB\n", want: Memory{PSS: 3 << 10, Anonymous: 2 << 10}},
		{name: "a process that has ended", data: "", problem: "has no line"},
		{name: "no anonymous memory told", data: "Pss: 3 kB\n", problem: "no line Anonymous"},
		{name: "another unit", data: "Pss: 3 MB\nAnonymous: 2 kB\n", problem: `"Pss: 3 MB"`},
		{name: "below zero", data: "Pss: -3 kB\nAnonymous: 2 kB\n", problem: `"Pss: -3 kB"`},
		{name: "more than a number of bytes", data: "Pss: 9007199254740992 kB\nAnonymous: 2 kB\n", problem: "out of range"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseRollup([]byte(tt.data))
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Errorf("error %v, want %q", err, tt.problem)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func FuzzParseRollup(f *testing.F) {
	recorded, err := os.ReadFile("testdata/smaps_rollup")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(recorded)
	f.Add([]byte("Pss: 8796093022207 kB\nAnonymous: 0 kB\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseRollup(data)
		if err != nil && m != (Memory{}) {
			t.Errorf("an error comes with %+v", m)
		}
		if m.PSS < 0 || m.Anonymous < 0 || m.PSS%1024 != 0 || m.Anonymous%1024 != 0 {
			t.Errorf("%+v is no number of KiB", m)
		}
	})
}

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
	one := func(pss int64) Sample { return Sample{One: Memory{PSS: pss}} }
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
	s := Sample{One: Memory{PSS: 1000, Anonymous: 300}, Pod: Memory{PSS: 1000 + 50*Further, Anonymous: 500}}
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
