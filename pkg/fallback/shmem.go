package fallback

import (
	"bytes"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// Shared memory lives in files: of each tmpfs that is mounted in the sandbox, and
// of one that the kernel keeps for itself, for memfd_create(2), shmget(2), and
// shared anonymous mappings. A tmpfs tells what it holds, be it hidden, deleted or
// open nowhere. The files of the kernel's own are found by who has them: open,
// mapped, or in an ipc namespace.
//
// What is not seen: files that are held only by a message under way in a socket,
// by io_uring, or by a mount namespace that no process is in.
//
// The file system is never asked by way of a path or a descriptor: one that a
// process of the sandbox serves (FUSE) would answer when it likes.

// kind is how the files of a device are counted. The zero value: as memory that
// somebody has open or mapped, each for itself.
type kind uint8

const (
	eachFile kind = iota
	atOnce        // the whole of it is in the sum
	noMemory      // on a disk, or the host's
)

type file struct {
	dev procfs.Dev
	ino uint64
	ipc uint64 // the namespace, of System V shared memory: its numbers start anew in each
}

// shmemReader belongs to a thread, as memoryHost does.
type shmemReader struct {
	kernel  procfs.Dev // the tmpfs of the kernel
	ownIPC  int        // this thread's ipc namespace
	hostIPC uint64

	reader  procfs.Reader // a second one: lines stay in the buffer of the first
	devices map[procfs.Dev]kind
	mounts  map[uint64]bool // namespaces that were looked at
	ipcs    map[uint64]bool
	files   map[file]bool
	fds     []procfs.Entry
	threads []procfs.Entry
}

func (s *shmemReader) open() error {
	s.devices, s.files = map[procfs.Dev]kind{}, map[file]bool{}
	s.mounts, s.ipcs = map[uint64]bool{}, map[uint64]bool{}
	s.ownIPC = -1
	memfd, err := unix.MemfdCreate("agentbox", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(memfd)
	var st unix.Stat_t
	if err := unix.Fstat(memfd, &st); err != nil {
		return err
	}
	s.kernel = procfs.MakeDev(unix.Major(st.Dev), unix.Minor(st.Dev))
	if s.ownIPC, err = unix.Open("/proc/thread-self/ns/ipc", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if err := unix.Fstat(s.ownIPC, &st); err != nil {
		return err
	}
	s.hostIPC = st.Ino
	return nil
}

func (s *shmemReader) close() {
	if s.ownIPC >= 0 {
		unix.Close(s.ownIPC)
	}
}

// scan tells the shared memory that the members hold, in bytes, each page once.
func (s *shmemReader) scan(members []member) (int64, error) {
	clear(s.devices)
	clear(s.mounts)
	clear(s.ipcs)
	clear(s.files)
	if err := s.seeHost(); err != nil {
		return 0, err
	}
	var sum int64
	// All mounts come first: they tell what a device is.
	for _, see := range []func(m *member, dir int) (int64, error){s.seeMounts, s.seeIPC, s.seeDescriptors, s.seeMappings} {
		for i := range members {
			m := &members[i]
			dir, err := m.open(&s.reader)
			if err == nil {
				var n int64
				n, err = see(m, dir)
				sum += n
				m.close(dir)
			}
			// Who may not look into a process counts what its own files say.
			if err != nil && !errors.Is(err, procfs.ErrGone) && !errors.Is(err, fs.ErrPermission) {
				return 0, err
			}
		}
	}
	return sum, nil
}

// seeHost notes the file systems of this mount namespace. The tmpfs of a
// container is often mounted here too, by the engine, deep in its own folders;
// /dev/shm, /run, /run/user/1000 are the host's.
func (s *shmemReader) seeHost() error {
	self, err := s.reader.Open(unix.Getpid())
	if err != nil {
		return err
	}
	defer procfs.Close(self)
	return s.eachMount(self, func(m procfs.Mount) {
		if string(m.Type) != "tmpfs" || bytes.Count(m.Point, []byte("/")) <= 3 {
			s.devices[m.Dev] = noMemory
		}
	})
}

func (s *shmemReader) eachMount(dir int, see func(m procfs.Mount)) error {
	lines, err := s.reader.Mounts(dir)
	if err != nil {
		return err
	}
	defer lines.Close()
	for {
		line, err := lines.Next()
		if err != nil || line == nil {
			return err
		}
		mount, err := procfs.ParseMount(line)
		if err != nil {
			return err
		}
		see(mount)
	}
}

func (s *shmemReader) seeMounts(_ *member, dir int) (int64, error) {
	ns, err := s.reader.Namespace(dir, procfs.MountNamespace)
	if err != nil || s.mounts[ns] {
		return 0, err
	}
	s.mounts[ns] = true
	var sum int64
	err = s.eachMount(dir, func(m procfs.Mount) {
		if _, known := s.devices[m.Dev]; known {
			return
		}
		if string(m.Type) != "tmpfs" {
			s.devices[m.Dev] = noMemory
			return
		}
		if used, ok := tmpfsUsed(m); ok {
			sum += used
			s.devices[m.Dev] = atOnce
		} else {
			s.devices[m.Dev] = eachFile
		}
	})
	return sum, err
}

// tmpfsUsed asks by the number of the device, and reads the size from the
// options: nothing that the sandbox mounts over it is in the way. ok is false of
// one that has no size, which does not count what it holds.
func tmpfsUsed(m procfs.Mount) (used int64, ok bool) {
	size, ok := tmpfsSize(m.Options)
	if !ok {
		return 0, false
	}
	free, err := freeBlocks(m.Dev)
	if err != nil {
		return 0, false
	}
	return max(0, size-free*int64(unix.Getpagesize())), true
}

// tmpfsSize reads "size=1024k"; without one it is half of the host's memory
// (tmpfs(5)).
func tmpfsSize(options []byte) (size int64, ok bool) {
	for rest := options; len(rest) > 0; {
		var word []byte
		word, rest, _ = bytes.Cut(rest, []byte(","))
		value, found := bytes.CutPrefix(word, []byte("size="))
		if !found {
			continue
		}
		n, ok := procfs.Number(bytes.TrimSuffix(value, []byte("k")))
		return n * 1024, ok && n > 0
	}
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return 0, false
	}
	page := int64(unix.Getpagesize())
	return int64(host.Totalram) * int64(max(host.Unit, 1)) / page / 2 * page, true
}

// seeIPC reads the System V shared memory of a namespace, attached or not. Only
// who is in it can. Without the privilege to enter, what is attached is found as
// all mappings are.
func (s *shmemReader) seeIPC(_ *member, dir int) (sum int64, err error) {
	ns, err := s.reader.Namespace(dir, procfs.IPCNamespace)
	if err != nil || s.ipcs[ns] || ns == s.hostIPC {
		return 0, err
	}
	s.ipcs[ns] = true
	target, err := s.reader.OpenNamespace(dir, procfs.IPCNamespace)
	if err != nil {
		return 0, err
	}
	defer procfs.Close(target)
	if err := unix.Setns(target, unix.CLONE_NEWIPC); err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return 0, nil
		}
		return 0, err
	}
	lines, err := s.reader.SharedSegments()
	if back := unix.Setns(s.ownIPC, unix.CLONE_NEWIPC); back != nil {
		return 0, back
	}
	if err != nil {
		return 0, err
	}
	defer lines.Close()
	for {
		line, err := lines.Next()
		if err != nil || line == nil {
			return sum, err
		}
		if id, held, ok := procfs.ParseSegment(line); ok {
			s.files[file{dev: s.kernel, ino: id, ipc: ns}] = true
			sum += held
		}
	}
}

