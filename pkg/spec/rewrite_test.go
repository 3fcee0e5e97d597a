package spec_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// world is everything besides the file that a rewrite depends on.
type world struct {
	policy      limits.Policy
	host        limits.Host
	devices     map[limits.Device]limits.AskedDisk // what the host finds for a device number; it does not know others
	bfq         []limits.Device                    // disks whose weight can be set apart
	ioFiles     []string                           // "io.*" of the container's cgroup
	annotations limits.Set                         // what agentbox.dev/* annotations ask for
	hook        *spec.Hook
}

// The block devices of the worlds. The container's files are on sda and vda; sdb
// is another disk of the host, loop0 one that cannot be limited.
var (
	sda  = limits.Device{Major: 8}
	sda1 = limits.Device{Major: 8, Minor: 1}
	sdb  = limits.Device{Major: 8, Minor: 16}
	sdb2 = limits.Device{Major: 8, Minor: 18}
	vda  = limits.Device{Major: 254}
	loop = limits.Device{Major: 7}
)

func blockDevices() map[limits.Device]limits.AskedDisk {
	disk := func(d limits.Device, name string) limits.AskedDisk {
		return limits.AskedDisk{Disk: limits.BlockDevice{Device: d, Name: name}}
	}
	return map[limits.Device]limits.AskedDisk{
		sda: disk(sda, "sda"), sda1: disk(sda, "sda"), sdb: disk(sdb, "sdb"), sdb2: disk(sdb, "sdb"), vda: disk(vda, "vda"),
		loop: {Reason: "loop0 is a file of the host"},
	}
}

// v2World is a cgroup v2 host that has everything, with the built-in policy.
func v2World() world {
	kernel := func(name string) limits.Mechanism {
		return limits.Mechanism{Name: name, Enforcer: limits.EnforcerKernel}
	}
	process := func(name string) limits.Mechanism {
		return limits.Mechanism{Name: name, Enforcer: limits.EnforcerProcess}
	}
	return world{policy: limits.DefaultPolicy(), host: limits.Host{
		CgroupVersion: 2,
		MemoryBytes:   16 * gib,
		CPUs:          8,
		PidMax:        4_194_304,
		Mechanisms: map[limits.Key]limits.Mechanism{
			limits.KeyMemory:     kernel("memory.max"),
			limits.KeyMemoryHigh: kernel("memory.high"),
			limits.KeySwap:       kernel("memory.swap.max"),
			limits.KeyPids:       kernel("pids.max"),
			limits.KeyCPUs:       kernel("cpu.max"),
			limits.KeyIOReadBPS:  kernel("io.max"), limits.KeyIOWriteBPS: kernel("io.max"),
			limits.KeyIOReadIOPS: kernel("io.max"), limits.KeyIOWriteIOPS: kernel("io.max"),
			limits.KeyOpenFiles: process("RLIMIT_NOFILE"),
			limits.KeyFileSize:  process("RLIMIT_FSIZE"),
			limits.KeyCoreDumps: process("RLIMIT_CORE"),
		},
		IO: limits.HostIO{Disks: []limits.BlockDevice{
			{Device: sda, Name: "sda", Places: []string{"/"}, Filesystem: "ext4"},
			{Device: vda, Name: "vda", Places: []string{"/work"}, Filesystem: "xfs"},
		}},
		GroupKill:     kernel("memory.oom.group"),
		OpenFilesHard: 1 << 20,
		FileSizeHard:  -1,
		CoreHard:      -1,
	}, devices: blockDevices()}
}

// probe is what a host says about the disks and files that a request names, and
// nothing where none can be limited.
func (w world) probe(req limits.Request) limits.Host {
	h := w.host
	if h.Mechanisms[limits.KeyIOReadBPS].Enforcer != limits.EnforcerKernel {
		h.IO = limits.HostIO{}
		return h
	}
	h.IO.Asked = map[limits.Device]limits.AskedDisk{}
	for device := range req.Devices {
		if found, ok := w.devices[device]; ok {
			h.IO.Asked[device] = found
		}
	}
	among := func(d limits.Device) bool { return slices.Contains(req.IOWeightDevices, d) }
	h.IO.WeightDisks = slices.DeleteFunc(slices.Clone(w.bfq), func(d limits.Device) bool { return !among(d) })
	h.IO.Files = slices.DeleteFunc(slices.Clone(w.ioFiles), func(name string) bool { return !slices.Contains(req.IOFiles, name) })
	return h
}

