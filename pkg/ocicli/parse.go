package ocicli

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Error is a command line that is not handed on: a mistake in our own options,
// or a create, run or restore that cannot be understood without a guess.
type Error struct {
	Verb   string // the verb, "" when the mistake stands in front of it
	Token  string // the argument at fault, "" when one is missing
	Reason string // what is wrong and what to do
}

// Error returns one sentence.
func (e *Error) Error() string {
	sentence := "command line: "
	if e.Verb != "" {
		sentence = "command line of " + e.Verb + ": "
	}
	if e.Token != "" {
		sentence += strconv.Quote(e.Token) + " "
	}
	return sentence + e.Reason
}

// Parse takes the arguments of the program (without its name) apart.
//
// Our own options, --agentbox-config, --agentbox-state and --agentbox-door with
// one or two dashes and their value behind "=" or in the next argument, may
// stand anywhere in front of the verb: Docker puts runtimeArgs before the global
// flags that it adds itself. Behind the verb, and behind "--", they are none.
//
// The error is an [*Error]. The Command is never nil; with an error only the
// fields of the global flags mean anything, so that the error can be logged
// where the caller looks. Of other verbs than create, run and
// restore nothing is refused: what cannot be read is left to the low-level
// runtime, which certainly knows better.
func Parse(args []string) (*Command, error) {
	p := parser{Command: &Command{Args: make([]string, 0, len(args)), verb: -1}}
	rest, err := p.globals(args)
	if err != nil {
		return p.Command, err
	}
	p.Args = append(p.Args, rest...)
	if p.unknown != "" || len(rest) == 0 {
		return p.Command, nil
	}
	p.Verb = rest[0]
	p.verb = len(p.Args) - len(rest)
	err = p.behindVerb(rest[1:])
	if p.insert == 0 {
		p.insert = p.verb + 1
	}
	return p.Command, err
}

// parser is the state of one Parse.
type parser struct {
	*Command
	unknown string // the first global flag that could not be read
	count   int    // the number of operands behind the verb
	id      string // the first of them
	first   int    // its index behind the verb

	help, version, usage bool // what Help is made of
}

// globals reads what stands in front of the verb into Args and the fields, and
// returns the rest. It goes on behind a mistake, up to the verb that is
// refused, because --log says where to report it.
func (p *parser) globals(args []string) (rest []string, err error) {
	for len(args) > 0 {
		token := args[0]
		if name, _, _, _ := split(token); strings.HasPrefix(name, "agentbox-") {
			tokens, mistake := p.ownOption(args)
			err = cmp.Or(err, mistake)
			args = args[tokens:]
			continue
		}
		if token == "--" {
			p.Args = append(p.Args, token)
			return args[1:], err
		}
		if !looksLikeFlag(token) && (err == nil || creates(token)) {
			return args, err
		}
		tokens, problem := globalFlags.read(args, p.setGlobal)
		if problem != "" && p.unknown == "" {
			p.unknown = token
			err = cmp.Or(err, createsUnknown(problem, args))
		}
		p.Args = append(p.Args, args[:tokens]...)
		args = args[tokens:]
	}
	return nil, err
}

// createsUnknown returns an error if a create, run or restore stands somewhere
// behind the flag at the beginning of args, which could not be read.
func createsUnknown(problem string, args []string) error {
	i := slices.IndexFunc(args, creates)
	if i < 0 {
		return nil
	}
	return &Error{Token: args[0], Reason: problem + ", so nothing says what the " + args[i] +
		" behind it would start: leave it out, or spell it as in the help of the low-level runtime"}
}

// ownOption reads the option of ours at the beginning of args and returns how
// many arguments it took.
func (p *parser) ownOption(args []string) (tokens int, err error) {
	name, value, hasValue, _ := split(args[0])
	tokens = 1
	if !hasValue && len(args) > 1 {
		tokens, value = 2, args[1]
	}
	to, known := map[string]*string{"agentbox-config": &p.Config, "agentbox-state": &p.State, "agentbox-door": &p.Door}[name]
	if !known {
		return 1, &Error{Token: args[0], Reason: "is no option of agentbox: there are --agentbox-config FILE, --agentbox-state DIR and --agentbox-door NAME"}
	}
	if value == "" {
		return tokens, &Error{Token: args[0], Reason: "needs a value: give it behind the option"}
	}
	*to = value
	return tokens, nil
}

// setGlobal records one global flag.
func (p *parser) setGlobal(f *flag, value string) {
	switch f.name {
	case "root":
		p.Root = value
	case "log":
		p.Log = value
	case "log-format":
		p.LogFormat = value
	case "systemd-cgroup":
		p.SystemdCgroup, p.NoCgroups = isTrue(value), false
	case "cgroup-manager":
		p.SystemdCgroup, p.NoCgroups = value == "systemd", value == "disabled"
	}
	p.setHelp(f, value)
}

// setVerb records one flag of the verb.
func (p *parser) setVerb(f *flag, value string) {
	p.given = append(p.given, givenFlag{f.name, value})
	switch f.name {
	case "bundle":
		p.Bundle = value
	case "config":
		p.SpecFile = value
	case "pid-file":
		p.PidFile = value
	case "detach":
		p.Detach = isTrue(value)
	case "keep":
		p.Keep = isTrue(value)
	case "force":
		p.Force = isTrue(value)
	}
	p.setHelp(f, value)
}

