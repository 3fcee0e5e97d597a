// Command hog is the program in the sandboxes that are measured: it computes,
// reads, writes and grows as it is told on standard input, and tells on standard output
// what it did and how long that took by its own clock.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/test/bench/internal/job"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == waitArg {
		for {
			time.Sleep(time.Hour)
		}
	}
	if err := job.Serve(os.Stdin, os.Stdout, do); err != nil {
		fmt.Fprintln(os.Stderr, "hog:", err)
		os.Exit(1)
	}
}

func do(j job.Job) (job.Outcome, error) {
	if err := j.Check(); err != nil {
		return job.Outcome{}, err
	}
	switch j.Kind {
	case job.Spin:
		return spin(j.Threads, seconds(j.Seconds)), nil
	case job.Fork:
		return job.Outcome{}, fork(j.Processes)
	case job.Grow:
		return grow(j)
	default:
		return transfer(j)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// spin computes until the time is over.
func spin(threads int, long time.Duration) job.Outcome {
	runtime.GOMAXPROCS(threads)
	start := time.Now()
	done := make(chan struct{})
	for range threads {
		go func() {
			for time.Since(start) < long {
			}
			done <- struct{}{}
		}()
	}
	for range threads {
		<-done
	}
	return job.Outcome{Seconds: time.Since(start).Seconds()}
}

// transfer reads or writes a file.
func transfer(j job.Job) (o job.Outcome, err error) {
	flags := os.O_RDONLY
	if j.Kind == job.Write {
		flags = os.O_WRONLY | os.O_CREATE
	}
	if j.Direct {
		flags |= unix.O_DIRECT
	}
	file, err := os.OpenFile(j.File, flags, 0o600)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// O_DIRECT wants memory that starts at a multiple of the block size (open(2));
	// a mapping starts at a page.
	buf, err := unix.Mmap(-1, 0, int(j.Block), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return o, fmt.Errorf("map a buffer of %d bytes: %w", j.Block, err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(buf)) }()
	// Zeros may be stored as a hole.
	for i := range buf {
		buf[i] = byte(i*7 + 1)
	}
	err = calls(file, buf, j, &o)
	return o, err
}

// calls makes the calls of a job.
func calls(file *os.File, buf []byte, j job.Job, o *job.Outcome) error {
	call := func(at int64) (int, error) { return file.WriteAt(buf, at) }
	if j.Kind == job.Read {
		call = func(at int64) (int, error) { return file.ReadAt(buf, at) }
	}
	start := time.Now()
	more := func() bool {
		if j.Bytes > 0 {
			return o.Bytes < j.Bytes
		}
		return time.Since(start) < seconds(j.Seconds)
	}
	var pending int64 // bytes since the last fsync
	var began time.Time
	commit := func() error {
		if err := file.Sync(); err != nil {
			return err
		}
		o.Commits = append(o.Commits, time.Since(began).Seconds())
		pending = 0
		return nil
	}
	for more() {
		if pending == 0 {
			began = time.Now()
		}
		n, err := call(j.Position(o.Calls))
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n < len(buf) {
			return fmt.Errorf("%s ends after %d bytes", j.File, o.Bytes+int64(n))
		}
		o.Calls++
		o.Bytes += int64(n)
		if pending += int64(n); j.Fsync > 0 && pending >= j.Fsync {
			if err := commit(); err != nil {
				return err
			}
		}
		if j.Pause > 0 {
			time.Sleep(seconds(j.Pause))
		}
	}
	if j.Fsync > 0 && pending > 0 {
		if err := commit(); err != nil {
			return err
		}
	}
	o.Seconds = time.Since(start).Seconds()
	return nil
}
