// Command bench measures what agentbox-runtime costs, as ratios within one run:
// absolute times mean little on a shared machine.
//
// Each figure is the median over interleaved pairs: the two commands take turns,
// so that a machine that slows down slows both. The cost of the wrapper alone is
// measured in front of a low-level runtime that does nothing (true), against the
// reference, an empty Go program that does nothing but exec; the cost to a user
// against bare runc.
//
// It runs as root with runc and busybox installed, and leaves nothing behind.
package main
