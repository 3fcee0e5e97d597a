package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// What the supervisor writes is in files of its own: it and the commands of the
// runtime never write the same one.
const (
	strikeName = "strike"
	spentName  = "spent"
)

// PutStrike records what the supervisor is about to end a sandbox for.
func (s Store) PutStrike(root, id string, v verdict.Strike) error {
	if err := replace(s.Path(root, id), strikeName, v); err != nil {
		return fmt.Errorf("record why the supervisor ends %s: %w", id, err)
	}
	return nil
}

// Strike returns what the supervisor ended a sandbox for; nil when it did not.
func (s Store) Strike(root, id string) (*verdict.Strike, error) {
	var v verdict.Strike
	found, err := load(filepath.Join(s.Path(root, id), strikeName), &v)
	if err != nil || !found {
		return nil, err
	}
	return &v, nil
}

// spent is the file of that name.
type spent struct {
	CPU time.Duration `json:"cpu"` // nanoseconds
}

// PutSpent records how much CPU time a sandbox has used of its budget.
func (s Store) PutSpent(root, id string, cpu time.Duration) error {
	if err := replace(s.Path(root, id), spentName, spent{CPU: cpu}); err != nil {
		return fmt.Errorf("record what %s has used: %w", id, err)
	}
	return nil
}

// Spent returns what was recorded last; 0 when nothing was.
func (s Store) Spent(root, id string) (cpu time.Duration, err error) {
	var v spent
	_, err = load(filepath.Join(s.Path(root, id), spentName), &v)
	return v.CPU, err
}

// load reads a file that need not be there.
func load(name string, to any) (found bool, err error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, to); err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	return true, nil
}
