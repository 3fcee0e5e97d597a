//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
)

const (
	annotations feature = "annotations" // docker run --annotation, since Docker 24
	shims       feature = "shims"       // docker run --runtime with a type of containerd, since Docker 23
)

func init() {
	features[annotations] = sync.OnceValue(func() error { return wantDocker(24) })
	features[shims] = sync.OnceValue(func() error { return wantDocker(23) })
}

func wantDocker(least int) error {
	out, err := exec.Command("dockerd", "--version").Output()
	if err != nil {
		return err
	}
	var major int // "Docker version 28.5.2, build ecc6942"
	if _, err := fmt.Sscanf(string(out), "Docker version %d.", &major); err != nil {
		return fmt.Errorf("%q: %w", out, err)
	}
	if major < least {
		return fmt.Errorf("dockerd is of version %d", major)
	}
	return nil
}

// The runtimes that the daemon knows besides runc, and the configuration of each.
var dockerRuntimes = map[string]string{
	"agentbox":           "",
	"agentbox-crun":      "runtime = \"crun\"\n",
	"agentbox-may":       "[oom]\nallow = [\"container\", \"process\"]\n", // leave the scope to the container
	"agentbox-process":   "[oom]\nscope = \"process\"\n",
	"agentbox-strict":    "mode = \"strict\"\n",
	"agentbox-demanding": "mode = \"strict\"\nstrict_require = [\"memory\", \"disk\"]\n", // more than any host has
	"agentbox-io":        slowIO + "\n",
	"agentbox-bad":       "memroy = 1\n",
	"agentbox-missing":   "runtime = \"/nonexistent/runc\"\n",
}

// Docker is a containerd and a dockerd that belong to this run, as one test sees
// them. Box is agentbox-runtime as the daemon calls it.
type Docker struct {
	*Box
	*engine
	image string // of new containers
}

// dockerShims are runtimes that containerd starts by our shim, and the
// configuration of each.
var dockerShims = map[string]string{
	"agentbox-shim":     "",
	"agentbox-shim-bad": "memroy = 1\n",
}

// engine is what all tests of one cgroup driver share.
type engine struct {
	driver             cgroupDriver
	dir                string // every file of both daemons but for what has to be on a disk
	disk               string // containers and images
	path               string // PATH of both, where containerd looks for shims
	client             string // a docker program that this dockerd understands
	containerd, docker *daemon
	shown              [2]int64 // how much of their logs was shown already
}

// daemon is one of the two.
type daemon struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// A cgroupDriver is who makes the cgroups of Docker's containers.
type cgroupDriver string

const (
	cgroupfs    cgroupDriver = "cgroupfs" // the low-level runtime
	systemdUnit cgroupDriver = "systemd"  // systemd, one scope for each
)

// shared are the daemons of each driver, started for the first test that asks.
var shared = map[cgroupDriver]func() (*engine, error){
	cgroupfs:    sharedEngine(cgroupfs),
	systemdUnit: sharedEngine(systemdUnit),
}

func sharedEngine(driver cgroupDriver) func() (*engine, error) {
	return sync.OnceValues(func() (*engine, error) {
		e, err := startEngine(driver, (*engine).writeDockerConfigs)
		if err == nil {
			atEnd(e.stop)
		}
		return e, err
	})
}

// newDocker returns daemons that use the cgroupfs driver.
func newDocker(t *testing.T, wanted ...feature) *Docker {
	t.Helper()
	return newDockerOf(t, cgroupfs, wanted...)
}

func newDockerOf(t *testing.T, driver cgroupDriver, wanted ...feature) *Docker {
	t.Helper()
	need(t, append([]feature{docker, runc}, wanted...)...)
	e, err := shared[driver]()
	if err != nil {
		t.Fatalf("start containerd and dockerd: %v", err)
	}
	from := e.logSizes()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.logs(from))
			e.shown = e.logSizes()
		}
	})
	return &Docker{engine: e, image: "busybox", Box: &Box{
		t: t, LowLevel: "runc", Config: e.config("agentbox"), State: e.state(),
		Results: result.Store{Dir: e.results()},
	}}
}

func (e *engine) file(name string) string          { return filepath.Join(e.dir, name) }
func (e *engine) socket() string                   { return e.file("docker.sock") }
func (e *engine) state() string                    { return e.file("state") }
func (e *engine) results() string                  { return e.file("results") }
func (e *engine) config(runtimeName string) string { return e.file(runtimeName + ".toml") }

