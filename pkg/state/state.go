// Package state remembers a sandbox from its create to its delete, so that each
// command of the low-level runtime, a process of its own, knows what the earlier
// ones decided.
//
// State is written before the first effect and removed after the last one. Only
// root reads it. Results outlive it and are kept elsewhere.
package state

import (
	"time"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// Version is written into every state, for a later agentbox that finds sandboxes
// of an earlier one.
const Version = 1

// State is one sandbox.
type State struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	Root    string `json:"root"`  // the low-level runtime's state folder, as every command names it
	Nonce   string `json:"nonce"` // tells this creation from others of the same id

	Runtime   string         `json:"runtime"`   // absolute path of the low-level runtime
	RealRoot  string         `json:"real_root"` // where that runtime really keeps its containers
	Bundle    string         `json:"bundle"`    // absolute
	PidFile   string         `json:"pid_file,omitempty"`
	Door      result.Door    `json:"door"`
	CreatedAt time.Time      `json:"created_at"`
	Creator   procfs.Process `json:"creator"` // runs the low-level create, with the same pid
	Results   result.Store   `json:"results"`

	// Supervisor is the program that supervises it where no shim does; empty: none
	// is needed, or there is none.
	Supervisor string `json:"supervisor,omitempty"`

	// EngineDir is the engine's own folder of the container, where its name is
	// found; empty: none is known.
	EngineDir string `json:"engine_dir,omitempty"`
	Name      string `json:"name,omitempty"` // the engine's name, where the specification has it

	Plan limits.Plan `json:"plan"`
	// MayProtect says that the container may have CAP_SYS_RESOURCE, with which
	// it can exempt a process from the OOM killer.
	MayProtect bool     `json:"may_protect,omitempty"`
	Warnings   []string `json:"warnings,omitempty"`

	// Pause says that this is no sandbox but the pause container of a pod: it has
	// no limits and leaves no result.
	Pause bool `json:"pause,omitempty"`

	// Started is set when the limits were read back, just before the user's
	// program runs; nil: not started, or Pause.
	Started *Started `json:"started,omitempty"`

	// Evidence is set before the low-level runtime removes the container.
	Evidence *verdict.Evidence `json:"evidence,omitempty"`
	Usage    *result.Usage     `json:"usage,omitempty"`
}

// Started is what was found when the container's first process waited with its
// final limits.
type Started struct {
	Init        procfs.Process                `json:"init"`
	Cgroup      *cgroup.Paths                 `json:"cgroup,omitempty"` // nil: no cgroup was found
	Enforcement map[string]result.Enforcement `json:"enforcement"`
	Held        verdict.Limits                `json:"held"`
	Warnings    []string                      `json:"warnings,omitempty"`
}

// Result describes the sandbox as far as its state knows.
func (s *State) Result() *result.Result {
	r := &result.Result{
		ID: s.ID, Name: s.Name, Nonce: s.Nonce, Door: s.Door, CreatedAt: s.CreatedAt,
		Status: verdict.Created, Message: "created, not started", ExitSource: verdict.ExitUnknown,
		Scope: s.Plan.OOMScope, Mode: s.Plan.Mode, Profile: s.Plan.Profile,
		Warnings: append([]string{}, append(s.Plan.Warnings, s.Warnings...)...),
		Usage:    s.Usage,
	}
	if s.Pause {
		r.Message = "the pause container of a pod: it is no sandbox and has no limits"
	}
	if s.Started != nil {
		r.Status, r.Message = verdict.Running, "running"
		r.Enforcement = s.Started.Enforcement
		r.Warnings = append(r.Warnings, s.Started.Warnings...)
	}
	return r
}
