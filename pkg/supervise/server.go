package supervise

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"github.com/agentbox/agentbox/pkg/lease"
)

const (
	maxClients = 64              // at a time; the next ones wait to be accepted
	clientTime = 5 * time.Second // to say and hear a line
)

// server takes sandboxes for whoever asks through the socket of a folder of
// states. Only root, and the user whose folder it is, can reach it.
type server struct {
	owner    *Owner
	listener *net.UnixListener
	path     string
	clients  sync.WaitGroup
	closed   sync.Once
}

// listen begins to serve. The folder is locked: a socket that is there is that of
// a supervisor which was killed.
func listen(dir string, owner *Owner) (*server, error) {
	path := lease.SocketPath(dir)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier supervisor: %w", err)
	}
	address, open, err := lease.Address(dir)
	if err != nil {
		return nil, err
	}
	defer open.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // by close
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	s := &server{owner: owner, listener: l, path: path}
	s.clients.Go(s.serve)
	return s, nil
}

// close stops listening, and returns when the last client has its answer.
func (s *server) close() {
	s.closed.Do(func() {
		_ = os.Remove(s.path)
		_ = s.listener.Close()
	})
	s.clients.Wait()
}

func (s *server) serve() {
	room := make(chan struct{}, maxClients)
	for {
		room <- struct{}{}
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors are left, or no memory
			report(fmt.Errorf("accept a client: %w", err))
			<-room
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.clients.Go(func() {
			defer func() { <-room }()
			defer conn.Close()
			s.client(conn)
		})
	}
}

// client answers one client.
func (s *server) client(conn *net.UnixConn) {
	if conn.SetDeadline(time.Now().Add(clientTime)) != nil {
		return
	}
	_, _ = io.WriteString(conn, lease.Answer(s.take(conn))) // it may be gone
}

func (s *server) take(conn *net.UnixConn) error {
	line, err := lease.ReadLine(conn)
	if err != nil {
		return fmt.Errorf("read what is asked: %w", err)
	}
	uid, err := lease.PeerUID(conn)
	if err != nil {
		return err
	}
	if uid != 0 && uid != uint32(os.Geteuid()) {
		return fmt.Errorf("user %d may not ask for anything here", uid)
	}
	r, err := lease.ParseRequest(line)
	if err != nil {
		return err
	}
	if err := s.owner.Take(r.Root, r.ID, r.Init); !errors.Is(err, lease.ErrHeld) {
		return err
	}
	return nil // somebody does it
}
