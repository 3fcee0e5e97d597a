package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/engine"
	"github.com/agentbox/agentbox/test/vm/internal/payload"
)

// minimumMemory is what containerd, dockerd and one container need, in MiB.
const minimumMemory = 512

// options are the flags of all commands; which a command knows is up to its
// flag set.
type options struct {
	engine      string
	mirror      string
	timeout     time.Duration // 0: the engine's default
	cpus        int           // 0: the engine's default
	memoryMiB   int
	dataFS      string
	out         string
	noDocker    bool
	verbose     bool
	environment []string
	payload     []payload.Item
	command     []string
}

// parse reads the arguments of one command. The error of a wrong flag is a
// sentence; flag.ErrHelp means that help was asked for.
func parse(command string, arguments []string) (options, error) {
	o := options{memoryMiB: 3072}
	set := flag.NewFlagSet(command, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&o.mirror, "mirror", "", "")
	if command != "image" {
		guestFlags(set, &o)
	}
	if command == "run" {
		set.DurationVar(&o.timeout, "timeout", 0, "")
		set.StringVar(&o.out, "out", "", "")
	}
	if err := set.Parse(arguments); err != nil {
		return options{}, err
	}
	o.command = set.Args()
	return o, o.check(command)
}

func guestFlags(set *flag.FlagSet, o *options) {
	set.StringVar(&o.engine, "engine", engine.Names[0], "")
	set.IntVar(&o.cpus, "cpus", 0, "")
	set.StringVar(&o.dataFS, "data-fs", "ext4", "")
	set.BoolVar(&o.noDocker, "no-docker", false, "")
	set.BoolVar(&o.verbose, "v", false, "")
	set.Func("mem", "", func(text string) (err error) {
		o.memoryMiB, err = parseMiB(text)
		return err
	})
	set.Func("env", "", func(text string) error {
		if key, _, ok := strings.Cut(text, "="); !ok || !isVariableName(key) {
			return fmt.Errorf("%q is not KEY=VALUE", text)
		}
		o.environment = append(o.environment, text)
		return nil
	})
	set.Func("payload", "", func(text string) error {
		item, err := payload.ParseItem(text)
		o.payload = append(o.payload, item)
		return err
	})
}

func (o options) check(command string) error {
	switch {
	case command == "run" && len(o.command) == 0:
		return errors.New("run needs a command after --")
	case command != "run" && len(o.command) > 0:
		return fmt.Errorf("%s takes no arguments, but got %q", command, o.command)
	case command == "image":
		return nil
	case o.dataFS != "ext4" && o.dataFS != "xfs":
		return fmt.Errorf("-data-fs is ext4 or xfs, not %q", o.dataFS)
	case o.cpus < 0 || o.timeout < 0:
		return errors.New("-cpus and -timeout cannot be negative")
	case o.memoryMiB < minimumMemory:
		return fmt.Errorf("-mem must be at least %dM", minimumMemory)
	}
	_, err := engine.New(o.engine)
	return err
}

// parseMiB reads a memory size such as "2G", "2048M" or "2048" (MiB).
func parseMiB(text string) (int, error) {
	unit := 1
	digits := strings.ToUpper(text)
	digits = strings.TrimSuffix(strings.TrimSuffix(digits, "B"), "I")
	switch {
	case strings.HasSuffix(digits, "G"):
		unit, digits = 1024, digits[:len(digits)-1]
	case strings.HasSuffix(digits, "M"):
		digits = digits[:len(digits)-1]
	}
	value, err := strconv.ParseUint(digits, 10, 20)
	if err != nil {
		return 0, fmt.Errorf("memory size %q is not a number with M or G", text)
	}
	return int(value) * unit, nil
}

// isVariableName says whether a shell accepts name after "export".
func isVariableName(name string) bool {
	for i, c := range name {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
