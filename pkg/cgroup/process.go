package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
)

// OOMScoreAdj returns oom_score_adj of a process, -1000 to 1000
// (proc_pid_oom_score_adj(5)). A process that is gone gives an error that
// matches fs.ErrNotExist.
func OOMScoreAdj(f FS, pid int) (int, error) {
	name := procFile(pid, "oom_score_adj")
	data, err := f.ReadFile(name)
	if errors.Is(err, unix.ESRCH) {
		return 0, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
	}
	if err != nil {
		return 0, err
	}
	n, err := parseOOMScoreAdj(data)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

func parseOOMScoreAdj(data []byte) (int, error) {
	text := string(trimNewline(data))
	digits, negative := strings.CutPrefix(text, "-")
	n, err := parseCount([]byte(digits))
	if err != nil {
		return 0, err
	}
	if n > 1000 {
		return 0, fmt.Errorf("number out of range: %s", strconv.Quote(text))
	}
	if negative {
		n = -n
	}
	return int(n), nil
}

// Rlimits returns the limits of one process for open_files, file_size and
// core_dumps (prlimit(2)). Value.N is the hard limit, which the process cannot
// raise; Value.Soft is the soft one, which it can raise up to there, or -1 for
// none. A process that is gone gives an error that matches unix.ESRCH.
func Rlimits(pid int) (map[limits.Key]Effective, error) {
	all := make(map[limits.Key]Effective, 3)
	for _, r := range [...]struct {
		key      limits.Key
		name     string
		resource int
	}{
		{limits.KeyOpenFiles, "RLIMIT_NOFILE", unix.RLIMIT_NOFILE},
		{limits.KeyFileSize, "RLIMIT_FSIZE", unix.RLIMIT_FSIZE},
		{limits.KeyCoreDumps, "RLIMIT_CORE", unix.RLIMIT_CORE},
	} {
		var got unix.Rlimit
		if err := unix.Prlimit(pid, r.resource, nil, &got); err != nil {
			return nil, fmt.Errorf("prlimit %s of process %d: %w", r.name, pid, err)
		}
		all[r.key] = rlimit(r.name, got)
	}
	return all, nil
}

func rlimit(name string, got unix.Rlimit) Effective {
	e := Effective{Mechanism: name, Value: limits.NoLimit()}
	if got.Max <= math.MaxInt64 {
		e.Value, e.Owner = limits.Limit(int64(got.Max)), Self
	}
	e.Value.Soft = -1
	if got.Cur <= math.MaxInt64 {
		e.Value.Soft = int64(got.Cur)
	}
	return e
}
