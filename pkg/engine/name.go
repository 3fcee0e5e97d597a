// Package engine finds what the container engine above the runtime calls a
// container. The runtime itself is only told an id.
package engine

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/smallfile"
)

// nameAnnotations hold the name where an engine passes it on: containerd's CRI,
// CRI-O and nerdctl.
var nameAnnotations = []string{
	"io.kubernetes.cri.container-name",
	"io.kubernetes.container.name",
	"nerdctl/name",
}

// NameIn returns the name that annotations give, or "".
func NameIn(annotations map[string]string) string {
	for _, key := range nameAnnotations {
		if name := annotations[key]; name != "" {
			return limits.Shorten(name, limits.MaxText)
		}
	}
	return ""
}

// dockerConfig is Docker's own file about a container, beside the files that it
// mounts into it.
const dockerConfig = "config.v2.json"

// maxConfig is more than that file ever has, in bytes.
const maxConfig = 4 << 20

// Dir returns the engine's folder of a container, given where a file such as
// /etc/hostname is mounted from; "" when the folder's name is not the id.
func Dir(mountSource, id string) string {
	dir := filepath.Dir(mountSource)
	if filepath.Base(dir) != id || !filepath.IsAbs(dir) {
		return ""
	}
	return dir
}

// DockerName reads the name from Docker's folder of a container; "" when there
// is none to read. Docker may rename a container at any time, so the name is
// looked up when it is needed.
func DockerName(dir string) string {
	if dir == "" {
		return ""
	}
	// The folder comes from the specification: anything may be there.
	data, err := smallfile.Read(filepath.Join(dir, dockerConfig), maxConfig, smallfile.NoFollow)
	if err != nil {
		return ""
	}
	var c struct{ Name string }
	if json.Unmarshal(data, &c) != nil {
		return ""
	}
	return limits.Shorten(strings.TrimPrefix(c.Name, "/"), limits.MaxText)
}
