// Package supervise gives the engine that holds sandboxes to limits (package
// fallback) a home: a shim, for its own containers, or the host's supervisor, one
// for each folder of states. What has to outlive either is in that folder.
package supervise

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/fallback"
	"github.com/agentbox/agentbox/pkg/lease"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/ocicli"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// Owner supervises sandboxes of one folder of states.
type Owner struct {
	States state.Store
	// Say takes what goes wrong where nobody waits for an answer, a sentence each.
	Say func(err error)
	// Ended is told of the end of a sandbox, when its lease was given up; nil:
	// nobody wants to know.
	Ended func(root, id string, exit verdict.Exit)
	// Failed is told when the engine has ended by itself. The sandboxes that it
	// had are supervised by nobody, and their leases are free.
	Failed func(err error, left []lease.Request)

	taking sync.Mutex // one sandbox at a time

	mu      sync.Mutex
	engine  Engine              // nil: none is needed yet
	owned   map[string]*sandbox // by key
	closed  bool
	goodbye sync.WaitGroup // calls of Ended
}

// sandbox is one that is supervised here.
type sandbox struct {
	lease.Request
	lease *lease.Lease
}

// grace is the time that a sandbox has between SIGTERM and SIGKILL when its time
// is up, as long as Docker gives.
const grace = 10 * time.Second

// Take supervises a sandbox from now on. It fails with lease.ErrHeld where
// somebody else does, and is content where this owner does already.
func (o *Owner) Take(root, id string, init procfs.Process) error {
	switch {
	case !filepath.IsAbs(root):
		return fmt.Errorf("%q is no folder of a low-level runtime", root)
	case !ocicli.ValidID(id):
		return fmt.Errorf("%q names no sandbox", id)
	}
	o.taking.Lock()
	defer o.taking.Unlock()
	dir := o.States.Path(root, id)
	held, err := lease.Take(dir)
	if errors.Is(err, lease.ErrHeld) && o.owns(root, id) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := o.take(dir, root, id, init, held); err != nil {
		held.Release()
		return err
	}
	return nil
}

func (o *Owner) take(dir, root, id string, init procfs.Process, held *lease.Lease) error {
	st, err := o.States.Load(root, id)
	if err != nil {
		return fmt.Errorf("read what %s is to be held to: %w", id, err)
	}
	box := fallback.Sandbox{Key: st.Root + "\x00" + st.ID + "\x00" + st.Nonce, Init: init}
	if box.Limits = limitsOf(&st.Plan); !st.Plan.Supervised() {
		return fmt.Errorf("%s has no limit that a supervisor enforces", id)
	}
	if !init.Running() {
		return fmt.Errorf("the first process of %s, %d, has ended", id, init.Pid)
	}
	if box.HoldFile, err = lease.MakeHold(dir); err != nil {
		return err
	}
	box.Cgroup = cgroupOf(st, dir, init)
	if box.Struck, err = o.States.Strike(root, id); err != nil {
		return err
	}
	spent, err := o.States.Spent(root, id)
	if err != nil {
		return err
	}
	box.Spent = fallback.Spent(spent)
	// The time runs from the first take, right before the start.
	noted, before := lease.Noted(dir)
	if box.Since = procfs.SinceBoot(); before && noted.Init == init {
		box.Since = noted.Since
	}
	giveUp := func(err error) error {
		if before {
			return err // whoever comes next tries again
		}
		return errors.Join(err, held.Forget())
	}
	// Noted before the engine has it: whoever comes after a crash in between takes
	// it, and resumes what was stopped.
	if err := held.Note(lease.Record{Init: init, Cgroup: box.Cgroup, Since: box.Since}); err != nil {
		return err
	}
	engine, err := o.start()
	if err != nil {
		return giveUp(err)
	}
	o.mu.Lock()
	o.owned[box.Key] = &sandbox{lease.Request{Root: root, ID: id, Init: init}, held}
	o.mu.Unlock()
	if err := engine.Add(box); err != nil {
		o.mu.Lock()
		delete(o.owned, box.Key)
		o.mu.Unlock()
		return giveUp(fmt.Errorf("supervise %s: %w", id, err))
	}
	return nil
}

// cgroupOf finds the cgroup of a sandbox. Where it was when the sandbox had not
// begun to run wins: a process may move itself.
func cgroupOf(st *state.State, dir string, init procfs.Process) *cgroup.Paths {
	if st.Started != nil && st.Started.Cgroup != nil {
		return st.Started.Cgroup
	}
	if noted, ok := lease.Noted(dir); ok && noted.Init == init {
		return noted.Cgroup
	}
	cg, err := cgroup.Of(cgroup.Host, init.Pid)
	if err != nil {
		return nil // there is none, or none to be reached
	}
	paths := cg.Paths()
	return &paths
}

