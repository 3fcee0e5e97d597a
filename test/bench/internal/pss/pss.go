// Package pss reads what memory a process takes.
package pss

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory is what a process takes, in bytes.
type Memory struct {
	PSS       int64 `json:"pss"`       // its pages, those shared with n processes counted as 1/n
	Anonymous int64 `json:"anonymous"` // those of no file, which no two programs share
}

// parse reads /proc/PID/smaps_rollup (Documentation/filesystems/proc.rst of
// the kernel). A field that is missing is an error: zero would look like a very
// good result.
func parse(data []byte) (m Memory, err error) {
	wanted := map[string]*int64{"Pss": &m.PSS, "Anonymous": &m.Anonymous}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		field := wanted[name]
		if field == nil {
			continue
		}
		words := strings.Fields(rest)
		if len(words) != 2 || words[1] != "kB" {
			return Memory{}, fmt.Errorf("smaps_rollup: %q is not a number of kB", strings.TrimSpace(line))
		}
		kib, err := strconv.ParseUint(words[0], 10, 43) // so that bytes fit
		if err != nil {
			return Memory{}, fmt.Errorf("smaps_rollup: %q: %w", strings.TrimSpace(line), err)
		}
		*field = int64(kib) << 10
		delete(wanted, name)
	}
	for name := range wanted {
		return Memory{}, fmt.Errorf("smaps_rollup has no line %s", name)
	}
	return m, nil
}

// Of reads what a process takes now.
func Of(pid int) (Memory, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return Memory{}, err
	}
	return parse(data)
}
