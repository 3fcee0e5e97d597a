package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// TestOrder plays any mixture of kills, watchers that hear of them early, late or
// never, and exits. No TaskOOM may come after the end, and no kill may be told
// after the exit that it is the reason for.
func TestOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		var o order
		kills, told, over := int64(0), false, false
		var history []string
		for range 1 + r.IntN(8) {
			switch r.IntN(4) {
			case 0:
				kills++
				told = false
				history = append(history, "kill")
			case 1:
				publish := o.oom(kills)
				history = append(history, "watcher")
				if publish && over || !publish && !over {
					t.Fatalf("%v: published %v", history, publish)
				}
				told = told || publish
			default:
				first := r.IntN(2) == 0
				history = append(history, map[bool]string{true: "end", false: "exit"}[first])
				oomFirst := o.exit(first, kills)
				if oomFirst && over {
					t.Fatalf("%v: TaskOOM after the end", history)
				}
				if !over && kills > 0 && !told && !oomFirst {
					t.Fatalf("%v: the exit was published before its TaskOOM", history)
				}
				told, over = told || oomFirst, over || first
			}
		}
	}
}

// recorder is a publisher that remembers topics, and of which container a TaskOOM
// is.
type recorder struct {
	topics []string
	err    error
}

func (r *recorder) Publish(_ context.Context, topic string, event events.Event) error {
	if e, ok := event.(*eventtypes.TaskOOM); ok {
		topic += " " + e.GetContainerID()
	}
	r.topics = append(r.topics, topic)
	return r.err
}

func (r *recorder) Close() error { return nil }

// known is the evidence of a container in a test.
type known struct {
	kills  int64
	result *result.Result
	err    error
	asked  []int // pid and status
}

func (k *known) oomKills() int64 { return k.kills }
func (k *known) keep() int64     { return k.kills }
func (k *known) folder() string  { return "/bundle" }
func (k *known) end(pid, status int, _ time.Time) (*result.Result, error) {
	k.asked = append(k.asked, pid, status)
	if k.result == nil {
		return nil, k.err
	}
	r := *k.result
	r.Events.OOMKill = k.kills
	return &r, k.err
}

const (
	create  = "/tasks/create"
	started = "/tasks/start"
	oom     = "/tasks/oom c1"
	exit    = "/tasks/exit"
	deleted = "/tasks/delete"
)

func exitOf(process string, status uint32) *eventtypes.TaskExit {
	return &eventtypes.TaskExit{ContainerID: "c1", ID: process, Pid: 42, ExitStatus: status, ExitedAt: timestamppb.Now()}
}

func TestTap(t *testing.T) {
	oomOf := func(id string) *eventtypes.TaskOOM { return &eventtypes.TaskOOM{ContainerID: id} }
	ended := &result.Result{ID: "c1", Status: verdict.OOMKilled, ErrorCode: verdict.MemoryLimitExceeded}
	tests := []struct {
		name  string
		known known
		come  []events.Event
		goes  []string
	}{
		{"a plain end", known{result: ended}, []events.Event{exitOf("c1", 0)}, []string{verdictTopic, exit}},
		{"a kill that the watcher told", known{kills: 1, result: ended}, []events.Event{oomOf("c1"), exitOf("c1", 137)}, []string{oom, verdictTopic, exit}},
		{"a kill that nobody told", known{kills: 1, result: ended}, []events.Event{exitOf("c1", 137)}, []string{oom, verdictTopic, exit}},
		{"a watcher that is late", known{kills: 1, result: ended}, []events.Event{exitOf("c1", 137), oomOf("c1")}, []string{oom, verdictTopic, exit}},
		{"a kill of an exec", known{kills: 1}, []events.Event{exitOf("exec1", 137)}, []string{oom, exit}},
		{"an exec that ends by itself", known{kills: 1}, []events.Event{exitOf("exec1", 0)}, []string{exit}},
		{"nothing is known", known{}, []events.Event{exitOf("c1", 1)}, []string{exit}},
		{"the record fails", known{err: errors.New("no space")}, []events.Event{exitOf("c1", 1)}, []string{exit}},
		{"the record fails and there is a result", known{result: ended, err: errors.New("no space")}, []events.Event{exitOf("c1", 1)}, []string{verdictTopic, exit}},
		{"an end that is published twice", known{result: ended}, []events.Event{exitOf("c1", 0), exitOf("c1", 0)}, []string{verdictTopic, exit, exit}},
		{
			"an exec with the id of its container",
			known{kills: 1, result: ended},
			[]events.Event{&eventtypes.TaskCreate{ContainerID: "c1", Pid: 7}, exitOf("c1", 137), &eventtypes.TaskExit{ContainerID: "c1", ID: "c1", Pid: 7}},
			[]string{create, oom, exit, verdictTopic, exit},
		},
		{
			"a restored container",
			known{result: ended},
			[]events.Event{&eventtypes.TaskCreate{ContainerID: "c1"}, &eventtypes.TaskStart{ContainerID: "c1", Pid: 42}, exitOf("c1", 0)},
			[]string{create, started, verdictTopic, exit},
		},
		{"of a container that was deleted", known{kills: 1}, []events.Event{oomOf("c2"), &eventtypes.TaskExit{ContainerID: "c2", ID: "c2"}}, []string{exit}},
		{"events of other kinds", known{}, []events.Event{&eventtypes.TaskCreate{ContainerID: "c1"}, &eventtypes.TaskStart{}, &eventtypes.TaskDelete{}}, []string{create, started, deleted}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{}
			tp := newTap(r)
			tp.add("c1", &tt.known)
			for _, e := range tt.come {
				if err := tp.Publish(t.Context(), runtime.GetTopic(e), e); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(r.topics, tt.goes) {
				t.Errorf("published %q, want %q", r.topics, tt.goes)
			}
		})
	}
}

