package procfs

import (
	"encoding/binary"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Entry is a number in a folder of proc.
type Entry struct {
	Number int    // a pid, or a descriptor
	Ino    uint64 // of a pid in /proc: another one when the pid is used again
}

// OpenRoot opens /proc itself, for List.
func OpenRoot() (int, error) { return openAt(unix.AT_FDCWD, fileProc, unix.O_DIRECTORY) }

// OpenFDs opens the folder of a process' descriptors, for List and FD.
func (r *Reader) OpenFDs(dir int) (int, error) { return openAt(dir, folderFD, unix.O_DIRECTORY) }

// OpenThread opens the folder of one of its threads, to read from in its place.
func (r *Reader) OpenThread(dir, thread int) (int, error) {
	b := strconv.AppendInt(append(r.name[:0], "task/"...), int64(thread), 10)
	return openAt(dir, append(b, 0), unix.O_DIRECTORY)
}

// Threads appends the threads of a process.
func (r *Reader) Threads(dir int, into []Entry) ([]Entry, error) {
	tasks, err := openAt(dir, folderTask, unix.O_DIRECTORY)
	if err != nil {
		return into, err
	}
	defer Close(tasks)
	return r.List(tasks, into)
}

// LivingThread tells a thread of a process that has memory to show; 0: none has.
// It is for a process of which the first thread has ended: its folder then shows
// no memory, and no descriptors. It allocates when there are many threads.
func (r *Reader) LivingThread(dir int) (int, error) {
	var few [64]Entry
	threads, err := r.Threads(dir, few[:0])
	if err != nil {
		return 0, err
	}
	for _, e := range threads {
		thread, err := r.OpenThread(dir, e.Number)
		if err != nil {
			continue
		}
		statm, err := r.Statm(thread)
		Close(thread)
		if err == nil && statm.Size > 0 {
			return e.Number, nil
		}
	}
	return 0, nil
}

// List appends what has a number for a name in the folder, from its start on.
// It allocates when the slice is too small.
func (r *Reader) List(folder int, into []Entry) ([]Entry, error) {
	if _, err := unix.Seek(folder, 0, unix.SEEK_SET); err != nil {
		return into, gone(err)
	}
	for {
		n, err := unix.Getdents(folder, r.buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return into, gone(err)
		}
		into = appendEntries(into, r.buf[:n])
	}
}

// appendEntries reads the answer of getdents64(2): number, offset, length of the
// record, type, name.
func appendEntries(into []Entry, data []byte) []Entry {
	const fixed = 19
	for len(data) > fixed {
		size := int(binary.NativeEndian.Uint16(data[16:]))
		if size <= fixed || size > len(data) {
			return into
		}
		name := data[fixed:size]
		n := 0
		digits := 0
		for ; digits < len(name) && name[digits] >= '0' && name[digits] <= '9' && digits < 10; digits++ {
			n = n*10 + int(name[digits]-'0')
		}
		if digits > 0 && digits < len(name) && name[digits] == 0 {
			into = append(into, Entry{Number: n, Ino: binary.NativeEndian.Uint64(data)})
		}
		data = data[size:]
	}
	return into
}

// Inode is what a descriptor or a mapping refers to.
type Inode struct {
	Dev     Dev
	Ino     uint64
	Regular bool  // a regular file
	Bytes   int64 // that it occupies, in memory where it has no disk
}

// FD looks at a descriptor in the folder of OpenFDs. The file system is not
// asked: one that a process of the sandbox serves would answer when it likes.
func (r *Reader) FD(folder, fd int) (Inode, error) {
	return r.inode(folder, append(strconv.AppendInt(r.name[:0], int64(fd), 10), 0))
}

// MappedFile looks in the same way at the file of a mapping. It needs
// CAP_CHECKPOINT_RESTORE in the first user namespace.
func (r *Reader) MappedFile(dir int, m Mapping) (Inode, error) {
	b := strconv.AppendUint(append(r.name[:0], "map_files/"...), m.Start, 16)
	b = strconv.AppendUint(append(b, '-'), m.End, 16)
	return r.inode(dir, append(b, 0))
}

func (r *Reader) inode(dir int, name []byte) (Inode, error) {
	var st unix.Statx_t
	_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(&name[0])),
		unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_BLOCKS, uintptr(unsafe.Pointer(&st)), 0)
	runtime.KeepAlive(name)
	if errno != 0 {
		return Inode{}, gone(errno)
	}
	return Inode{
		Dev:     MakeDev(st.Dev_major, st.Dev_minor),
		Ino:     st.Ino,
		Regular: st.Mode&unix.S_IFMT == unix.S_IFREG,
		Bytes:   int64(st.Blocks) * 512,
	}, nil
}
