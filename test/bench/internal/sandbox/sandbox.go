// Package sandbox starts the program hog in containers, as an engine does it, by
// agentbox-runtime with runc, and reads what the kernel counts for them.
package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/test/bench/internal/job"
)

// Work is where a sandbox reads and writes.
const Work = "/files"

// Runtime is what starts sandboxes, one at a time.
type Runtime struct {
	Agentbox string // path of agentbox-runtime; the program agentbox is beside it
	Runc     string // path of runc
	Hog      string // path of the program hog, linked statically
	Dir      string // a folder that exists, for bundles, state and results
	// Supervise are the dimensions that the supervisor enforces here even where
	// the kernel could.
	Supervise []string

	count int
	spec  []byte // what runc spec writes
}

// Want is what is special about a sandbox.
type Want struct {
	Limits []string // lines of the table [limits] in the configuration
	Root   string   // folder that becomes its root, made by MakeRoot; empty: one of its own
	Work   string   // folder that becomes Work; empty: the one of the root
	// First gives it the largest share of the CPUs, so that nothing but its limit
	// holds it back on a machine that has other work.
	First bool
}

// Sandbox is a running container.
type Sandbox struct {
	*job.Client

	runtime  *Runtime
	id       string
	cgroup   string // below the mount point, or that of a controller
	dir      string // everything of this sandbox
	deleted  bool
	jobs     *os.File
	outcomes *os.File
}

// MakeRoot makes a folder a root file system with the program hog.
func (r *Runtime) MakeRoot(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, Work), 0o755); err != nil {
		return err
	}
	data, err := os.ReadFile(r.Hog)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "hog"), data, 0o755)
}

// Start starts a sandbox. It waits for jobs until Stop.
func (r *Runtime) Start(want Want) (s *Sandbox, err error) {
	r.count++
	id := fmt.Sprintf("agentbox-bench-%d-%d", os.Getpid(), r.count)
	s = &Sandbox{runtime: r, id: id, cgroup: id, dir: filepath.Join(r.Dir, id)}
	if err := s.prepare(want); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.create(); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if err := s.runtimeVerb("start", id); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// maxShares is the most that cpu.shares takes; of cgroup v2 it is a cpu.weight of
// 10000.
const maxShares = 262144

func (s *Sandbox) prepare(want Want) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	if want.Root == "" {
		want.Root = filepath.Join(s.dir, "rootfs")
		if err := s.runtime.MakeRoot(want.Root); err != nil {
			return fmt.Errorf("make a root file system: %w", err)
		}
	}
	if err := os.WriteFile(s.config(), []byte(s.runtime.policy(filepath.Join(s.dir, "results"), want.Limits)), 0o600); err != nil {
		return err
	}
	spec, err := s.runtime.newSpec(s.dir)
	if err != nil {
		return err
	}
	spec["process"].(map[string]any)["args"] = []string{"/hog"}
	spec["root"] = map[string]any{"path": want.Root}
	linux := spec["linux"].(map[string]any)
	linux["cgroupsPath"] = "/" + s.cgroup
	if want.First {
		resources, _ := linux["resources"].(map[string]any)
		if resources == nil {
			resources = map[string]any{}
			linux["resources"] = resources
		}
		resources["cpu"] = map[string]any{"shares": maxShares}
	}
	if want.Work != "" {
		spec["mounts"] = append(spec["mounts"].([]any), map[string]any{
			"destination": Work, "type": "bind", "source": want.Work, "options": []string{"rbind", "rw"},
		})
	}
	data, err := json.MarshalIndent(spec, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "config.json"), data, 0o600)
}

// policy is agentbox's configuration.
func (r *Runtime) policy(results string, limits []string) string {
	text := fmt.Sprintf("runtime = %q\nresults = %q\n", r.Runc, results)
	if len(r.Supervise) > 0 {
		text += `supervise = ["` + strings.Join(r.Supervise, `", "`) + `"]` + "\n"
	}
	return text + "[limits]\n" + strings.Join(limits, "\n") + "\n"
}

