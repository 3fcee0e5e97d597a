package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/harvest"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
)

// catalog is where sandboxes are looked up: the live ones and the kept results.
type catalog struct {
	places  []state.Store
	results result.Store
	live    []live
	out     func(text string)
	said    map[string]bool
}

// live is a sandbox that has a state, and where that is.
type live struct {
	*state.State
	place state.Store
}

// newCatalog reads the live sandboxes. What cannot be read is told to out, and
// the rest is used.
func newCatalog(opts options, out func(text string)) *catalog {
	c := &catalog{places: places(opts.state), out: out, said: map[string]bool{}}
	cfg, err := loadConfig(opts.config)
	if err != nil {
		cfg = config.Default()
		c.warn(fmt.Sprintf("%v; the results are looked for in %s", err, cfg.ResultsDir))
	}
	c.results = result.Store{Dir: cfg.ResultsDir, Group: cfg.Group, Max: cfg.ResultsMax, MaxAge: cfg.ResultsMaxAge}
	if c.results.Dir == config.Default().ResultsDir && c.results.Dir != config.SystemResultsDir {
		c.results.Also = []string{config.SystemResultsDir} // a user may be allowed to read those of root
	}
	for _, place := range c.places {
		c.readLive(place)
	}
	return c
}

func loadConfig(path string) (*config.File, error) {
	if path != "" {
		return config.Load(path)
	}
	return config.LoadOptional(config.DefaultPath)
}

// places returns the folders of states: the one given, or the default ones. A
// user other than root may have sandboxes besides those of root.
func places(dir string) []state.Store {
	if dir != "" {
		return []state.Store{{Dir: dir}}
	}
	if os.Geteuid() == 0 {
		return []state.Store{{Dir: state.DefaultDir()}}
	}
	return []state.Store{{Dir: state.DefaultDir()}, {Dir: state.SystemDir}}
}

func (c *catalog) readLive(place state.Store) {
	refs, err := place.List()
	if errors.Is(err, fs.ErrPermission) {
		c.warn("live sandboxes in " + place.Dir + " can be read by root only: this shows kept results, which may be of an earlier run")
		return
	}
	if err != nil {
		c.warn(err.Error())
	}
	for _, ref := range refs {
		st, err := place.Load(ref.Root, ref.ID)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			c.warn(err.Error())
		default:
			c.live = append(c.live, live{st, place})
		}
	}
}

// sandbox is one that a reference can mean: live, or ended.
type sandbox struct {
	id   string
	live *live          // nil: ended
	kept *result.Result // the newest result of an ended one, where it was read already
}

// find returns what a reference means. An id is looked for first, then a name,
// then the beginning of an id, as Docker does.
func (c *catalog) find(ref string) (*result.Result, error) {
	if ref == "" {
		return nil, errors.New("an empty text names no sandbox")
	}
	for _, match := range []func(string) []sandbox{c.byID, c.byName, c.byPrefix} {
		switch found := match(ref); len(found) {
		case 0:
		case 1:
			return c.describe(found[0])
		default:
			return nil, c.ambiguous(ref, found)
		}
	}
	return nil, c.notFound(ref)
}

func (c *catalog) byID(ref string) []sandbox {
	return c.idsThat(func(id string) bool { return id == ref })
}

func (c *catalog) byPrefix(ref string) []sandbox {
	return c.idsThat(func(id string) bool { return strings.HasPrefix(id, ref) })
}

// idsThat returns the sandboxes whose id is meant. An id is live in several
// places only where low-level runtimes have several state folders.
func (c *catalog) idsThat(meant func(id string) bool) []sandbox {
	var found []sandbox
	for _, st := range c.live {
		if meant(st.ID) {
			found = append(found, sandbox{id: st.ID, live: &st})
		}
	}
	ids, err := c.results.IDs()
	c.check(err)
	for _, id := range ids {
		if meant(id) && !c.isLive(id) {
			found = append(found, sandbox{id: id})
		}
	}
	return found
}

func (c *catalog) isLive(id string) bool {
	return slices.ContainsFunc(c.live, func(st live) bool { return st.ID == id })
}

// byName returns the sandboxes that have a name now, else those that had it.
func (c *catalog) byName(name string) []sandbox {
	var found []sandbox
	for _, st := range c.live {
		if harvest.Name(st.State) == name {
			found = append(found, sandbox{id: st.ID, live: &st})
		}
	}
	if found != nil {
		return found
	}
	return lastOf(slices.DeleteFunc(c.ended(), func(s sandbox) bool { return s.kept.Name != name }))
}

