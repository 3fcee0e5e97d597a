//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/agentbox/agentbox/deploy/kubernetes"
	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/state"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// The door of Kubernetes: containerd's CRI, driven as a kubelet does.

const (
	cri feature = "cri" // a containerd that speaks to Kubernetes, and its client
	// containerd 2: it hands on settings that stand in its own file, and a file that
	// it imports adds to the others' settings. Older ones do neither.
	containerd2 feature = "containerd2"
)

func init() {
	features[containerd2] = sync.OnceValue(func() error {
		d, err := containerdDefaults()
		if err == nil && d.version < 3 {
			err = fmt.Errorf("its configuration is of version %d", d.version)
		}
		return err
	})
	features[cri] = sync.OnceValue(func() error {
		_, err := containerdDefaults()
		return err
	})
}

// criDefaults is what a containerd says about itself.
type criDefaults struct {
	version int    // of its configuration file
	plugin  string // that has the runtimes
	pause   string // the image of pause containers
}

var containerdDefaults = sync.OnceValues(func() (d criDefaults, err error) {
	if err := installed("containerd", "ctr"); err != nil {
		return d, err
	}
	out, err := exec.Command("containerd", "config", "default").Output()
	if err != nil {
		return d, fmt.Errorf("containerd config default: %w", err)
	}
	var config struct {
		Version int
		Plugins map[string]struct {
			SandboxImage string `toml:"sandbox_image"` // up to version 2
			PinnedImages struct {
				Sandbox string
			} `toml:"pinned_images"`
		}
	}
	if err := toml.Unmarshal(out, &config); err != nil {
		return d, fmt.Errorf("containerd config default: %w", err)
	}
	d.version, d.plugin = config.Version, "io.containerd.cri.v1.runtime"
	d.pause = config.Plugins["io.containerd.cri.v1.images"].PinnedImages.Sandbox
	if d.version == 2 {
		d.plugin = "io.containerd.grpc.v1.cri"
		d.pause = config.Plugins[d.plugin].SandboxImage
	}
	if d.pause == "" || kubernetes.Snippet(d.version) == "" {
		return d, fmt.Errorf("its configuration of version %d names no pause image where these tests know of", d.version)
	}
	return d, nil
})

// criRoot is runc's folder of the containers of Kubernetes.
const criRoot = "/run/containerd/runc/k8s.io"

// criImage is the image of the pods' containers.
const criImage = "docker.io/library/busybox:e2e"

// The settings of agentbox below these pods. The ceiling is one that a node of a
// few GiB has room for.
const criSettings = "[limits]\nmemory = \"256MiB\"\n[ceilings]\nmemory = \"512MiB\"\n"

// The handlers of agentbox: one as people are told to write it, and one that has
// its settings in containerd's file and takes annotations of a single container.
const (
	criHandler = "agentbox"
	criInline  = "agentbox-inline"
)

// CRI is a containerd for Kubernetes that belongs to this run, as one test sees
// it.
type CRI struct {
	*Box
	*kubelet
}

// kubelet is what all tests share: a containerd, and the calls that a kubelet
// makes.
type kubelet struct {
	*engine
	conn    *grpc.ClientConn
	runtime criapi.RuntimeServiceClient
	images  criapi.ImageServiceClient
}

var sharedCRI struct {
	once sync.Once
	*kubelet
	err error
}

func newCRI(t *testing.T) *CRI {
	t.Helper()
	need(t, cri, runc)
	sharedCRI.once.Do(func() {
		sharedCRI.kubelet, sharedCRI.err = startCRI()
		if sharedCRI.kubelet != nil {
			atEnd(sharedCRI.stop)
		}
	})
	if sharedCRI.err != nil {
		t.Fatalf("start containerd for Kubernetes: %v", sharedCRI.err)
	}
	k := sharedCRI.kubelet
	from := k.logSizes()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(k.logs(from))
			k.shown = k.logSizes()
		}
	})
	return &CRI{kubelet: k, Box: &Box{
		t: t, LowLevel: "runc", Config: k.config(criHandler), State: state.SystemDir,
		Root: criRoot, Results: result.Store{Dir: k.results()},
	}}
}

