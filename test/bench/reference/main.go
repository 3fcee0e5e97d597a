// Command reference is the least that a wrapper written in Go can do: it becomes
// the program named first, with the arguments behind it. Its time is what the
// benchmark compares with.
package main

import (
	"os"
	"syscall"
)

func main() {
	if err := syscall.Exec(os.Args[1], os.Args[1:], os.Environ()); err != nil {
		os.Exit(127)
	}
}
