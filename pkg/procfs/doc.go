// Package procfs reads what the kernel says of single processes (proc(5)), and
// holds processes by pidfds. It decides nothing.
package procfs
