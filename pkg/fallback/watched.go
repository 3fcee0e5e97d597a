package fallback

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// watched is a sandbox that is watched over.
type watched struct {
	Sandbox
	pidfd   int // of its first process
	ns      uint64
	members []member
	changed bool // there are new members
	ended   bool // some have ended

	cpuFile               cpuFile
	cpuTotal              int64 // of cpuFile
	waited, reads, writes ledger

	brake            brake
	inotify          int // the watch of inotify(7), on HoldFile; -1: none
	free             time.Duration
	cpu, read, write throttle

	use     Use
	looked  time.Duration
	next    time.Duration // when to look again
	quiet   time.Duration // since when nothing runs although it is stopped by signals
	memory  headroom
	meter   memoryMeter
	tasks   headroom
	crowded int // how often in a row it had too many tasks
	spentAt time.Duration

	struck bool          // its end is recorded
	killAt time.Duration // when a budget is used up: the end of the grace
	killed bool
}

// throttle is a bucket, and how fast it was emptied.
type throttle struct {
	bucket
	speed float64
}

// take also keeps the speed. A sandbox that is let go again is likely to be as
// fast as it was before.
func (t *throttle) take(now, since time.Duration, used int64, stopped bool) {
	if !t.limited() {
		return
	}
	t.bucket.take(now, used)
	if !stopped && now > since {
		t.speed = max(float64(used)/(now-since).Seconds(), t.speed/2)
	}
}

// headroom is how far a sandbox was from a limit when that was measured, and
// what the whole machine had then: as long as the machine has not got more by
// as much, the sandbox cannot have crossed.
type headroom struct {
	limit int64
	left  int64
	host  int64
	at    time.Duration
	moved bool // the sandbox did something since
}

func (h *headroom) measured(used, host int64, now time.Duration) {
	*h = headroom{limit: h.limit, left: h.limit - used, host: host, at: now}
}

// due reports whether it has to be measured. Growth can be hidden behind what
// others give back, so it is also measured from time to time.
func (h *headroom) due(host int64, now time.Duration) bool {
	base := time.Second
	if h.left < h.limit/2 {
		base /= 4
	}
	return h.limit > 0 && (host-h.host > h.left/2 || now-h.at >= base)
}

// same is called instead of measured when the sandbox did nothing meanwhile.
func (h *headroom) same(host int64, now time.Duration) { h.host, h.at = host, now }

func watch(s Sandbox, r *roster, now time.Duration) (w *watched, err error) {
	w = &watched{Sandbox: s, pidfd: -1, inotify: -1, looked: now, next: now, spentAt: now}
	w.cpuFile.fd, w.brake.hold, w.brake.freezer.fd = -1, -1, -1
	if w.pidfd, err = r.read.OpenPidfd(s.Init); err != nil {
		return nil, fmt.Errorf("hold process %d: %w", s.Init.Pid, err)
	}
	if w.ns, err = r.read.NamespaceOf(s.Init.Pid, procfs.PIDNamespace); err != nil {
		unix.Close(w.pidfd)
		return nil, fmt.Errorf("look up the pid namespace of process %d: %w", s.Init.Pid, err)
	}
	w.cpu.bucket = newBucket(s.Limits.CPU*1000, now) // nanoseconds in a second
	w.read.bucket = newBucket(s.Limits.ReadBPS, now)
	w.write.bucket = newBucket(s.Limits.WriteBPS, now)
	w.memory.limit, w.tasks.limit = s.Limits.Memory, s.Limits.Pids
	return w, nil
}

// ready is called when the members are known: it lets go what an earlier
// supervisor held, and takes what was used until now as the start.
func (w *watched) ready(r *procfs.Reader) (err error) {
	alone := w.Cgroup != nil && w.alone(w.Cgroup)
	if w.brake, err = openBrake(&w.Sandbox, alone); err != nil {
		return err
	}
	if err := w.recover(r); err != nil {
		return err
	}
	if alone {
		w.cpuFile = openCPUFile(w.Cgroup)
	}
	w.use.CPU = max(w.Spent.CPU, time.Duration(w.countCPU(r)))
	w.countIO(r)
	return nil
}

func (w *watched) close() {
	for i := range w.members {
		procfs.Close(w.members[i].dir)
	}
	w.members = nil
	w.brake.close()
	closeIf(w.cpuFile.fd)
	closeIf(w.pidfd)
}

// init is the first process among the members; nil: it is none any more.
func (w *watched) init() *member {
	i := slices.IndexFunc(w.members, func(m member) bool { return m.pid == w.Init.Pid && m.start == w.Init.StartTime })
	if i < 0 {
		return nil
	}
	return &w.members[i]
}
