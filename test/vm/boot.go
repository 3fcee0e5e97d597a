package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/engine"
	"github.com/agentbox/agentbox/test/vm/internal/guest"
	"github.com/agentbox/agentbox/test/vm/internal/host"
	"github.com/agentbox/agentbox/test/vm/internal/image"
	"github.com/agentbox/agentbox/test/vm/internal/payload"
)

// Sizes of the guest's disks. The files are sparse.
const (
	dataSize = 8 << 30
	swapSize = 256 << 20
	outSize  = 4 << 30
)

// powerOffGrace is how long a guest may take to stop after its last word, before
// it is killed. Everything that matters is on the host by then.
const powerOffGrace = 5 * time.Second

// boot starts a guest, runs the command or a shell in it and returns the exit
// code of that.
func boot(ctx context.Context, o options, shell bool, stdout io.Writer, progress *host.Progress) (code int, err error) {
	chosen, err := engine.New(o.engine)
	if err != nil {
		return 0, err
	}
	guestImage, err := ensureImage(ctx, o.suite, o.mirror, progress)
	if err != nil {
		return 0, err
	}
	defer guestImage.Close()
	if err := chosen.Prepare(ctx, progress, guestImage); err != nil {
		return 0, err
	}
	versions, err := guestImage.Versions()
	if err != nil {
		return 0, err
	}
	defaults := chosen.Defaults()
	if o.cpus == 0 {
		o.cpus = defaults.CPUs
	}
	if o.timeout == 0 && !shell {
		o.timeout = defaults.Timeout
	}

	// The guest's memory and what it writes to its disks end up here.
	scratch, err := host.NewScratch(host.Need{Bytes: (uint64(o.memoryMiB) + 1024) << 20})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, scratch.Remove()) }()

	var console *terminal
	if shell {
		if console, err = openTerminal(); err != nil {
			return 0, err
		}
		defer console.restore()
		o.payload = addBuiltBinaries(o.payload)
	}
	machine, err := newMachine(o, guestImage, scratch.Path, console)
	if err != nil {
		return 0, err
	}
	command, err := chosen.Command(machine)
	if err != nil {
		return 0, err
	}
	s := &session{
		options:     o,
		stdout:      stdout,
		progress:    progress,
		headline:    []string{"host: " + host.Facts(os.DirFS("/")), "image: " + versions},
		bootTimeout: defaults.BootTimeout,
	}
	if len(o.kernelArgs) > 0 {
		s.headline = append(s.headline, "kernel arguments: "+strings.Join(o.kernelArgs, " "))
	}
	s.headline = append(s.headline, fmt.Sprintf("engine: %s (%s)", chosen.Name(), chosen.Detail()))
	var input io.Reader
	if console != nil {
		input = os.Stdin
		s.beforeCommand = console.raw
	}
	code, err = s.run(ctx, command, machine.Token, input)
	if err != nil || o.out == "" {
		return code, err
	}
	return code, collect(filepath.Join(scratch.Path, "out"), o.out)
}

// emptyDisk is a disk that starts without content.
type emptyDisk struct {
	role string
	size int64 // bytes
}

// newMachine writes the disks into the scratch folder.
func newMachine(o options, guestImage *image.Image, scratch string, console *terminal) (engine.Machine, error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return engine.Machine{}, fmt.Errorf("make a token: %w", err)
	}
	run := guest.Run{
		Docker: !o.noDocker, DataFS: o.dataFS, Init: o.init, Cgroup: o.cgroup,
		Command: o.command, Environment: o.environment,
	}
	if console != nil {
		run.Shell, run.Terminal = true, os.Getenv("TERM")
		run.Rows, run.Columns = console.size()
	}
	payloadDisk := filepath.Join(scratch, "payload")
	if err := writePayload(payloadDisk, o.payload, run.Files()); err != nil {
		return engine.Machine{}, err
	}
	disks := []engine.Disk{{Role: "payload", Path: payloadDisk, ReadOnly: true}}
	empty := []emptyDisk{{"data", dataSize}, {"swap", swapSize}}
	if o.out != "" {
		empty = append(empty, emptyDisk{"out", outSize})
	}
	if o.spareMiB > 0 {
		empty = append(empty, emptyDisk{"spare", int64(o.spareMiB) << 20})
	}
	for _, disk := range empty {
		path := filepath.Join(scratch, disk.role)
		if err := sparseFile(path, disk.size); err != nil {
			return engine.Machine{}, fmt.Errorf("make the %s disk: %w", disk.role, err)
		}
		disks = append(disks, engine.Disk{Role: disk.role, Path: path})
	}
	return engine.Machine{
		Image: guestImage, Scratch: scratch, Token: hex.EncodeToString(random[:]),
		CPUs: o.cpus, MemoryMiB: o.memoryMiB, Disks: disks, KernelArgs: append(run.KernelArgs(), o.kernelArgs...), Terminal: console != nil,
	}, nil
}

func writePayload(path string, items []payload.Item, files []payload.File) error {
	disk, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("make the payload disk: %w", err)
	}
	return errors.Join(payload.Write(disk, items, files), disk.Close())
}

func sparseFile(path string, size int64) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(size), file.Close())
}

// addBuiltBinaries adds the folder bin of the project, if it was built, to the
// payload of a shell.
func addBuiltBinaries(items []payload.Item) []payload.Item {
	for _, item := range items {
		if item.Name == "bin" || strings.HasPrefix(item.Name, "bin/") {
			return items
		}
	}
	if info, err := os.Stat("bin"); err != nil || !info.IsDir() {
		return items
	}
	return append(items, payload.Item{Source: "bin", Name: "bin"})
}

// collect unpacks what the guest put into /out.
func collect(disk, folder string) error {
	file, err := os.Open(disk)
	if err != nil {
		return fmt.Errorf("read the out disk: %w", err)
	}
	defer file.Close()
	return payload.Extract(file, folder)
}

// lastLines keeps the end of what a guest said while it started.
type lastLines struct{ buffer bytes.Buffer }

// keptBootOutput is far more than a kernel panic takes.
const keptBootOutput = 64 << 10

func (l *lastLines) Write(p []byte) (int, error) {
	l.buffer.Write(p)
	if extra := l.buffer.Len() - keptBootOutput; extra > 0 {
		l.buffer.Next(extra)
	}
	return len(p), nil
}

// last returns up to n lines without empty ones.
func (l *lastLines) last(n int) []string {
	var lines []string
	for line := range strings.Lines(l.buffer.String()) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-n):]
}
