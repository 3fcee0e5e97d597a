package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/blockdev"
	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/host"
	"github.com/agentbox/agentbox/pkg/limits"
)

// lookIn is a PATH with these programs.
func lookIn(programs map[string]string) func(string) (string, error) {
	return func(name string) (string, error) {
		if path, ok := programs[name]; ok {
			return path, nil
		}
		return "", exec.ErrNotFound
	}
}

// machine gathers the facts of a recorded tree, as root, with a runc and no
// other program.
func machine(t *testing.T, root string, programs ...string) Facts {
	t.Helper()
	return gathererOf(t, root, programs...).gather(context.Background())
}

func gathererOf(t *testing.T, root string, programs ...string) *gatherer {
	t.Helper()
	path := map[string]string{"runc": script(t, "echo runc version 1.3.6")}
	for _, program := range programs {
		path[program] = "/usr/sbin/" + program
	}
	return &gatherer{
		o:  Options{FS: cgroup.FS(root), ConfigPath: "/etc/agentbox/config.toml", Config: systemConfig()},
		fs: cgroup.FS(root), euid: 0, access: access, statOf: os.Stat, disks: blockdev.New(root), lookPath: lookIn(path), root: os.Getuid(),
	}
}

// systemConfig is the built-in configuration of root.
func systemConfig() *config.File {
	cfg := config.Default()
	cfg.ResultsDir = config.SystemResultsDir
	return cfg
}

func TestGatherCgroups(t *testing.T) {
	root := cgrouptest.Tree(t, "v2-7.2")
	f := machine(t, root)
	if c := f.Cgroup; c.V2 != "/sys/fs/cgroup" || !c.True || len(c.V1) != 0 || !slices.Equal(c.V2Has, []string{"cpu", "io", "memory", "pids"}) {
		t.Errorf("%+v", c)
	}
	if len(f.Cgroup.Chain) != 1 || f.Cgroup.Chain[0].Path != "/sys/fs/cgroup" || !f.Cgroup.Chain[0].Controls || !f.Cgroup.Chain[0].Writable {
		t.Errorf("beside /job: %+v", f.Cgroup.Chain)
	}
	if k := f.Kernel; k.Release != "7.2.7" || !k.Cgroup2 || !k.Swap || !k.Bandwidth || k.Throttling != Yes || k.Controllers["pids"] != (Controller{0, true}) {
		t.Errorf("%+v", k)
	}
	if f.SwapBytes != 262140<<10 || !f.Root || f.Systemd || f.Docker != nil || f.Results.Problem != "" || !f.Host.IO.Unknown {
		t.Errorf("%+v", f)
	}

	f = machine(t, cgrouptest.Tree(t, "hybrid-7.2"))
	if c := f.Cgroup; c.V2 != "/sys/fs/cgroup/unified" || !slices.Contains(c.V2Has, "memory") || c.V1["blkio"] != "/sys/fs/cgroup/blkio" || c.V1["memory"] != "" || c.Chain != nil {
		t.Errorf("hybrid: %+v", c)
	}
}

