package ocicli

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// words are the arguments that command lines are made of here. Their order is
// part of the fuzz corpus: add at the end only.
var words = []string{
	"create", "run", "restore", "start", "delete", "exec", "kill", "update", "state", "list", "help",
	"c1", "B", "P", "", "-", "--", "..", "a/b",
	"--root", "--root=R", "-root", "--roo", "--log", "--log=L", "--log-format", "--log-format=json", "--rootless",
	"--systemd-cgroup", "--systemd-cgroup=false", "--systemd-cgroup=", "--debug", "-debug=x", "--criu",
	"--cgroup-manager", "--cgroup-manager=disabled", "--version", "-v", "-V", "-v=false", "--help", "-h", "--help=false", "-?", "--usage",
	"--bundle", "--bundle=B", "--bundle=", "-bundle", "-bundle=B", "-b", "-b=B", "--b", "-bB", "--bund", "--bund=B",
	"--config", "-f", "-fF", "--pid-file", "--pid-file=P", "-pid-file", "--pid", "--keep", "--keep=true", "--detach", "--detach=false", "-d", "-d=0", "-db", "-dbB",
	"--force", "-f=true", "--regex", "-fr", "--no-pivot", "--preserve-fds", "1", "--console-socket", "--tcp-established", "--empty-ns",
	"--frob", "--frob=x", "-x", "-1", "---bundle", "-=x", "--=x",
	"--agentbox-config", "--agentbox-config=F", "-agentbox-state", "-agentbox-state=D", "--agentbox-x",
	" --bundle", "--bundle=B ", "\t--root", " create", "-é",
	"-t", "-e", "--cgroup", "-p", "--memory", "-r", "ls", "--log-level", "--no-subreaper", "--hel", "--us", "--foo=bar",
}

// rawWord stands for a word that is not in words.
const rawWord = 0xff

// commandLine makes arguments of fuzzed bytes.
func commandLine(tokens []byte, raw string) []string {
	var args []string
	for _, b := range tokens {
		if b == rawWord {
			args = append(args, raw)
			continue
		}
		args = append(args, words[int(b)%len(words)])
	}
	return args
}

// tokens is the reverse of commandLine for words, as far as it goes.
func tokens(args []string) []byte {
	var b []byte
	for _, arg := range args {
		i := slices.Index(words, arg)
		if i < 0 {
			i = rawWord
		}
		b = append(b, byte(i))
	}
	return b
}

func FuzzParse(f *testing.F) {
	for _, tt := range understood {
		f.Add(tokens(argv(tt.line)), "--pid-file=/p")
	}
	for _, tt := range refused {
		f.Add(tokens(argv(tt.line)), "c1 ")
	}
	f.Fuzz(func(t *testing.T, tokens []byte, raw string) {
		if len(tokens) > 24 || strings.Contains(raw, "\x00") { // no argument holds a NUL
			t.Skip()
		}
		check(t, commandLine(tokens, raw))
	})
}

