// Package image builds and caches what the engines boot: for each suite of Debian
// one root file system for both engines, the two kernels, and the small initramfs
// that QEMU's kernel needs.
//
// A cache folder holds one folder per key, and the key is a hash of everything
// that goes into an image. The cache saves about a minute and may be deleted at
// any time.
package image

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/guest"
	"github.com/agentbox/agentbox/test/vm/internal/host"
)

// recipe is the source that decides what an image holds: a change there gives a
// new key. The rest of this package only manages the cache.
//
//go:embed packages.go build.go kernel.go
var recipe embed.FS

// keptOthers is how many images stay in the cache that this program would not build:
// with one of each suite, two checkouts of the project can take turns without
// building each time.
var keptOthers = len(Suites)

// Image is a finished image. It cannot be removed by others until it is closed.
type Image struct {
	folder string
	lock   *os.File
}

// Base is the root file system, a raw ext4 disk that engines must not write to.
func (i *Image) Base() string { return filepath.Join(i.folder, "base.img") }

// Kernel is QEMU's kernel, an uncompressed vmlinux.
func (i *Image) Kernel() string { return filepath.Join(i.folder, "vmlinux") }

// Initramfs belongs to Kernel.
func (i *Image) Initramfs() string { return filepath.Join(i.folder, "initramfs") }

// UMLKernel is user-mode Linux, a program that needs UMLLoader and UMLLibraries.
func (i *Image) UMLKernel() string { return filepath.Join(i.folder, "uml", "linux") }

// UMLLoader is the ELF interpreter that belongs to UMLKernel.
func (i *Image) UMLLoader() string { return filepath.Join(i.folder, "uml", "ld.so") }

// UMLLibraries is the folder with the C library that belongs to UMLKernel.
func (i *Image) UMLLibraries() string { return filepath.Join(i.folder, "uml", "lib") }

// Folder is where the image lies.
func (i *Image) Folder() string { return i.folder }

// Versions is one line with the versions of the packages that matter to tests.
func (i *Image) Versions() (string, error) {
	data, err := os.ReadFile(filepath.Join(i.folder, "versions"))
	if err != nil {
		return "", fmt.Errorf("read the image's versions: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// Size returns the bytes that the image takes on disk.
func (i *Image) Size() (int64, error) {
	var total int64
	err := filepath.WalkDir(i.folder, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		total += allocated(info)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure the image: %w", err)
	}
	return total, nil
}

// Close lets others remove the image.
func (i *Image) Close() error { return i.lock.Close() }

// CacheFolder returns the folder of all images: $AGENTBOX_VM_CACHE, or
// agentbox/vm below the user's cache folder.
func CacheFolder(getenv func(string) string) (string, error) {
	if folder := getenv("AGENTBOX_VM_CACHE"); folder != "" {
		return filepath.Abs(folder)
	}
	if folder := getenv("XDG_CACHE_HOME"); folder != "" {
		return filepath.Join(folder, "agentbox", "vm"), nil
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".cache", "agentbox", "vm"), nil
	}
	return "", errors.New("no place for the image cache: set AGENTBOX_VM_CACHE or HOME")
}

// Key identifies the image of a suite that this program builds.
func Key(suite string) (string, error) {
	hash := sha256.New()
	hash.Write([]byte(suite))
	for _, script := range []string{"boot", "initramfs"} {
		hash.Write(guest.Script(script))
	}
	for _, name := range []string{"packages.go", "build.go", "kernel.go"} {
		source, err := recipe.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("key of the image: %w", err)
		}
		hash.Write(source)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// keys are those of all suites.
func keys() ([]string, error) {
	var all []string
	for _, suite := range Suites {
		key, err := Key(suite)
		if err != nil {
			return nil, err
		}
		all = append(all, key)
	}
	return all, nil
}

// Ensure returns the image of a suite from the cache, and builds it first if it is
// not there. Two processes that ask at once build it once. Images that this program
// would not build are removed, but for those that were used last and those in use.
func Ensure(ctx context.Context, progress *host.Progress, suite, cache, mirror string) (*Image, error) {
	key, err := Key(suite)
	if err != nil {
		return nil, err
	}
	current, err := keys()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the image cache: %w", err)
	}
	folder := filepath.Join(cache, key)
	// An image that is there needs no waiting for others that build theirs.
	if image, err := use(folder); image != nil || err != nil {
		return image, err
	}
	cacheLock, err := lockCache(progress, cache)
	if err != nil {
		return nil, err
	}
	defer cacheLock.Close()
	if image, err := use(folder); image != nil || err != nil {
		return image, err
	}
	removeOthers(cache, current)
	if err := build(ctx, progress, suite, cache, folder, mirror); err != nil {
		return nil, fmt.Errorf("build the guest image: %w", err)
	}
	return use(folder)
}

// use takes the image in folder into use. It returns nil if there is none.
func use(folder string) (*Image, error) {
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	lock, err := host.SharedLock(usageLock(folder))
	if err != nil {
		return nil, fmt.Errorf("take the guest image into use: %w", err)
	}
	// It may have been removed while this process waited for the lock.
	if _, err := os.Stat(folder); err != nil {
		return nil, lock.Close()
	}
	now := time.Now()
	if err := os.Chtimes(lock.Name(), now, now); err != nil {
		return nil, errors.Join(fmt.Errorf("note the use of the guest image: %w", err), lock.Close())
	}
	return &Image{folder: folder, lock: lock}, nil
}

func lockCache(progress *host.Progress, cache string) (*os.File, error) {
	name := filepath.Join(cache, "lock")
	lock, err := host.TryLock(name)
	if !errors.Is(err, host.ErrLocked) {
		return lock, err
	}
	defer progress.Step("waiting for another process that builds a guest image")()
	return host.Lock(name)
}

// usageLock is the file that is locked while an image is in use; its time is that
// of the last use.
func usageLock(folder string) string { return folder + ".lock" }

// removeOthers deletes images whose keys are not current and what was left of builds
// that were killed. The caller holds the lock of the cache. What cannot be removed
// now stays for the next time.
func removeOthers(cache string, current []string) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return
	}
	var folders []string
	for _, entry := range entries {
		if entry.IsDir() && !slices.Contains(current, entry.Name()) {
			folders = append(folders, filepath.Join(cache, entry.Name()))
		}
	}
	lastUse := func(folder string) time.Time {
		info, err := os.Stat(usageLock(folder))
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(folders, func(a, b string) int { return lastUse(b).Compare(lastUse(a)) })
	kept := 0
	for _, folder := range folders {
		if kept < keptOthers && !lastUse(folder).IsZero() {
			kept++
			continue
		}
		lock, err := host.TryLock(usageLock(folder))
		if err != nil {
			continue
		}
		if os.RemoveAll(folder) == nil {
			_ = os.Remove(usageLock(folder))
		}
		_ = lock.Close()
	}
}
