package procfs

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	rest := " S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"
	tests := []struct {
		name, stat, state string
		start             uint64
	}{
		{"plain", "42 (sh)" + rest, "S", 12345},
		{"spaces", "42 (tmux: server)" + rest, "S", 12345},
		{"brackets", "42 ((sd-pam))" + rest, "S", 12345},
		{"a forged tail", "42 (x) S 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 99 0)" + rest, "S", 12345},
		{"a newline", "42 (a\nb)" + rest, "S", 12345},
		{"nothing in the brackets", "42 ()" + rest, "S", 12345},
		{"a zombie", "42 (sh)" + strings.Replace(rest, "S", "Z", 1), "Z", 12345},
		{"the largest", "42 (sh)" + strings.Replace(rest, "12345", "18446744073709551615", 1), "S", 18446744073709551615},
		{"empty", "", "", 0},
		{"no bracket", "42 sh S 1", "", 0},
		{"cut off", "42 (sh) S 1 42", "", 0},
		{"not a number", "42 (sh)" + strings.Replace(rest, "12345", "-5", 1), "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat([]byte(tt.stat))
			if (err != nil) != (tt.state == "") || got.StartTime != tt.start || got.state != tt.state {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (sh) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := parseStat(data); err != nil && got != (stat{}) {
			t.Errorf("%+v with %v", got, err)
		}
	})
}

func TestProcess(t *testing.T) {
	self, err := FindProcess(os.Getpid())
	if err != nil || !self.Alive() || !self.Running() {
		t.Errorf("this process: %+v, %v", self, err)
	}
	other := Process{Pid: self.Pid, StartTime: self.StartTime + 1}
	for name, p := range map[string]Process{"zero": {}, "negative": {Pid: -1}, "used again": other} {
		if p.Alive() || p.Running() {
			t.Errorf("%s is alive", name)
		}
	}
}

func TestZombie(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := FindProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if !p.Running() {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if p.Running() || !p.Alive() {
		t.Errorf("not waited for: running %t, alive %t", p.Running(), p.Alive())
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if p.Alive() {
		t.Error("waited for, and alive")
	}
}
