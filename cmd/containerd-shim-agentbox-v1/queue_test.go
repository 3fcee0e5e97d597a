package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// receiver is a containerd that takes events, unless it says why not.
type receiver struct {
	mu     sync.Mutex
	topics []string
	answer func(topic string) error
}

func (r *receiver) forward(_ context.Context, e *types.Envelope) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answer != nil {
		if err := r.answer(e.GetTopic()); err != nil {
			return err
		}
	}
	r.topics = append(r.topics, e.GetTopic())
	return nil
}

func (r *receiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.topics)
}

func testQueue(t *testing.T, r *receiver) (*queue, context.Context) {
	t.Helper()
	q := startQueue(r.forward, func() error { return nil })
	t.Cleanup(func() {
		q.stop() // else Close waits for what is never taken
		_ = q.Close()
	})
	return q, namespaces.WithNamespace(t.Context(), "n")
}

func numbers(n int) (topics []string) {
	for i := range n {
		topics = append(topics, fmt.Sprintf("/t/%d", i))
	}
	return topics
}

func publishAll(t *testing.T, ctx context.Context, q *queue, topics []string) {
	t.Helper()
	for _, topic := range topics {
		if err := q.Publish(ctx, topic, &eventtypes.TaskOOM{ContainerID: "c1"}); err != nil {
			t.Fatal(err)
		}
	}
}

// containerd is away at first, and then now and then.
func TestQueueKeepsTheOrder(t *testing.T) {
	calls := 0
	r := &receiver{answer: func(string) error {
		if calls++; calls < 3 || calls%7 == 0 {
			return []error{ttrpc.ErrClosed, context.DeadlineExceeded, status.Error(codes.Unavailable, "starting")}[calls%3]
		}
		return nil
	}}
	q, ctx := testQueue(t, r)
	want := numbers(30)
	publishAll(t, ctx, q, want)
	flush(t, q)
	if got := r.got(); !slices.Equal(got, want) {
		t.Errorf("arrived: %q", got)
	}
}

// flush waits for the queue, but not for ever.
func flush(t *testing.T, q *queue) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	q.flush(ctx)
}

// Forward is the call of containerd's API.
func (r *receiver) Forward(ctx context.Context, request *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, r.forward(ctx, request.GetEnvelope())
}

// serveEvents is containerd's side; stop ends it as a restart does.
func (r *receiver) serveEvents(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	eventsapi.RegisterTTRPCEventsService(server, r)
	go func() { _ = server.Serve(context.Background(), l) }()
	return func() { _ = server.Close() }
}

func TestQueueFindsContainerdAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	q := newQueue("unix://" + path)
	t.Cleanup(func() {
		q.stop()
		_ = q.Close()
	})
	ctx := namespaces.WithNamespace(t.Context(), "n")
	want := numbers(30)
	r := &receiver{}
	publishAll(t, ctx, q, want[:10]) // before it is there
	stop := r.serveEvents(t, path)
	flush(t, q)
	stop()
	publishAll(t, ctx, q, want[10:20]) // while it is away
	defer r.serveEvents(t, path)()
	publishAll(t, ctx, q, want[20:])
	flush(t, q)
	if got := r.got(); !slices.Equal(got, want) {
		t.Errorf("arrived: %q", got)
	}
}

func TestQueueGoesOnAfterARefusal(t *testing.T) {
	r := &receiver{answer: func(topic string) error {
		if topic == "/t/1" {
			return status.Error(codes.InvalidArgument, "no")
		}
		return nil
	}}
	q, ctx := testQueue(t, r)
	publishAll(t, ctx, q, numbers(3))
	flush(t, q)
	if got := r.got(); !slices.Equal(got, []string{"/t/0", "/t/2"}) {
		t.Errorf("arrived: %q", got)
	}
}

// An event that no message can hold keeps nothing else from being sent.
func TestQueueGoesOnAfterAnEventThatIsTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	r := &receiver{}
	defer r.serveEvents(t, path)()
	q := newQueue("unix://" + path)
	t.Cleanup(func() {
		q.stop()
		_ = q.Close()
	})
	ctx := namespaces.WithNamespace(t.Context(), "n")
	if err := q.Publish(ctx, "/t/large", &eventtypes.TaskOOM{ContainerID: strings.Repeat("x", 5<<20)}); err != nil {
		t.Fatal(err)
	}
	publishAll(t, ctx, q, numbers(2))
	flush(t, q)
	if got := r.got(); !slices.Equal(got, numbers(2)) {
		t.Errorf("arrived: %q", got)
	}
}

func TestQueueIsBounded(t *testing.T) {
	r := &receiver{answer: func(string) error { return errors.New("away") }}
	q, ctx := testQueue(t, r)
	publishAll(t, ctx, q, numbers(maxWaiting))
	if err := q.Publish(ctx, "/t/more", &eventtypes.TaskOOM{}); err == nil || !strings.Contains(err.Error(), "/t/more is lost") {
		t.Errorf("%v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if q.flush(short); time.Since(begin) > flushTime/2 {
		t.Errorf("flush took %v", time.Since(begin))
	}
}

func TestQueueSendsTheRestWhenItIsClosed(t *testing.T) {
	released := false
	r := &receiver{}
	q := startQueue(r.forward, func() error { released = true; return nil })
	want := numbers(20)
	publishAll(t, namespaces.WithNamespace(t.Context(), "n"), q, want)
	closed := make(chan error, 1)
	go func() { // as the task service does, when the shim is about to end
		time.Sleep(20 * time.Millisecond)
		closed <- q.Close()
	}()
	q.await(time.Minute)
	if got := r.got(); !slices.Equal(got, want) {
		t.Errorf("arrived: %q", got)
	}
	if err := <-closed; err != nil || !released {
		t.Errorf("%v, released %v", err, released)
	}
}

func TestQueueNeedsANamespace(t *testing.T) {
	q, _ := testQueue(t, &receiver{})
	if err := q.Publish(t.Context(), "/t", &eventtypes.TaskOOM{}); err == nil {
		t.Error("an event without a namespace")
	}
}
