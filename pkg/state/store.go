package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/smallfile"
)

// Store is the folder of states:
//
//	DIR/ROOT/ID/state.json the State
//	DIR/ROOT/ID/runtime    symbolic link to the low-level runtime
//	DIR/ROOT/ID/container  symbolic link to the low-level runtime's folder of it,
//	                       where that is not ROOT/ID
//	DIR/ROOT/ID/pid        the pid of the first process, unless the caller keeps it
//	DIR/ROOT/ID/strike     the verdict.Strike for which the supervisor ended it
//	DIR/ROOT/ID/spent      what it has used of its budgets
//
// ROOT is the path of the low-level runtime's state folder, written as one name
// (a hash when it is too long for one).
type Store struct {
	Dir string
}

// SystemDir is the folder of states of the sandboxes that root starts.
const SystemDir = "/run/agentbox"

// DefaultDir returns the folder of states when none is given: SystemDir, or one
// below XDG_RUNTIME_DIR for a user other than root.
func DefaultDir() string {
	if os.Geteuid() == 0 {
		return SystemDir
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "agentbox")
	}
	return filepath.Join("/run/user", strconv.Itoa(os.Geteuid()), "agentbox")
}

// CleanRoot returns the one name that states have for a low-level runtime's
// state folder: absolute and without symbolic links, also when the folder is not
// there yet: the low-level runtime makes it, and would be looked for under
// another name afterwards.
func CleanRoot(root string) string {
	abs, err := filepath.Abs(root)
	if err != nil {
		return root
	}
	for dir, rest := abs, ""; ; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if dir == filepath.Dir(dir) {
			return abs
		}
	}
}

const (
	stateName     = "state.json"
	runtimeName   = "runtime"
	containerName = "container"
	pidName       = "pid"
	tempPrefix    = "~tmp-" // no container id has a "~"
)

// ErrExists says that a sandbox of that id has a state already.
var ErrExists = errors.New("a sandbox of this id has a state already")

// A root is written as one name by escaping; hashPrefix starts the name of one
// that is too long, and no escaped path.
const (
	hashPrefix  = "%%"
	maxRootName = 200
)

var (
	escapeRoot   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescapeRoot = strings.NewReplacer("%25", "%", "%2F", "/")
)

func (s Store) rootDir(root string) string {
	name := escapeRoot.Replace(root)
	if len(name) > maxRootName {
		name = hashPrefix + hash(root)
	}
	return filepath.Join(s.Dir, name)
}

func hash(text string) string {
	h := fnv.New128a()
	_, _ = h.Write([]byte(text)) // never fails
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Path returns the folder of one sandbox.
func (s Store) Path(root, id string) string { return filepath.Join(s.rootDir(root), id) }

// PidFile returns where the low-level runtime is asked to leave the pid when the
// caller does not ask for it.
func (s Store) PidFile(root, id string) string { return filepath.Join(s.Path(root, id), pidName) }

// Runtime returns the low-level runtime of a sandbox; "" when it has no state.
// This is one system call: every command of the low-level runtime pays for it.
func (s Store) Runtime(root, id string) string {
	target, err := os.Readlink(filepath.Join(s.Path(root, id), runtimeName))
	if err != nil {
		return ""
	}
	return target
}

// Create writes the first state of a sandbox, whole or not at all. It fails with
// ErrExists when there is one.
func (s Store) Create(st *State) (err error) {
	dir := s.rootDir(st.Root)
	temp, err := makeTemp(dir, st.Nonce)
	if err != nil {
		return fmt.Errorf("make the state of %s: %w", st.ID, err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(temp)
		}
	}()
	data, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("write the state of %s: %w", st.ID, err)
	}
	if err := os.WriteFile(filepath.Join(temp, stateName), data, 0o600); err != nil {
		return fmt.Errorf("write the state of %s: %w", st.ID, err)
	}
	if err := os.Symlink(st.Runtime, filepath.Join(temp, runtimeName)); err != nil {
		return fmt.Errorf("write the state of %s: %w", st.ID, err)
	}
	if st.RealRoot != st.Root { // only saves Orphans reading the state
		_ = os.Symlink(filepath.Join(st.RealRoot, st.ID), filepath.Join(temp, containerName))
	}
	// A folder is never renamed over one that has files.
	err = os.Rename(temp, s.Path(st.Root, st.ID))
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", st.ID, ErrExists)
	}
	if err != nil {
		return fmt.Errorf("write the state of %s: %w", st.ID, err)
	}
	return nil
}

// makeTemp makes the folder in which a state is put together. The folder above
// may be removed under it by the delete of the last sandbox there.
func makeTemp(dir, nonce string) (string, error) {
	temp := filepath.Join(dir, tempPrefix+strconv.Itoa(os.Getpid())+"-"+nonce)
	var err error
	for range 100 {
		// MkdirAll fails with ErrExist when the folder is removed while it looks.
		if err = os.MkdirAll(dir, 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		if err = os.Mkdir(temp, 0o700); !errors.Is(err, fs.ErrNotExist) {
			return temp, err
		}
	}
	return "", err
}

// Load reads the state of a sandbox; fs.ErrNotExist when it has none.
func (s Store) Load(root, id string) (*State, error) {
	return read(filepath.Join(s.Path(root, id), stateName))
}

func read(name string) (*State, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var st State
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, fmt.Errorf("read the state %s: %w", name, err)
	}
	return &st, nil
}

// Update replaces a state that is there.
func (s Store) Update(st *State) error {
	if err := replace(s.Path(st.Root, st.ID), stateName, st); err != nil {
		return fmt.Errorf("write the state of %s: %w", st.ID, err)
	}
	return nil
}

