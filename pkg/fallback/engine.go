package fallback

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// ErrClosed says that the engine does not run any more.
var ErrClosed = errors.New("the supervisor's engine is closed")

// Engine watches over sandboxes. All its work is done by Run, on one thread.
type Engine struct {
	host Host
	cpus int

	poll, timer, wake, inotify int
	done                       chan struct{}
	started                    atomic.Bool // by Run, or it never will

	mu     sync.Mutex
	calls  []func()
	closed bool // no call is taken any more

	closing bool

	roster                         roster
	memory                         *memoryHost
	all                            []*watched
	nextTick, nextSample, nextLook time.Duration
	listed                         time.Duration // when all processes were listed last
	// listedBorn is how many pids had been given out then.
	listedBorn int64
	events     [64]unix.EpollEvent
	buf        [4096]byte
}

// The descriptors that are no pidfd of a sandbox, in the data of epoll events.
const (
	eventTimer = -1 - iota
	eventWake
	eventHold
)

const processors = 4

// New returns an engine; Run starts it. The methods of the host must not call
// the engine.
func New(h Host) (_ *Engine, err error) {
	e := &Engine{
		host: h, cpus: runtime.NumCPU(), poll: -1, timer: -1, wake: -1, inotify: -1,
		done: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			e.closeFiles()
		}
	}()
	if err := e.roster.open(); err != nil {
		return nil, err
	}
	if e.memory, err = newMemoryHost(); err != nil {
		return nil, fmt.Errorf("look at the memory of this machine: %w", err)
	}
	if e.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	if e.timer, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("timerfd_create: %w", err)
	}
	if e.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if e.inotify, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		return nil, fmt.Errorf("inotify_init1: %w", err)
	}
	for fd, id := range map[int]int32{e.timer: eventTimer, e.wake: eventWake, e.inotify: eventHold} {
		if err := e.listen(fd, id); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (e *Engine) listen(fd int, id int32) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}
	if err := unix.EpollCtl(e.poll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

func (e *Engine) closeFiles() {
	for _, fd := range []int{e.poll, e.timer, e.wake, e.inotify} {
		closeIf(fd)
	}
	if e.memory != nil {
		e.memory.close()
	}
	e.roster.close()
}

func (e *Engine) now() time.Duration { return procfs.SinceBoot() }

// Run watches over the sandboxes until Close.
func (e *Engine) Run() error {
	if !e.started.CompareAndSwap(false, true) {
		return ErrClosed
	}
	return e.run()
}

func (e *Engine) run() (err error) {
	// System calls that are a thread's own (namespaces, priority) are made here;
	// and who was stopped for long may be late.
	runtime.LockOSThread()
	hurry(0)
	// Go lets a thread that returns from a system call go on when one of its
	// processors is free, and not while threads that a fork bomb keeps from
	// running have them all.
	if runtime.GOMAXPROCS(0) < processors {
		runtime.GOMAXPROCS(processors)
	}
	defer func() {
		for len(e.all) > 0 {
			e.drop(e.all[0])
		}
		e.finish()
	}()
	for !e.closing {
		if err := e.sleep(); err != nil {
			return err
		}
		n, err := unix.EpollWait(e.poll, e.events[:], -1)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("epoll_wait: %w", err)
		}
		now := e.now()
		for i := range max(n, 0) {
			e.event(e.events[i].Fd, now)
		}
		if err := e.round(e.now()); err != nil {
			return err
		}
	}
	return nil
}

// round looks at the machine and at the sandboxes when it is time to.
func (e *Engine) round(now time.Duration) error {
	if len(e.all) == 0 {
		return nil
	}
	if now >= e.nextTick {
		if err := e.tick(now); err != nil {
			return err
		}
	}
	if now < e.nextLook {
		return nil
	}
	e.nextLook = now + time.Hour
	for _, w := range e.all {
		if w.next <= now {
			e.look(w, e.now())
		}
		e.nextLook = min(e.nextLook, w.next)
	}
	return nil
}

// lookAt sets when a sandbox is looked at.
func (e *Engine) lookAt(w *watched, at time.Duration) {
	w.next = at
	e.nextLook = min(e.nextLook, at)
}

// sleep sets the timer to the next time that something has to be looked at.
func (e *Engine) sleep() error {
	var spec unix.ItimerSpec // 0: off
	if len(e.all) > 0 {
		spec.Value = unix.NsecToTimespec(int64(max(min(e.nextTick, e.nextLook), 1)))
	}
	if err := unix.TimerfdSettime(e.timer, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return fmt.Errorf("timerfd_settime: %w", err)
	}
	return nil
}

func (e *Engine) event(id int32, now time.Duration) {
	switch id {
	case eventTimer:
		_, _ = unix.Read(e.timer, e.buf[:8])
	case eventWake:
		_, _ = unix.Read(e.wake, e.buf[:8])
		e.mu.Lock()
		calls := e.calls
		e.calls = nil
		e.mu.Unlock()
		for _, call := range calls {
			call()
		}
	case eventHold:
		e.opened(now)
	default:
		if i := slices.IndexFunc(e.all, func(w *watched) bool { return w.pidfd == int(id) }); i >= 0 {
			e.end(e.all[i])
		}
	}
}

