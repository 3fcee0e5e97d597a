package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/log"

	"github.com/agentbox/agentbox/pkg/harvest"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// tap is the publisher that the task service gets. It records how containers end,
// keeps the order of events, and adds the verdict.
type tap struct {
	next shim.Publisher // keeps the order

	mu         sync.Mutex // held while publishing, which is quick
	containers map[string]*watched
}

// watched is a container between its create and its delete.
type watched struct {
	evidence evidence
	order    order
	pid      uint32        // of the first process; 0: not known yet
	ended    chan struct{} // closed when the end was recorded
}

// isEnd reports whether an exit is that of the first process. An exec may have
// been given the id of its container.
func (c *watched) isEnd(e *eventtypes.TaskExit) bool {
	return e.GetID() == e.GetContainerID() && (c.pid == 0 || c.pid == e.GetPid())
}

// evidence is what agentbox knows about a container.
type evidence interface {
	// oomKills counts, see harvest.OOMKills.
	oomKills() int64
	// keep records what the cgroup counts now, and returns oomKills.
	keep() int64
	// end records the end of the first process; the result is nil where there
	// is none.
	end(pid, status int, at time.Time) (*result.Result, error)
	// folder is the bundle.
	folder() string
}

func newTap(next shim.Publisher) *tap {
	return &tap{next: next, containers: map[string]*watched{}}
}

// add takes note of a container, and reports whether its id was free.
func (t *tap) add(id string, e evidence) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.containers[id] != nil {
		return false
	}
	t.containers[id] = &watched{evidence: e, ended: make(chan struct{})}
	return true
}

// at notes the first process of a container.
func (t *tap) at(id string, pid uint32) {
	if c := t.containers[id]; c != nil {
		c.pid = pid
	}
}

// created notes the first process of a container without waiting for its event.
func (t *tap) created(id string, pid uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at(id, pid)
}

// sandbox returns what agentbox-runtime keeps of a container, and the pid of its
// first process; nil: nothing, 0: it is not known.
func (t *tap) sandbox(id string) (*sandbox, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.containers[id]
	if c == nil {
		return nil, 0
	}
	box, _ := c.evidence.(*sandbox)
	return box, int(c.pid)
}

// remove forgets a container and returns its bundle; "" if there was none.
func (t *tap) remove(id string) (bundle string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.containers[id]
	if c == nil {
		return ""
	}
	delete(t.containers, id)
	return c.evidence.folder()
}

// settled waits until the end of a container was recorded, and reports whether
// it was.
func (t *tap) settled(ctx context.Context, id string, limit time.Duration) bool {
	t.mu.Lock()
	c := t.containers[id]
	t.mu.Unlock()
	if c == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-c.ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// Close ends the publishing.
func (t *tap) Close() error { return t.next.Close() }

// Publish publishes an event of the task service, and what has to go before it.
func (t *tap) Publish(ctx context.Context, topic string, event events.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event.(type) {
	case *eventtypes.TaskCreate:
		t.at(e.GetContainerID(), e.GetPid())
	case *eventtypes.TaskStart: // of a restored one, which was created without a process
		t.at(e.GetContainerID(), e.GetPid())
	case *eventtypes.TaskOOM:
		c := t.containers[e.GetContainerID()]
		if c == nil { // deleted meanwhile
			return nil
		}
		// The cgroup of a systemd scope goes with its last process: this may be
		// the last time that its counters can be read.
		if !c.order.oom(c.evidence.keep()) {
			return nil
		}
	case *eventtypes.TaskExit:
		if c := t.containers[e.GetContainerID()]; c != nil {
			t.beforeExit(ctx, c, e)
		}
	}
	return t.next.Publish(ctx, topic, event)
}

// sigkilled is an exit status that a kill for want of memory gives.
const sigkilled = 128 + 9

// beforeExit publishes what goes before a TaskExit. Nothing that fails here keeps
// the exit from being published.
func (t *tap) beforeExit(ctx context.Context, c *watched, e *eventtypes.TaskExit) {
	first := c.isEnd(e)
	if c.order.over || !first && e.GetExitStatus() != sigkilled {
		return
	}
	var r *result.Result
	if first {
		var err error
		r, err = c.evidence.end(int(e.GetPid()), int(e.GetExitStatus()), e.GetExitedAt().AsTime())
		close(c.ended)
		if err != nil {
			log.G(ctx).WithError(err).WithField("id", e.GetContainerID()).Error("record the end of a container")
		}
	}
	if c.order.exit(first, kills(c.evidence, r)) {
		t.publish(ctx, runtime.TaskOOMEventTopic, &eventtypes.TaskOOM{ContainerID: e.GetContainerID()})
	}
	if r == nil {
		return
	}
	event, err := verdictEvent(r)
	if err != nil {
		log.G(ctx).WithError(err).Error("publish a verdict")
		return
	}
	t.publish(ctx, verdictTopic, event)
}

// kills counts those for want of memory; the result, where there is one, has them.
func kills(e evidence, r *result.Result) int64 {
	if r == nil {
		return e.oomKills()
	}
	return r.Events.OOMKill
}

func (t *tap) publish(ctx context.Context, topic string, event events.Event) {
	if err := t.next.Publish(ctx, topic, event); err != nil {
		log.G(ctx).WithError(err).WithField("topic", topic).Error("publish an event")
	}
}

// sandbox is the evidence that agentbox-runtime keeps of a container.
type sandbox struct {
	states           state.Store
	root, id, bundle string
}

func (s *sandbox) folder() string { return s.bundle }

func (s *sandbox) load() (*state.State, error) {
	return s.states.Load(state.CleanRoot(s.root), s.id)
}

func (s *sandbox) oomKills() int64 {
	st, err := s.load()
	if err != nil {
		return 0 // end says why
	}
	return harvest.OOMKills(st)
}

func (s *sandbox) keep() int64 {
	st, err := s.load()
	if err != nil || st.Started == nil {
		return 0
	}
	harvest.Collect(s.states, st)
	if err := s.states.Update(st); err != nil {
		log.L.WithError(err).WithField("id", s.id).Error("keep the evidence of an out-of-memory kill")
	}
	return result.EventsOf(*st.Evidence).OOMKill
}

// end takes the status that containerd's reaper gives: 128+n for signal n, so
// which of the two it was is not known.
func (s *sandbox) end(pid, status int, at time.Time) (*result.Result, error) {
	st, err := s.load()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // not a sandbox: the pause container of a pod
	}
	if err != nil {
		return nil, err
	}
	if st.Started != nil && st.Started.Init.Pid != 0 && st.Started.Init.Pid != pid {
		return nil, fmt.Errorf("the first process of %s is %d, and %d has ended", s.id, st.Started.Init.Pid, pid)
	}
	return harvest.End(s.states, st, verdict.Exit{Source: verdict.ExitContainerd, Code: &status}, at)
}
