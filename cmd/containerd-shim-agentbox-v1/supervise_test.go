package main

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/agentbox/agentbox/pkg/lease"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
	"github.com/agentbox/agentbox/test/promise"
)

// starting is a task service that notes what holds when it is told to start.
type starting struct {
	taskapi.TTRPCTaskService
	at func()
}

func (s starting) Start(context.Context, *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	s.at()
	return &taskapi.StartResponse{}, nil
}

// TestShimSupervises: a container that needs it is supervised before its program
// runs, and for all others nothing is started.
func TestShimSupervises(t *testing.T) {
	for _, tt := range []struct {
		name     string
		enforcer limits.Enforcer
		exec     string
		want     bool
	}{
		{"a limit of the supervisor", limits.EnforcerSupervisor, "", true},
		{"a limit of the kernel", limits.EnforcerKernel, "", false},
		{"an exec", limits.EnforcerSupervisor, "e1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := exec.Command("sh", "-c", "trap 'exit 1' TERM; while :; do sleep 0.1; done")
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			if err := c.Start(); err != nil {
				promise.Lacks(t, "pid namespaces: ", err)
			}
			ended := make(chan error, 1)
			go func() { ended <- c.Wait() }()
			defer func() { _ = c.Process.Kill() }()

			store, root := state.Store{Dir: t.TempDir()}, t.TempDir()
			const budget = 500 * time.Millisecond
			st := &state.State{
				ID: "c1", Root: state.CleanRoot(root), RealRoot: root, Runtime: "/r", Nonce: "1",
				Plan: limits.Plan{Entries: []limits.Entry{{Key: limits.KeyWallTime, Dimension: limits.WallTime, Value: limits.Limit(int64(budget)), Enforcer: tt.enforcer}}},
			}
			if err := store.Create(st); err != nil {
				t.Fatal(err)
			}
			dir := store.Path(st.Root, st.ID)
			tp := newTap(&recorder{})
			tp.add("c1", &sandbox{states: store, root: root, id: "c1"})
			tp.created("c1", uint32(c.Process.Pid))
			owner := newOwner()
			owner.States = store
			defer owner.Close()
			taken := false
			s := &service{tap: tp, lines: &commandLines{}, owner: owner}
			s.TTRPCTaskService = starting{at: func() {
				held, err := lease.Held(dir)
				taken = held && err == nil
			}}
			if _, err := s.Start(t.Context(), &taskapi.StartRequest{ID: "c1", ExecID: tt.exec}); err != nil {
				t.Fatal(err)
			}
			if taken != tt.want || (owner.Count() == 1) != tt.want {
				t.Fatalf("supervised when it starts: %v, %d in all", taken, owner.Count())
			}
			if !tt.want {
				return
			}
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatal("the sandbox has not ended")
			}
			s2, err := store.Strike(st.Root, st.ID)
			if err != nil || s2 == nil || s2.Code != verdict.WallTimeExceeded || s2.Limit != int64(budget) {
				t.Errorf("recorded %+v, %v", s2, err)
			}
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				held, err := lease.Held(dir)
				if err != nil || time.Now().After(deadline) {
					t.Fatalf("held after the end: %v, %v", held, err)
				}
				if !held && owner.Count() == 0 {
					break
				}
			}
		})
	}
}

// The pid may come from the answer to a create, or with its event.
func TestPidOfAContainer(t *testing.T) {
	tp := newTap(&recorder{})
	box := &sandbox{id: "c1"}
	tp.add("c1", box)
	if got, pid := tp.sandbox("c1"); got != box || pid != 0 {
		t.Errorf("before: %v, %d", got, pid)
	}
	tp.created("c1", 42)
	if _, pid := tp.sandbox("c1"); pid != 42 {
		t.Errorf("created: %d", pid)
	}
	if err := tp.Publish(t.Context(), started, &eventtypes.TaskStart{ContainerID: "c1", Pid: 43}); err != nil {
		t.Fatal(err)
	}
	if _, pid := tp.sandbox("c1"); pid != 43 {
		t.Errorf("started: %d", pid)
	}
	if got, pid := tp.sandbox("c2"); got != nil || pid != 0 {
		t.Errorf("another: %v, %d", got, pid)
	}
	tp.created("c2", 1) // deleted meanwhile
}
