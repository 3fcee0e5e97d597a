package console

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestFilter(t *testing.T) {
	tests := []struct {
		name     string
		input    string
		output   string
		messages string
	}{
		{"nothing", "", "", "[]"},
		{"plain output", "hello\nworld", "hello\nworld", "[]"},
		{"control line", "agentbox-vm:T0 EXIT rc=3\n", "", "[{EXIT rc=3}]"},
		{"carriage return of a terminal", "agentbox-vm:T0 EXIT rc=3\r\n", "", "[{EXIT rc=3}]"},
		{"behind output without newline", "hiagentbox-vm:T0 EXIT rc=0\nbye", "hibye", "[{EXIT rc=0}]"},
		{"another token is output", "agentbox-vm:T1 EXIT rc=0\n", "agentbox-vm:T1 EXIT rc=0\n", "[]"},
		{"a faked line without token is output", "EXIT rc=0\n", "EXIT rc=0\n", "[]"},
		{"almost a marker", "agentbox-vm:T", "agentbox-vm:T", "[]"},
		{"marker begins twice", "agentboxagentbox-vm:T0 PHASE docker ready\n", "agentbox", "[{PHASE docker ready}]"},
		{"order", "a\nagentbox-vm:T0 PHASE x\nb\nagentbox-vm:T0 EXIT rc=1\n", "a\nb\n", "[{PHASE x} {EXIT rc=1}]"},
		{"cut off in a control line", "a\nagentbox-vm:T0 EXIT rc=", "a\n", "[]"},
	}
	for _, tt := range tests {
		for _, chunk := range []int{1, 3, 1 << 20} {
			t.Run(fmt.Sprintf("%s/chunks of %d", tt.name, chunk), func(t *testing.T) {
				var output bytes.Buffer
				messages := []Message{}
				filter := NewFilter("T0", &output, func(m Message) { messages = append(messages, m) })
				for rest := []byte(tt.input); len(rest) > 0; {
					n := min(chunk, len(rest))
					if _, err := filter.Write(rest[:n]); err != nil {
						t.Fatal(err)
					}
					rest = rest[n:]
				}
				if err := filter.Flush(); err != nil {
					t.Fatal(err)
				}
				if output.String() != tt.output || fmt.Sprint(messages) != tt.messages {
					t.Fatalf("output %q, messages %v; want %q, %s", output.String(), messages, tt.output, tt.messages)
				}
			})
		}
	}
}

func TestPromptIsNotHeldBack(t *testing.T) {
	var output bytes.Buffer
	filter := NewFilter("T0", &output, func(Message) {})
	if _, err := filter.Write([]byte("root# ")); err != nil {
		t.Fatal(err)
	}
	if output.String() != "root# " {
		t.Fatalf("output %q", output.String())
	}
}

func TestExitCode(t *testing.T) {
	tests := []struct {
		message Message
		want    int
		ok      bool
	}{
		{Message{"EXIT", "rc=0"}, 0, true},
		{Message{"EXIT", "rc=255"}, 255, true},
		{Message{"EXIT", "rc=256"}, 0, false},
		{Message{"EXIT", "rc=-1"}, 0, false},
		{Message{"EXIT", "rc="}, 0, false},
		{Message{"EXIT", "rc=1 "}, 0, false},
		{Message{"EXIT", ""}, 0, false},
		{Message{"PHASE", "rc=0"}, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.message.Verb+" "+tt.message.Rest, func(t *testing.T) {
			got, err := tt.message.ExitCode()
			if (err == nil) != tt.ok || got != tt.want {
				t.Fatalf("ExitCode = %d, %v", got, err)
			}
		})
	}
}

func FuzzFilter(f *testing.F) {
	f.Add("hi agentbox-vm:T0 EXIT rc=0\nbye", 3)
	f.Fuzz(func(t *testing.T, input string, cut int) {
		cut = min(max(cut, 0), len(input))
		var parts, whole bytes.Buffer
		run := func(output *bytes.Buffer, chunks ...string) int {
			count := 0
			filter := NewFilter("T0", output, func(Message) { count++ })
			for _, chunk := range chunks {
				if _, err := filter.Write([]byte(chunk)); err != nil {
					t.Fatal(err)
				}
			}
			if err := filter.Flush(); err != nil {
				t.Fatal(err)
			}
			return count
		}
		if len(input) < maxControlLine && (run(&parts, input[:cut], input[cut:]) != run(&whole, input) || parts.String() != whole.String()) {
			t.Fatalf("split at %d: %q, whole: %q", cut, parts.String(), whole.String())
		}
		if !strings.Contains(input, "agentbox-vm:T0 ") && len(input) < maxControlLine && whole.String() != input {
			t.Fatalf("output %q, want %q", whole.String(), input)
		}
	})
}
