package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"golang.org/x/sys/unix"
)

func TestPodOf(t *testing.T) {
	tests := []struct{ name, spec, want string }{
		{"no pod", `{"annotations": {"a": "b"}}`, ""},
		{"Kubernetes", `{"annotations": {"io.kubernetes.cri.sandbox-id": "p1"}}`, "p1"},
		{"a group of runc's", `{"annotations": {"io.kubernetes.cri.sandbox-id": "p1", "io.containerd.runc.v2.group": "g1"}}`, "g1"},
		{"not JSON", `{"annotations": `, ""},
		{"no annotations", `{}`, ""},
		{"annotations of another type", `{"annotations": {"io.kubernetes.cri.sandbox-id": 1}}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bundle := t.TempDir()
			if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(tt.spec), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := podOf(bundle); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	if got := podOf(t.TempDir()); got != "" {
		t.Errorf("without a specification: %q", got)
	}
}

// fullListener listens at an address and accepts nothing; its queue is full.
func fullListener(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return f
}

func TestConnects(t *testing.T) {
	dir := t.TempDir()
	t.Run("nothing there", func(t *testing.T) {
		if connects(t.Context(), "unix://"+filepath.Join(dir, "none"), time.Minute) {
			t.Error("yes")
		}
	})
	t.Run("a socket that nobody listens at", func(t *testing.T) {
		path := filepath.Join(dir, "dead")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		_ = l.Close()
		if connects(t.Context(), "unix://"+path, time.Minute) {
			t.Error("yes")
		}
	})
	t.Run("busy for a while", func(t *testing.T) {
		path := filepath.Join(dir, "busy")
		l := fullListener(t, path)
		if shim.CanConnect("unix://" + path) {
			t.Fatal("the queue is not full")
		}
		time.AfterFunc(300*time.Millisecond, func() {
			if fd, _, err := unix.Accept(int(l.Fd())); err == nil {
				_ = unix.Close(fd)
			}
		})
		if !connects(t.Context(), "unix://"+path, time.Minute) {
			t.Error("no")
		}
	})
	t.Run("busy for too long", func(t *testing.T) {
		path := filepath.Join(dir, "stuck")
		fullListener(t, path)
		if connects(t.Context(), "unix://"+path, 100*time.Millisecond) {
			t.Error("yes")
		}
	})
}

// A container of a pod that has a shim gets no other one.
func TestStartInAPod(t *testing.T) {
	const containerd = "/run/containerd/containerd.sock"
	tests := []struct {
		name, pod, id string
		there         bool // the pod's shim
		started       bool // a new one
	}{
		{name: "no pod", id: "c1", there: true, started: true},
		{name: "the first of a pod", pod: "p1", id: "p1", there: true, started: true},
		{name: "one more", pod: "p1", id: "c1", there: true},
		{name: "one more, and the shim has died", pod: "p1", id: "c1", started: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sockets, err := os.MkdirTemp("", "") // a name that is short enough for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(sockets) })
			t.Chdir(t.TempDir())
			text := `{"annotations": {}}`
			if tt.pod != "" {
				text = `{"annotations": {"io.kubernetes.cri.sandbox-id": "` + tt.pod + `"}}`
			}
			if err := os.WriteFile("config.json", []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx := namespaces.WithNamespace(context.Background(), "k8s.io")
			address, err := shim.CreateSocketAddress(ctx, sockets, containerd, "p1", false)
			if err != nil {
				t.Fatal(err)
			}
			if tt.there {
				l, err := net.Listen("unix", strings.TrimPrefix(address, "unix://"))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			inner := &starter{address: "unix:///new"}
			params := &bootapi.BootstrapParams{InstanceID: tt.id, Namespace: "k8s.io", ContainerdGrpcAddress: containerd, SocketDir: &sockets}
			result, err := manager{inner}.Start(ctx, params)
			if err != nil {
				t.Fatal(err)
			}
			want := address
			if tt.started {
				want = "unix:///new"
			}
			if (inner.params != nil) != tt.started || result.GetAddress() != want || result.GetVersion() != 3 || result.GetProtocol() != "ttrpc" {
				t.Errorf("started %v, answered %v", inner.params != nil, result)
			}
		})
	}
}