// newSpec is a specification of its own, of what `runc spec` has written once.
func (r *Runtime) newSpec(dir string) (spec map[string]any, err error) {
	if r.spec == nil {
		if spec, err = Spec(r.Runc, dir); err != nil {
			return nil, err
		}
		if r.spec, err = json.Marshal(spec); err != nil {
			return nil, err
		}
	}
	return spec, json.Unmarshal(r.spec, &spec)
}

// Spec returns what `runc spec` writes, without a terminal. Its file is left in
// an existing folder.
func Spec(runc, dir string) (map[string]any, error) {
	cmd := exec.Command(runc, "spec")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("runc spec: %w: %s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	var spec map[string]any
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("runc spec: %w", err)
	}
	spec["process"].(map[string]any)["terminal"] = false
	return spec, nil
}

func (s *Sandbox) config() string  { return filepath.Join(s.dir, "agentbox.toml") }
func (s *Sandbox) pidFile() string { return filepath.Join(s.dir, "pid") }

func (s *Sandbox) command(args ...string) *exec.Cmd {
	return exec.Command(s.runtime.Agentbox, append([]string{
		"--agentbox-config", s.config(), "--agentbox-state", s.runtime.states(),
		"--root", filepath.Join(s.runtime.Dir, "runc"),
	}, args...)...)
}

func (s *Sandbox) runtimeVerb(args ...string) error {
	if out, err := s.command(args...).CombinedOutput(); err != nil {
		return fmt.Errorf("agentbox-runtime %s: %w: %s", args[0], err, out)
	}
	return nil
}

// create leaves the container's first process behind with its ends of the pipes.
func (s *Sandbox) create() error {
	in, jobs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	s.jobs = jobs
	outcomes, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	s.outcomes = outcomes
	// A file and no pipe: the container keeps it.
	log, err := os.Create(filepath.Join(s.dir, "stderr"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.command("create", "--bundle", s.dir, "--pid-file", s.pidFile(), s.id)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, log
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("agentbox-runtime create: %w: %s", err, said)
	}
	s.Client = job.NewClient(jobs, outcomes)
	return nil
}

// Stop ends the sandbox, which ends by itself when no more jobs can come, and
// removes all of it.
func (s *Sandbox) Stop() error {
	if s.jobs != nil {
		s.jobs.Close()
	}
	if s.outcomes != nil {
		s.outcomes.Close()
	}
	err := s.end()
	if err != nil {
		// It must not go on writing while others are measured.
		_ = exec.Command(s.runtime.Runc, "--root", filepath.Join(s.runtime.Dir, "runc"), "delete", "--force", s.id).Run()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *Sandbox) end() error {
	if s.Client == nil || s.deleted {
		return nil // create has failed, or there is a result
	}
	if err := WaitEnded(s.pidFile(), 30*time.Second); err != nil {
		return err
	}
	s.deleted = true
	return s.runtimeVerb("delete", s.id)
}

// Result waits for the end of the sandbox, which has to come by itself, deletes
// it and returns what agentbox says of it.
func (s *Sandbox) Result() (r result.Result, err error) {
	if err := s.end(); err != nil {
		return r, err
	}
	inspect := exec.Command(s.runtime.program(), "inspect", "--json", "--config", s.config(), "--state", s.runtime.states(), s.id)
	var said bytes.Buffer
	inspect.Stderr = &said
	out, err := inspect.Output()
	if err != nil {
		return r, fmt.Errorf("agentbox inspect: %w: %s", err, said.Bytes())
	}
	return r, json.Unmarshal(out, &r)
}

// Init is the pid of the sandbox' first process.
func (s *Sandbox) Init() (int, error) {
	data, err := os.ReadFile(s.pidFile())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// WaitEnded waits until the process in a pid file has ended with all its threads,
// reaped or not.
func WaitEnded(pidFile string, limit time.Duration) error {
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("%s: %w", pidFile, err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open a pidfd of process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := PollEnd(fd, time.Now().Add(limit)); err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	return nil
}

// PollEnd waits for the end of the process of a pidfd.
func PollEnd(fd int, until time.Time) error {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(0, time.Until(until).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the end: %w", err)
		case n == 0:
			return errors.New("it does not end")
		default:
			return nil
		}
	}
}