// seeDescriptors counts the files that are open and in no tmpfs that was counted.
// A thread can have descriptors of its own (unshare(2), CLONE_FILES).
func (s *shmemReader) seeDescriptors(m *member, dir int) (int64, error) {
	sum, err := s.openFiles(dir)
	if err != nil {
		return 0, err
	}
	if s.threads, err = s.reader.Threads(m.dir, s.threads[:0]); err != nil || len(s.threads) < 2 {
		return sum, err
	}
	first := m.memory.thread
	if first == 0 {
		first = m.pid
	}
	for _, t := range s.threads {
		if t.Number == first || sameFiles(first, t.Number) {
			continue
		}
		thread, err := s.reader.OpenThread(m.dir, t.Number)
		if err != nil {
			continue // it has ended
		}
		n, err := s.openFiles(thread)
		procfs.Close(thread)
		if err == nil {
			sum += n
		}
	}
	return sum, nil
}

// sameFiles asks kcmp(2); a kernel that cannot tell makes it look twice.
func sameFiles(a, b int) bool {
	const kcmpFiles = 2
	answer, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	return errno == 0 && answer == 0
}

func (s *shmemReader) openFiles(dir int) (sum int64, err error) {
	folder, err := s.reader.OpenFDs(dir)
	if err != nil {
		return 0, err
	}
	defer procfs.Close(folder)
	if s.fds, err = s.reader.List(folder, s.fds[:0]); err != nil {
		return 0, err
	}
	for _, fd := range s.fds {
		inode, err := s.reader.FD(folder, fd.Number)
		if err == nil && s.isMemory(inode) {
			sum += s.once(file{dev: inode.Dev, ino: inode.Ino}, inode.Bytes)
		}
	}
	return sum, nil
}

