package host

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
)

// supervisor looks up what the kernel has for a supervisor: pidfds, by which it
// holds processes (pidfd_open(2), Linux 5.3), and what each process has read and
// written (proc_pid_io(5)). Whether there is one to use them is not known here.
func (p *prober) supervisor() {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		p.host.Supervisor = mechanism(limits.SupervisorName, "this kernel gives no pidfds (pidfd_open: "+err.Error()+")")
	} else {
		_ = unix.Close(fd)
	}
	if !p.has("/proc/self/io") {
		p.host.SupervisorNoIO = "this kernel does not say what a process reads and writes: there is no /proc/PID/io"
	}
}
