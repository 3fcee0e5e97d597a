package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// program is the path of agentbox.
func (r *Runtime) program() string { return filepath.Join(filepath.Dir(r.Agentbox), "agentbox") }

// states is the folder of live sandboxes.
func (r *Runtime) states() string { return filepath.Join(r.Dir, "state") }

// Supervisor returns the processes of the supervisor that these sandboxes have,
// which agentbox-runtime has started; none when there is none.
func (r *Runtime) Supervisor() (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process that has ended meanwhile is none.
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := bytes.Split(line, []byte{0})
		is := func(arg string) bool {
			return slices.ContainsFunc(args, func(a []byte) bool { return string(a) == arg })
		}
		if is("supervise") && is(r.states()) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// EndSupervisor ends the supervisor, as a service manager would.
func (r *Runtime) EndSupervisor() error {
	pids, err := r.Supervisor()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end the supervisor: %w", err)
		}
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if pids, err = r.Supervisor(); err != nil || len(pids) == 0 {
			return err
		}
	}
	return fmt.Errorf("the supervisor does not end within 10 s of SIGTERM: processes %v", pids)
}
