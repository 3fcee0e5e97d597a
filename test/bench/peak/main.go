// Command peak runs a program and prints the peak of its resident memory in KiB,
// on standard error. The kernel counts the memory of whoever forks a process
// into that peak, so the parent has to be this small.
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	pid, err := syscall.ForkExec(os.Args[1], os.Args[1:], &syscall.ProcAttr{Env: os.Environ()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(127)
	}
	var status syscall.WaitStatus
	var usage syscall.Rusage
	if _, err := syscall.Wait4(pid, &status, 0, &usage); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(127)
	}
	fmt.Fprintln(os.Stderr, usage.Maxrss)
	os.Exit(status.ExitStatus())
}
