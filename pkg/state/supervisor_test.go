package state_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/verdict"
)

func TestWhatTheSupervisorRecords(t *testing.T) {
	s := store(t)
	st := of("/run/runc", "a")
	create(t, s, st)
	if v, err := s.Strike(st.Root, st.ID); v != nil || err != nil {
		t.Errorf("a strike %+v, %v before there is one", v, err)
	}
	if cpu, err := s.Spent(st.Root, st.ID); cpu != 0 || err != nil {
		t.Errorf("spent %v, %v before anything was", cpu, err)
	}
	want := verdict.Strike{Code: verdict.CPUTimeExceeded, Limit: 5e9, Measured: 5100e6, At: time.Now().UTC()}
	for _, cpu := range []time.Duration{time.Second, 5 * time.Second} {
		if err := s.PutSpent(st.Root, st.ID, cpu); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Spent(st.Root, st.ID); got != cpu || err != nil {
			t.Errorf("spent %v, %v, want %v", got, err, cpu)
		}
	}
	if err := s.PutStrike(st.Root, st.ID, want); err != nil {
		t.Fatal(err)
	}
	// Another verb writes the state meanwhile.
	if err := s.Update(st); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Strike(st.Root, st.ID); err != nil || got == nil || *got != want {
		t.Errorf("strike %+v, %v, want %+v", got, err, want)
	}
	entries, err := os.ReadDir(s.Path(st.Root, st.ID))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if e.Type().IsRegular() && info.Mode() != 0o600 {
			t.Errorf("%s has the mode %v", e.Name(), info.Mode())
		}
		if e.Name()[0] == '~' {
			t.Errorf("%s was left", e.Name())
		}
	}
	if err := s.Remove(st.Root, st.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.PutStrike(st.Root, st.ID, want); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a strike for what is gone: %v", err)
	}
}

func TestDamagedRecordsOfTheSupervisorAreErrors(t *testing.T) {
	s := store(t)
	st := of("/run/runc", "a")
	create(t, s, st)
	for _, name := range []string{"strike", "spent"} {
		if err := os.WriteFile(filepath.Join(s.Path(st.Root, st.ID), name), []byte(`{"cpu":`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := s.Strike(st.Root, st.ID); err == nil {
		t.Errorf("strike %+v", v)
	}
	if cpu, err := s.Spent(st.Root, st.ID); err == nil {
		t.Errorf("spent %v", cpu)
	}
}
