package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/agentbox/agentbox/test/vm/internal/guest"
	"github.com/agentbox/agentbox/test/vm/internal/host"
	"github.com/agentbox/agentbox/test/vm/internal/newc"
)

// takeKernels copies both kernels into work, QEMU's out of the root folder, and
// user-mode Linux, whose modules go into the root folder, out of a folder of its
// own.
func takeKernels(ctx context.Context, progress *host.Progress, root, uml, work string) error {
	done := progress.Step("preparing the kernels")
	defer done()
	if err := takeUML(root, uml, work); err != nil {
		return fmt.Errorf("user-mode Linux: %w", err)
	}
	if err := takeCloudKernel(ctx, progress, root, work); err != nil {
		return fmt.Errorf("kernel for QEMU: %w", err)
	}
	return nil
}

// takeUML copies user-mode Linux out of the folder uml into work, together with its
// loader and libraries: the host's C library may be too old for it.
func takeUML(root, uml, work string) error {
	kernel := filepath.Join(uml, "usr/bin/linux.uml")
	binary, err := elf.Open(kernel)
	if err != nil {
		return err
	}
	libraries, err := binary.ImportedLibraries()
	if err := errors.Join(err, binary.Close()); err != nil {
		return err
	}
	suiteLibraries := filepath.Join(uml, "usr/lib/x86_64-linux-gnu")
	copies := map[string]string{
		kernel: "linux",
		filepath.Join(suiteLibraries, "ld-linux-x86-64.so.2"): "ld.so",
	}
	for _, name := range libraries {
		copies[filepath.Join(suiteLibraries, name)] = filepath.Join("lib", name)
	}
	for from, to := range copies {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		target := filepath.Join(work, "uml", to)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, content, 0o755); err != nil {
			return err
		}
	}

	// The package keeps its modules apart from other kernels'; modprobe looks in
	// one place only.
	return os.CopyFS(filepath.Join(root, "usr/lib/modules"), os.DirFS(filepath.Join(uml, "usr/lib/uml/modules")))
}

func takeCloudKernel(ctx context.Context, progress *host.Progress, root, work string) error {
	kernels, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil {
		return err
	}
	if len(kernels) != 1 {
		return fmt.Errorf("the image has %d kernels in /boot, not one", len(kernels))
	}
	compressed, err := os.ReadFile(kernels[0])
	if err != nil {
		return err
	}
	packed, err := bzImagePayload(compressed)
	if err != nil {
		return err
	}
	vmlinux, err := decompress(ctx, progress, packed)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(vmlinux, []byte(elf.ELFMAG)) {
		return errors.New("what the bzImage holds is no ELF file")
	}
	if err := os.WriteFile(filepath.Join(work, "vmlinux"), vmlinux, 0o644); err != nil {
		return err
	}
	version := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	return writeInitramfs(ctx, progress, root, version, filepath.Join(work, "initramfs"))
}

// bzImagePayload returns the compressed kernel inside a bzImage. The offsets are
// those of the x86 boot protocol (Documentation/arch/x86/boot.rst). An emulated
// CPU takes seconds to unpack it, hence it is done here.
func bzImagePayload(image []byte) ([]byte, error) {
	const (
		setupSectorsAt  = 0x1f1
		magicAt         = 0x202
		payloadOffsetAt = 0x248
		payloadLengthAt = 0x24c
		headerEnd       = 0x250
		sector          = 512
	)
	if len(image) < headerEnd || string(image[magicAt:magicAt+4]) != "HdrS" {
		return nil, errors.New("this is no bzImage")
	}
	start := (int64(image[setupSectorsAt])+1)*sector + int64(binary.LittleEndian.Uint32(image[payloadOffsetAt:]))
	end := start + int64(binary.LittleEndian.Uint32(image[payloadLengthAt:]))
	if end > int64(len(image)) {
		return nil, errors.New("the bzImage is cut off")
	}
	return image[start:end], nil
}

// formats are the compressions in use for kernels and modules, each with the
// host's program for it; gzip needs none.
var formats = []struct {
	magic   string
	program string
}{
	{"\x1f\x8b", ""},
	{"\x28\xb5\x2f\xfd", "zstd"},
	{"\xfd7zXZ\x00", "xz"},
	{"\x02\x21\x4c\x18", "lz4"},
	{"\x04\x22\x4d\x18", "lz4"},
}

// decompress unpacks data by its magic number. A kernel has its unpacked size
// behind the compressed stream, so what follows the stream is ignored.
func decompress(ctx context.Context, progress *host.Progress, data []byte) ([]byte, error) {
	for _, format := range formats {
		if !bytes.HasPrefix(data, []byte(format.magic)) {
			continue
		}
		if format.program == "" {
			reader, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				return nil, err
			}
			reader.Multistream(false)
			return io.ReadAll(reader)
		}
		if err := host.Require(ctx, progress, format.program); err != nil {
			return nil, err
		}
		command := groupCommand(ctx, format.program, "-dc")
		command.Stdin = bytes.NewReader(data)
		output, err := command.Output()
		// The trailing size makes these programs fail after they wrote everything.
		if len(output) == 0 && err != nil {
			return nil, fmt.Errorf("%s: %w", format.program, err)
		}
		return output, nil
	}
	return nil, errors.New("unknown compression")
}

// writeInitramfs packs busybox, the disk driver and a script: a few megabytes
// instead of the distribution's initramfs, which an emulated CPU unpacks slowly.
func writeInitramfs(ctx context.Context, progress *host.Progress, root, version, target string) error {
	busybox, err := os.ReadFile(filepath.Join(root, "usr/bin/busybox"))
	if err != nil {
		return err
	}
	modules := filepath.Join(root, "usr/lib/modules", version)
	dependencies, err := os.ReadFile(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return err
	}

	var archive bytes.Buffer
	w := newc.NewWriter(&archive)
	for _, name := range []string{"bin", "dev", "modules", "proc", "root"} {
		w.Directory(name, 0o755)
	}
	w.File("bin/busybox", 0o755, busybox)
	w.File("init", 0o755, guest.Script("initramfs"))
	for i, name := range loadOrder(string(dependencies), "virtio_blk") {
		content, err := os.ReadFile(filepath.Join(modules, name))
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
			if content, err = decompress(ctx, progress, content); err != nil {
				return fmt.Errorf("module %s: %w", name, err)
			}
		}
		// The shell's * sorts, so the number is the order of loading.
		w.File(fmt.Sprintf("modules/%02d.ko", i), 0o644, content)
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(target, archive.Bytes(), 0o644)
}

// loadOrder returns the files of a module and of what it needs, in the order in
// which they must be loaded. A module that is built into the kernel is not in
// modules.dep and gives nothing.
func loadOrder(modulesDep, module string) []string {
	for line := range strings.Lines(modulesDep) {
		file, needs, ok := strings.Cut(strings.TrimSpace(line), ":")
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		if !ok || name != module {
			continue
		}
		// depmod lists what a module needs with the deepest last.
		order := []string{file}
		for need := range strings.FieldsSeq(needs) {
			order = append([]string{need}, order...)
		}
		return order
	}
	return nil
}
