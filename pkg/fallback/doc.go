// Package fallback holds sandboxes to limits that the kernel of this host does
// not enforce: it measures what all processes of a sandbox use together, and
// stops or ends the sandbox.
package fallback
