package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/shim"
	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/spec"
)

// groupAnnotations name the pod of a container, the first one wins. They are
// those of containerd's own package for runc.
var groupAnnotations = []string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"}

// connectTime bounds how long the shim of a pod may take to accept a connection.
// Where there is none, that is known at once.
const connectTime = 10 * time.Second

// Start starts a shim, or names that of the pod. containerd's own package looks
// for the latter too, but gives it 100 ms; on a machine that is busier than that
// it would take the socket from a shim that lives, and start a second one.
func (m manager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	pod := podOf(".") // containerd calls this in the bundle
	if pod == "" || pod == params.GetInstanceID() {
		return m.Shim.Start(ctx, params)
	}
	dir := params.GetSocketDir()
	if dir == "" {
		dir = filepath.Join(defaults.DefaultStateDir, "s")
	}
	address, err := shim.CreateSocketAddress(ctx, dir, params.GetContainerdGrpcAddress(), pod, false)
	if err != nil || !connects(ctx, address, connectTime) {
		return m.Shim.Start(ctx, params)
	}
	return &bootapi.BootstrapResult{Version: 3, Address: address, Protocol: "ttrpc"}, nil
}

// podOf reads which pod the container of a bundle belongs to; "" when to none, or
// when that cannot be read, of which containerd's package tells.
func podOf(bundle string) string {
	file, err := spec.Open(filepath.Join(bundle, spec.ConfigName))
	if err != nil {
		return ""
	}
	defer file.Close()
	var s struct {
		Annotations map[string]string `json:"annotations"`
	}
	if json.Unmarshal(file.Data, &s) != nil {
		return ""
	}
	for _, name := range groupAnnotations {
		if pod, ok := s.Annotations[name]; ok {
			return pod
		}
	}
	return ""
}

// connects reports whether a shim accepts connections at an address. A queue of
// connections that is full (EAGAIN, unix(7)) is that of a shim that lives.
func connects(ctx context.Context, address string, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
		if err == nil {
			return conn.Close() == nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}