// isMemory: a device that is mounted nowhere, neither on a disk, is a tmpfs that
// was unmounted while files of it were open.
func (s *shmemReader) isMemory(inode procfs.Inode) bool {
	return inode.Regular && inode.Dev.Anonymous() && s.devices[inode.Dev] == eachFile
}

func (s *shmemReader) once(f file, held int64) int64 {
	if s.files[f] {
		return 0
	}
	s.files[f] = true
	return held
}

// seeMappings counts the files that are mapped and open nowhere. Where their size
// may not be asked for, what is resident counts.
func (s *shmemReader) seeMappings(_ *member, dir int) (sum int64, err error) {
	ipc, err := s.reader.Namespace(dir, procfs.IPCNamespace)
	if err != nil {
		return 0, err
	}
	lines, err := s.reader.Maps(dir)
	if err != nil {
		return 0, err
	}
	defer lines.Close()
	resident := false
	for {
		line, err := lines.Next()
		if err != nil || line == nil {
			if err == nil && resident {
				return s.addResident(dir, ipc, sum)
			}
			return sum, err
		}
		m, ok := procfs.ParseMapping(line)
		if !ok || !s.unseen(m, ipc) {
			continue
		}
		inode, err := s.reader.MappedFile(dir, m)
		switch {
		case errors.Is(err, fs.ErrPermission):
			resident = true
		case err == nil && inode.Regular:
			sum += s.once(mapped(m, ipc), inode.Bytes)
		}
	}
}

func mapped(m procfs.Mapping, ipc uint64) file {
	f := file{dev: m.Dev, ino: m.Ino}
	if bytes.HasPrefix(m.Name, []byte("/SYSV")) {
		f.ipc = ipc
	}
	return f
}

func (s *shmemReader) unseen(m procfs.Mapping, ipc uint64) bool {
	return m.Dev.Anonymous() && m.Dev != 0 && s.devices[m.Dev] == eachFile && !s.files[mapped(m, ipc)]
}

func (s *shmemReader) addResident(dir int, ipc uint64, sum int64) (int64, error) {
	lines, err := s.reader.Smaps(dir)
	if err != nil {
		return sum, err
	}
	defer lines.Close()
	counts := false
	for {
		line, err := lines.Next()
		if err != nil || line == nil {
			return sum, err
		}
		if m, ok := procfs.ParseMapping(line); ok {
			counts = s.unseen(m, ipc)
		} else if pss, ok := procfs.ParsePss(line); ok && counts {
			sum += pss
		}
	}
}
