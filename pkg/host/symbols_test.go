package host

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/note"
)

const (
	throttleFunction = "throtl_pd_alloc"
	bareBoot         = "5d6f0f57-0c7e-4b6b-8d3e-2f4a1c9b7e60" // of the tree "v2-bare"
)

// ioMaxOf is what a probe of a tree says about io.max.
func ioMaxOf(root, notes string) limits.Enforcer {
	h := Probe(cgroup.FS(root), Input{CgroupsPath: docker, Notes: notes})
	return h.Mechanisms[limits.KeyIOReadBPS].Enforcer
}

const (
	withThrottling    = "ffffffff815e9b40 t throtl_pd_alloc\n"
	withoutThrottling = "ffffffff815e7a60 t blkcg_iostat_update\n"
)

// What was noted once is believed until the next boot, whatever the list of
// symbols says: it is not read again.
func TestNoteIsUsed(t *testing.T) {
	for _, tt := range []struct {
		name          string
		before, after string // the list of symbols
		change        func(root, notes string)
		want          limits.Enforcer
	}{
		{"yes", withThrottling, withoutThrottling, nil, limits.EnforcerKernel},
		{"no", withoutThrottling, withThrottling, nil, limits.EnforcerNone},
		{"another boot", withThrottling, withoutThrottling, func(root, _ string) {
			cgrouptest.Write(t, root, bootIDFile, "00000000-0000-4000-8000-000000000000\n")
		}, limits.EnforcerNone},
		{"no boot id", withThrottling, withoutThrottling, func(root, _ string) { cgrouptest.Remove(t, root, bootIDFile) }, limits.EnforcerNone},
		{"an empty boot id", withThrottling, withoutThrottling, func(root, _ string) { cgrouptest.Write(t, root, bootIDFile, "\n") }, limits.EnforcerNone},
		{"a broken note", withThrottling, withoutThrottling, func(_, notes string) { note.Write(notes, throttleFunction, bareBoot, "null") }, limits.EnforcerNone},
		{"the note is gone", withThrottling, withoutThrottling, func(_, notes string) {
			if err := os.Remove(filepath.Join(notes, throttleFunction+"-"+bareBoot)); err != nil {
				t.Fatal(err)
			}
		}, limits.EnforcerNone},
		{"about another function", withThrottling, withoutThrottling, func(_, notes string) {
			if err := os.Remove(filepath.Join(notes, throttleFunction+"-"+bareBoot)); err != nil {
				t.Fatal(err)
			}
			note.Write(notes, "throtl_pd", bareBoot, noteYes)
		}, limits.EnforcerNone},
		// What a cgroup shows needs no note, and none is stronger.
		{"a cgroup shows it", withoutThrottling, withoutThrottling, func(root, _ string) {
			cgrouptest.Write(t, root, "sys/fs/cgroup/docker/io.max", "")
		}, limits.EnforcerKernel},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, notes := cgrouptest.Tree(t, "v2-bare"), t.TempDir()
			cgrouptest.Write(t, root, symbolsFile, tt.before)
			first := limits.EnforcerKernel
			if tt.before == withoutThrottling {
				first = limits.EnforcerNone
			}
			if got := ioMaxOf(root, notes); got != first {
				t.Fatalf("without a note: %s", got)
			}
			cgrouptest.Write(t, root, symbolsFile, tt.after)
			if tt.change != nil {
				tt.change(root, notes)
			}
			if got := ioMaxOf(root, notes); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// A broken note is replaced.
func TestBrokenNoteIsReplaced(t *testing.T) {
	root, notes := cgrouptest.Tree(t, "v2-bare"), t.TempDir()
	note.Write(notes, throttleFunction, bareBoot, "{")
	ioMaxOf(root, notes)
	if text, _ := note.Read(notes, throttleFunction, bareBoot); text != noteYes {
		t.Errorf("%q", text)
	}
}

func TestNothingIsNoted(t *testing.T) {
	for _, tt := range []struct {
		name, tree string
		change     func(root string)
		in         Input
	}{
		{"a cgroup shows it", "v2", nil, Input{CgroupsPath: docker}},
		{"no list of symbols", "v2-bare", func(root string) { cgrouptest.Remove(t, root, symbolsFile) }, Input{}},
		{"an empty list", "v2-bare", func(root string) { cgrouptest.Write(t, root, symbolsFile, "") }, Input{}},
		{"no boot id", "v2-bare", func(root string) { cgrouptest.Remove(t, root, bootIDFile) }, Input{}},
		{"no io controller", "v2-bare", func(root string) {
			setControllers(t, root, "memory\n")
		}, Input{}},
		{"no cgroups", "v2-bare", nil, Input{NoCgroups: true}},
		{"v1", "v1", nil, Input{CgroupsPath: docker}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, tt.tree)
			if tt.change != nil {
				tt.change(root)
			}
			tt.in.Notes = t.TempDir()
			Probe(cgroup.FS(root), tt.in)
			if entries, err := os.ReadDir(tt.in.Notes); err != nil || len(entries) > 0 {
				t.Errorf("%v, %v", entries, err)
			}
		})
	}
}

