package fallback

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// strike ends a sandbox for a limit. The record comes first, so that a crash in
// between ends it as well, and nobody ends without a reason.
func (e *Engine) strike(w *watched, code verdict.Code, limit, measured int64) {
	e.record(w, code, limit, measured)
	e.kill(w)
}

// record tells the host why the sandbox is ended: only the first reason counts.
// A host that cannot keep it does not save the sandbox.
func (e *Engine) record(w *watched, code verdict.Code, limit, measured int64) {
	if w.struck {
		return
	}
	w.struck = true
	_ = e.host.Strike(w.Key, verdict.Strike{Code: code, Limit: limit, Measured: measured, At: time.Now()})
}

// kill kills the first process: the kernel then kills all that is in its pid
// namespace and below, and lets nobody fork. The others are killed as well,
// since that way takes until the first process has run. What is frozen has to
// be thawed to die, on cgroup v1.
func (e *Engine) kill(w *watched) {
	w.killed = true
	if !procfs.HasEnded(w.pidfd) {
		// Among the hundreds of a fork bomb it would be long until it runs.
		hurry(w.Init.Pid)
	}
	_ = procfs.Signal(w.pidfd, unix.SIGKILL)
	for i := range w.members {
		m := &w.members[i]
		if errors.Is(procfs.Signal(m.dir, unix.SIGKILL), procfs.ErrGone) {
			m.gone, w.ended = true, true
		}
	}
	w.resume()
	if w.brake.freezer.fd >= 0 {
		_ = w.brake.freezer.set(false) // whoever froze it
	}
}

// exitOf tells how a process has ended that nobody may have waited for yet.
func exitOf(pidfd int, p procfs.Process) verdict.Exit {
	if status, ok := zombieStatus(p); ok {
		return exit(status)
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(pidfd, &info); err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
		return exit(info.Exit_code)
	}
	return verdict.Exit{Source: verdict.ExitUnknown}
}

// exit reads a status in the form of wait(2).
func exit(status int32) verdict.Exit {
	s := unix.WaitStatus(status)
	code, signal := s.ExitStatus(), 0
	if s.Signaled() {
		signal = int(s.Signal())
		code = 128 + signal
	}
	return verdict.Exit{Source: verdict.ExitPidfd, Code: &code, Signal: &signal}
}

// zombieStatus reads the last field of proc_pid_stat(5) of a process that has
// ended and was not waited for.
func zombieStatus(p procfs.Process) (int32, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.Pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:]) // from field 3 on
	if len(fields) < 50 || string(fields[0]) != "Z" || string(fields[19]) != strconv.FormatUint(p.StartTime, 10) {
		return 0, false
	}
	status, err := strconv.ParseInt(string(fields[49]), 10, 32)
	return int32(status), err == nil
}
