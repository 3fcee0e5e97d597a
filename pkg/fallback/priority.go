package fallback

import "golang.org/x/sys/unix"

// hurry has a thread run before all others; 0: this one. Who watches over a
// sandbox that wants all the CPU must not wait for it. It needs little, and
// real-time scheduling (sched(7)) is not for its children. Where that is not
// allowed the best of the usual priorities has to do, and where that is not, the
// usual one.
func hurry(tid int) {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK}
	if unix.SchedSetAttr(tid, &attr, 0) == nil {
		return
	}
	attr = unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: -20, Flags: unix.SCHED_FLAG_RESET_ON_FORK}
	_ = unix.SchedSetAttr(tid, &attr, 0)
}
