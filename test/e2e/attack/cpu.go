package main

import (
	"errors"
	"fmt"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the CPU time of this process.
func cpuTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		panic(err)
	}
	return time.Duration(now.Nano())
}

// spin MILLISECONDS computes for so much CPU time.
func spin(words []string) error {
	ms, err := number(words, 0)
	if err != nil {
		return err
	}
	for cpuTime() < time.Duration(ms)*time.Millisecond {
	}
	return nil
}

// chain N MILLISECONDS computes by one short-lived process after the other, each
// for so much CPU time, and waits for none of them: the kernel then adds their
// time to nobody's.
func chain(words []string) error {
	n, err := number(words, 0)
	if err != nil {
		return err
	}
	signal.Ignore(unix.SIGCHLD)
	for range n {
		cmd := self(append([]string{"spin"}, words[1:]...))
		if err := cmd.Start(); err != nil {
			return err
		}
		_ = cmd.Wait() // until it is gone: the error is that nobody can be waited for
	}
	fmt.Println("survived")
	return nil
}

// wake continues all other processes as fast as it can.
func wake([]string) error {
	for {
		_ = unix.Kill(-1, unix.SIGCONT)
	}
}

// killOthers kills all processes but this one and the first.
func killOthers([]string) error {
	for {
		_ = unix.Kill(-1, unix.SIGKILL)
		time.Sleep(time.Millisecond)
	}
}

// trace N traces so many processes that compute, and lets no signal reach them:
// a tracer is asked before its tracee is stopped.
func trace(words []string) error {
	n, err := number(words, 0)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // who traces is a thread
	for range n {
		cmd := exec.Command("/bin/sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true}
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		if err != nil {
			return err
		}
		if !status.Stopped() {
			continue
		}
		if err := unix.PtraceCont(pid, 0); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
}
