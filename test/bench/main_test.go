package main

import (
	"slices"
	"strings"
	"testing"
)

func TestParseOptions(t *testing.T) {
	all := func(change func(*options)) options {
		o := options{bin: "bin", engine: "uml", pairs: 40, runs: 5, rounds: 20, only: allParts}
		change(&o)
		return o
	}
	tests := []struct {
		name, line string
		want       options
		problem    string // part of the message, empty if there is none
	}{
		{name: "nothing", want: all(func(*options) {})},
		{name: "write", line: "-write -engine qemu -runs 7", want: all(func(o *options) { o.write, o.engine, o.runs = true, "qemu", 7 })},
		{name: "two parts", line: "-only cpu,io", want: all(func(o *options) { o.only = []string{"cpu", "io"} })},
		{name: "all parts by name", line: "-write -only io,supervisor,shim,cpu,startup", want: all(func(o *options) { o.write, o.only = true, []string{"io", "supervisor", "shim", "cpu", "startup"} })},
		{name: "unknown part", line: "-only cpu,disk", problem: "startup, shim, cpu, io, supervisor"},
		{name: "a page without the shim", line: "-only io,cpu,startup -write", problem: "needs all parts"},
		{name: "a page of one part", line: "-only cpu -write", problem: "needs all parts"},
		{name: "a page without the supervisor", line: "-only io,cpu,startup,shim -write", problem: "needs all parts"},
		{name: "the supervisor once", line: "-only supervisor -rounds 1", want: all(func(o *options) { o.only, o.rounds = []string{"supervisor"}, 1 })},
		{name: "no runs", line: "-runs 0", problem: "at least 1"},
		{name: "no rounds", line: "-rounds 0", problem: "at least 1"},
		{name: "an argument", line: "cpu", problem: "mean nothing"},
		{name: "unknown flag", line: "-fast", problem: "not defined"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseOptions(strings.Fields(tt.line))
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Fatalf("error %v, want %q", err, tt.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.only, tt.want.only) {
				t.Errorf("parts %v, want %v", got.only, tt.want.only)
			}
			got.only, tt.want.only = nil, nil
			if got.bin != tt.want.bin || got.engine != tt.want.engine || got.pairs != tt.want.pairs || got.runs != tt.want.runs || got.rounds != tt.want.rounds || got.write != tt.want.write {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// The guest measures what the host was told to, but for the supervisor, with the
// same program.
func TestGuestIsToldTheSame(t *testing.T) {
	o, err := parseOptions(strings.Fields("-only cpu,io,supervisor -pairs 33 -runs 6 -engine qemu"))
	if err != nil {
		t.Fatal(err)
	}
	o.bin, o.tools = "/b", "/t"
	args := guestArgs(o, "/self", "/o")
	i := slices.Index(args, "./bench")
	if i < 1 || args[i-1] != "--" {
		t.Fatalf("the guest does not run this program: %q", args)
	}
	guest, err := parseOptions(args[i+1:])
	if err != nil {
		t.Fatal(err)
	}
	if guest.guest == "" || !slices.Equal(guest.only, []string{"cpu", "io"}) || guest.pairs != 33 || guest.runs != 6 || guest.engine != "qemu" {
		t.Errorf("the guest is told %+v", guest)
	}
	vm := strings.Join(args[:i], " ")
	for _, want := range []string{"-engine qemu", "/b:bin", "/t:tools", "/self:bench", "-out /o", "-spare "} {
		if !strings.Contains(vm, want) {
			t.Errorf("%q is not among the flags of the guest: %s", want, vm)
		}
	}
	if engines[o.engine] == "" {
		t.Error("the engine has no name for a person")
	}
}

// Side by side, a limit that does not hold must still show.
func TestCPUGroups(t *testing.T) {
	for cpus := 1; cpus <= 8; cpus++ {
		seen := map[float64]bool{}
		for _, group := range cpuGroups(cpus) {
			sum := 0.0
			for _, limit := range group {
				sum += limit
				seen[limit] = true
			}
			if 2*sum > float64(cpus) {
				t.Errorf("%d CPUs: %v could hold each other back", cpus, group)
			}
		}
		if !seen[0.25] || !seen[0.5] || seen[1] != (cpus > 1) {
			t.Errorf("%d CPUs: %v are measured", cpus, seen)
		}
	}
}
