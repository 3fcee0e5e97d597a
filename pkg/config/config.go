package config

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/agentbox/agentbox/pkg/limits"
)

// DefaultPath is where the administrator's configuration is.
const DefaultPath = "/etc/agentbox/config.toml"

// MaxSize is the size, in bytes, above which a file is not read.
const MaxSize = 1 << 20

// File is a configuration file with the built-in values for what it leaves out.
type File struct {
	Runtime string // the low-level runtime: a name to look up in PATH, or an absolute path
	Group   string // who may read results without being root: the name of a group; empty: nobody

	ResultsDir    string        // absolute path of the folder of kept results
	ResultsMax    int           // how many results are kept, at least 1
	ResultsMaxAge time.Duration // how long a result is kept, more than 0

	Policy limits.Policy
}

// SystemResultsDir is the folder of results of the sandboxes that root starts.
const SystemResultsDir = "/var/lib/agentbox/results"

// defaultResultsDir returns the folder of results when none is given: a user
// other than root has one where the XDG base directory specification has state.
// That specification ignores a path that is not absolute.
func defaultResultsDir(euid int, getenv func(string) string) string {
	if euid == 0 {
		return SystemResultsDir
	}
	for _, base := range []struct{ variable, below string }{
		{"XDG_STATE_HOME", ""}, {"HOME", ".local/state"}, {"XDG_RUNTIME_DIR", ""},
	} {
		if dir := getenv(base.variable); filepath.IsAbs(dir) {
			return filepath.Join(dir, base.below, "agentbox/results")
		}
	}
	return filepath.Join("/run/user", strconv.Itoa(euid), "agentbox/results")
}

// Default returns the configuration of a host without a file.
func Default() *File {
	return &File{
		Runtime:       "runc",
		Group:         "docker",
		ResultsDir:    defaultResultsDir(os.Geteuid(), os.Getenv),
		ResultsMax:    1000,
		ResultsMaxAge: 168 * time.Hour,
		Policy:        limits.DefaultPolicy(),
	}
}

// Load reads a configuration file that has to be there, because somebody named
// it. The error is an *Error; errors.Is tells a cause such as fs.ErrNotExist.
//
// The file may be reached through symbolic links. It has to be a regular file,
// and when root reads it, nobody but its owner and the group root may be
// allowed to write it, since it names a program that root will run.
func Load(path string) (*File, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// LoadOptional is Load for a file that may be missing, as DefaultPath may:
// then it returns Default. A symbolic link to nothing is not a missing file.
func LoadOptional(path string) (*File, error) {
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := os.Lstat(path); errors.Is(lerr, fs.ErrNotExist) {
			return Default(), nil
		}
	}
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// LenientRuntime returns the runtime that a configuration file names, even if
// everything else in it is wrong, so that containers can still be stopped and
// removed while the file is being repaired. It returns "" if there is no such
// line before the first table, or the file or the value is not acceptable.
func LenientRuntime(path string) string {
	data, err := read(path)
	if err != nil {
		return ""
	}
	var p unstable.Parser
	for line := range bytes.Lines(bytes.TrimPrefix(data, byteOrderMark)) {
		line = bytes.TrimSpace(line)
		if bytes.HasPrefix(line, []byte("[")) {
			return ""
		}
		if !bytes.Contains(line, []byte("runtime")) {
			continue
		}
		p.Reset(line)
		if !p.NextExpression() || p.Expression().Kind != unstable.KeyValue {
			continue
		}
		key, v := p.Expression().Key(), p.Expression().Value()
		if !key.Next() || !key.IsLast() || string(key.Node().Data) != "runtime" || v.Kind != unstable.String {
			continue
		}
		if name := string(v.Data); checkRuntime(name) == "" {
			return name
		}
		return ""
	}
	return ""
}

// read returns the bytes of a file that is safe to obey.
func read(path string) ([]byte, error) {
	// Without O_NONBLOCK, opening a FIFO would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fileError(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fileError(path, err)
	}
	if problem := checkMode(info, os.Geteuid()); problem != "" {
		return nil, &Error{File: path, Text: problem}
	}
	// One byte more than allowed, so that Parse sees that it is too much.
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fileError(path, err)
	}
	return data, nil
}

func fileError(path string, err error) *Error {
	text := err.Error()
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		text = pe.Err.Error()
	}
	if errors.Is(err, fs.ErrNotExist) {
		text = "does not exist, or is a symbolic link to a file that does not"
	}
	return &Error{File: path, Text: "cannot read the configuration: " + text, Err: err}
}

// checkMode says what is wrong with the kind and the permissions of a file
// that a process with this effective user id is about to obey.
func checkMode(info fs.FileInfo, euid int) string {
	if !info.Mode().IsRegular() {
		return "is not a regular file: expected a TOML file"
	}
	if euid != 0 {
		return ""
	}
	if info.Mode().Perm()&0o002 != 0 {
		return "can be written by everybody, and root would run the program that it names: chmod go-w it"
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode().Perm()&0o020 != 0 && (!ok || st.Gid != 0) {
		return "can be written by a group other than root, and root would run the program that it names: chmod go-w it"
	}
	return ""
}
