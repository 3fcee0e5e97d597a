package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// starter is a shim.Shim that only remembers how it was started.
type starter struct {
	shim.Shim
	namespace string
	params    *bootapi.BootstrapParams
	address   string
	err       error
}

func (s *starter) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	s.namespace, _ = namespaces.Namespace(ctx)
	s.params = params
	if s.err != nil {
		return nil, s.err
	}
	return &bootapi.BootstrapResult{Version: 3, Address: s.address, Protocol: "ttrpc"}, nil
}

const (
	// What containerd 1.6.20 sends for ctr run --runtime-config-path.
	sentConfigPath = "\n\x19runtimeoptions.v1.Options\x12\x1a\x12\x18/etc/agentbox/other.toml"
	// And for ctr run --runc-systemd-cgroup.
	sentRunc = "\n\x1acontainerd.runc.v1.Options\x12\x02\x48\x01"
)

// The command line is that of containerd 1.6.20 and 2.1.9, with their environment.
var (
	calledBy16 = "-namespace k8s.io -address /run/containerd/containerd.sock -publish-binary /usr/bin/containerd -id c1 start"
	env16      = map[string]string{"TTRPC_ADDRESS": "/run/containerd/containerd.sock.ttrpc"}
	env17      = map[string]string{"TTRPC_ADDRESS": "/run/containerd/containerd.sock.ttrpc", "MAX_SHIM_VERSION": "2"}
)

func TestHandshakeOfOlderContainerd(t *testing.T) {
	const address = "unix:///run/containerd/s/0123"
	tests := []struct {
		name, line string
		env        map[string]string
		input      string
		want       string
		options    proto.Message
		level      bootapi.LogLevel
	}{
		{"1.6", calledBy16, env16, "", address, nil, bootapi.LogLevel_LOG_LEVEL_INFO},
		{"1.6 with a configuration", calledBy16, env16, sentConfigPath, address, &runtimeoptions.Options{ConfigPath: "/etc/agentbox/other.toml"}, bootapi.LogLevel_LOG_LEVEL_INFO},
		{"1.6 with options of runc", calledBy16, env16, sentRunc, address, &runcoptions.Options{SystemdCgroup: true}, bootapi.LogLevel_LOG_LEVEL_INFO},
		{"1.6 debugging", strings.Replace(calledBy16, "start", "-debug start", 1), env16, "", address, nil, bootapi.LogLevel_LOG_LEVEL_DEBUG},
		{"1.7 to 2.2", calledBy16, env17, "", `{"version":2,"address":"` + address + `","protocol":"ttrpc"}`, nil, bootapi.LogLevel_LOG_LEVEL_INFO},
		{"1.7 to 2.2 with a configuration", calledBy16, env17, sentConfigPath, `{"version":2,"address":"` + address + `","protocol":"ttrpc"}`, &runtimeoptions.Options{ConfigPath: "/etc/agentbox/other.toml"}, bootapi.LogLevel_LOG_LEVEL_INFO},
		{"one that knows version 3", calledBy16, map[string]string{"MAX_SHIM_VERSION": "3"}, "", `{"version":3,"address":"` + address + `","protocol":"ttrpc"}`, nil, bootapi.LogLevel_LOG_LEVEL_INFO},
		{"one that knows more than we do", calledBy16, map[string]string{"MAX_SHIM_VERSION": "9"}, "", `{"version":3,"address":"` + address + `","protocol":"ttrpc"}`, nil, bootapi.LogLevel_LOG_LEVEL_INFO},
		{"nonsense for a version", calledBy16, map[string]string{"MAX_SHIM_VERSION": "two"}, "", address, nil, bootapi.LogLevel_LOG_LEVEL_INFO},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			c, ok := parseCall(strings.Fields(tt.line))
			if !ok || bootstrapParams([]byte(tt.input), c) != nil {
				t.Fatalf("taken for a call of a newer containerd: %+v", c)
			}
			s := &starter{address: address}
			var out strings.Builder
			err := start(t.Context(), s, c, func(name string) string { return tt.env[name] }, []byte(tt.input), &out)
			if err != nil || out.String() != tt.want {
				t.Errorf("answered %q, %v, want %q", out.String(), err, tt.want)
			}
			want := &bootapi.BootstrapParams{
				InstanceID: "c1", Namespace: "k8s.io", LogLevel: tt.level, ContainerdBinary: "/usr/bin/containerd",
				ContainerdGrpcAddress: "/run/containerd/containerd.sock", ContainerdTtrpcAddress: tt.env["TTRPC_ADDRESS"],
			}
			if tt.options != nil {
				if err := want.AddExtension(tt.options); err != nil {
					t.Fatal(err)
				}
				want.Extensions[0].Value.TypeUrl = typeName(want.Extensions[0].Value.TypeUrl)
			}
			if !proto.Equal(s.params, want) || s.namespace != "k8s.io" {
				t.Errorf("started with %v in %q, want %v", s.params, s.namespace, want)
			}
			// containerd 1.6 finds the shim by it after a restart.
			if data, err := os.ReadFile("address"); err != nil || string(data) != address {
				t.Errorf("the file has %q, %v", data, err)
			}
		})
	}
}

