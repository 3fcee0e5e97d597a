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

// Read returns the content of a regular file of at most limit bytes. Anything
// else, such as a pipe that nobody writes to, is an error at once. flags is 0 or
// NoFollow.
func Read(name string, limit int64, flags int) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0) // os adds O_CLOEXEC
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, nil
}
