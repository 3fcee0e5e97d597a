package lease

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// The supervisor of a folder of states listens on a socket in it. A client says
// one line and gets one:
//
//	agentbox-supervise 1 take "ROOT" "ID" PID STARTTIME
//	ok
//	no REASON
const (
	socketName = "supervise.sock"
	greeting   = "agentbox-supervise 1"
	maxLine    = 16 << 10 // ROOT and ID are names of files
)

// Request asks for one sandbox to be supervised.
type Request struct {
	Root, ID string
	Init     procfs.Process // its first process, which waits
}

var errLine = errors.New("this is no request that this supervisor knows: it and agentbox-runtime may be of different versions")

func (r Request) line() string {
	return fmt.Sprintf("%s take %q %q %d %d\n", greeting, r.Root, r.ID, r.Init.Pid, r.Init.StartTime)
}

// ParseRequest reads the line of a client, without its end.
func ParseRequest(line string) (Request, error) {
	rest, ok := strings.CutPrefix(line, greeting+" take ")
	if !ok {
		return Request{}, errLine
	}
	var r Request
	for _, to := range []*string{&r.Root, &r.ID} {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return Request{}, errLine
		}
		if *to, err = strconv.Unquote(quoted); err != nil {
			return Request{}, errLine
		}
		if rest, ok = strings.CutPrefix(rest[len(quoted):], " "); !ok {
			return Request{}, errLine
		}
	}
	pid, start, ok := strings.Cut(rest, " ")
	if !ok {
		return Request{}, errLine
	}
	var err error
	if r.Init.Pid, err = strconv.Atoi(pid); err != nil || r.Init.Pid <= 0 {
		return Request{}, errLine
	}
	if r.Init.StartTime, err = strconv.ParseUint(start, 10, 64); err != nil {
		return Request{}, errLine
	}
	return r, nil
}

// Answer is the line that a client gets.
func Answer(err error) string {
	if err == nil {
		return "ok\n"
	}
	return "no " + strings.Join(strings.Fields(err.Error()), " ") + "\n"
}

// A RefusedError is what the supervisor said.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "the supervisor says: " + e.Reason }

func parseAnswer(line string) error {
	if line == "ok" {
		return nil
	}
	reason, ok := strings.CutPrefix(line, "no ")
	if !ok {
		return fmt.Errorf("the supervisor gave an answer that is none: %.80q", line)
	}
	return &RefusedError{Reason: reason}
}

// ReadLine reads one line, without its end.
func ReadLine(from io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(from, maxLine)).ReadString('\n')
	if errors.Is(err, io.EOF) && len(line) == maxLine {
		return "", fmt.Errorf("a line has more than %d bytes", maxLine)
	}
	if err != nil {
		return "", err
	}
	return line[:len(line)-1], nil
}

// Address returns the address of the supervisor of a folder of states, and what
// keeps it good until it is closed. It goes through an open folder, since the
// address of a socket has room for 107 bytes only (unix(7)).
func Address(dir string) (address string, open io.Closer, err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open the folder of states %s: %w", dir, err)
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(fd), socketName), descriptor(fd), nil
}

// SocketPath is where the supervisor of a folder of states listens.
func SocketPath(dir string) string { return filepath.Join(dir, socketName) }

// LogPath is where a supervisor that was started on demand says what goes wrong.
func LogPath(dir string) string { return filepath.Join(dir, "supervise.log") }

type descriptor int

func (d descriptor) Close() error { return unix.Close(int(d)) }
