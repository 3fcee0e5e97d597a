// Package limits decides what a sandbox may use.
//
// Resolve turns three inputs into one Plan: the Policy of the administrator,
// the Request of the container, and the Host's facts. It is pure: no file is
// read, nothing is written, and the same inputs give the same plan. Everything
// that depends on the machine ends here; rewriting a spec, reading a limit back
// and reporting it work on the Plan alone.
//
// The package uses the standard library only and sits below every other one.
package limits
