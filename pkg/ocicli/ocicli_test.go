package ocicli

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// want is a Command's exported fields without Args, in a form that is short to
// write down.
type want struct {
	verb, id, bundle, pid, spec string
	root, log, format           string
	config, state               string
	detach, keep, force         bool
	systemd, noCgroups, help    bool
}

func got(c *Command) want {
	return want{
		verb: c.Verb, id: c.ID, bundle: c.Bundle, pid: c.PidFile, spec: c.SpecFile,
		root: c.Root, log: c.Log, format: c.LogFormat,
		config: c.Config, state: c.State,
		detach: c.Detach, keep: c.Keep, force: c.Force,
		systemd: c.SystemdCgroup, noCgroups: c.NoCgroups, help: c.Help,
	}
}

// argv makes arguments of a line; ” is an empty one.
func argv(line string) []string {
	args := strings.Fields(line)
	for i := range args {
		if args[i] == "''" {
			args[i] = ""
		}
	}
	return args
}

// understood are command lines and what they mean. They also are the seeds of
// the fuzz targets and of the comparison with the programs.
var understood = []struct {
	name string
	line string
	want want
}{
	// Who really calls.
	{
		"docker", "--root /run/docker/runtime-runc/moby --log /b/log.json --log-format json --systemd-cgroup create --bundle /b --pid-file /b/init.pid c1",
		want{verb: "create", id: "c1", bundle: "/b", pid: "/b/init.pid", root: "/run/docker/runtime-runc/moby", log: "/b/log.json", format: "json", systemd: true},
	},
	{
		"docker's runtimeArgs", "--agentbox-config /etc/a.toml --agentbox-state=/run/a --root /r create --bundle /b --console-socket /s c1",
		want{verb: "create", id: "c1", bundle: "/b", root: "/r", config: "/etc/a.toml", state: "/run/a"},
	},
	{
		"conmon", "--systemd-cgroup --root=/run/runc --log-format=json --log=/l create --bundle /b --pid-file /p --no-pivot --preserve-fds 2 c1",
		want{verb: "create", id: "c1", bundle: "/b", pid: "/p", root: "/run/runc", log: "/l", format: "json", systemd: true},
	},
	{
		"containerd restore", "--root /r restore --image-path /i --work-path /w --tcp-established --file-locks --manage-cgroups-mode soft --empty-ns network --detach --no-subreaper --bundle /b --pid-file /p c1",
		want{verb: "restore", id: "c1", bundle: "/b", pid: "/p", root: "/r", detach: true},
	},
	{"containerd delete", "--root /r delete --force c1", want{verb: "delete", id: "c1", root: "/r", force: true}},
	{
		"containerd exec", "--root /r exec --process /p.json --detach --pid-file /x/e1.pid c1",
		want{verb: "exec", id: "c1", root: "/r", pid: "/x/e1.pid", detach: true},
	},

	// Finding the verb.
	{"nothing", "", want{}},
	{"verbs as values", "--root create --log=create delete --force create", want{verb: "delete", id: "create", root: "create", log: "create", force: true}},
	{"one dash", "-root /r -log=/l run c1", want{verb: "run", id: "c1", root: "/r", log: "/l"}},
	{"flag as value", "--root --log create c1", want{verb: "create", id: "c1", root: "--log"}},
	{"empty value", "--root= --log '' create c1", want{verb: "create", id: "c1"}},
	{"last one wins", "--root a --root b --log x --log= create c1", want{verb: "create", id: "c1", root: "b"}},
	{"end of flags", "--root a -- create c1", want{verb: "create", id: "c1", root: "a"}},
	{"unknown verb", "frobnicate --create create c1", want{verb: "frobnicate"}},
	{"dash as verb", "- create c1", want{verb: "-"}},
	{"empty verb", "'' create c1", want{}},
	{"second end of flags", "-- -- create c1", want{verb: "--"}},
	{"id named like a verb", "create create", want{verb: "create", id: "create"}},
	{"all global flags", "--debug --rootless auto --criu /c --log-level debug start c1", want{verb: "start", id: "c1"}},
	{"unknown global flag, nothing created", "--frob x state c1", want{}},
	{"global flag without its value", "--debug --root", want{}},
	{"bad boolean, nothing created", "--debug=perhaps delete c1", want{}},

	// Booleans, cgroup managers.
	{"boolean off", "--systemd-cgroup --systemd-cgroup=false run --detach=0 --keep=T c1", want{verb: "run", id: "c1", keep: true}},
	{"empty boolean (runc 1.6)", "--systemd-cgroup= create c1", want{verb: "create", id: "c1", systemd: true}},
	{"crun manager systemd", "--cgroup-manager systemd create c1", want{verb: "create", id: "c1", systemd: true}},
	{"crun manager disabled", "--systemd-cgroup --cgroup-manager=disabled create c1", want{verb: "create", id: "c1", noCgroups: true}},
	{"crun manager, last one wins", "--cgroup-manager=disabled --systemd-cgroup create c1", want{verb: "create", id: "c1", systemd: true}},
	{"crun abbreviated globals", "--cg disabled --log-f json --sys create c1", want{verb: "create", id: "c1", format: "json", systemd: true}},

	// The bundle.
	{"no bundle", "run c1", want{verb: "run", id: "c1"}},
	{"-b=B", "run -b=B c1", want{verb: "run", id: "c1", bundle: "B"}},
	{"-b B", "run -b B c1", want{verb: "run", id: "c1", bundle: "B"}},
	{"--b B", "run --b B c1", want{verb: "run", id: "c1", bundle: "B"}},
	{"-bundle B", "create -bundle B c1", want{verb: "create", id: "c1", bundle: "B"}},
	{"-bundle=B", "create -bundle=B c1", want{verb: "create", id: "c1", bundle: "B"}},
	{"--bundle=/x", "create --bundle=/x c1", want{verb: "create", id: "c1", bundle: "/x"}},
	{"flag behind the id", "run c1 -b B", want{verb: "run", id: "c1", bundle: "B"}},
	{"flags on both sides", "run -d c1 --bundle=B --pid-file P", want{verb: "run", id: "c1", bundle: "B", pid: "P", detach: true}},
	{"restore, flag behind the id", "restore c1 -b B", want{verb: "restore", id: "c1", bundle: "B"}},
	{"bundle twice", "run -b A --bundle B c1", want{verb: "run", id: "c1", bundle: "B"}},
	{"empty bundle", "run --bundle= c1", want{verb: "run", id: "c1"}},
	{"bundle with an equals sign", "run --bundle=a=b c1", want{verb: "run", id: "c1", bundle: "a=b"}},
	{"value with a dash", "run --bundle=-B c1", want{verb: "run", id: "c1", bundle: "-B"}},
	{"end of flags, id like a flag", "run -- --keep", want{verb: "run", id: "--keep"}},
	{"end of flags behind the id", "run c1 --", want{verb: "run", id: "c1"}},
	{"id help", "create help", want{verb: "create", id: "help"}},

	// crun's spelling.
	{"crun spec file", "create -f F -b B c1", want{verb: "create", id: "c1", bundle: "B", spec: "F"}},
	{"crun --config", "run --config=F c1", want{verb: "run", id: "c1", spec: "F"}},
	{"crun attached value", "create -bB c1", want{verb: "create", id: "c1", bundle: "B"}},
	{"crun cluster", "run -dbB c1", want{verb: "run", id: "c1", bundle: "B", detach: true}},
	{"crun cluster, value behind", "run -df F c1", want{verb: "run", id: "c1", spec: "F", detach: true}},
	{"crun abbreviation", "run --bund B --det --kee c1", want{verb: "run", id: "c1", bundle: "B", detach: true, keep: true}},

	// Help.
	{"global help", "--help create c1", want{verb: "create", help: true}},
	{"global version", "-v", want{help: true}},
	{"crun version", "-V create c1", want{verb: "create", help: true}},
	{"help verb", "help create", want{verb: "help", help: true}},
	{"h verb", "h create", want{verb: "h", help: true}},
	{"help of create", "create --help", want{verb: "create", help: true}},
	{"help of create with an id", "create c1 -h", want{verb: "create", help: true}},
	{"help switched off", "--help -version=false --help=false create -h=0 c1", want{verb: "create", id: "c1"}},
	{"only version switched off", "--help --version=false create c1", want{verb: "create", help: true}},
	{"crun's -?", "create -? c1", want{verb: "create", help: true}},
	{"crun's usage", "run --usage c1", want{verb: "run", help: true}},
	{"help of delete", "delete c1 --help", want{verb: "delete", id: "c1", help: true}},
	{"help of the executed program", "exec c1 ls --help", want{verb: "exec", id: "c1"}},

	// Verbs that create nothing are never refused.
	{"delete -f", "delete -f c1", want{verb: "delete", id: "c1", force: true}},
	{"delete, flag behind the id", "delete c1 -f", want{verb: "delete", id: "c1", force: true}},
	{"delete by pattern", "delete --regex c.*", want{verb: "delete"}},
	{"delete by pattern in a cluster", "delete -fr c1", want{verb: "delete", force: true}},
	{"delete with an abbreviation", "delete --forc c1", want{verb: "delete", id: "c1", force: true}},
	{"delete with an unknown flag", "delete --frob c1", want{verb: "delete"}},
	{"delete with an unknown flag behind", "delete c1 --frob", want{verb: "delete"}},
	{"delete of a path", "delete ../../etc", want{verb: "delete"}},
	{"delete without an id", "delete", want{verb: "delete"}},
	{"start", "start c1", want{verb: "start", id: "c1"}},
	{"start behind the end of flags", "start -- c1", want{verb: "start", id: "c1"}},
	{"global flag behind the verb (runc 1.6)", "delete --root /r c1", want{verb: "delete", id: "c1", root: "/r"}},
	{"exec with a program's flags", "exec -t -e A=B --cgroup sub c1 sh -d --pid-file P", want{verb: "exec", id: "c1"}},
	{"crun exec", "exec --tty=/dev/pts/0 -uroot c1 sh", want{verb: "exec", id: "c1"}},
	{"update", "update --memory 1g -r - c1", want{verb: "update", id: "c1"}},
	{"update without a value", "update B c1 -r", want{verb: "update"}},
	{"delete, help that is an id to runc", "delete --usage --", want{verb: "delete"}},
	{"update with a value that runc finds", "update --version c1 --memory", want{verb: "update"}},
	{"state", "state c1", want{verb: "state", id: "c1"}},
	{"global flag like a cluster behind the verb (runc 1.6)", "delete -root /r c1", want{verb: "delete", id: "c1", root: "/r"}},
	{"kill is not read", "kill c1 -9", want{verb: "kill"}},
}

