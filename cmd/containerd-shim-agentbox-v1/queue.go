package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	maxWaiting     = 2048 // as many as containerd's own publisher keeps
	forwardTimeout = 5 * time.Second
	firstDelay     = 50 * time.Millisecond
	lastDelay      = 2 * time.Second
)

// queue is a publisher that sends one event after the other, each until
// containerd has taken it. containerd's own sends an event that failed later, and
// so in another order: after a restart of containerd an exit could come before
// its reason.
type queue struct {
	forward func(context.Context, *types.Envelope) error
	stop    context.CancelFunc
	done    chan struct{} // closed when nothing is sent any more
	release func() error

	mu      sync.Mutex
	changed *sync.Cond // something was added, sent or stopped
	waiting []message
	stopped bool
}

type message struct {
	ctx      context.Context
	envelope *types.Envelope
}

// newQueue sends to the containerd at a TTRPC address.
func newQueue(address string) *queue {
	s := &sender{path: strings.TrimPrefix(address, "unix://")}
	return startQueue(s.send, s.close)
}

// sender is a connection to containerd, made when it is needed. containerd's own
// client tries to connect a hundred times a second; the queue waits longer.
type sender struct {
	path   string
	client *ttrpc.Client // nil: not connected
}

func (s *sender) send(ctx context.Context, envelope *types.Envelope) error {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	if s.client == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.path)
		if err != nil {
			return err
		}
		s.client = ttrpc.NewClient(conn)
	}
	_, err := eventsapi.NewTTRPCEventsClient(s.client).Forward(ctx, &eventsapi.ForwardRequest{Envelope: envelope})
	if errors.Is(err, ttrpc.ErrClosed) {
		err = errors.Join(err, s.close())
	}
	return err
}

func (s *sender) close() error {
	if s.client == nil {
		return nil
	}
	client := s.client
	s.client = nil
	return client.Close()
}

func startQueue(forward func(context.Context, *types.Envelope) error, release func() error) *queue {
	ctx, stop := context.WithCancel(context.Background())
	q := &queue{forward: forward, stop: stop, release: release, done: make(chan struct{})}
	q.changed = sync.NewCond(&q.mu)
	go q.run(ctx)
	return q
}

// Publish puts an event in the queue. An error says that there is no room: then
// containerd has been away for long.
func (q *queue) Publish(ctx context.Context, topic string, event events.Event) error {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	data, err := typeurl.MarshalAnyToProto(event)
	if err != nil {
		return fmt.Errorf("write the event %s: %w", topic, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxWaiting {
		return fmt.Errorf("the event %s is lost: containerd has not taken the %d before it", topic, maxWaiting)
	}
	q.waiting = append(q.waiting, message{
		ctx:      context.WithoutCancel(ctx),
		envelope: &types.Envelope{Timestamp: timestamppb.Now(), Namespace: ns, Topic: topic, Event: data},
	})
	q.changed.Broadcast()
	return nil
}

// run sends what waits until it is stopped.
func (q *queue) run(ctx context.Context) {
	defer close(q.done)
	for {
		head, ok := q.head()
		if !ok {
			return
		}
		if err := q.deliver(ctx, head); err != nil {
			log.G(ctx).WithError(err).WithField("topic", head.envelope.GetTopic()).Error("containerd refuses an event")
		}
		q.pop()
	}
}

// head waits for an event; ok is false when the queue was stopped.
func (q *queue) head() (m message, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.stopped {
		q.changed.Wait()
	}
	if q.stopped {
		return m, false
	}
	return q.waiting[0], true
}

func (q *queue) pop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = q.waiting[1:]
	q.changed.Broadcast()
}

// deliver sends an event until it arrives or is refused.
func (q *queue) deliver(ctx context.Context, m message) error {
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		err := q.forward(m.ctx, m.envelope)
		if err == nil || refused(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(delay):
		}
	}
}

// refused tells an answer of containerd, which would be the same again, from a
// containerd that is not there. An event too large for a message never arrives.
func refused(err error) bool {
	if _, tooLarge := errors.AsType[*ttrpc.OversizedMessageErr](err); tooLarge {
		return true
	}
	answer, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch answer.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// flush waits until everything is sent, or ctx ends.
func (q *queue) flush(ctx context.Context) {
	wake := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})
	defer wake()
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 && ctx.Err() == nil {
		q.changed.Wait()
	}
}

// await waits until the queue was closed.
func (q *queue) await(limit time.Duration) {
	select {
	case <-q.done:
	case <-time.After(limit):
	}
}

// flushTime is how long the end of a shim waits for containerd.
const flushTime = 2 * time.Second

// Close sends what it can in a short time, and stops.
func (q *queue) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	q.flush(ctx)
	q.mu.Lock()
	q.stopped = true
	q.changed.Broadcast()
	q.mu.Unlock()
	q.stop()
	<-q.done
	return q.release()
}
