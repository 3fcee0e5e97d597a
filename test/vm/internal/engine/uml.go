package engine

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/host"
	"github.com/agentbox/agentbox/test/vm/internal/image"
)

// uml runs user-mode Linux: one CPU, no emulation, a boot of two seconds.
type uml struct{}

func (*uml) Name() string { return "uml" }

func (*uml) Detail() string { return "user-mode Linux, seccomp mode" }

func (*uml) Defaults() Defaults {
	return Defaults{CPUs: 1, BootTimeout: 2 * time.Minute, Timeout: 40 * time.Minute}
}

func (*uml) Prepare(context.Context, *host.Progress, *image.Image) error { return nil }

func (*uml) Command(machine Machine) (Command, error) {
	if machine.CPUs != 1 {
		return Command{}, fmt.Errorf("user-mode Linux has one CPU, not %d: leave -cpus out or take -engine qemu", machine.CPUs)
	}
	kernel, err := kernelWithLoader(machine.Image, machine.Scratch)
	if err != nil {
		return Command{}, fmt.Errorf("prepare user-mode Linux: %w", err)
	}
	device := func(i int) string { return "ubd" + string(rune('b'+i)) }
	arguments := []string{
		"seccomp=on",
		fmt.Sprintf("mem=%dM", machine.MemoryMiB),
		// What the guest writes to its root goes to a file of its own.
		"ubda=" + filepath.Join(machine.Scratch, "root.cow") + "," + machine.Image.Base(),
		"root=/dev/ubda", "rw", "init=/usr/lib/agentbox-vm/boot",
		// Its default would be a folder in the user's home.
		"uml_dir=" + filepath.Join(machine.Scratch, "uml"),
		"con1=null", "con=null", "ssl=null",
		// Its default is 16 KiB, less than two reports of an OOM kill; other kernels
		// have 128 KiB and more.
		"log_buf_len=256K",
	}
	for i, disk := range machine.Disks {
		name := device(i)
		if disk.ReadOnly {
			name += "r"
		}
		arguments = append(arguments, name+"="+disk.Path)
	}
	if machine.Terminal {
		arguments = append(arguments, "con0=fd:0,fd:1")
	} else {
		arguments = append(arguments, "con0=null,fd:1")
	}
	arguments = append(arguments, kernelParameters(machine, device, "tty0")...)
	return Command{
		Program:   kernel,
		Arguments: arguments,
		Environment: []string{
			// The guest's memory is a file here.
			"TMPDIR=" + machine.Scratch,
			"LD_LIBRARY_PATH=" + machine.Image.UMLLibraries(),
		},
	}, nil
}

// kernelWithLoader copies the kernel into the scratch folder and makes the copy
// use the loader of the image. Calling the loader with the kernel as argument
// would not do: the kernel executes itself again. The path in the ELF file is
// changed in place and cannot become longer, so it leads to a link with a short
// name.
func kernelWithLoader(image *image.Image, scratch string) (string, error) {
	link := filepath.Join(scratch, "ld")
	if err := os.Symlink(image.UMLLoader(), link); err != nil {
		return "", err
	}
	content, err := os.ReadFile(image.UMLKernel())
	if err != nil {
		return "", err
	}
	if err := setInterpreter(content, link); err != nil {
		return "", err
	}
	kernel := filepath.Join(scratch, "linux")
	return kernel, os.WriteFile(kernel, content, 0o755)
}

// setInterpreter overwrites the interpreter path of an ELF program in place.
func setInterpreter(program []byte, path string) error {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return err
	}
	for _, segment := range file.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		field := program[segment.Off : segment.Off+segment.Filesz]
		if len(path)+1 > len(field) {
			return fmt.Errorf("loader path %s is longer than the %d characters that fit", path, len(field)-1)
		}
		clear(field)
		copy(field, path)
		return nil
	}
	return fmt.Errorf("the program has no interpreter")
}
