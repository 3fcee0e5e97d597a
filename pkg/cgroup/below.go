package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// maxBelow bounds how many cgroups are looked at below one: a container that may
// create cgroups must not make us read for ever.
const maxBelow = 4096

// below calls see with each cgroup under a folder; where it returns false, what
// is further down is left out. A cgroup that is removed meanwhile is left out
// too.
func (c *Cgroup) below(folder string, see func(d dir) (deeper bool, err error)) error {
	todo, seen := []string{folder}, 0
	for len(todo) > 0 {
		parent := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		names, err := subfolders(c.fs, parent)
		if err != nil {
			return err
		}
		for _, name := range names {
			if seen++; seen > maxBelow {
				return fmt.Errorf("more than %d cgroups below %s", maxBelow, folder)
			}
			child := parent + "/" + name
			deeper, err := c.look(child, see)
			if err != nil {
				return err
			}
			if deeper {
				todo = append(todo, child)
			}
		}
	}
	return nil
}

func (c *Cgroup) look(child string, see func(d dir) (bool, error)) (deeper bool, err error) {
	d, err := openDir(c.fs, child)
	if err == nil {
		defer d.close()
		deeper, err = see(d)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return deeper, err
}

func subfolders(f FS, folder string) ([]string, error) {
	entries, err := os.ReadDir(f.Path(folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
