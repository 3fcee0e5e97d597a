package main

// order is what has been published about one container. It decides what goes out
// next and is pure.
//
// TaskOOM comes from a watcher of the cgroup, and TaskExit from the reaping of a
// process: nothing keeps the two in order. So whoever publishes an exit compares
// what the cgroup has counted with what was told, and says the missing first.
type order struct {
	told int64 // kills for want of memory, up to which TaskOOM was published
	over bool  // the TaskExit of the first process is out
}

// oom reports whether a TaskOOM of the watcher is published, when the cgroup has
// counted so many kills. The count may lag: on cgroup v1 the watcher is told
// before the kill. After the end a TaskOOM would be out of order, and the exit has
// taken care of it.
func (o *order) oom(kills int64) (publish bool) {
	if o.over {
		return false
	}
	o.told = max(o.told, kills)
	return true
}

// exit reports whether a TaskOOM has to go out before a TaskExit; first says that
// it is that of the container's first process.
func (o *order) exit(first bool, kills int64) (oomFirst bool) {
	oomFirst = !o.over && kills > o.told
	o.told = max(o.told, kills)
	o.over = o.over || first
	return oomFirst
}
