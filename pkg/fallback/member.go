package fallback

// member is a process of a sandbox. It is held by the descriptor of its folder
// in /proc: what is read and what is signalled through it is this process, even
// when its pid is used again.
type member struct {
	pid   int
	start uint64 // procfs.Stat.StartTime
	dir   int    // of procfs.Reader.Open
}
