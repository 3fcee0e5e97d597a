package blockdev

import (
	_ "embed"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
)

// machine is a machine with one mount of each kind. Its btrfs and overlay mounts
// and their numbers are as Linux 6.18 showed them.
//
//go:embed testdata/machine.txtar
var machine string

// links and stats are parts of the archive that are no files: symbolic links,
// and what statx says about a path, which is written as in mountinfo.
const (
	links = "links"
	stats = "stat"
)

// record is a recorded machine, written to a temporary folder.
type record struct {
	root  string
	stats map[string]Stat
}

func recorded(t testing.TB) record {
	t.Helper()
	m := record{root: t.TempDir(), stats: map[string]Stat{}}
	for _, section := range strings.Split("\n"+machine, "\n-- ")[1:] {
		name, content, ok := strings.Cut(section, " --\n")
		if !ok {
			t.Fatalf("section %q", section)
		}
		switch name {
		case links:
			for line := range strings.Lines(content) {
				field := strings.Fields(line)
				m.link(t, field[0], field[1])
			}
		case stats:
			for line := range strings.Lines(content) {
				m.remember(t, strings.Fields(line))
			}
		default:
			m.write(t, name, content)
		}
	}
	return m
}

func (m record) remember(t testing.TB, field []string) {
	t.Helper()
	if field[0] == "path" {
		return
	}
	var st Stat
	st.Device = parsed(t, field[1])
	if len(field) > 3 {
		st.Node = parsed(t, field[3])
	}
	var err error
	if st.Mount, err = strconv.ParseUint(field[2], 10, 64); err != nil {
		t.Fatal(err)
	}
	m.stats[unescape(field[0])] = st
}

func parsed(t testing.TB, text string) limits.Device {
	t.Helper()
	d, ok := limits.ParseDevice(text)
	if !ok {
		t.Fatalf("device %q", text)
	}
	return d
}

func (m record) write(t testing.TB, name, content string) {
	t.Helper()
	if !strings.HasSuffix(content, "\n") {
		content += "\n"
	}
	m.mkdir(t, filepath.Dir(name))
	if err := os.WriteFile(filepath.Join(m.root, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m record) mkdir(t testing.TB, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(m.root, name), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (m record) link(t testing.TB, name, target string) {
	t.Helper()
	m.mkdir(t, filepath.Dir(name))
	if err := os.Symlink(target, filepath.Join(m.root, name)); err != nil {
		t.Fatal(err)
	}
}

func (m record) remove(t testing.TB, name string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(m.root, name)); err != nil {
		t.Fatal(err)
	}
}

func (m record) finder() Finder { return New(m.root).WithStat(m.stat) }

func (m record) stat(name string) (Stat, error) {
	if st, ok := m.stats[name]; ok {
		return st, nil
	}
	return Stat{}, &fs.PathError{Op: "stat", Path: name, Err: unix.ENOENT}
}
