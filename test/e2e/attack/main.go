// Command attack is the program in the sandboxes that the tests of the supervisor
// hold: it takes memory in every way there is, computes, gets in the way of being
// stopped, and also does what only looks like an attack.
//
// What it takes it counts, before it takes it, in a file that all its processes
// share: the tests know how far an attack came whatever ended it.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// attacks are the first word of the command line, each with the words after it.
var attacks = map[string]func(words []string) error{
	"take":    take,
	"many":    many,
	"workers": workers,
	"reserve": reserve,
	"map":     mapFile,
	"leave":   leave,
	"nested":  nested,
	"mounted": mounted,
	"spin":    spin,
	"chain":   chain,
	"wake":    wake,
	"trace":   trace,
	"kill":    killOthers,
}

func main() {
	if len(os.Args) < 2 || attacks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "attack: no such attack")
		os.Exit(2)
	}
	if err := attacks[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "attack %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// number is the i-th word.
func number(words []string, i int) (int, error) {
	if i >= len(words) {
		return 0, fmt.Errorf("word %d is missing", i)
	}
	return strconv.Atoi(words[i])
}

const mib = 1 << 20

// stay says that all was taken, and keeps it.
func stay() {
	fmt.Println("took it all")
	time.Sleep(time.Hour)
}
