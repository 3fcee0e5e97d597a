package harvest

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/oomlog"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// logged returns the out-of-memory kill that ended a sandbox whose cgroup is gone,
// by the kernel's log; nil: none is known. On v1 a cgroup does not go by itself.
func logged(st *state.State) *kill {
	if st.Started == nil || st.Started.Cgroup == nil || st.Started.Cgroup.Version != 2 {
		return nil
	}
	kills, err := oomlog.Read(oomlog.Device)
	if err != nil {
		return nil // then the verdict says what is known without it
	}
	return findKill(kills, st.Started)
}

// mayBeKilled reports whether the first process may have ended by SIGKILL. The log
// is long: nobody else is looked for in it.
func mayBeKilled(exit verdict.Exit) bool {
	const killed = 128 + int(unix.SIGKILL)
	return exit.Code == nil || *exit.Code == killed
}

// kill is an out-of-memory kill of the first process of a sandbox.
type kill struct {
	local, tree verdict.MemoryEvents // as the sandbox's cgroup would have counted it
	unknown     bool                 // whose limit ran out: tree is not known
}

// findKill looks for the last kill of the sandbox's first process. It counts only
// by that pid, which a later sandbox of the same name does not have.
func findKill(kills []oomlog.Kill, s *state.Started) *kill {
	for _, k := range slices.Backward(kills) {
		if s.Init.Pid > 0 && slices.Contains(k.Pids, s.Init.Pid) {
			return judge(k, s)
		}
	}
	return nil
}

// judge says what the sandbox's cgroup would have counted. What was killed as a
// whole is never above the cgroup that ran out; so where no cgroup above has a
// limit, a group kill of the sandbox is one by its own limit.
func judge(k oomlog.Kill, s *state.Started) *kill {
	events := verdict.MemoryEvents{OOMKill: int64(len(k.Pids))}
	group := isOwn(k.Group, s.Cgroup)
	if group {
		events.OOMGroupKill = 1
	}
	found := &kill{local: events, tree: events}
	switch {
	case k.Global:
	case isOwn(k.Owner, s.Cgroup), k.Owner == "" && group && !s.Held.MemoryAbove:
		found.local.OOM, found.tree.OOM = 1, 1
	case k.Owner == "":
		found.unknown = true
	case isInside(k.Owner, s.Cgroup):
		found.tree.OOM = 1
	}
	return found
}

// isOwn reports whether a cgroup is the sandbox's, or its unit.
func isOwn(path string, p *cgroup.Paths) bool {
	return path == p.Places[""].Path || p.Unit != nil && path == p.Unit.Path
}

// isInside reports whether a cgroup is below the sandbox's.
func isInside(path string, p *cgroup.Paths) bool {
	return strings.HasPrefix(path, p.Places[""].Path+"/")
}

// addKill adds what the log says to counters that were read before, if any were.
func addKill(ev *verdict.Evidence, k *kill) {
	if k == nil {
		return
	}
	ev.CgroupVersion, ev.KernelLog = 2, true
	atLeast(&ev.Memory, k.local)
	if !k.unknown {
		atLeast(&ev.MemoryTree, k.tree)
	}
}

func atLeast(have **verdict.MemoryEvents, k verdict.MemoryEvents) {
	if *have == nil {
		*have = &verdict.MemoryEvents{}
	}
	m := *have
	m.OOM, m.OOMKill, m.OOMGroupKill = max(m.OOM, k.OOM), max(m.OOMKill, k.OOMKill), max(m.OOMGroupKill, k.OOMGroupKill)
}
