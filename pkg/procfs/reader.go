package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrGone says that the process has ended. It is an fs.ErrNotExist.
var ErrGone error = fmt.Errorf("the process has ended: %w", fs.ErrNotExist)

// ErrFormat says that a file of proc is not as proc(5) describes it.
var ErrFormat = errors.New("not in the form of proc(5)")

// The names end in a zero byte: they are handed to the kernel as they are.
var (
	fileStat     = []byte("stat\x00")
	fileStatm    = []byte("statm\x00")
	fileStatus   = []byte("status\x00")
	fileRollup   = []byte("smaps_rollup\x00")
	fileIO       = []byte("io\x00")
	folderFD     = []byte("fd\x00")
	folderTask   = []byte("task\x00")
	fileMounts   = []byte("mountinfo\x00")
	fileMaps     = []byte("maps\x00")
	fileSmaps    = []byte("smaps\x00")
	fileSegments = []byte("/proc/sysvipc/shm\x00")
	fileProc     = []byte("/proc\x00")
)

// Namespace names a kind of namespace, by its file below /proc/PID.
type Namespace []byte

// The namespaces that are told apart here (namespaces(7)).
var (
	PIDNamespace   = Namespace("ns/pid\x00")
	MountNamespace = Namespace("ns/mnt\x00")
	IPCNamespace   = Namespace("ns/ipc\x00")
)

// tick is the unit of times in proc(5): USER_HZ is 100 on all architectures that
// Go knows.
const tick = 10 * time.Millisecond

// Reader reads files of proc into a buffer of its own.
type Reader struct {
	buf  [8192]byte
	name [64]byte
}

// Stat is what proc_pid_stat(5) says of a process.
type Stat struct {
	State          byte          // field 3: 'Z' is a zombie
	Parent         int           // 0 as well when State is 'X', in the moment of its removal
	UTime, STime   time.Duration // of all its threads
	CUTime, CSTime time.Duration // of its children that it has waited for
	Threads        int
	StartTime      uint64 // in ticks since boot: Process.StartTime
}

// Ended reports whether the process has ended and was only not waited for.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Statm is what proc_pid_statm(5) says, in bytes.
type Statm struct {
	Size     int64 // of the address space
	Resident int64 // anonymous, of files, and shared memory
}

// Memory is what proc_pid_status(5) says, in bytes. All is 0 of a process that
// has ended.
type Memory struct {
	Anon, File, Shmem int64 // resident
	Swap              int64 // anonymous, swapped out
	PageTables        int64
}

// Rollup is what proc_pid_smaps_rollup(5) says, in bytes. A page that n
// processes map counts 1/n in each, but for LazyFree.
type Rollup struct {
	Anon, File, Shmem int64
	Swap              int64 // anonymous, swapped out
	LazyFree          int64 // part of Anon that the kernel takes back when it needs it
	Others            int64 // of the same pages of Anon and Swap, what counts in other processes
}

// IO is what proc_pid_io(5) says, in bytes, with that of children that were
// waited for.
type IO struct{ Read, Written, Cancelled int64 }

// Open opens the folder of a process. The error is ErrGone when there is none,
// or another one of open(2).
func (r *Reader) Open(pid int) (dir int, err error) {
	return openAt(unix.AT_FDCWD, r.path(pid, nil), unix.O_DIRECTORY)
}

// path writes /proc/PID, or a file below it, ending in a zero byte.
func (r *Reader) path(pid int, file []byte) []byte {
	b := strconv.AppendInt(append(r.name[:0], "/proc/"...), int64(pid), 10)
	if file == nil {
		return append(b, 0)
	}
	return append(append(b, '/'), file...)
}

// Close closes what Open or OpenPidfd opened.
func Close(fd int) { unix.Close(fd) }

// Signal sends a signal to the process that a folder or a pidfd holds; signal 0
// only asks whether it is there, a zombie is. The error is ErrGone, or another
// one of pidfd_send_signal(2).
func Signal(fd int, sig unix.Signal) error {
	return gone(unix.PidfdSendSignal(fd, sig, nil, 0))
}

// OpenPidfd opens a pidfd of this very process, for poll(2) and waitid(2). The
// error is ErrGone when it has ended and was waited for.
func (r *Reader) OpenPidfd(p Process) (fd int, err error) {
	if p.Pid <= 0 {
		return -1, ErrGone
	}
	fd, err = unix.PidfdOpen(p.Pid, 0)
	if err != nil {
		return -1, gone(err)
	}
	// Whoever has the pid after it was opened, and is as old as p, had it before.
	st, err := r.StatOf(p.Pid)
	if err == nil && st.StartTime != p.StartTime {
		err = ErrGone
	}
	if err != nil {
		Close(fd)
		return -1, err
	}
	return fd, nil
}

// HasEnded reports whether the process of a pidfd has ended; a zombie has.
func HasEnded(pidfd int) bool {
	p := [1]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p[:], 0)
		if err != unix.EINTR {
			return err == nil && n > 0
		}
	}
}

// HasRollup reports whether this kernel has smaps_rollup at all: a file that it
// has not looks like that of a process that has ended.
func HasRollup() bool {
	return unix.Access("/proc/self/smaps_rollup", unix.R_OK) == nil
}

// Stat reads /proc/PID/stat.
func (r *Reader) Stat(dir int) (Stat, error) { return r.stat(dir, fileStat) }