// without takes mechanisms away from the host.
func (w world) without(keys ...limits.Key) world {
	w.host.Mechanisms = maps.Clone(w.host.Mechanisms)
	for _, k := range keys {
		w.host.Mechanisms[k] = limits.Mechanism{Enforcer: limits.EnforcerNone, Reason: "not on this host"}
	}
	return w
}

func v1World() world {
	w := v2World().without(limits.KeyMemoryHigh)
	w.host.CgroupVersion = 1
	for _, key := range limits.IOKeys {
		w.host.Mechanisms[key] = limits.Mechanism{Name: "blkio.throttle", Enforcer: limits.EnforcerKernel}
	}
	w.host.GroupKill = limits.Mechanism{Enforcer: limits.EnforcerNone, Reason: "cgroup v1"}
	return w
}

func noMemoryWorld() world {
	w := v2World().without(limits.KeyMemory, limits.KeyMemoryHigh, limits.KeySwap)
	w.host.GroupKill = limits.Mechanism{Enforcer: limits.EnforcerNone, Reason: "no memory controller"}
	return w
}

// supervised returns a world that has a supervisor besides.
func (w world) supervised() world {
	w.host.Supervisor = limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerSupervisor}
	return w
}

func noIOWorld() world { return v2World().without(limits.IOKeys[:]...) }

// noCgroupWorld is a host where the low-level runtime uses no cgroup.
func noCgroupWorld() world {
	w := noMemoryWorld().without(limits.KeyPids, limits.KeyCPUs).without(limits.IOKeys[:]...)
	w.host.CgroupVersion = 0
	return w
}

// weightWorld is a host whose cgroups have files for an I/O weight, and bfq on
// sda and sdb.
func weightWorld() world {
	w := v2World()
	w.host.IO.Weight = limits.Mechanism{Name: "io.weight", Enforcer: limits.EnforcerKernel}
	w.bfq, w.ioFiles = []limits.Device{sda, sdb}, []string{"io.bfq.weight", "io.latency", "io.prio.class", "io.weight"}
	return w
}

// v1WeightWorld has a blkio.weight, and bfq on vda.
func v1WeightWorld() world {
	w := v1World()
	w.host.IO.Weight = limits.Mechanism{Name: "blkio.weight", Enforcer: limits.EnforcerKernel}
	w.bfq = []limits.Device{vda}
	return w
}

// disklessWorld has the container's files in memory only.
func disklessWorld() world {
	w := v2World()
	w.host.IO.Disks = nil
	return w
}

// networkWorld has the container's root on a network.
func networkWorld() world {
	w := disklessWorld()
	w.host.IO.Diskless = []limits.Diskless{{Place: "/", Reason: "nfs4 is a network filesystem"}}
	return w
}

// generousWorld has a policy that sets as little as possible.
func generousWorld() world {
	w := v2World()
	for k := range w.policy.Defaults {
		w.policy.Defaults[k] = limits.NoLimit()
	}
	for _, info := range limits.Keys {
		w.policy.Ceilings[info.Key] = limits.NoLimit()
	}
	w.policy.OOMScope = limits.ScopeProcess
	w.policy.OOMScoreAdjMin = -1000
	return w
}

