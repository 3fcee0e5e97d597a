package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/engine"
	"github.com/agentbox/agentbox/test/vm/internal/guest"
	"github.com/agentbox/agentbox/test/vm/internal/image"
	"github.com/agentbox/agentbox/test/vm/internal/payload"
)

// minimumMemory is what containerd, dockerd and one container need, in MiB.
const minimumMemory = 512

// options are the flags of all commands; which a command knows is up to its
// flag set.
type options struct {
	engine      string
	suite       string // one of image.Suites
	init        string // one of guest.Inits
	mirror      string
	timeout     time.Duration // 0: the engine's default
	cpus        int           // 0: the engine's default
	memoryMiB   int
	spareMiB    int // 0: no spare disk
	dataFS      string
	cgroup      string // one of guest.CgroupVariants
	out         string
	noDocker    bool
	verbose     bool
	kernelArgs  []string
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
	set.StringVar(&o.suite, "suite", image.Suites[0], "")
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
	set.StringVar(&o.init, "init", guest.Inits[0], "")
	set.StringVar(&o.cgroup, "cgroup", guest.CgroupVariants[0], "")
	set.BoolVar(&o.noDocker, "no-docker", false, "")
	set.BoolVar(&o.verbose, "v", false, "")
	set.Func("mem", "", func(text string) (err error) {
		o.memoryMiB, err = parseMiB(text)
		return err
	})
	set.Func("spare", "", func(text string) (err error) {
		o.spareMiB, err = parseMiB(text)
		return err
	})
	set.Func("kernel-arg", "", func(text string) error {
		if err := checkKernelArg(text); err != nil {
			return err
		}
		o.kernelArgs = append(o.kernelArgs, text)
		return nil
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
	case !slices.Contains(image.Suites, o.suite):
		return fmt.Errorf("-suite is one of %s, not %q", strings.Join(image.Suites, ", "), o.suite)
	case command == "image":
		return nil
	case o.dataFS != "ext4" && o.dataFS != "xfs":
		return fmt.Errorf("-data-fs is ext4 or xfs, not %q", o.dataFS)
	case !slices.Contains(guest.CgroupVariants, o.cgroup):
		return fmt.Errorf("-cgroup is one of %s, not %q", strings.Join(guest.CgroupVariants, ", "), o.cgroup)
	case !slices.Contains(guest.Inits, o.init):
		return fmt.Errorf("-init is one of %s, not %q", strings.Join(guest.Inits, ", "), o.init)
	case o.init == guest.Systemd && o.cgroup != "v2":
		return fmt.Errorf("-init systemd mounts cgroup v2 by itself: -cgroup %s needs -init script", o.cgroup)
	case o.cgroup == "none" && !o.noDocker:
		return errors.New("-cgroup none needs -no-docker: dockerd does not start without cgroups")
	case o.cpus < 0 || o.timeout < 0:
		return errors.New("-cpus and -timeout cannot be negative")
	case o.memoryMiB < minimumMemory:
		return fmt.Errorf("-mem must be at least %dM", minimumMemory)
	}
	_, err := engine.New(o.engine)
	return err
}

// checkKernelArg returns an error for text that is not one word of a kernel's
// command line. Options of user-mode Linux itself ("--help") and the words that
// the harness talks to init with are none either.
func checkKernelArg(text string) error {
	switch {
	case len(strings.Fields(text)) != 1 || strings.TrimSpace(text) != text:
		return fmt.Errorf("%q is not one word", text)
	case strings.HasPrefix(text, "-"):
		return fmt.Errorf("%q is an option, not a word for the kernel", text)
	case strings.HasPrefix(text, "abvm_"):
		return fmt.Errorf("%q belongs to the harness", text)
	}
	return nil
}

// parseMiB reads a size such as "2G", "2048M" or "2048" (MiB).
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
		return 0, fmt.Errorf("%q is not a number with M or G", text)
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
