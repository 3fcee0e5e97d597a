// Package ocicli models the command line of OCI runtimes, so that a program
// standing in front of one knows what the one behind it is about to do.
//
// There is no standard for that command line, only programs that are called in
// the same way: runc up to 1.5 parses with urfave/cli v1 (Go's flag package
// after moving flags in front of arguments), runc from 1.6 on with urfave/cli
// v3, and crun with glibc's argp, in order. [Parse] is called before anything
// says which of them is behind, so it reads the union of the three grammars
// under one rule: a create, run or restore is either understood as every
// low-level runtime that would run it understands it, or refused. Starting a
// container from a bundle that nobody looked at is the one mistake that this
// package must not make.
//
// Sources: runc(8) and its verbs' pages, the flag tables of runc 1.1 to
// 1.6.0-rc.1 and of crun 0.10 to 1.29, urfave/cli v1.22.1 to v1.22.17 and
// v3.14.0, and the argp and getopt_long chapters of the glibc manual.
package ocicli

import (
	"slices"
)

// Command is one command line, taken apart.
//
// What follows the verb is read for create, run, restore, start, delete, exec,
// update, state, kill, pause, resume, ps and events. For any other verb only the
// fields of the global flags are filled.
type Command struct {
	// Config, State and Door are the values of --agentbox-config,
	// --agentbox-state and --agentbox-door, "" when not given. They are not in
	// Args.
	Config, State, Door string

	// Args is what the low-level runtime gets: the arguments without our own
	// options, otherwise byte for byte.
	Args []string

	// Verb is the first argument that is no global flag, as given. It is ""
	// when there is none, and when a global flag could not be read: hand such
	// a command line over as it is; no create, run or restore is in it.
	Verb string

	// Help says that the low-level runtime will print a help text or its
	// version (or an error) and do nothing else.
	Help bool

	// Root, Log and LogFormat are the low-level runtime's flags of the same
	// names, "" when not given. (Up to 1.20, crun takes --rootless for another
	// --root.)
	Root, Log, LogFormat string

	// SystemdCgroup is runc's and crun's --systemd-cgroup, and crun's
	// --cgroup-manager=systemd. NoCgroups is crun's
	// --cgroup-manager=disabled: that container would have no cgroup to
	// limit. The last flag given wins.
	SystemdCgroup, NoCgroups bool

	// ID is the container id. It always satisfies [ValidID] or is "": when
	// none was given, when the one given is not valid, when a flag of the verb
	// could not be read, and when it is a pattern (crun delete --regex).
	// After a create, run or restore that neither failed nor is Help it is
	// never "". An update without one may still change limits: whoever clamps
	// them should refuse it.
	ID string

	// Bundle is --bundle, "" meaning the current folder.
	Bundle string

	// SpecFile is crun's -f/--config of create and run, "" meaning the
	// bundle's config.json. crun resolves a relative name against its
	// current folder, not against the bundle, unless it is just
	// "config.json". runc has no such flag and fails.
	SpecFile string

	// PidFile, Detach, Keep (run) and Force (delete) are the flags of the
	// same names.
	PidFile             string
	Detach, Keep, Force bool

	verb   int // index of the verb in Args, -1 without one
	insert int // index in Args where WithFlags inserts
	given  []givenFlag
}

// givenFlag is one flag that was given to the verb, under its long name.
type givenFlag struct{ name, value string }

// Creates says whether the command makes a container from a bundle: create,
// run or restore, and not just their help text.
func (c *Command) Creates() bool { return !c.Help && creates(c.Verb) }

func creates(verb string) bool {
	return verb == "create" || verb == "run" || verb == "restore"
}

// Flag returns the value of a flag given after the verb, by its long name
// ("cgroup", "memory", "resources"), and whether it was given. As in all
// low-level runtimes the last one wins; a boolean's value is "true" or what
// followed its "=".
func (c *Command) Flag(name string) (value string, ok bool) {
	for _, g := range slices.Backward(c.given) {
		if g.name == name {
			return g.value, true
		}
	}
	return "", false
}

// Globals returns the arguments in front of the verb, to which the caller can
// append a verb of its own that looks at the same containers. Without a verb
// it returns Args.
func (c *Command) Globals() []string {
	if c.verb < 0 {
		return slices.Clone(c.Args)
	}
	return slices.Clone(c.Args[:c.verb])
}

// WithFlags returns Args with flags of the verb added, for example "--keep" or
// "--pid-file", "/run/x". Without a verb it returns Args.
//
// They go in front of the verb's first flag, and right behind the verb where
// there is none: urfave/cli v1 takes the argument behind any flag for its
// value when it sorts flags to the front, so that `run --keep ID --bundle B`
// fails in runc where `run ID --keep --bundle B` works.
func (c *Command) WithFlags(flags ...string) []string {
	if c.verb < 0 {
		return slices.Clone(c.Args)
	}
	return slices.Concat(c.Args[:c.insert], flags, c.Args[c.insert:])
}

// ValidID says whether id may name a container: ASCII letters, digits and
// "_+-.", but not "." or "..". That is the rule of runc (validateID in
// libcontainer); crun forbids a little more. A valid id is a single name, so
// it can be joined to a folder.
func ValidID(id string) bool {
	if id == "" || id == "." || id == ".." {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '_', c == '+', c == '-', c == '.':
		default:
			return false
		}
	}
	return true
}
