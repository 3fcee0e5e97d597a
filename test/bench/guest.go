package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/test/bench/internal/precision"
)

// engines are those of test/vm, for a person.
var engines = map[string]string{"uml": "user-mode Linux", "qemu": "QEMU"}

// spareDisk names the guest's empty disk (test/vm, -spare).
const spareDisk = "AGENTBOX_SPARE_DISK"

const resultsFile = "results.json"

// measureGuest boots a guest that runs this program, and returns what it
// measured there.
func measureGuest(o options, dir string) (r results, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	out := filepath.Join(dir, "out")
	cmd := exec.Command("go", guestArgs(o, self, out)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr // its tables are made here
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("measure in a guest: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(out, resultsFile))
	if err != nil {
		return r, fmt.Errorf("the guest brought no results: %w", err)
	}
	return r, json.Unmarshal(data, &r)
}

// guestArgs are the arguments of the command go that runs this program in a
// guest.
func guestArgs(o options, self, out string) []string {
	return []string{
		"run", "./test/vm", "run", "-engine", o.engine, "-no-docker", "-spare", "4G",
		"-payload", o.bin + ":bin", "-payload", o.tools + ":tools", "-payload", self + ":bench",
		"-env", "TMPDIR=/data", // a disk, as on a real machine
		"-out", out, "-timeout", "30m", "--",
		"./bench", "-guest", "/out/" + resultsFile, "-bin", "bin", "-tools", "tools", "-engine", o.engine,
		"-only", strings.Join(o.inGuests(), ","), "-pairs", fmt.Sprint(o.pairs), "-runs", fmt.Sprint(o.runs),
	}
}

// inGuest measures in the guest and leaves the results in a file.
func inGuest(o options, dir string) error {
	r, err := measureInGuest(o, dir)
	if err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(o.guest, data, 0o644)
}

func measureInGuest(o options, dir string) (r results, err error) {
	if o.tools, err = filepath.Abs(o.tools); err != nil {
		return r, err
	}
	r, m, err := measure(o, dir, engines[o.engine], (*startup).noteFigures)
	if err != nil {
		return r, err
	}
	r.Machine.Load = ""
	if !o.has(partIO) {
		return r, nil
	}
	disk := os.Getenv(spareDisk)
	if disk == "" {
		return r, errors.New("no " + spareDisk + " is set: the guest has no disk to put file systems on")
	}
	err = precision.OnDisk(disk, dir, m.Runtime, func(place precision.Place) error {
		series, err := m.IO(place)
		if err != nil {
			return err
		}
		r.IO = append(r.IO, series...)
		if !slices.Contains([]string{"ext4", "xfs", "btrfs"}, place.Name) {
			return nil
		}
		neighbours, err := m.Neighbour(place, neighbourTime)
		r.Neighbours = append(r.Neighbours, neighbours...)
		return err
	})
	return r, err
}