// everythingWorld has a policy that sets every limit, low, and a hook.
func everythingWorld() world {
	w := v2World()
	w.policy.Defaults = limits.Set{
		limits.KeyMemory: limits.Limit(256 * mib), limits.KeyMemoryHigh: limits.Limit(200 * mib), limits.KeySwap: limits.Limit(64 * mib),
		limits.KeyPids: limits.Limit(64), limits.KeyCPUs: limits.Limit(333_333),
		limits.KeyIOReadBPS: limits.Limit(mib), limits.KeyIOWriteBPS: limits.Limit(mib), limits.KeyIOReadIOPS: limits.Limit(100), limits.KeyIOWriteIOPS: limits.Limit(100),
		limits.KeyOpenFiles: {Soft: 256, N: 512}, limits.KeyFileSize: limits.Limit(gib), limits.KeyCoreDumps: limits.Limit(0),
	}
	w.policy.Ceilings = limits.Set{
		limits.KeyMemory: limits.Limit(gib), limits.KeyCPUs: limits.Limit(1_500_000), limits.KeyOpenFiles: {Soft: 1024, N: 4096},
		limits.KeyIOReadBPS: limits.Limit(64 * mib), limits.KeyIOReadIOPS: limits.Limit(1000), limits.KeyIOWriteIOPS: limits.Limit(50),
	}
	w.annotations = limits.Set{
		limits.KeyMemory: limits.Limit(512 * mib), limits.KeyCPUs: limits.NoLimit(),
		limits.KeyIOReadBPS: limits.NoLimit(), limits.KeyIOWriteBPS: limits.Limit(8 * mib), limits.KeyIOReadIOPS: limits.Limit(800),
	}
	w.hook = &spec.Hook{Path: "/usr/local/bin/agentbox-runtime", Args: []string{"attach"}}
	return w
}

// rewritten is what a rewrite gave.
type rewritten struct {
	data     []byte
	plan     *limits.Plan
	warnings []string
}

// rewrite does to a file what the runtime does to it at create.
func (w world) rewrite(data []byte) (*rewritten, error) {
	doc, err := spec.Parse(data)
	if err != nil {
		return nil, err
	}
	req, err := doc.Request("/bundle")
	if err != nil {
		return nil, err
	}
	req.Annotations = w.annotations
	plan, err := limits.Resolve(w.policy, req, w.probe(req))
	if err != nil {
		return nil, err
	}
	warnings, err := doc.Apply(plan, spec.Options{AllowAnnotations: w.policy.AllowAnnotations, Hook: w.hook})
	if err != nil {
		return nil, err
	}
	return &rewritten{doc.Bytes(), plan, slices.Concat(plan.Warnings, warnings)}, nil
}

func (w world) mustRewrite(t *testing.T, data string) *rewritten {
	t.Helper()
	r, err := w.rewrite([]byte(data))
	if err != nil {
		t.Fatalf("rewrite %.300s: %v", data, err)
	}
	return r
}

// mustRefuse checks that a file is refused in one sentence with text in it.
func (w world) mustRefuse(t *testing.T, data, text string) {
	t.Helper()
	r, err := w.rewrite([]byte(data))
	if err == nil {
		t.Fatalf("%.300s was accepted:\n%.2000s", data, r.data)
	}
	if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
		t.Errorf("error = %v, want one short sentence with %q in it", err, text)
	}
}

// with returns a small config.json that has the given text inside of
// linux.resources.
func resources(text string) string {
	return `{"ociVersion":"1.0.2","process":{"args":["sh"],"cwd":"/"},"root":{"path":"rootfs"},"linux":{"resources":{` + text + `}}}`
}

// process returns a small config.json that has the given text inside of process.
func process(text string) string {
	return `{"ociVersion":"1.0.2","process":{"args":["sh"],"cwd":"/",` + text + `},"root":{"path":"rootfs"},"linux":{}}`
}

// An image can have any number of annotations. Each of these is dropped; the
// warnings go into the event that carries the result, and have to fit.
func TestManyAnnotationsGiveFewWarnings(t *testing.T) {
	var list strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&list, `"org.systemd.property.X%d": "1", `, i)
	}
	r := v2World().mustRewrite(t, `{"annotations": {`+list.String()+`"a": "b"}}`)
	if len(r.warnings) > 200 || !strings.Contains(r.warnings[len(r.warnings)-1], "more warnings are left out") {
		t.Errorf("%d warnings, the last is %q", len(r.warnings), r.warnings[len(r.warnings)-1])
	}
	if text := string(r.data); strings.Contains(text, "org.systemd.property") || !strings.Contains(text, `"a":"b"`) {
		t.Errorf("rewritten: %.300s", text)
	}
}