// limitsOf returns what a plan leaves to the supervisor.
func limitsOf(plan *limits.Plan) fallback.Limits {
	l := fallback.Limits{Memory: plan.SupervisedMemory(), Grace: grace}
	for _, e := range plan.Entries {
		if !e.BySupervisor() {
			continue
		}
		switch e.Key {
		case limits.KeyPids:
			l.Pids = e.Value.N
		case limits.KeyCPUs:
			l.CPU = e.Value.N
		case limits.KeyIOReadBPS:
			l.ReadBPS = e.Value.N
		case limits.KeyIOWriteBPS:
			l.WriteBPS = e.Value.N
		case limits.KeyCPUTime:
			l.CPUTime = time.Duration(e.Value.N)
		case limits.KeyWallTime:
			l.WallTime = time.Duration(e.Value.N)
		}
	}
	return l
}

// start starts the engine with the first sandbox.
func (o *Owner) start() (Engine, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, errors.New("the supervisor is about to end")
	}
	if o.engine != nil {
		return o.engine, nil
	}
	engine, err := newEngine(host{o})
	if err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	o.engine, o.owned = engine, map[string]*sandbox{}
	go func() {
		if err := engine.Run(); err != nil {
			o.fail(err)
		}
	}()
	return engine, nil
}

// fail lets go of everything: the engine has ended by itself.
func (o *Owner) fail(err error) {
	o.mu.Lock()
	var left []lease.Request
	for _, b := range o.owned {
		left = append(left, b.Request)
		b.lease.Release()
	}
	clear(o.owned)
	o.engine = nil
	closed := o.closed
	o.mu.Unlock()
	if !closed && o.Failed != nil {
		o.Failed(fmt.Errorf("the supervisor has failed: %w", err), left)
	}
}

// Count returns how many sandboxes are supervised here.
func (o *Owner) Count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.owned)
}

func (o *Owner) owns(root, id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.owned {
		if s.Root == root && s.ID == id && s.lease.Current() {
			return true
		}
	}
	return false
}

// TakeOver takes the sandboxes that were supervised once and are not any more:
// whoever did has ended without them.
func (o *Owner) TakeOver() error {
	refs, err := o.States.List()
	if err != nil {
		return err
	}
	var problems []error
	for _, ref := range refs {
		dir := o.States.Path(ref.Root, ref.ID)
		noted, ok := lease.Noted(dir)
		if !ok || !noted.Init.Running() {
			continue
		}
		if held, err := lease.Held(dir); held || err != nil {
			problems = append(problems, err)
			continue
		}
		if err := o.Take(ref.Root, ref.ID, noted.Init); err != nil && !errors.Is(err, lease.ErrHeld) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// Close lets go of all sandboxes, as they are. What was stopped runs on.
func (o *Owner) Close() {
	o.taking.Lock()
	defer o.taking.Unlock()
	o.mu.Lock()
	engine := o.engine
	o.closed = true
	o.mu.Unlock()
	if engine != nil {
		engine.Close() // not with the lock: it may still tell of an end
	}
	o.goodbye.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.owned {
		s.lease.Release()
	}
	clear(o.owned)
}

// host is what the engine sees of an Owner.
type host struct{ o *Owner }

// Strike records why a sandbox is about to be ended.
func (h host) Strike(key string, s verdict.Strike) error {
	b := h.o.of(key)
	if b == nil || !b.lease.Current() {
		return errors.New("the state of the sandbox is gone: nobody will ask why it ended")
	}
	err := h.o.States.PutStrike(b.Root, b.ID, s)
	if err != nil {
		h.o.Say(fmt.Errorf("record why %s is ended: %w", b.ID, err))
	}
	return err
}

// Spent records what was counted of a sandbox.
func (h host) Spent(key string, s fallback.Spent) {
	b := h.o.of(key)
	if b == nil || !b.lease.Current() {
		return
	}
	if err := h.o.States.PutSpent(b.Root, b.ID, state.Spent(s)); err != nil {
		h.o.Say(fmt.Errorf("record what %s has used: %w", b.ID, err))
	}
}

// Ended gives a lease up. What else is to be done does not keep the engine from
// its work.
func (h host) Ended(key string, exit verdict.Exit) {
	o := h.o
	o.mu.Lock()
	b := o.owned[key]
	delete(o.owned, key)
	o.mu.Unlock()
	if b == nil {
		return
	}
	current := b.lease.Current()
	if current {
		_ = b.lease.Forget() // without effect: a process that has ended is not taken over
	}
	b.lease.Release()
	if o.Ended == nil || !current {
		return
	}
	o.goodbye.Go(func() { o.Ended(b.Root, b.ID, exit) })
}

func (o *Owner) of(key string) *sandbox {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owned[key]
}
