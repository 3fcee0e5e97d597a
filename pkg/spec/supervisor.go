package spec

import (
	"fmt"
	"slices"

	"github.com/agentbox/agentbox/pkg/limits"
)

// What the supervisor enforces is taken out of the specification: where the kernel
// has no mechanism for it, the low-level runtime would fail to set it.

// removable are the keys whose values stand in fields of the specification.
var removable = []limits.Key{limits.KeyMemory, limits.KeySwap, limits.KeyPids, limits.KeyCPUs}

// readRemoved takes what an earlier rewrite took out of the fields and put into
// the record: without it, rewriting again would plan the default. A forged record
// asks for what an annotation could ask for.
func (d *Document) readRemoved(req *limits.Request) error {
	for _, key := range removable {
		p, ok := req.Prior[key]
		if _, given := req.Spec[key]; given || !ok || !p.Removed || p.Value.None || p.Value.N < 0 {
			continue
		}
		req.Spec[key] = limits.Limit(p.Value.N)
	}
	return nil
}

// dropFields removes fields of a section of linux.resources, or with "" of that
// itself.
func (d *Document) dropFields(section string, names ...string) error {
	path := []string{"linux", "resources"}
	if section != "" {
		path = append(path, section)
	}
	o, err := d.section(path...)
	if err != nil || o == nil {
		return err
	}
	o.remove(func(name string) bool { return slices.Contains(names, name) })
	return nil
}

// dropPids removes the limit, and with it the section, in which the limit is not
// optional (config-linux.md, PIDs).
func (d *Document) dropPids() error {
	if err := d.dropFields("pids", "limit"); err != nil {
		return err
	}
	pids, err := d.section("linux", "resources", "pids")
	if err != nil || pids == nil || len(pids.fields) > 0 {
		return err
	}
	return d.dropFields("", "pids")
}

// readNamespaces looks whether the container gets a pid namespace of its own: one
// that has no path, and is listed once, so that no low-level runtime can take
// another one.
func (d *Document) readNamespaces(req *limits.Request) error {
	linux, err := d.section("linux")
	if err != nil || linux == nil {
		return err
	}
	raw, err := linux.get("namespaces")
	if err != nil {
		return err
	}
	list, err := elements("linux.namespaces", raw)
	if err != nil {
		return err
	}
	found := 0
	for i, element := range list {
		o, err := split(fmt.Sprintf("linux.namespaces[%d]", i), element)
		if err != nil {
			return err
		}
		kind, err := o.text("type")
		if err != nil {
			return err
		}
		path, err := o.text("path")
		if err != nil {
			return err
		}
		if kind == "pid" {
			found++
			req.OwnPIDNamespace = found == 1 && path == ""
		}
	}
	return nil
}
