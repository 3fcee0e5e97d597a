package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"

	"github.com/containerd/containerd/api/types"
	runcmanager "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/pkg/shim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	runtimeType = "io.containerd.agentbox.v1"
	runtimeName = "agentbox-runtime"
)

// release is the version that the build sets (-ldflags "-X main.release=...").
var release string

// manager starts and stops shims as containerd's own does. A pod's containers
// share one.
type manager struct{ shim.Shim }

func newManager() manager { return manager{runcmanager.NewShimManager(runtimeType)} }

// Info describes the runtime, with the features of the low-level one. It reads
// the same options as a container's create.
func (m manager) Info(ctx context.Context, options io.Reader) (*types.RuntimeInfo, error) {
	data, err := io.ReadAll(io.LimitReader(options, maxInput))
	if err != nil {
		return nil, fmt.Errorf("read the options: %w", err)
	}
	var given anypb.Any
	if err := proto.Unmarshal(data, &given); err != nil {
		return nil, fmt.Errorf("the options are no google.protobuf.Any: %w", err)
	}
	s, err := translate(&given)
	if err != nil {
		return nil, err
	}
	if s.runc.BinaryName, err = findRuntime(s.runc.GetBinaryName()); err != nil {
		return nil, err
	}
	translated, err := anypb.New(s.runc)
	if err != nil {
		return nil, fmt.Errorf("hand on the options: %w", err)
	}
	if data, err = proto.Marshal(translated); err != nil {
		return nil, fmt.Errorf("hand on the options: %w", err)
	}
	info, err := m.Shim.Info(ctx, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	info.Version = &types.RuntimeVersion{Version: version()}
	return info, nil
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return cmp.Or(release, info.Main.Version)
}

// findRuntime returns the path of agentbox-runtime: the one given, or that beside
// this program, or the first on the PATH. Another program under that option would
// start containers without limits.
func findRuntime(given string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this shim: %w", err)
	}
	if given != "" {
		return checkGiven(given)
	}
	if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), runtimeName)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(runtimeName)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("%s was not found in %s, nor on the PATH of containerd: install it beside %s", runtimeName, filepath.Dir(self), filepath.Base(self))
	}
	return path, nil
}

func checkGiven(given string) (string, error) {
	if filepath.Base(given) != runtimeName {
		return "", fmt.Errorf("the option BinaryName %q would start containers without limits: leave it out, and name the low-level runtime as runtime in agentbox's configuration", given)
	}
	path, err := exec.LookPath(given)
	if err != nil {
		return "", fmt.Errorf("the option BinaryName %q: %w", given, errors.Unwrap(err))
	}
	return path, nil
}
