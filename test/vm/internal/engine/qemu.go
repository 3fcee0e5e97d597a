package engine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/host"
	"github.com/agentbox/agentbox/test/vm/internal/image"
)

const qemuProgram = "qemu-system-x86_64"

// nvmeRole is the disk that is attached as NVMe, whose partitions have names and
// numbers of their own kind. It is the last one, so that the letters of the
// others have no gap.
const nvmeRole = "spare"

// kvmProbeTime is enough for a machine with KVM to boot to its first program.
const kvmProbeTime = 10 * time.Second

// qemu runs the Debian kernel in QEMU: with KVM where that really works, else
// with TCG, which emulates every instruction and is ten to thirty times slower
// than the host.
type qemu struct {
	kvm bool
}

func (*qemu) Name() string { return "qemu" }

func (q *qemu) Detail() string {
	if q.kvm {
		return "QEMU with KVM"
	}
	return "QEMU with TCG, no KVM on this host"
}

func (q *qemu) Defaults() Defaults {
	if q.kvm {
		return Defaults{CPUs: 2, BootTimeout: 2 * time.Minute, Timeout: 40 * time.Minute}
	}
	return Defaults{CPUs: 2, BootTimeout: 6 * time.Minute, Timeout: 60 * time.Minute}
}

func (q *qemu) Prepare(ctx context.Context, progress *host.Progress, image *image.Image) error {
	if err := host.Require(ctx, progress, qemuProgram); err != nil {
		return err
	}
	kvm, err := kvmBoots(ctx, progress, image)
	q.kvm = kvm
	return err
}

func (q *qemu) Command(machine Machine) (Command, error) {
	arguments := q.base(machine.Image, machine.CPUs, machine.MemoryMiB)
	// Nobody writes to the root disk, so guests of both engines may share it; QEMU's
	// lock would keep user-mode Linux out and the other way round.
	arguments = append(arguments, "-drive", "if=virtio,format=raw,cache=unsafe,snapshot=on,file.locking=off,file="+escapeComma(machine.Image.Base()))
	for _, disk := range machine.Disks {
		drive := ",format=raw,cache=unsafe,discard=unmap,file=" + escapeComma(disk.Path)
		if disk.ReadOnly {
			drive += ",readonly=on"
		}
		if disk.Role == nvmeRole {
			arguments = append(arguments, "-drive", "if=none,id=nvme"+drive, "-device", "nvme,serial=spare,drive=nvme")
			continue
		}
		arguments = append(arguments, "-drive", "if=virtio"+drive)
	}
	device := func(i int) string {
		if machine.Disks[i].Role == nvmeRole {
			return "nvme0n1"
		}
		return "vd" + string(rune('b'+i))
	}
	arguments = append(arguments, "-append", q.kernelLine(kernelParameters(machine, device, "ttyS0")))
	return Command{
		Program:   qemuProgram,
		Arguments: arguments,
		// The root disk's changes are a temporary file.
		Environment: []string{"TMPDIR=" + machine.Scratch},
	}, nil
}

func (q *qemu) base(image *image.Image, cpus, memoryMiB int) []string {
	accelerator, cpu := "tcg,thread=multi", "max"
	if q.kvm {
		accelerator, cpu = "kvm", "host"
	}
	return []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "q35", "-accel", accelerator, "-cpu", cpu,
		"-smp", fmt.Sprint(cpus), "-m", fmt.Sprintf("%dM", memoryMiB),
		// Ctrl-C on a terminal belongs to the guest.
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-kernel", image.Kernel(), "-initrd", image.Initramfs(),
	}
}

// kernelLine adds what only this engine needs. The uncompressed kernel cannot be
// moved (nokaslr), and mitigations against neighbours cost time for nothing here.
func (q *qemu) kernelLine(words []string) string {
	return strings.Join(append([]string{"console=ttyS0", "nokaslr", "mitigations=off", "audit=0", "apparmor=0"}, words...), " ")
}

// escapeComma writes a path the way QEMU's option syntax wants it.
func escapeComma(path string) string { return strings.ReplaceAll(path, ",", ",,") }

// kvmBoots says whether a guest gets to its first program with KVM. That
// /dev/kvm exists proves little: inside some virtual machines it is there and
// guests hang. The answer is kept beside the image until the host boots again.
func kvmBoots(ctx context.Context, progress *host.Progress, image *image.Image) (bool, error) {
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false, nil
	}
	if err := device.Close(); err != nil {
		return false, fmt.Errorf("close /dev/kvm: %w", err)
	}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false, fmt.Errorf("read the host's boot id: %w", err)
	}
	answerFile := filepath.Join(image.Folder(), "kvm-"+strings.TrimSpace(string(bootID)))
	if answer, err := os.ReadFile(answerFile); err == nil {
		return string(answer) == "yes", nil
	}

	done := progress.Step("trying whether a guest boots with KVM")
	answer := probeKVM(ctx, image)
	done()
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	text := map[bool]string{true: "yes", false: "no"}[answer]
	if err := os.WriteFile(answerFile, []byte(text), 0o644); err != nil {
		return false, fmt.Errorf("keep the answer about KVM: %w", err)
	}
	return answer, nil
}

func probeKVM(ctx context.Context, image *image.Image) bool {
	q := &qemu{kvm: true}
	arguments := append(q.base(image, 1, 512), "-append", q.kernelLine([]string{"quiet", "panic=-1", "abvm_probe=1", "abvm_token=probe"}))
	ctx, cancel := context.WithTimeout(ctx, kvmProbeTime)
	defer cancel()
	// A guest that hangs is killed and leaves output without the line; how QEMU
	// ended says nothing more.
	output, _ := exec.CommandContext(ctx, qemuProgram, arguments...).CombinedOutput()
	return bytes.Contains(output, []byte("agentbox-vm:probe EXIT rc=0"))
}
