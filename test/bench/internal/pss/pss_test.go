package pss

import (
	"os"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
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
			got, err := parse([]byte(tt.data))
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

func FuzzParse(f *testing.F) {
	recorded, err := os.ReadFile("testdata/smaps_rollup")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(recorded)
	f.Add([]byte("Pss: 8796093022207 kB\nAnonymous: 0 kB\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parse(data)
		if err != nil && m != (Memory{}) {
			t.Errorf("an error comes with %+v", m)
		}
		if m.PSS < 0 || m.Anonymous < 0 || m.PSS%1024 != 0 || m.Anonymous%1024 != 0 {
			t.Errorf("%+v is no number of KiB", m)
		}
	})
}

func TestOf(t *testing.T) {
	is, err := Of(os.Getpid())
	if err != nil || is.Anonymous < 64<<10 || is.PSS < is.Anonymous {
		t.Errorf("this process takes %+v, %v", is, err)
	}
	if _, err := Of(4194305); err == nil { // above any pid
		t.Error("a process that is not there takes memory")
	}
}