// TestParseAgainstOracles is FuzzParse with lines that are likely to run.
func TestParseAgainstOracles(t *testing.T) {
	lines, ran, accepted := 5_000, 0, 0
	if testing.Short() {
		lines = 2_000
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range lines {
		args := randomLine(rnd)
		r, a := check(t, args)
		if r {
			ran++
		}
		if a {
			accepted++
		}
		if t.Failed() {
			t.Fatalf("at %q", args)
		}
	}
	t.Logf("%d lines, of which an oracle would create from %d, of which %d were understood", lines, ran, accepted)
	if ran < lines/10 || accepted < ran/2 {
		t.Error("too few lines do anything")
	}
}

// randomLine returns a command line: usually some global flags, a verb, its
// flags and an id, and in every second one some disorder.
func randomLine(rnd *rand.Rand) []string {
	var args []string
	pick := func(from, to string) {
		i, j := slices.Index(words, from), slices.Index(words, to)
		word := words[i+rnd.IntN(j-i+1)]
		args = append(args, word)
		name, _, hasValue, long := split(word)
		f := runFlags.find(name, long)
		if f == nil {
			f = globalFlags.find(name, long)
		}
		if f != nil && f.kind == valued && !hasValue && rnd.IntN(8) > 0 {
			args = append(args, []string{"P", "", "1", "create", "a/b"}[rnd.IntN(5)])
		}
	}
	for range rnd.IntN(3) {
		pick("--root", "--criu")
	}
	if rnd.IntN(4) == 0 {
		args = append(args, "--agentbox-config", "F")
	}
	if rnd.IntN(4) > 0 {
		pick("create", "restore")
	} else {
		pick("start", "state")
	}
	for range rnd.IntN(3) {
		pick("--bundle", "-d=0")
	}
	args = append(args, "c1")
	for range rnd.IntN(2) {
		pick("--bundle", "-d=0")
	}
	if rnd.IntN(16) == 0 { // often no id, but something that may be taken for one
		args = args[:len(args)-1]
		pick("--version", "-dbB")
		args = append(args, "--")
	}
	for range rnd.IntN(3) * rnd.IntN(2) {
		args = slices.Insert(args, rnd.IntN(len(args)+1), words[rnd.IntN(len(words))])
	}
	return args
}

// check holds Parse against everything that is promised about it. It returns
// whether an oracle would create a container, and whether Parse agreed.
func check(t *testing.T, args []string) (creating, agreed bool) {
	t.Helper()
	c, err := Parse(args)
	checkShape(t, args, c, err)
	lowLevel := c.Args
	if err != nil {
		lowLevel = withoutOwn(args)
	}
	for _, o := range oracles {
		w, ran := o.run(lowLevel)
		if !ran {
			continue
		}
		if !creates(w.verb) {
			if err == nil {
				checkOther(t, o.name, args, c, w)
			}
			continue
		}
		creating = true
		if err != nil {
			continue
		}
		agreed = true
		if got := got(c); !c.Creates() || relevant(got) != w {
			t.Errorf("%q: %s would run %+v, Parse says %+v", args, o.name, w, got)
		}
		checkWithFlags(t, o, args, c, w)
	}
	return creating, agreed
}

// relevant drops what the oracles know nothing about.
func relevant(w want) want {
	w.config, w.state, w.spec, w.noCgroups = "", "", "", false
	return w
}

// checkShape checks what needs no oracle.
func checkShape(t *testing.T, args []string, c *Command, err error) {
	t.Helper()
	if c == nil {
		t.Fatalf("%q: no Command", args)
	}
	if c.ID != "" && !ValidID(c.ID) {
		t.Errorf("%q: id %q", args, c.ID)
	}
	var refusal *Error
	switch {
	case err != nil && !errors.As(err, &refusal):
		t.Errorf("%q: error %v is no *Error", args, err)
	case err != nil && refusal.Verb != "" && !creates(refusal.Verb):
		t.Errorf("%q: %v, although nothing would be created", args, err)
	case err != nil:
		return
	case c.Creates() && c.ID == "":
		t.Errorf("%q: %s without an id", args, c.Verb)
	}
	if !slices.Equal(c.Args, withoutOwn(args)) {
		t.Errorf("%q: Args are %q", args, c.Args)
	}
}

// withoutOwn removes our own options in the slow and obvious way.
func withoutOwn(args []string) []string {
	out := []string{}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		bare := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		switch {
		case arg == "--" || len(strings.TrimSpace(arg)) < 2 || strings.TrimSpace(arg)[0] != '-':
			return append(out, args[i:]...)
		case arg != bare && strings.HasPrefix(bare, "agentbox-"):
			if !strings.Contains(arg, "=") {
				i++
			}
		case arg != bare && takesNext(bare, strings.HasPrefix(arg, "--")):
			out = append(out, args[i:min(i+2, len(args))]...)
			i++
		default:
			out = append(out, arg)
		}
	}
	return out
}

func spaced(arg string) bool { return arg != strings.TrimSpace(arg) }

func takesNext(name string, long bool) bool {
	f := globalFlags.find(name, long)
	return f != nil && f.kind == valued
}

// checkOther compares a command that creates nothing. It may be left unread
// where white space stands around a flag, and its id be left open where it
// looks like a flag (urfave/cli v3 takes -1 for an argument), and in an update
// whose flag lacks its value (urfave/cli v1 finds one).
func checkOther(t *testing.T, oracle string, args []string, c *Command, w want) {
	t.Helper()
	same := c.Verb == w.verb && !c.Help
	switch {
	case c.Verb == "" && slices.ContainsFunc(args, spaced):
		same = true
	case w.verb == "list": // not read
	case c.ID == "" && w.id[0] == '-':
		same = c.Verb == w.verb
	case c.ID == "" && (w.verb == "update" || slices.ContainsFunc(args, spaced)):
	case w.verb == "exec" && slices.Contains(args, ""):
		// urfave/cli v3 forgets to stop at the id when an empty argument follows.
		same = same && c.ID == w.id
	default:
		got := relevant(got(c))
		got.bundle, got.keep, got.systemd = w.bundle, w.keep, w.systemd
		same = same && got == w
	}
	if !same {
		t.Errorf("%q: %s would run %+v, Parse says %+v", args, oracle, w, got(c))
	}
}

// checkWithFlags checks that added flags arrive and change nothing else.
func checkWithFlags(t *testing.T, o oracle, args []string, c *Command, w want) {
	t.Helper()
	flags := []string{"--pid-file", "ADDED"}
	if c.PidFile == "" {
		if _, given := c.Flag("pid-file"); !given {
			w.pid = "ADDED"
		}
	}
	if _, given := c.Flag("keep"); c.Verb == "run" && !given {
		w.keep = true
		flags = append(flags, "--keep")
	}
	added := c.WithFlags(flags...)
	if got, ran := o.run(added); !ran || got != w {
		t.Errorf("%q: %s reads WithFlags %q as %+v, %v, want %+v", args, o.name, added, got, ran, w)
	}
}
