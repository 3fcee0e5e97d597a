package ocicli

import (
	"context"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	cli1 "github.com/urfave/cli"
	cli3 "github.com/urfave/cli/v3"
)

// The oracles are runc's own parsers: programs built on the two libraries that
// runc was built on, with runc's flags, that report what they would do.

// runcFlags are the flags of runc 1.3 to 1.6, by verb ("" for the global
// ones), copied from its sources: name[,alias] and s for a string, b for a
// boolean, i for an integer, l for a list.
var runcFlags = map[string]string{
	"": "debug:b log:s log-format:s root:s criu:s systemd-cgroup:b rootless:s",
	"create": "bundle,b:s console-socket:s pidfd-socket:s pid-file:s no-pivot:b no-new-keyring:b " +
		"preserve-fds:i",
	"run": "bundle,b:s console-socket:s pidfd-socket:s detach,d:b keep:b pid-file:s no-subreaper:b " +
		"no-pivot:b no-new-keyring:b preserve-fds:i",
	"restore": "console-socket:s image-path:s work-path:s tcp-established:b ext-unix-sk:b shell-job:b " +
		"file-locks:b manage-cgroups-mode:s bundle,b:s detach,d:b pid-file:s no-subreaper:b no-pivot:b " +
		"empty-ns:l auto-dedup:b lazy-pages:b lsm-profile:s lsm-mount-context:s",
	"start":  "",
	"state":  "",
	"delete": "force,f:b",
	"exec": "console-socket:s pidfd-socket:s cwd:s env,e:l tty,t:b user,u:s additional-gids,g:l process,p:s " +
		"detach,d:b pid-file:s process-label:s apparmor:s no-new-privs:b cap,c:l preserve-fds:i cgroup:l " +
		"ignore-paused:b",
	"update": "resources,r:s blkio-weight:i cpu-period:s cpu-quota:s cpu-burst:s cpu-share:s cpu-rt-period:s " +
		"cpu-rt-runtime:s cpuset-cpus:s cpuset-mems:s kernel-memory:s kernel-memory-tcp:s memory:s cpu-idle:s " +
		"memory-reservation:s memory-swap:s pids-limit:i l3-cache-schema:s mem-bw-schema:s",
	"list": "format,f:s quiet,q:b",
}

type flagSpec struct {
	name  string
	alias []string
	kind  byte
}

func flagSpecs(verb string) []flagSpec {
	var specs []flagSpec
	for field := range strings.FieldsSeq(runcFlags[verb]) {
		names, kind, _ := strings.Cut(field, ":")
		all := strings.Split(names, ",")
		specs = append(specs, flagSpec{all[0], all[1:], kind[0]})
	}
	return specs
}

// verbsIn returns the verbs that could be run by args: the oracles leave out
// all others, for they are rebuilt for every command line.
func verbsIn(args []string) []string {
	var verbs []string
	for verb := range runcFlags {
		if verb != "" && slices.Contains(args, verb) {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

var runcID = regexp.MustCompile(`^[\w+\-.]+$`)

// act decides what runc's action does with its arguments: the id, and whether
// it gets so far as to use it. exec wants one or more, all others exactly one.
func act(verb string, args []string) (id string, runs bool) {
	if verb == "list" {
		return "", true
	}
	if len(args) < 1 || len(args) > 1 && verb != "exec" {
		return "", false
	}
	id = args[0]
	return id, runcID.MatchString(id) && path.Clean("/"+id) == "/"+id
}

// oracle runs a parser and returns what it would do, and whether it would do
// anything.
type oracle struct {
	name string
	run  func(args []string) (want, bool)
}

var oracles = []oracle{
	{"urfave/cli v1", runV1},
	{"urfave/cli v3", runV3},
}

func runV1(args []string) (w want, ran bool) {
	app := cli1.NewApp()
	app.Name, app.Version = "runc", "1.4"
	app.Writer, app.ErrWriter = io.Discard, io.Discard
	app.ExitErrHandler = func(*cli1.Context, error) {}
	app.Flags = v1Flags("")
	for _, verb := range verbsIn(args) {
		app.Commands = append(app.Commands, cli1.Command{
			Name: verb, Flags: v1Flags(verb), SkipArgReorder: verb == "exec",
			Action: func(c *cli1.Context) error {
				id, ok := act(verb, c.Args())
				ran = ok
				w = want{
					verb: verb, id: id,
					bundle: c.String("bundle"), pid: c.String("pid-file"),
					detach: c.Bool("detach"), keep: c.Bool("keep"), force: c.Bool("force"),
					root: c.GlobalString("root"), log: c.GlobalString("log"), format: c.GlobalString("log-format"),
					systemd: c.GlobalBool("systemd-cgroup"),
				}
				return nil
			},
		})
	}
	_ = app.Run(append([]string{"runc"}, args...))
	return w, ran
}

func v1Flags(verb string) []cli1.Flag {
	var flags []cli1.Flag
	for _, s := range flagSpecs(verb) {
		name := strings.Join(append([]string{s.name}, s.alias...), ", ")
		switch s.kind {
		case 's':
			flags = append(flags, cli1.StringFlag{Name: name})
		case 'b':
			flags = append(flags, cli1.BoolFlag{Name: name})
		case 'i':
			flags = append(flags, cli1.IntFlag{Name: name})
		case 'l':
			flags = append(flags, cli1.StringSliceFlag{Name: name})
		}
	}
	return flags
}

func runV3(args []string) (w want, ran bool) {
	app := &cli3.Command{
		Name: "runc", Version: "1.6", Writer: io.Discard, ErrWriter: io.Discard,
		ExitErrHandler: func(context.Context, *cli3.Command, error) {},
		Flags:          v3Flags(""),
	}
	for _, verb := range verbsIn(args) {
		command := &cli3.Command{
			Name: verb, Flags: v3Flags(verb),
			Action: func(_ context.Context, c *cli3.Command) error {
				id, ok := act(verb, c.Args().Slice())
				ran = ok
				w = want{
					verb: verb, id: id,
					bundle: c.String("bundle"), pid: c.String("pid-file"),
					detach: c.Bool("detach"), keep: c.Bool("keep"), force: c.Bool("force"),
					root: c.String("root"), log: c.String("log"), format: c.String("log-format"),
					systemd: c.Bool("systemd-cgroup"),
				}
				return nil
			},
		}
		if verb == "exec" {
			command.StopOnNthArg = new(1)
		}
		app.Commands = append(app.Commands, command)
	}
	_ = app.Run(context.Background(), append([]string{"runc"}, args...))
	return w, ran
}

func v3Flags(verb string) []cli3.Flag {
	var flags []cli3.Flag
	for _, s := range flagSpecs(verb) {
		switch s.kind {
		case 's':
			flags = append(flags, &cli3.StringFlag{Name: s.name, Aliases: s.alias})
		case 'b':
			flags = append(flags, &cli3.BoolFlag{Name: s.name, Aliases: s.alias})
		case 'i':
			flags = append(flags, &cli3.IntFlag{Name: s.name, Aliases: s.alias})
		case 'l':
			flags = append(flags, &cli3.StringSliceFlag{Name: s.name, Aliases: s.alias})
		}
	}
	return flags
}
