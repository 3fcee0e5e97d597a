package cgroup

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

func TestLayout(t *testing.T) {
	for name, want := range map[string]int{"v2": 2, "v2-bare": 2, "v2-user": 2, "v1": 1, "hybrid": 1, "none": 0} {
		layout, err := tree(t, name).Layout()
		if err != nil || layout.Version != want {
			t.Errorf("%s: version %d, %v; want %d", name, layout.Version, err, want)
		}
	}
}

func TestOf(t *testing.T) {
	for name, want := range map[string]map[string]string{
		"v2": {"": "/" + scopeV2},
		"v1": {
			"memory":       "/sys/fs/cgroup/memory/" + dirV1,
			"pids":         "/sys/fs/cgroup/pids/" + dirV1,
			"cpu":          "/sys/fs/cgroup/cpu,cpuacct/" + dirV1,
			"cpuacct":      "/sys/fs/cgroup/cpu,cpuacct/" + dirV1,
			"devices":      "/sys/fs/cgroup/devices/" + dirV1,
			"blkio":        "/sys/fs/cgroup/blkio/" + dirV1,
			"name=systemd": "/sys/fs/cgroup/systemd/" + dirV1,
		},
		"hybrid": {
			"memory":       "/sys/fs/cgroup/memory/" + dirV1,
			"pids":         "/sys/fs/cgroup/pids/" + dirV1,
			"cpu":          "/sys/fs/cgroup/cpu,cpuacct/" + dirV1,
			"cpuacct":      "/sys/fs/cgroup/cpu,cpuacct/" + dirV1,
			"devices":      "/sys/fs/cgroup/devices/" + dirV1,
			"blkio":        "/sys/fs/cgroup/blkio/" + dirV1,
			"name=systemd": "/sys/fs/cgroup/systemd/" + dirV1,
			"":             "/sys/fs/cgroup/unified/" + dirV1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]string{}
			for controller, place := range of(t, tree(t, name)).Paths().Places {
				got[controller] = place.Dir()
				if place.ID == 0 && (name == "v2" || slices.Contains(controllers[:], controller)) {
					t.Errorf("%s: no ID", controller)
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %v\nwant %v", got, want)
			}
		})
	}
}

func TestOfRefusals(t *testing.T) {
	const zombie = "42 (a) Z (b) Z 1 42 42 0\n"
	for _, c := range []struct {
		name, tree string
		change     func(root string)
		pid        int
		check      func(error) bool
	}{
		{"no cgroups", "none", nil, 42, func(err error) bool { return errors.Is(err, ErrNoCgroups) }},
		{"no such process", "v2", nil, 43, isGone},
		{"process 0", "v2", nil, 0, isError},
		{"negative", "v2", nil, -1, isError},
		{"v2 cgroup removed", "v2", func(root string) {
			cgrouptest.Write(t, root, "proc/42/cgroup", "0::/gone (deleted)\n")
		}, 42, isGone},
		{"v2 other namespace", "v2", func(root string) {
			cgrouptest.Write(t, root, "proc/42/cgroup", "0::/../x\n")
		}, 42, isOutside},
		{"v2 no line", "v2", func(root string) {
			cgrouptest.Write(t, root, "proc/42/cgroup", "1:name=systemd:/\n")
		}, 42, isError},
		{"v1 other namespace", "v1", func(root string) {
			cgrouptest.Write(t, root, "proc/42/cgroup", "10:memory:/../x\n")
		}, 42, isOutside},
		{"v1 cgroup removed", "v1", func(root string) {
			cgrouptest.Remove(t, root, "sys/fs/cgroup/pids/"+dirV1)
		}, 42, isGone},
		{"v1 zombie shows the root", "v1", func(root string) {
			cgrouptest.Write(t, root, "proc/42/cgroup", "10:memory:/\n9:pids:/\n")
			cgrouptest.Write(t, root, "proc/42/stat", zombie)
		}, 42, isGone},
		{"garbage", "v1", func(root string) {
			cgrouptest.Write(t, root, "proc/42/cgroup", "what\n")
		}, 42, isError},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := tree(t, c.tree)
			if c.change != nil {
				c.change(string(f))
			}
			if _, err := Of(f, c.pid); !c.check(err) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func isError(err error) bool { return err != nil }
func isGone(err error) bool  { return errors.Is(err, fs.ErrNotExist) }
func isOutside(err error) bool {
	var outside *OutsideError
	return errors.As(err, &outside)
}

// A cgroup namespace or a bind mount shows a part of the tree, and the paths of
// processes are those of the whole.
func TestOfPartOfTree(t *testing.T) {
	const line = "30 23 0:26 ROOT /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct{ name, root, path, want string }{
		{"bind mount", "/docker/abc", "/docker/abc/docker/def", "/docker/def"},
		{"bind mount, its own root", "/docker/abc", "/docker/abc", "/"},
		{"host mount in a namespace", "/..", "/../docker", "/docker"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			cgrouptest.Write(t, root, "proc/self/mountinfo", "30 23 0:26 "+c.root+line[len("30 23 0:26 ROOT"):])
			cgrouptest.Write(t, root, "proc/42/cgroup", "0::"+c.path+"\n")
			cgrouptest.Write(t, root, "sys/fs/cgroup"+c.want+"/cgroup.procs", "42\n")
			// A stranger where the path would lead if it were taken literally.
			cgrouptest.Write(t, root, "sys/fs/cgroup"+c.path+"/cgroup.procs", "7\n")
			c42 := of(t, FS(root))
			if got := c42.Paths().Places[""].Path; got != c.want {
				t.Errorf("path %q, want %q", got, c.want)
			}
		})
	}
}