func TestParseUnderstands(t *testing.T) {
	for _, tt := range understood {
		t.Run(tt.name, func(t *testing.T) {
			args := argv(tt.line)
			c, err := Parse(args)
			if err != nil {
				t.Fatalf("Parse(%q): %v", args, err)
			}
			if got := got(c); got != tt.want {
				t.Errorf("Parse(%q)\n got %+v\nwant %+v", args, got, tt.want)
			}
			if creates := creates(tt.want.verb) && !tt.want.help; c.Creates() != creates {
				t.Errorf("Creates() = %v", !creates)
			}
		})
	}
}

// refused are command lines that some low-level runtime might start a
// container from, and a part of what is said about each.
var refused = []struct{ name, line, says string }{
	{"unknown global flag", "--frob create c1", `"--frob" is not a flag known here`},
	{"unknown global flag with a value", "--frob x run c1", `"--frob"`},
	{"unknown global flag with another verb first", "--frob state restore", `"--frob"`},
	{"unknown single letter", "-x create c1", `"-x"`},
	{"argp's program name", "--program-name x create c1", `"--program-name"`},
	{"abbreviation of root and rootless", "--roo x create c1", `"--roo"`},
	{"ambiguous abbreviation", "--l x create c1", `"--l"`},
	{"bad boolean", "--debug=perhaps create c1", `"--debug=perhaps" does not take that value`},
	{"too many dashes", "---root x create c1", `"---root"`},

	{"unknown flag", "create --frob c1", `command line of create: "--frob" is not a flag known here`},
	{"unknown flag behind the id", "create c1 --frob", `"--frob"`},
	{"flag of another verb", "create --keep c1", `"--keep"`},
	{"global flag behind the verb (runc 1.6)", "create --root /r c1", `"--root"`},
	{"number", "create -1", `"-1"`},
	{"ambiguous abbreviation of the verb's", "create --p x c1", `"--p"`},
	{"unknown letter in a cluster", "run -dx c1", `"-dx"`},
	{"bad boolean of the verb", "run --detach=perhaps c1", "does not take that value"},
	{"no value", "create --bundle", `"--bundle" needs a value`},
	{"no value, but runc finds one", "create B c1 --bundle", `"--bundle" needs a value`},
	{"no value, but runc finds a flag", "create --frob c1 --pid-file", `"--frob"`},
	{"no value in a cluster", "run -db", `"-db" needs a value`},
	{"flag instead of a value", "create --bundle --pid-file P", `is followed by "--pid-file"`},
	{"dash instead of a value", "create --bundle - c1", `is followed by "-"`},
	{"end of flags instead of a value", "create --bundle -- c1", `is followed by "--"`},

	{"no id", "create", "the container id is missing"},
	{"no id, but crun sees one", "create -bundle B", "the container id is missing"},
	{"help that is an id to runc", "run --usage --", `"--" and a call for help`},
	{"abbreviated help that is an id to runc", "run --hel --", `"--" and a call for help`},
	{"flag that is an id to runc", "create --no-subreaper --", "the container id is missing"},
	{"two ids", "run c1 c2", "exactly one container id"},
	{"restore, one argument behind the id", "restore c1 --bundle=B", `"--bundle=B" stands behind the container id`},
	{"restore, help behind the id", "restore c1 --help", "stands behind the container id"},
	{"empty id", "create ''", "the container id is missing"},
	{"id that is a path", "create ../x", "is not a container id"},
	{"id that is a folder", "create ..", "is not a container id"},
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range refused {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse(argv(tt.line))
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("Parse(%q) = %+v, %v, want an *Error", tt.line, c, err)
			}
			if !strings.Contains(err.Error(), tt.says) || strings.ContainsAny(err.Error(), "\n") {
				t.Errorf("Parse(%q) says %q, want %q in one sentence", tt.line, err, tt.says)
			}
		})
	}
	// urfave/cli v3 trims white space before it looks for a dash.
	for _, args := range [][]string{
		{" --root", "x", "create", "c1"},
		{"create", " --bundle", "B", "c1"},
		{"create", "--bundle=B", "\t-b=C", "c1"},
		{"create", " --", "c1"},
	} {
		if c, err := Parse(args); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", args, c)
		}
	}
}

