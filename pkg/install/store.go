package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/smallfile"
)

// DefaultDir is the folder of records.
const DefaultDir = "/var/lib/agentbox/install"

// recordVersion is written into every record, for a later agentbox.
const recordVersion = 1

// ErrNotInstalled says that there is no record for an engine.
var ErrNotInstalled = errors.New("agentbox install has not changed its configuration")

// Record is what was done to one engine: the file ENGINE.json in a Store. It is
// written before the configuration is, and removed after it was given back, so
// that there is one whenever there is something to undo.
type Record struct {
	Version int       `json:"version"`
	Engine  Engine    `json:"engine"`
	File    string    `json:"file"` // the engine's configuration, as it was named
	Time    time.Time `json:"time"`
	Door    string    `json:"door"`
	Program string    `json:"program"`

	Before *string `json:"before"` // the whole file as it was; null: there was none
	After  string  `json:"after"`  // SHA-256 of the file as it was written

	Added     []Added  `json:"added"`
	LogLimits bool     `json:"log_limits,omitempty"` // they were asked for
	Dirs      []string `json:"dirs,omitempty"`       // folders that were made, the outermost first
}

// Store is the folder of records.
type Store struct {
	Dir string

	// step is called between any two effects; tests end the process there.
	step func()
}

// Change is what is about to be done to a file. Nothing was written yet.
type Change struct {
	Engine Engine
	File   string // as it was named; a symbolic link is followed
	Before []byte // nil: there is no file
	After  []byte // nil: there will be none
	Notes  []string

	from *file
	old  []byte  // the record that is there
	next *Record // the record to write; nil: it is removed
}

// None reports whether the file stays as it is.
func (c *Change) None() bool {
	return (c.Before == nil) == (c.After == nil) && bytes.Equal(c.Before, c.After)
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// Path returns where the record of an engine is, if there is one.
func (s Store) Path(e Engine) string { return filepath.Join(s.Dir, string(e)+".json") }

// Load returns the record of an engine. The error is ErrNotInstalled when there
// is none.
func (s Store) Load(e Engine) (*Record, error) {
	r, _, err := s.load(e)
	return r, err
}

func (s Store) load(e Engine) (*Record, []byte, error) {
	// The record has a file of maxSize in it, as a JSON text.
	data, err := smallfile.Read(s.Path(e), 8*maxSize, smallfile.NoFollow)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s: %w", e, ErrNotInstalled)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the record of the installation: %w", err)
	}
	r, err := parseRecord(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read the record %s: %w: take agentbox out of the configuration by hand and remove the record", s.Path(e), err)
	}
	return r, data, nil
}

func parseRecord(data []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	switch {
	case r.Version != recordVersion:
		return nil, fmt.Errorf("it is of version %d, and this agentbox knows %d", r.Version, recordVersion)
	case !filepath.IsAbs(r.File):
		return nil, fmt.Errorf("its file %q is not an absolute path", r.File)
	case slices.ContainsFunc(r.Added, func(a Added) bool { return len(a.Path) == 0 }):
		return nil, errors.New("it has a key without a name")
	}
	return &r, nil
}

// Install returns the change that puts agentbox into a configuration file. One
// that was put there before and is not as it is wanted now is replaced.
//
// The error is that of Add, or of reading the file.
func (s Store) Install(e Engine, path string, want Want) (*Change, error) {
	rec, old, err := s.load(e)
	if err != nil && !errors.Is(err, ErrNotInstalled) {
		return nil, err
	}
	if rec != nil && rec.File != path {
		return nil, fmt.Errorf("agentbox is in %s already, by a record in %s: run agentbox uninstall %s first, or keep another record with --records", rec.File, s.Path(e), e)
	}
	from, err := readFile(path)
	if err != nil {
		return nil, err
	}
	want.LogLimits = want.LogLimits || rec != nil && rec.LogLimits
	base := from.data
	edit, err := Add(e, path, base, want)
	if _, exists := errors.AsType[*ExistsError](err); rec != nil && (exists || len(edit.Added) > 0) {
		if base, err = rec.undo(from.data); err != nil {
			return nil, err
		}
		edit, err = Add(e, path, base, want)
	}
	if err != nil {
		return nil, err
	}
	c := &Change{Engine: e, File: path, Before: from.data, After: edit.Data, Notes: edit.Notes, from: from, old: old}
	c.next = &Record{
		Version: recordVersion, Engine: e, File: path, Time: time.Now().UTC().Truncate(time.Second),
		Door: want.Door(), Program: want.Runtime, After: sum(edit.Data), Added: edit.Added, LogLimits: want.LogLimits,
		Dirs: missingDirs(filepath.Dir(from.real)),
	}
	if base != nil {
		c.next.Before = new(string(base))
	}
	if rec != nil {
		c.next.Dirs = append(rec.Dirs, c.next.Dirs...)
	}
	c.tellLater()
	return c, nil
}

