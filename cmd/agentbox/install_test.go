package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/install"
)

// engines is a machine with programs of agentbox and of engines.
type engines struct {
	t   *testing.T
	dir string
	*installer
}

func newEngines(t *testing.T, programs ...string) *engines {
	t.Helper()
	e := &engines{t: t, dir: t.TempDir()}
	for _, name := range programs {
		e.program(name)
	}
	e.reset()
	return e
}

// reset is for another command line.
func (e *engines) reset() {
	e.installer = &installer{programs: programs{
		self: filepath.Join(e.dir, "bin"), path: "relative:" + filepath.Join(e.dir, "engine"),
		version: func(_ context.Context, program string) string {
			data, err := os.ReadFile(program)
			if err != nil {
				e.t.Error(err)
			}
			return string(data)
		},
	}}
}

// program makes one: "bin/agentbox-runtime", or with the version that it prints
// "engine/dockerd Docker version 28.5.2".
func (e *engines) program(spec string) string {
	e.t.Helper()
	name, version, _ := strings.Cut(spec, " ")
	path := filepath.Join(e.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(version), 0o755); err != nil {
		e.t.Fatal(err)
	}
	return path
}

// run is a command line with a configuration file of this test.
func (e *engines) run(args ...string) (stdout, stderr string, code int) {
	e.t.Helper()
	e.reset()
	cmd := e.command()
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(args, "--records", filepath.Join(e.dir, "records")))
	if err := cmd.Execute(); err != nil {
		say(&errs, err.Error())
		code = exitCode(err)
	}
	return strings.ReplaceAll(out.String(), e.dir, "DIR"), strings.ReplaceAll(errs.String(), e.dir, "DIR"), code
}

func TestDoors(t *testing.T) {
	const (
		runtime = "bin/agentbox-runtime"
		shim    = "bin/containerd-shim-agentbox-v1"
	)
	tests := []struct {
		name     string
		engine   install.Engine
		door     string
		programs []string
		want     string // the shim's path, "runtime", or what the error says
	}{
		{"docker", install.Docker, doorAuto, []string{runtime, shim, "engine/dockerd Docker version 28.5.2, build x"}, "runtime"},
		{"docker by the shim", install.Docker, doorShim, []string{runtime, shim, "engine/dockerd Docker version 28.5.2, build x"}, "shim " + shim},
		{"docker of an unknown version by the shim", install.Docker, doorShim, []string{runtime, shim}, "shim " + shim},
		{"docker 20 by the shim", install.Docker, doorShim, []string{runtime, shim, "engine/dockerd Docker version 20.10.24, build x"}, "needs Docker 23 or later, and dockerd is of version 20"},
		{"docker without the shim", install.Docker, doorShim, []string{runtime}, "is not there: install it, or leave the flag out"},
		{"containerd", install.Containerd, doorAuto, []string{runtime, shim}, "shim " + shim},
		{"containerd, the shim on the PATH", install.Containerd, doorAuto, []string{runtime, "engine/containerd-shim-agentbox-v1"}, "shim engine/containerd-shim-agentbox-v1"},
		{"containerd without the shim", install.Containerd, doorAuto, []string{runtime}, "runtime"},
		{"containerd by the runtime", install.Containerd, doorRuntime, []string{runtime, shim}, "runtime"},
		{"crio", install.CRIO, doorAuto, []string{runtime, shim}, "runtime"},
		{"podman", install.Podman, doorAuto, []string{runtime, shim}, "runtime"},
		{"nothing is installed", install.Docker, doorAuto, nil, "agentbox-runtime is neither beside this program"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngines(t, tt.programs...)
			e.door = tt.door
			want, err := e.want(t.Context(), tt.engine)
			got := want.Door()
			if want.Shim {
				got += " " + strings.TrimPrefix(want.ShimPath, e.dir+"/")
			}
			if err != nil {
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %q", err, tt.want)
				}
				return
			}
			if got != tt.want || want.Runtime != filepath.Join(e.dir, runtime) {
				t.Errorf("got %q with %s, want %q", got, want.Runtime, tt.want)
			}
		})
	}
}

func TestProgram(t *testing.T) {
	e := newEngines(t, "engine/agentbox-runtime")
	good := filepath.Join(e.dir, "engine/agentbox-runtime")
	if err := os.Symlink(good, filepath.Join(e.dir, "link")); err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{
		"":                              good, // on the PATH
		good:                            good,
		filepath.Join(e.dir, "link"):    filepath.Join(e.dir, "link"),
		"agentbox-runtime":              "is not absolute",
		filepath.Join(e.dir, "nowhere"): "no such file",
		e.dir:                           "it is not a program",
	} {
		got, err := e.programs.program(install.Program, given)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("--program %q: %s, want %q", given, got, want)
		}
	}
	if onServicePath(good) {
		t.Errorf("a service finds %s", good)
	}
}