// opened lets sandboxes continue whose HoldFile somebody opened, who is about
// to look at them.
func (e *Engine) opened(now time.Duration) {
	for {
		n, err := unix.Read(e.inotify, e.buf[:])
		if err != nil || n < unix.SizeofInotifyEvent {
			return
		}
		for b := e.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			watch := int(int32(binary.NativeEndian.Uint32(b)))
			name := binary.NativeEndian.Uint32(b[unsafe.Offsetof(unix.InotifyEvent{}.Len):])
			b = b[unix.SizeofInotifyEvent+int(name):]
			for _, w := range e.all {
				if w.inotify == watch && w.brake.frozen {
					w.resume()
					w.free = now + held
					e.lookAt(w, w.free)
				}
			}
		}
	}
}

// end is called when the first process has ended, and with it all others.
func (e *Engine) end(w *watched) {
	exit := exitOf(w.pidfd, w.Init)
	if w.Limits.CPUTime > 0 {
		w.use.CPU += time.Duration(w.countCPU(&e.roster.read))
	}
	e.noteSpent(w, w.spentAt)
	e.drop(w)
	e.host.Ended(w.Key, exit)
}

// drop lets a sandbox go as it is, running.
func (e *Engine) drop(w *watched) {
	w.resume()
	if w.inotify >= 0 {
		_, _ = unix.InotifyRmWatch(e.inotify, uint32(w.inotify))
	}
	e.roster.leave(w)
	e.all = slices.DeleteFunc(e.all, func(other *watched) bool { return other == w })
	w.close()
}

// do has a function called on the engine's thread, and waits for it.
func (e *Engine) do(call func()) error {
	finished := make(chan struct{})
	if err := e.enqueue(func() { call(); close(finished) }); err != nil {
		return err
	}
	select {
	case <-finished:
		return nil
	case <-e.done:
		return ErrClosed
	}
}

func (e *Engine) enqueue(call func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	e.calls = append(e.calls, call)
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	if _, err := unix.Write(e.wake, one[:]); err != nil {
		return fmt.Errorf("wake the engine: %w", err)
	}
	return nil
}

// finish is the end: whoever waits for a call is told.
func (e *Engine) finish() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	close(e.done)
	e.closeFiles()
}

// Add watches over a sandbox. When it returns, the sandbox was measured once and
// is held to its limits; what an earlier supervisor left stopped continues.
func (e *Engine) Add(s Sandbox) error {
	var err error
	if closed := e.do(func() { err = e.add(s) }); closed != nil {
		return closed
	}
	return err
}

func (e *Engine) add(s Sandbox) error {
	if e.find(s.Key) != nil {
		return fmt.Errorf("sandbox %s is watched over already", s.Key)
	}
	w, err := watch(s, &e.roster, e.now())
	if err != nil {
		return err
	}
	if err := e.start(w); err != nil {
		e.drop(w)
		return err
	}
	return nil
}

func (e *Engine) start(w *watched) error {
	if w.ns == e.roster.own || e.roster.byNS[w.ns] != nil {
		return fmt.Errorf("the pid namespace of process %d is not one of its own", w.Init.Pid)
	}
	if err := e.roster.enter(w); err != nil {
		return err
	}
	if w.init() == nil {
		return fmt.Errorf("process %d: %w", w.Init.Pid, procfs.ErrGone)
	}
	if err := w.ready(&e.roster.read); err != nil {
		return err
	}
	if w.brake.freezer.fd >= 0 {
		var err error
		if w.inotify, err = unix.InotifyAddWatch(e.inotify, w.HoldFile, unix.IN_OPEN); err != nil {
			return fmt.Errorf("watch %s: %w", w.HoldFile, err)
		}
	}
	if err := e.listen(w.pidfd, int32(w.pidfd)); err != nil {
		return err
	}
	e.all = append(e.all, w)
	e.nextTick, e.nextSample, e.nextLook = 0, 0, 0
	if w.Struck != nil {
		w.struck = true
		e.kill(w)
		return nil
	}
	w.changed, w.memory.at, w.tasks.at = true, -time.Hour, -time.Hour
	if err := e.tick(e.now()); err != nil {
		return err
	}
	e.look(w, e.now())
	return nil
}

func (e *Engine) find(key string) *watched {
	if i := slices.IndexFunc(e.all, func(w *watched) bool { return w.Key == key }); i >= 0 {
		return e.all[i]
	}
	return nil
}

// Remove lets a sandbox go, running. One that is not there is fine.
func (e *Engine) Remove(key string) {
	_ = e.do(func() {
		if w := e.find(key); w != nil {
			e.drop(w)
		}
	})
}

// Use returns what was measured last; false: there is no such sandbox.
func (e *Engine) Use(key string) (use Use, ok bool) {
	_ = e.do(func() {
		if w := e.find(key); w != nil {
			use, ok = w.use, true
		}
	})
	return use, ok
}

// Close ends Run, and lets go what was stopped.
func (e *Engine) Close() {
	if e.started.CompareAndSwap(false, true) {
		e.finish()
	}
	_ = e.do(func() { e.closing = true })
	<-e.done
}
