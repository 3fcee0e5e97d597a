package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/harvest"
	"github.com/agentbox/agentbox/pkg/lease"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

const (
	// tickTime is how often a worker looks whether anybody still needs it.
	tickTime = time.Second
	// lookTicks is after how many of them it looks for sandboxes that lost who
	// supervised them: a shim that was killed.
	lookTicks = 5
	// endTime bounds the end of a worker: clients have clientTime to hear an answer.
	endTime = clientTime + 3*time.Second
)

// Why a worker ends other than by a fault that would come again.
var (
	errAnother = errors.New("another supervisor is there")
	errCrash   = errors.New("the engine has ended")
)

// exitCrash is the exit code of a worker that is to be started again.
const exitCrash = 3

// Run is a process of a supervisor. It returns the exit code.
func Run(o Options) int {
	err := run(o)
	switch {
	case err == nil, errors.Is(err, errAnother):
		return exitDone
	case errors.Is(err, errCrash):
		report(err)
		return exitCrash
	}
	report(err)
	return exitCannot
}

func run(o Options) error {
	if o.Role == Keeper {
		return keep(o)
	}
	w := &worker{Options: o, keeper: partnerOf(o), ready: pipeOf(o)}
	w.failed = make(chan error, 1)
	w.owner = &Owner{
		States: state.Store{Dir: o.Dir}, Say: report, Ended: w.ended,
		Failed: func(err error, _ []lease.Request) { w.failed <- err }, // the next worker takes what is left
	}
	err := w.run()
	w.tell(err) // where it was not ready
	if !errors.Is(err, errCrash) {
		w.dismissKeeper()
	}
	return err
}

// worker is the process that supervises.
type worker struct {
	Options
	owner   *Owner
	keeper  *other   // nil: there is none, or none any more
	ready   *os.File // nil: nobody waits, or not any more
	lock    *os.File // the folder of states
	server  *server
	failed  chan error
	signals chan os.Signal
	said    string // the last about taking over
}

