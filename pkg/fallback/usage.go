package fallback

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/procfs"
)

// waitSlack is how much CPU time of children may show up late in a parent's
// number, which is in ticks of the clock.
const waitSlack = int64(10 * time.Millisecond)

// cpuFile is the file of a cgroup that counts CPU time, held open.
type cpuFile struct {
	fd    int // -1: there is none
	first []byte
	unit  int64 // nanoseconds
	buf   [256]byte
}

// openCPUFile opens cpuacct.usage (cgroup-v1/cpuacct.rst) or cpu.stat, which is
// there without any controller (cgroup-v2.rst).
func openCPUFile(c *cgroup.Paths) cpuFile {
	f := cpuFile{fd: -1}
	if c == nil {
		return f
	}
	controller, name := "", "cpu.stat"
	f.first, f.unit = []byte("usage_usec "), 1000
	if c.Version == 1 {
		controller, name = "cpuacct", "cpuacct.usage"
		f.first, f.unit = nil, 1
	}
	if place, ok := c.Places[controller]; ok {
		if fd, err := openIn(place, name, unix.O_RDONLY); err == nil {
			f.fd = fd
		}
	}
	return f
}

// read returns the CPU time that the cgroup has used, in nanoseconds.
func (f *cpuFile) read() (int64, error) {
	n, err := unix.Pread(f.fd, f.buf[:], 0)
	if err != nil {
		return 0, err
	}
	rest, ok := bytes.CutPrefix(f.buf[:n], f.first)
	if !ok {
		return 0, procfs.ErrFormat
	}
	var total int64
	for i, c := range rest {
		if c < '0' || c > '9' {
			if i == 0 {
				return 0, procfs.ErrFormat
			}
			break
		}
		total = total*10 + int64(c-'0')
	}
	return total * f.unit, nil
}

// openIn opens a file of a cgroup, after a look whether the folder still is that
// of the same cgroup.
func openIn(p cgroup.Place, name string, flags int) (int, error) {
	dir, err := unix.Open(p.Dir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: p.Dir(), Err: err}
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return -1, &fs.PathError{Op: "stat", Path: p.Dir(), Err: err}
	}
	if p.ID != 0 && st.Ino != p.ID {
		return -1, fmt.Errorf("%s: %w: another cgroup has this name now", p.Dir(), fs.ErrNotExist)
	}
	fd, err := unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: p.Dir() + "/" + name, Err: err}
	}
	return fd, nil
}

// alone reports whether all processes in a cgroup, and below it, are members:
// what is shared with others neither counts for a sandbox nor may be frozen.
func (w *watched) alone(c *cgroup.Paths) bool {
	for _, controller := range []string{"", "cpuacct", "freezer"} {
		place, ok := c.Places[controller]
		if !ok {
			continue
		}
		if place.Path == "/" || place.Path == "" {
			return false
		}
		one := cgroup.Paths{Version: 2, Places: map[string]cgroup.Place{"": place}}
		cg, err := cgroup.Open(cgroup.Host, one)
		if err != nil {
			return false
		}
		pids, err := cg.Procs()
		if err != nil {
			return false
		}
		for _, pid := range pids {
			if !w.has(pid) {
				return false
			}
		}
	}
	return true
}

// has reports whether a pid is that of a member, or of nobody any more.
func (w *watched) has(pid int) bool {
	for i := range w.members {
		if w.members[i].pid == pid {
			return true
		}
	}
	return unix.Kill(pid, 0) == unix.ESRCH
}

// countCPU returns how much CPU time the sandbox has used since the last time.
// It finds out which members have ended.
func (w *watched) countCPU(r *procfs.Reader) int64 {
	if w.cpuFile.fd >= 0 {
		if total, err := w.cpuFile.read(); err == nil {
			used := total - w.cpuTotal
			w.cpuTotal = total
			return max(0, used)
		}
		// The cgroup is gone, and the processes soon are.
		unix.Close(w.cpuFile.fd)
		w.cpuFile.fd = -1
	}
	var own, waited, ended int64
	for i := range w.members {
		m := &w.members[i]
		cpu, err := procfs.CPUTime(m.pid)
		if err == nil && int64(cpu) == m.cpu {
			continue
		}
		st, err := r.Stat(m.dir)
		if errors.Is(err, procfs.ErrGone) {
			m.gone, w.ended = true, true
			ended += m.cpu + m.waited
			continue
		}
		if err != nil {
			continue
		}
		children := int64(st.CUTime + st.CSTime)
		own += max(0, int64(cpu)-m.cpu)
		waited += max(0, children-m.waited)
		m.cpu, m.waited = max(m.cpu, int64(cpu)), max(m.waited, children)
		m.threads = int64(st.Threads)
	}
	return own + w.waited.add(waited, ended, waitSlack*int64(len(w.members)))
}

// countIO returns how many bytes were read and written since the last time.
func (w *watched) countIO(r *procfs.Reader) (read, written int64) {
	var grown, ended procfs.IO
	for i := range w.members {
		m := &w.members[i]
		now, err := r.IO(m.dir)
		switch {
		case err == nil:
			grown.Read += max(0, now.Read-m.io.Read)
			grown.Written += max(0, now.Written-m.io.Written)
			m.io = now
		case errors.Is(err, procfs.ErrGone):
			m.gone, w.ended = true, true
			ended.Read += m.io.Read
			ended.Written += m.io.Written
			m.io = procfs.IO{}
		}
	}
	return w.reads.add(grown.Read, ended.Read, 0), w.writes.add(grown.Written, ended.Written, 0)
}

// countTasks counts threads.
func (w *watched) countTasks(r *procfs.Reader) int64 {
	var tasks int64
	for i := range w.members {
		m := &w.members[i]
		st, err := r.Stat(m.dir)
		switch {
		case err == nil:
			m.threads = int64(st.Threads)
			tasks += m.threads
		case errors.Is(err, procfs.ErrGone):
			m.gone, w.ended = true, true
			m.threads = 0
		}
	}
	return tasks
}

// forget drops the members that have ended.
func (w *watched) forget() {
	if !w.ended {
		return
	}
	w.ended = false
	kept := w.members[:0]
	for _, m := range w.members {
		if m.gone {
			procfs.Close(m.dir)
			continue
		}
		kept = append(kept, m)
	}
	w.members = kept
}

// parallel is how many CPUs the sandbox can use at once.
func (w *watched) parallel(cpus int) float64 {
	return float64(min(int64(cpus), max(1, w.use.Tasks, int64(len(w.members)))))
}