// Which of its files containerd is told in.
func TestContainerdFile(t *testing.T) {
	const imports = "version = 3\nimports = [\"conf.d/*.toml\"]\n"
	tests := []struct {
		name, main, version string
		file                string // below the folder
		has                 string
	}{
		{"none is there", "", "2.1.9", "config.toml", "io.containerd.cri.v1.runtime"},
		{"none is there, for containerd 1", "", "1.6.20", "config.toml", "io.containerd.grpc.v1.cri"},
		{"none is there, of no known version", "", "", "config.toml", "version = 2"},
		{"without imports", "version = 2\n", "2.1.9", "config.toml", "io.containerd.grpc.v1.cri"},
		{"with imports", imports, "2.1.9", "conf.d/50-agentbox.toml", "io.containerd.cri.v1.runtime"},
		{"with imports, for containerd 1", strings.Replace(imports, "3", "2", 1), "1.7.24", "config.toml", "io.containerd.grpc.v1.cri"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngines(t, "bin/agentbox-runtime", "bin/containerd-shim-agentbox-v1", "engine/containerd containerd x "+tt.version)
			main := filepath.Join(e.dir, "config.toml")
			if tt.main != "" {
				if err := os.WriteFile(main, []byte(tt.main), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the second finds it where it is
				if _, stderr, code := e.run("containerd", "--file", main); code != 0 {
					t.Fatal(stderr)
				}
			}
			data, err := os.ReadFile(filepath.Join(e.dir, tt.file))
			if err != nil || !strings.Contains(string(data), tt.has) || strings.Count(string(data), "runtimes.agentbox]") != 1 {
				t.Errorf("%v\n%s", err, data)
			}
			if now, err := os.ReadFile(main); tt.file != "config.toml" && (err != nil || string(now) != tt.main) {
				t.Errorf("the file of containerd is now\n%s", now)
			}
		})
	}
}

// A pipe that nobody writes to, and a device without an end.
func TestContainerdFileIsNoTrap(t *testing.T) {
	e := newEngines(t, "bin/agentbox-runtime", "engine/containerd containerd x 2.1.9")
	pipe := filepath.Join(e.dir, "config.toml")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{pipe, "/dev/zero", e.dir} {
		if _, stderr, code := e.run("containerd", "--file", file); code != 1 || !strings.Contains(stderr, "is not a regular file") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	}
}

