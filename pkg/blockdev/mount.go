package blockdev

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/moby/sys/mountinfo"

	"github.com/agentbox/agentbox/pkg/limits"
)

// mounts is mountinfo. A line is parsed as a whole only when it is wanted: a host
// of many containers has thousands.
type mounts struct {
	data  []byte
	asked atomic.Int32 // how often for a line
	index func() *index
}

// fewQuestions is how many lines are looked for one by one, which is all that most
// containers need, before an index is worth its time.
const fewQuestions = 8

func newMounts(data []byte) *mounts {
	return &mounts{data: data, index: sync.OnceValue(func() *index { return newIndex(data) })}
}

// of returns the line of the mount that a file is on; nil if there is none. Where
// its id is not known, or not shown (it belongs to another mount namespace, or lies
// outside of a chroot), any mount with its device number will do: type, source and
// options of the super block are the same for all.
func (m *mounts) of(st Stat) []byte {
	if m.asked.Add(1) > fewQuestions {
		return m.index().of(st)
	}
	if st.Mount != 0 {
		if line := lineWith(m.data, 0, strconv.FormatUint(st.Mount, 10)); line != nil {
			return line
		}
	}
	return lineWith(m.data, 2, st.Device.String())
}

// hasBelow reports whether there is a mount on a mount.
func (m *mounts) hasBelow(id uint64) bool {
	if m.asked.Add(1) > fewQuestions {
		return len(m.index().children()[id]) > 0
	}
	return lineWith(m.data, 1, strconv.FormatUint(id, 10)) != nil
}

// lineWith returns the first line with this text in the field with this index;
// nil if there is none.
func lineWith(data []byte, index int, text string) []byte {
	want := []byte(text + " ")
	for line := range bytes.Lines(data) {
		rest := line
		for range index {
			_, rest, _ = bytes.Cut(rest, space)
		}
		if bytes.HasPrefix(rest, want) {
			return line
		}
	}
	return nil
}

// index finds the lines of mountinfo by map.
type index struct {
	lines    []line
	byID     map[uint64]int        // index in lines
	byDevice map[limits.Device]int // the first one
	children func() map[uint64][]int
}

// line is a mount by the fields that lead to it.
type line struct {
	id, parent uint64
	point      []byte // with special characters in octal
	text       []byte
}

// newIndex finds the lines. One that is not as proc_pid_mountinfo(5) has it is
// found by what it has.
func newIndex(data []byte) *index {
	n := bytes.Count(data, []byte("\n")) + 1
	x := &index{lines: make([]line, 0, n), byID: make(map[uint64]int, n), byDevice: make(map[limits.Device]int, n)}
	for text := range bytes.Lines(data) {
		l := line{text: text}
		id, rest, _ := bytes.Cut(text, space)
		parent, rest, _ := bytes.Cut(rest, space)
		device, rest, _ := bytes.Cut(rest, space)
		_, rest, _ = bytes.Cut(rest, space) // the folder of the file system
		l.point, _, _ = bytes.Cut(rest, space)
		l.id, l.parent = mountID(id), mountID(parent)
		i := len(x.lines)
		x.lines = append(x.lines, l)
		if _, ok := x.byID[l.id]; !ok {
			x.byID[l.id] = i
		}
		if d, ok := limits.ParseDevice(string(device)); ok {
			if _, ok := x.byDevice[d]; !ok {
				x.byDevice[d] = i
			}
		}
	}
	x.children = sync.OnceValue(x.findChildren)
	return x
}

// of is mounts.of.
func (x *index) of(st Stat) []byte {
	if i, ok := x.byID[st.Mount]; ok && st.Mount != 0 {
		return x.lines[i].text
	}
	if i, ok := x.byDevice[st.Device]; ok {
		return x.lines[i].text
	}
	return nil
}

var space = []byte(" ")

