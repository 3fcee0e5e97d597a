package procfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLongLine: of a line that is longer than the buffer only the start is one.
func TestLongLine(t *testing.T) {
	size := len(Reader{}.buf)
	for _, extra := range []int{-1, 0, 1, size, 3*size + 7} {
		long := "a" + strings.Repeat("x", size+extra-1)
		name := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(name, []byte("first\n"+long+" RssAnon: 9 kB\n\nlast"), 0o600); err != nil {
			t.Fatal(err)
		}
		var r Reader
		lines, err := r.lines(unix.AT_FDCWD, []byte(name+"\x00"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for {
			line, err := lines.Next()
			if err != nil {
				t.Fatal(err)
			}
			if line == nil {
				break
			}
			got = append(got, string(line))
		}
		lines.Close()
		if len(got) != 4 || got[0] != "first" || !strings.HasPrefix(got[1], "axx") || len(got[1]) != size || got[2] != "" || got[3] != "last" {
			t.Errorf("%d bytes: %d lines", len(long), len(got))
		}
	}
}
