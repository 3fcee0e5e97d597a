package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/engine"
	"github.com/agentbox/agentbox/test/vm/internal/host"
)

// A shell script stands in for the engine: all that a session sees of a guest is
// its console and its end.
func TestSession(t *testing.T) {
	const begin = "echo booting; echo 'agentbox-vm:T FACT kernel 9'; echo 'agentbox-vm:T PHASE command'; "
	tests := []struct {
		name    string
		script  string
		boot    time.Duration // zero: long enough
		timeout time.Duration
		code    int
		output  string // end of the output, if a code is wanted
		problem string // part of the message, if an error is wanted
	}{
		{name: "exit code", script: begin + "echo hi; echo 'agentbox-vm:T EXIT rc=3'", code: 3, output: "hi\n"},
		{name: "what the kernel says at the end is no output", script: begin + "echo 'agentbox-vm:T EXIT rc=0'; echo Power down", output: "s\n"},
		{name: "output without newline", script: begin + "printf hi; echo 'agentbox-vm:T EXIT rc=0'", output: "\nhi"},
		{name: "faked exit line", script: begin + "echo EXIT rc=0; echo 'agentbox-vm:U EXIT rc=0'", problem: "without an exit line"},
		{name: "exit code that is none", script: begin + "echo 'agentbox-vm:T EXIT rc=999'", problem: "bad code"},
		{name: "ends while booting", script: "echo booting", problem: "without an exit line"},
		{name: "engine fails", script: "exit 1", problem: "exit status 1"},
		{name: "panic", script: begin + "echo '[ 1.0] Kernel panic - not syncing: sysrq triggered crash'", problem: "panicked: sysrq triggered crash"},
		{name: "guest gives up", script: "echo 'agentbox-vm:T FAIL no swap'; sleep 300", problem: "cannot go on: no swap"},
		{name: "hangs while booting", script: "sleep 300", boot: time.Second, problem: "did not boot"},
		{name: "hangs in the command", script: begin + "sleep 300", timeout: 300 * time.Millisecond, problem: "killed after 300ms"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var output, progress bytes.Buffer
			s := &session{
				options: options{timeout: tt.timeout}, stdout: &output, progress: host.NewProgress(&progress),
				headline: []string{"engine: sh"}, bootTimeout: cmp.Or(tt.boot, time.Minute),
			}
			started := time.Now()
			code, err := s.run(context.Background(), engine.Command{Program: "/bin/sh", Arguments: []string{"-c", tt.script}}, "T", nil)
			if time.Since(started) > powerOffGrace+time.Minute {
				t.Errorf("the end took %v", time.Since(started))
			}
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Fatalf("run = %d, %v; want a message with %q", code, err, tt.problem)
				}
				if isTimeout := strings.HasPrefix(tt.name, "hangs"); errors.Is(err, errTimeout) != isTimeout {
					t.Errorf("%v is a time-out: %v, want %v", err, !isTimeout, isTimeout)
				}
				return
			}
			if err != nil || code != tt.code {
				t.Fatalf("run = %d, %v; want %d", code, err, tt.code)
			}
			if !strings.HasPrefix(output.String(), "engine: sh\nguest: kernel 9\nboot: command ") || !strings.HasSuffix(output.String(), tt.output) {
				t.Fatalf("output %q, want the facts, then %q", output.String(), tt.output)
			}
		})
	}
}

func TestSessionIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	s := &session{stdout: new(bytes.Buffer), progress: &host.Progress{}, headline: []string{"engine: sh"}, bootTimeout: time.Minute}
	started := time.Now()
	_, err := s.run(ctx, engine.Command{Program: "/bin/sh", Arguments: []string{"-c", "sleep 300"}}, "T", nil)
	if !errors.Is(err, context.Canceled) || time.Since(started) > time.Minute {
		t.Fatalf("run = %v after %v", err, time.Since(started))
	}
}