// Without a folder for notes, or with one that cannot be written to, the answer
// is the same, and nothing is left anywhere.
func TestNoFolderForNotes(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root := cgrouptest.Tree(t, "v2-bare")
	for _, notes := range []string{"", file, filepath.Join(file, "x"), filepath.Join(here, "none")} {
		for range 2 {
			if got := ioMaxOf(root, notes); got != limits.EnforcerKernel {
				t.Errorf("%q: %s", notes, got)
			}
		}
	}
	if entries, err := os.ReadDir(here); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestSeveralProbesAtOnce(t *testing.T) {
	root, notes := cgrouptest.Tree(t, "v2-bare"), t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				if got := ioMaxOf(root, notes); got != limits.EnforcerKernel {
					t.Errorf("%s", got)
				}
			}
		})
	}
	wg.Wait()
	if text, ok := note.Read(notes, throttleFunction, bareBoot); text != noteYes {
		t.Errorf("%q, %t", text, ok)
	}
}

func TestContains(t *testing.T) {
	long := strings.Repeat("0123456789", 20_000) // longer than the buffer, three times
	for _, tt := range []struct {
		name, text string
		want       bool
		err        error
	}{
		{"at the start", "needle" + long, true, nil},
		{"in the middle", long + "needle" + long, true, nil},
		{"at the end", long + "needle", true, nil},
		{"across two reads", strings.Repeat("0", 64<<10-3) + "needle" + long, true, nil},
		{"nothing else", "needle", true, nil},
		{"not at all", long, false, nil},
		{"all but the end", long + "needl", false, nil},
		{"in two pieces", "need" + long + "le", false, nil},
		{"shorter than the text", "x", false, nil},
		{"nothing to read", "", false, io.ErrUnexpectedEOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for how, r := range map[string]io.Reader{
				"at once":        strings.NewReader(tt.text),
				"byte by byte":   iotest.OneByteReader(strings.NewReader(tt.text)),
				"in halves":      iotest.HalfReader(strings.NewReader(tt.text)),
				"with the error": iotest.DataErrReader(strings.NewReader(tt.text)),
			} {
				if got, err := contains(r, []byte("needle")); got != tt.want || !errors.Is(err, tt.err) {
					t.Errorf("%s: %t, %v", how, got, err)
				}
			}
		})
	}
	broken := iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("needle")))
	if _, err := contains(broken, []byte("needle")); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("%v", err)
	}
}

func FuzzContains(f *testing.F) {
	f.Add([]byte("ffffffff815e9b40 t throtl_pd_alloc\n"), []byte(" throtl_pd_alloc\n"), uint32(70_000))
	f.Add([]byte("aaab"), []byte("aab"), uint32(65_535))
	f.Add([]byte(""), []byte("x"), uint32(0))
	f.Fuzz(func(t *testing.T, tail, text []byte, before uint32) {
		if len(text) == 0 || len(text) > 1024 {
			return
		}
		data := append(bytes.Repeat([]byte{'a'}, int(before%200_000)), tail...)
		for _, r := range []io.Reader{bytes.NewReader(data), iotest.HalfReader(bytes.NewReader(data))} {
			got, err := contains(r, text)
			if (err != nil) != (len(data) == 0) || got != (err == nil && bytes.Contains(data, text)) {
				t.Errorf("%q: %t, %v", text, got, err)
			}
		}
	})
}
