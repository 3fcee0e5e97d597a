package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Asker asks for sandboxes of one folder of states to be supervised.
type Asker struct {
	Dir     string        // the folder of states
	Program string        // agentbox, absolute; "": the host's supervisor cannot be started
	Limit   time.Duration // for all of it together
}

// errNobody says that no supervisor listens.
var errNobody = errors.New("no supervisor runs")

// Ask sees to it that somebody supervises the sandbox whose state is in a folder:
// who has its lease already, or the host's supervisor, which is started where it
// does not run. When Ask returns no error, the sandbox is held to its limits.
func (a Asker) Ask(sandboxDir string, r Request) error {
	held, err := Held(sandboxDir)
	if held || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.Limit)
	defer cancel()
	for {
		err := a.ask(ctx, r)
		if !errors.Is(err, errNobody) {
			return err
		}
		if err := a.start(ctx); err != nil {
			return err
		}
		// One that is ready may have been about to end, or be killed.
		if err = a.ask(ctx, r); !errors.Is(err, errNobody) {
			return err
		}
		if !pause(ctx) {
			return fmt.Errorf("the host's supervisor does not stay: see %s", LogPath(a.Dir))
		}
	}
}

func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(20 * time.Millisecond):
		return true
	}
}

// ask asks once.
func (a Asker) ask(ctx context.Context, r Request) error {
	address, open, err := Address(a.Dir)
	if err != nil {
		return err
	}
	defer open.Close()
	conn, err := dial(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := checkPeer(conn); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("ask the host's supervisor: %w", err)
	}
	_, err = io.WriteString(conn, r.line())
	var line string
	if err == nil {
		line, err = ReadLine(conn)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the host's supervisor did not answer within %s", a.Limit)
	case errors.Is(err, io.EOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return errNobody // it was killed while it had the request
	case err != nil:
		return fmt.Errorf("ask the host's supervisor: %w", err)
	}
	return parseAnswer(line)
}

// dial connects. A queue of connections that is full (EAGAIN, unix(7)) is that of
// a supervisor that lives.
func dial(ctx context.Context, address string) (*net.UnixConn, error) {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", address)
		switch {
		case err == nil:
			return conn.(*net.UnixConn), nil
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist), errors.Is(err, os.ErrDeadlineExceeded):
			return nil, errNobody
		case !errors.Is(err, unix.EAGAIN) || !pause(ctx):
			return nil, fmt.Errorf("connect to the host's supervisor: %w", err)
		}
	}
}

// checkPeer makes sure that a connection is with this user or root.
func checkPeer(conn *net.UnixConn) error {
	uid, err := PeerUID(conn)
	if err != nil {
		return err
	}
	if uid != 0 && uid != uint32(os.Geteuid()) {
		return fmt.Errorf("user %d stands in the place of the host's supervisor", uid)
	}
	return nil
}

// PeerUID returns the user at the other end of a connection (SO_PEERCRED,
// unix(7)).
func PeerUID(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("ask who is at the other end: %w", err)
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("ask who is at the other end: %w", err)
	}
	if peerErr != nil {
		return 0, fmt.Errorf("ask who is at the other end: %w", peerErr)
	}
	return peer.Uid, nil
}

// start starts the host's supervisor, and returns when it is ready, or another
// one is.
func (a Asker) start(ctx context.Context) error {
	if a.Program == "" {
		return errors.New("no supervisor runs, and the program agentbox, which is one, was not found beside agentbox-runtime or on the PATH")
	}
	c := exec.CommandContext(ctx, a.Program, "supervise", "--detach", "--state", a.Dir)
	c.Dir, c.Env = "/", []string{}
	var said bytes.Buffer
	c.Stderr = &said
	err := c.Run()
	if err == nil {
		return nil
	}
	why := strings.Join(strings.Fields(said.String()), " ")
	if why == "" || ctx.Err() != nil {
		why = err.Error()
	}
	return fmt.Errorf("the host's supervisor cannot be started: %s", why)
}