func startCRI() (*kubelet, error) {
	e, err := newEngine(bin + ":" + os.Getenv("PATH"))
	if err != nil {
		return nil, err
	}
	k := &kubelet{engine: e}
	if k.conn, err = grpc.NewClient("unix://"+e.containerdSocket(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, err
	}
	k.runtime, k.images = criapi.NewRuntimeServiceClient(k.conn), criapi.NewImageServiceClient(k.conn)
	if err := e.writeConfig(criHandler, criSettings); err != nil {
		return k, err
	}
	if err := e.writeCRIConfig(); err != nil {
		return k, err
	}
	if err := k.up(); err != nil {
		return k, err
	}
	return k, k.importImages()
}

// up starts containerd.
func (k *kubelet) up() (err error) {
	if k.containerd, err = k.start("containerd", "--config", k.file("containerd.toml")); err != nil {
		return err
	}
	k.conn.ResetConnectBackoff() // it may have been away
	return k.waitReady()
}

// writeCRIConfig writes containerd's configuration: our snippet as people get it,
// with the path of settings of this run, between what keeps containerd in its
// folder and a second handler.
func (e *engine) writeCRIConfig() error {
	d, err := containerdDefaults()
	if err != nil {
		return err
	}
	snippet, err := kubernetes.Files.ReadFile(kubernetes.Snippet(d.version))
	if err != nil {
		return err
	}
	head := fmt.Sprintf(`version = %d
root = %q
state = %q
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = %q
[debug]
level = "warn"
[plugins."io.containerd.nri.v1.nri"]
disable = true
[plugins.%q]
restrict_oom_score_adj = true # works without CAP_SYS_RESOURCE too
[plugins.%[5]q.cni]
bin_dir = %[6]q
conf_dir = %[6]q
`, min(d.version, 3), e.file("containerd"), e.file("containerd-state"), e.containerdSocket(), d.plugin, e.file("cni"))
	runtimes := fmt.Sprintf("plugins.%q.containerd.runtimes", d.plugin)
	tail := fmt.Sprintf(`
[%[1]s.%[2]s.options]
ConfigPath = %[3]q
[%[1]s.%[4]s]
runtime_type = %[5]q
pod_annotations = ["agentbox.dev/*"]
container_annotations = ["agentbox.dev/*"]
[%[1]s.%[4]s.options]
results = %[6]q
[%[1]s.%[4]s.options.limits]
memory = "96MiB"
pids = 77
`, runtimes, criHandler, e.config(criHandler), criInline, shimType, e.results())
	return os.WriteFile(e.file("containerd.toml"), slices.Concat([]byte(head), snippet, []byte(tail)), 0o600)
}

// waitReady waits until a kubelet would start pods.
func (k *kubelet) waitReady() error {
	for deadline := time.Now().Add(scaled(60 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), scaled(10*time.Second))
		status, err := k.runtime.Status(ctx, &criapi.StatusRequest{})
		cancel()
		for _, c := range status.GetStatus().GetConditions() {
			if c.GetType() == "RuntimeReady" && c.GetStatus() {
				return nil
			}
		}
		if err == nil {
			err = errors.New("RuntimeReady is not true")
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd is not ready for Kubernetes: %w\n%s", err, k.logs([2]int64{}))
		}
		select {
		case <-k.containerd.done:
			return fmt.Errorf("containerd ended\n%s", k.logs([2]int64{}))
		default:
		}
	}
}

// importImages hands in the image of the containers and, in the place of the real
// one, that of pause containers.
func (k *kubelet) importImages() error {
	d, err := containerdDefaults()
	if err != nil {
		return err
	}
	archive := k.file("images.tar")
	if err := writeImages(archive, []string{criImage, d.pause}, os.DirFS(rootfs), []string{"/bin/sleep", "1000000"}); err != nil {
		return fmt.Errorf("write %s: %w", archive, err)
	}
	defer os.Remove(archive)
	out, err := exec.Command("ctr", "--address", k.containerdSocket(), "--namespace", "k8s.io", "images", "import", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr images import: %w: %s", err, out)
	}
	for deadline := time.Now().Add(scaled(30 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		missing := ""
		for _, name := range []string{criImage, d.pause} {
			resp, err := k.images.ImageStatus(context.Background(), &criapi.ImageStatusRequest{Image: &criapi.ImageSpec{Image: name}})
			if err != nil {
				return err
			}
			if resp.GetImage() == nil {
				missing = name
			}
		}
		if missing == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd does not offer the image %s to Kubernetes", missing)
		}
	}
}

