package host

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadRelease(t *testing.T) {
	tests := []struct {
		name string
		text string
		want Release
		ok   bool
	}{
		{"debian", "PRETTY_NAME=\"Debian\"\nVERSION_CODENAME=bookworm\nID=debian\n", Release{"debian", "bookworm"}, true},
		{"derived", "ID=other\nID_LIKE=\"ubuntu debian\"\nVERSION_CODENAME=noble\n", Release{"other", "noble"}, true},
		{"another family", "ID=fedora\n", Release{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadRelease(fstest.MapFS{"etc/os-release": {Data: []byte(tt.text)}})
			if got != tt.want || (err == nil) != tt.ok {
				t.Fatalf("ReadRelease = %+v, %v", got, err)
			}
			if err != nil && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("%v does not wrap ErrUnsupported", err)
			}
		})
	}
	if _, err := ReadRelease(fstest.MapFS{}); !errors.Is(err, ErrUnsupported) {
		t.Fatalf("no os-release: %v", err)
	}
}

func TestFacts(t *testing.T) {
	tests := []struct {
		name  string
		files fstest.MapFS
		want  []string
	}{
		{"cgroup v2", fstest.MapFS{
			"proc/sys/kernel/osrelease":        {Data: []byte("6.1.0\n")},
			"proc/meminfo":                     {Data: []byte("MemTotal:       2097152 kB\n")},
			"proc/loadavg":                     {Data: []byte("0.50 0.1 0.1 1/1 1\n")},
			"sys/fs/cgroup/cgroup.controllers": {},
		}, []string{"kernel 6.1.0,", "memory 2048 MiB", "load 0.50", "cgroup v2"}},
		{"hybrid", fstest.MapFS{"sys/fs/cgroup/unified/cgroup.controllers": {}}, []string{"cgroup v1 hybrid"}},
		{"nothing readable", fstest.MapFS{}, []string{"kernel ?", "memory ? MiB", "load ?", "cgroup v1 or none"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Facts(tt.files)
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("Facts = %q, without %q", got, want)
				}
			}
		})
	}
}

func TestLastLine(t *testing.T) {
	tests := []struct{ input, want string }{
		{"", ""},
		{"one", "one"},
		{"one\ntwo \n\n", "two"},
	}
	for _, tt := range tests {
		if got := LastLine([]byte(tt.input)); got != tt.want {
			t.Errorf("LastLine(%q) = %q, want %q", tt.input, got, tt.want)
		}
	}
}

func TestSweepLeavesLockedFolders(t *testing.T) {
	parent := t.TempDir()
	folders := map[string]bool{"abvm-dead": true, "abvm-alive": false, "abvm-beginning": false, "other": false}
	for name := range folders {
		if err := os.Mkdir(filepath.Join(parent, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(parent, "abvm-dead", "lock"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	held, err := TryLock(filepath.Join(parent, "abvm-alive", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()

	sweep(parent)
	for name, gone := range folders {
		_, err := os.Stat(filepath.Join(parent, name))
		if errors.Is(err, os.ErrNotExist) != gone {
			t.Errorf("%s: removed %v, want %v", name, !gone, gone)
		}
	}
}

func TestLocks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	first, err := SharedLock(name)
	if err != nil {
		t.Fatal(err)
	}
	second, err := SharedLock(name)
	if err != nil {
		t.Fatalf("a second shared lock: %v", err)
	}
	if _, err := TryLock(name); !errors.Is(err, ErrLocked) {
		t.Fatalf("TryLock beside shared locks = %v, want %v", err, ErrLocked)
	}
	first.Close()
	second.Close()
	third, err := TryLock(name)
	if err != nil {
		t.Fatalf("TryLock after all is closed: %v", err)
	}
	third.Close()
}

func TestProgress(t *testing.T) {
	var output bytes.Buffer
	done := NewProgress(&output).Step("working")
	done()
	lines := strings.Split(strings.TrimSpace(output.String()), "\n")
	if len(lines) != 2 || lines[0] != "vm: working ..." || !strings.HasPrefix(lines[1], "vm: working: 0.") {
		t.Fatalf("progress is %q", lines)
	}
}

func TestNewScratch(t *testing.T) {
	if _, err := NewScratch(Need{Bytes: 1 << 60}); err == nil {
		t.Fatal("a folder with an exbibyte was found")
	}
	scratch, err := NewScratch(Need{})
	if err != nil {
		t.Skipf("this host has no place for a scratch folder: %v", err)
	}
	if _, err := TryLock(filepath.Join(scratch.Path, "lock")); !errors.Is(err, ErrLocked) {
		t.Errorf("the folder is not locked: %v", err)
	}
	// The kernel of user-mode Linux has room for a loader path this long.
	if path := filepath.Join(scratch.Path, "ld"); len(path) > 27 {
		t.Errorf("path %s is too long", path)
	}
	if err := scratch.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(scratch.Path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the folder is still there: %v", err)
	}
}
