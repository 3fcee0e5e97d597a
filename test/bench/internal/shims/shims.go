// Package shims measures how much memory containerd's shims take: that of
// agentbox, and containerd's own for runc.
package shims

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/test/bench/internal/pss"
	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
)

// The two runtimes, by their types in containerd, and the programs of each.
const (
	agentboxType = "io.containerd.agentbox.v1"
	runcType     = "io.containerd.runc.v2"
	agentboxShim = "containerd-shim-agentbox-v1"
	runcShim     = "containerd-shim-runc-v2"
)

// runcRoot is where containerd's runc service, ours too, has the state of runc, by
// namespace.
const runcRoot = "/run/containerd/runc"

// idle is how long a shim does nothing before it is measured. Both give memory
// back to the kernel every 30 seconds.
const idle = 32 * time.Second

// wait bounds how long something takes that takes a second or two.
const wait = time.Minute

// Meter measures shims.
type Meter struct {
	Bin     string // folder of agentbox's programs
	Runc    string // path of runc
	Busybox string // path of busybox, linked statically
	Dir     string // a folder that exists
}

// Measure measures so many pairs, all at the same time. Each has a containerd and
// copies of the shims of its own, so that no page of a shim is shared with
// another one, or with whatever else runs on the machine.
func (m *Meter) Measure(pairs int) (list []Pair, err error) {
	var all []*couple
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.stop())
		}
	}()
	for i := range pairs {
		c, err := m.newCouple(i)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
		if err := c.start(); err != nil {
			return nil, err
		}
	}
	list = make([]Pair, pairs)
	steps := []struct {
		more int // containers
		keep func(*Sample, pss.Memory)
	}{
		{1, func(s *Sample, is pss.Memory) { s.One = is }},
		{Further, func(s *Sample, is pss.Memory) { s.Pod = is }},
	}
	for _, step := range steps {
		for _, c := range all {
			if err := c.add(step.more); err != nil {
				return nil, err
			}
		}
		time.Sleep(idle)
		for i, c := range all {
			for kind, sample := range map[string]*Sample{agentboxType: &list[i].Agentbox, runcType: &list[i].Runc} {
				is, err := c.memory(kind)
				if err != nil {
					return nil, err
				}
				step.keep(sample, is)
			}
		}
	}
	return list, nil
}

// couple is a containerd with a pod of each runtime.
type couple struct {
	*Meter
	dir        string
	name       string // of everything that is not in dir
	containerd *exec.Cmd
	ended      chan error
	made       []string // containers, in order
	first      map[string]string
}

func (m *Meter) newCouple(i int) (*couple, error) {
	c := &couple{
		Meter: m, dir: filepath.Join(m.Dir, strconv.Itoa(i)), name: fmt.Sprintf("agentbox-bench-%d-%d", os.Getpid(), i),
		first: map[string]string{},
	}
	theirs, err := exec.LookPath(runcShim)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{c.programs(), filepath.Join(c.rootfs(), "bin")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	for from, to := range map[string]string{
		theirs:                               filepath.Join(c.programs(), runcShim),
		filepath.Join(m.Bin, agentboxShim):   filepath.Join(c.programs(), agentboxShim),
		filepath.Join(m.Bin, agentboxBinary): filepath.Join(c.programs(), agentboxBinary),
		m.Busybox:                            filepath.Join(c.rootfs(), "bin/sleep"),
	} {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, data, 0o755); err != nil {
			return nil, err
		}
	}
	config := fmt.Sprintf("runtime = %q\nresults = %q\n", m.Runc, filepath.Join(c.dir, "results"))
	return c, os.WriteFile(c.config(), []byte(config), 0o600)
}

const agentboxBinary = "agentbox-runtime"

func (c *couple) programs() string { return filepath.Join(c.dir, "bin") }
func (c *couple) rootfs() string   { return filepath.Join(c.dir, "rootfs") }
func (c *couple) config() string   { return filepath.Join(c.dir, "agentbox.toml") }
func (c *couple) state() string    { return filepath.Join(c.dir, "state") }
func (c *couple) socket() string   { return filepath.Join(c.dir, "containerd.sock") }

