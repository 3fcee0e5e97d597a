package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/payload"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name    string
		command string
		line    string
		want    options
		problem string // part of the message, empty if there is none
	}{
		{name: "image", command: "image", want: options{suite: "forky", memoryMiB: 3072}},
		{name: "image with mirror", command: "image", line: "-mirror http://m.test/debian", want: options{suite: "forky", memoryMiB: 3072, mirror: "http://m.test/debian"}},
		{
			name: "run with everything", command: "run",
			line: "-engine qemu -suite trixie -timeout 5m -cpus 4 -mem 2G -spare 4G -env A=b=c -env B= -payload x:bin/y -payload /z -out o " +
				"-no-docker -data-fs xfs -cgroup none -kernel-arg cgroup_disable=io -kernel-arg nosmp -v -- ls -l",
			want: options{
				engine: "qemu", suite: "trixie", init: "script", timeout: 5 * time.Minute, cpus: 4, memoryMiB: 2048, spareMiB: 4096, dataFS: "xfs", cgroup: "none", out: "o",
				noDocker: true, verbose: true, kernelArgs: []string{"cgroup_disable=io", "nosmp"},
				environment: []string{"A=b=c", "B="}, payload: []payload.Item{{Source: "x", Name: "bin/y"}, {Source: "/z", Name: "z"}},
				command: []string{"ls", "-l"},
			},
		},
		{name: "run by default", command: "run", line: "true", want: options{engine: "uml", suite: "forky", init: "script", memoryMiB: 3072, dataFS: "ext4", cgroup: "v2", command: []string{"true"}}},
		{name: "shell", command: "shell", want: options{engine: "uml", suite: "forky", init: "script", memoryMiB: 3072, dataFS: "ext4", cgroup: "v2"}},
		{name: "Docker on cgroup v1", command: "shell", line: "-cgroup v1", want: options{engine: "uml", suite: "forky", init: "script", memoryMiB: 3072, dataFS: "ext4", cgroup: "v1"}},
		{name: "no spare disk", command: "shell", line: "-spare 0", want: options{engine: "uml", suite: "forky", init: "script", memoryMiB: 3072, dataFS: "ext4", cgroup: "v2"}},
		{name: "run without command", command: "run", problem: "needs a command"},
		{name: "shell with command", command: "shell", line: "ls", problem: "takes no arguments"},
		{name: "shell knows no timeout", command: "shell", line: "-timeout 1s", problem: "not defined"},
		{name: "unknown engine", command: "run", line: "-engine xen true", problem: "unknown engine"},
		{name: "bad environment", command: "run", line: "-env 1A=b true", problem: "KEY=VALUE"},
		{name: "bad payload", command: "run", line: "-payload x:../y true", problem: "below /payload"},
		{name: "little memory", command: "run", line: "-mem 100M true", problem: "at least 512M"},
		{name: "bad memory", command: "run", line: "-mem lots true", problem: "not a number with M or G"},
		{name: "bad spare disk", command: "run", line: "-spare -1G true", problem: "not a number with M or G"},
		{name: "bad cgroup variant", command: "run", line: "-cgroup v3 true", problem: "one of v2, v1, hybrid, none"},
		{name: "Docker without cgroups", command: "run", line: "-cgroup none true", problem: "needs -no-docker"},
		{name: "systemd", command: "shell", line: "-init systemd", want: options{engine: "uml", suite: "forky", init: "systemd", memoryMiB: 3072, dataFS: "ext4", cgroup: "v2"}},
		{name: "systemd on cgroup v1", command: "run", line: "-init systemd -cgroup v1 true", problem: "-cgroup v1 needs -init script"},
		{name: "bad init", command: "run", line: "-init runit true", problem: "one of script, systemd"},
		{name: "image of another suite", command: "image", line: "-suite trixie", want: options{suite: "trixie", memoryMiB: 3072}},
		{name: "bad suite", command: "image", line: "-suite sid", problem: "one of forky, trixie"},
		{name: "bad kernel argument", command: "run", line: "-kernel-arg abvm_token=x true", problem: "belongs to the harness"},
		{name: "image knows no spare disk", command: "image", line: "-spare 1G", problem: "not defined"},
		{name: "bad file system", command: "run", line: "-data-fs vfat true", problem: "ext4 or xfs"},
		{name: "negative timeout", command: "run", line: "-timeout -1s true", problem: "negative"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.command, strings.Fields(tt.line))
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Fatalf("parse = %v, want a message with %q", err, tt.problem)
				}
				return
			}
			// Sprint, since an empty and a nil list are the same here.
			if err != nil || fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Fatalf("parse = %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
	if _, err := parse("run", []string{"-help"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-help gives %v", err)
	}
}

func TestParseMiB(t *testing.T) {
	tests := []struct {
		text string
		want int
	}{
		{"1024", 1024},
		{"1024M", 1024},
		{"3G", 3072},
		{"3g", 3072},
		{"3GiB", 3072},
		{"512MB", 512},
		{"", -1},
		{"G", -1},
		{"-1G", -1},
		{"1.5G", -1},
		{"99999999999999G", -1},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			got, err := parseMiB(tt.text)
			if err != nil {
				got = -1
			}
			if got != tt.want {
				t.Fatalf("parseMiB = %d, %v; want %d", got, err, tt.want)
			}
		})
	}
}

func TestCheckKernelArg(t *testing.T) {
	tests := []struct {
		text string
		ok   bool
	}{
		{"cgroup_disable=memory,io", true},
		{"nosmp", true},
		{`dyndbg="+p"`, true},
		{"", false},
		{" ", false},
		{"two words", false},
		{"word ", false},
		{"word\n", false},
		{"--help", false},
		{"-engine", false},
		{"abvm_token=x", false},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			if err := checkKernelArg(tt.text); (err == nil) != tt.ok {
				t.Fatalf("checkKernelArg = %v, want ok %v", err, tt.ok)
			}
		})
	}
}

func TestHelpNamesEveryFlag(t *testing.T) {
	names := []string{
		"-engine", "-timeout", "-cpus", "-mem", "-spare", "-env", "-payload", "-out", "-no-docker", "-data-fs", "-cgroup", "-kernel-arg", "-mirror", "-v",
	}
	for _, name := range names {
		if !strings.Contains(help, "\n  "+name+" ") {
			t.Errorf("the help text does not explain %s", name)
		}
	}
}
