package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/smallfile"
)

// maxSize bounds what is read into memory. Real files have 10 KiB at most.
const maxSize = 4 << 20

// newMode is that of a configuration file that was not there, as packages have
// it. A new record is root's only, since it has a copy of the file.
const (
	newMode    = 0o644
	recordMode = 0o600
	dirMode    = 0o755
)

// file is a configuration file as it was read.
type file struct {
	path string // as it was named
	real string // without symbolic links
	data []byte // nil: there is none
	stat unix.Stat_t
}

// Read returns a configuration file as Store.Install reads it; nil: there is none.
func Read(path string) ([]byte, error) {
	f, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return f.data, nil
}

// readFile reads a file that may be missing. A symbolic link is followed, so that
// what it points to is changed and the link stays.
func readFile(path string) (*file, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("the path %q is not absolute: give the whole path", path)
	}
	f := &file{path: path}
	var err error
	f.real, err = filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%s is a symbolic link to a file that is not there: create that file, or remove the link", path)
		}
		f.real, err = realDir(path)
		return f, err
	case err != nil:
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if f.data, err = smallfile.Read(f.real, maxSize, smallfile.NoFollow); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if f.data == nil {
		f.data = []byte{}
	}
	if err := unix.Lstat(f.real, &f.stat); err != nil {
		return nil, fmt.Errorf("stat %s: %w", f.real, err)
	}
	return f, nil
}

// realDir resolves the folder of a file that is not there, as far as it is.
func realDir(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	if err != nil {
		return "", fmt.Errorf("find the folder of the configuration: %w", err)
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

// tempPart is in the name of every file that is not finished. It is not the end
// of the name, and the name begins with a dot: engines do not read it.
const tempPart = ".agentbox-install-"

// tempDir is where a file is written before it is renamed. CRI-O reads every file
// in a folder of drop-ins, so there none may be half written.
func tempDir(path string) string {
	dir := filepath.Dir(path)
	if strings.HasSuffix(dir, ".d") {
		return filepath.Dir(dir)
	}
	return dir
}

// write puts data in the place of a file in one step: a crash, or a loss of
// power, leaves the old file or the new one. A file that is there, whose stat is
// old, keeps its mode and its owner; another gets the mode.
func write(path string, data []byte, mode uint32, old *unix.Stat_t, step func()) (err error) {
	dir := tempDir(path)
	removeTemps(dir, filepath.Base(path))
	temp := filepath.Join(dir, fmt.Sprintf(".%s%s%d", filepath.Base(path), tempPart, os.Getpid()))
	out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, recordMode)
	if err != nil {
		return fmt.Errorf("write beside %s: %w", path, err)
	}
	defer func() {
		_ = out.Close()
		if err != nil {
			_ = os.Remove(temp)
		}
	}()
	step()
	if _, err := out.Write(data); err != nil {
		return fmt.Errorf("write beside %s: %w", path, err)
	}
	if old != nil {
		if err := out.Chown(int(old.Uid), int(old.Gid)); err != nil {
			return fmt.Errorf("keep the owner of %s: %w", path, err)
		}
		mode = old.Mode & 0o7777
	}
	if err := unix.Fchmod(int(out.Fd()), mode); err != nil {
		return fmt.Errorf("set the mode of %s: %w", path, err)
	}
	if err := out.Sync(); err != nil {
		return fmt.Errorf("write beside %s: %w", path, err)
	}
	step()
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	step()
	return syncDir(filepath.Dir(path))
}

// removeTemps removes what a crash left of a file. Nobody else is writing: the
// records are locked.
func removeTemps(dir, base string) {
	left, _ := filepath.Glob(filepath.Join(dir, "."+base+tempPart+"*"))
	for _, name := range left {
		_ = os.Remove(name)
	}
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sync the folder: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // some filesystems cannot
		return fmt.Errorf("sync the folder %s: %w", dir, err)
	}
	return nil
}

// missingDirs returns those of a folder and the folders above it that are not
// there, the outermost first.
func missingDirs(dir string) []string {
	var missing []string
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil || dir == filepath.Dir(dir) {
			slices.Reverse(missing)
			return missing
		}
		missing = append(missing, dir)
	}
}

// makeDirs makes a folder and those above it, for all to read whatever the umask
// is: Podman without root reads the same files.
func makeDirs(dir string) error {
	for _, missing := range missingDirs(dir) {
		if err := os.Mkdir(missing, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(missing, dirMode); err != nil {
			return err
		}
	}
	return nil
}

// unchanged makes sure that nobody has written a file since it was read.
func (f *file) unchanged() error {
	now, err := readFile(f.path)
	if err != nil {
		return err
	}
	if (now.data == nil) != (f.data == nil) || !bytes.Equal(now.data, f.data) || now.real != f.real {
		return fmt.Errorf("%s was changed by somebody else just now: run the command again", f.path)
	}
	return nil
}