// stop ends containerd, and pods that a test has left.
func (k *kubelet) stop() error {
	var problems []error
	if pods, err := k.runtime.ListPodSandbox(context.Background(), &criapi.ListPodSandboxRequest{}); err == nil {
		for _, p := range pods.GetItems() {
			_, err := k.runtime.RemovePodSandbox(context.Background(), &criapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
			problems = append(problems, fmt.Errorf("the pod %s is left", p.GetMetadata().GetName()), err)
		}
	}
	problems = append(problems, k.conn.Close(), k.engine.stop())
	_ = os.Remove(criRoot) // if nothing else is in it
	return errors.Join(problems...)
}

// call makes a call that has to succeed.
func call[Request, Response any](c *CRI, method func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request) Response {
	c.t.Helper()
	response, err := try(method, request)
	if err != nil {
		c.t.Fatalf("%T: %v", request, err)
	}
	return response
}

// try makes a call, whatever comes of it.
func try[Request, Response any](method func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request) (Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scaled(60*time.Second))
	defer cancel()
	return method(ctx, request)
}

// Pod is a pod of this test.
type Pod struct {
	*CRI
	ID     string // empty until it was started
	Parent string // its cgroup, which a kubelet makes
	config *criapi.PodSandboxConfig

	removed bool
}

// kubeletNamespaces are those of a pod that wants nothing special, but for the
// network, which would need a plugin.
var kubeletNamespaces = &criapi.NamespaceOption{Network: criapi.NamespaceMode_NODE, Pid: criapi.NamespaceMode_CONTAINER}

// newPod prepares a pod in the host's network, with a cgroup as a kubelet makes it.
// It is removed at the end of the test.
func (c *CRI) newPod(annotations map[string]string) *Pod {
	c.t.Helper()
	name := fmt.Sprintf("%s-%d", token, containers.Add(1))
	testOf.Store(name, c.t.Name())
	p := &Pod{CRI: c, Parent: filepath.Join("/", token, name)}
	p.config = &criapi.PodSandboxConfig{
		Metadata:     &criapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: "default"},
		LogDirectory: tempDir(c.t),
		Annotations:  annotations,
		Linux: &criapi.LinuxPodSandboxConfig{
			CgroupParent:    p.Parent,
			SecurityContext: &criapi.LinuxSandboxSecurityContext{NamespaceOptions: kubeletNamespaces},
		},
	}
	for _, dir := range parents() {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	c.t.Cleanup(func() {
		p.remove()
		for _, dir := range p.dirs() {
			_ = os.Remove(dir) // what is left is found at the end of the run
		}
	})
	return p
}

// start starts the pod, whatever comes of it.
func (p *Pod) start(handler string) error {
	r, err := try(p.runtime.RunPodSandbox, &criapi.RunPodSandboxRequest{Config: p.config, RuntimeHandler: handler})
	p.ID = r.GetPodSandboxId()
	return err
}

// pod starts a pod.
func (c *CRI) pod(handler string, annotations map[string]string) *Pod {
	c.t.Helper()
	p := c.newPod(annotations)
	if err := p.start(handler); err != nil {
		c.t.Fatalf("start a pod: %v", err)
	}
	return p
}

// dirs are the pod's cgroup in all hierarchies: runc makes it also in those that a
// kubelet leaves alone.
func (p *Pod) dirs() []string {
	list, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", p.Parent))
	more, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", p.Parent))
	return append(list, more...)
}

// cgroup is the pod's, as the kubelet sees it.
func (p *Pod) cgroup() Cgroup {
	g := Cgroup{t: p.t, dirs: map[string]string{"": filepath.Join("/sys/fs/cgroup", p.Parent)}}
	if cgroupVersion() == 1 {
		for name, mount := range hierarchiesV1() {
			g.dirs[name] = filepath.Join(mount, p.Parent)
		}
	}
	return g
}

// remove stops and removes the pod with all that is in it, and looks for what it
// leaves. Once is enough.
func (p *Pod) remove() {
	p.t.Helper()
	if p.ID == "" || p.removed {
		return
	}
	p.removed = true
	list := call(p.CRI, p.runtime.ListContainers, &criapi.ListContainersRequest{Filter: &criapi.ContainerFilter{PodSandboxId: p.ID}})
	call(p.CRI, p.runtime.StopPodSandbox, &criapi.StopPodSandboxRequest{PodSandboxId: p.ID})
	call(p.CRI, p.runtime.RemovePodSandbox, &criapi.RemovePodSandboxRequest{PodSandboxId: p.ID})
	p.nothingLeft(p.ID)
	for _, item := range list.GetContainers() {
		p.nothingLeft(item.GetId())
	}
}