func TestOpen(t *testing.T) {
	f := tree(t, "v2")
	saved, err := json.Marshal(of(t, f).Paths())
	if err != nil {
		t.Fatal(err)
	}
	var paths Paths
	if err := json.Unmarshal(saved, &paths); err != nil {
		t.Fatal(err)
	}
	c, err := Open(f, paths)
	if err != nil {
		t.Fatal(err)
	}
	if group, err := c.GroupKill(); !group || err != nil {
		t.Errorf("GroupKill %v, %v", group, err)
	}

	// Another cgroup of the same name is not this one.
	cgrouptest.Remove(t, string(f), scopeV2)
	everythingGone(t, c)
	keep, err := os.Create(f.Path("/spare-inode")) // so that the number is not used again
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	cgrouptest.Write(t, string(f), scopeV2+"/cgroup.procs", "")
	if st, err := os.Stat(f.Path("/" + scopeV2)); err != nil || inode(st) == paths.Places[""].ID {
		t.Skipf("the file system gave the same inode again (%v)", err)
	}
	everythingGone(t, c)
}

func TestOpenRefuses(t *testing.T) {
	place := Place{Mount: "/sys/fs/cgroup", Path: "/a"}
	for name, p := range map[string]Paths{
		"no version":  {Places: map[string]Place{"": place}},
		"no path":     {Version: 2},
		"relative":    {Version: 2, Places: map[string]Place{"": {Mount: "/sys/fs/cgroup", Path: "a"}}},
		"climbs":      {Version: 2, Places: map[string]Place{"": {Mount: "/sys/fs/cgroup", Path: "/a/../../.."}}},
		"mount":       {Version: 1, Places: map[string]Place{"memory": {Mount: "", Path: "/a"}}},
		"nul":         {Version: 2, Places: map[string]Place{"": {Mount: "/sys/fs/cgroup", Path: "/a\x00b"}}},
		"not cleaned": {Version: 2, Places: map[string]Place{"": {Mount: "/sys/fs/cgroup/", Path: "/a"}}},
	} {
		if _, err := Open(Host, p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// everythingGone checks that no question about a removed cgroup is answered.
func everythingGone(t *testing.T, c *Cgroup) {
	t.Helper()
	_, evidence := c.Evidence()
	_, usage := c.Usage()
	_, all := c.EffectiveAll()
	_, io := c.EffectiveIO([]limits.Device{{Major: 254}})
	_, group := c.GroupKill()
	_, populated := c.Populated()
	_, procs := c.Procs()
	for name, err := range map[string]error{
		"Evidence": evidence, "Usage": usage, "EffectiveAll": all, "EffectiveIO": io, "Populated": populated, "Procs": procs,
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if c.paths.Version == 2 && !errors.Is(group, fs.ErrNotExist) {
		t.Errorf("GroupKill: error %v", group)
	}
}

func TestGoneV1(t *testing.T) {
	f := tree(t, "v1")
	c := of(t, f)
	for _, hierarchy := range []string{"memory", "pids", "cpu,cpuacct", "blkio"} {
		cgrouptest.Remove(t, string(f), "sys/fs/cgroup/"+hierarchy+"/"+dirV1)
	}
	everythingGone(t, c)
}

// A folder that is held open while its cgroup is removed has no files any more.
func TestGoneWhileOpen(t *testing.T) {
	f := tree(t, "v2")
	c := of(t, f)
	for _, file := range []string{"cgroup.procs", "cgroup.events", "memory.events.local", "memory.events", "cpu.stat", "memory.oom.group"} {
		cgrouptest.Remove(t, string(f), scopeV2+"/"+file)
	}
	if _, err := c.Evidence(); !isGone(err) {
		t.Errorf("Evidence: %v", err)
	}
	if _, err := c.EffectiveAll(); !isGone(err) {
		t.Errorf("EffectiveAll: %v", err)
	}
	if _, err := c.EffectiveIO([]limits.Device{{Major: 254}}); !isGone(err) {
		t.Errorf("EffectiveIO: %v", err)
	}
	if _, err := c.GroupKill(); !isGone(err) {
		t.Errorf("GroupKill: %v", err)
	}
	if _, err := c.Populated(); !isGone(err) {
		t.Errorf("Populated: %v", err)
	}
}
