package fallback

// ledger sums up what the processes of a sandbox have used, of something that
// the kernel counts for each process and, once its parent has waited for it,
// adds to what that parent's children used.
//
// A process that is gone was counted before, and is counted again when it shows
// in its parent's number. What is gone is therefore taken off what has grown.
// It may show up later than the process disappears, so it is owed for a while.
// A process for which nobody waits shows up nowhere: that is why what is owed
// is forgotten beyond a slack.
type ledger struct {
	total int64
	owed  int64
}

// add takes into account by how much the numbers of the processes have grown,
// what those had that are gone, and how much may show up late. It returns by how
// much the total has grown.
func (l *ledger) add(grown, gone, slack int64) int64 {
	l.owed += gone
	settled := min(l.owed, grown)
	l.owed = min(l.owed-settled, max(slack, gone))
	l.total += grown - settled
	return grown - settled
}