// A client may ask for the delete as soon as the process has ended.
func TestDeleteWaitsForTheRecord(t *testing.T) {
	tp := newTap(&recorder{err: errors.New("containerd is away")})
	k := &known{}
	tp.add("c1", k)
	if tp.settled(t.Context(), "c1", time.Millisecond) {
		t.Fatal("settled before the end")
	}
	go func() { _ = tp.Publish(context.Background(), exit, exitOf("c1", 9)) }()
	if !tp.settled(t.Context(), "c1", time.Minute) {
		t.Fatal("not settled after the end")
	}
	if !slices.Equal(k.asked, []int{42, 9}) {
		t.Errorf("recorded %v", k.asked)
	}
	if tp.add("c1", &known{}) {
		t.Error("an id is used twice")
	}
	if got := tp.remove("c1"); got != "/bundle" {
		t.Errorf("the bundle is %q", got)
	}
	if got := tp.remove("c1"); got != "" || !tp.settled(t.Context(), "c1", time.Minute) {
		t.Errorf("known after it was removed: %q", got)
	}
}

// stopped is a task service with a container that has ended.
type stopped struct {
	taskapi.TTRPCTaskService
	status  tasktypes.Status
	deleted chan struct{}
}

func (s stopped) State(context.Context, *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	return &taskapi.StateResponse{Status: s.status}, nil
}

func (s stopped) Delete(context.Context, *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	close(s.deleted)
	return &taskapi.DeleteResponse{}, nil
}

func TestDelete(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status tasktypes.Status
		exec   string
		waits  bool
	}{
		{"the container has ended", tasktypes.Status_STOPPED, "", true},
		{"it runs, and containerd's service refuses", tasktypes.Status_RUNNING, "", false},
		{"an exec", tasktypes.Status_STOPPED, "e1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tp := newTap(&recorder{})
			tp.add("c1", &known{})
			inner := stopped{status: tt.status, deleted: make(chan struct{})}
			s := &service{TTRPCTaskService: inner, tap: tp, lines: &commandLines{}}
			done := make(chan error, 1)
			go func() {
				_, err := s.Delete(context.Background(), &taskapi.DeleteRequest{ID: "c1", ExecID: tt.exec})
				done <- err
			}()
			if tt.waits {
				select {
				case <-inner.deleted:
					t.Fatal("deleted before the end was recorded")
				case <-time.After(100 * time.Millisecond):
				}
				if err := tp.Publish(t.Context(), exit, exitOf("c1", 0)); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			<-inner.deleted
			if known := tp.remove("c1") != ""; known != (tt.exec != "") {
				t.Errorf("the container is known afterwards: %v", known)
			}
		})
	}
}

func TestVerdictEvent(t *testing.T) {
	code := 137
	e, err := verdictEvent(&result.Result{ID: "c1", Status: verdict.OOMKilled, ErrorCode: verdict.MemoryLimitExceeded, ExitCode: &code, ExitSource: verdict.ExitContainerd})
	if err != nil {
		t.Fatal(err)
	}
	if e.GetID() != "c1" || e.GetLabels()["agentbox.dev/status"] != "OOM_KILLED" || e.GetLabels()["agentbox.dev/error-code"] != "SANDBOX_MEMORY_LIMIT_EXCEEDED" {
		t.Errorf("%v", e)
	}
	var r result.Result
	if err := json.Unmarshal([]byte(e.GetLabels()["agentbox.dev/result"]), &r); err != nil || r.ID != "c1" || *r.ExitCode != 137 || r.ExitSource != verdict.ExitContainerd {
		t.Errorf("%+v, %v", r, err)
	}
	// What a filter of containerd sees.
	if v, ok := e.Field([]string{"labels", "agentbox.dev/status"}); !ok || v != "OOM_KILLED" {
		t.Errorf("the field is %q, %v", v, ok)
	}
}

func TestSandbox(t *testing.T) {
	store := state.Store{Dir: t.TempDir()}
	root := t.TempDir()
	s := &sandbox{states: store, root: root, id: "c1"}
	if r, err := s.end(42, 0, time.Now()); r != nil || err != nil || s.oomKills() != 0 {
		t.Errorf("a container that is no sandbox: %+v, %v", r, err)
	}
	st := &state.State{ID: "c1", Root: state.CleanRoot(root), RealRoot: root, Runtime: "/r", Nonce: "1", Started: &state.Started{Init: procfs.Process{Pid: 42}}}
	if err := store.Create(st); err != nil {
		t.Fatal(err)
	}
	if r, err := s.end(43, 0, time.Now()); r != nil || err == nil || !strings.Contains(err.Error(), "is 42, and 43 has ended") {
		t.Errorf("another process: %+v, %v", r, err)
	}
	if n := s.keep(); n != 0 { // no cgroup
		t.Errorf("%d kills", n)
	}
	if kept, err := store.Load(state.CleanRoot(root), "c1"); err != nil || kept.Evidence == nil {
		t.Errorf("kept at a kill: %+v, %v", kept, err)
	}
	r, err := s.end(42, 130, time.Now())
	if err != nil || r.ExitSource != verdict.ExitContainerd || *r.ExitCode != 130 || r.Signal != nil || r.Status != verdict.Ended {
		t.Errorf("%+v, %v", r, err)
	}
	kept, err := store.Load(state.CleanRoot(root), "c1")
	if err != nil || kept.Evidence == nil || kept.Evidence.Exit.Source != verdict.ExitContainerd {
		t.Errorf("delete finds %+v, %v", kept, err)
	}
}
