package note

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	Write(dir, "keep", "1-2-3", "yes")
	if err := os.WriteFile(filepath.Join(dir, "file-1"), []byte("yes"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, dir, subject, key, text string
		ok                            bool
	}{
		{"the same", dir, "keep", "1-2-3", "yes", true},
		{"another key", dir, "keep", "1-2-4", "", false},
		{"the beginning of the key", dir, "keep", "1-2", "", false},
		{"another subject", dir, "kee", "1-2-3", "", false},
		{"no note, but a file", dir, "file", "1", "", false},
		{"no folder", filepath.Join(dir, "none"), "keep", "1-2-3", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if text, ok := Read(tt.dir, tt.subject, tt.key); text != tt.text || ok != tt.ok {
				t.Errorf("%q, %t", text, ok)
			}
		})
	}
}

func TestWrite(t *testing.T) {
	for _, tt := range []struct {
		name               string
		subject, key, text string
		want               []string // names in the folder
	}{
		{"another key takes the place", "keep", "2", "no", []string{"keep-2", "keep-file", "keep-folder", "keeper-1", "symbol-1"}},
		{"the same key, another answer", "keep", "1", "no", []string{"keep-1", "keep-file", "keep-folder", "keeper-1", "symbol-1"}},
		{"a new subject", "new", "1", "no", []string{"keep-1", "keep-file", "keep-folder", "keeper-1", "new-1", "symbol-1"}},
		{"nothing to say", "keep", "2", "", []string{"keep-1", "keep-file", "keep-folder", "keeper-1", "symbol-1"}},
		{"too long", "keep", "2", strings.Repeat("x", maxSize+1), []string{"keep-1", "keep-file", "keep-folder", "keeper-1", "symbol-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			Write(dir, "keep", "1", "yes")
			Write(dir, "keeper", "1", "yes")
			Write(dir, "symbol", "1", "yes")
			// Only notes are notes, whatever else is called like one.
			err := os.WriteFile(filepath.Join(dir, "keep-file"), nil, 0o600)
			if err == nil {
				err = os.Mkdir(filepath.Join(dir, "keep-folder"), 0o700)
			}
			if err != nil {
				t.Fatal(err)
			}
			Write(dir, tt.subject, tt.key, tt.text)
			if got := names(t, dir); !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
			text, ok := Read(dir, tt.subject, tt.key)
			if kept := slices.Contains(tt.want, tt.subject+"-"+tt.key); ok != kept || ok && text != tt.text {
				t.Errorf("%q, %t", text, ok)
			}
		})
	}
}

// A folder that cannot be written to costs the note and nothing else.
func TestUnwritable(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	Write(dir, "here", "1", "yes")
	for _, to := range []string{filepath.Join(dir, "none"), file, ""} {
		Write(to, "keep", "1", "yes")
		for _, subject := range []string{"keep", "here"} {
			if text, ok := Read(to, subject, "1"); ok {
				t.Errorf("%q: %s: %q", to, subject, text)
			}
		}
	}
	if got := names(t, dir); !slices.Equal(got, []string{"file", "here-1"}) {
		t.Errorf("%v", got)
	}
}

// Nobody ever reads a wrong answer, and the last one to write leaves one.
func TestSeveralAtOnce(t *testing.T) {
	dir := t.TempDir()
	text := func(key string) string { return strings.Repeat(key, 40) }
	var wg sync.WaitGroup
	for i := range 4 {
		key := fmt.Sprint(i % 2)
		wg.Go(func() {
			for range 200 {
				Write(dir, "keep", key, text(key))
				if got, ok := Read(dir, "keep", key); ok && got != text(key) {
					t.Errorf("%q for %q", got, key)
				}
			}
		})
	}
	wg.Wait()
	left := names(t, dir)
	if len(left) == 0 || len(left) > 2 {
		t.Errorf("%v", left)
	}
	for _, name := range left {
		key := strings.TrimPrefix(name, "keep-")
		if got, ok := Read(dir, "keep", key); !ok || got != text(key) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
