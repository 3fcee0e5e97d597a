package guest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runCgroups runs one line of shell with the functions of the script cgroups. The
// file of testdata, if any, stands in for /proc/cgroups; mount only says what it
// was asked for.
func runCgroups(t *testing.T, procCgroups, line string) string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "cgroups")
	if err := os.WriteFile(script, Script("cgroups"), 0o644); err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("sh", "-euc", "mount() { echo \"mount $*\"; }\n. "+Quote(script)+"\n"+line)
	if procCgroups != "" {
		content, err := os.ReadFile(filepath.Join("testdata", procCgroups))
		if err != nil {
			t.Fatal(err)
		}
		shell.Stdin = bytes.NewReader(content)
	}
	output, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, output)
	}
	return string(output)
}

// write makes a file and the folders above it.
func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestV1Controllers(t *testing.T) {
	tests := []struct {
		file        string
		hierarchies string // what systemd would make of the kernel's controllers
		mounted     string // what was mounted when the file was read
	}{
		{"proc-cgroups-uml", "blkio devices freezer pids cpu,cpuacct net_cls", ""},
		{"proc-cgroups-uml-mounted-no-blkio", "devices freezer pids cpu,cpuacct net_cls", "cpu cpuacct devices freezer net_cls pids"},
		{
			"proc-cgroups-cloud-mounted", "blkio devices freezer perf_event hugetlb pids rdma misc cpu,cpuacct net_cls,net_prio",
			"cpu cpuacct blkio devices freezer net_cls perf_event net_prio hugetlb pids rdma misc",
		},
		{
			"proc-cgroups-with-memory", "cpuset blkio memory devices freezer perf_event hugetlb pids cpu,cpuacct net_cls,net_prio",
			"cpuset cpu cpuacct blkio memory devices freezer pids",
		},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			if got := strings.Join(strings.Fields(runCgroups(t, tt.file, "v1_hierarchies")), " "); got != tt.hierarchies {
				t.Errorf("v1_hierarchies = %q, want %q", got, tt.hierarchies)
			}
			if got := strings.TrimSuffix(runCgroups(t, tt.file, "v1_mounted"), "\n"); got != tt.mounted {
				t.Errorf("v1_mounted = %q, want %q", got, tt.mounted)
			}
		})
	}
}

func TestMountCgroups(t *testing.T) {
	v1 := []string{
		"mount -t tmpfs -o nosuid,nodev,noexec,mode=755 tmpfs ROOT",
		"mount -t cgroup -o nosuid,nodev,noexec,devices cgroup ROOT/devices",
		"mount -t cgroup -o nosuid,nodev,noexec,freezer cgroup ROOT/freezer",
		"mount -t cgroup -o nosuid,nodev,noexec,pids cgroup ROOT/pids",
		"mount -t cgroup -o nosuid,nodev,noexec,cpu,cpuacct cgroup ROOT/cpu,cpuacct",
		"mount -t cgroup -o nosuid,nodev,noexec,net_cls cgroup ROOT/net_cls",
		"mount -t cgroup -o nosuid,nodev,noexec,none,name=systemd cgroup ROOT/systemd",
	}
	const readOnly = "mount -o remount,ro ROOT"
	tests := []struct {
		variant string
		want    []string
	}{
		{"v2", []string{"mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 ROOT"}},
		{"v1", append(slices.Clone(v1), readOnly)},
		{"hybrid", append(slices.Clone(v1), "mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate cgroup2 ROOT/unified", readOnly)},
		{"none", nil},
	}
	for i, tt := range tests {
		t.Run(tt.variant, func(t *testing.T) {
			if CgroupVariants[i] != tt.variant {
				t.Fatalf("variant %d is %q, want %q", i, CgroupVariants[i], tt.variant)
			}
			root := t.TempDir()
			output := runCgroups(t, "proc-cgroups-uml-mounted-no-blkio", "mount_cgroups "+tt.variant+" "+Quote(root))
			want := ""
			for _, line := range tt.want {
				want += strings.ReplaceAll(line, "ROOT", root) + "\n"
			}
			if output != want {
				t.Fatalf("it does\n%swant\n%s", output, want)
			}
			target, err := os.Readlink(filepath.Join(root, "cpuacct"))
			if wantLink := slices.Contains(tt.want, readOnly); (err == nil) != wantLink || wantLink && target != "cpu,cpuacct" {
				t.Errorf("cpuacct is a link to %q, %v; want one: %v", target, err, wantLink)
			}
		})
	}
	t.Run("unknown", func(t *testing.T) {
		if output := runCgroups(t, "", "mount_cgroups v3 /nowhere || echo failed"); output != "failed\n" {
			t.Fatalf("mount_cgroups v3 says %q", output)
		}
	})
	t.Run("a mount that fails", func(t *testing.T) {
		line := "mount() { case $* in *freezer*) return 1 ;; esac; }; mount_cgroups v1 " + Quote(t.TempDir()) + " || echo failed"
		if output := runCgroups(t, "proc-cgroups-uml", line); output != "failed\n" {
			t.Fatalf("mount_cgroups says %q", output)
		}
	})
}

func TestEnterCgroup(t *testing.T) {
	tests := []struct {
		name    string
		files   []string
		entered []string
	}{
		{"v2", []string{"cgroup.procs", "system.slice/cgroup.procs"}, []string{"a/b"}},
		{
			"v1 and hybrid",
			[]string{"blkio/cgroup.procs", "cpu,cpuacct/cgroup.procs", "unified/cgroup.procs", "fuse/connections"},
			[]string{"blkio/a/b", "cpu,cpuacct/a/b", "unified/a/b"},
		},
		{"none", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for _, name := range tt.files {
				write(t, filepath.Join(root, name), "")
			}
			if output := runCgroups(t, "", "enter_cgroup a/b "+Quote(root)); output != "" {
				t.Fatalf("enter_cgroup says %q", output)
			}
			var entered []string
			err := filepath.WalkDir(root, func(name string, entry os.DirEntry, err error) error {
				if err != nil || entry.Name() != "cgroup.procs" {
					return err
				}
				content, err := os.ReadFile(name)
				if string(content) == "0\n" {
					entered = append(entered, strings.TrimPrefix(filepath.Dir(name), root+"/"))
				}
				return err
			})
			if err != nil || !slices.Equal(entered, tt.entered) {
				t.Fatalf("entered %q, %v; want %q", entered, err, tt.entered)
			}
		})
	}
}

func TestCgroupFact(t *testing.T) {
	tests := []struct {
		name        string
		variant     string
		file        string // below the root
		controllers string
		want        string
	}{
		{"v2", "v2", "cgroup.controllers", "cpu io memory pids\n", "cgroup v2, controllers: cpu io memory pids\n"},
		{"v2 with all switched off", "v2", "cgroup.controllers", "\n", "cgroup v2, controllers: none\n"},
		{"v1", "v1", "", "", "cgroup v1, controllers: cpu cpuacct devices freezer net_cls pids\n"},
		{
			"hybrid", "hybrid", "unified/cgroup.controllers", "memory\n",
			"cgroup v1 hybrid, v1 controllers: cpu cpuacct devices freezer net_cls pids, v2 only: memory\n",
		},
		{"none", "none", "", "", "cgroup not mounted\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if tt.file != "" {
				write(t, filepath.Join(root, tt.file), tt.controllers)
			}
			if got := runCgroups(t, "proc-cgroups-uml-mounted-no-blkio", "cgroup_fact "+tt.variant+" "+Quote(root)); got != tt.want {
				t.Fatalf("cgroup_fact = %q, want %q", got, tt.want)
			}
		})
	}
}
