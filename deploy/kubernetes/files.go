// Package kubernetes has the files that bring agentbox into a cluster, for the
// tests that use them. People use them from this folder: see README.md.
package kubernetes

import "embed"

// Files are the manifests and the parts of containerd's configuration.
//
//go:embed *.yaml *.toml
var Files embed.FS

// Snippet returns the name of the file that has agentbox's part of containerd's
// configuration, by the version of the configuration file (containerd,
// docs/man/containerd-config.toml.5.md); "" for a version that is not known.
func Snippet(version int) string {
	switch version {
	case 2:
		return "containerd-config-v2.toml"
	case 3, 4: // 4 moved other things only
		return "containerd-config-v3.toml"
	}
	return ""
}