// nothingLeft waits until nothing is left of a container or a pod.
func (p *Pod) nothingLeft(id string) {
	p.t.Helper()
	eventually(p.t, 60*time.Second, func() string {
		for _, path := range append([]string{p.bundle(id), filepath.Join(p.Root, id), state.Store{Dir: p.State}.Path(p.Root, id)}, p.below(id)...) {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Sprintf("%s is left: %v", path, err)
			}
		}
		if pids := shimPids(id); len(pids) > 0 {
			return fmt.Sprintf("shims are left: %v", pids)
		}
		if mounts := readFile(p.t, "/proc/self/mountinfo"); strings.Contains(mounts, id) {
			return "a mount is left of " + id
		}
		return ""
	})
}

func (c *CRI) bundle(id string) string {
	return filepath.Join(c.file("containerd-state"), "io.containerd.runtime.v2.task/k8s.io", id)
}

// below are the cgroups of a container of the pod.
func (p *Pod) below(id string) (list []string) {
	for _, dir := range p.dirs() {
		list = append(list, filepath.Join(dir, id))
	}
	return list
}

// pid is the pause container's process, as the host counts.
func (p *Pod) pid() int {
	p.t.Helper()
	return pidOf(p.t, call(p.CRI, p.runtime.PodSandboxStatus, &criapi.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true}).GetInfo())
}

// pidOf reads what containerd adds to a status for people.
func pidOf(t *testing.T, info map[string]string) int {
	t.Helper()
	var told struct{ Pid int }
	if err := json.Unmarshal([]byte(info["info"]), &told); err != nil || told.Pid == 0 {
		t.Fatalf("no pid: %v: %q", err, info)
	}
	return told.Pid
}

// PodContainer is a container of a pod.
type PodContainer struct {
	*Pod
	ID string
}

// kubeletResources are what a kubelet of this day sends along with a memory limit
// and a CPU limit, which may be 0 for none.
func kubeletResources(memory, milliCPU int64) *criapi.LinuxContainerResources {
	r := &criapi.LinuxContainerResources{
		MemoryLimitInBytes: memory, CpuPeriod: 100_000, CpuQuota: milliCPU * 100, CpuShares: max(2, milliCPU*1024/1000), OomScoreAdj: 999,
	}
	if has(cgroup2) {
		r.Unified = map[string]string{"memory.oom.group": "1"}
		if memory > 0 && has(swapLimit) {
			r.Unified["memory.swap.max"] = "0"
		}
	}
	return r
}

// create makes a container that runs a shell script.
func (p *Pod) create(name, script string, r *criapi.LinuxContainerResources, annotations map[string]string) *PodContainer {
	p.t.Helper()
	config := &criapi.ContainerConfig{
		Metadata:    &criapi.ContainerMetadata{Name: name},
		Image:       &criapi.ImageSpec{Image: criImage},
		Command:     sh(script),
		Annotations: annotations,
		LogPath:     name + ".log",
		Linux: &criapi.LinuxContainerConfig{
			Resources:       r,
			SecurityContext: &criapi.LinuxContainerSecurityContext{NamespaceOptions: kubeletNamespaces},
		},
	}
	created := call(p.CRI, p.runtime.CreateContainer, &criapi.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.config})
	return &PodContainer{Pod: p, ID: created.GetContainerId()}
}

// start starts a container, whatever comes of it.
func (c *PodContainer) start() error {
	_, err := try(c.runtime.StartContainer, &criapi.StartContainerRequest{ContainerId: c.ID})
	return err
}

// container starts a container.
func (p *Pod) container(name, script string, r *criapi.LinuxContainerResources, annotations map[string]string) *PodContainer {
	p.t.Helper()
	c := p.create(name, script, r, annotations)
	if err := c.start(); err != nil {
		p.t.Fatalf("start %s: %v", name, err)
	}
	return c
}