// setHelp records a flag that prints something instead of running the verb.
// urfave/cli lets a later --help=false take an earlier --help back.
func (p *parser) setHelp(f *flag, value string) {
	switch f.name {
	case "help":
		p.help = isTrue(value)
	case "version":
		p.version = isTrue(value)
	case "usage":
		p.usage = isTrue(value)
	}
	p.Help = p.help || p.version || p.usage
}

func isTrue(value string) bool {
	on, _ := strconv.ParseBool(value) // read has checked it
	return on
}

// behindVerb reads the arguments behind the verb.
func (p *parser) behindVerb(args []string) error {
	if p.Verb == "help" || p.Verb == "h" { // urfave/cli's own; crun has no such verb
		p.Help = true
	}
	if p.Help {
		return nil
	}
	flags := verbFlags(p.Verb)
	if flags == nil {
		return nil
	}
	if creates(p.Verb) {
		return p.strict(flags, args)
	}
	p.lenient(flags, args)
	return nil
}

// operand counts an operand; the first one is the id.
func (p *parser) operand(index int, token string) {
	if p.count == 0 {
		p.id, p.first = token, index
	}
	p.count++
}

// strict reads a create, run or restore, and refuses what the low-level
// runtimes that would run it do not all read in the same way.
func (p *parser) strict(flags flagTable, args []string) error {
	ended := false // by "--"
	for i := 0; i < len(args); i++ {
		token := args[i]
		if !looksLikeFlag(token) {
			p.operand(i, token)
			continue
		}
		p.insertAt(len(args) - i)
		if token == "--" {
			ended = true
			for j := i + 1; j < len(args); j++ {
				p.operand(j, args[j])
			}
			break
		}
		tokens, problem := flags.read(args[i:], p.setVerb)
		// Not even a missing value makes runc fail for certain: urfave/cli v1
		// runs `create A ID --bundle` as `create --bundle A ID`.
		if problem != "" {
			return p.refuse(token, problem+": leave it out, or spell it as in the help of the low-level runtime")
		}
		// Some urfave/cli v1 do not take what begins with a dash for a value
		// when they sort flags to the front.
		if tokens == 2 && strings.HasPrefix(args[i+1], "-") {
			return p.refuse(token, "is followed by "+strconv.Quote(args[i+1])+" instead of a value: write the value behind an equals sign if it begins with a dash")
		}
		if other := flags.otherValue(token); other != "" && exists(other) {
			return p.refuse(token, "means "+strconv.Quote(other)+", which exists, to crun and something else to runc: write --bundle=PATH")
		}
		i += tokens - 1
	}
	// crun reads flags only in front of the id, and of restore alone it
	// ignores one argument behind it.
	if p.Verb == "restore" && p.count > 0 && len(args)-p.first == 2 {
		return p.refuse(args[p.first+1], "stands behind the container id, where crun ignores it: put it in front")
	}
	switch {
	case p.Help && ended:
		// urfave/cli v1 moves the "--" in front of a flag that it does not
		// know: `run --usage --` runs a container of the name "--usage".
		return p.refuse("--", "and a call for help do not go together: leave one of them out")
	case p.Help:
		return nil
	case p.count > 1:
		return p.refuse("", "exactly one container id is expected and "+strconv.Itoa(p.count)+" arguments are no flags")
	case p.id == "":
		return p.refuse("", "the container id is missing")
	case !ValidID(p.id):
		return p.refuse(p.id, "is not a container id: use letters, digits and _+-. only")
	}
	p.ID = p.id
	return nil
}

// lenient reads a verb that makes no container. Its id and whether it is help
// are left open when a flag could not be read: the low-level runtime then
// fails, or moves arguments about as urfave/cli v1 does with a flag that lacks
// its value (`update --version ID --memory` is `update --memory --version ID`).
func (p *parser) lenient(flags flagTable, args []string) {
	open := false
	for i := 0; i < len(args); i++ {
		token := args[i]
		if !looksLikeFlag(token) {
			p.operand(i, token)
			if p.Verb == "exec" || p.Verb == "ps" { // what follows is for another program
				break
			}
			continue
		}
		p.insertAt(len(args) - i)
		if token == "--" {
			open = open || p.Help // see strict
			if i+1 < len(args) {
				p.operand(i+1, args[i+1])
			}
			break
		}
		tokens, problem := flags.read(args[i:], p.setVerb)
		if problem != "" { // urfave/cli v3 takes global flags here too
			tokens, problem = globalFlags.read(args[i:], p.setGlobal)
		}
		open = open || problem != ""
		i += tokens - 1
	}
	if open {
		p.Help = false // or its --help is the value that was found
		return
	}
	if _, pattern := p.Flag("regex"); !pattern && ValidID(p.id) {
		p.ID = p.id
	}
}

// insertAt makes WithFlags insert where only fromEnd arguments remain, if that
// is the first flag of the verb.
func (p *parser) insertAt(fromEnd int) {
	if p.insert == 0 {
		p.insert = len(p.Args) - fromEnd
	}
}

func (p *parser) refuse(token, reason string) error {
	return &Error{Verb: p.Verb, Token: token, Reason: reason}
}

// exists says whether path names something, seen from the current folder.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
