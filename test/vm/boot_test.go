package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/agentbox/agentbox/test/vm/internal/engine"
	"github.com/agentbox/agentbox/test/vm/internal/image"
)

func TestNewMachine(t *testing.T) {
	tests := []struct {
		name    string
		options options
		roles   string
		spare   int64 // bytes
	}{
		{"by default", options{}, "payload data swap", 0},
		{"with all disks", options{out: "folder", spareMiB: 64}, "payload data swap out spare", 64 << 20},
		{"with a spare disk", options{spareMiB: 3 << 10}, "payload data swap spare", 3 << 30},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.options.kernelArgs = []string{"nosmp"}
			machine, err := newMachine(tt.options, &image.Image{}, t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			var roles []string
			for _, disk := range machine.Disks {
				roles = append(roles, disk.Role)
				if disk.Role == "spare" {
					checkEmptyDisk(t, disk, tt.spare)
				}
			}
			if got := strings.Join(roles, " "); got != tt.roles {
				t.Errorf("disks are %q, want %q", got, tt.roles)
			}
			if len(machine.KernelArgs) != 1 || machine.KernelArgs[0] != "nosmp" {
				t.Errorf("words for the kernel are %q", machine.KernelArgs)
			}
		})
	}
}

// checkEmptyDisk fails the test unless the disk has that size and takes no room.
func checkEmptyDisk(t *testing.T, disk engine.Disk, size int64) {
	t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Stat(disk.Path, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Size != size || stat.Blocks != 0 || disk.ReadOnly {
		t.Errorf("the disk %s has %d bytes in %d blocks, read-only %v; want %d bytes, none of them allocated",
			disk.Role, stat.Size, stat.Blocks, disk.ReadOnly, size)
	}
}
