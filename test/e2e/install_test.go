//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/install"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
)

// daemonJSON is as an administrator may have it.
const daemonJSON = `{
	"max-concurrent-downloads": 2,

	"runtimes": { "other": { "path": "/usr/bin/env" } }
}`

// newPlainDocker returns daemons for one test that do not know agentbox.
func newPlainDocker(t *testing.T) *Docker {
	t.Helper()
	need(t, docker, runc)
	e, err := startEngine(cgroupfs, func(e *engine) error {
		return errors.Join(e.writeDockerConfigs(), os.WriteFile(e.file("daemon.json"), []byte(daemonJSON), 0o600), os.Chmod(e.file("daemon.json"), 0o640))
	})
	if err != nil {
		t.Fatalf("start containerd and dockerd: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.logs([2]int64{}))
		}
		if err := e.stop(); err != nil {
			t.Error(err)
		}
	})
	return &Docker{engine: e, image: "busybox", Box: &Box{
		t: t, LowLevel: "runc", Config: e.config("agentbox"), State: e.state(), Results: result.Store{Dir: e.results()},
	}}
}

// program makes agentbox-runtime of this run's folders under a name of its own.
func (e *engine) program(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(e.file(name), "agentbox-runtime")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %q --agentbox-config %q --agentbox-state %q \"$@\"\n", runtimePath(), e.config("agentbox"), e.state())
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// agentbox runs install or uninstall, with the records of this engine.
func (e *engine) agentbox(t *testing.T, args ...string) Output {
	t.Helper()
	args = append([]string{"--state", e.state()}, append(args, "--records", e.file("records"))...)
	return execute(t, 30*time.Second, exec.Command(filepath.Join(bin, "agentbox"), args...))
}

func (e *engine) mustAgentbox(t *testing.T, says string, args ...string) {
	t.Helper()
	if out := e.agentbox(t, args...); out.Code != 0 || !strings.Contains(out.Stdout, says) {
		t.Fatalf("agentbox %q: %v, want it to say %q", args, out, says)
	}
}

// reload makes dockerd read its file, and waits until it knows agentbox or not.
func (d *Docker) reload(want bool) {
	d.t.Helper()
	if err := d.docker.cmd.Process.Signal(unix.SIGHUP); err != nil {
		d.t.Fatal(err)
	}
	eventually(d.t, 60*time.Second, func() string {
		runtimes := d.do("info", "--format", "{{json .Runtimes}}")
		if strings.Contains(runtimes, `"agentbox"`) != want {
			return "after the reload Docker has the runtimes " + runtimes
		}
		return ""
	})
}