func TestChain(t *testing.T) {
	const manager = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"
	for _, c := range []struct {
		name, tree string
		euid       int
		o          Options
		own        string   // in place of the recorded one
		files      []string // path and content
		want       []string
	}{
		{name: "beside this process", tree: "v2", want: []string{"/sys/fs/cgroup", "/sys/fs/cgroup/system.slice"}},
		{name: "at the root", tree: "v2", o: Options{CgroupsPath: "/docker"}, want: []string{"/sys/fs/cgroup"}},
		{name: "below a slice", tree: "v2", o: Options{CgroupsPath: "/system.slice/x/y"}, want: []string{"/sys/fs/cgroup", "/sys/fs/cgroup/system.slice"}},
		{name: "out of the tree", tree: "v2", o: Options{CgroupsPath: "/system.slice/../../../etc"}, want: []string{"/sys/fs/cgroup"}},
		{name: "systemd as root", tree: "v2", o: Options{Systemd: true}, want: []string{"/sys/fs/cgroup", "/sys/fs/cgroup/system.slice"}},
		{name: "systemd with a slice", tree: "v2", o: Options{Systemd: true, CgroupsPath: "init-x.slice:docker:x"}, files: []string{"sys/fs/cgroup/init.slice/cgroup.procs", ""}, want: []string{"/sys/fs/cgroup", "/sys/fs/cgroup/init.slice"}},
		{
			name: "a user's systemd", tree: "v2-user", euid: 1000, o: Options{Systemd: true},
			want: []string{"/sys/fs/cgroup", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup/user.slice/user-1000.slice", manager, manager + "/user.slice"},
		},
		{
			name: "a user's systemd, from outside", tree: "v2-user", euid: 1000, own: "0::/system.slice/x\n", o: Options{Systemd: true, CgroupsPath: "app.slice:x:y"},
			want: []string{"/sys/fs/cgroup", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup/user.slice/user-1000.slice", manager, manager + "/app.slice"},
		},
		{name: "a very long path", tree: "v2", o: Options{CgroupsPath: strings.Repeat("/a", 100_000)}, want: []string{"/sys/fs/cgroup"}},
		{name: "a slash too many", tree: "v2", o: Options{CgroupsPath: "//system.slice//x/"}, want: []string{"/sys/fs/cgroup", "/sys/fs/cgroup/system.slice"}},
		{name: "outside of the namespace", tree: "v2", own: "0::/../..\n", want: []string{"/sys/fs/cgroup"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, c.tree)
			if c.own != "" {
				cgrouptest.Write(t, root, "proc/self/cgroup", c.own)
			}
			for i := 0; i < len(c.files); i += 2 {
				cgrouptest.Write(t, root, c.files[i], c.files[i+1])
			}
			g := gatherer{o: c.o, fs: cgroup.FS(root), euid: c.euid, access: access}
			var got []string
			for _, folder := range g.chain(host.Place(g.fs, host.Input{CgroupsPath: c.o.CgroupsPath, Systemd: c.o.Systemd}, c.euid)) {
				got = append(got, folder.Path)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v\nwant %v", got, c.want)
			}
		})
	}
}

func TestFeaturesAreSeen(t *testing.T) {
	for _, c := range []struct {
		name, tree string
		change     func(root string)
		want       map[string]Presence
	}{
		{"v2", "v2-7.2", nil, map[string]Presence{"memory_oom_group": Yes, "memory_events_local": Yes, "oom_group_kill": Yes, "memory_peak": Yes, "pids_peak": Yes}},
		{
			"v2 on an old kernel", "v2-7.2", func(root string) {
				for _, folder := range []string{"sys/fs/cgroup/job/", "sys/fs/cgroup/system.slice/"} {
					cgrouptest.Remove(t, root, folder+"memory.peak")
					cgrouptest.Remove(t, root, folder+"pids.peak")
					cgrouptest.Write(t, root, folder+"memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
				}
			}, map[string]Presence{"memory_oom_group": Yes, "oom_group_kill": No, "memory_peak": No, "pids_peak": No},
		},
		{"v2 without memory", "v2-7.2-nomemory", nil, map[string]Presence{"memory_oom_group": Unknown, "memory_peak": Unknown, "pids_peak": Yes}},
		{"v2 without a cgroup", "v2-bare", nil, map[string]Presence{"memory_peak": Unknown, "pids_peak": Unknown}},
		{"v1", "v1", nil, map[string]Presence{"oom_kill_v1": Yes, "pids_peak_v1": No}},
		{"v1 without memory", "v1-7.2", nil, map[string]Presence{"oom_kill_v1": Unknown, "pids_peak_v1": Yes}},
		{"nothing", "none-7.2", nil, map[string]Presence{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, c.tree)
			if c.change != nil {
				c.change(root)
			}
			got := machine(t, root).Kernel.Features
			for name, want := range c.want {
				if got[name] != want {
					t.Errorf("%s: %q, want %q", name, got[name], want)
				}
			}
			if len(c.want) == 0 && len(got) != 0 {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestThrottling(t *testing.T) {
	for _, c := range []struct {
		name, tree string
		without    []string // folders
		want       Presence
	}{
		{"v2", "v2-7.2", nil, Yes},
		{"v2, one cgroup is going away", "v2-7.2", []string{"sys/fs/cgroup/job"}, Yes},
		{"v2 that cannot", "v2-7.2", []string{"sys/fs/cgroup/job", "sys/fs/cgroup/system.slice"}, No},
		{"v2 without the controller", "v2-7.2-noio", nil, Unknown},
		{"v2 without a cgroup", "v2-bare", nil, Unknown},
		{"v1", "v1-7.2", nil, Yes},
		{"nothing", "none-7.2", nil, Unknown},
	} {
		root := cgrouptest.Tree(t, c.tree)
		for _, folder := range c.without {
			cgrouptest.Remove(t, root, folder+"/io.max")
		}
		if got := machine(t, root).Kernel.Throttling; got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestGatherDocker(t *testing.T) {
	root := cgrouptest.Tree(t, "v2-7.2")
	if f := machine(t, root, "dockerd"); f.Docker == nil || f.Docker.Found || f.Docker.File != dockerFile || f.Docker.Settings.DataRoot != dockerRoot {
		t.Errorf("installed, no file: %+v", f.Docker)
	}

	cgrouptest.Write(t, root, "etc/docker/daemon.json", `{"runtimes": {"agentbox": {"path": "/opt/agentbox-runtime"}}}`)
	cgrouptest.Write(t, root, "var/lib/docker/x", "")
	f := machine(t, root)
	if f.Docker == nil || !f.Docker.Found || !slices.Equal(f.Docker.Broken, []string{"agentbox"}) || !f.Docker.OnRoot || f.Docker.Size < 1 {
		t.Errorf("a file: %+v", f.Docker)
	}

	cgrouptest.Write(t, root, "opt/agentbox-runtime", "")
	if err := os.Chmod(filepath.Join(root, "opt/agentbox-runtime"), 0o755); err != nil {
		t.Fatal(err)
	}
	if f := machine(t, root); f.Docker.Broken != nil {
		t.Errorf("the program is there: %+v", f.Docker)
	}

	cgrouptest.Write(t, root, "run/docker.pid", "77")
	process(t, root, "77", "/usr/bin/dockerd", "dockerd", "--config-file=/etc/other.json", "--log-driver=local")
	cgrouptest.Write(t, root, "etc/other.json", `{"data-root": `)
	f = machine(t, root)
	if d := f.Docker; d.File != "/etc/other.json" || !strings.HasPrefix(d.Problem, "/etc/other.json: ") || d.Settings.LogDriver != "local" || !slices.Equal(d.Flags, []string{"log-driver"}) {
		t.Errorf("another file, running: %+v", d)
	}
}

func TestGatherConfiguration(t *testing.T) {
	g := gathererOf(t, cgrouptest.Tree(t, "v2-7.2"))
	g.o.Config, g.o.ConfigErr = nil, errors.New("line 3 is wrong")
	g.o.Required = []limits.Dimension{limits.IO}
	f := g.gather(context.Background())
	if f.Config.Problem != "line 3 is wrong" || f.Config.Found || f.Config.Policy.Mode != limits.ModeAuto || !slices.Equal(f.Required, g.o.Required) {
		t.Errorf("%+v, required %v", f.Config, f.Required)
	}
}

func TestKeeps(t *testing.T) {
	root := t.TempDir()
	cgrouptest.Write(t, root, "var/lib/file", "")
	readOnly := func(path string, mode uint32) error {
		if strings.HasPrefix(path, root+"/var/lib/ro") {
			return unix.EROFS
		}
		return access(path, mode)
	}
	cgrouptest.Write(t, root, "var/lib/ro/x", "")
	g := gatherer{fs: cgroup.FS(root), access: readOnly, statOf: os.Stat}
	for folder, want := range map[string]string{
		"/var/lib":                  "",
		"/var/lib/agentbox/results": "",
		"/nothing/of/it":            "",
		"/var/lib/ro":               "read-only file system",
		"/var/lib/ro/a/b":           "/var/lib/ro: read-only file system",
		"/var/lib/file":             "/var/lib/file is not a folder",
		"/var/lib/file/results":     "not a directory",
	} {
		got := g.keeps(folder)
		if (got == "") != (want == "") || !strings.Contains(got, want) || strings.Contains(got, root) || strings.HasPrefix(got, folder+": ") {
			t.Errorf("%s: %q, want %q", folder, got, want)
		}
	}
}

// TestGatherFindsNothing is a machine without proc and sys.
func TestGatherFindsNothing(t *testing.T) {
	f := machine(t, t.TempDir())
	if f.Kernel.Release != "" || f.Kernel.Controllers != nil || f.Host.CgroupVersion != 0 || f.Cgroup.Chain != nil || f.SwapBytes != 0 {
		t.Errorf("%+v", f)
	}
	if r := Examine(f); r.Ready || len(r.Missing) != 4 {
		t.Errorf("%+v", r)
	}
}

// TestGatherChangesNothing runs the real Gather and compares the tree.
func TestGatherChangesNothing(t *testing.T) {
	root := cgrouptest.Tree(t, "v2-7.2")
	before := listing(t, root)
	Gather(context.Background(), Options{FS: cgroup.FS(root), ConfigPath: "/nowhere", Config: systemConfig()})
	if after := listing(t, root); !slices.Equal(before, after) {
		t.Errorf("before %v\nafter %v", before, after)
	}
}

func listing(t *testing.T, root string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			list = append(list, path+" "+info.Mode().String()+" "+info.ModTime().String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// process adds a process of this user, in the pid namespace of this one.
func process(t *testing.T, root, pid, program string, args ...string) {
	t.Helper()
	cgrouptest.Write(t, root, "proc/"+pid+"/cmdline", string(cmdline(args...)))
	links := map[string]string{pid + "/exe": program, pid + "/ns/pid": "pid:[4026531836]", "self/ns/pid": "pid:[4026531836]"}
	for name, target := range links {
		link(t, target, filepath.Join(root, "proc", name))
	}
}

// link makes a symbolic link in place of what is there.
func link(t *testing.T, target, name string) {
	t.Helper()
	_ = os.Remove(name) // mostly, it is not there
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink(target, name)); err != nil {
		t.Fatal(err)
	}
}

// A pid file outlives its daemon. Only root's dockerd of this machine is believed.
func TestWhoIsBelievedToBeDocker(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(root string, g *gatherer)
		want   bool
	}{
		{"dockerd", func(string, *gatherer) {}, true},
		{"dockerd that was updated", func(root string, _ *gatherer) {
			link(t, "/usr/bin/dockerd (deleted)", root+"/proc/77/exe")
		}, true},
		{"another program with its name", func(root string, _ *gatherer) { link(t, "/usr/bin/sleep", root+"/proc/77/exe") }, false},
		{"a program that cannot be seen", func(root string, _ *gatherer) { cgrouptest.Remove(t, root, "proc/77/exe") }, false},
		{"another user's", func(_ string, g *gatherer) { g.root++ }, false},
		{"one in a container", func(root string, _ *gatherer) { link(t, "pid:[4026539999]", root+"/proc/77/ns/pid") }, false},
		{"in a namespace that cannot be seen", func(root string, _ *gatherer) { cgrouptest.Remove(t, root, "proc/77/ns/pid") }, false},
		{"none", func(root string, _ *gatherer) { cgrouptest.Write(t, root, "run/docker.pid", "78") }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, "v2-7.2")
			cgrouptest.Write(t, root, "run/docker.pid", "77\n")
			cgrouptest.Write(t, root, "other.json", `{"data-root": "/other"}`)
			process(t, root, "77", "/usr/bin/dockerd", "/usr/bin/dockerd", "--config-file=/other.json", "--log-driver=local")
			g := gathererOf(t, root, "dockerd")
			c.change(root, g)
			d := g.gather(context.Background()).Docker
			if d == nil || (d.File == "/other.json") != c.want || (d.Settings.DataRoot == "/other") != c.want || (d.Settings.LogDriver == "local") != c.want {
				t.Errorf("%+v", d)
			}
		})
	}
}

// Whatever is put where doctor reads, it reads little and waits for nobody.
func TestFilesThatAreNone(t *testing.T) {
	for _, c := range []struct{ name, file string }{
		{"pid file", "run/docker.pid"},
		{"daemon.json", "etc/docker/daemon.json"},
		{"command line of dockerd", "proc/77/cmdline"},
		{"/proc/swaps", "proc/swaps"},
		{"/proc/cgroups", "proc/cgroups"},
		{"/proc/cmdline", "proc/cmdline"},
		{"release", "proc/sys/kernel/osrelease"},
	} {
		for kind, put := range map[string]func(name string) error{
			"pipe":       func(name string) error { return unix.Mkfifo(name, 0o600) },
			"no end":     func(name string) error { return os.Symlink("/dev/zero", name) },
			"very large": func(name string) error { return errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 1<<40)) },
		} {
			t.Run(c.name+", "+kind, func(t *testing.T) {
				root := cgrouptest.Tree(t, "v2-7.2")
				cgrouptest.Write(t, root, "run/docker.pid", "77\n")
				process(t, root, "77", "/usr/bin/dockerd", "dockerd")
				name := filepath.Join(root, c.file)
				_ = os.Remove(name) // mostly, it is not there
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), put(name)); err != nil {
					t.Fatal(err)
				}
				done := make(chan Facts, 1)
				go func() { done <- gathererOf(t, root).gather(context.Background()) }()
				select {
				case f := <-done:
					if f.Silent != nil {
						t.Errorf("given up: %v", f.Silent)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("doctor waits")
				}
			})
		}
	}
}

// TestFreezer: cgroup v2 has it in every cgroup since Linux 5.2; a folder that is
// not ours has none for us.
func TestFreezer(t *testing.T) {
	root := cgrouptest.Tree(t, "v2-7.2")
	if got := machine(t, root).Freezer; got != "" {
		t.Errorf("%q before there is such a file", got)
	}
	cgrouptest.Write(t, root, "sys/fs/cgroup/system.slice/cgroup.events", "populated 1\n")
	cgrouptest.Write(t, root, "sys/fs/cgroup/system.slice/cgroup.freeze", "0\n")
	if got := machine(t, root).Freezer; got != "cgroup.freeze" {
		t.Errorf("%q, want cgroup.freeze", got)
	}
	g := gathererOf(t, root)
	g.access = func(string, uint32) error { return unix.EACCES }
	if got := g.gather(context.Background()).Freezer; got != "" {
		t.Errorf("%q in cgroups that cannot be written", got)
	}
}
