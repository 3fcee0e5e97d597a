package smallfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/smallfile"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{"full": "12345678", "more": "123456789", "empty": ""} {
		if err := os.WriteFile(in(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(unix.Mkfifo(in("fifo"), 0o600), os.Symlink("full", in("link")), os.Symlink("fifo", in("link-to-fifo")),
		os.Symlink(dir, in("folder"))); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		flags int
		want  string
		ok    bool
	}{
		{in("full"), 0, "12345678", true},
		{in("full"), smallfile.NoFollow, "12345678", true},
		{in("empty"), 0, "", true},
		{in("more"), 0, "", false},
		{in("fifo"), 0, "", false},
		{in("fifo"), smallfile.NoFollow, "", false},
		{in("link"), 0, "12345678", true},
		{in("link"), smallfile.NoFollow, "", false},
		{in("folder/full"), smallfile.NoFollow, "12345678", true},
		{in("link-to-fifo"), 0, "", false},
		{dir, 0, "", false},
		{"/dev/zero", 0, "", false},
	} {
		got, err := smallfile.Read(tt.name, 8, tt.flags)
		if string(got) != tt.want || (err == nil) != tt.ok {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
	if f, err := smallfile.Open(in("link"), 0); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	for _, name := range []string{in("fifo"), in("folder"), in("none")} {
		if f, err := smallfile.Open(name, 0); err == nil {
			f.Close()
			t.Errorf("%s is opened", name)
		}
	}
	if _, err := smallfile.Read(in("none"), 8, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
