package spec

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/blockdev"
	"github.com/agentbox/agentbox/pkg/limits"
)

// places returns where the container's files come from: its root, its bind
// mounts, and mounts of a file system that names a source. Relative sources are
// below the bundle, as the low-level runtimes read them (config.md, Root and
// Mounts).
func (d *Document) places(bundle string) ([]limits.Place, error) {
	var places []limits.Place
	root, ok, err := d.readRoot()
	if err != nil {
		return nil, err
	}
	if ok {
		root.Source = below(bundle, root.Source)
		places = append(places, root)
	}
	raw, err := d.root.get("mounts")
	if err != nil {
		return nil, err
	}
	mounts, err := elements("mounts", raw)
	if err != nil {
		return nil, err
	}
	for i, mount := range mounts {
		m, err := readMount(fmt.Sprintf("mounts[%d]", i), mount)
		if err != nil {
			return nil, err
		}
		for _, p := range m.places() {
			p.Source = below(bundle, p.Source)
			places = append(places, p)
		}
	}
	return places, nil
}

// readRoot reads root; ok is false where there is none.
func (d *Document) readRoot() (p limits.Place, ok bool, err error) {
	raw, err := d.root.get("root")
	if err != nil || raw == nil {
		return limits.Place{}, false, err
	}
	o, err := split("root", raw) // not a section, which would be written anew
	if err != nil {
		return limits.Place{}, false, err
	}
	source, err := o.text("path") // empty: the bundle's own folder
	if err != nil {
		return limits.Place{}, false, err
	}
	readonly, err := o.get("readonly")
	if err != nil {
		return limits.Place{}, false, err
	}
	return limits.Place{Path: "/", Source: source, Writable: string(readonly) != "true", Recursive: true}, true, nil
}

func below(bundle, source string) string {
	if filepath.IsAbs(source) {
		return source
	}
	return filepath.Join(bundle, source)
}

// mount is an element of mounts.
type mount struct {
	destination, kind, source string
	options                   []string
}

func readMount(at string, data []byte) (m mount, err error) {
	o, err := split(at, data)
	if err != nil {
		return mount{}, err
	}
	for name, to := range map[string]*string{"destination": &m.destination, "type": &m.kind, "source": &m.source} {
		if *to, err = o.text(name); err != nil {
			return mount{}, err
		}
	}
	raw, err := o.get("options")
	if err != nil {
		return mount{}, err
	}
	if raw != nil && json.Unmarshal(raw, &m.options) != nil {
		return mount{}, fmt.Errorf("%s is %.40s where a list of strings is expected", o.at("options"), raw)
	}
	return m, nil
}

// places returns where the files of a mount come from. An option that a low-level
// runtime does not know by itself is for the file system, as those of an overlay
// are, and may hold several with commas between.
func (m mount) places() []limits.Place {
	p := limits.Place{Path: m.destination, Source: m.source, Writable: true}
	for _, option := range m.options {
		switch option {
		case "ro":
			p.Writable = false
		case "rw":
			p.Writable = true
		case "rro":
			p.Writable, p.RecursiveReadOnly = false, true
		case "rrw":
			p.Writable, p.RecursiveReadOnly = true, false
		}
	}
	p.Recursive = slices.Contains(m.options, "rbind")
	switch {
	case p.Recursive || m.kind == "bind" || m.kind == "" || slices.Contains(m.options, "bind"):
		if m.source == "" {
			return nil
		}
		return []limits.Place{p}
	case m.kind == "overlay":
		return m.layers(p)
	}
	p.Type = m.kind
	return []limits.Place{p}
}

// layers returns a place for each layer of an overlay.
func (m mount) layers(p limits.Place) (places []limits.Place) {
	upper, lower := blockdev.Layers(strings.Join(m.options, ","))
	if upper != "" {
		p.Source = upper
		places = append(places, p)
	}
	for _, layer := range lower {
		places = append(places, limits.Place{Path: p.Path, Source: layer})
	}
	return places
}

// text reads a string field; "" when it is missing or null.
func (o *object) text(name string) (string, error) {
	raw, err := o.get(name)
	if err != nil || raw == nil {
		return "", err
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return "", fmt.Errorf("%s is %s where a string is expected", o.at(name), kindOf(raw))
	}
	return s, nil
}

// rawDisks returns the block devices of linux.devices.
func (d *Document) rawDisks() ([]limits.RawDisk, error) {
	linux, err := d.section("linux")
	if err != nil || linux == nil {
		return nil, err
	}
	raw, err := linux.get("devices")
	if err != nil {
		return nil, err
	}
	list, err := elements("linux.devices", raw)
	if err != nil {
		return nil, err
	}
	var disks []limits.RawDisk
	for i, element := range list {
		o, err := split(fmt.Sprintf("linux.devices[%d]", i), element)
		if err != nil {
			return nil, err
		}
		kind, err := o.text("type")
		if err != nil {
			return nil, err
		}
		if kind != "b" {
			continue
		}
		disk := limits.RawDisk{}
		if disk.Path, err = o.text("path"); err != nil {
			return nil, err
		}
		if disk.Device, err = o.device(); err != nil {
			return nil, err
		}
		disks = append(disks, disk)
	}
	return disks, nil
}

// deviceRules returns what linux.resources.devices says about reading and writing
// block devices (config-linux.md, Allowed Device list). A rule that denies only
// one of the two leaves the other, and takes nothing away.
func (d *Document) deviceRules() ([]limits.DeviceRule, error) {
	resources, err := d.section("linux", "resources")
	if err != nil || resources == nil {
		return nil, err
	}
	raw, err := resources.get("devices")
	if err != nil {
		return nil, err
	}
	list, err := elements("linux.resources.devices", raw)
	if err != nil {
		return nil, err
	}
	var rules []limits.DeviceRule
	for i, element := range list {
		rule, ok, err := readDeviceRule(fmt.Sprintf("linux.resources.devices[%d]", i), element)
		if err != nil {
			return nil, err
		}
		if ok {
			rules = append(rules, rule)
		}
	}
	return rules, nil
}

// readDeviceRule reads an element of linux.resources.devices; ok is false where it
// makes no difference to block devices.
func readDeviceRule(at string, data []byte) (rule limits.DeviceRule, ok bool, err error) {
	o, err := split(at, data)
	if err != nil {
		return limits.DeviceRule{}, false, err
	}
	allow, err := o.get("allow")
	if err != nil {
		return limits.DeviceRule{}, false, err
	}
	rule.Allow = string(allow) == "true"
	var kind, access string
	for name, to := range map[string]*string{"type": &kind, "access": &access} {
		if *to, err = o.text(name); err != nil {
			return limits.DeviceRule{}, false, err
		}
	}
	for name, to := range map[string]*int64{"major": &rule.Device.Major, "minor": &rule.Device.Minor} {
		n, given, err := o.integer(name)
		if err != nil {
			return limits.DeviceRule{}, false, err
		}
		if !given {
			n = limits.AnyNumber
		}
		*to = n
	}
	all := kind == "" || kind == "a"
	if all && rule.Allow { // the kernel and runc do not look at its numbers
		rule.Device = limits.Device{Major: limits.AnyNumber, Minor: limits.AnyNumber}
	}
	reads, writes := strings.Contains(access, "r"), strings.Contains(access, "w")
	return rule, (all || kind == "b") && (reads && writes || rule.Allow && (reads || writes)), nil
}