// isUsable refuses to take agentbox out of a file that makes it the default
// runtime: the engine would not start.
func (c *Change) isUsable() error {
	ed, err := editorOf(c.Engine)
	if err != nil || c.None() {
		return err
	}
	if line, key := ed.defaults(c.File, c.After); line > 0 {
		line, _ = ed.defaults(c.File, c.Before) // the line that the administrator sees
		return &Error{File: c.File, Line: line, Text: fmt.Sprintf("%s is %s, and %s would not start without it: choose another default first", key, RuntimeName, c.Engine)}
	}
	return nil
}

// tellLater notes what an engine does not take when it reads its file again.
func (c *Change) tellLater() {
	if c.Engine == Docker && !c.None() {
		c.Notes = append(c.Notes, dockerLater(c.Before, c.After)...)
	}
}

// Door is the word for how an engine starts agentbox: "shim" or "runtime".
func (w Want) Door() string {
	if w.Shim {
		return "shim"
	}
	return "runtime"
}

// Uninstall returns the change that takes agentbox out of the file in which the
// record says it is. The error is ErrNotInstalled when there is no record, or
// that of Remove.
func (s Store) Uninstall(e Engine) (*Change, error) {
	rec, old, err := s.load(e)
	if err != nil {
		return nil, err
	}
	from, err := readFile(rec.File)
	if err != nil {
		return nil, err
	}
	after, err := rec.undo(from.data)
	if err != nil {
		return nil, err
	}
	c := &Change{Engine: e, File: rec.File, Before: from.data, After: after, from: from, old: old}
	if err := c.isUsable(); err != nil {
		return nil, err
	}
	c.tellLater()
	return c, nil
}

// undo returns a file without what the record says was added; nil: without the
// file.
func (r *Record) undo(data []byte) ([]byte, error) {
	var before []byte
	if r.Before != nil {
		before = []byte(*r.Before)
	}
	switch {
	case data == nil: // somebody has removed it
		return nil, nil
	case sum(data) == r.After:
		return before, nil
	case r.Before != nil && bytes.Equal(data, before): // it was never written, or put back by hand
		return data, nil
	}
	rest, err := Remove(r.Engine, r.File, data, r.Added)
	if err != nil {
		return nil, err
	}
	if !Holds(r.Engine, rest) && (before == nil || !Holds(r.Engine, before)) {
		return before, nil
	}
	return rest, nil
}

// Commit does what a change says. The error names the file; then either nothing
// was done, or running the command again finishes it.
func (s Store) Commit(c *Change) error {
	if c.None() && c.next != nil {
		return nil
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if s.step == nil {
		s.step = func() {}
	}
	if err := s.unchanged(c); err != nil {
		return err
	}
	if c.next != nil {
		if err := s.save(c.next); err != nil {
			return err
		}
	}
	s.step()
	if err := s.replace(c); err != nil {
		return err
	}
	s.step()
	if c.next == nil {
		return s.forget(c)
	}
	return nil
}

// lock keeps two commands apart.
func (s Store) lock() (unlock func(), err error) {
	// Results are below the same folder, and may be for others than root.
	if err := makeDirs(filepath.Dir(s.Dir)); err != nil {
		return nil, fmt.Errorf("make the folder of records: %w", err)
	}
	if err := os.Mkdir(s.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the folder of records: %w", err)
	}
	dir, err := os.Open(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("lock the records: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("another agentbox install or uninstall is at work in %s (%w): wait for it", s.Dir, err)
	}
	return func() { _ = dir.Close() }, nil
}

// unchanged makes sure that the change is about what is there.
func (s Store) unchanged(c *Change) error {
	_, old, err := s.load(c.Engine)
	if err != nil && !errors.Is(err, ErrNotInstalled) {
		return err
	}
	if !bytes.Equal(old, c.old) {
		return fmt.Errorf("%s was changed by somebody else just now: run the command again", s.Path(c.Engine))
	}
	return c.from.unchanged()
}

func (s Store) save(r *Record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the record of the installation: %w", err)
	}
	return write(s.Path(r.Engine), append(data, '\n'), recordMode, nil, s.step)
}

// replace writes the configuration, or removes it.
func (s Store) replace(c *Change) error {
	switch {
	case c.None():
		return nil
	case c.After == nil:
		return remove(c.from.real)
	}
	var old *unix.Stat_t
	if c.Before != nil {
		old = &c.from.stat
	} else if err := makeDirs(filepath.Dir(c.from.real)); err != nil {
		return fmt.Errorf("make the folder of the configuration: %w", err)
	}
	s.step()
	return write(c.from.real, c.After, newMode, old, s.step)
}

// forget removes what an installation made besides the configuration.
func (s Store) forget(c *Change) error {
	r, err := parseRecord(c.old)
	if err != nil {
		return err
	}
	removeTemps(tempDir(c.from.real), filepath.Base(c.from.real))
	for _, dir := range slices.Backward(r.Dirs) {
		_ = os.Remove(dir) // not if somebody has put something there
	}
	s.step()
	if err := remove(s.Path(c.Engine)); err != nil {
		return err
	}
	removeTemps(s.Dir, filepath.Base(s.Path(c.Engine)))
	_ = os.Remove(s.Dir) // if this was the last one
	return nil
}
