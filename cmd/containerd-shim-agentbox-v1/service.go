package main

import (
	"context"
	"errors"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	runc "github.com/containerd/go-runc"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/supervise"
)

// register makes the task service known to containerd's shim package. The
// function that it returns waits for the last events of a server that has ended:
// containerd's package does not, and the event of a delete, which is followed by
// the end, could be lost.
func register() (published func()) {
	var served *service
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			down, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			served, err = newService(ic.Context, ic.Properties[plugins.PropertyTTRPCAddress], down.(shutdown.Service))
			return served, err
		},
	})
	return func() {
		if served != nil {
			served.events.await(2 * flushTime)
		}
	}
}

// service is containerd's task service for runc, with agentbox-runtime as the
// runtime and a tap on its events.
type service struct {
	taskapi.TTRPCTaskService
	events *queue
	tap    *tap
	lines  *commandLines
	owner  *supervise.Owner
}

func newService(ctx context.Context, ttrpcAddress string, down shutdown.Service) (*service, error) {
	q := newQueue(ttrpcAddress)
	t := newTap(q)
	inner, err := task.NewTaskService(ctx, t, down)
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	lines := &commandLines{ProcessMonitor: runc.Monitor} // of the task service, just set
	runc.Monitor = lines
	owner := newOwner()
	down.RegisterCallback(func(context.Context) error {
		owner.Close()
		return nil
	})
	return &service{TTRPCTaskService: inner, events: q, tap: t, lines: lines, owner: owner}, nil
}

// Create translates the options, which containerd's service takes in one form
// only, and creates the container.
func (s *service) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	given, err := translate(r.GetOptions())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if given.runc.BinaryName, err = findRuntime(given.runc.GetBinaryName()); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if !given.runc.GetSystemdCgroup() {
		given.runc.SystemdCgroup = isSystemdPath(cgroupsPath(r.GetBundle()))
	}
	flags, err := given.flags(r.GetBundle())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if r.Options, err = anypb.New(given.runc); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	free := s.tap.add(r.GetID(), &sandbox{
		states: state.Store{Dir: state.DefaultDir()},
		root:   runtimeRoot(given.runc.GetRoot(), ns),
		id:     r.GetID(),
		bundle: r.GetBundle(),
	})
	if !free {
		return nil, errgrpc.ToGRPCf(errdefs.ErrAlreadyExists, "task %s", r.GetID())
	}
	s.lines.set(r.GetBundle(), flags)
	resp, err := s.TTRPCTaskService.Create(ctx, r)
	if err != nil {
		s.forget(r.GetID())
		return nil, err
	}
	s.tap.created(r.GetID(), resp.GetPid())
	return resp, nil
}

// Start starts a process. The first one of a container is supervised before.
func (s *service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	if r.GetExecID() == "" {
		s.supervise(ctx, r.GetID())
	}
	return s.TTRPCTaskService.Start(ctx, r)
}

// Delete deletes a process that has ended. For the first one of a container it
// waits until its end has been recorded: a client may hear of the end before.
func (s *service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	if r.GetExecID() != "" {
		return s.TTRPCTaskService.Delete(ctx, r)
	}
	st, err := s.State(ctx, &taskapi.StateRequest{ID: r.GetID()})
	if err == nil && st.GetStatus() == tasktypes.Status_STOPPED && !s.tap.settled(ctx, r.GetID(), settleTime) {
		log.G(ctx).WithField("id", r.GetID()).Warn("deleting a container whose end has not been recorded")
	}
	resp, err := s.TTRPCTaskService.Delete(ctx, r)
	if err != nil {
		return nil, err
	}
	s.forget(r.GetID())
	return resp, nil
}

// settleTime bounds the wait for the record of an end, which takes milliseconds.
const settleTime = 5 * time.Second

func (s *service) forget(id string) {
	if bundle := s.tap.remove(id); bundle != "" {
		s.lines.set(bundle, nil)
	}
}

// RegisterTTRPC serves the task API in the version of containerd 2 and in that of
// containerd 1, which have the same messages. It never fails.
//
//nolint:unparam // the signature is that of shim.TTRPCService
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s)
	server.RegisterService("containerd.task.v2.Task", &ttrpc.ServiceDesc{Methods: taskMethods(s)})
	return nil
}

// runtimeRoot is the state folder that containerd's service names to the runtime
// (process.NewRunc).
func runtimeRoot(root, ns string) string {
	if root == "" {
		root = process.RuncRoot
	}
	return root + "/" + ns
}
