package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run the test with -update if that is right\ngot:\n%s", path, got)
	}
}

func TestPlacesAreListedAsFarAsTheyFit(t *testing.T) {
	for _, c := range []struct {
		places []string
		more   int
		want   string
	}{
		{nil, 0, ""},
		{[]string{"/", "/data"}, 0, "/ /data"},
		{[]string{"/1", "/2", "/3", "/4", "/5"}, 0, "/1 /2 /3 /4 /5"},
		{[]string{"/1", "/2", "/3", "/4", "/5", "/6"}, 0, "/1 /2 /3 /4 /5 and 1 more"},
		{[]string{"/1", "/2", "/3", "/4", "/5", "/6", "/7"}, 90, "/1 /2 /3 /4 /5 and 92 more"},
	} {
		if got := placeWords(c.places, c.more); got != c.want {
			t.Errorf("%q and %d: %q, want %q", c.places, c.more, got, c.want)
		}
	}
}

// cases are results of every kind that a person sees.
func cases() map[string]*result.Result {
	killed := oomKilled("0123456789abcdef", "agent-7")
	killed.Previous = exited("0123456789abcdef", "agent-7", start.Add(-time.Hour), start.Add(-time.Minute))

	off := exited("off", "", start, start.Add(90*time.Second))
	off.Mode = limits.ModeOff
	off.Enforcement = map[string]result.Enforcement{
		"io":     {Source: limits.SourceDefault, Enforcer: limits.EnforcerNone, Precision: "none", Detail: "no limit is configured", Disks: disks()[1:]},
		"memory": {Unit: "bytes", Source: limits.SourceDefault, Enforcer: limits.EnforcerNone, Precision: "none", Detail: "mode off: it would be 2GiB"},
	}

	running := base("running", "agent-8", start)
	running.Status, running.Message, running.ExitSource = verdict.Running, "running", verdict.ExitUnknown
	running.Usage = &result.Usage{MemoryPeakBytes: new(int64(50_000_000)), MemoryBytes: new(int64(900)), Pids: new(int64(3))}

	created := base("created", "", start)
	created.Status, created.Message, created.Enforcement = verdict.Created, "created, not started", nil

	ended := base("ended", "", start)
	ev := verdict.Evidence{CgroupVersion: 2, PidsMax: new(int64(7)), Exit: verdict.Exit{Source: verdict.ExitUnknown}}
	ended.Conclude(verdict.Classify(ev, verdict.Limits{}), ev, start.Add(2*time.Hour))
	ended.Warnings = []string{"usage is not known: the cgroup is gone"}

	hostile := exited("hostile", "\x1b[31mred\x07", start, start.Add(time.Second))
	hostile.Warnings = []string{"annotation \x1b]0;title\x07 and a\nnewline\tand a tab"}
	hostile.Enforcement = map[string]result.Enforcement{"io": {
		Source: limits.SourceDefault, Enforcer: limits.EnforcerNone, Precision: "none", Detail: "not on /\x1b[2J: \x07",
		Disks: []result.Disk{{Name: "v\x1b[31mda", Places: []string{"/a\nb", "/\u202egnp.exe"}, Filesystem: "ext\x004", Counted: "\x1b]0;title\x07", ReadBPS: number("\x1b[31m1")}},
	}}

	return map[string]*result.Result{
		"oom_killed": killed, "off": off, "running": running, "created": created, "ended": ended,
		"refused": refused("refused"), "hostile": hostile,
	}
}

func TestGolden(t *testing.T) {
	for name, r := range cases() {
		t.Run(name, func(t *testing.T) {
			p := printer{location: time.UTC}
			p.result(r)
			golden(t, name+".golden.txt", []byte(p.String()))
		})
	}
}

func TestGoldenColour(t *testing.T) {
	p := printer{location: time.UTC, colour: true}
	for _, name := range []string{"oom_killed", "ended", "running"} {
		p.result(cases()[name])
		p.line("")
	}
	golden(t, "colour.golden.txt", []byte(p.String()))
}

func TestGoldenJSON(t *testing.T) {
	killed, ended := cases()["oom_killed"], cases()["ended"]
	var one, several bytes.Buffer
	if err := write(&one, []*result.Result{killed}, true, false); err != nil {
		t.Fatal(err)
	}
	if err := write(&several, []*result.Result{killed, ended}, true, true); err != nil {
		t.Fatal(err)
	}
	golden(t, "one.golden.json", one.Bytes())
	golden(t, "several.golden.json", several.Bytes())
}

func TestWantsColour(t *testing.T) {
	if wantsColour(&bytes.Buffer{}) {
		t.Error("a buffer is no terminal")
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if wantsColour(null) {
		t.Error("/dev/null is no terminal")
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer terminal.Close()
	for _, tt := range []struct {
		noColour, term string
		want           bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"0", "xterm", false}, {"", "dumb", false}} {
		t.Setenv("NO_COLOR", tt.noColour)
		t.Setenv("TERM", tt.term)
		if got := wantsColour(terminal); got != tt.want {
			t.Errorf("NO_COLOR=%q TERM=%q: %t", tt.noColour, tt.term, got)
		}
	}
}

func TestRoughBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 900: "900 B", 1024: "1.0 KiB", 50_000_000: "47.7 MiB", 64 << 20: "64.0 MiB", 1 << 40: "1.0 TiB", 1<<63 - 1: "8.0 EiB",
	} {
		if got := roughBytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1234 * time.Microsecond: "1ms", 1234 * time.Millisecond: "1.2s", time.Minute: "1m", 61 * time.Second: "1m1s",
		10 * time.Minute: "10m", time.Hour: "1h", 168 * time.Hour: "168h", 90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s",
	} {
		if got := shortDuration(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