// start starts containerd, which finds the shims by its PATH.
func (c *couple) start() error {
	// What is switched off would make files elsewhere, or costs time.
	text := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
address = %q
`, filepath.Join(c.dir, "root"), c.state(), c.socket())
	file := filepath.Join(c.dir, "containerd.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	log, err := os.Create(c.log())
	if err != nil {
		return err
	}
	defer log.Close()
	c.containerd = exec.Command("containerd", "--config", file)
	c.containerd.Env = append(os.Environ(), "PATH="+c.programs()+":"+os.Getenv("PATH"))
	c.containerd.Stdout, c.containerd.Stderr = log, log
	if err := c.containerd.Start(); err != nil {
		c.containerd = nil
		return err
	}
	c.ended = make(chan error, 1)
	go func() { c.ended <- c.containerd.Wait() }()
	for end := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		err := c.ctr("version")
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			said, _ := os.ReadFile(c.log())
			return fmt.Errorf("containerd is not ready: %w\n%s", err, said)
		}
	}
}

func (c *couple) log() string { return filepath.Join(c.dir, "containerd.log") }

// ctr runs a command of containerd's client. A container that it starts must not
// hold a pipe to here, so what it says is in a file.
func (c *couple) ctr(args ...string) error {
	said, err := os.Create(filepath.Join(c.dir, "ctr.log"))
	if err != nil {
		return err
	}
	defer said.Close()
	cmd := exec.Command("ctr", append([]string{"--address", c.socket(), "--namespace", c.name}, args...)...)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(said.Name())
		return fmt.Errorf("ctr %q: %w: %s", args, err, text)
	}
	return nil
}

// add starts so many containers of each runtime, in turns; all of one runtime are
// of one pod.
func (c *couple) add(n int) error {
	for range n {
		for _, kind := range []string{agentboxType, runcType} {
			if err := c.run(kind); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *couple) run(kind string) error {
	id := fmt.Sprintf("%s-%d", c.name, len(c.made))
	if c.first[kind] == "" {
		c.first[kind] = id
	}
	file, err := c.spec(id, c.first[kind])
	if err != nil {
		return err
	}
	args := []string{"run", "--detach", "--null-io", "--runtime", kind}
	if kind == agentboxType {
		args = append(args, "--runtime-config-path", c.config())
	}
	c.made = append(c.made, id)
	return c.ctr(append(args, "--config", file, id)...)
}

// spec writes the specification of a container that does nothing. Containers of
// one pod are served by one shim, both by containerd's and by ours; none is the
// pause container, so all have limits.
func (c *couple) spec(id, pod string) (file string, err error) {
	dir := filepath.Join(c.dir, id)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	s, err := sandbox.Spec(c.Runc, dir)
	if err != nil {
		return "", err
	}
	process := s["process"].(map[string]any)
	process["args"] = []string{"sleep", "1800"} // ends by itself, should this program be killed
	s["root"] = map[string]any{"path": c.rootfs()}
	s["linux"].(map[string]any)["cgroupsPath"] = "/" + id
	s["annotations"] = map[string]string{
		"io.kubernetes.cri.sandbox-id": pod, "io.kubernetes.cri.container-type": "container",
	}
	data, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "config.json")
	return file, os.WriteFile(file, data, 0o600)
}

// memory is that of the shim of a pod.
func (c *couple) memory(kind string) (pss.Memory, error) {
	pid, err := c.shim(kind)
	if err != nil {
		return pss.Memory{}, err
	}
	return pss.Of(pid)
}

// shim is the process that all containers of a pod are children of.
func (c *couple) shim(kind string) (pid int, err error) {
	want := map[string]string{agentboxType: agentboxShim, runcType: runcShim}[kind]
	for i, id := range c.made {
		if (i%2 == 0) != (kind == agentboxType) {
			continue // started in turns
		}
		parent, err := c.parent(id)
		if err != nil {
			return 0, fmt.Errorf("find the shim of %s: %w", id, err)
		}
		if pid != 0 && parent != pid {
			return 0, fmt.Errorf("%s is served by process %d, and its pod by %d: one pod has to have one shim", id, parent, pid)
		}
		pid = parent
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err == nil && exe != filepath.Join(c.programs(), want) {
		err = fmt.Errorf("the shim is %s, and not %s", exe, want)
	}
	return pid, err
}

// parent is that of a container's first process.
func (c *couple) parent(id string) (int, error) {
	data, err := os.ReadFile(filepath.Join(c.state(), "io.containerd.runtime.v2.task", c.name, id, "init.pid"))
	if err != nil {
		return 0, err
	}
	status, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(data)), "status"))
	if err != nil {
		return 0, err
	}
	return parseParent(status)
}

// parseParent reads the parent from /proc/PID/status (proc_pid_status(5)).
func parseParent(status []byte) (int, error) {
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "PPid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil || pid < 0 {
				return 0, fmt.Errorf("status of a process: %q names no parent", strings.TrimSpace(line))
			}
			return pid, nil
		}
	}
	return 0, errors.New("status of a process: there is no line PPid")
}

// stop removes all containers, and ends containerd.
func (c *couple) stop() (err error) {
	if c.containerd == nil {
		return nil
	}
	for _, id := range slices.Backward(c.made) { // the first one has the name of the shim
		_ = c.ctr("task", "rm", "--force", id) // exits with the status of the container, which was killed
		err = errors.Join(err, c.ctr("containers", "rm", id))
	}
	if err != nil {
		err = fmt.Errorf("containers of the benchmark are left: %w", err)
	}
	_ = os.Remove(filepath.Join(runcRoot, c.name)) // both leave it; not there when nothing was started
	_ = c.containerd.Process.Signal(unix.SIGTERM)
	select {
	case <-c.ended:
		return err
	case <-time.After(wait):
	}
	_ = c.containerd.Process.Kill()
	<-c.ended
	return errors.Join(err, errors.New("containerd did not end by SIGTERM"))
}
