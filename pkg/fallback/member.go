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
