package fallback

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/agentbox/agentbox/pkg/smallfile"
)

// pidMax is where pids start anew (proc_sys_kernel(5), pid_max).
func pidMax() (int, error) {
	const name = "/proc/sys/kernel/pid_max"
	data, err := smallfile.Read(name, 64, 0)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s: not a number of processes: %q", name, data)
	}
	return n, nil
}
