package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"

	"github.com/containerd/containerd/api/types"
	runcmanager "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	runcshim "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	containerdversion "github.com/containerd/containerd/v2/version"
	"github.com/containerd/log"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentbox/agentbox/pkg/state"
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

func newManager() manager {
	// containerd's package shows these, by -v and to whoever asks for the runtime.
	containerdversion.Version, containerdversion.Revision = version(), ""
	return manager{runcmanager.NewShimManager(runtimeType)}
}

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
	return m.Shim.Info(ctx, bytes.NewReader(data))
}

// Stop clears away after a shim that has died: the container's verdict is told,
// since nobody else does, and its socket goes, unless a shim of the pod lives.
func (m manager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	bundle, err := os.Getwd() // containerd calls this in the bundle
	if err != nil {
		return shim.StopStatus{}, fmt.Errorf("find the bundle of %s: %w", id, err)
	}
	address := addressIn(bundle)
	left := stateOf(ctx, bundle, id)
	status, err := m.Shim.Stop(ctx, id)
	if err != nil {
		return status, err
	}
	if left != nil {
		if err := tellKept(ctx, left); err != nil {
			log.G(ctx).WithError(err).WithField("id", id).Warn("publish the verdict")
		}
	}
	if address != "" && !shim.CanConnect(address) {
		_ = shim.RemoveSocket(address) // the shim may have done so
	}
	return status, nil
}

// addressIn returns the address of the shim that served a bundle: it is in a file
// of ours or, since containerd 1.7, in one of containerd. "": it is not known.
func addressIn(bundle string) string {
	if address, err := shim.ReadAddress(filepath.Join(bundle, addressFile)); err == nil {
		return address
	}
	var told struct {
		Address string `json:"address"`
	}
	data, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if err != nil || json.Unmarshal(data, &told) != nil {
		return ""
	}
	return told.Address
}

// stateOf returns the state of a container whose shim has died; nil: it has none,
// or none that can be read, which delete will say.
func stateOf(ctx context.Context, bundle, id string) *state.State {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil
	}
	options, err := runcshim.ReadOptions(bundle)
	if err != nil {
		return nil
	}
	left := sandbox{states: state.Store{Dir: state.DefaultDir()}, root: runtimeRoot(options.GetRoot(), ns), id: id}
	st, err := left.load()
	if err != nil {
		return nil
	}
	return st
}

// tellKept publishes the result that the delete of a container has kept.
func tellKept(ctx context.Context, st *state.State) error {
	kept, err := st.Results.Newest(st.ID, 1)
	if err != nil || len(kept) == 0 || kept[0].Nonce != st.Nonce {
		return err // a container that was never started has none
	}
	event, err := verdictEvent(kept[0])
	if err != nil {
		return err
	}
	q := newQueue(os.Getenv(ttrpcAddressEnv))
	return errors.Join(q.Publish(ctx, verdictTopic, event), q.Close())
}

// version is that of this build.
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
