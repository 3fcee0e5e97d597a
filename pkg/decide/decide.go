// Package decide makes the plan for one container: it brings together what the
// administrator's configuration allows, what the container's specification asks
// for, and what this machine can enforce.
package decide

import (
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
	}
	return limits.Resolve(cfg.Policy, req, call.probe(in))
}

func (c Call) probe(in host.Input) limits.Host {
	if c.Probe != nil {
		return c.Probe(in)
	}
	return host.Probe(cgroup.Host, in)
}
