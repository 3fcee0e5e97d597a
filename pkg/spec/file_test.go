package spec_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/spec"
	"github.com/agentbox/agentbox/test/promise"
)

// The test program is also the process that a crash test kills and the one that
// mounts in a namespace of its own.
const childEnv = "AGENTBOX_SPEC_CHILD"

func TestMain(m *testing.M) {
	switch child, path := os.Getenv(childEnv), os.Getenv("AGENTBOX_SPEC_PATH"); child {
	case "":
		os.Exit(m.Run())
	case "replace-forever":
		replaceForever(path)
	case "stale":
		besideStaleFile(path)
	case "full":
		onFullDisk(path)
	case "read-only":
		onReadOnlyMount(path)
	}
}

func child(kind, path string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+kind, "AGENTBOX_SPEC_PATH="+path)
	return cmd
}

// bundle makes a bundle with a config.json in it.
func bundle(t *testing.T, data string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), spec.ConfigName)
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string) *spec.File {
	t.Helper()
	f, err := spec.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// onlyConfig checks that nothing was left beside the file.
func onlyConfig(t *testing.T, path string) {
	t.Helper()
	list, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Name() != spec.ConfigName {
			t.Errorf("%s was left in the bundle", e.Name())
		}
	}
}

func TestOpenReadsARegularFile(t *testing.T) {
	path := bundle(t, `{"a":1}`)
	if f := open(t, path); string(f.Data) != `{"a":1}` || f.Path != path {
		t.Errorf("read %q from %s", f.Data, f.Path)
	}
	t.Chdir(filepath.Dir(path))
	if f := open(t, spec.ConfigName); string(f.Data) != `{"a":1}` {
		t.Errorf("read %q from the current folder", f.Data)
	}
	linked := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(path), linked); err != nil {
		t.Fatal(err)
	}
	if f := open(t, filepath.Join(linked, spec.ConfigName)); string(f.Data) != `{"a":1}` {
		t.Errorf("read %q through a linked bundle", f.Data)
	}
}

func TestOpenRefusesEverythingElse(t *testing.T) {
	for _, c := range []struct {
		name, message string
		make          func(path string) error
	}{
		{"a symbolic link", "is a symbolic link", func(path string) error { return os.Symlink("/etc/passwd", path) }},
		{"a link to nowhere", "is a symbolic link", func(path string) error { return os.Symlink("/nowhere", path) }},
		{"a named pipe that nobody writes to", "is not a regular file", func(path string) error { return unix.Mkfifo(path, 0o600) }},
		{"a folder", "is not a regular file", func(path string) error { return os.Mkdir(path, 0o700) }},
		{"too large a file", "bytes, more than the", func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 16<<20+1))
		}},
		{"nothing", "no such file", func(string) error { return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), spec.ConfigName)
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				f, err := spec.Open(path)
				if err == nil {
					f.Close()
				}
				done <- err
			}()
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), c.message) || !strings.Contains(err.Error(), path) {
					t.Errorf("error = %v, want %q and the path in it", err, c.message)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("Open waits")
			}
		})
	}
	t.Run("no bundle", func(t *testing.T) {
		if _, err := spec.Open(filepath.Join(t.TempDir(), "gone", spec.ConfigName)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error = %v, want one that is fs.ErrNotExist", err)
		}
	})
	t.Run("the largest file", func(t *testing.T) {
		path := bundle(t, "")
		if err := os.Truncate(path, 16<<20); err != nil {
			t.Fatal(err)
		}
		if f := open(t, path); len(f.Data) != 16<<20 {
			t.Errorf("read %d bytes", len(f.Data))
		}
	})
}

func TestReplaceKeepsTheMode(t *testing.T) {
	for _, mode := range []os.FileMode{0o600, 0o644, 0o400, 0o666, 0o640} {
		path := bundle(t, "old")
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := open(t, path).Replace([]byte("new")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != mode || read(t, path) != "new" {
			t.Errorf("mode %v with %q, want %v with the new text", info.Mode(), read(t, path), mode)
		}
		onlyConfig(t, path)
	}
}

// needRoot skips a test that gives files away or mounts.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func TestReplaceKeepsTheOwner(t *testing.T) {
	needRoot(t)
	for name, prepare := range map[string]func(dir string) error{
		"in an ordinary folder": func(string) error { return nil },
		"in a folder that gives its own group": func(dir string) error {
			return errors.Join(os.Chown(dir, 0, 12), os.Chmod(dir, 0o755|os.ModeSetgid))
		},
	} {
		for _, owner := range [][2]int{{0, 0}, {1234, 4321}, {0, 4321}, {1234, 0}} {
			t.Run(fmt.Sprint(name, " ", owner), func(t *testing.T) {
				path := bundle(t, "old")
				if err := errors.Join(prepare(filepath.Dir(path)), os.Chown(path, owner[0], owner[1])); err != nil {
					t.Fatal(err)
				}
				if err := open(t, path).Replace([]byte("new")); err != nil {
					t.Fatal(err)
				}
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				st := info.Sys().(*syscall.Stat_t)
				if got := [2]int{int(st.Uid), int(st.Gid)}; got != owner || info.Mode() != 0o600 {
					t.Errorf("owner %v, mode %v; want %v, -rw-------", got, info.Mode(), owner)
				}
			})
		}
	}
}