func TestHandshakeFailures(t *testing.T) {
	t.Run("the shim does not start", func(t *testing.T) {
		t.Chdir(t.TempDir())
		c, _ := parseCall(strings.Fields(calledBy16))
		broken := errors.New("broken")
		var out strings.Builder
		if err := start(t.Context(), &starter{err: broken}, c, os.Getenv, nil, &out); !errors.Is(err, broken) || out.Len() > 0 {
			t.Errorf("answered %q, %v", out.String(), err)
		}
		mustBeEmpty(t)
	})
	t.Run("options that are none", func(t *testing.T) {
		t.Chdir(t.TempDir())
		c, _ := parseCall(strings.Fields(calledBy16))
		s := &starter{}
		if err := start(t.Context(), s, c, os.Getenv, []byte("{}"), io.Discard); err == nil || !strings.Contains(err.Error(), "google.protobuf.Any") || s.params != nil {
			t.Errorf("%v, started with %v", err, s.params)
		}
		mustBeEmpty(t)
	})
	// A shim that containerd does not hear of is asked to end.
	for name, tt := range map[string]struct {
		prepare func() error
		to      io.Writer
		says    string
		left    bool
	}{
		// A file cannot be put over a folder.
		"the address cannot be written": {func() error { return os.Mkdir("address", 0o700) }, io.Discard, "write the address", true},
		"containerd has gone":           {func() error { return nil }, closedPipe(t), "answer containerd", false},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan string, 1)
			address := serve(t, asked)
			t.Chdir(t.TempDir())
			if err := tt.prepare(); err != nil {
				t.Fatal(err)
			}
			if tt.left {
				if err := os.WriteFile("address/in-use", nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c, _ := parseCall(strings.Fields(calledBy16))
			if err := start(t.Context(), &starter{address: address}, c, os.Getenv, nil, tt.to); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %q", err, tt.says)
			}
			select {
			case id := <-asked:
				if id != "c1" {
					t.Errorf("asked to end for %q", id)
				}
			default:
				t.Error("the shim was not asked to end")
			}
			if !tt.left {
				mustBeEmpty(t)
			}
		})
	}
}

func closedPipe(t *testing.T) io.Writer {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func mustBeEmpty(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil || len(entries) > 0 {
		t.Errorf("left in the bundle: %v, %v", entries, err)
	}
}

// serve answers the task API's Shutdown.
func serve(t *testing.T, asked chan<- string) (address string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	taskapi.RegisterTTRPCTaskService(server, shutdowner{asked: asked})
	go func() { _ = server.Serve(context.Background(), l) }()
	t.Cleanup(func() { _ = server.Close() })
	return "unix://" + path
}

type shutdowner struct {
	taskapi.TTRPCTaskService
	asked chan<- string
}

func (s shutdowner) Shutdown(_ context.Context, r *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	s.asked <- r.GetID()
	return &emptypb.Empty{}, nil
}

// What is no start of a shim goes to containerd's own package as it is.
func TestParseCallLeavesTheRest(t *testing.T) {
	for _, line := range []string{
		"",
		"-v",
		"-info",
		"-namespace n -id c1 -v start",
		"-namespace n -address a -id c1",
		"-namespace n -address a -publish-binary b -id c1 -bundle /b delete",
		"-namespace n start",
		"-id c1 start",
		"-namespace n -id c1 -frob start",
		"-namespace n -id c1 stop",
	} {
		if c, ok := parseCall(strings.Fields(line)); ok {
			t.Errorf("%q is a start: %+v", line, c)
		}
	}
}

func bootstrapBytes(t testing.TB, id, namespace string) []byte {
	t.Helper()
	params := &bootapi.BootstrapParams{InstanceID: id, Namespace: namespace, ContainerdVersion: "2.4.2"}
	if err := params.AddExtension(&runtimeoptions.Options{ConfigPath: "/etc/agentbox/other.toml"}); err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestBootstrapParamsAreRecognised(t *testing.T) {
	c := call{id: "c1", namespace: "n"}
	for name, tt := range map[string]struct {
		input string
		want  bool
	}{
		"ours":              {string(bootstrapBytes(t, "c1", "n")), true},
		"another id":        {string(bootstrapBytes(t, "c2", "n")), false},
		"another namespace": {string(bootstrapBytes(t, "c1", "m")), false},
		"nothing":           {"", false},
		"options":           {sentConfigPath, false},
		"options of runc":   {sentRunc, false},
		"no message":        {"{", false},
	} {
		if got := bootstrapParams([]byte(tt.input), c) != nil; got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestInputIsReadAgain(t *testing.T) {
	for _, size := range []int{0, 1, 1 << 20} { // the last is more than a pipe holds
		f, err := again(make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, size+1)
		n := 0
		for {
			m, err := f.Read(data[n:])
			if n += m; err != nil {
				break
			}
		}
		if _ = f.Close(); n != size {
			t.Errorf("%d of %d bytes", n, size)
		}
	}
}

// FuzzHandshake: whatever comes on standard input is either the new message for
// this very container, or options, or an error; and options arrive as they came.
func FuzzHandshake(f *testing.F) {
	for _, seed := range []string{"", sentConfigPath, sentRunc, string(bootstrapBytes(f, "c1", "n")), "{", "\n\x00\x12\x00"} {
		f.Add([]byte(seed), "2")
	}
	c := call{id: "c1", namespace: "n"}
	f.Fuzz(func(t *testing.T, input []byte, maxVersion string) {
		if params := bootstrapParams(input, c); params != nil {
			if params.GetInstanceID() != c.id || params.GetNamespace() != c.namespace {
				t.Errorf("taken for ours: %v", params)
			}
			return
		}
		params, err := legacyParams(c, "", input)
		if err != nil {
			return
		}
		if len(input) > 0 {
			var came anypb.Any
			if err := proto.Unmarshal(input, &came); err != nil || len(params.GetExtensions()) != 1 || !proto.Equal(params.GetExtensions()[0].GetValue(), &came) {
				t.Errorf("%q became %v, %v", input, params, err)
			}
		}
		out, err := reply(&bootapi.BootstrapResult{Version: 3, Address: "a", Protocol: "ttrpc"}, maxVersion)
		if err != nil || string(out) != "a" && !strings.HasPrefix(string(out), `{"version":`) {
			t.Errorf("%q, %v", out, err)
		}
	})
}
