package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// Process names a process for good: a pid alone may be used again.
type Process struct {
	Pid       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // clock ticks since boot (proc_pid_stat(5), field 22)
}

var errStat = errors.New("not in the form of proc_pid_stat(5)")

// FindProcess looks a pid up.
func FindProcess(pid int) (Process, error) {
	st, err := readStat(pid)
	return st.Process, err
}

// stat is what proc_pid_stat(5) says of a process.
type stat struct {
	Process
	state string // field 3: "Z" is a zombie
}

func readStat(pid int) (stat, error) {
	name := "/proc/" + strconv.Itoa(pid) + "/stat"
	data, err := os.ReadFile(name)
	if err != nil {
		return stat{}, err
	}
	st, err := parseStat(data)
	if err != nil {
		return stat{}, fmt.Errorf("read %s: %w", name, err)
	}
	st.Pid = pid
	return st, nil
}

// parseStat reads fields 3 and 22. The name in field 2 may hold spaces, brackets
// and newlines.
func parseStat(data []byte) (stat, error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return stat{}, errStat
	}
	fields := bytes.Fields(data[end+1:]) // from field 3 on
	if len(fields) < 20 {
		return stat{}, errStat
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return stat{}, errStat
	}
	return stat{Process: Process{StartTime: start}, state: string(fields[0])}, nil
}

// Alive reports whether this very process is still there; a zombie is.
func (p Process) Alive() bool {
	st, err := p.stat()
	return err == nil && st.Process == p
}

// Running reports whether this very process has not ended; a zombie has.
func (p Process) Running() bool {
	st, err := p.stat()
	return err == nil && st.Process == p && st.state != "Z" && st.state != "X"
}

func (p Process) stat() (stat, error) {
	if p.Pid <= 0 {
		return stat{}, os.ErrNotExist
	}
	return readStat(p.Pid)
}
