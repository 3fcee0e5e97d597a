package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/agentbox/agentbox/pkg/state"
)

// initPid returns the pid of the container's first process. The low-level
// runtime's own record of it counts: a pid file may be shared between containers,
// left from an earlier one, or written by somebody else. Only a runtime whose
// record is not known is taken at the word of its pid file.
func initPid(st *state.State) (int, error) {
	dir := filepath.Join(st.RealRoot, st.ID)
	var runc struct {
		Pid int `json:"init_process_pid"`
	}
	if readJSON(filepath.Join(dir, "state.json"), &runc) && runc.Pid > 0 {
		return runc.Pid, nil
	}
	var crun struct {
		Pid int `json:"pid"`
	}
	if readJSON(filepath.Join(dir, "status"), &crun) && crun.Pid > 0 {
		return crun.Pid, nil
	}
	return state.ReadPid(st.PidFile)
}

func readJSON(name string, to any) bool {
	data, err := os.ReadFile(name)
	return err == nil && json.Unmarshal(data, to) == nil
}