// mountID reads a mount id; 0, which is none, for anything else.
func mountID(text []byte) uint64 {
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// findChildren returns the mounts on each mount, sorted by their mount points.
func (x *index) findChildren() map[uint64][]int {
	children := map[uint64][]int{}
	for i, l := range x.lines {
		if l.parent != l.id {
			children[l.parent] = append(children[l.parent], i)
		}
	}
	for _, list := range children {
		slices.SortFunc(list, func(a, b int) int {
			return cmp.Or(bytes.Compare(x.lines[a].point, x.lines[b].point), cmp.Compare(a, b))
		})
	}
	return children
}

// below returns the mounts below a folder of a mount, at any depth, as far as one
// can get there: what lies under another mount at the same place is left out.
// point is the folder's path in the form of mountinfo.
func (x *index) below(id uint64, point string) [][]byte {
	var found [][]byte
	prefix := []byte(strings.TrimSuffix(point, "/") + "/")
	// A mount on a mount is told once, whatever the file says of parents.
	for todo, seen := slices.Clone(x.under(id, prefix)), map[int]bool{}; len(todo) > 0; {
		i := todo[0]
		todo = todo[1:]
		if seen[i] {
			continue
		}
		seen[i] = true
		l := x.lines[i]
		todo = append(todo, x.under(l.id, prefix)...)
		if !x.covered(l) {
			found = append(found, l.text)
		}
	}
	return found
}

// under returns the mounts on a mount whose mount points have a prefix. Where one
// covers the mount as a whole, there is nothing else to be reached.
func (x *index) under(id uint64, prefix []byte) []int {
	list := x.children()[id]
	if i, ok := x.byID[id]; ok && x.covered(x.lines[i]) {
		prefix = x.lines[i].point
		from, _ := slices.BinarySearchFunc(list, prefix, x.comparePoint)
		return list[from : from+1]
	}
	from, _ := slices.BinarySearchFunc(list, prefix, x.comparePoint)
	to := from
	for to < len(list) && bytes.HasPrefix(x.lines[list[to]].point, prefix) {
		to++
	}
	return list[from:to]
}

// covered reports whether another mount lies on the root of a mount.
func (x *index) covered(l line) bool {
	_, ok := slices.BinarySearchFunc(x.children()[l.id], l.point, x.comparePoint)
	return ok
}

func (x *index) comparePoint(i int, point []byte) int { return bytes.Compare(x.lines[i].point, point) }

// mount returns the mount that a file is on.
func (f Finder) mount(st Stat) (*mountinfo.Info, error) {
	m, err := f.mounts()
	if err != nil {
		return nil, fmt.Errorf("the mounts cannot be read: %w", err)
	}
	line := m.of(st)
	if line == nil {
		return nil, fmt.Errorf("/proc/self/mountinfo has neither a mount %d nor one of the filesystem %s", st.Mount, st.Device)
	}
	return parseMount(line)
}

func parseMount(line []byte) (*mountinfo.Info, error) {
	list, err := mountinfo.GetMountsFromReader(bytes.NewReader(line), nil)
	if err != nil {
		return nil, fmt.Errorf("/proc/self/mountinfo: %w", err)
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("/proc/self/mountinfo: %d mounts in the line %q", len(list), line)
	}
	return list[0], nil
}

// Submount is a mount below a folder.
type Submount struct {
	Path     string // from that folder: "proc/sys"
	ReadOnly bool   // the mount, whatever its file system is
	Backing
}

// Below returns the mounts below a folder, as a recursive bind mount takes them
// along (mount(2), MS_REC), in no special order. It is empty for a file, and for
// what is not there.
func (f Finder) Below(name string) []Submount {
	st, err := f.look(name)
	if err != nil {
		return nil
	}
	m, err := f.mounts()
	// Most folders have none, and then nothing has to be sorted.
	if err != nil || !m.hasBelow(st.Mount) {
		return nil
	}
	folder := f.resolve(name)
	var list []Submount
	for _, line := range m.index().below(st.Mount, escape(folder)) {
		info, err := parseMount(line)
		if err != nil {
			continue // the kernel writes no such line
		}
		list = append(list, Submount{
			Path:     strings.TrimPrefix(strings.TrimPrefix(info.Mountpoint, folder), "/"),
			ReadOnly: slices.Contains(strings.Split(info.Options, ","), "ro"),
			Backing:  f.behindMount(info, maxDepth),
		})
	}
	return list
}

// escape writes a path as mountinfo does (show_mountinfo in fs/proc_namespace.c).
func escape(path string) string { return escaper.Replace(path) }

var escaper = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`)
