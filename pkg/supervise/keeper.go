package supervise

import (
	"errors"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// The pause before another worker, when the last one did not live long: it grows
// up to the second, so that a fault that comes back at once does not fill the
// machine.
const (
	longLife = time.Second
	minPause = 50 * time.Millisecond
	maxPause = 800 * time.Millisecond
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
		again, err := watch(worker, signals)
		worker.close()
		worker = nil
		if err != nil || !again {
			return err
		}
		if time.Since(since) > longLife {
			pause = 0
		} else {
			pause = min(max(2*pause, minPause), maxPause)
		}
		report(errors.New("the worker of the supervisor was killed or has crashed: it is started again"))
	}
}

// watch waits for the end of a worker, hands signals on to it, and reports
// whether there has to be another one.
func watch(worker *other, signals <-chan os.Signal) (again bool, err error) {
	type end struct {
		again bool
		err   error
	}
	ended := make(chan end, 1)
	go func() {
		status, known, err := worker.wait()
		crashed := !known || status.Signaled() || status.ExitStatus() != exitDone && status.ExitStatus() != exitCannot
		ended <- end{crashed, err}
	}()
	for {
		select {
		case <-signals:
			worker.signal(unix.SIGTERM)
		case e := <-ended:
			return e.again, e.err
		}
	}
}