// dockerCgroup is the parent of all containers of the daemon, below that of the run.
const dockerCgroup = "docker"

// cgroupParent is dockerd's --cgroup-parent.
func (e *engine) cgroupParent() string {
	if e.driver == systemdUnit {
		return token + ".slice"
	}
	return "/" + token + "/" + dockerCgroup
}

// parentFolder is where the containers' cgroups are on cgroup v2.
func (e *engine) parentFolder() string {
	if e.driver == systemdUnit {
		return sliceFolder(e.cgroupParent())
	}
	return filepath.Join(parents()[0], dockerCgroup)
}

// startEngine starts daemons with the configuration files that configure writes.
func startEngine(driver cgroupDriver, configure func(*engine) error) (e *engine, err error) {
	e, err = newEngine(bin + ":" + os.Getenv("PATH"))
	if err != nil {
		return nil, err
	}
	e.driver = driver
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, e.logs([2]int64{}))
			_ = e.stop()
		}
	}()
	if err := configure(e); err != nil {
		return e, err
	}
	if err := e.startContainerd(); err != nil {
		return e, err
	}
	e.docker, err = e.start("dockerd",
		"--config-file", e.file("daemon.json"), "--containerd", e.containerdSocket(), "--host", "unix://"+e.socket(),
		"--data-root", filepath.Join(e.disk, "docker"), "--exec-root", e.file("exec"), "--pidfile", e.file("docker.pid"),
		"--exec-opt", "native.cgroupdriver="+string(driver), "--cgroup-parent", e.cgroupParent(),
		"--bridge=none", "--iptables=false", "--ip6tables=false")
	if err != nil {
		return e, err
	}
	if err := e.waitReady(); err != nil {
		return e, err
	}
	if e.client, err = e.findClient(); err != nil {
		return e, err
	}
	return e, e.importImages()
}

// newEngine makes the folder of daemons that find programs in path.
func newEngine(path string) (*engine, error) {
	dir, err := os.MkdirTemp(scratch, "d")
	if err != nil {
		return nil, err
	}
	disk, err := os.MkdirTemp(onDisk(), token)
	if err != nil {
		return nil, err
	}
	return &engine{dir: dir, disk: disk, path: path}, nil
}

func (e *engine) containerdSocket() string { return e.file("containerd.sock") }

