package host

import (
	"math"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
)

// rlimits records the per-process limits and the hard limits that a container
// inherits (getrlimit(2)). The soft limits of this process say nothing: Go
// raises its own number of open files at start.
func (p *prober) rlimits() {
	for _, r := range [...]struct {
		key      limits.Key
		name     string
		resource int
		hard     *int64
	}{
		{limits.KeyOpenFiles, "RLIMIT_NOFILE", unix.RLIMIT_NOFILE, &p.host.OpenFilesHard},
		{limits.KeyFileSize, "RLIMIT_FSIZE", unix.RLIMIT_FSIZE, &p.host.FileSizeHard},
		{limits.KeyCoreDumps, "RLIMIT_CORE", unix.RLIMIT_CORE, &p.host.CoreHard},
	} {
		p.host.Mechanisms[r.key] = limits.Mechanism{Name: r.name, Enforcer: limits.EnforcerProcess}
		var got unix.Rlimit
		if err := unix.Getrlimit(r.resource, &got); err != nil {
			p.host.Mechanisms[r.key] = mechanism(r.name, "getrlimit "+r.name+": "+err.Error())
		}
		*r.hard = -1
		if got.Max <= math.MaxInt64 {
			*r.hard = int64(got.Max)
		}
	}
}