func TestInstallPrints(t *testing.T) {
	e := newEngines(t, "bin/agentbox-runtime", "engine/dockerd Docker version 28.5.2", "engine/containerd containerd x 2.1.9", "engine/podman podman version 5.8.0")
	file := filepath.Join(e.dir, "daemon.json")
	if err := os.WriteFile(file, []byte("{\r\n  \"debug\": true\r\n}\r\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var transcript strings.Builder
	for _, args := range [][]string{
		{"docker", "--file", file, "--log-limits", "--dry-run"},
		{"docker", "--file", file, "--log-limits", "--dry-run", "--json"},
		{"docker", "--file", file, "--log-limits"},
		{"docker", "--file", file},
		{"docker", "--file", file, "--json"},
		{"containerd", "--file", filepath.Join(e.dir, "config.toml")},
		{"crio", "--file", filepath.Join(e.dir, "crio.conf.d/50-agentbox.conf")},
		{"podman", "--file", filepath.Join(e.dir, "podman.conf.d/50-agentbox.conf")},
	} {
		stdout, stderr, code := e.run(args...)
		if code != 0 || stderr != "" {
			t.Errorf("%q: code %d, %s", args, code, stderr)
		}
		transcript.WriteString("$ agentbox install " + strings.ReplaceAll(strings.Join(args, " "), e.dir, "DIR") + "\n" + stdout)
	}
	golden(t, "install.golden.txt", []byte(transcript.String()))
}

func TestInstallChangesNothing(t *testing.T) {
	e := newEngines(t, "bin/agentbox-runtime")
	file := filepath.Join(e.dir, "daemon.json")
	if err := os.WriteFile(file, []byte("{\n  \"debug\": yes\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, "install needs the name of an engine: one of docker, containerd, crio, podman"},
		{[]string{"lxc"}, 2, `"lxc" is not an engine`},
		{[]string{"docker", "podman"}, 2, "one engine, not 2"},
		{[]string{"podman", "--log-limits"}, 2, "--log-limits is for docker"},
		{[]string{"crio", "--door", "shim"}, 2, "crio starts no shim"},
		{[]string{"docker", "--door", "back"}, 2, `--door "back"`},
		{[]string{"docker", "--nonsense"}, 2, "unknown flag"},
		{[]string{"docker", "--program", "agentbox-runtime"}, 2, "is not absolute"},
		{[]string{"docker", "--file", file}, 1, "DIR/daemon.json:2:12: is not valid JSON"},
	}
	for _, tt := range tests {
		stdout, stderr, code := e.run(tt.args...)
		if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: code %d, stdout %q, stderr %q", tt.args, code, stdout, stderr)
		}
	}
	if entries, err := os.ReadDir(e.dir); err != nil || len(entries) != 2 {
		t.Errorf("something was made: %v, %v", entries, err)
	}
}

func TestUninstall(t *testing.T) {
	e, f := newEngines(t, "bin/agentbox-runtime"), newFixture(t)
	docker, podman := filepath.Join(e.dir, "daemon.json"), filepath.Join(e.dir, "podman.conf.d/file")
	if err := os.WriteFile(docker, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"docker", "--file", docker, "--log-limits"}, {"podman", "--file", podman}} {
		if _, stderr, code := e.run(args...); code != 0 {
			t.Fatal(stderr)
		}
	}
	var transcript strings.Builder
	uninstall := func(wantCode int, args ...string) string {
		t.Helper()
		line := "$ agentbox " + strings.Join(append([]string{"uninstall"}, args...), " ") + "\n"
		stdout, stderr, code := f.run(append([]string{"uninstall", "--records", filepath.Join(e.dir, "records")}, args...)...)
		if code != wantCode {
			t.Errorf("%q: code %d: %s", args, code, stderr)
		}
		transcript.WriteString(line + strings.ReplaceAll(stdout+stderr, e.dir, "DIR"))
		return stderr
	}
	f.live("aaaa1111", "agent-7")
	f.live("bbbb2222", "")
	dead := f.live("cccc3333", "gone")
	dead.Started.Init.StartTime++
	if err := f.states.Update(dead); err != nil {
		t.Fatal(err)
	}
	broken := f.live("dddd4444", "")
	if err := os.WriteFile(filepath.Join(f.states.Path(broken.Root, broken.ID), "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := uninstall(1)
	if strings.Contains(refused, "cccc3333") {
		t.Errorf("one that has ended lives: %s", refused)
	}
	uninstall(1, "--dry-run", "docker")
	if data, err := os.ReadFile(docker); err != nil || string(data) == "{}" {
		t.Errorf("it was done: %s, %v", data, err)
	}
	for _, st := range []string{"aaaa1111", "bbbb2222", "cccc3333", "dddd4444"} {
		if err := f.states.Remove("/run/runc", st); err != nil {
			t.Fatal(err)
		}
	}
	uninstall(0, "--dry-run")
	uninstall(0, "containerd")
	uninstall(0, "docker")
	uninstall(0, "--json", "docker")
	uninstall(0)
	uninstall(0)
	uninstall(2, "lxc")
	golden(t, "uninstall.golden.txt", []byte(transcript.String()))
	if data, err := os.ReadFile(docker); err != nil || string(data) != "{}" {
		t.Errorf("the file is %q, %v", data, err)
	}
	entries, err := os.ReadDir(e.dir)
	if err != nil || len(entries) != 2 { // bin and daemon.json
		t.Errorf("left: %v, %v", entries, err)
	}
}

// A relative path is of the current folder, in the record too.
func TestInstallRelativePath(t *testing.T) {
	e := newEngines(t, "bin/agentbox-runtime")
	t.Chdir(e.dir)
	if _, stderr, code := e.run("podman", "--file", "x.conf"); code != 0 {
		t.Fatal(stderr)
	}
	if rec, err := (install.Store{Dir: filepath.Join(e.dir, "records")}).Load(install.Podman); err != nil || rec.File != filepath.Join(e.dir, "x.conf") {
		t.Errorf("%+v, %v", rec, err)
	}
}

func TestInstallNotesAShimElsewhere(t *testing.T) {
	e := newEngines(t, "bin/agentbox-runtime", "engine/containerd-shim-agentbox-v1", "engine/containerd containerd x 2.1.9")
	stdout, _, _ := e.run("containerd", "--dry-run", "--file", filepath.Join(e.dir, "config.toml"))
	if !strings.Contains(stdout, "the shim starts the agentbox-runtime that is beside it, in DIR/engine") {
		t.Errorf("got %s", stdout)
	}
}

func TestInstallSystemd(t *testing.T) {
	e := newEngines(t, "bin/agentbox", "engine/systemctl")
	file := filepath.Join(e.dir, "system", install.UnitName)
	run := func(want int, args ...string) string {
		t.Helper()
		stdout, stderr, code := e.run(append(args, "--file", file)...)
		if code != want {
			t.Fatalf("%q: code %d, %s", args, code, stderr)
		}
		return stdout + stderr
	}
	wants := func(said string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(said, part) {
				t.Errorf("%q is not in\n%s", part, said)
			}
		}
	}
	wants(run(0, "systemd", "--dry-run"), "+++ DIR/system/agentbox-supervise.service", "+ExecStart=DIR/bin/agentbox supervise", "+Restart=always", "+OOMScoreAdjust=-900")
	if _, err := os.Lstat(filepath.Dir(file)); err == nil {
		t.Error("a dry run made a folder")
	}
	wants(run(0, "systemd"), "Made DIR/system/agentbox-supervise.service: it runs the supervisor.", "systemctl daemon-reload && systemctl enable --now agentbox-supervise.service")
	wants(run(0, "systemd"), "Nothing to change")
	wants(run(0, "systemd", "--program", e.program("elsewhere/agentbox")), "Changed DIR/system/agentbox-supervise.service: it runs the supervisor.")
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), "\nExecStart="+e.dir+"/elsewhere/agentbox supervise\n") {
		t.Errorf("the unit is %s, %v", data, err)
	}
	wants(run(2, "systemd", "--door", "shim"), "--door is for engines of containers")
	wants(run(2, "systemd", "--log-limits"), "--log-limits is for docker")
	wants(run(1, "systemd", "--program", e.program("a%b/agentbox")), "characters that mean something in a unit of systemd")

	if err := os.WriteFile(file, []byte("[Service]\nExecStart=/mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	change, err := (install.Store{Dir: filepath.Join(e.dir, "records")}).Uninstall(install.Systemd)
	if err != nil || change.After != nil {
		t.Fatalf("%+v, %v", change, err)
	}
	next, _ := reload(change)
	wants(next, "systemctl stop agentbox-supervise.service; rm -f "+e.dir+"/system/multi-user.target.wants/agentbox-supervise.service; systemctl daemon-reload")

	other := newEngines(t, "bin/agentbox")
	file = filepath.Join(other.dir, install.UnitName)
	if err := os.WriteFile(file, []byte("[Service]\nExecStart=/mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := other.run("systemd", "--file", file)
	if code != 1 || !strings.Contains(stderr, "agentbox-supervise.service is there already, which this agentbox did not write") {
		t.Errorf("code %d, %s", code, stderr)
	}
}

// A state of a later agentbox, with more in it, is one that lives.
func TestLaterStateLives(t *testing.T) {
	f := newFixture(t)
	st := f.live("aaaa1111", "agent-7")
	name := filepath.Join(f.states.Path(st.Root, st.ID), "state.json")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	m["version"], m["later"] = 99, map[string]any{"x": 1}
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	live, err := liveSandboxes(places(f.states.Dir))
	if err != nil || !slices.Equal(live, []string{"agent-7 (aaaa1111)"}) {
		t.Errorf("got %q, %v", live, err)
	}
}

func TestManyLive(t *testing.T) {
	names := strings.Fields(strings.Repeat("x ", maxCandidates+3))
	if err := stillLive(names); !strings.Contains(err.Error(), "x, x and 3 more: stop") {
		t.Errorf("got %v", err)
	}
}

func TestInstallCompletion(t *testing.T) {
	f := newFixture(t)
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"install", ""}, []string{"docker", "containerd", "crio", "podman", "systemd"}},
		{[]string{"install", "docker", ""}, nil},
		{[]string{"install", "docker", "--door", ""}, doors},
		{[]string{"uninstall", "docker", ""}, []string{"containerd", "crio", "podman", "systemd"}},
	} {
		stdout, _, _ := f.run(append([]string{"__complete"}, tt.args...)...)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if got := lines[:len(lines)-1]; !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q, want %q", tt.args, got, tt.want)
		}
	}
}
