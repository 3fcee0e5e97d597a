package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/decide"
	"github.com/agentbox/agentbox/pkg/engine"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/ocicli"
	"github.com/agentbox/agentbox/pkg/procfs"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/spec"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// create handles create, run and restore: it decides the plan, remembers it,
// rewrites the specification, and becomes the low-level runtime. Nothing is left
// behind when a step before that fails.
func (inv *invocation) create() error {
	if _, err := os.Lstat(filepath.Join(inv.root, inv.cmd.ID)); err == nil {
		// Handing this on for the low-level runtime to refuse would start a
		// container without limits when the other one is deleted in between.
		return fmt.Errorf("a container with the id %s is there already, in %s: delete it first, or use another id", inv.cmd.ID, inv.root)
	}
	if d := result.Door(inv.cmd.Door); d != "" && d != result.DoorRuntime && d != result.DoorShim {
		return fmt.Errorf("--agentbox-door %q: there are %s and %s", d, result.DoorRuntime, result.DoorShim)
	}
	cfg, err := inv.loadConfig()
	if err != nil {
		return err
	}
	runtime, err := findRuntime(cfg.Runtime, inv.configPath())
	if err != nil {
		return err
	}
	inv.sweep()
	st, err := inv.prepare(cfg, runtime)
	if err != nil && cfg.Policy.Mode == limits.ModeOff {
		inv.warn(fmt.Errorf("mode off, nothing is reported about %s: %w", inv.cmd.ID, err))
		return become(runtime, inv.cmd.Args)
	}
	if err != nil {
		keepRefusal(storeOf(cfg), &result.Result{ID: inv.cmd.ID, Door: inv.door(), Mode: cfg.Policy.Mode}, err)
		return err
	}
	// From here on the state is there; whoever fails removes it.
	if inv.cmd.Verb != "create" && st.Plan.Mode == limits.ModeOff {
		// Without a start or a hook there is no moment to read anything back.
		return errors.Join(inv.states.Remove(st.Root, st.ID), become(runtime, inv.cmd.Args))
	}
	if inv.cmd.Verb == "run" && !inv.cmd.Detach {
		return inv.runForeground(st)
	}
	args := inv.cmd.Args
	if inv.cmd.PidFile == "" {
		args = inv.cmd.WithFlags("--pid-file", st.PidFile)
	}
	err = become(runtime, args)
	return errors.Join(err, inv.states.Remove(st.Root, st.ID))
}

// prepare rewrites the bundle and writes the state.
func (inv *invocation) prepare(cfg *config.File, runtime string) (*state.State, error) {
	bundle, path, err := inv.specPath()
	if err != nil {
		return nil, err
	}
	file, err := spec.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	doc, err := spec.Parse(file.Data)
	if err != nil {
		return nil, invalid(path, err)
	}
	pause := doc.Pause(inv.cmd.ID)
	supervisor, mechanism := inv.supervisor()
	plan, err := decide.Plan(cfg, doc, decide.Call{
		Bundle: bundle, Systemd: inv.cmd.SystemdCgroup, NoCgroups: inv.cmd.NoCgroups, Notes: inv.states.Dir, Pause: pause,
		Supervisor: mechanism,
	})
	if err != nil {
		return nil, invalid(path, err)
	}
	opts := spec.Options{AllowAnnotations: cfg.Policy.AllowAnnotations}
	if inv.cmd.Verb != "create" {
		if opts.Hook, err = inv.hook(); err != nil {
			return nil, err
		}
	}
	warnings, err := doc.Apply(plan, opts)
	if err != nil {
		return nil, invalid(path, err)
	}
	st := inv.newState(cfg, runtime, plan, doc)
	if plan.Supervised() {
		st.Supervisor = supervisor
	}
	st.Bundle, st.Warnings, st.Pause = filepath.Dir(path), warnings, pause == spec.KnownPause
	if st.Creator, err = procfs.FindProcess(os.Getpid()); err != nil {
		return nil, fmt.Errorf("look at this process: %w", err)
	}
	if err := inv.states.Create(st); err != nil {
		return nil, err
	}
	if plan.Mode == limits.ModeOff {
		return st, nil
	}
	if err := file.Replace(doc.Bytes()); err != nil {
		return nil, errors.Join(err, inv.states.Remove(st.Root, st.ID))
	}
	return st, nil
}

