package fallback

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// The memory of a sandbox is the anonymous memory of its processes, resident or
// swapped out, their page tables, and shared memory, mapped or not: each page
// once. The cache of files is not in it: the kernel takes that back.
//
// It is measured from cheap to dear, and as deep as it takes to tell it from the
// limit:
//
//  1. statm: everything that is resident, the page tables that the address space
//     could need, all swap of the host, a bound of the shared memory.
//  2. status: private memory, which counts twice what two processes share since a
//     fork.
//  3. a scan of the shared memory (shmem.go).
//  4. smaps_rollup: each page once. The kernel walks all pages for it.

// memoryUse is what a measurement found.
type memoryUse struct {
	// Bytes is an upper bound of what the sandbox uses, a close one near the limit.
	// It may be above the limit without Over while a dear reading waits for its turn.
	Bytes int64
	// Over says that the sandbox uses more than its limit; Bytes is then a lower
	// bound.
	Over bool
}

const (
	// A dear reading may follow the one before when that has taken a fifth of the
	// time since: when there is a reason for it, and when there is none but age.
	pauseForReason, pauseForAge = 4, 100
	minAge                      = time.Second
	// Others wait so long for one part of an exact reading, or for one process.
	partOfReading = 20 * time.Millisecond
	// The space that one page table maps is 512 times its size.
	perPageTable = 512
)

// memoryHost is what the memory meters of an engine share. It belongs to the
// engine's thread.
type memoryHost struct {
	reader    procfs.Reader
	shmem     shmemReader
	last      procfs.HostMemory
	anonymous *procfs.Anonymous
	exact     bool // the kernel has smaps_rollup
	order     []int

	// By how much the whole host has risen, all rises together: nobody can have
	// grown by more since, but for what others gave back between two samples.
	shmemRisen, anonRisen int64
	anon                  int64
}

