package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/host"
)

func TestCacheFolder(t *testing.T) {
	tests := []struct {
		name        string
		environment map[string]string
		want        string
	}{
		{"own variable first", map[string]string{"AGENTBOX_VM_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"},
		{"then the desktop's", map[string]string{"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/agentbox/vm"},
		{"then home", map[string]string{"HOME": "/h"}, "/h/.cache/agentbox/vm"},
		{"nowhere", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := CacheFolder(func(name string) string { return tt.environment[name] })
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Fatalf("CacheFolder = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestKeysAreStable(t *testing.T) {
	first, err := keys()
	if err != nil {
		t.Fatal(err)
	}
	second, err := keys()
	if err != nil || !slices.Equal(first, second) {
		t.Fatalf("keys %q, then %q, %v", first, second, err)
	}
	for i, key := range first {
		if len(key) != 16 || slices.Index(first, key) != i {
			t.Errorf("the key of %s is %q, among %q", Suites[i], key, first)
		}
	}
}

func TestRemoveOthers(t *testing.T) {
	cache := t.TempDir()
	mustUse := func(name string, age time.Duration) *Image {
		t.Helper()
		folder := filepath.Join(cache, name)
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		image, err := use(folder)
		if err != nil || image == nil {
			t.Fatalf("use = %v, %v", image, err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(usageLock(folder), then, then); err != nil {
			t.Fatal(err)
		}
		return image
	}
	mustUse("current", 9*time.Hour).Close()
	mustUse("current-too", 8*time.Hour).Close()
	mustUse("recent", time.Hour).Close()
	mustUse("recent-too", 2*time.Hour).Close()
	mustUse("old", 3*time.Hour).Close()
	defer mustUse("old-in-use", 4*time.Hour).Close()
	if err := os.Mkdir(filepath.Join(cache, "building-1"), 0o755); err != nil {
		t.Fatal(err)
	}

	removeOthers(cache, []string{"current", "current-too"})
	var left []string
	entries, err := os.ReadDir(cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	want := []string{
		"current", "current-too", "current-too.lock", "current.lock", "old-in-use", "old-in-use.lock",
		"recent", "recent-too", "recent-too.lock", "recent.lock",
	}
	if !slices.Equal(left, want) {
		t.Fatalf("left are %q, want %q", left, want)
	}
}

func TestUseOfAMissingImage(t *testing.T) {
	image, err := use(filepath.Join(t.TempDir(), "missing"))
	if image != nil || err != nil {
		t.Fatalf("use = %v, %v; want nothing", image, err)
	}
}

func TestBzImagePayload(t *testing.T) {
	valid := make([]byte, 2048)
	valid[0x1f1] = 1 // one setup sector behind the boot sector
	copy(valid[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(valid[0x248:], 16)
	binary.LittleEndian.PutUint32(valid[0x24c:], 5)
	copy(valid[1024+16:], "hello")
	long := bytes.Clone(valid)
	binary.LittleEndian.PutUint32(long[0x24c:], 1<<31)
	tests := []struct {
		name  string
		image []byte
		want  string
	}{
		{"valid", valid, "hello"},
		{"cut off", long, ""},
		{"too short", valid[:100], ""},
		{"no magic", make([]byte, 2048), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := bzImagePayload(tt.image)
			if string(got) != tt.want || (err == nil) != (tt.want != "") {
				t.Fatalf("payload %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestDecompress(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte("kernel")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"gzip", packed.Bytes(), "kernel"},
		{"gzip with a size behind it", append(bytes.Clone(packed.Bytes()), 1, 2, 3, 4), "kernel"},
		{"unknown", []byte("\x00\x00\x00\x00"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decompress(context.Background(), &host.Progress{}, tt.data)
			if string(got) != tt.want || (err == nil) != (tt.want != "") {
				t.Fatalf("decompress = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestLoadOrder(t *testing.T) {
	const modulesDep = "kernel/a.ko.xz:\n" +
		"kernel/virtio_blk.ko.xz: kernel/virtio.ko.xz kernel/virtio_ring.ko.xz\n" +
		"kernel/plain.ko:\n"
	tests := []struct {
		module string
		want   []string
	}{
		{"virtio_blk", []string{"kernel/virtio_ring.ko.xz", "kernel/virtio.ko.xz", "kernel/virtio_blk.ko.xz"}},
		{"plain", []string{"kernel/plain.ko"}},
		{"builtin", nil},
	}
	for _, tt := range tests {
		t.Run(tt.module, func(t *testing.T) {
			if got := loadOrder(modulesDep, tt.module); !slices.Equal(got, tt.want) {
				t.Fatalf("loadOrder = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseStatus(t *testing.T) {
	got := parseStatus([]byte("Package: runc\nStatus: install ok installed\nVersion: 1.3.6+ds1-1\n\nPackage: crun\nVersion: 1.28-1\n"))
	if got["runc"] != "1.3.6+ds1-1" || got["crun"] != "1.28-1" || len(got) != 2 {
		t.Fatalf("parseStatus = %v", got)
	}
}

func TestTail(t *testing.T) {
	tests := []struct {
		text string
		n    int
		want string
	}{
		{"", 2, ""},
		{"a\nb\nc\n", 2, "b\nc"},
		{"a\n", 2, "a"},
	}
	for _, tt := range tests {
		if got := tail(tt.text, tt.n); got != tt.want {
			t.Errorf("tail(%q, %d) = %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
}
