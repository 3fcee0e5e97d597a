// Package guest holds what runs inside the guest: the scripts, and the two files
// that tell them what this run is about.
package guest

import (
	"embed"
	"fmt"
	"strings"

	"github.com/agentbox/agentbox/test/vm/internal/payload"
)

//go:embed scripts
var scripts embed.FS

// Library is the guest's folder for scripts and root file systems, without
// leading slash.
const Library = "usr/lib/agentbox-vm"

// Script returns an embedded script by name.
func Script(name string) []byte {
	content, err := scripts.ReadFile("scripts/" + name)
	if err != nil {
		// Only a mistyped name in this program leads here.
		panic(err)
	}
	return content
}

// CgroupVariants are the ways in which init can mount cgroups, the default first:
// the unified hierarchy; those of v1 as systemd lays them out; these with an
// unused unified one beside them; nothing at all.
var CgroupVariants = []string{"v2", "v1", "hybrid", "none"}

// Systemd is the init of most hosts.
const Systemd = "systemd"

// Inits are the programs that can be the guest's first one, the default first: a
// script that does only what the tests need, and systemd.
var Inits = []string{"script", Systemd}

// Run describes one boot to the guest's init.
type Run struct {
	Docker      bool     // start containerd and dockerd
	DataFS      string   // "ext4" or "xfs"
	Init        string   // one of Inits
	Cgroup      string   // one of CgroupVariants
	Shell       bool     // an interactive shell instead of Command
	Command     []string // program and arguments
	Environment []string // "KEY=VALUE"
	Terminal    string   // TERM of the host, for Shell
	Rows        int      // size of the host's terminal, for Shell
	Columns     int
}

// Files returns the scripts and settings that go into the payload.
func (r Run) Files() []payload.File {
	files := []payload.File{
		{Name: "etc/agentbox-vm/settings", Permissions: 0o644, Content: r.settings()},
		{Name: "etc/agentbox-vm/command", Permissions: 0o755, Content: r.command()},
	}
	if r.Init == Systemd {
		files = append(files, payload.File{Name: "etc/systemd/system/agentbox-vm.service", Permissions: 0o644, Content: Script("agentbox-vm.service")})
	}
	for _, name := range []string{"init", "cgroups", "docker-up", "docker-down", "import"} {
		files = append(files, payload.File{Name: Library + "/" + name, Permissions: 0o755, Content: Script(name)})
	}
	return files
}

// KernelArgs returns the words that this run's init reads from the kernel's command
// line.
func (r Run) KernelArgs() []string {
	if r.Init != Systemd {
		return nil
	}
	// Else systemd asks the terminal for its name, in the middle of the command's
	// output, each time it executes itself.
	return []string{"systemd.tty.term.console=dumb"}
}

func (r Run) settings() []byte {
	var text strings.Builder
	number := func(on bool) int {
		if on {
			return 1
		}
		return 0
	}
	fmt.Fprintf(&text, "DOCKER=%d\nDATA_FS=%s\nINIT=%s\nCGROUP=%s\nSHELL_MODE=%d\n",
		number(r.Docker), Quote(r.DataFS), Quote(r.Init), Quote(r.Cgroup), number(r.Shell))
	fmt.Fprintf(&text, "HOST_TERM=%s\nROWS=%d\nCOLUMNS=%d\n", Quote(r.Terminal), r.Rows, r.Columns)
	return []byte(text.String())
}

// command is the script that becomes the user's program.
func (r Run) command() []byte {
	var text strings.Builder
	text.WriteString("#!/bin/sh\n")
	for _, pair := range r.Environment {
		key, value, _ := strings.Cut(pair, "=")
		fmt.Fprintf(&text, "export %s=%s\n", key, Quote(value))
	}
	text.WriteString("cd /payload || exit 125\n")
	if len(r.Command) > 0 {
		text.WriteString("exec")
		for _, word := range r.Command {
			text.WriteString(" " + Quote(word))
		}
		text.WriteString("\n")
	}
	return []byte(text.String())
}

// Quote makes one shell word of any text.
func Quote(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
