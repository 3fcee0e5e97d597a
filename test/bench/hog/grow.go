package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/test/bench/internal/job"
)

// waitArg makes this program do nothing until it is killed.
const waitArg = "wait"

// fork starts children that wait.
func fork(n int) error {
	for range n {
		child := exec.Command("/proc/self/exe", waitArg)
		child.Args[0] = "hog"
		if err := child.Start(); err != nil {
			return err
		}
	}
	return nil
}

// grow takes memory, and keeps it as long as the process lives.
func grow(j job.Job) (o job.Outcome, err error) {
	memory, err := unix.Mmap(-1, 0, int(j.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return o, fmt.Errorf("map %d bytes: %w", j.Bytes, err)
	}
	pages := unix.MADV_NOHUGEPAGE
	if j.Huge {
		pages = unix.MADV_HUGEPAGE
	}
	if err := unix.Madvise(memory, pages); err != nil {
		return o, fmt.Errorf("choose the size of pages: %w", err)
	}
	trace, err := openTrace(j)
	if err != nil {
		return o, err
	}
	runtime.GOMAXPROCS(max(2, j.Threads))
	ends := make(chan error, j.Threads)
	start := time.Now()
	w := walk{Job: j, memory: memory, trace: trace}
	for range j.Threads {
		go func() { ends <- w.steps() }()
	}
	for range j.Threads {
		if e := <-ends; e != nil {
			err = e
		}
	}
	return job.Outcome{Bytes: j.Bytes, Seconds: time.Since(start).Seconds()}, err
}

// walk is a growth that is under way.
type walk struct {
	job.Job
	memory []byte
	trace  []int64 // nil: none
	next   atomic.Int64

	pace sync.Mutex
	due  time.Time // of the last step at a rate
}

// catchUp is by how much a step may be late without making all others later.
const catchUp = 10 * time.Millisecond

// wait waits for the time of the next step.
func (w *walk) wait() {
	w.pace.Lock()
	w.due = w.due.Add(time.Duration(float64(w.Block) / float64(w.Rate) * 1e9))
	if earliest := time.Now().Add(-catchUp); w.due.Before(earliest) {
		w.due = earliest
	}
	due := w.due
	w.pace.Unlock()
	time.Sleep(time.Until(due))
}

// steps takes one step after the other, when its time has come.
func (w *walk) steps() error {
	for {
		step := w.next.Add(1) - 1
		at := step * w.Block
		if at >= w.Bytes {
			return nil
		}
		if w.Rate > 0 && at >= w.First {
			w.wait()
		}
		// As a write to each page would, without a fault for each.
		if err := unix.Madvise(w.memory[at:at+w.Block], unix.MADV_POPULATE_WRITE); err != nil {
			return fmt.Errorf("take memory: %w", err)
		}
		if w.trace != nil {
			atomic.StoreInt64(&w.trace[step], now())
		}
	}
}

// now is the time of CLOCK_MONOTONIC.
func now() int64 {
	var t unix.Timespec
	// The clock is there.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// openTrace makes the file of a trace, which outlives this process; nil without
// one.
func openTrace(j job.Job) ([]int64, error) {
	if j.File == "" {
		return nil, nil
	}
	file, err := os.Create(j.File)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(int64(j.TraceSize())); err != nil {
		return nil, err
	}
	data, err := unix.Mmap(int(file.Fd()), 0, j.TraceSize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the trace: %w", err)
	}
	return unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/8), nil // a mapping starts at a page
}
