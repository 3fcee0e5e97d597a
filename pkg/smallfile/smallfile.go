// Package smallfile reads files that others may have put where agentbox looks:
// it never waits, and never reads much.
package smallfile

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// NoFollow refuses a symbolic link as the last element of the name.
const NoFollow = unix.O_NOFOLLOW

// Open opens a regular file for reading, as files of proc and sys are. Anything
// else, such as a pipe that nobody writes to, is an error at once. flags is 0 or
// NoFollow.
func Open(name string, flags int) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0) // os adds O_CLOEXEC
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read returns the content of a regular file of at most limit bytes; the errors
// and flags are those of Open.
func Read(name string, limit int64, flags int) ([]byte, error) {
	f, err := Open(name, flags)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, nil
}
