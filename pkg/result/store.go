package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// Store keeps the results of sandboxes that ended: one file each, in one folder,
// bounded in number and age.
type Store struct {
	Dir    string        `json:"dir"`
	Group  string        `json:"group,omitempty"` // who may read besides root; a group that does not exist is nobody
	Max    int           `json:"max"`             // how many are kept, besides refusals; 0: all
	MaxAge time.Duration `json:"max_age"`         // for how long, in nanoseconds

	// Also are folders of other stores, whose results are found too.
	Also []string `json:"-"`
}

// A file is named ID~NONCE.json, and ID~NONCE.refused.json for a sandbox that was
// refused: no container id has a "~", and nonces sort by time.
const (
	separator  = "~"
	suffix     = ".json"
	refusedTag = ".refused"
	tempPrefix = "~new-" // a name that no result has
)

// NewNonce returns a name for one run of a container. It sorts by time.
func NewNonce(now time.Time) string {
	return fmt.Sprintf("%016x-%x", now.UnixNano(), os.Getpid())
}

func nonceTime(nonce string) (time.Time, bool) {
	hex, _, _ := strings.Cut(nonce, "-")
	ns, err := strconv.ParseInt(hex, 16, 64)
	return time.Unix(0, ns), err == nil
}

// Put keeps a result and removes what is too much or too old, as far as it can.
// A crash leaves the old file of that name or the new one.
func (s Store) Put(r *Result) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the result of %s: %w", r.ID, err)
	}
	gid := s.gid()
	if err := s.makeDir(gid); err != nil {
		return fmt.Errorf("make the folder of results: %w", err)
	}
	end := suffix
	if r.Status == verdict.Refused {
		end = refusedTag + suffix
	}
	name := filepath.Join(s.Dir, r.ID+separator+r.Nonce+end)
	if err := writeFile(name, append(data, '\n'), gid); err != nil {
		return fmt.Errorf("keep the result of %s: %w", r.ID, err)
	}
	s.prune(time.Now())
	return nil
}

// makeDir makes the folder, for root and the group gid alone, and those above it
// so that the group gets there.
func (s Store) makeDir(gid int) error {
	if err := mkdir(s.Dir, 0o750); err != nil {
		return err
	}
	if gid >= 0 {
		_ = os.Chown(s.Dir, -1, gid) // best effort: only readers lose by it
	}
	return nil
}

// mkdir makes a folder that is not there, with this mode whatever the umask is,
// and those above it.
func mkdir(dir string, mode fs.FileMode) error {
	err := os.Mkdir(dir, mode)
	if up := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && up != dir {
		if err := mkdir(up, 0o755); err != nil {
			return err
		}
		err = os.Mkdir(dir, mode)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

func (s Store) gid() int {
	if s.Group == "" || os.Geteuid() != 0 {
		return -1
	}
	g, err := user.LookupGroup(s.Group)
	if err != nil {
		return -1
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return -1
	}
	return gid
}

// writeFile replaces a file atomically; readable by root and the group gid.
func writeFile(name string, data []byte, gid int) error {
	f, err := os.CreateTemp(filepath.Dir(name), tempPrefix+"*")
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name()) // gone when it was renamed
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if gid >= 0 {
		if err := f.Chown(-1, gid); err != nil {
			return err
		}
	}
	if err := f.Chmod(0o640); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// kept is a file of the store.
type kept struct {
	id, nonce string
	name      string
	refused   bool
}

// list returns the files of all folders, oldest first, and of those that can be
// read when there is an error.
func (s Store) list() ([]kept, error) {
	files, err := listDir(s.Dir)
	for _, dir := range s.Also {
		more, moreErr := listDir(dir)
		files, err = append(files, more...), errors.Join(err, moreErr)
	}
	slices.SortFunc(files, func(a, b kept) int { return strings.Compare(a.nonce, b.nonce) })
	return files, err
}

func listDir(dir string) ([]kept, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the results: %w", err)
	}
	var files []kept
	for _, e := range entries {
		base, isResult := strings.CutSuffix(e.Name(), suffix)
		id, nonce, ok := strings.Cut(base, separator)
		if isResult && ok && e.Type().IsRegular() {
			nonce, refused := strings.CutSuffix(nonce, refusedTag)
			files = append(files, kept{id: id, nonce: nonce, name: filepath.Join(dir, e.Name()), refused: refused})
		}
	}
	return files, nil
}

// maxRefused is how many refusals are kept, apart from the other results: who is
// refused again and again must not push those out.
func (s Store) maxRefused() int { return max(s.Max/10, 10) }

// prune removes the oldest results beyond Max, those older than MaxAge, and
// what a crash left half written. What cannot be removed stays.
func (s Store) prune(now time.Time) {
	own := Store{Dir: s.Dir}
	files, _ := own.list()
	others, refused := 0, 0
	for _, f := range slices.Backward(files) { // the newest first
		tooMany := false
		if f.refused {
			refused++
			tooMany = refused > s.maxRefused()
		} else {
			others++
			tooMany = others > s.Max
		}
		at, ok := nonceTime(f.nonce)
		tooOld := s.MaxAge > 0 && ok && now.Sub(at) > s.MaxAge
		if tooMany && s.Max > 0 || tooOld {
			_ = os.Remove(f.name)
		}
	}
	s.removeHalfWritten(now)
}

func (s Store) removeHalfWritten(now time.Time) {
	names, _ := filepath.Glob(filepath.Join(s.Dir, tempPrefix+"*")) // the one error is a bad pattern
	for _, name := range names {
		info, err := os.Stat(name)
		if err == nil && now.Sub(info.ModTime()) > time.Minute {
			_ = os.Remove(name)
		}
	}
}

// IDs returns the ids that have results. An error comes with those that were
// found.
func (s Store) IDs() ([]string, error) {
	files, err := s.list()
	ids := make([]string, 0, len(files))
	for _, f := range files {
		ids = append(ids, f.id)
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// Newest returns up to n results of an id, the newest first. What another
// process removes meanwhile is left out, and so is what cannot be read: the
// error, which comes with the rest, says so.
func (s Store) Newest(id string, n int) ([]*Result, error) {
	files, err := s.list()
	files = slices.DeleteFunc(files, func(f kept) bool { return f.id != id })
	found, readErr := readNewest(files, n)
	return found, errors.Join(err, readErr)
}

// All returns every result, the newest first, and errors as Newest does.
func (s Store) All() ([]*Result, error) {
	files, err := s.list()
	found, readErr := readNewest(files, len(files))
	return found, errors.Join(err, readErr)
}

// readNewest reads up to n results from the end of a list that is sorted by
// time.
func readNewest(files []kept, n int) ([]*Result, error) {
	found := make([]*Result, 0, min(n, len(files)))
	var broken []error
	for _, f := range slices.Backward(files) {
		if len(found) == n {
			break
		}
		r, err := read(f.name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // pruned meanwhile
		case err != nil:
			broken = append(broken, err)
		default:
			found = append(found, r)
		}
	}
	return found, errors.Join(broken...)
}

func read(name string) (*Result, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var r Result
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read the result %s: %w", name, err)
	}
	return &r, nil
}