// ended returns the sandboxes that are not live, with the newest result of each,
// the newest first.
func (c *catalog) ended() []sandbox {
	all, err := c.results.All()
	c.check(err)
	var found []sandbox
	seen := map[string]bool{}
	for _, r := range all {
		if !seen[r.ID] && !c.isLive(r.ID) {
			found = append(found, sandbox{id: r.ID, kept: r})
		}
		seen[r.ID] = true
	}
	return found
}

// lastOf picks the newest of the sandboxes that had one name, newest first. A
// name that was used one after the other means the last; one that several had at
// the same time, as the containers of Kubernetes pods have, means all of them.
func lastOf(named []sandbox) []sandbox {
	if len(named) < 2 {
		return named
	}
	last := named[0].kept
	for _, s := range named[1:] {
		if s.kept.FinishedAt == nil || s.kept.FinishedAt.After(last.CreatedAt) {
			return named
		}
	}
	return named[:1]
}

// describe returns the whole truth about a sandbox, with its run before.
func (c *catalog) describe(s sandbox) (*result.Result, error) {
	if s.live == nil {
		runs, err := c.results.Newest(s.id, 2)
		c.check(err)
		if len(runs) == 0 {
			return nil, c.notFound(s.id) // removed right now, or not readable
		}
		return withPrevious(runs[0], runs[1:]), nil
	}
	r := harvest.Live(s.live.place, s.live.State)
	runs, err := s.live.Results.Newest(s.id, 2)
	c.check(err)
	if len(runs) > 0 && runs[0].Nonce == r.Nonce { // it was deleted right now
		return withPrevious(runs[0], runs[1:]), nil
	}
	return withPrevious(r, runs), nil
}

func withPrevious(r *result.Result, before []*result.Result) *result.Result {
	if len(before) > 0 {
		r.Previous = before[0]
	}
	return r
}

// maxCandidates bounds how many sandboxes an error names.
const maxCandidates = 10

func (c *catalog) ambiguous(ref string, found []sandbox) error {
	names := make([]string, 0, maxCandidates)
	for _, s := range found[:min(len(found), maxCandidates)] {
		names = append(names, c.candidate(s))
	}
	more := ""
	if n := len(found) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%q may be %s%s: give more of the id", ref, strings.Join(names, ", "), more)
}

// candidate is one sandbox in few words: id, name, status, and for a live one
// the low-level runtime's folder where the id alone does not tell.
func (c *catalog) candidate(s sandbox) string {
	r, err := c.describe(s)
	if err != nil {
		return clean(s.id)
	}
	words := make([]string, 0, 3)
	if r.Name != "" {
		words = append(words, clean(r.Name))
	}
	words = append(words, string(r.Status))
	twice := func(st live) bool { return st.ID == s.id && st.State != s.live.State }
	if s.live != nil && slices.ContainsFunc(c.live, twice) {
		words = append(words, "of "+s.live.Root)
	}
	return clean(s.id) + " (" + strings.Join(words, ", ") + ")"
}

func (c *catalog) notFound(ref string) error {
	dirs := make([]string, 0, len(c.places))
	for _, place := range c.places {
		dirs = append(dirs, place.Dir)
	}
	return fmt.Errorf("no sandbox %q is live in %s or has a result in %s: it was never started with agentbox, has its state elsewhere (--state), or its result was removed (the newest %d are kept, for %s)",
		ref, strings.Join(dirs, " or "), strings.Join(append([]string{c.results.Dir}, c.results.Also...), " or "), c.results.Max, shortDuration(c.results.MaxAge))
}

// check tells what went wrong with the kept results.
func (c *catalog) check(err error) {
	if errors.Is(err, fs.ErrPermission) {
		who := "root only"
		if c.results.Group != "" {
			who = "root and the group " + c.results.Group
		}
		dir := c.results.Dir
		if pe, ok := errors.AsType[*fs.PathError](err); ok && slices.Contains(c.results.Also, pe.Path) {
			dir = pe.Path
		}
		err = fmt.Errorf("the results in %s can be read by %s", dir, who)
	}
	if err != nil {
		c.warn(err.Error())
	}
}

// warn tells something once.
func (c *catalog) warn(text string) {
	if !c.said[text] {
		c.said[text] = true
		c.out(text)
	}
}
