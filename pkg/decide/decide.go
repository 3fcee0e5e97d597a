// Package decide makes the plan for one container: it brings together what the
// administrator's configuration allows, what the container's specification asks
// for, and what this machine can enforce.
package decide

import (
	"maps"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/host"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

// Call is what the command line says about the container.
type Call struct {
	Bundle    string // absolute; relative paths of the specification start from it
	Systemd   bool   // the low-level runtime uses its systemd driver
	NoCgroups bool   // the low-level runtime is told to use no cgroup
	Notes     string // host.Input.Notes

	// Pause says whether it is the pause container of a pod. One that is known
	// for it gets no limits, one that only claims it no defaults.
	Pause spec.Pause

	// Supervisor says whether there is a supervisor for the container; the zero
	// value: nobody has looked.
	Supervisor limits.Mechanism

	// NoBundle says that there is no container yet, only what it would ask for:
	// no disk is looked for behind its files.
	NoBundle bool
	// Probe finds out what the host can enforce; nil: host.Probe, of this one.
	Probe func(host.Input) limits.Host
}

// Plan returns the plan. Nothing of the container or of the specification is
// changed. The errors are those of spec.Document.Request, config.ApplyAnnotations
// and limits.Resolve; with a *limits.UnenforceableError comes the plan that is
// refused.
func Plan(cfg *config.File, doc *spec.Document, call Call) (*limits.Plan, error) {
	req, err := doc.Request(call.Bundle)
	if err != nil {
		return nil, err
	}
	if err := config.ApplyAnnotations(doc.Annotations(), &req); err != nil {
		return nil, err
	}
	policy := cfg.Policy
	switch call.Pause {
	case spec.KnownPause:
		policy.Mode = limits.ModeOff
	case spec.ClaimedPause:
		askForNone(&req)
	}
	cgroupsPath, err := doc.CgroupsPath()
	if err != nil {
		return nil, err
	}
	in := host.Input{
		CgroupsPath: cgroupsPath,
		Systemd:     call.Systemd,
		NoCgroups:   call.NoCgroups,
		Runtime:     cfg.Runtime,
		Request:     &req,
		IODevices:   cfg.Policy.IODevices,
		Notes:       call.Notes,
	}
	if call.NoBundle {
		in.Request = nil
		req.OwnPIDNamespace = true // as every engine gives one that nobody asks not to
	}
	machine := call.probe(in)
	if call.Supervisor.Enforcer != limits.EnforcerSupervisor || machine.Supervisor.Enforcer != limits.EnforcerNone {
		machine.Supervisor = call.Supervisor // else the kernel has nothing for one
	}
	return limits.Resolve(policy, req, machine)
}

// askForNone takes the defaults from a request, up to the ceilings: what any
// container can do by its annotations.
func askForNone(req *limits.Request) {
	all := maps.Clone(req.Annotations)
	if all == nil {
		all = limits.Set{}
	}
	for _, info := range limits.Keys {
		if _, asked := all[info.Key]; !asked {
			all[info.Key] = limits.NoLimit()
		}
	}
	req.Annotations = all
}

func (c Call) probe(in host.Input) limits.Host {
	if c.Probe != nil {
		return c.Probe(in)
	}
	return host.Probe(cgroup.Host, in)
}
