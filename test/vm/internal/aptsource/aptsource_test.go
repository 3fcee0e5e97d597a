package aptsource

import (
	"errors"
	"testing"
	"testing/fstest"
)

func TestMirror(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		suite string
		want  string // empty: ErrNoMirror
	}{
		{
			name:  "one-line format",
			files: map[string]string{"sources.list": "# comment\ndeb http://mirror.test/debian bookworm main contrib\n"},
			suite: "bookworm",
			want:  "http://mirror.test/debian",
		},
		{
			name:  "options in brackets and a trailing comment",
			files: map[string]string{"sources.list": "deb [arch=amd64 signed-by=/k.gpg] https://mirror.test/debian bookworm main # ours\n"},
			suite: "bookworm",
			want:  "https://mirror.test/debian",
		},
		{
			name: "paragraphs, security first",
			files: map[string]string{"sources.list.d/debian.sources": "Types: deb\nURIs: http://security.test\nSuites: bookworm-security\nComponents: main\n" +
				"\nTypes: deb deb-src\n# note\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"},
			suite: "bookworm",
			want:  "http://mirror.test/debian",
		},
		{
			name:  "continued field",
			files: map[string]string{"sources.list.d/debian.sources": "Types: deb\nURIs:\n http://mirror.test/debian\nSuites: sid\nComponents:\n main\n"},
			suite: "sid",
			want:  "http://mirror.test/debian",
		},
		{
			name:  "disabled paragraph",
			files: map[string]string{"sources.list.d/debian.sources": "Enabled: no\nTypes: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\n"},
			suite: "bookworm",
		},
		{
			name: "third parties are not the archive",
			files: map[string]string{
				"sources.list.d/a.list":    "deb https://vendor.test/apt stable main\n",
				"sources.list.d/b.sources": "Types: deb\nURIs: https://node.test\nSuites: nodistro\nComponents: main\n",
			},
			suite: "bookworm",
		},
		{
			name:  "source packages only",
			files: map[string]string{"sources.list": "deb-src http://mirror.test/debian bookworm main\n"},
			suite: "bookworm",
		},
		{
			name:  "a local file archive cannot be handed to mmdebstrap by name",
			files: map[string]string{"sources.list": "deb file:/srv/debian bookworm main\n"},
			suite: "bookworm",
		},
		{name: "no files at all", suite: "bookworm"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			for name, text := range tt.files {
				fsys[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got, err := Mirror(fsys, tt.suite)
			if tt.want == "" {
				if !errors.Is(err, ErrNoMirror) {
					t.Fatalf("Mirror = %q, %v; want ErrNoMirror", got, err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Fatalf("Mirror = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add("deb [a=b] http://mirror.test x main\n", "Types: deb\nURIs: http://mirror.test\n\n")
	f.Fuzz(func(t *testing.T, lines, paragraphs string) {
		if _, err := Read(fstest.MapFS{
			"sources.list":             {Data: []byte(lines)},
			"sources.list.d/x.sources": {Data: []byte(paragraphs)},
		}); err != nil {
			t.Fatal(err)
		}
	})
}
