// Package payload packs what a guest gets into one tar and unpacks what comes
// back. The tar is attached to the guest as a raw disk and unpacked at its root,
// which needs no shared file system and no network.
package payload

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// diskBlock is the unit in which user-mode Linux and QEMU see a raw disk.
const diskBlock = 512

// Item is one file or folder of the host that the guest sees as /payload/NAME.
type Item struct {
	Source string // path on the host
	Name   string // slash-separated path below /payload
}

// ParseItem reads "PATH" or "PATH:NAME"; NAME is the last element of PATH when
// it is left out. NAME must stay below /payload.
func ParseItem(argument string) (Item, error) {
	source, name, named := strings.Cut(argument, ":")
	if source == "" {
		return Item{}, fmt.Errorf("payload %q names no file", argument)
	}
	if !named {
		absolute, err := filepath.Abs(source)
		if err != nil {
			return Item{}, fmt.Errorf("payload %q: %w", argument, err)
		}
		name = filepath.Base(absolute)
	}
	if !filepath.IsLocal(name) || path.Clean(name) == "." {
		return Item{}, fmt.Errorf("payload %q: the name in the guest must stay below /payload", argument)
	}
	return Item{Source: source, Name: path.Clean(name)}, nil
}

// File is a generated file; Name is its path in the guest without leading slash.
type File struct {
	Name        string
	Permissions fs.FileMode
	Content     []byte
}

// Write packs items and files into a tar on w, owned by root. A symbolic link
// given as an item is followed, links inside a folder stay links. Sockets,
// pipes and devices are refused.
func Write(w io.Writer, items []Item, files []File) error {
	counted := &countingWriter{w: w}
	archive := tar.NewWriter(counted)
	if err := archive.WriteHeader(header("payload/", tar.TypeDir, 0o755)); err != nil {
		return fmt.Errorf("write payload: %w", err)
	}
	for _, item := range items {
		if err := addItem(archive, item); err != nil {
			return err
		}
	}
	for _, file := range files {
		h := header(file.Name, tar.TypeReg, file.Permissions)
		h.Size = int64(len(file.Content))
		if err := archive.WriteHeader(h); err != nil {
			return fmt.Errorf("write payload: %w", err)
		}
		if _, err := archive.Write(file.Content); err != nil {
			return fmt.Errorf("write payload: %w", err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("write payload: %w", err)
	}
	// tar reads in records of twenty blocks; a disk that ends in the middle of
	// one makes it complain.
	const record = 20 * diskBlock
	if rest := counted.n % record; rest != 0 {
		if _, err := w.Write(make([]byte, record-rest)); err != nil {
			return fmt.Errorf("write payload: %w", err)
		}
	}
	return nil
}

func addItem(archive *tar.Writer, item Item) error {
	root, err := filepath.EvalSymlinks(item.Source)
	if err != nil {
		return fmt.Errorf("payload %s: %w", item.Source, err)
	}
	return filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("payload %s: %w", item.Source, err)
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return fmt.Errorf("payload %s: %w", item.Source, err)
		}
		if err := addPath(archive, name, path.Join("payload", item.Name, filepath.ToSlash(relative)), entry); err != nil {
			return fmt.Errorf("payload %s: %w", item.Source, err)
		}
		return nil
	})
}

func addPath(archive *tar.Writer, source, name string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		return archive.WriteHeader(header(name+"/", tar.TypeDir, info.Mode().Perm()))
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(source)
		if err != nil {
			return err
		}
		h := header(name, tar.TypeSymlink, 0o777)
		h.Linkname = target
		return archive.WriteHeader(h)
	case info.Mode().IsRegular():
		return addFile(archive, source, name, info)
	default:
		return fmt.Errorf("%s is neither file, folder nor link", source)
	}
}

func addFile(archive *tar.Writer, source, name string, info fs.FileInfo) error {
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	h := header(name, tar.TypeReg, info.Mode().Perm())
	h.Size = info.Size()
	h.ModTime = info.ModTime()
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}

func header(name string, kind byte, permissions fs.FileMode) *tar.Header {
	return &tar.Header{Name: name, Typeflag: kind, Mode: int64(permissions), Format: tar.FormatGNU}
}

// Extract unpacks the tar on r below folder, which is created if needed. Only
// folders, files and links come back; nothing is written outside the folder,
// whatever the guest put into the tar.
func Extract(r io.Reader, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("unpack the guest's /out: %w", err)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("unpack the guest's /out: %w", err)
	}
	defer root.Close()
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpack the guest's /out: %w", err)
		}
		if err := extractEntry(root, archive, h); err != nil {
			return fmt.Errorf("unpack the guest's /out/%s: %w", h.Name, err)
		}
	}
}

func extractEntry(root *os.Root, archive io.Reader, h *tar.Header) error {
	name := path.Clean(h.Name)
	if name == "." {
		return nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		if err := root.RemoveAll(name); err != nil {
			return err
		}
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		file, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fs.FileMode(h.Mode).Perm())
		if err != nil {
			return err
		}
		if _, err := io.Copy(file, archive); err != nil {
			file.Close()
			return err
		}
		return file.Close()
	default:
		return nil
	}
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
