package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What the probe of a cgroup v2 machine costs. As long as no cgroup has the io
// controller on, nothing shows whether the kernel has io.max: the first create
// after a boot looks among the kernel's symbols, and notes what it found (pkg/host
// and pkg/note).

// noteFigures show what the note saves. They switch the io controller off
// everywhere and on again, so they are for a guest.
func (s *startup) noteFigures() []func() (comparison, error) {
	return []func() (comparison, error){s.create, s.withNote, s.withoutNote}
}

func (s *startup) withNote() (c comparison, err error) {
	show, err := hideIO()
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, show()) }()
	// The first one writes it.
	if _, _, err := s.createStep().time(); err != nil {
		return c, err
	}
	return compare("create with the probe's note / reference", s.pairs, s.notedStep(), s.referenceStep(), targetCreate)
}

func (s *startup) withoutNote() (c comparison, err error) {
	show, err := hideIO()
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, show()) }()
	first := s.createStep()
	first.before = func() error { return errors.Join(s.removeNotes(), s.restoreSpec()) }
	return compare("create without the probe's note / with it", s.pairs, first, s.notedStep(), 0)
}

// notedStep is a create that finds a note.
func (s *startup) notedStep() step {
	create := s.createStep()
	create.before = func() error {
		names, err := s.notes()
		if err == nil && len(names) != 1 {
			err = fmt.Errorf("%d notes of the probe are in %s, and not 1: the first create has not noted what the kernel can do", len(names), s.state())
		}
		return errors.Join(err, s.restoreSpec())
	}
	return create
}

// notes are what the probe has noted about the machine: the links in the folder
// of states, which itself has only folders.
func (s *startup) notes() (names []string, err error) {
	entries, err := os.ReadDir(s.state())
	for _, e := range entries {
		if e.Type()&os.ModeSymlink != 0 {
			names = append(names, filepath.Join(s.state(), e.Name()))
		}
	}
	return names, err
}

func (s *startup) removeNotes() error {
	names, err := s.notes()
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// hideIO takes the io controller from all cgroups of a guest, the lower ones
// first, and returns what gives it back.
func hideIO() (show func() error, err error) {
	const root = "/sys/fs/cgroup/"
	files, err := filepath.Glob(root + "*/cgroup.subtree_control")
	if err != nil {
		return nil, err
	}
	var had []string
	show = func() (err error) {
		for _, file := range slices.Backward(had) {
			err = errors.Join(err, os.WriteFile(file, []byte("+io"), 0))
		}
		return err
	}
	for _, file := range append(files, root+"cgroup.subtree_control") {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, errors.Join(err, show())
		}
		if !slices.Contains(strings.Fields(string(data)), "io") {
			continue
		}
		if err := os.WriteFile(file, []byte("-io"), 0); err != nil {
			return nil, errors.Join(err, show())
		}
		had = append(had, file)
	}
	return show, nil
}
