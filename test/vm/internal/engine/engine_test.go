package engine

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/image"
)

func TestNew(t *testing.T) {
	for _, name := range Names {
		t.Run(name, func(t *testing.T) {
			engine, err := New(name)
			if err != nil || engine.Name() != name {
				t.Fatalf("New = %v, %v", engine, err)
			}
		})
	}
	if _, err := New("xen"); err == nil {
		t.Fatal("New accepted an unknown engine")
	}
}

func TestQEMUCommand(t *testing.T) {
	disks := []Disk{{Role: "payload", Path: "/s/a,b.tar", ReadOnly: true}, {Role: "data", Path: "/s/data"}, {Role: "spare", Path: "/s/spare"}}
	tests := []struct {
		name   string
		engine *qemu
		want   []string
	}{
		{"emulated", &qemu{}, []string{"-accel tcg,thread=multi", "-smp 2", "-m 1024M", "snapshot=on", "file=/s/a,,b.tar,readonly=on", "abvm_payload=vdb", "abvm_data=vdc", "abvm_spare=nvme0n1", "-device nvme,serial=spare,drive=nvme", "abvm_token=T"}},
		{"with KVM", &qemu{kvm: true}, []string{"-accel kvm", "-cpu host"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			command, err := tt.engine.Command(Machine{
				Image: &image.Image{}, Token: "T", CPUs: 2, MemoryMiB: 1024, Disks: disks, KernelArgs: []string{"cgroup_disable=io", "loglevel=7"},
			})
			if err != nil {
				t.Fatal(err)
			}
			line := strings.Join(command.Arguments, " ")
			if !strings.HasSuffix(line, " cgroup_disable=io loglevel=7") {
				t.Errorf("command line %q does not end with the user's words for the kernel", line)
			}
			for _, want := range tt.want {
				if !strings.Contains(line, want) {
					t.Errorf("command line %q lacks %q", line, want)
				}
			}
		})
	}
}

func TestUMLCommand(t *testing.T) {
	// The path of the scratch folder must fit into the kernel's ELF header, so
	// t.TempDir is too long. Any program will do as the kernel.
	scratch, err := os.MkdirTemp("/tmp", "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(scratch) })
	program, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(scratch)
	if err := os.Mkdir("uml", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile((&image.Image{}).UMLKernel(), program, 0o755); err != nil {
		t.Fatal(err)
	}
	command, err := (&uml{}).Command(Machine{
		Image: &image.Image{}, Scratch: scratch, Token: "T", CPUs: 1, MemoryMiB: 1024,
		Disks:      []Disk{{Role: "payload", Path: "/s/payload", ReadOnly: true}, {Role: "spare", Path: "/s/spare"}},
		KernelArgs: []string{"cgroup_disable=io", "loglevel=7"},
	})
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Join(command.Arguments, " ")
	for _, want := range []string{" mem=1024M ", " ubdbr=/s/payload ", " ubdc=/s/spare ", " abvm_payload=ubdb ", " abvm_spare=ubdc "} {
		if !strings.Contains(line, want) {
			t.Errorf("command line %q lacks %q", line, want)
		}
	}
	if !strings.HasSuffix(line, " cgroup_disable=io loglevel=7") {
		t.Errorf("command line %q does not end with the user's words for the kernel", line)
	}
}

func TestUMLHasOneCPU(t *testing.T) {
	if _, err := (&uml{}).Command(Machine{CPUs: 2}); err == nil || !strings.Contains(err.Error(), "one CPU") {
		t.Fatalf("Command = %v", err)
	}
}

func TestSetInterpreter(t *testing.T) {
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Skipf("no program to change: %v", err)
	}
	changed := bytes.Clone(shell)
	if err := setInterpreter(changed, "/x/ld"); err != nil {
		t.Skipf("/bin/sh is not an ordinary program: %v", err)
	}
	if len(changed) != len(shell) || !bytes.Contains(changed, []byte("/x/ld\x00")) {
		t.Fatal("the path was not written in place")
	}
	if err := setInterpreter(changed, "/"+strings.Repeat("long", 20)); err == nil {
		t.Fatal("a path that does not fit was accepted")
	}
	if err := setInterpreter([]byte("no program"), "/x"); err == nil {
		t.Fatal("something that is no program was accepted")
	}
}

func TestProcess(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("output and end", func(t *testing.T) {
		var output bytes.Buffer
		process, err := Start(Command{Program: shell, Arguments: []string{"-c", "echo $A"}, Environment: []string{"A=hello"}}, nil, &output)
		if err != nil {
			t.Fatal(err)
		}
		<-process.Done()
		if process.Err() != nil || output.String() != "hello\n" {
			t.Fatalf("ended with %v, output %q", process.Err(), output.String())
		}
	})
	t.Run("kill takes the helpers along", func(t *testing.T) {
		ready := filepath.Join(t.TempDir(), "ready")
		process, err := Start(Command{Program: shell, Arguments: []string{"-c", "sleep 600 & echo >" + ready + "; wait"}}, nil, new(bytes.Buffer))
		if err != nil {
			t.Fatal(err)
		}
		for _, err := os.Stat(ready); err != nil; _, err = os.Stat(ready) {
			time.Sleep(time.Millisecond)
		}
		started := time.Now()
		process.Kill()
		// A living helper would hold the output open until WaitDelay.
		if time.Since(started) > 4*time.Second {
			t.Fatal("a helper survived")
		}
	})
	t.Run("program that does not exist", func(t *testing.T) {
		if _, err := Start(Command{Program: "/does/not/exist"}, nil, nil); err == nil {
			t.Fatal("Start succeeded")
		}
	})
}

func TestKernelParameters(t *testing.T) {
	machine := Machine{Token: "T", Disks: []Disk{{Role: "swap"}}, KernelArgs: []string{"loglevel=7"}}
	words := kernelParameters(machine, func(int) string { return "vdb" }, "ttyS0")
	for _, want := range []string{"panic=-1", "abvm_token=T", "abvm_swap=vdb", "abvm_tty=ttyS0"} {
		if !slices.Contains(words, want) {
			t.Errorf("%q lacks %q", words, want)
		}
	}
	if last := words[len(words)-1]; last != "loglevel=7" {
		t.Errorf("the last word is %q, so the harness's own may override the user's", last)
	}
}
