package supervise

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxLog bounds the file that a supervisor without a journal writes to, in bytes.
const maxLog = 256 << 10

var reporting sync.Mutex

// report says what goes wrong, a line for each, on standard error: the journal's,
// or a file that is begun anew when it has grown too much.
func report(err error) {
	if err == nil {
		return
	}
	reporting.Lock()
	defer reporting.Unlock()
	var st unix.Stat_t
	if unix.Fstat(2, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > maxLog {
		_ = unix.Ftruncate(2, 0)
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(os.Stderr, "%s agentbox supervise[%d]: %s\n", time.Now().UTC().Format(time.RFC3339), os.Getpid(), strings.TrimSpace(line))
	}
}
