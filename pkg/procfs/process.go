package procfs

import "fmt"

// Process names a process for good: a pid alone may be used again.
type Process struct {
	Pid       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // clock ticks since boot (proc_pid_stat(5), field 22)
}

// FindProcess looks a pid up. The error is ErrGone when nobody has it.
func FindProcess(pid int) (Process, error) {
	var r Reader
	st, err := r.StatOf(pid)
	if err != nil {
		return Process{}, fmt.Errorf("look up process %d: %w", pid, err)
	}
	return Process{Pid: pid, StartTime: st.StartTime}, nil
}

// Alive reports whether this very process is still there; a zombie is.
func (p Process) Alive() bool {
	_, alive := p.stat()
	return alive
}

// Running reports whether this very process has not ended; a zombie has.
func (p Process) Running() bool {
	st, alive := p.stat()
	return alive && !st.Ended()
}

func (p Process) stat() (st Stat, alive bool) {
	if p.Pid <= 0 {
		return Stat{}, false
	}
	var r Reader
	st, err := r.StatOf(p.Pid)
	return st, err == nil && st.StartTime == p.StartTime
}
