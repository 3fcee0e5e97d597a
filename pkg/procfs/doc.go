// Package procfs reads what the kernel says of processes (proc(5)), and holds
// processes. It decides nothing.
//
// A process is held by a descriptor of its folder in /proc. What is read through
// it is of that very process, whoever has its pid by now, and a signal sent
// through it (pidfd_send_signal(2)) reaches that process or nobody.
//
// Reader and List belong to one goroutine. Neither allocates, so that many
// processes can be looked at many times a second.
package procfs
