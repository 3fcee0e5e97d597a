package spec

import (
	"encoding/json"
	"slices"
)

// MayHave reports whether the container's processes may ever have a capability:
// it is in the bounding set (config.md, process.capabilities), or nothing says
// that it is not.
func (d *Document) MayHave(capability string) bool {
	process, err := d.section("process")
	if err != nil || process == nil {
		return true
	}
	capabilities, err := process.object("capabilities")
	if err != nil || capabilities == nil {
		return true
	}
	raw, err := capabilities.get("bounding")
	if err != nil {
		return true
	}
	var bounding []string
	if raw != nil && json.Unmarshal(raw, &bounding) != nil {
		return true
	}
	return slices.Contains(bounding, capability)
}