func (w *worker) run() (err error) {
	// From before anybody can know of it, and never the default again: another one,
	// as the keeper's, must not end a worker that lets its sandboxes go.
	w.signals = make(chan os.Signal, 1)
	signal.Notify(w.signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	if w.lock, err = lockFolder(w.Dir, w.Role == Alone); err != nil {
		return err
	}
	defer w.lock.Close() // after everything else
	if w.server, err = listen(w.Dir, w.owner); err != nil {
		return err
	}
	w.tell(nil)
	w.takeOver()
	if err := w.loop(); err != nil {
		return err
	}
	// Who hangs here would keep the folder from all others.
	hangs := time.AfterFunc(endTime, func() {
		report(errors.New("the engine does not end: the next worker lets go on what is stopped"))
		os.Exit(exitCrash)
	})
	w.server.close()
	w.owner.Close()
	hangs.Stop()
	w.dismissKeeper()
	w.clear()
	return nil
}

// takeOver says what goes wrong once.
func (w *worker) takeOver() {
	text := ""
	err := w.owner.TakeOver()
	if err != nil {
		text = err.Error()
	}
	if text != w.said {
		report(err)
	}
	w.said = text
}

// tell tells who has started this supervisor what became of it.
func (w *worker) tell(err error) {
	if w.ready == nil {
		return
	}
	text := "ok\n"
	if err != nil && !errors.Is(err, errAnother) {
		text = strings.Join(strings.Fields(err.Error()), " ") + "\n"
	}
	_, _ = w.ready.WriteString(text) // who asked may be gone
	w.ready.Close()
	w.ready = nil
}

// loop returns when there is nothing more to do.
func (w *worker) loop() error {
	tick := time.NewTicker(w.tick())
	defer tick.Stop()
	lost := w.watchKeeper()
	busy := time.Now()
	for ticks := 1; ; {
		select {
		case <-w.signals:
			return nil
		case err := <-w.failed:
			return fmt.Errorf("%w: %w", errCrash, err)
		case <-lost:
			lost = w.replaceKeeper()
		case <-tick.C:
			if ticks++; ticks%lookTicks == 0 {
				w.takeOver()
			}
			if w.Role == Worker && w.keeper == nil {
				lost = w.replaceKeeper()
			}
			if w.owner.Count() > 0 {
				busy = time.Now()
			}
			if w.useless(time.Since(busy)) && w.retire() {
				return nil
			}
		}
	}
}

func (w *worker) tick() time.Duration {
	if w.Idle > 0 {
		return min(tickTime, w.Idle)
	}
	return tickTime
}

// useless reports whether there is nothing to do, and will not be.
func (w *worker) useless(idle time.Duration) bool {
	if w.owner.Count() > 0 {
		return false
	}
	return w.Idle > 0 && idle >= w.Idle || !isAt(w.lock, w.Dir) // nobody finds it any more
}

// retire stops listening, and reports whether there still is nothing to do when
// the last client has its answer.
func (w *worker) retire() bool {
	w.server.close()
	if w.owner.Count() == 0 {
		return true
	}
	again, err := listen(w.Dir, w.owner)
	if err != nil {
		report(err) // what was taken stays supervised
		return false
	}
	w.server = again
	return false
}

// watchKeeper returns a channel that is closed when the keeper has ended.
func (w *worker) watchKeeper() <-chan struct{} {
	if w.keeper == nil {
		return nil
	}
	lost := make(chan struct{})
	go func(keeper *other) {
		_, _, err := keeper.wait()
		report(err)
		close(lost)
	}(w.keeper)
	return lost
}

// replaceKeeper starts another keeper. Where that fails, it is tried again with
// the next tick.
func (w *worker) replaceKeeper() <-chan struct{} {
	if w.keeper != nil {
		report(errors.New("the keeper of the supervisor was killed: another one is started"))
		w.keeper.close()
	}
	keeper, err := spawn(Options{Dir: w.Dir, Role: Keeper, Idle: w.Idle}, true, nil)
	report(err)
	w.keeper = keeper
	return w.watchKeeper()
}

// dismissKeeper ends the keeper, which knows nothing and does nothing on the way.
func (w *worker) dismissKeeper() {
	if w.keeper != nil {
		w.keeper.signal(unix.SIGKILL)
		w.keeper = nil
	}
}

// clear removes what a supervisor has made.
func (w *worker) clear() {
	if info, err := os.Stat(lease.LogPath(w.Dir)); err == nil && info.Size() == 0 {
		_ = os.Remove(lease.LogPath(w.Dir))
	}
	_ = os.Remove(w.Dir) // others may have something in it
	if w.Role == Worker {
		removeCgroup()
	}
}

// ended keeps how a sandbox of the runtime's door ended: nobody else sees that.
func (w *worker) ended(root, id string, exit verdict.Exit) {
	st, err := w.owner.States.Load(root, id)
	if err != nil || st.Door == result.DoorShim {
		return // deleted already, or seen by its shim
	}
	if _, err := harvest.End(w.owner.States, st, exit, time.Now()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		report(err)
	}
}

func pipeOf(o Options) *os.File {
	if o.Ready == 0 {
		return nil
	}
	unix.CloseOnExec(o.Ready)
	return os.NewFile(uintptr(o.Ready), "ready")
}

// lockFolder makes this the only supervisor of a folder of states. It waits for
// another one to end, or fails with errAnother.
func lockFolder(dir string, waits bool) (*os.File, error) {
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the folder of states: %w", err)
		}
		folder, err := os.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("open the folder of states: %w", err)
		}
		if err := lock(folder, waits); err != nil {
			folder.Close()
			return nil, err
		}
		if isAt(folder, dir) {
			return folder, nil
		}
		folder.Close() // removed meanwhile
	}
}

func lock(folder *os.File, waits bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(folder.Fd()), &st); err != nil {
		return fmt.Errorf("look at the folder of states: %w", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s may be written by others than user %d: nothing in it can be believed", folder.Name(), os.Geteuid())
	}
	err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) && !waits {
		return errAnother
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		report(errors.New("another supervisor is there: waiting until it ends"))
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Flock(int(folder.Fd()), unix.LOCK_EX)
		}
	}
	if err != nil {
		return fmt.Errorf("lock the folder of states %s: %w", folder.Name(), err)
	}
	return nil
}

// isAt reports whether a file is still where it was opened.
func isAt(file *os.File, name string) bool {
	was, err := file.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(name)
	return err == nil && os.SameFile(was, now)
}
