package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/agentbox/agentbox/pkg/verdict"
)

const (
	strikeName = "strike"
	spentName  = "spent"
)

// PutStrike keeps why a sandbox is about to be ended.
func (s Store) PutStrike(root, id string, v verdict.Strike) error {
	return s.put(root, id, strikeName, v)
}

// Strike returns what PutStrike kept; nil: nothing.
func (s Store) Strike(root, id string) (*verdict.Strike, error) {
	var v verdict.Strike
	ok, err := s.get(root, id, strikeName, &v)
	if !ok {
		return nil, err
	}
	return &v, nil
}

type spent struct {
	CPU time.Duration `json:"cpu"`
}

// PutSpent keeps the CPU time that a sandbox has used.
func (s Store) PutSpent(root, id string, cpu time.Duration) error {
	return s.put(root, id, spentName, spent{cpu})
}

// Spent returns what PutSpent kept.
func (s Store) Spent(root, id string) (time.Duration, error) {
	var v spent
	_, err := s.get(root, id, spentName, &v)
	return v.CPU, err
}

func (s Store) put(root, id, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the %s of %s: %w", name, id, err)
	}
	dir := s.Path(root, id)
	temp := filepath.Join(dir, tempPrefix+name+strconv.Itoa(os.Getpid()))
	if err = os.WriteFile(temp, data, 0o600); err == nil {
		err = os.Rename(temp, filepath.Join(dir, name))
	}
	if err != nil {
		return fmt.Errorf("write the %s of %s: %w", name, id, err)
	}
	return nil
}

func (s Store) get(root, id, name string, v any) (bool, error) {
	data, err := os.ReadFile(filepath.Join(s.Path(root, id), name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return false, fmt.Errorf("read the %s of %s: %w", name, id, err)
	}
	return true, nil
}