func (c *PodContainer) status() *criapi.ContainerStatusResponse {
	c.t.Helper()
	return call(c.CRI, c.runtime.ContainerStatus, &criapi.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
}

func (c *PodContainer) pid() int { c.t.Helper(); return pidOf(c.t, c.status().GetInfo()) }

func (c *PodContainer) limits() Limits { c.t.Helper(); return cgroupOf(c.t, c.pid()).limits() }

// exec runs a shell script in the container, as a probe of a kubelet does.
func (c *PodContainer) exec(script string) Output {
	c.t.Helper()
	r := call(c.CRI, c.runtime.ExecSync, &criapi.ExecSyncRequest{ContainerId: c.ID, Cmd: sh(script), Timeout: int64(scaled(30 * time.Second).Seconds())})
	return Output{Stdout: string(r.GetStdout()), Stderr: string(r.GetStderr()), Code: int(r.GetExitCode())}
}

// ended waits for the end of the container.
func (c *PodContainer) ended() *criapi.ContainerStatus {
	c.t.Helper()
	var s *criapi.ContainerStatus
	eventually(c.t, 60*time.Second, func() string {
		if s = c.status().GetStatus(); s.GetState() != criapi.ContainerState_CONTAINER_EXITED {
			return fmt.Sprintf("%s is in state %v", s.GetMetadata().GetName(), s.GetState())
		}
		return ""
	})
	return s
}

// log is what the container has printed, as the kubelet finds it.
func (c *PodContainer) log(name string) string {
	c.t.Helper()
	return readFile(c.t, filepath.Join(c.config.GetLogDirectory(), name+".log"))
}

const (
	podSleep = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
	podBomb  = "until [ -e /go ]; do sleep 0.05; done; exec tail /dev/zero"
)

// setOff lets a podBomb go off, from outside: what is in the container may be killed
// with it.
func setOff(t *testing.T, pid int) {
	t.Helper()
	writeFile(t, fmt.Sprintf("/proc/%d/root/go", pid), "")
}

// A pod with two containers that have different limits: each has its own, the
// pause container none; one runs out of memory and the other goes on.
func TestCRIPod(t *testing.T) {
	c := newCRI(t)
	p := c.pod(criHandler, map[string]string{"agentbox.dev/pids": "99", "agentbox.dev/memory": "128MiB", "example.com/other": "x"})
	agent := p.container("agent", podSleep, kubeletResources(0, 0), nil)
	tool := p.container("tool", podBomb, kubeletResources(64*mib, 500), nil)

	want := Limits{Memory: 128 * mib, Swap: 0, Pids: 99, Quota: int64(min(2, runtime.NumCPU())) * 100_000, Period: 100_000, GroupKill: has(cgroup2)}
	if !has(swapLimit) {
		want.Swap = unlimited
	}
	if have := agent.limits(); have != want {
		t.Errorf("the agent has %+v, want what the annotations say, %+v", have, want)
	}
	want.Memory, want.Quota = 64*mib, 50_000
	if have := tool.limits(); have != want {
		t.Errorf("the tool has %+v, want what its resources say, %+v", have, want)
	}
	for name, id := range map[string]string{"agent": agent.ID, "tool": tool.ID} {
		if r := c.result(name); r.ID != id || r.Name != name || r.Status != verdict.Running || r.Door != result.DoorShim {
			t.Errorf("agentbox inspect %s is about %s: %s, door %s", name, r.ID, describe(r), r.Door)
		}
	}
	if have := cgroupOf(t, p.pid()).limits(); have.Memory != unlimited || have.Pids != unlimited || have.Quota != unlimited || have.GroupKill {
		t.Errorf("the pause container has limits: %+v", have)
	}
	if a, b := shimPids(p.ID), append(shimPids(agent.ID), shimPids(tool.ID)...); len(a) != 1 || len(b) != 0 {
		t.Errorf("the pod has the shims %v, and its containers %v", a, b)
	}

	if out := agent.exec("echo in; exit 5"); out.Code != 5 || out.Stdout != "in\n" {
		t.Errorf("ExecSync: %v", out)
	}
	stats := call(c, c.runtime.ContainerStats, &criapi.ContainerStatsRequest{ContainerId: agent.ID}).GetStats()
	if stats.GetMemory().GetWorkingSetBytes().GetValue() == 0 || stats.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 {
		t.Errorf("ContainerStats: %v", stats)
	}

	setOff(t, tool.pid())
	s := tool.ended()
	if s.GetReason() != "OOMKilled" || s.GetExitCode() != 137 {
		t.Errorf("the tool's status is %q with %d, want OOMKilled with 137", s.GetReason(), s.GetExitCode())
	}
	r := c.result(tool.ID)
	wantSeen(t, r, verdict.OOMKilled, 137)
	wantOOMVerdict(t, r)
	wantOOMEvidence(t, r)
	if r := c.result(agent.ID); r.Status != verdict.Running || r.Events.OOMKill != 0 {
		t.Errorf("the agent: %s", describe(r))
	}
	if out := agent.exec("echo alive"); out.Stdout != "alive\n" {
		t.Errorf("the agent did not go on: %v", out)
	}

	call(c, c.runtime.StopContainer, &criapi.StopContainerRequest{ContainerId: agent.ID, Timeout: 10})
	if s := agent.ended(); s.GetReason() != "Completed" || s.GetExitCode() != 0 {
		t.Errorf("the agent's status is %q with %d", s.GetReason(), s.GetExitCode())
	}
	p.remove()
	wantSeen(t, c.result(agent.ID), verdict.Exited, 0)
	wantOOMVerdict(t, c.result("tool"))
	if kept := c.kept(p.ID); len(kept) > 0 {
		t.Errorf("a result of the pause container is kept: %s", describe(kept[0]))
	}
}

// What a kubelet sets on the pod's cgroup holds for a container that has more, and
// the report says whose limit it is.
func TestCRILimitOfThePod(t *testing.T) {
	const podMemory = "50331648" // 48 MiB
	c := newCRI(t)
	p := c.pod(criHandler, nil)
	g := p.cgroup()
	file := "memory.max"
	if !has(cgroup2) {
		file = "memory.limit_in_bytes"
	}
	for name, text := range map[string]string{file: podMemory, "pids.max": "55"} {
		if err := os.WriteFile(g.file(name), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	bomb := p.container("bomb", podBomb, kubeletResources(0, 0), nil)
	if have := bomb.limits(); have.Memory != 256*mib || have.Pids != 2048 {
		t.Errorf("the container has %+v, want the defaults", have)
	}
	r := c.result(bomb.ID)
	for dimension, want := range map[string]string{"memory": podMemory, "pids": "55"} {
		e := r.Enforcement[dimension]
		if e.Effective == nil || e.Effective.String() != want || !strings.HasSuffix(e.Owner, p.Parent) {
			t.Errorf("%s: the report says %+v, want %s of %s", dimension, e, want, p.Parent)
		}
	}
	setOff(t, bomb.pid())
	if s := bomb.ended(); s.GetExitCode() != 137 {
		t.Errorf("the container ended with %d", s.GetExitCode())
	}
	if has(cgroup2) { // v1 does not count whose limit ran out
		if r := c.result(bomb.ID); r.Status != verdict.OOMKilled || r.ErrorCode != verdict.HostMemoryExhausted {
			t.Errorf("the limit of the pod ran out: %s", describe(r))
		}
	}
}

// What may not be had is said in the error that a kubelet puts into the pod's
// events. Annotations belong to the pod, which does not start; limits belong to a
// container, and the others go on.
func TestCRIRefusals(t *testing.T) {
	need(t, cri, runc)
	bundleID := regexp.MustCompile(`[0-9a-f]{64}`)
	const ceiling = "is above the ceiling in the configuration (512MiB): ask for less, or raise [ceilings] memory"
	for _, tc := range []struct {
		name, annotation, value string
		says                    []string
	}{
		{"annotation above the ceiling", "memory", "1GiB", []string{"memory 1GiB from the annotation " + ceiling}},
		{"annotation that is not known", "memroy", "1GiB", []string{"agentbox.dev/memroy", "did you mean agentbox.dev/memory?"}},
		{"annotation that is malformed", "pids", "many", []string{"agentbox.dev/pids", "many"}},
		{"profile that is not known", "profile", "huge", []string{`profile "huge"`, "small"}},
		{"scope that is not allowed", "oom-scope", "process", []string{`oom-scope "process"`, "[oom] allow"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newCRI(t).newPod(map[string]string{"agentbox.dev/" + tc.annotation: tc.value})
			err := p.start(criHandler)
			for _, text := range tc.says {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("RunPodSandbox does not say %q: %v", text, err)
				}
			}
			id := bundleID.FindString(fmt.Sprint(err)) // nothing else names the pod
			if id == "" {
				t.Fatalf("RunPodSandbox does not say where: %v", err)
			}
			p.nothingLeft(id)
		})
	}
	t.Run("limit above the ceiling", func(t *testing.T) {
		p := newCRI(t).pod(criHandler, nil)
		other := p.container("other", podSleep, kubeletResources(512*mib, 0), nil) // the ceiling itself is fine
		member := p.create("member", podSleep, kubeletResources(1024*mib, 0), nil)
		want, err := "memory 1GiB from the spec "+ceiling, member.start()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("StartContainer does not say %q: %v", want, err)
		}
		if s := member.ended(); s.GetReason() != "StartError" || !strings.Contains(s.GetMessage(), want) {
			t.Errorf("the status has the reason %q and the message %q", s.GetReason(), s.GetMessage())
		}
		if out := other.exec("echo alive"); out.Stdout != "alive\n" {
			t.Errorf("the other container did not go on: %v", out)
		}
		if r := p.result(member.ID); r.Status != verdict.Refused || r.ErrorCode != verdict.ConfigInvalid || !strings.Contains(r.Message, want) {
			t.Errorf("agentbox inspect: %s", describe(r))
		}
	})
}

// Kubernetes changes the resources of a running container in place. What agentbox
// added stays, whether the kubelet knows the files of cgroup v2 or not.
func TestCRIResize(t *testing.T) {
	need(t, cri, runc)
	for _, tc := range []struct {
		name      string
		resources func(memory, milliCPU int64) *criapi.LinuxContainerResources
	}{
		{"a kubelet of this day", kubeletResources},
		{"an old kubelet", func(memory, milliCPU int64) *criapi.LinuxContainerResources {
			r := kubeletResources(memory, milliCPU)
			r.Unified = nil
			return r
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCRI(t)
			p := c.pod(criHandler, map[string]string{"agentbox.dev/pids": "99"})
			member := p.container("member", podBomb, tc.resources(64*mib, 500), nil)
			want := member.limits()
			for _, size := range []struct{ memory, milli int64 }{{128 * mib, 1000}, {24 * mib, 250}} {
				call(c, c.runtime.UpdateContainerResources, &criapi.UpdateContainerResourcesRequest{
					ContainerId: member.ID, Linux: tc.resources(size.memory, size.milli),
				})
				want.Memory, want.Quota = size.memory, size.milli*100
				if have := member.limits(); have != want {
					t.Errorf("the container has %+v, want %+v", have, want)
				}
				told := member.status().GetStatus().GetResources().GetLinux()
				if told.GetMemoryLimitInBytes() != size.memory || told.GetCpuQuota() != size.milli*100 {
					t.Errorf("the status has %v, want %+v", told, size)
				}
			}
			setOff(t, member.pid())
			if s := member.ended(); s.GetReason() != "OOMKilled" {
				t.Errorf("the status is %q with %d", s.GetReason(), s.GetExitCode())
			}
			r := c.result(member.ID)
			wantOOMVerdict(t, r)
			if peak := r.Usage; peak == nil || peak.MemoryPeakBytes == nil || *peak.MemoryPeakBytes > 25*mib {
				t.Errorf("it had more than what it was resized to: %+v", peak)
			}
		})
	}
}

// Pods outlive a restart of containerd, as after an installation, and what ends
// meanwhile is told afterwards.
func TestCRIRestart(t *testing.T) {
	c := newCRI(t)
	p := c.pod(criHandler, nil)
	agent := p.container("agent", podSleep, kubeletResources(64*mib, 0), nil)
	early := p.container("early", podBomb, kubeletResources(64*mib, 0), nil)
	late := p.container("late", podBomb, kubeletResources(64*mib, 0), nil)
	pid := early.pid()
	if err := c.containerd.stop(); err != nil {
		t.Error(err)
	}
	setOff(t, pid)
	eventually(t, 60*time.Second, func() string {
		if alive(pid) {
			return "the bomb has not gone off"
		}
		return ""
	})
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	if out := agent.exec("echo alive"); out.Stdout != "alive\n" {
		t.Errorf("the agent did not go on: %v", out)
	}
	setOff(t, late.pid())
	for _, bomb := range []*PodContainer{early, late} {
		s := bomb.ended()
		r := c.result(bomb.ID)
		wantSeen(t, r, verdict.OOMKilled, 137)
		wantOOMVerdict(t, r)
		// containerd 2 itself says 255 of what ended while it was away.
		if bomb == late && (s.GetExitCode() != 137 || s.GetReason() != "OOMKilled") {
			t.Errorf("%s: the status is %q with %d", s.GetMetadata().GetName(), s.GetReason(), s.GetExitCode())
		}
	}
}

// Settings can stand in containerd's own file.
func TestCRISettingsInContainerdsFile(t *testing.T) {
	need(t, containerd2)
	p := newCRI(t).pod(criInline, nil)
	if have := p.container("plain", podSleep, kubeletResources(0, 0), nil).limits(); have.Memory != 96*mib || have.Pids != 77 {
		t.Errorf("the container has %+v", have)
	}
}

// What annotates a single container, as a device plugin can, goes before what
// annotates the pod.
func TestCRIAnnotationsOfAContainer(t *testing.T) {
	p := newCRI(t).pod(criInline, map[string]string{"agentbox.dev/pids": "66", "agentbox.dev/memory": "64MiB"})
	for _, tc := range []struct {
		name         string
		annotations  map[string]string
		memory, pids int64
	}{
		{"pods", nil, 64 * mib, 66},
		{"own", map[string]string{"agentbox.dev/pids": "33", "agentbox.dev/memory": "48MiB"}, 48 * mib, 33},
		{"one-of-two", map[string]string{"agentbox.dev/pids": "99"}, 64 * mib, 99},
	} {
		if have := p.container(tc.name, podSleep, kubeletResources(0, 0), tc.annotations).limits(); have.Memory != tc.memory || have.Pids != tc.pids {
			t.Errorf("%s: the container has %+v", tc.name, have)
		}
	}
}

// The sample pod of the documentation gets the limits that its file says, and a
// tool that runs away ends its own container only.
func TestCRISamplePod(t *testing.T) {
	c := newCRI(t)
	data, err := kubernetes.Files.ReadFile("agent-pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var sample struct {
		Metadata struct{ Annotations map[string]string }
		Spec     struct {
			RuntimeClassName string `yaml:"runtimeClassName"`
			Containers       []struct {
				Name      string
				Command   []string
				Resources struct {
					Limits struct{ CPU, Memory string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(data, &sample); err != nil || len(sample.Spec.Containers) != 2 {
		t.Fatalf("%v: %+v", err, sample)
	}
	openFiles := regexp.MustCompile(`(?m)^Max open files +4096 +4096 +files`)
	started := map[string]*PodContainer{}
	p := c.pod(sample.Spec.RuntimeClassName, sample.Metadata.Annotations)
	for _, member := range sample.Spec.Containers {
		var want limits.Request
		if err := config.ApplyAnnotations(map[string]string{
			"agentbox.dev/memory": member.Resources.Limits.Memory, "agentbox.dev/cpus": member.Resources.Limits.CPU, // have the same form
		}, &want); err != nil {
			t.Fatal(err)
		}
		memory, milli := want.Annotations[limits.KeyMemory].N, want.Annotations[limits.KeyCPUs].N/1000
		r := kubeletResources(memory, milli)
		have := p.container(member.Name, member.Command[2], r, nil)
		if l := have.limits(); l.Memory != memory || l.Quota != milli*100 || l.Pids != 512 {
			t.Errorf("%s: %+v", member.Name, l)
		}
		if out := have.exec("cat /proc/1/limits"); !openFiles.MatchString(out.Stdout) {
			t.Errorf("%s: %v", member.Name, out)
		}
		started[member.Name] = have
	}
	tools, agent := started["tools"], started["agent"]
	if tools == nil || agent == nil {
		t.Fatalf("the containers are %v", started)
	}
	if out := tools.exec("tail /dev/zero"); out.Code != 137 {
		t.Errorf("the tool that ran away: %v", out)
	}
	if has(cgroup2) { // v1 kills the one process
		if s := tools.ended(); s.GetReason() != "OOMKilled" {
			t.Errorf("tools: the status is %q with %d", s.GetReason(), s.GetExitCode())
		}
	}
	if out := agent.exec("echo alive"); out.Stdout != "alive\n" {
		t.Errorf("the agent did not go on: %v", out)
	}
}

// Control: a pod of runc beside it has none of this.
func TestCRIRunc(t *testing.T) {
	c := newCRI(t)
	p := c.pod("runc", map[string]string{"agentbox.dev/pids": "99"})
	member := p.container("plain", "echo hello; "+podSleep, kubeletResources(0, 0), nil)
	if have := member.limits(); have.Pids != unlimited || have.Memory != unlimited {
		t.Errorf("the container has %+v", have)
	}
	eventually(t, 60*time.Second, func() string {
		if text := member.log("plain"); !strings.Contains(text, "hello") {
			return fmt.Sprintf("the log has %q", text)
		}
		return ""
	})
	out := execute(t, 30*time.Second, exec.Command(filepath.Join(bin, "agentbox"), "--config", c.Config, "--state", c.State, "inspect", member.ID))
	if out.Code == 0 {
		t.Errorf("agentbox knows a container of runc: %v", out)
	}
}
