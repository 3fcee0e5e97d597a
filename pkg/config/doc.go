// Package config reads what people write: the administrator's configuration
// file and the agentbox.dev/* annotations of a container. It turns them into
// the limits.Policy and the limits.Request that limits.Resolve takes.
//
// Values have one syntax everywhere. ParseKey reads the value of one setting,
// whether it stands in the file, in an annotation or on a command line.
//
// Every start of a container pays for this package. It does nothing when the
// program starts, and the TOML parser runs only if there is a file.
//
// Errors are one sentence for a person, on one line, with everything that came
// from outside quoted and cut to a bounded length. Behind them are *Error for
// the file, *AnnotationError for an annotation and *ValueError for a value.
package config