// replace writes a file of a sandbox's folder, so that readers see the old one or
// the new one. Each file has one writer at a time in one process.
func replace(dir, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, tempPrefix+strconv.Itoa(os.Getpid())+"-"+name)
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, name)); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return nil
}

// Remove forgets a sandbox: at once for readers, then file by file.
func (s Store) Remove(root, id string) error {
	dir := s.rootDir(root)
	// The id may be as long as a name can be, and has no room here.
	temp := filepath.Join(dir, tempPrefix+strconv.Itoa(os.Getpid())+"-"+hash(id))
	err := os.Rename(filepath.Join(dir, id), temp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.RemoveAll(temp)
	}
	if err != nil {
		return fmt.Errorf("remove the state of %s: %w", id, err)
	}
	s.removeEmpty(dir)
	return nil
}

// removeEmpty lets the folders above a sandbox go with their last one: a folder
// that has entries is not removed.
func (s Store) removeEmpty(dir string) {
	_ = os.Remove(dir)
	_ = os.Remove(s.Dir)
}

// Ref names one sandbox in a store.
type Ref struct{ Root, ID string }

// List returns the sandboxes that have a state.
func (s Store) List() ([]Ref, error) {
	var refs []Ref
	err := s.each(func(dir, root, name string) error {
		if !strings.HasPrefix(name, tempPrefix) {
			refs = append(refs, Ref{Root: root, ID: name})
		}
		return nil
	})
	return refs, err
}

// each calls do for every entry of every root's folder.
func (s Store) each(do func(dir, root, name string) error) error {
	roots, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the states: %w", err)
	}
	for _, r := range roots {
		if !r.IsDir() {
			continue
		}
		dir := filepath.Join(s.Dir, r.Name())
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list the states: %w", err)
		}
		if len(entries) == 0 {
			s.removeEmpty(dir) // left by a create that was killed in between
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			if err := do(dir, rootOf(r.Name(), e.Name(), s.Dir), e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// rootOf undoes rootDir; a hash is looked up in the state.
func rootOf(name, id, storeDir string) string {
	if !strings.HasPrefix(name, hashPrefix) {
		return unescapeRoot.Replace(name)
	}
	st, err := read(filepath.Join(storeDir, name, id, stateName))
	if err != nil {
		return "" // half written, or removed right now
	}
	return st.Root
}

// Orphans returns the states that lost their container: the low-level runtime
// knows it no more, and neither who was creating it nor its first process is
// alive. Half-written folders of dead processes are removed on the way, and
// folders without a state: Create makes none.
//
// A state that cannot be read does not keep the others from being found; one
// error tells of all of them.
func (s Store) Orphans() ([]*State, error) {
	var orphans []*State
	var broken error // the first
	count := 0
	err := s.each(func(dir, root, name string) error {
		if rest, isTemp := strings.CutPrefix(name, tempPrefix); isTemp {
			removeHalfWritten(filepath.Join(dir, name), rest)
			s.removeEmpty(dir)
			return nil
		}
		path := filepath.Join(dir, name)
		if isContainer(root, name) || exists(filepath.Join(path, containerName)) {
			return nil // the usual case, without reading its state
		}
		st, err := read(filepath.Join(path, stateName))
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile, or never there
			removeDamaged(path)
			s.removeEmpty(dir)
		case err != nil:
			if count++; broken == nil {
				broken = err
			}
		case !st.Live():
			orphans = append(orphans, st)
		}
		return nil
	})
	if count > 1 {
		broken = fmt.Errorf("%d states cannot be read, the first: %w", count, broken)
	}
	return orphans, errors.Join(broken, err)
}

// isContainer reports whether a low-level runtime knows a container. The root is
// "" where it is not known.
func isContainer(root, id string) bool {
	if root == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(root, id))
	return err == nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// removeDamaged removes the folder of a sandbox if it has no state, so that its
// id can be used again. It looks when the folder is out of the way, and puts back
// one that a create has just made.
func removeDamaged(path string) {
	temp := filepath.Join(filepath.Dir(path), tempPrefix+strconv.Itoa(os.Getpid())+"-"+hash(filepath.Base(path)))
	if os.Rename(path, temp) != nil {
		return
	}
	if _, err := os.Lstat(filepath.Join(temp, stateName)); err == nil {
		_ = os.Rename(temp, path)
		return
	}
	_ = os.RemoveAll(temp)
}

// Live reports whether the low-level runtime still knows the container, or
// somebody is still creating it, or its first process is alive.
func (s *State) Live() bool {
	if isContainer(s.RealRoot, s.ID) {
		return true
	}
	if s.Started != nil {
		return s.Started.Init.Alive()
	}
	if s.Creator.Alive() {
		return true
	}
	info, err := os.Stat(s.PidFile)
	if err != nil || info.ModTime().Before(s.CreatedAt) {
		return false // an older file is that of an earlier container
	}
	pid, err := ReadPid(s.PidFile)
	return err == nil && unix.Kill(pid, 0) == nil
}

// maxPid is more than a pid file ever has, in bytes.
const maxPid = 64

// ReadPid reads the file in which the low-level runtime left the pid of the
// first process. Its caller chose the place, and may have put anything there, a
// link too: crun follows one.
func ReadPid(name string) (int, error) {
	data, err := smallfile.Read(name, maxPid, 0)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("%s: %.40q is not a pid", name, data)
	}
	return pid, nil
}

// removeHalfWritten removes a temporary folder whose writer, named first in it,
// is gone.
func removeHalfWritten(path, name string) {
	text, _, _ := strings.Cut(name, "-")
	pid, err := strconv.Atoi(text)
	if err != nil || unix.Kill(pid, 0) == nil || pid == os.Getpid() {
		return
	}
	_ = os.RemoveAll(path)
}
