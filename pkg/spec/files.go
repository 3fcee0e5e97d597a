package spec

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

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
		p, ok, err := readMount(fmt.Sprintf("mounts[%d]", i), mount)
		if err != nil {
			return nil, err
		}
		if ok {
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
	source, err := o.text("path")
	if err != nil || source == "" {
		return limits.Place{}, false, err
	}
	readonly, err := o.get("readonly")
	if err != nil {
		return limits.Place{}, false, err
	}
	return limits.Place{Path: "/", Source: source, Writable: string(readonly) != "true"}, true, nil
}

func below(bundle, source string) string {
	if filepath.IsAbs(source) {
		return source
	}
	return filepath.Join(bundle, source)
}

// readMount reads an element of mounts; ok is false for one that brings no files
// of the host.
func readMount(at string, data []byte) (p limits.Place, ok bool, err error) {
	o, err := split(at, data)
	if err != nil {
		return limits.Place{}, false, err
	}
	var kind string
	for name, to := range map[string]*string{"destination": &p.Path, "type": &kind, "source": &p.Source} {
		if *to, err = o.text(name); err != nil {
			return limits.Place{}, false, err
		}
	}
	raw, err := o.get("options")
	if err != nil {
		return limits.Place{}, false, err
	}
	var options []string
	if raw != nil && json.Unmarshal(raw, &options) != nil {
		return limits.Place{}, false, fmt.Errorf("%s is %.40s where a list of strings is expected", o.at("options"), raw)
	}
	p.Writable = true
	for _, option := range options {
		switch option {
		case "ro":
			p.Writable = false
		case "rw":
			p.Writable = true
		}
	}
	switch {
	case kind == "bind" || slices.Contains(options, "bind") || slices.Contains(options, "rbind"):
		return p, p.Source != "", nil
	case kind == "overlay":
		for _, option := range options {
			if upper, ok := strings.CutPrefix(option, "upperdir="); ok {
				p.Source = upper
				return p, true, nil
			}
		}
		return limits.Place{}, false, nil
	}
	return p, strings.HasPrefix(p.Source, "/dev/"), nil
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