func TestErrorKeepsWhereToLog(t *testing.T) {
	for _, line := range []string{
		"--log L --log-format json create --frob c1",
		"--frob --log L --log-format json create c1",
		"--frob x --log L --log-format json create --log M",
		"--agentbox-x --log L --log-format json list",
		"--agentbox-x F --log L --log-format json create --log M c1",
		"--agentbox-config= --log L --log-format json create c1",
	} {
		c, err := Parse(argv(line))
		if err == nil || c.Log != "L" || c.LogFormat != "json" {
			t.Errorf("Parse(%q) = %+v, %v", line, c, err)
		}
	}
}

func TestOwnOptions(t *testing.T) {
	for _, tt := range []struct{ name, line, args, config, state string }{
		{"first", "--agentbox-config F --root R create c1", "--root R create c1", "F", ""},
		{"between", "--root R --agentbox-state=D --debug create c1", "--root R --debug create c1", "", "D"},
		{"one dash", "-agentbox-config F -agentbox-state=D state c1", "state c1", "F", "D"},
		{"last one wins", "--agentbox-config F --agentbox-config=G list", "list", "G", ""},
		{"with a door", "--agentbox-door shim --root R list", "--root R list", "", ""},
		{"value like a flag", "--agentbox-config --root list", "list", "--root", ""},
		{"as another's value", "--root --agentbox-config list", "--root --agentbox-config list", "", ""},
		{"behind the verb", "exec c1 ls --agentbox-config F", "exec c1 ls --agentbox-config F", "", ""},
		{"behind an unknown flag", "--frob --agentbox-config F list", "--frob list", "F", ""},
		{"alone", "--agentbox-config F", "", "F", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse(argv(tt.line))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(c.Args, argv(tt.args)) || c.Config != tt.config || c.State != tt.state {
				t.Errorf("got %q config %q state %q", c.Args, c.Config, c.State)
			}
			if door := c.Door == "shim"; door != strings.Contains(tt.line, "door") {
				t.Errorf("the door is %q", c.Door)
			}
		})
	}
	for _, tt := range []struct{ name, line, says string }{
		{"no value", "--agentbox-config", "needs a value"},
		{"empty value", "--agentbox-state= create c1", "needs a value"},
		{"empty next value", "--agentbox-config '' list", "needs a value"},
		{"unknown", "--agentbox-conf F create c1", "is no option of agentbox"},
		{"unknown before anything", "-agentbox-x list", "is no option of agentbox"},
		{"behind a flag of no one", "--agentbox-confi=F list", "is no option of agentbox"},
		{"create refuses it", "create --agentbox-config F c1", "is not a flag known here"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Parse(argv(tt.line)); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Parse(%q): %v, want %q", tt.line, err, tt.says)
			}
		})
	}
}

