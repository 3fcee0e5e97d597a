package fallback

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/procfs"
)

// freeBlocks asks ustat(2): it takes the number of a device, and no path.
func freeBlocks(dev procfs.Dev) (int64, error) {
	major, minor := dev.Major(), dev.Minor()
	number := minor&0xff | major<<8 | minor&^0xff<<12
	var answer struct {
		free  int32
		inode uint64
		name  [12]byte
	}
	if _, _, errno := unix.Syscall(unix.SYS_USTAT, uintptr(number), uintptr(unsafe.Pointer(&answer)), 0); errno != 0 {
		return 0, errno
	}
	return int64(answer.free), nil
}
