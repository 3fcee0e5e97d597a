package host

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
)

// TestWhatTheKernelHasForASupervisor: this one gives pidfds, or says that it does
// not have the call; what a process reads and writes is in a file.
func TestWhatTheKernelHasForASupervisor(t *testing.T) {
	root := t.TempDir()
	probe := func() limits.Host { return Probe(cgroup.FS(root), Input{}) }
	h := probe()
	if h.SupervisorNoIO == "" {
		t.Error("a host without /proc/self/io tells what processes read")
	}
	if m := h.Supervisor; m != (limits.Mechanism{}) && (m.Enforcer != limits.EnforcerNone || m.Reason == "") {
		t.Errorf("supervisor %+v, want nothing but what the kernel lacks", m)
	}
	if err := os.MkdirAll(filepath.Join(root, "proc/self"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/self/io"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if h := probe(); h.SupervisorNoIO != "" {
		t.Errorf("with the file: %q", h.SupervisorNoIO)
	}
}
