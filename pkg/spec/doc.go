// Package spec reads and rewrites the config.json of an OCI bundle
// (OCI runtime specification, config.md and config-linux.md).
//
// A Document keeps the file as it came: only the values that a plan sets are
// replaced, everything else (fields this package does not know, numbers of any
// size, the order of keys) stays as it was. Rewriting never loosens what the
// file asked for, and rewriting twice gives the same bytes as once.
//
// The low-level runtimes read the file with different JSON libraries: Go's
// matches keys without regard to case and lets the last duplicate win. A file in
// which a key that matters here is spelled twice or in another case would mean
// different limits to different readers, and is refused.
package spec
