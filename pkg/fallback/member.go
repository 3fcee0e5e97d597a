package fallback

import (
	"cmp"
	"slices"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// member is a process of a sandbox. It is held by the descriptor of its folder
// in /proc: what is read and what is signalled through it is this process, even
// when its pid is used again.
type member struct {
	pid   int
	start uint64 // procfs.Stat.StartTime
	dir   int    // of procfs.Reader.Open

	memory memberMemory // of the memory meter

	threads int64
	cpu     int64 // CPU time of its own, nanoseconds
	waited  int64 // CPU time of children that it has waited for
	io      procfs.IO
	halted  bool // stopped by a signal of ours
	gone    bool
}

// byAge puts parents before their children: a child starts later, and who
// adopts one is older.
func byAge(a, b member) int {
	return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.pid, b.pid))
}

// insert keeps the members in order of their age. One that is there already is
// not added.
func insert(members []member, m member) ([]member, bool) {
	i, found := slices.BinarySearchFunc(members, m, byAge)
	if found {
		return members, false
	}
	return slices.Insert(members, i, m), true
}

// memberMemory is what the memory meter knows of one process, in bytes.
type memberMemory struct {
	private int64  // anonymous memory, resident or swapped out, and page tables: alone or shared with others
	tables  int64  // of that: page tables
	atExact int64  // private when the last exact reading came to it
	pass    uint32 // the number of that reading
	waits   bool   // the reading that is under way has not come to it
	thread  int    // when its first thread has ended: one that lives; 0: the first
}

// findThread looks for a thread that lives when the first one has ended: the
// kernel shows the memory of a process through its threads only.
func (m *member) findThread(r *procfs.Reader) (procfs.Statm, error) {
	m.memory.thread = 0
	st, err := r.Stat(m.dir)
	if err != nil || !st.Ended() || st.Threads < 2 {
		return procfs.Statm{}, err
	}
	m.memory.thread, err = r.LivingThread(m.dir)
	if err != nil || m.memory.thread == 0 {
		return procfs.Statm{}, err
	}
	dir, err := m.open(r)
	if err != nil {
		return procfs.Statm{}, err
	}
	defer m.close(dir)
	return r.Statm(dir)
}

// open returns the folder to read its memory through, for close.
func (m *member) open(r *procfs.Reader) (int, error) {
	if m.memory.thread == 0 {
		return m.dir, nil
	}
	return r.OpenThread(m.dir, m.memory.thread)
}

func (m *member) close(dir int) {
	if dir != m.dir {
		procfs.Close(dir)
	}
}

func (m *member) rollup(r *procfs.Reader) (procfs.Rollup, error) {
	dir, err := m.open(r)
	if err != nil {
		return procfs.Rollup{}, err
	}
	defer m.close(dir)
	return r.Rollup(dir)
}
