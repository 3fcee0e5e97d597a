package main

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/containerd/log"

	"github.com/agentbox/agentbox/pkg/lease"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/supervise"
)

// retryTime is the pause before an engine that has failed is started again.
const retryTime = 500 * time.Millisecond

// newOwner supervises the sandboxes of this shim. It is made of nothing before
// the first one that needs it.
func newOwner() *supervise.Owner {
	o := &supervise.Owner{
		States: state.Store{Dir: state.DefaultDir()},
		Say:    func(err error) { log.L.WithError(err).Error("supervise") },
	}
	o.Failed = func(err error, left []lease.Request) {
		log.L.WithError(err).Error("supervise: starting again")
		time.Sleep(retryTime)
		for _, r := range left {
			if err := o.Take(r.Root, r.ID, r.Init); err != nil && !errors.Is(err, lease.ErrHeld) {
				log.L.WithError(err).WithField("id", r.ID).Error("a container is not supervised any more")
			}
		}
	}
	return o
}

// supervise holds a container to the limits that the kernel does not enforce,
// before its program runs. Where that fails, agentbox-runtime's start, which
// comes next, asks the host's supervisor and says what came of it.
func (s *service) supervise(ctx context.Context, id string) {
	err := s.trySupervise(id)
	if err != nil && !errors.Is(err, lease.ErrHeld) {
		log.G(ctx).WithError(err).WithField("id", id).Warn("this shim does not supervise a container")
	}
}

func (s *service) trySupervise(id string) error {
	box, pid := s.tap.sandbox(id)
	if box == nil || pid == 0 {
		return nil // of a checkpoint: it has no process yet
	}
	st, err := box.load()
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.Plan.Supervised() {
		return nil
	}
	if err != nil {
		return err
	}
	init, err := procfs.FindProcess(pid)
	if err != nil {
		return err
	}
	return s.owner.Take(st.Root, st.ID, init)
}