func TestReplaceCanBeCalledAgain(t *testing.T) {
	path := bundle(t, "0")
	f := open(t, path)
	for i := range 3 {
		text := strings.Repeat(fmt.Sprint(i), 1000*(3-i)) // each shorter than the last
		if err := f.Replace([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if got := read(t, path); got != text {
			t.Errorf("%d bytes, want %d", len(got), len(text))
		}
	}
	onlyConfig(t, path)
}

// In a process of its own, whose first call has a known name.
func TestReplaceOvercomesWhatACrashedProcessOfThisPidLeft(t *testing.T) {
	path := bundle(t, "old")
	if out, err := child("stale", path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	onlyConfig(t, path)
}

func besideStaleFile(path string) {
	dir := filepath.Dir(path)
	temp := filepath.Join(dir, fmt.Sprintf(".config.json.agentbox-%d-1", os.Getpid()))
	victim := filepath.Join(os.TempDir(), filepath.Base(temp))
	err := errors.Join(os.WriteFile(victim, []byte("keep"), 0o600), os.Symlink(victim, temp)) // the worst that could lie there
	check(err == nil, "prepare: %v", err)
	f, err := spec.Open(path)
	check(err == nil, "open: %v", err)
	err = f.Replace([]byte("new"))
	check(err == nil, "replace: %v", err)
	_, err = os.Lstat(temp)
	check(errors.Is(err, fs.ErrNotExist), "the stale file is still there: %v", err)
	kept, err := os.ReadFile(victim)
	check(err == nil && string(kept) == "keep", "the stale link was followed: %q, %v", kept, err)
	data, err := os.ReadFile(path)
	check(err == nil && string(data) == "new", "config.json = %q, %v", data, err)
	check(os.Remove(victim) == nil, "remove the victim")
}

func TestAReplaceThatFailsChangesNothing(t *testing.T) {
	t.Run("a folder took the place of the file", func(t *testing.T) {
		path := bundle(t, "old")
		f := open(t, path)
		if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "x"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		err := f.Replace([]byte("new"))
		if err == nil || !strings.Contains(err.Error(), "replace "+path) {
			t.Errorf("error = %v, want the rename to fail", err)
		}
		onlyConfig(t, path)
	})
	t.Run("the bundle is gone", func(t *testing.T) {
		path := bundle(t, "old")
		f := open(t, path)
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		if err := f.Replace([]byte("new")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error = %v, want one that is fs.ErrNotExist", err)
		}
	})
	t.Run("the folder cannot be written", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root writes everywhere; the read-only mount is its test")
		}
		path := bundle(t, "old")
		f := open(t, path)
		if err := os.Chmod(filepath.Dir(path), 0o500); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(filepath.Dir(path), 0o700) }) // or the folder cannot be removed
		if err := f.Replace([]byte("new")); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("error = %v, want one that is fs.ErrPermission", err)
		}
		if read(t, path) != "old" {
			t.Errorf("config.json = %q", read(t, path))
		}
	})
}

