package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// counter is what all processes of an attack have taken, in bytes. It is in the
// page cache of the host.
func counter() *atomic.Int64 {
	file, err := os.OpenFile("/count/bytes", os.O_RDWR, 0)
	if err != nil {
		return new(atomic.Int64) // nobody counts
	}
	defer file.Close()
	page, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return new(atomic.Int64)
	}
	return (*atomic.Int64)(unsafe.Pointer(&page[0]))
}

// take WAY MIB takes memory in one of the ways.
func take(words []string) error {
	size, err := number(words, 1)
	if err != nil {
		return err
	}
	taken := counter()
	way, path, _ := strings.Cut(words[0], ":")
	switch way {
	case "anon":
		m, err := mapping(size)
		if err != nil {
			return err
		}
		touch(m, taken)
		runtime.KeepAlive(m)
	case "file":
		err = fill(path, size, taken)
	case "unlinked":
		err = fillUnlinked(path, size, taken)
	case "memfd":
		err = fillMemfd(size, taken)
	case "shm", "shm-detached":
		err = fillShm(size, taken, way == "shm-detached")
	default:
		err = fmt.Errorf("no way %q", way)
	}
	if err != nil {
		return err
	}
	stay()
	return nil
}

// mapping is address space without memory yet.
func mapping(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

// step is how much is counted at once.
const step = 256 << 10

// touch makes pages be there. It allocates nothing, for processes that were forked
// from this one.
func touch(m []byte, taken *atomic.Int64) {
	for at := 0; at < len(m); at += step {
		taken.Add(step)
		for i := at; i < at+step; i += 4096 {
			m[i] = 1
		}
	}
}

func fill(path string, size int, taken *atomic.Int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	return write(file, size, taken)
}

func write(file *os.File, size int, taken *atomic.Int64) error {
	buf := make([]byte, step)
	for range size * mib / step {
		taken.Add(step)
		if _, err := file.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// fillUnlinked fills a file without a name, and stays.
func fillUnlinked(path string, size int, taken *atomic.Int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	if err := write(file, size, taken); err != nil {
		return err
	}
	stay()
	return file.Close()
}

// fillMemfd fills a memfd that is never mapped, and stays.
func fillMemfd(size int, taken *atomic.Int64) error {
	fd, err := unix.MemfdCreate("attack", 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "memfd")
	if err := write(file, size, taken); err != nil {
		return err
	}
	stay()
	return file.Close()
}

// fillShm fills many segments of SysV shared memory. Those that are detached are
// mapped by nobody and live without any process.
func fillShm(size int, taken *atomic.Int64, detach bool) error {
	const segment = 8 // MiB
	for range size / segment {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, segment*mib, unix.IPC_CREAT|0o600)
		if err != nil {
			return err
		}
		m, err := unix.SysvShmAttach(id, 0, 0)
		if err != nil {
			return err
		}
		touch(m, taken)
		if detach {
			if err := unix.SysvShmDetach(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// fork starts a process that has all of this one and runs child, which must call
// nothing of the Go runtime: the other threads are not there.
func fork(child func()) error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		child()
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_PPOLL, 0, 0, 0) // for ever
		}
	}
	return nil
}

// many N MIB takes memory by many processes, each its small part.
func many(words []string) error {
	n, err := number(words, 0)
	if err != nil {
		return err
	}
	size, err := number(words, 1)
	if err != nil {
		return err
	}
	part, err := mapping(size)
	if err != nil {
		return err
	}
	taken := counter()
	runtime.LockOSThread()
	for range n {
		if err := fork(func() { touch(part, taken) }); err != nil {
			return err
		}
	}
	stay()
	return nil
}

// How long what only looks like an attack is there to be looked at.
const innocent = 3 * time.Second

// workers N MIB shares memory with forked workers, as servers that fork do.
func workers(words []string) error {
	n, err := number(words, 0)
	if err != nil {
		return err
	}
	size, err := number(words, 1)
	if err != nil {
		return err
	}
	m, err := mapping(size)
	if err != nil {
		return err
	}
	touch(m, new(atomic.Int64))
	runtime.LockOSThread()
	for range n {
		if err := fork(func() { // each reads all of it
			sum := byte(0)
			for i := 0; i < len(m); i += 4096 {
				sum += m[i]
			}
			m[0] = sum // and has one page of its own
		}); err != nil {
			return err
		}
	}
	time.Sleep(innocent)
	fmt.Println("unharmed")
	return nil
}

// reserve GIB reserves address space, as Go, Java and sanitizers do.
func reserve(words []string) error {
	size, err := number(words, 0)
	if err != nil {
		return err
	}
	m, err := unix.Mmap(-1, 0, size<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	touch(m[:4*mib], new(atomic.Int64))
	time.Sleep(innocent)
	fmt.Println("unharmed")
	runtime.KeepAlive(m)
	return nil
}

// mapFile FILE MIB maps a file and reads all of it.
func mapFile(words []string) error {
	size, err := number(words, 1)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(words[0], os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	m, err := unix.Mmap(int(file.Fd()), 0, size*mib, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	sum := byte(0)
	for until := time.Now().Add(innocent); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		for i := 0; i < len(m); i += 4096 {
			sum += m[i]
		}
	}
	fmt.Println("unharmed", sum)
	return nil
}

// self is this program with other words.
func self(words []string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", words...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// leave UID WORDS does something as another user, in a session of its own, from a
// process that is no child of this one any more.
func leave(words []string) error {
	uid, err := number(words, 0)
	if err != nil {
		return err
	}
	cmd := self(words[1:])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	return cmd.Start()
}

// nested WORDS does something as the first process of a pid namespace in a user
// namespace, with mounts of its own.
func nested(words []string) error {
	cmd := self(words)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return cmd.Run()
}

// mounted MIB fills a file system that the sandbox has mounted by itself, without
// a size. It needs the right to mount.
func mounted(words []string) error {
	size, err := number(words, 0)
	if err != nil {
		return err
	}
	dir := "/tmp"
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=100%"); err != nil {
		return err
	}
	if err := fill(filepath.Join(dir, "file"), size, counter()); err != nil {
		return err
	}
	stay()
	return nil
}
