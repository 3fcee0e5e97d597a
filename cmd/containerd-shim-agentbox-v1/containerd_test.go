package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/core/events/exchange"
	"github.com/containerd/containerd/v2/core/runtime"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
)

// build builds the shim alone in a folder: no runtime is beside it.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "containerd-shim-agentbox-v1")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// TestNewestContainerd starts the shim with containerd 2.4's own code: the
// handshake by BootstrapParams, the task API, an error that reaches the caller,
// and an end that leaves nothing.
func TestNewestContainerd(t *testing.T) {
	program := build(t)
	t.Setenv("PATH", t.TempDir())                // no runtime there either
	sockets, err := os.MkdirTemp("", "agentbox") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	m, err := runtimev2.NewShimManager(&runtimev2.ManagerConfig{
		Address: filepath.Join(sockets, "grpc"), TTRPCAddress: filepath.Join(sockets, "ttrpc"), SocketDir: sockets,
		Events: exchange.NewExchange(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(t.Context(), "agentbox-test"), time.Minute)
	defer cancel()
	bundle, err := runtimev2.NewBundle(ctx, t.TempDir(), t.TempDir(), "c1", &anypb.Any{Value: []byte(`{"ociVersion":"1.0.2"}`)})
	if err != nil {
		t.Fatal(err)
	}
	options := pack(t, &runtimeoptions.Options{ConfigPath: "/nowhere.toml"})
	instance, err := m.Start(ctx, "c1", bundle, runtime.CreateOpts{Runtime: program, RuntimeOptions: options})
	if err != nil {
		t.Fatal(err)
	}
	address, version := instance.Endpoint()
	if version != 3 || !strings.HasPrefix(address, "ttrpc+unix://"+sockets) {
		t.Errorf("serves version %d at %s", version, address)
	}
	client, err := runtimev2.NewTaskClient(instance.Client(), version)
	if err != nil {
		t.Fatal(err)
	}
	connected, err := client.Connect(ctx, &taskapi.ConnectRequest{ID: "c1"})
	if err != nil || connected.GetShimPid() == 0 {
		t.Fatalf("connected to %v, %v", connected, err)
	}
	pid := int(connected.GetShimPid())
	t.Cleanup(func() {
		if !ended(pid) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	_, err = client.Create(ctx, &taskapi.CreateTaskRequest{ID: "c1", Bundle: bundle.Path, Options: options})
	if err == nil || !strings.Contains(err.Error(), "agentbox-runtime was not found in "+filepath.Dir(program)) {
		t.Errorf("create without a runtime: %v", err)
	}
	// It may be gone before it has answered.
	if _, err := client.Shutdown(ctx, &taskapi.ShutdownRequest{ID: "c1"}); err != nil && !errors.Is(err, ttrpc.ErrClosed) {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !ended(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the shim, %d, goes on", pid)
		}
	}
	if names, err := filepath.Glob(filepath.Join(sockets, "*")); err != nil || len(names) > 0 {
		t.Errorf("sockets are left: %q, %v", names, err)
	}
}

// ended reports whether a process is gone, or waits for whoever reaps it.
func ended(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(data), ") Z ")
}

// A shim that cannot start says why, whichever containerd asks, and leaves
// nothing: here there is no specification in the bundle.
func TestFailedStartLeavesNothing(t *testing.T) {
	program := build(t)
	for name, input := range map[string]string{"old": "", "new": string(bootstrapBytes(t, "c1", "n"))} {
		t.Run(name, func(t *testing.T) {
			bundle := t.TempDir()
			cmd := exec.Command(program, "-namespace", "n", "-address", "/nowhere", "-id", "c1", "start")
			cmd.Dir, cmd.Stdin = bundle, strings.NewReader(input)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "config.json") {
				t.Errorf("%v: %s", err, out)
			}
			if entries, err := os.ReadDir(bundle); err != nil || len(entries) > 0 {
				t.Errorf("left in the bundle: %v, %v", entries, err)
			}
			if _, err := os.Stat("/nowhere"); !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		})
	}
}
