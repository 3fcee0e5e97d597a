package host

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
)

func TestParseSystemdVersion(t *testing.T) {
	const line = "7f0c4a200000-7f0c4a24f000 r--p 00000000 fe:01 1835 "
	for _, tt := range []struct {
		name, maps string
		want       int
	}{
		{"of a distribution that writes its release behind it", line + "/usr/lib64/systemd/libsystemd-shared-257.7-1.fc42.so\n", 257},
		{"with a hyphen behind it", line + "/usr/lib/systemd/libsystemd-shared-252-46.el9.so\n", 252},
		{"an update replaced the file", line + "/usr/lib/systemd/libsystemd-shared-254.so (deleted)\n", 254},
		{"not the public library", line + "/usr/lib/x86_64-linux-gnu/libsystemd.so.0.40.0\n", 0},
		{"another init", line + "/usr/bin/busybox\n", 0},
		{"no number", line + "/usr/lib/systemd/libsystemd-shared-.so\n", 0},
		{"a number that is none", line + "/usr/lib/systemd/libsystemd-shared-99999999999999999999.so\n", 0},
		{"nothing", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := parseSystemdVersion([]byte(tt.maps)); got != tt.want {
				t.Errorf("version %d, want %d", got, tt.want)
			}
		})
	}
}

func FuzzParseSystemdVersion(f *testing.F) {
	f.Add([]byte("/libsystemd-shared-257.so"))
	f.Add([]byte("/libsystemd-shared-999999999999999999999999"))
	f.Fuzz(func(t *testing.T, maps []byte) {
		if n := parseSystemdVersion(maps); n < 0 || n > 1<<20 {
			t.Errorf("version %d", n)
		}
	})
}

// Maps of running systemds, and machines without one.
func TestProbeSystemd(t *testing.T) {
	for _, tt := range []struct {
		name, tree, maps string
		driver           bool
		systemd          bool
		version          int
	}{
		{"systemd 257", "v2", "maps-systemd-257", true, true, 257},
		{"systemd 262", "v2", "maps-systemd-262", true, true, 262},
		{"on cgroup v1", "v1", "maps-systemd-257", true, true, 257},
		{"the cgroupfs driver", "v2", "maps-systemd-257", false, false, 0},
		{"its map cannot be read", "v2", "", true, true, 0},
		{"no cgroups", "none", "maps-systemd-257", true, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, tt.tree)
			if tt.maps != "" {
				data, err := os.ReadFile(filepath.Join("testdata", tt.maps))
				if err != nil {
					t.Fatal(err)
				}
				dir := filepath.Join(root, "proc", "1")
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "maps"), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			h := Probe(cgroup.FS(root), Input{CgroupsPath: "system.slice:docker:0123456789ab", Systemd: tt.driver})
			if h.Systemd != tt.systemd || h.SystemdVersion != tt.version {
				t.Errorf("systemd %v, version %d; want %v, %d", h.Systemd, h.SystemdVersion, tt.systemd, tt.version)
			}
		})
	}
}