func TestReplaceStaysInTheFolderThatWasOpened(t *testing.T) {
	path := bundle(t, "old")
	f := open(t, path)
	dir := filepath.Dir(path)
	if err := errors.Join(os.Rename(dir, dir+".moved"), os.Mkdir(dir, 0o700), os.WriteFile(path, []byte("someone else's"), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir + ".moved") })
	if err := f.Replace([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if read(t, path) != "someone else's" || read(t, filepath.Join(dir+".moved", spec.ConfigName)) != "new" {
		t.Errorf("the folder at the old path got %q, the opened one %q", read(t, path), read(t, filepath.Join(dir+".moved", spec.ConfigName)))
	}
}

func TestReplaceDoesNotFollowALinkThatTookThePlace(t *testing.T) {
	path := bundle(t, "old")
	victim := filepath.Join(t.TempDir(), "victim")
	f := open(t, path)
	if err := errors.Join(os.WriteFile(victim, []byte("keep"), 0o600), os.Remove(path), os.Symlink(victim, path)); err != nil {
		t.Fatal(err)
	}
	if err := f.Replace([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if read(t, victim) != "keep" || read(t, path) != "new" {
		t.Errorf("the victim has %q, config.json %q", read(t, victim), read(t, path))
	}
}

// version returns one of the texts that writers write in turn; a torn one is
// none of them.
func version(n int) []byte { return bytes.Repeat([]byte{byte('a' + n%26)}, 40_000+n%26) }

func whole(data []byte) bool { return len(data) > 0 && bytes.Equal(data, version(int(data[0]-'a'))) }

func TestReadersOfConcurrentReplacersSeeOneOfTheTexts(t *testing.T) {
	path := bundle(t, string(version(0)))
	stop := make(chan struct{})
	var writers, readers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			f, err := spec.Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			for i := range 100 {
				if err := f.Replace(version(w*7 + i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	reads := 0
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			f, err := spec.Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			if !whole(f.Data) {
				t.Errorf("read a torn file of %d bytes", len(f.Data))
			}
			f.Close()
			reads++
		}
	})
	writers.Wait()
	close(stop)
	readers.Wait()
	if reads == 0 {
		t.Error("nobody read")
	}
	onlyConfig(t, path)
}

func replaceForever(path string) {
	f, err := spec.Open(path)
	for i := 0; err == nil; i++ {
		err = f.Replace(version(i))
	}
	fmt.Println(err)
	os.Exit(1)
}

func TestAKilledReplacerLeavesTheOldFileOrTheNewOne(t *testing.T) {
	path := bundle(t, string(version(0)))
	const rounds = 30
	changed := 0
	for range rounds {
		before := read(t, path)
		cmd := child("replace-forever", path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for range 200 { // until it has begun
			if read(t, path) != before {
				changed++
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(time.Duration(rand.IntN(3_000)) * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		if data := read(t, path); !whole([]byte(data)) {
			t.Fatalf("a torn file of %d bytes", len(data))
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".config.json.agentbox-*"))
		if err != nil || len(left) > 1 {
			t.Fatalf("%q were left by one process (%v)", left, err)
		}
		for _, l := range left {
			if err := os.Remove(l); err != nil {
				t.Fatal(err)
			}
		}
	}
	if changed < rounds/2 {
		t.Errorf("the file changed in %d of %d rounds, too few to mean much", changed, rounds)
	}
}

// inMountNamespace runs a child that mounts; where that is not allowed the test
// is skipped.
func inMountNamespace(t *testing.T, kind string) {
	t.Helper()
	needRoot(t)
	cmd := child(kind, t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	switch {
	case errors.Is(err, syscall.EPERM) || strings.HasPrefix(text, "mount: operation not permitted"):
		promise.Lacks(t, "mounts are not allowed here: ", err, " ", text)
	case err != nil || text != "":
		t.Errorf("%v: %s", err, text)
	}
}

func check(ok bool, format string, args ...any) {
	if !ok {
		fmt.Printf(format+"\n", args...)
		os.Exit(1)
	}
}

func TestAFullDiskLeavesTheOldFile(t *testing.T) { inMountNamespace(t, "full") }

func onFullDisk(dir string) {
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k")
	check(err == nil, "mount: %v", err)
	path := filepath.Join(dir, spec.ConfigName)
	err = os.WriteFile(path, []byte("old"), 0o600)
	check(err == nil, "write: %v", err)
	f, err := spec.Open(path)
	check(err == nil, "open: %v", err)
	err = f.Replace(make([]byte, 200_000))
	check(errors.Is(err, unix.ENOSPC), "error = %v, want ENOSPC", err)
	expectOld(dir, path)
	err = f.Replace([]byte("new"))
	check(err == nil, "the space was not given back: %v", err)
}

func TestAReadOnlyBundleKeepsTheOldFile(t *testing.T) { inMountNamespace(t, "read-only") }

func onReadOnlyMount(dir string) {
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "")
	check(err == nil, "mount: %v", err)
	path := filepath.Join(dir, spec.ConfigName)
	err = os.WriteFile(path, []byte("old"), 0o600)
	check(err == nil, "write: %v", err)
	err = unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	check(err == nil, "mount: %v", err)
	f, err := spec.Open(path)
	check(err == nil && string(f.Data) == "old", "open: %v", err)
	err = f.Replace([]byte("new"))
	check(errors.Is(err, unix.EROFS) && strings.Contains(err.Error(), path), "error = %v, want EROFS and the path", err)
	expectOld(dir, path)
}

func expectOld(dir, path string) {
	data, err := os.ReadFile(path)
	check(err == nil && string(data) == "old", "config.json = %q, %v", data, err)
	list, err := os.ReadDir(dir)
	check(err == nil && len(list) == 1, "%v was left, %v", list, err)
}