// The whole life of an installation: control, install, use, upgrade while a
// sandbox lives, refusal, uninstall.
func TestInstallDocker(t *testing.T) {
	d := newPlainDocker(t)
	file := d.file("daemon.json")
	before, folder := readFile(t, file), listDir(t, d.dir)
	first, second := d.program(t, "first"), d.program(t, "second")
	unknown := append(d.words(d.newName(), "agentbox", "--rm"), "true")
	if out := d.run(unknown...); out.Code == 0 || !strings.Contains(out.Stderr, "agentbox") {
		t.Fatalf("before install: %v", out)
	}

	d.mustAgentbox(t, `+	"runtimes": { "other": { "path": "/usr/bin/env" }, "agentbox": {`, "install", "docker", "--file", file, "--program", first, "--dry-run")
	if now := readFile(t, file); now != before {
		t.Fatalf("a dry run has written %s", now)
	}
	d.mustAgentbox(t, "systemctl reload docker", "install", "docker", "--file", file, "--program", first)
	d.mustAgentbox(t, "Nothing to change", "install", "docker", "--file", file, "--program", first)
	d.reload(true)

	c := d.detached("agentbox", "-m 64m --pids-limit 99", "echo started; exec sleep 1000")
	if have := c.Cgroup.limits(); have.Memory != 64*mib || have.Pids != 99 {
		t.Errorf("the cgroup has %+v", have)
	}
	r, out := d.inspect(c.Name)
	if r == nil {
		t.Fatalf("agentbox inspect: %v", out)
	}
	sameAsReport(t, r, c.Cgroup.limits())

	installed := readFile(t, file)
	if out := d.agentbox(t, "uninstall"); out.Code != 1 || !strings.Contains(out.Stderr, c.Name) || !strings.Contains(out.Stderr, c.ID) {
		t.Errorf("uninstall does not name the sandbox that lives: %v", out)
	}
	if now := readFile(t, file); now != installed {
		t.Errorf("uninstall was refused and has written %s", now)
	}

	// An upgrade that moves the program leaves the sandbox what it had.
	d.mustAgentbox(t, "Changed", "install", "docker", "--file", file, "--program", second)
	d.reload(true)
	if out := c.exec("echo still here"); out.Stdout != "still here\n" {
		t.Errorf("docker exec after the upgrade: %v", out)
	}
	other := d.detached("agentbox", "", "exec sleep 1000")
	if have, want := other.Cgroup.limits(), defaultLimits(); have != want {
		t.Errorf("after the upgrade the cgroup has %+v, want %+v", have, want)
	}
	for _, sandbox := range []*DockerContainer{c, other} {
		sandbox.do("stop", "--time", "0", sandbox.Name)
		if r := sandbox.verdict(); r.FinishedAt == nil {
			t.Errorf("no verdict: %s", describe(r))
		}
		sandbox.remove()
	}

	d.mustAgentbox(t, "Changed", "uninstall", "docker")
	if now := readFile(t, file); now != before {
		t.Errorf("the file is\n%q\nand was\n%q", now, before)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file has the mode %v, %v", info.Mode(), err)
	}
	d.reload(false)
	if out := d.run(unknown...); out.Code == 0 {
		t.Errorf("after uninstall: %v", out)
	}
	for _, dir := range []string{"first", "second"} {
		if err := os.RemoveAll(d.file(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if now := listDir(t, d.dir); now != folder {
		t.Errorf("the folder has %s, and had %s", now, folder)
	}
	if len(d.kept(c.ID)) != 1 || len(d.kept(other.ID)) != 1 {
		t.Error("uninstall has removed results")
	}
}

// listDir lists the names in a folder, but those of the daemons and of results.
func listDir(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		switch e.Name() {
		case "results", "state", "data", "exec", "containerd", "containerd-state":
		default:
			if !strings.HasSuffix(e.Name(), ".sock") && !strings.Contains(e.Name(), ".sock.") && !strings.HasSuffix(e.Name(), ".pid") {
				names = append(names, e.Name())
			}
		}
	}
	return strings.Join(names, " ")
}

// criConfig is a configuration of containerd with Kubernetes' part on, which
// makes nothing outside of a folder. It lists no runtimes.
func criConfig(dir string) string {
	return fmt.Sprintf(`# as an administrator has it
version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = %q   # not the usual one

[plugins."io.containerd.grpc.v1.cri"]
	restrict_oom_score_adj = true
	[plugins."io.containerd.grpc.v1.cri".cni]
		conf_dir = %q
[plugins."io.containerd.internal.v1.opt"]
	path = %q`, filepath.Join(dir, "containerd"), filepath.Join(dir, "containerd-state"), filepath.Join(dir, "sock"), filepath.Join(dir, "cni"), filepath.Join(dir, "opt"))
}

// plainContainerd is one daemon of one test, with a file of its own.
type plainContainerd struct {
	*engine
	t    *testing.T
	file string
}

func newPlainContainerd(t *testing.T) *plainContainerd {
	t.Helper()
	need(t, cri, runc)
	e := &engine{dir: tempDir(t), path: os.Getenv("PATH")}
	c := &plainContainerd{engine: e, t: t, file: e.file("config.toml")}
	writeFile(t, c.file, criConfig(e.dir))
	writeFile(t, e.config("agentbox"), fmt.Sprintf("results = %q\n", e.results()))
	t.Cleanup(e.removeCgroups)
	t.Cleanup(e.unmount)
	t.Cleanup(c.down)
	t.Cleanup(func() {
		if t.Failed() && c.containerd != nil {
			t.Log(readFile(t, c.containerd.log))
		}
	})
	return c
}

// up starts containerd and returns what it says of Kubernetes' part: "ok", or
// "error" when that did not load.
func (c *plainContainerd) up() string {
	c.t.Helper()
	c.down()
	var err error
	if c.containerd, err = c.start("containerd", "--config", c.file); err != nil {
		c.t.Fatal(err)
	}
	var list Output
	eventually(c.t, 60*time.Second, func() string {
		if list = execute(c.t, 30*time.Second, c.ctr("plugins", "ls")); list.Code != 0 {
			return fmt.Sprintf("ctr plugins ls: %v", list)
		}
		return ""
	})
	for line := range strings.Lines(list.Stdout) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "io.containerd.grpc.v1" && f[1] == "cri" {
			return f[len(f)-1]
		}
	}
	c.t.Fatalf("containerd has no CRI plugin: %v", list)
	return ""
}

func (c *plainContainerd) down() {
	c.t.Helper()
	if err := c.containerd.stop(); err != nil {
		c.t.Error(err)
	}
	c.containerd = nil
}

func (c *plainContainerd) ctr(args ...string) *exec.Cmd {
	return exec.Command("ctr", append([]string{"--address", filepath.Join(c.dir, "sock"), "--namespace", token}, args...)...)
}

// handler is what containerd, asked itself, has as the runtime agentbox; nil:
// nothing.
func (c *plainContainerd) handler() map[string]any {
	c.t.Helper()
	out := execute(c.t, 30*time.Second, exec.Command("containerd", "--config", c.file, "config", "dump"))
	var dump struct {
		Plugins map[string]struct {
			Containerd struct {
				Runtimes map[string]map[string]any `toml:"runtimes"`
			} `toml:"containerd"`
		} `toml:"plugins"`
	}
	if err := toml.Unmarshal([]byte(out.Stdout), &dump); err != nil || out.Code != 0 {
		c.t.Fatalf("containerd config dump: %v: %v", err, out)
	}
	for _, plugin := range dump.Plugins {
		if h := plugin.Containerd.Runtimes["agentbox"]; h != nil {
			return h
		}
	}
	return nil
}

// Kubernetes' part of containerd loads with agentbox, and containerd itself says
// what its handler is; a container that is started as the handler says has its
// limits.
func TestInstallContainerd(t *testing.T) {
	c := newPlainContainerd(t)
	if cri := c.up(); cri != "ok" {
		t.Fatalf("without agentbox, Kubernetes' part is in the state %s", cri)
	}
	before, program := readFile(t, c.file), c.program(t, "bin")
	if h := c.handler(); h != nil {
		t.Fatalf("containerd has %v before", h)
	}
	args := []string{"install", "containerd", "--file", c.file, "--program", program, "--door", "runtime"}
	c.mustAgentbox(t, "systemctl restart containerd", args...)
	c.mustAgentbox(t, "Nothing to change", args...)
	if cri := c.up(); cri != "ok" {
		t.Errorf("with agentbox, Kubernetes' part is in the state %s\n%s", cri, readFile(t, c.containerd.log))
	}
	h := c.handler()
	options, _ := h["options"].(map[string]any)
	if h["runtime_type"] != "io.containerd.runc.v2" || options["BinaryName"] != program || fmt.Sprint(h["pod_annotations"]) != "[agentbox.dev/*]" {
		t.Fatalf("containerd has %v", h)
	}
	c.runs("--runtime", h["runtime_type"].(string), "--runc-binary", program)

	if without := withoutRunc(t, c.file); !has(containerd2) {
		installed := readFile(t, c.file)
		writeFile(t, c.file, without)
		if cri := c.up(); cri != "error" {
			t.Errorf("without runc in the list, Kubernetes' part is in the state %s: agentbox need not add it", cri)
		}
		writeFile(t, c.file, installed)
	}
	c.down()
	c.mustAgentbox(t, "Changed", "uninstall", "containerd")
	if now := readFile(t, c.file); now != before {
		t.Errorf("the file is\n%q\nand was\n%q", now, before)
	}
	if exists(c.engine.file("records")) {
		t.Error("records are left")
	}
	if cri := c.up(); cri != "ok" || c.handler() != nil {
		t.Errorf("after uninstall Kubernetes' part is in the state %s, and has %v", cri, c.handler())
	}
}

// runs starts a container and looks at its limits. It returns the id.
func (c *plainContainerd) runs(flags ...string) (id string) {
	c.t.Helper()
	dir, id := tempDir(c.t), fmt.Sprintf("%s-%d", token, containers.Add(1))
	testOf.Store(id, c.t.Name())
	s := baseSpec(id, sh("sleep 1000")...)
	memoryLimit(64 * mib)(s)
	if err := writeBundle(dir, s); err != nil {
		c.t.Fatal(err)
	}
	must := func(args ...string) Output {
		c.t.Helper()
		out := execute(c.t, 60*time.Second, c.ctr(args...))
		if out.Code != 0 {
			c.t.Fatalf("ctr %q: %v", args, out)
		}
		return out
	}
	defer must("containers", "rm", id)
	must(append(append([]string{"run", "--detach", "--null-io"}, flags...), "--config", filepath.Join(dir, "config.json"), id)...)
	defer must("task", "rm", "--force", id)
	var pid int
	for line := range strings.Lines(must("task", "ls").Stdout) {
		if f := strings.Fields(line); f[0] == id {
			_, _ = fmt.Sscan(f[1], &pid)
		}
	}
	want := defaultLimits()
	want.Memory = 64 * mib
	if have := cgroupOf(c.t, pid).limits(); have != want {
		c.t.Errorf("the cgroup has %+v, want %+v", have, want)
	}
	return id
}

// With the shim installed, containerd starts it by the path that it is told, from
// wherever it is.
func TestInstallContainerdShim(t *testing.T) {
	c := newPlainContainerd(t)
	shim := filepath.Join(bin, install.ShimName)
	if cri := c.up(); cri != "ok" {
		t.Fatalf("without agentbox, Kubernetes' part is in the state %s", cri)
	}
	c.mustAgentbox(t, "Changed", "install", "containerd", "--file", c.file, "--program", runtimePath())
	if cri := c.up(); cri != "ok" {
		t.Errorf("with agentbox, Kubernetes' part is in the state %s", cri)
	}
	h := c.handler()
	if h["runtime_type"] != install.RuntimeType || h["runtime_path"] != shim || fmt.Sprint(h["pod_annotations"]) != "[agentbox.dev/*]" {
		t.Fatalf("containerd has %v", h)
	}
	id := c.runs("--runtime", h["runtime_path"].(string), "--runtime-config-path", c.config("agentbox"))
	b := &Box{t: t, Config: c.config("agentbox"), State: state.SystemDir, Results: result.Store{Dir: c.results()}}
	if kept := b.kept(id); len(kept) != 1 || kept[0].Door != result.DoorShim {
		t.Errorf("the results are %v", kept)
	}
	c.down()
	c.mustAgentbox(t, "Changed", "uninstall")
}

// Docker starts the shim itself, from 23 on.
func TestInstallDockerShim(t *testing.T) {
	need(t, annotations) // Docker 24
	shim := filepath.Join(bin, install.ShimName)
	d := newPlainDocker(t)
	file := d.file("daemon.json")
	before := readFile(t, file)
	d.mustAgentbox(t, "Changed", "install", "docker", "--file", file, "--program", runtimePath(), "--door", "shim")
	if now := readFile(t, file); !strings.Contains(now, fmt.Sprintf(`"runtimeType":%q`, shim)) {
		t.Errorf("the file is %s", now)
	}
	d.reload(true)
	c := d.detached("agentbox", "-m 64m --pids-limit 99", "exec sleep 1000")
	if have := c.Cgroup.limits(); have.Memory != 64*mib || have.Pids != 99 {
		t.Errorf("the cgroup has %+v", have)
	}
	// The shim knows the folders of the system only.
	refused := execute(t, 30*time.Second, exec.Command(filepath.Join(bin, "agentbox"), "uninstall", "--records", d.file("records")))
	if refused.Code != 1 || !strings.Contains(refused.Stderr, c.ID) {
		t.Errorf("uninstall does not name the sandbox that lives: %v", refused)
	}
	c.remove()
	left, err := filepath.Glob(filepath.Join(config.SystemResultsDir, c.ID+"*"))
	if err != nil || len(left) != 1 {
		t.Errorf("the results are %q, %v", left, err)
	}
	for _, name := range left {
		_ = os.Remove(name)
	}
	d.mustAgentbox(t, "Changed", "uninstall")
	if now := readFile(t, file); now != before {
		t.Errorf("the file is\n%q\nand was\n%q", now, before)
	}
}

// withoutRunc is the file without the table of runc that was added beside ours.
func withoutRunc(t *testing.T, file string) string {
	t.Helper()
	var kept []string
	for block := range strings.SplitSeq(readFile(t, file), "\n# Added by ") {
		if !strings.Contains(block, "runtimes.runc]") {
			kept = append(kept, block)
		}
	}
	return strings.Join(kept, "\n# Added by ")
}

// On containerd 2, whose file imports a folder, agentbox has a file of its own
// there, and the settings of the others stay.
func TestInstallContainerdDropIn(t *testing.T) {
	need(t, containerd2)
	c := newPlainContainerd(t)
	main := fmt.Sprintf("version = 3\nimports = [%q]\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.other]\nruntime_type = 'io.containerd.runc.v2'\n", c.engine.file("conf.d/*.toml"))
	writeFile(t, c.file, main)
	c.mustAgentbox(t, c.engine.file("conf.d/50-agentbox.toml"), "install", "containerd", "--file", c.file, "--program", c.program(t, "bin"))
	if now := readFile(t, c.file); now != main {
		t.Errorf("containerd's own file is now %s", now)
	}
	if h := c.handler(); fmt.Sprint(h["pod_annotations"]) != "[agentbox.dev/*]" {
		t.Errorf("containerd has %v", h)
	}
	out := execute(t, 30*time.Second, exec.Command("containerd", "--config", c.file, "config", "dump"))
	for _, name := range []string{"runtimes.other]", "runtimes.runc]"} {
		if !strings.Contains(out.Stdout, name) {
			t.Errorf("%s is lost:\n%v", name, out)
		}
	}
	c.mustAgentbox(t, "Removed", "uninstall")
	if exists(c.engine.file("conf.d")) || exists(c.engine.file("records")) {
		t.Error("a folder is left")
	}
}

// What install prints for programs is what it did.
func TestInstallJSON(t *testing.T) {
	need(t)
	e := &engine{dir: tempDir(t), path: os.Getenv("PATH")}
	writeFile(t, e.file("daemon.json"), daemonJSON)
	out := e.agentbox(t, "install", "docker", "--json", "--file", e.file("daemon.json"), "--program", e.program(t, "bin"), "--log-limits")
	var told struct {
		Changed bool
		Door    string
		Next    []string
	}
	if err := json.NewDecoder(bytes.NewReader([]byte(out.Stdout))).Decode(&told); err != nil || !told.Changed || told.Door != "runtime" || len(told.Next) != 1 {
		t.Errorf("%+v, %v: %v", told, err, out)
	}
	if has(docker) { // from 23 on it says whether it would take the file
		check := execute(t, 30*time.Second, exec.Command("dockerd", "--validate", "--config-file", e.file("daemon.json")))
		if check.Code != 0 && !strings.Contains(check.Stderr, "unknown flag") {
			t.Errorf("dockerd --validate: %v\n%s", check, readFile(t, e.file("daemon.json")))
		}
	}
}