// crun reads -b=B as the bundle "=B". Usually there is none, and it fails.
func TestSecondReadingExists(t *testing.T) {
	t.Chdir(t.TempDir())
	for line, folder := range map[string]string{
		"run -b=B c1":          "=B",
		"create -bundle=B c1":  "undle=B",
		"create c1 -b=/run/c1": "=/run/c1",
		"restore -bundle B c1": "undle",
	} {
		if _, err := Parse(argv(line)); err != nil {
			t.Errorf("Parse(%q): %v", line, err)
		}
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if c, err := Parse(argv(line)); err == nil {
			t.Errorf("Parse(%q) = %+v although %s exists", line, c, folder)
		}
	}
}

func TestWithFlags(t *testing.T) {
	for _, tt := range []struct{ name, line, want string }{
		{"no flags", "--root R run c1", "--root R run --keep --pid-file P c1"},
		{"flags first", "run -b B c1", "run --keep --pid-file P -b B c1"},
		{"id first", "run c1 -b B", "run c1 --keep --pid-file P -b B"},
		{"end of flags", "run -- c1", "run --keep --pid-file P -- c1"},
		{"end of flags behind the id", "run c1 --", "run c1 --keep --pid-file P --"},
		{"exec", "exec c1 ls -l", "exec --keep --pid-file P c1 ls -l"},
		{"own option", "--agentbox-config F run -d c1", "run --keep --pid-file P -d c1"},
		{"verb that is not read", "ps c1", "ps --keep --pid-file P c1"},
		{"no verb", "--root R", "--root R"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse(argv(tt.line))
			if err != nil {
				t.Fatal(err)
			}
			before := slices.Clone(c.Args)
			if got := c.WithFlags("--keep", "--pid-file", "P"); !slices.Equal(got, argv(tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if !slices.Equal(c.Args, before) {
				t.Errorf("Args became %q", c.Args)
			}
		})
	}
}

func TestGlobals(t *testing.T) {
	for line, want := range map[string]string{
		"--agentbox-config F --root R --log L create -b B c1": "--root R --log L",
		"state c1":        "",
		"--root R":        "--root R",
		"--debug -- list": "--debug --",
	} {
		c, err := Parse(argv(line))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Globals(); !slices.Equal(got, argv(want)) {
			t.Errorf("Globals of %q = %q, want %q", line, got, want)
		}
	}
}

func TestFlag(t *testing.T) {
	c, err := Parse(argv("update --memory 1g --memory=2g -r - --cpu-share= c1"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"memory": "2g", "resources": "-", "cpu-share": ""} {
		if got, ok := c.Flag(name); got != want || !ok {
			t.Errorf("Flag(%s) = %q, %v", name, got, ok)
		}
	}
	if got, ok := c.Flag("pids-limit"); ok {
		t.Errorf("Flag(pids-limit) = %q", got)
	}
}

func TestValidID(t *testing.T) {
	for _, id := range []string{"a", "A-1_b+c.d", "...", "-", "--keep", ".a", strings.Repeat("f", 64)} {
		if !ValidID(id) {
			t.Errorf("%q is a container id", id)
		}
	}
	for _, id := range []string{"", ".", "..", "a/b", "/", "a b", "ä", "a\x00", "a\n", "a=b", `a\b`} {
		if ValidID(id) {
			t.Errorf("%q is no container id", id)
		}
	}
}

// Parse stands in front of every container start.
func TestParseAllocatesLittle(t *testing.T) {
	args := argv(understood[0].line)
	if n := testing.AllocsPerRun(100, func() { _, _ = Parse(args) }); n > 6 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParse(b *testing.B) {
	args := argv(understood[0].line)
	for b.Loop() {
		_, _ = Parse(args)
	}
}