// StatOf reads the same of whoever has the pid now.
func (r *Reader) StatOf(pid int) (Stat, error) {
	return r.stat(unix.AT_FDCWD, r.path(pid, fileStat))
}

func (r *Reader) stat(dir int, name []byte) (Stat, error) {
	data, err := r.read(dir, name)
	if err != nil {
		return Stat{}, err
	}
	return parseStat(data)
}

// Statm reads /proc/PID/statm.
func (r *Reader) Statm(dir int) (Statm, error) {
	data, err := r.read(dir, fileStatm)
	if err != nil {
		return Statm{}, err
	}
	return parseStatm(data)
}

// Memory reads /proc/PID/status.
func (r *Reader) Memory(dir int) (Memory, error) {
	lines, err := r.lines(dir, fileStatus)
	if err != nil {
		return Memory{}, err
	}
	defer lines.Close()
	var m Memory
	for {
		line, err := lines.Next()
		if err != nil || line == nil {
			return m, err
		}
		if err := m.line(line); err != nil {
			return Memory{}, err
		}
	}
}

// Rollup reads /proc/PID/smaps_rollup. The kernel walks all page tables of the
// process for it: some 20 ms for each GB.
func (r *Reader) Rollup(dir int) (Rollup, error) {
	data, err := r.read(dir, fileRollup)
	if err != nil {
		return Rollup{}, err
	}
	return parseRollup(data)
}

// IO reads /proc/PID/io.
func (r *Reader) IO(dir int) (IO, error) {
	data, err := r.read(dir, fileIO)
	if err != nil {
		return IO{}, err
	}
	return parseIO(data)
}

// Namespace tells the number of one of a process' namespaces.
func (r *Reader) Namespace(dir int, kind Namespace) (uint64, error) {
	n, err := r.namespace(dir, kind)
	// The kernel says EACCES of a process that has ended as well.
	if errors.Is(err, fs.ErrPermission) && Signal(dir, 0) == ErrGone { //nolint:errorlint // it is this very error
		err = ErrGone
	}
	return n, err
}

// OpenNamespace opens one of a process' namespaces, for setns(2).
func (r *Reader) OpenNamespace(dir int, kind Namespace) (int, error) { return openAt(dir, kind, 0) }

// NamespaceOf tells the same of whoever has the pid now.
func (r *Reader) NamespaceOf(pid int, kind Namespace) (uint64, error) {
	n, err := r.namespace(unix.AT_FDCWD, r.path(pid, kind))
	if errors.Is(err, fs.ErrPermission) {
		if _, e := r.StatOf(pid); e != nil {
			err = e
		}
	}
	return n, err
}

func (r *Reader) namespace(dir int, name []byte) (uint64, error) {
	n, err := readlinkAt(dir, name, r.buf[:])
	if err != nil {
		return 0, err
	}
	return parseNamespace(r.buf[:n])
}

// CPUTime tells the CPU time of a process, all its threads, living and ended, in
// nanoseconds; children that were waited for are in Stat. Of whoever has the pid
// now: a Stat or Signal through the folder afterwards, which succeeds, tells that
// it was the right one.
func CPUTime(pid int) (time.Duration, error) {
	// clock_getcpuclockid(3): the bits are those of the kernel's CPUCLOCK_SCHED.
	return clock(int32(^pid)<<3 | 2)
}

// OwnCPUTime is that of this thread: what its work took, however busy the host.
func OwnCPUTime() time.Duration {
	d, err := clock(unix.CLOCK_THREAD_CPUTIME_ID)
	if err != nil {
		panic(err) // every kernel has it
	}
	return d
}

// SinceBoot is the time since boot, with that of suspends: the clock of
// Stat.StartTime.
func SinceBoot() time.Duration {
	d, err := clock(unix.CLOCK_BOOTTIME)
	if err != nil {
		panic(err) // the kernel has had it since 2.6.39
	}
	return d
}

func clock(id int32) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		if err == unix.EINVAL {
			return 0, ErrGone
		}
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}

// Started is when a process started, on the clock of SinceBoot, to the tick.
func (p Process) Started() time.Duration { return time.Duration(p.StartTime) * tick }

// read reads a small file at once. The result is valid until the next call.
func (r *Reader) read(dir int, name []byte) ([]byte, error) {
	fd, err := openAt(dir, name, 0)
	if err != nil {
		return nil, err
	}
	n, err := readFD(fd, r.buf[:])
	unix.Close(fd)
	return r.buf[:max(n, 0)], err
}

func readFD(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if err != unix.EINTR {
			return n, gone(err)
		}
	}
}

func openAt(dir int, name []byte, flags int) (int, error) {
	for {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&name[0])),
			uintptr(unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK|flags), 0, 0, 0)
		runtime.KeepAlive(name)
		if errno == 0 {
			return int(fd), nil
		}
		if errno != unix.EINTR {
			return -1, gone(errno)
		}
	}
}

func readlinkAt(dir int, name, buf []byte) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(&name[0])),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0)
	runtime.KeepAlive(name)
	if errno != 0 {
		return 0, gone(errno)
	}
	return int(n), nil
}

// gone makes one error of the two by which proc says that a process is not there.
func gone(err error) error {
	if err == nil {
		return nil
	}
	if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // straight from a system call, and without allocating
		if errno == 0 {
			return nil
		}
		if errno == unix.ENOENT || errno == unix.ESRCH {
			return ErrGone
		}
	}
	return err
}