func (e *engine) startContainerd() (err error) {
	// What is switched off would make files outside of our folder, or costs time.
	text := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
address = %q
[debug]
level = "warn"
`, filepath.Join(e.disk, "containerd"), e.file("containerd-state"), e.containerdSocket())
	if err := os.WriteFile(e.file("containerd.toml"), []byte(text), 0o600); err != nil {
		return err
	}
	e.containerd, err = e.start("containerd", "--config", e.file("containerd.toml"))
	return err
}

func (e *engine) writeDockerConfigs() error {
	type options struct{ ConfigPath string }
	type entry struct {
		Path    string   `json:"path,omitempty"`
		Args    []string `json:"runtimeArgs,omitempty"`
		Type    string   `json:"runtimeType,omitempty"`
		Options *options `json:"options,omitempty"`
	}
	entries := map[string]entry{}
	if has(shims) {
		for name, text := range dockerShims {
			if err := e.writeConfig(name, text); err != nil {
				return err
			}
			entries[name] = entry{Type: shimType, Options: &options{ConfigPath: e.config(name)}}
		}
	}
	for name, text := range dockerRuntimes {
		if err := e.writeConfig(name, text); err != nil {
			return err
		}
		entries[name] = entry{Path: runtimePath(), Args: []string{"--agentbox-config", e.config(name), "--agentbox-state", e.state()}}
	}
	data, err := json.Marshal(map[string]any{"runtimes": entries})
	if err != nil {
		return err
	}
	return os.WriteFile(e.file("daemon.json"), data, 0o600)
}

func (e *engine) writeConfig(name, text string) error {
	head := fmt.Sprintf("results = %q\n", e.results())
	return os.WriteFile(e.config(name), []byte(head+text), 0o600)
}

// start starts a daemon in a cgroup of its own: in the root of cgroup v2 there is
// no memory.swap.max to look at, and dockerd would drop swap limits.
func (e *engine) start(program string, args ...string) (*daemon, error) {
	d := &daemon{cmd: exec.Command(program, args...), log: e.file(program + ".log"), done: make(chan struct{})}
	d.cmd.Env = append(os.Environ(), "PATH="+e.path)
	log, err := os.OpenFile(d.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGTERM} // should this run be killed
	if cgroupVersion() == 2 {
		dir := filepath.Join(parents()[0], e.cgroup(program))
		if err := os.MkdirAll(dir, 0o755); err != nil { // there when it starts again
			return nil, err
		}
		f, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		d.cmd.SysProcAttr.UseCgroupFD, d.cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel ties the death signal to the thread
		err := d.cmd.Start()
		started <- err
		if err == nil {
			_ = d.cmd.Wait() // the log has the reason
			close(d.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return d, nil
}

func (e *engine) cgroup(program string) string { return program + "-" + filepath.Base(e.dir) }

// waitReady asks dockerd, without a program as large as its client.
func (e *engine) waitReady() error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", e.socket())
		},
	}}
	for deadline := time.Now().Add(scaled(60 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		resp, err := client.Get("http://docker/_ping")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("dockerd is not ready: %w", err)
		}
		select {
		case <-e.containerd.done:
			return errors.New("containerd ended")
		case <-e.docker.done:
			return errors.New("dockerd ended")
		default:
		}
	}
}

// findClient returns the first docker program on the PATH that speaks a version
// of the API that this dockerd has too.
func (e *engine) findClient() (string, error) {
	err := errors.New("there is no docker program on the PATH")
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, "docker")
		if _, statErr := os.Stat(path); statErr != nil {
			continue
		}
		cmd := e.with(path, "version")
		var out []byte
		if out, err = cmd.CombinedOutput(); err == nil {
			return path, nil
		}
		err = fmt.Errorf("%s version: %w: %s", path, err, out)
	}
	return "", err
}

func (e *engine) with(client string, args ...string) *exec.Cmd {
	cmd := exec.Command(client, args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+e.socket(), "DOCKER_CONFIG="+e.dir, "DOCKER_CLI_HINTS=false")
	return cmd
}

// importImages makes "busybox", and "host", which has nothing but the places
// where the programs of this machine are mounted.
func (e *engine) importImages() error {
	images := map[string]func(*tar.Writer) error{
		"busybox": func(w *tar.Writer) error { return w.AddFS(os.DirFS(rootfs)) },
		"host":    hostLayout,
	}
	for name, write := range images {
		cmd := e.with(e.client, "import", "--change", "ENV PATH=/bin:/usr/bin", "-", name)
		r, w := io.Pipe()
		go func() {
			archive := tar.NewWriter(w)
			_ = w.CloseWithError(errors.Join(write(archive), archive.Close()))
		}()
		cmd.Stdin = r
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("docker import %s: %w: %s", name, err, out)
		}
	}
	return nil
}

// hostLayout writes the folders and links that this machine has beside /usr.
func hostLayout(w *tar.Writer) error {
	for _, name := range []string{"usr", "etc", "tmp", "work", "proc", "sys", "dev"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o1777}); err != nil {
			return err
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		target, err := os.Readlink("/" + name)
		if err != nil {
			continue // not there; a machine without a merged /usr cannot run these tests
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the daemons and removes everything that they made. What cannot be
// removed is found by leftovers.
func (e *engine) stop() error {
	var problems []error
	if e.client != "" {
		if out, err := e.with(e.client, "ps", "--all", "--quiet").Output(); err == nil && len(out) > 0 {
			problems = append(problems, fmt.Errorf("containers are left: %q", out))
			_ = e.with(e.client, append([]string{"rm", "--force"}, strings.Fields(string(out))...)...).Run()
		}
	}
	problems = append(problems, e.docker.stop(), e.containerd.stop())
	refs, err := (state.Store{Dir: e.state()}).List()
	if problems = append(problems, err); len(refs) > 0 {
		problems = append(problems, fmt.Errorf("states are left: %v", refs))
	}
	e.unmount()
	e.removeCgroups()
	if e.driver == systemdUnit {
		problems = append(problems, stopSlice())
	}
	return errors.Join(append(problems, os.RemoveAll(e.dir), os.RemoveAll(e.disk))...)
}

// stop ends a daemon as a service manager does.
func (d *daemon) stop() error {
	if d == nil {
		return nil
	}
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-d.done:
		return nil
	case <-time.After(scaled(30 * time.Second)):
	}
	_ = d.cmd.Process.Kill()
	<-d.done
	return fmt.Errorf("%s did not end by SIGTERM", d.cmd.Path)
}

// unmount undoes what dockerd leaves mounted when it ends: its default network
// namespace, and its own folder.
func (e *engine) unmount() {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range slices.Backward(strings.Split(string(data), "\n")) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (isBelow(fields[4], e.dir) || isBelow(fields[4], e.disk)) {
			_ = unix.Unmount(fields[4], unix.MNT_DETACH)
		}
	}
}

// isBelow reports whether a path is in a folder. Nothing is below a folder without
// a name: an engine that has none must not unmount the whole machine.
func isBelow(path, dir string) bool { return dir != "" && strings.HasPrefix(path, dir+"/") }

// removeCgroups removes the parents that the low-level runtime made, in all
// hierarchies.
func (e *engine) removeCgroups() {
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		for _, name := range []string{dockerCgroup, e.cgroup("dockerd"), e.cgroup("containerd")} {
			dirs, _ := filepath.Glob(filepath.Join(pattern, token, name))
			for _, dir := range dirs {
				_ = os.Remove(dir)
			}
		}
	}
}

func (e *engine) daemons() [2]*daemon { return [2]*daemon{e.containerd, e.docker} }

// logSizes notes how much the daemons have said up to now.
func (e *engine) logSizes() (sizes [2]int64) {
	for i, d := range e.daemons() {
		if d == nil {
			continue
		}
		if info, err := os.Stat(d.log); err == nil {
			sizes[i] = info.Size()
		}
	}
	return sizes
}

// logs returns what the daemons said since then and was not shown yet.
func (e *engine) logs(from [2]int64) string {
	var text strings.Builder
	for i, d := range e.daemons() {
		if d == nil {
			continue
		}
		data, err := os.ReadFile(d.log)
		if err != nil {
			fmt.Fprintln(&text, err)
			continue
		}
		fmt.Fprintf(&text, "%s:\n%s", filepath.Base(d.log), bytes.TrimSpace(data[min(max(from[i], e.shown[i]), int64(len(data))):]))
		text.WriteByte('\n')
	}
	return text.String()
}

// cli is a docker command.
func (d *Docker) cli(args ...string) *exec.Cmd { return d.with(d.client, args...) }

// run runs a docker command, whatever comes of it.
func (d *Docker) run(args ...string) Output {
	d.t.Helper()
	return execute(d.t, 60*time.Second, d.cli(args...))
}

// do runs a docker command that has to succeed, and returns what it prints.
func (d *Docker) do(args ...string) string {
	d.t.Helper()
	out := d.run(args...)
	if out.Code != 0 {
		d.t.Fatalf("docker %q: %v", args, out)
	}
	return strings.TrimSpace(out.Stdout)
}

// DockerContainer is a container of the daemon.
type DockerContainer struct {
	*Docker
	Name, ID string
	Cgroup   Cgroup         // of its first process
	first    int            // that process, as the host counts
	main     *Process       // docker run, when it was not detached
	stdin    io.WriteCloser // of main
}

// of makes containers of another image.
func (d *Docker) of(image string) *Docker {
	other := *d
	other.image = image
	return &other
}

// words is a docker run up to the image.
func (d *Docker) words(name, runtimeName, flags string) []string {
	words := []string{"run", "--name", name, "--runtime", runtimeName, "--network", "none"}
	return append(append(words, strings.Fields(flags)...), d.image)
}

func (d *Docker) newName() string { return fmt.Sprintf("%s-%d", token, containers.Add(1)) }

// detached starts a container that runs a shell script, and removes it at the end
// of the test.
func (d *Docker) detached(runtimeName, flags, script string) *DockerContainer {
	d.t.Helper()
	c := &DockerContainer{Docker: d, Name: d.newName()}
	d.t.Cleanup(c.remove)
	d.do(append(d.words(c.Name, runtimeName, "--detach "+flags), "sh", "-c", script)...)
	c.look()
	return c
}

// held starts a container that waits with its script until it is let go, so that
// a test can see what is there before.
func (d *Docker) held(runtimeName, flags, script string) *DockerContainer {
	d.t.Helper()
	c := &DockerContainer{Docker: d, Name: d.newName()}
	d.t.Cleanup(c.remove)
	cmd := d.cli(append(d.words(c.Name, runtimeName, "--interactive "+flags), "sh", "-c", "echo ready; read go; "+script)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	c.main, c.stdin = launch(d.t, cmd), stdin
	eventually(d.t, 60*time.Second, func() string {
		out := c.main.output()
		if c.main.over() {
			d.t.Fatalf("docker run: %v", out)
		}
		if !strings.Contains(out.Stdout, "ready\n") {
			return fmt.Sprintf("the container has not printed ready: %v", out)
		}
		return ""
	})
	c.look()
	return c
}

// look notes who and where a running container is.
func (c *DockerContainer) look() {
	c.t.Helper()
	c.ID, c.first = c.about("{{.Id}}"), 0
	pid, err := strconv.Atoi(c.about("{{.State.Pid}}"))
	if err != nil {
		c.t.Fatal(err)
	}
	if pid > 0 { // else it has ended already
		c.first, c.Cgroup = pid, cgroupOf(c.t, pid)
	}
}

// about asks Docker.
func (c *DockerContainer) about(format string) string {
	c.t.Helper()
	return c.do("inspect", "--format", format, c.Name)
}

// letGo lets a held container run its script.
func (c *DockerContainer) letGo() {
	c.t.Helper()
	if _, err := io.WriteString(c.stdin, "go\n"); err != nil {
		c.t.Fatal(err)
	}
}

// ends waits for the end of a held container and returns what it printed.
func (c *DockerContainer) ends() Output {
	c.t.Helper()
	out := c.main.wait(60 * time.Second)
	out.Stdout = strings.TrimPrefix(out.Stdout, "ready\n")
	return out
}

// wait waits for the end of a detached container and returns its exit code.
func (c *DockerContainer) wait() int {
	c.t.Helper()
	code, err := strconv.Atoi(c.do("wait", c.Name))
	if err != nil {
		c.t.Fatal(err)
	}
	return code
}

// exec runs a shell script in the container.
func (c *DockerContainer) exec(script string) Output {
	c.t.Helper()
	return c.run("exec", c.Name, "sh", "-c", script)
}

// remove removes the container, running or not.
func (c *DockerContainer) remove() {
	c.t.Helper()
	if out := c.run("rm", "--force", c.Name); out.Code != 0 && !strings.Contains(out.Stderr, "No such container") {
		c.t.Errorf("docker rm: %v", out)
	}
}

// processes are those in the container's cgroup; none when it is gone.
func (c *DockerContainer) processes() []int {
	c.t.Helper()
	var pids []int
	data, _ := os.ReadFile(filepath.Join(filepath.Dir(c.Cgroup.file("pids.max")), "cgroup.procs"))
	for word := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			c.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// allGone waits until nothing runs in the container any more and its cgroup is
// removed.
func (c *DockerContainer) allGone() {
	c.t.Helper()
	eventually(c.t, 60*time.Second, func() string {
		if file := c.Cgroup.file("pids.max"); exists(file) {
			return fmt.Sprintf("%s is still there, with processes %v", filepath.Dir(file), c.processes())
		}
		return ""
	})
}

// verdict is the result of a container that has ended. Docker reports an end
// before it calls delete.
func (c *DockerContainer) verdict() *result.Result {
	c.t.Helper()
	var r *result.Result
	eventually(c.t, 60*time.Second, func() string {
		var out Output
		if r, out = c.inspect(c.ID); r == nil {
			return fmt.Sprintf("agentbox inspect %s: %v", c.ID, out)
		}
		if r.FinishedAt == nil {
			return "the container has not ended: " + describe(r)
		}
		return ""
	})
	return r
}

// inspect is `agentbox inspect REF`, by whatever a user knows the container. The
// result is nil when it is not known.
func (d *Docker) inspect(ref string) (*result.Result, Output) {
	d.t.Helper()
	out := execute(d.t, 30*time.Second, exec.Command(filepath.Join(bin, "agentbox"), "--config", d.Config, "--state", d.State, "inspect", "--json", ref))
	if out.Code != 0 {
		return nil, out
	}
	var r result.Result
	if err := json.Unmarshal([]byte(out.Stdout), &r); err != nil {
		d.t.Fatalf("agentbox inspect %s: %v: %v", ref, err, out)
	}
	return &r, out
}

// killsSoFar counts what the kernel has killed for memory below the parent of all
// containers of the daemon, whose counters outlive theirs. Cgroup v2 only.
func (d *Docker) killsSoFar() (processes, groups int64) {
	d.t.Helper()
	parent := Cgroup{t: d.t, dirs: map[string]string{"": d.parentFolder()}}
	return parent.field("memory.events", "oom_kill"), parent.field("memory.events", "oom_group_kill")
}
