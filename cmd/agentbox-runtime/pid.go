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
	if pid, ok := recordedPid(st); ok {
		return pid, nil
	}
	return state.ReadPid(st.PidFile)
}

// recordedPid returns the pid in the low-level runtime's own record. Its folder
// is there before the record is: crun writes it after the program has begun.
func recordedPid(st *state.State) (pid int, ok bool) {
	dir := filepath.Join(st.RealRoot, st.ID)
	var runc struct {
		Pid int `json:"init_process_pid"`
	}
	if readJSON(filepath.Join(dir, "state.json"), &runc) && runc.Pid > 0 {
		return runc.Pid, true
	}
	var crun struct {
		Pid int `json:"pid"`
	}
	if readJSON(filepath.Join(dir, "status"), &crun) && crun.Pid > 0 {
		return crun.Pid, true
	}
	return 0, false
}

func readJSON(name string, to any) bool {
	data, err := os.ReadFile(name)
	return err == nil && json.Unmarshal(data, to) == nil
}
