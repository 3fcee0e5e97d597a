package supervise

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The pause before another worker. It grows while workers fail by themselves soon
// after they were started, so that a fault that comes back at once does not fill
// the machine. Who is killed has no fault.
const (
	longLife = time.Second
	minPause = 20 * time.Millisecond
	maxPause = 500 * time.Millisecond
)

// The exit codes of a worker that is not to be started again. A crash, and a
// panic of Go, which is 2, is everything else.
const (
	exitDone   = 0 // nothing to do, or another supervisor is there
	exitCannot = 1 // and would not the next time
)

// keep starts a worker, and another one whenever one has crashed.
func keep(o Options) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer signal.Stop(signals)
	worker := partnerOf(o)
	ready := pipeOf(o)
	var pause time.Duration
	for {
		if worker == nil {
			time.Sleep(pause)
			var err error
			worker, err = spawn(Options{Dir: o.Dir, Role: Worker, Idle: o.Idle}, true, ready)
			if ready != nil {
				ready.Close()
				ready = nil
			}
			if err != nil {
				report(err)
				pause = maxPause
				continue
			}
		}
		since := time.Now()
		end, err := watch(worker, signals)
		worker.close()
		worker = nil
		if err != nil || end == over {
			return err
		}
		pause = nextPause(pause, end, time.Since(since))
		report(errors.New("the worker of the supervisor was killed or has failed: it is started again"))
	}
}

// ending is how a worker has ended.
type ending uint8

const (
	over   ending = iota // nothing is left to do
	killed               // by somebody
	failed               // by itself
)

func endingOf(status syscall.WaitStatus, known bool) ending {
	switch {
	case !known || status.Signaled() && status.Signal() == unix.SIGKILL:
		return killed
	case status.Exited() && (status.ExitStatus() == exitDone || status.ExitStatus() == exitCannot):
		return over
	}
	return failed
}

func nextPause(last time.Duration, end ending, life time.Duration) time.Duration {
	if end == killed || life > longLife {
		return minPause
	}
	return min(2*max(last, minPause), maxPause)
}

// watch waits for the end of a worker, and hands signals on to it. A worker that
// was told to end is not started again, however it did.
func watch(worker *other, signals <-chan os.Signal) (end ending, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var status syscall.WaitStatus
		var known bool
		status, known, err = worker.wait()
		end = endingOf(status, known)
	}()
	told := false
	for {
		select {
		case <-signals:
			told = true
			worker.signal(unix.SIGTERM)
		case <-ended:
			if told {
				end = over
			}
			return end, err
		}
	}
}
