package fallback

import (
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/procfs"
)

// passes is how often a sandbox is gone through to stop it by signals: who was
// not reached yet may have forked, or sent SIGCONT to others.
const passes = 8

// brake stops a sandbox and lets it continue: by the freezer, which it neither
// notices nor can undo, or else by signals.
type brake struct {
	freezer  freezer
	hold     int // HoldFile; -1: none
	frozen   bool
	signaled bool
}

// The marks in a HoldFile. They tell whoever takes the sandbox over after a
// crash that it was not somebody else who stopped it.
var marks = [...][]byte{{'-'}, {'F'}, {'S'}}

const (
	markNone = iota
	markFrozen
	markSignaled
)

func openBrake(s *Sandbox, alone bool) (brake, error) {
	b := brake{hold: -1, freezer: freezer{fd: -1}}
	if s.HoldFile == "" {
		return b, nil
	}
	var err error
	b.hold, err = unix.Open(s.HoldFile, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return b, &fs.PathError{Op: "open", Path: s.HoldFile, Err: err}
	}
	if alone {
		b.freezer = openFreezer(s.Cgroup)
	}
	return b, nil
}

func (b *brake) close() {
	closeIf(b.hold)
	closeIf(b.freezer.fd)
}

func closeIf(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

func (b *brake) mark(m int) {
	if b.hold >= 0 {
		_, _ = unix.Pwrite(b.hold, marks[m], 0)
	}
}

// marked reads the mark that an earlier supervisor left. Without a file for it,
// anything may have been stopped by it.
func (b *brake) marked() int {
	if b.hold < 0 {
		return markSignaled
	}
	var c [1]byte
	if n, err := unix.Pread(b.hold, c[:], 0); err != nil || n == 0 {
		return markNone
	}
	for m := range marks {
		if marks[m][0] == c[0] {
			return m
		}
	}
	return markNone
}

func (b *brake) on() bool { return b.frozen || b.signaled }

// freeze stops the sandbox by its freezer. It does not when that would be seen:
// somebody is looking at it.
func (b *brake) freeze() bool {
	if b.freezer.fd < 0 || unix.Flock(b.hold, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	b.mark(markFrozen)
	if b.freezer.set(true) == nil {
		b.frozen = true
		return true
	}
	b.mark(markNone)
	_ = unix.Flock(b.hold, unix.LOCK_UN)
	return false
}

func (b *brake) thaw() {
	if !b.frozen {
		return
	}
	// ENODEV: the cgroup is gone, and the processes with it.
	if err := b.freezer.set(false); err != nil && err != unix.ENODEV {
		return // tried again at the next look
	}
	b.frozen = false
	b.mark(markNone)
	_ = unix.Flock(b.hold, unix.LOCK_UN)
}

// freezer is the file of a cgroup that stops all processes in it.
type freezer struct {
	fd      int // -1: there is none
	on, off []byte
	buf     [32]byte
}

// openFreezer opens cgroup.freeze (cgroup-v2.rst) or freezer.state
// (cgroup-v1/freezer-subsystem.rst).
func openFreezer(c *cgroup.Paths) freezer {
	f := freezer{fd: -1}
	if c == nil {
		return f
	}
	controller, name := "", "cgroup.freeze"
	f.on, f.off = []byte("1"), []byte("0")
	if c.Version == 1 {
		controller, name = "freezer", "freezer.state"
		f.on, f.off = []byte("FROZEN"), []byte("THAWED")
	}
	if place, ok := c.Places[controller]; ok {
		if fd, err := openIn(place, name, unix.O_RDWR); err == nil {
			f.fd = fd
		}
	}
	return f
}

func (f *freezer) set(frozen bool) error {
	text := f.off
	if frozen {
		text = f.on
	}
	_, err := unix.Pwrite(f.fd, text, 0)
	return err
}

// frozen reports whether it is, or is about to be: on v1 FREEZING.
func (f *freezer) frozen() bool {
	n, err := unix.Pread(f.fd, f.buf[:], 0)
	return err == nil && n > 0 && f.buf[0] == f.on[0]
}

// halt stops the sandbox. One that its user froze is left as it is.
func (w *watched) halt(r *roster) {
	if w.brake.freezer.fd >= 0 && !w.brake.on() && w.brake.freezer.frozen() {
		return
	}
	if !w.brake.signaled && w.brake.freeze() {
		return
	}
	if !w.brake.signaled {
		w.brake.signaled = true
		w.brake.mark(markSignaled)
	}
	for range passes {
		if w.signalRunning(&r.read) == 0 {
			return
		}
		// Whom a member forked meanwhile. An error means that it is found later.
		_ = r.refresh(false)
	}
}

// signalRunning sends SIGSTOP to the members that run, parents first, so that no
// shell sees its children stop. It returns how many there were. What the sandbox
// stopped itself stays its own.
func (w *watched) signalRunning(r *procfs.Reader) int {
	sent := 0
	for i := range w.members {
		m := &w.members[i]
		st, err := r.Stat(m.dir)
		if err != nil || st.Ended() || st.State == 'T' {
			continue
		}
		if procfs.Signal(m.dir, unix.SIGSTOP) == nil {
			m.halted = true
			sent++
		}
	}
	return sent
}

// resume lets the sandbox continue, children first.
func (w *watched) resume() {
	w.brake.thaw()
	if !w.brake.signaled {
		return
	}
	for i := len(w.members) - 1; i >= 0; i-- {
		m := &w.members[i]
		if m.halted {
			m.halted = false
			_ = procfs.Signal(m.dir, unix.SIGCONT)
		}
	}
	w.brake.signaled = false
	w.brake.mark(markNone)
}

// recover lets continue what an earlier supervisor left stopped.
func (w *watched) recover(r *procfs.Reader) error {
	switch w.brake.marked() {
	case markFrozen:
		if w.brake.freezer.fd < 0 {
			return fmt.Errorf("the sandbox was left frozen, and its freezer cannot be opened")
		}
		if err := w.brake.freezer.set(false); err != nil {
			return fmt.Errorf("thaw the sandbox: %w", err)
		}
		w.brake.mark(markNone)
	case markSignaled:
		for i := range w.members {
			if st, err := r.Stat(w.members[i].dir); err == nil && st.State == 'T' {
				w.members[i].halted = true
			}
		}
		w.brake.signaled = true
		w.resume()
	}
	return nil
}

// held is how long a sandbox is left alone after somebody has opened its
// HoldFile: time to take the lock.
const held = 5 * time.Millisecond
