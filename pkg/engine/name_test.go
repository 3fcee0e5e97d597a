package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/engine"
	"github.com/agentbox/agentbox/pkg/limits"
)

func TestNameIn(t *testing.T) {
	tests := []struct {
		name        string
		annotations map[string]string
		want        string
	}{
		{"none", nil, ""},
		{"others", map[string]string{"io.kubernetes.cri.sandbox-name": "pod"}, ""},
		{"containerd in Kubernetes", map[string]string{"io.kubernetes.cri.container-name": "agent"}, "agent"},
		{"CRI-O", map[string]string{"io.kubernetes.container.name": "agent"}, "agent"},
		{"nerdctl", map[string]string{"nerdctl/name": "agent-1"}, "agent-1"},
		{"an empty one counts as none", map[string]string{"io.kubernetes.cri.container-name": "", "nerdctl/name": "agent-1"}, "agent-1"},
	}
	long := strings.Repeat("x", 2_000_000)
	if got := engine.NameIn(map[string]string{"nerdctl/name": long}); len(got) > limits.MaxText || !strings.HasPrefix(got, "xxx") {
		t.Errorf("a name of %d bytes", len(got))
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := engine.NameIn(tt.annotations); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDir(t *testing.T) {
	const id = "0123456789ab"
	tests := []struct{ name, source, want string }{
		{"Docker's", "/var/lib/docker/containers/0123456789ab/hostname", "/var/lib/docker/containers/0123456789ab"},
		{"of another container", "/var/lib/docker/containers/ba9876543210/hostname", ""},
		{"a file of the user's", "/home/u/hostname", ""},
		{"relative", "0123456789ab/hostname", ""},
		{"not mounted", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := engine.Dir(tt.source, id); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDockerName(t *testing.T) {
	tests := []struct{ name, content, want string }{
		{"as Docker writes it", `{"StreamConfig":{},"State":{"Running":true},"ID":"0123","Name":"/agent-7","Driver":"overlay2"}`, "agent-7"},
		{"no name", `{"ID":"0123"}`, ""},
		{"not a text", `{"Name":7}`, ""},
		{"too long to be one", `{"Name":"/` + strings.Repeat("x", 2*limits.MaxText) + `"}`, limits.Shorten(strings.Repeat("x", 2*limits.MaxText), limits.MaxText)},
		{"half written", `{"Name":"/age`, ""},
		{"empty", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "config.v2.json"), []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := engine.DockerName(dir); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	if got := engine.DockerName(""); got != "" {
		t.Errorf("no folder has the name %q", got)
	}
	if got := engine.DockerName(t.TempDir()); got != "" {
		t.Errorf("a folder without the file has the name %q", got)
	}
}

// TestDockerNameIsNoTrap covers a specification that names a folder of its
// author's as Docker's.
func TestDockerNameIsNoTrap(t *testing.T) {
	const content = `{"Name":"/agent-7"}`
	for name, place := range map[string]func(file string) error{
		"pipe":   func(file string) error { return unix.Mkfifo(file, 0o600) },
		"folder": func(file string) error { return os.Mkdir(file, 0o700) },
		"device": func(file string) error { return os.Symlink("/dev/zero", file) },
		"link": func(file string) error {
			return errors.Join(os.WriteFile(file+".real", []byte(content), 0o600), os.Symlink(file+".real", file))
		},
		"huge": func(file string) error {
			return os.WriteFile(file, []byte(content+strings.Repeat(" ", 4<<20)), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := place(filepath.Join(dir, "config.v2.json")); err != nil {
				t.Fatal(err)
			}
			got := make(chan string, 1)
			go func() { got <- engine.DockerName(dir) }()
			select {
			case name := <-got:
				if name != "" {
					t.Errorf("got %q", name)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("hangs")
			}
		})
	}
}