// invalid names the file in which something is wrong, unless the error is about
// this host.
func invalid(path string, err error) error {
	if errors.As(err, new(*limits.UnenforceableError)) {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// specPath returns the bundle, from which relative paths of the specification
// start, and the file that the low-level runtime will read.
func (inv *invocation) specPath() (bundle, path string, err error) {
	if bundle, err = filepath.Abs(inv.cmd.Bundle); err != nil { // "" is the current folder
		return "", "", fmt.Errorf("find the bundle: %w", err)
	}
	if name := inv.cmd.SpecFile; name != "" && name != spec.ConfigName {
		if path, err = filepath.Abs(name); err != nil {
			return "", "", fmt.Errorf("find the specification: %w", err)
		}
		return bundle, path, nil
	}
	return bundle, filepath.Join(bundle, spec.ConfigName), nil
}

func (inv *invocation) newState(cfg *config.File, runtime string, plan *limits.Plan, doc *spec.Document) *state.State {
	now := time.Now()
	st := &state.State{
		Version:   state.Version,
		ID:        inv.cmd.ID,
		Root:      inv.root,
		RealRoot:  realRoot(inv.cmd, inv.root, runtime),
		Nonce:     result.NewNonce(now),
		Runtime:   runtime,
		PidFile:   inv.states.PidFile(inv.root, inv.cmd.ID),
		Door:      inv.door(),
		CreatedAt: now,
		Results:   storeOf(cfg),
		EngineDir: engine.Dir(doc.MountSource("/etc/hostname"), inv.cmd.ID),
		Name:      engine.NameIn(doc.Annotations()),
		Plan:      *plan,

		MayProtect: doc.MayHave("CAP_SYS_RESOURCE"),
	}
	if inv.cmd.PidFile != "" {
		if abs, err := filepath.Abs(inv.cmd.PidFile); err == nil {
			st.PidFile = abs
		}
	}
	return st
}

// door is where the container came in: a shim of ours says so.
func (inv *invocation) door() result.Door {
	return cmp.Or(result.Door(inv.cmd.Door), result.DoorRuntime)
}

func storeOf(cfg *config.File) result.Store {
	return result.Store{Dir: cfg.ResultsDir, Group: cfg.Group, Max: cfg.ResultsMax, MaxAge: cfg.ResultsMaxAge}
}

// realRoot is where the low-level runtime keeps its containers: crun has a
// default of its own.
func realRoot(cmd *ocicli.Command, root, runtime string) string {
	if cmd.Root != "" || !strings.HasPrefix(filepath.Base(runtime), "crun") {
		return root
	}
	return filepath.Join(filepath.Dir(root), "crun")
}

// keepRefusal keeps a result that says why a sandbox was not started; r has its
// id, door and mode. It is a courtesy: the reason has reached the caller in any
// case.
func keepRefusal(store result.Store, r *result.Result, err error) {
	code := refusalCode(err)
	if code == "" {
		return
	}
	now := time.Now()
	r.Nonce, r.CreatedAt, r.FinishedAt = result.NewNonce(now), now, &now
	r.Status, r.ErrorCode, r.Message = verdict.Refused, code, oneLine(err.Error())
	_ = store.Put(r)
}

// refusalCode tells a refusal that is about the container from a failure of
// this host.
func refusalCode(err error) verdict.Code {
	switch {
	case errors.As(err, new(*limits.UnenforceableError)):
		return verdict.LimitUnenforceable
	case errors.As(err, new(*limits.RequestError)), errors.As(err, new(*config.AnnotationError)):
		return verdict.ConfigInvalid
	}
	return ""
}
