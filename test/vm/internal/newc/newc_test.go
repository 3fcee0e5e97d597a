package newc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"testing"
)

func TestWriter(t *testing.T) {
	tests := []struct {
		name  string
		write func(*Writer)
		want  []string // "name mode content"
	}{
		{"empty", func(*Writer) {}, []string{}},
		{"directory", func(w *Writer) { w.Directory("bin", 0o755) }, []string{"bin 040755 "}},
		{"file with odd lengths", func(w *Writer) { w.File("a", 0o644, []byte("12345")) }, []string{"a 0100644 12345"}},
		{"file with a length that needs no padding", func(w *Writer) { w.File("ab", 0o755, []byte("1234")) }, []string{"ab 0100755 1234"}},
		{"empty file", func(w *Writer) { w.File("e", 0o600, nil) }, []string{"e 0100600 "}},
		{
			"several", func(w *Writer) {
				w.Directory("bin", 0o755)
				w.Symlink("bin/sh", "busybox")
				w.File("init", 0o755, []byte("#!/bin/sh\n"))
			},
			[]string{"bin 040755 ", "bin/sh 0120777 busybox", "init 0100755 #!/bin/sh\n"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var archive bytes.Buffer
			w := NewWriter(&archive)
			tt.write(w)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			got := list(t, archive.Bytes())
			if fmt.Sprint(got) != fmt.Sprint(append(tt.want, trailer+" 00 ")) {
				t.Fatalf("archive holds %q, want %q and the trailer", got, tt.want)
			}
		})
	}
}

type failingWriter struct{}

var errDiskFull = errors.New("disk full")

func (failingWriter) Write([]byte) (int, error) { return 0, errDiskFull }

func TestWriterKeepsTheFirstError(t *testing.T) {
	w := NewWriter(failingWriter{})
	w.File("a", 0o644, []byte("x"))
	if err := w.Close(); !errors.Is(err, errDiskFull) {
		t.Fatalf("Close = %v, want %v", err, errDiskFull)
	}
}

// list is a small reader of its own: it follows the format's document, not the writer.
func list(t *testing.T, archive []byte) []string {
	t.Helper()
	align := func(n int) int { return (n + 3) &^ 3 }
	var entries []string
	for position := 0; position < len(archive); {
		header := archive[position:]
		if string(header[:6]) != "070701" {
			t.Fatalf("no magic at %d", position)
		}
		field := func(i int) int {
			value, err := strconv.ParseUint(string(header[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(value)
		}
		nameEnd := 110 + field(11)
		name := string(header[110 : nameEnd-1])
		content := header[align(nameEnd) : align(nameEnd)+field(6)]
		entries = append(entries, fmt.Sprintf("%s 0%o %s", name, field(1), content))
		position += align(align(nameEnd) + field(6))
	}
	return entries
}
