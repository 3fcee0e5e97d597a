package payload

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseItem(t *testing.T) {
	tests := []struct {
		argument string
		want     Item
		ok       bool
	}{
		{"bin", Item{"bin", "bin"}, true},
		{"/a/b/c.test", Item{"/a/b/c.test", "c.test"}, true},
		{"/a/b/", Item{"/a/b/", "b"}, true},
		{"x:bin/agentbox", Item{"x", "bin/agentbox"}, true},
		{"x:./y", Item{"x", "y"}, true},
		{"", Item{}, false},
		{":name", Item{}, false},
		{"x:", Item{}, false},
		{"x:.", Item{}, false},
		{"x:../y", Item{}, false},
		{"x:/etc", Item{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.argument, func(t *testing.T) {
			got, err := ParseItem(tt.argument)
			if (err == nil) != tt.ok || got != tt.want {
				t.Fatalf("ParseItem = %+v, %v; want %+v, ok %v", got, err, tt.want, tt.ok)
			}
		})
	}
}

func TestWrite(t *testing.T) {
	folder := t.TempDir()
	write := func(name, content string, mode os.FileMode) {
		t.Helper()
		name = filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/run", "binary", 0o755)
	write("bin/sub/data", "data", 0o644)
	if err := os.Symlink("run", filepath.Join(folder, "bin/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("bin/run", filepath.Join(folder, "top")); err != nil {
		t.Fatal(err)
	}

	var archive bytes.Buffer
	err := Write(&archive, []Item{
		{filepath.Join(folder, "bin"), "bin"},
		{filepath.Join(folder, "top"), "one"},
	}, []File{{"etc/agentbox-vm/x", 0o755, []byte("generated")}})
	if err != nil {
		t.Fatal(err)
	}
	if archive.Len()%(20*diskBlock) != 0 {
		t.Errorf("size %d is not a whole number of records", archive.Len())
	}
	want := []string{
		"payload/ 755 ",
		"payload/bin/ 755 ",
		"payload/bin/link 777 ->run",
		"payload/bin/run 755 binary",
		"payload/bin/sub/ 755 ",
		"payload/bin/sub/data 644 data",
		"payload/one 755 binary",
		"etc/agentbox-vm/x 755 generated",
	}
	if got := list(t, &archive); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("tar holds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestWriteMissingSource(t *testing.T) {
	err := Write(io.Discard, []Item{{"/does/not/exist", "x"}}, nil)
	if !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("Write = %v, want %v", err, os.ErrNotExist)
	}
}

func TestExtract(t *testing.T) {
	tests := []struct {
		name    string
		entries []tar.Header
		want    string // files below the folder, "" if an error is wanted
	}{
		{"file in a folder", []tar.Header{
			{Name: "./", Typeflag: tar.TypeDir},
			{Name: "./sub/", Typeflag: tar.TypeDir},
			{Name: "./sub/a", Typeflag: tar.TypeReg, Mode: 0o644},
		}, "sub/a"},
		{"device is left out", []tar.Header{
			{Name: "null", Typeflag: tar.TypeChar},
			{Name: "a", Typeflag: tar.TypeReg, Mode: 0o644},
		}, "a"},
		{"path that climbs out", []tar.Header{{Name: "../evil", Typeflag: tar.TypeReg, Mode: 0o644}}, ""},
		{"link that climbs out", []tar.Header{
			{Name: "link", Typeflag: tar.TypeSymlink, Linkname: ".."},
			{Name: "link/evil", Typeflag: tar.TypeReg, Mode: 0o644},
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			for _, h := range tt.entries {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			// A disk is longer than the tar on it.
			archive.Write(make([]byte, 4096))

			parent := t.TempDir()
			folder := filepath.Join(parent, "out")
			err := Extract(&archive, folder)
			if _, statErr := os.Lstat(filepath.Join(parent, "evil")); statErr == nil {
				t.Fatal("a file was written outside the folder")
			}
			if tt.want == "" {
				if err == nil {
					t.Fatal("Extract accepted it")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(folder, tt.want)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func list(t *testing.T, r io.Reader) []string {
	t.Helper()
	var entries []string
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Linkname != "" {
			content = []byte("->" + h.Linkname)
		}
		entries = append(entries, fmt.Sprintf("%s %o %s", h.Name, h.Mode, content))
	}
}
