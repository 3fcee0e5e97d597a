package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestVersions(t *testing.T) {
	tests := []struct {
		name, got, want string
	}{
		{"kernel of a distribution", kernelVersion("6.1.0-13-amd64"), "6.1.0"},
		{"kernel", kernelVersion("7.2.7"), "7.2.7"},
		{"runc of a distribution", runcVersion([]byte("runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n")), "1.1.5"},
		{"runc", runcVersion([]byte("runc version 1.3.0\n")), "1.3.0"},
		{"CPU", cpuModel([]byte("processor\t: 0\nmodel\t\t: 207\nmodel name\t: Intel(R)  Xeon(R) Processor\n")), "Intel Xeon Processor"},
		{"CPU without a name", cpuModel([]byte("processor\t: 0\n")), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.got != tt.want {
				t.Errorf("got %q, want %q", tt.got, tt.want)
			}
		})
	}
}

func TestBusy(t *testing.T) {
	for load, want := range map[string]bool{"0.99": false, "1.00": true, "12.5": true, "": false} {
		if got := (machine{Load: load}).busy(); got != want {
			t.Errorf("load %q: busy %v", load, got)
		}
	}
}

func TestLookAtMachine(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "runc"), []byte("#!/bin/sh\necho runc version 1.2.3+ds\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	m, err := lookAtMachine("here")
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "here" || m.Kernel == "" || m.Cgroup == 0 || m.CPUs < 1 || m.MemoryMiB < 1 || m.Runc != "1.2.3" || m.Go == "" || m.Load == "" {
		t.Errorf("facts are missing: %+v", m)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := lookAtMachine("here"); err == nil {
		t.Error("a machine without runc has its version")
	}
}