func newMemoryHost() (*memoryHost, error) {
	anonymous, err := procfs.OpenAnonymous()
	if err != nil {
		return nil, err
	}
	h := &memoryHost{anonymous: anonymous, exact: procfs.HasRollup()}
	if h.anon, err = anonymous.Read(); err == nil {
		err = h.shmem.open()
	}
	if err == nil {
		err = h.sample()
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *memoryHost) close() {
	h.anonymous.Close()
	h.shmem.close()
}

// sample looks at the whole host. It comes before the measurements of a round.
func (h *memoryHost) sample() error {
	now, err := procfs.ReadHostMemory()
	if err != nil {
		return err
	}
	if h.last != (procfs.HostMemory{}) {
		h.shmemRisen += max(0, now.Shmem-h.last.Shmem)
	}
	h.last = now
	return nil
}

func (h *memoryHost) swapped() int64 { return h.last.Swap - h.last.FreeSwap }

// sampleAnonymous looks at the anonymous memory of the host: a copy that a
// process makes of a page that it shared shows there, and not in its own size.
func (h *memoryHost) sampleAnonymous() error {
	now, err := h.anonymous.Read()
	if err != nil {
		return err
	}
	h.anonRisen += max(0, now-h.anon)
	h.anon = now
	return nil
}

// reading is when a dear reading was, and the CPU time that it took.
type reading struct {
	done     bool
	at, cost time.Duration
}

func (r reading) pause(times int64, now time.Duration) bool {
	return r.done && now-r.at < time.Duration(times)*r.cost
}

func (r reading) old(now time.Duration) bool {
	return now-r.at >= minAge && !r.pause(pauseForAge, now)
}

// memoryMeter is that of one sandbox; its zero value is ready.
type memoryMeter struct {
	scan       reading
	shmem      int64 // found by the scan
	shmemRisen int64 // of the host, then

	// The exact reading. It takes long where many processes share much, so it is
	// made in parts, and other sandboxes are looked at in between.
	exact     reading
	anon      int64 // found: private memory, each page once
	private   int64 // what counts twice, then
	others    int64 // what of it counts in other processes
	lazy      int64 // what of it the kernel takes back when it needs it
	anonRisen int64 // of the host, then

	pass     uint32 // the number of the last one that is complete
	underWay bool
	part     struct{ anon, private, others, lazy, anonRisen int64 }
	spent    time.Duration
}

// measure measures the members, of which there is none twice. now is a monotonic
// clock's. A member that has ended counts nothing. It has to run on a thread that
// nothing else runs on (runtime.LockOSThread): it enters other ipc namespaces.
func (m *memoryMeter) measure(h *memoryHost, members []member, limit int64, now time.Duration) (memoryUse, error) {
	resident, err := residentSum(&h.reader, members)
	if err != nil {
		return memoryUse{}, err
	}
	if bound := resident + h.swapped() + m.shmemBound(h); bound <= limit/2 {
		return memoryUse{Bytes: bound}, nil
	}

	private, largest, err := privateSum(&h.reader, members)
	if err != nil {
		return memoryUse{}, err
	}
	if m.scanDue(h, private, limit, now) {
		if err := m.scanShmem(h, members, now); err != nil {
			return memoryUse{}, err
		}
	}
	shmem := m.shmemBound(h)
	// The first exact reading comes early: the more of the limit is left when it is
	// done, the faster one may grow beyond it unseen.
	if near := private+shmem > limit/4*3 || !m.exact.done; !near || !h.exact {
		// Without exact readings what is shared since a fork counts twice.
		over := !h.exact && private+m.shmem > limit
		return memoryUse{Bytes: private + shmem, Over: over}, nil
	}
	// Enough is known of one that grows fast to do without another dear reading.
	if sure := max(largest-m.lazy, m.atLeast(members)) + m.shmem; m.exact.done && sure > limit {
		return memoryUse{Bytes: sure, Over: true}, nil
	}
	if err := h.sampleAnonymous(); err != nil {
		return memoryUse{}, err
	}
	if !m.underWay && m.exactDue(h, members, shmem, limit, now) {
		m.startExact(h, members)
	}
	if m.underWay {
		if sure := m.continueExact(h, members, limit-m.shmem, now) + m.shmem; sure > limit {
			return memoryUse{Bytes: sure, Over: true}, nil
		}
	}
	return memoryUse{Bytes: m.anonBound(h, members) + shmem}, nil
}

// residentSum is the cheap bound: it counts twice what two processes share.
func residentSum(r *procfs.Reader, members []member) (int64, error) {
	var sum int64
	for i := range members {
		own := &members[i]
		statm, err := r.Statm(own.dir)
		if err == nil && statm.Size == 0 {
			statm, err = own.findThread(r)
		}
		if err != nil && !errors.Is(err, procfs.ErrGone) {
			return 0, err
		}
		sum += statm.Resident + statm.Size/perPageTable
	}
	return sum, nil
}

// privateSum fills in what each has, and tells the sum and the largest.
func privateSum(r *procfs.Reader, members []member) (sum, largest int64, err error) {
	for i := range members {
		dir, err := members[i].open(r)
		if err != nil {
			return 0, 0, err
		}
		memory, err := r.Memory(dir)
		members[i].close(dir)
		if err != nil && !errors.Is(err, procfs.ErrGone) {
			return 0, 0, err
		}
		private := memory.Anon + memory.Swap + memory.PageTables
		members[i].memory.private, members[i].memory.tables = private, memory.PageTables
		sum += private
		largest = max(largest, private)
	}
	return sum, largest, nil
}

// shmemBound is what the scan found, and by how much the host has risen since.
func (m *memoryMeter) shmemBound(h *memoryHost) int64 {
	all := h.last.Shmem + h.swapped()
	if !m.scan.done {
		return all
	}
	return max(m.shmem, min(all, m.shmem+h.shmemRisen-m.shmemRisen))
}

func (m *memoryMeter) scanDue(h *memoryHost, private, limit int64, now time.Duration) bool {
	switch {
	case !m.scan.done:
		return true
	case private+m.shmemBound(h) > limit:
		return m.shmemBound(h) > m.shmem && !m.scan.pause(pauseForReason, now)
	}
	// Somebody else's giving back could have hidden a rise.
	return private+h.last.Shmem+h.swapped() > limit && m.scan.old(now)
}

func (m *memoryMeter) scanShmem(h *memoryHost, members []member, now time.Duration) error {
	start := procfs.OwnCPUTime()
	found, err := h.shmem.scan(members)
	if err != nil {
		return err
	}
	m.shmem, m.shmemRisen = found, h.shmemRisen
	m.scan = reading{done: true, at: now, cost: procfs.OwnCPUTime() - start}
	return nil
}

// anonBound is what the exact reading found, and what can have come to it. A page
// that is copied after a fork is in no process' own size, but in the host's.
func (m *memoryMeter) anonBound(h *memoryHost, members []member) int64 {
	var private, grown int64
	for i := range members {
		own := &members[i].memory
		private += own.private
		if own.pass == m.pass {
			grown += max(0, own.private-own.atExact)
		} else {
			grown += own.private
		}
	}
	if !m.exact.done {
		return private
	}
	return min(private, m.anon+max(grown, h.anonRisen-m.anonRisen))
}

// atLeast is a lower bound of the private memory, each page once: what those that
// were part of the exact reading have now, less what counted in others then. What
// a process gets after its fork is its own. The difference is of one reading: the
// size that was read before would not do, since a process may grow by a lot while
// the reading lasts.
func (m *memoryMeter) atLeast(members []member) int64 {
	sum := -m.others - m.lazy
	for i := range members {
		if own := &members[i].memory; own.pass == m.pass {
			sum += own.private
		}
	}
	return sum
}

func (m *memoryMeter) exactDue(h *memoryHost, members []member, shmem, limit int64, now time.Duration) bool {
	if !m.exact.done {
		return true
	}
	if m.anonBound(h, members)+shmem > limit {
		return !m.exact.pause(pauseForReason, now)
	}
	var private int64
	for i := range members {
		private += members[i].memory.private
	}
	return (private > m.private+limit/4 || private+shmem > limit) && m.exact.old(now)
}

func (m *memoryMeter) startExact(h *memoryHost, members []member) {
	for i := range members {
		members[i].memory.waits = true
	}
	m.underWay, m.spent = true, 0
	m.part.anon, m.part.private, m.part.others, m.part.lazy = 0, 0, 0, 0
	m.part.anonRisen = h.anonRisen
}

// continueExact goes on with the reading, the largest first, and tells how much
// private memory there is at least. It stops above enough.
//
// While it reads, a fork makes less of what it reads of the parent: the new one,
// which has the rest, is not part of the reading. So it also goes by what the
// largest has for itself.
func (m *memoryMeter) continueExact(h *memoryHost, members []member, enough int64, now time.Duration) int64 {
	h.order = h.order[:0]
	for i := range members {
		if members[i].memory.waits {
			h.order = append(h.order, i)
		}
	}
	slices.SortFunc(h.order, func(a, b int) int {
		return cmp.Compare(members[b].memory.private, members[a].memory.private)
	})
	start, worked := procfs.SinceBoot(), procfs.OwnCPUTime()
	var took time.Duration
	var alone int64
	left := len(h.order)
	for _, i := range h.order {
		own := &members[i].memory
		own.waits = false
		left--
		var lazy int64
		rollup, err := members[i].rollup(&h.reader)
		switch {
		case errors.Is(err, procfs.ErrGone):
			continue
		case err != nil: // not for us to look into: as much as it can be
			m.part.anon += own.private
		default:
			lazy = min(rollup.LazyFree, rollup.Anon)
			m.part.anon += rollup.Anon - lazy + rollup.Swap + own.tables
		}
		own.atExact, own.pass = own.private, m.pass+1
		m.part.private += own.private
		m.part.others += rollup.Others
		m.part.lazy += lazy
		alone = max(alone, own.private-lazy)
		took = procfs.SinceBoot() - start
		if max(alone, m.part.anon) > enough || took > partOfReading {
			break
		}
	}
	m.spent += procfs.OwnCPUTime() - worked
	if left == 0 {
		m.underWay = false
		m.pass++
		m.anon, m.private, m.anonRisen = m.part.anon, m.part.private, m.part.anonRisen
		m.others, m.lazy = m.part.others, m.part.lazy
		m.exact = reading{done: true, at: now + took, cost: m.spent}
	}
	return max(alone, m.part.anon)
}
