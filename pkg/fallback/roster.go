package fallback

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// probeAtMost is up to how many new pids are looked at one by one: a listing of
// all processes costs about as much.
const probeAtMost = 256

// known is a process of this machine that was looked at.
type known struct {
	pid int
	ino uint64 // of its folder in proc: who gets the pid later has another one; 0: not seen in a listing yet
	of  *watched
	// foreign says that it is in a pid namespace that is neither ours nor that
	// of a sandbox: one that is added later may own it.
	foreign bool
	again   bool // it was not looked at: for want of descriptors, or there were too many
}

// roster knows for each process of this machine to which sandbox it belongs:
// the one whose pid namespace is its own or one above its own. What a process
// does (fork, setsid, setuid, unshare, being orphaned) takes it out of neither,
// and who enters the namespace from outside is in it.
type roster struct {
	proc   int // the folder /proc
	read   procfs.Reader
	latest *procfs.LastPid
	own    uint64 // the pid namespace of the supervisor
	byNS   map[uint64]*watched
	all    []known // by pid
	spare  []known
	seen   []procfs.Entry
	last   int   // the last pid that was given out when we looked
	pidMax int   // where pids start anew
	born   int64 // how many pids were given out since the start
	rest   bool  // there are some to look at again
}

func (r *roster) open() (err error) {
	r.byNS, r.proc = make(map[uint64]*watched), -1
	if r.own, err = r.read.NamespaceOf(os.Getpid(), procfs.PIDNamespace); err != nil {
		return fmt.Errorf("look up the pid namespace of this process: %w", err)
	}
	if r.pidMax, err = pidMax(); err != nil {
		return err
	}
	if r.latest, err = procfs.OpenLastPid(); err != nil {
		return fmt.Errorf("open /proc/loadavg: %w", err)
	}
	if r.proc, err = procfs.OpenRoot(); err != nil {
		return fmt.Errorf("open /proc: %w", err)
	}
	return nil
}

// refresh looks for new processes: at each pid that was given out since the last
// time, or at all that there are.
func (r *roster) refresh(whole bool) error {
	last, err := r.latest.Read()
	if err != nil {
		return fmt.Errorf("look for new processes: %w", err)
	}
	before := r.last
	fresh := last - before
	if fresh < 0 {
		fresh += r.pidMax
	}
	r.last = last
	r.born += int64(fresh)
	if whole || r.rest || fresh > probeAtMost {
		return r.relist()
	}
	for i := 1; i <= fresh; i++ {
		r.probe((before + i) % r.pidMax)
	}
	return nil
}

// probe looks at one pid. That of a thread is nobody's folder in a listing, but
// can be opened: only pidfd_open(2) tells.
func (r *roster) probe(pid int) {
	if pid <= 0 {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	unix.Close(fd)
	i, found := slices.BinarySearchFunc(r.all, pid, func(k known, pid int) int { return cmp.Compare(k.pid, pid) })
	k := r.lookAt(pid)
	if found {
		r.all[i] = k
		return
	}
	r.all = slices.Insert(r.all, i, k)
}

// relist goes through a listing of all processes, beside what is known.
func (r *roster) relist() error {
	var err error
	if r.seen, err = r.read.List(r.proc, r.seen[:0]); err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	if !slices.IsSortedFunc(r.seen, func(a, b procfs.Entry) int { return cmp.Compare(a.Number, b.Number) }) {
		slices.SortFunc(r.seen, func(a, b procfs.Entry) int { return cmp.Compare(a.Number, b.Number) })
	}
	r.rest = false
	next, before := r.spare[:0], r.all
	for _, e := range r.seen {
		for len(before) > 0 && before[0].pid < e.Number {
			before = before[1:]
		}
		if len(before) > 0 && before[0].pid == e.Number && before[0].ino == e.Ino && !before[0].again {
			next = append(next, before[0])
			continue
		}
		k := r.lookAt(e.Number)
		k.ino = e.Ino
		next = append(next, k)
	}
	r.spare, r.all = r.all, next
	return nil
}

// lookAt finds out whose process this is, and makes it a member there.
func (r *roster) lookAt(pid int) known {
	k := known{pid: pid}
	ns, err := r.read.NamespaceOf(pid, procfs.PIDNamespace)
	if err != nil || ns == r.own {
		return k
	}
	if w := r.byNS[ns]; w != nil && w.full() {
		k.again, r.rest = true, true
		return k
	}
	dir, err := r.read.Open(pid)
	if err != nil {
		k.again = !errors.Is(err, procfs.ErrGone)
		r.rest = r.rest || k.again
		return k
	}
	// The number of a namespace is used again, but not while its init lives.
	if k.of = r.byNS[ns]; k.of == nil || procfs.HasEnded(k.of.pidfd) {
		k.of = r.owner(dir)
	}
	k.foreign = k.of == nil
	if k.of == nil || !r.admit(k.of, pid, dir) {
		procfs.Close(dir)
	}
	return k
}

// owner finds the sandbox in whose pid namespace a process is, or below.
func (r *roster) owner(dir int) *watched {
	ns, err := unix.Openat(dir, "ns/pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	for {
		var st unix.Stat_t
		err := unix.Fstat(ns, &st)
		if w := r.byNS[st.Ino]; err != nil || w != nil || st.Ino == r.own {
			unix.Close(ns)
			// The number of a namespace is used again. This one is held open, so
			// a sandbox that lives is the one that has it.
			if w != nil && procfs.HasEnded(w.pidfd) {
				return nil
			}
			return w
		}
		above, err := unix.IoctlRetInt(ns, unix.NS_GET_PARENT)
		unix.Close(ns)
		if err != nil {
			return nil
		}
		ns = above
	}
}

// admit makes a process a member; false: it is one already, or has ended.
func (r *roster) admit(w *watched, pid, dir int) bool {
	st, err := r.read.Stat(dir)
	if err != nil {
		return false
	}
	m := member{pid: pid, start: st.StartTime, dir: dir, threads: int64(st.Threads)}
	var added bool
	w.members, added = insert(w.members, m)
	w.changed = w.changed || added
	return added
}

// enter adds a sandbox. Whoever is in a namespace that was nobody's is looked at
// again.
func (r *roster) enter(w *watched) error {
	r.byNS[w.ns] = w
	r.all = slices.DeleteFunc(r.all, func(k known) bool { return k.foreign })
	return r.refresh(true)
}

func (r *roster) leave(w *watched) {
	delete(r.byNS, w.ns)
	for i := range r.all {
		if r.all[i].of == w {
			r.all[i] = known{pid: r.all[i].pid}
		}
	}
}

func (r *roster) close() {
	if r.latest != nil {
		r.latest.Close()
	}
	closeIf(r.proc)
}

// relistEvery is how often all processes are listed when there are new ones:
// what a look at single pids misses cannot be missed for longer.
const relistEvery = 5 * time.Second
