package harvest

import (
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/agentbox/agentbox/pkg/smallfile"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// exitName is the file that containerd's shim, since 2.4, leaves in the bundle
// when the first process ended and before it calls delete.
const exitName = "exit.json"

// exitRecord is its content: a go-runc Exit.
type exitRecord struct {
	Timestamp time.Time
	Pid       int
	Status    *int
}

// exitOf reads the exit status that containerd left. Its reaper folds a signal
// into 128+n, so the signal is not known. A record of another process is one
// that an earlier container of the same bundle left.
func exitOf(st *state.State) verdict.Exit {
	unknown := verdict.Exit{Source: verdict.ExitUnknown}
	if st.Started == nil {
		return unknown
	}
	// A bundle may have been made by anybody.
	data, err := smallfile.Read(filepath.Join(st.Bundle, exitName), maxExit, smallfile.NoFollow)
	if err != nil {
		return unknown // the usual case: no containerd, or an older one
	}
	var r exitRecord
	if json.Unmarshal(data, &r) != nil || r.Status == nil || *r.Status < 0 || *r.Status > 255 {
		return unknown
	}
	if r.Pid != st.Started.Init.Pid || r.Timestamp.Before(st.CreatedAt) {
		return unknown
	}
	return verdict.Exit{Source: verdict.ExitBundle, Code: r.Status}
}

// maxExit is more than a record ever has, in bytes.
const maxExit = 4096
