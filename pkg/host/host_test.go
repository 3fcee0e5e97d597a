package host

import (
	"maps"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

const docker = "/docker/0123456789ab"

// groupKill stands for Host.GroupKill among the keys.
const groupKill limits.Key = "group_kill"

// probeAs probes a recorded tree. Only folders below writable can be written to;
// empty is all of them.
func probeAs(root string, euid int, in Input, writable string, refusal error) limits.Host {
	p := prober{fs: cgroup.FS(root), in: in, euid: euid, access: func(path string, mode uint32) error {
		if mode == unix.W_OK && !strings.HasPrefix(path, root+writable) {
			return refusal
		}
		return access(path, mode)
	}}
	return p.probe()
}

// mechanisms returns "name" for what is there and "-reason" for what is not.
func mechanisms(h limits.Host) map[limits.Key]string {
	got := map[limits.Key]string{groupKill: describe(h.GroupKill)}
	for key, m := range h.Mechanisms {
		got[key] = describe(m)
	}
	return got
}

func describe(m limits.Mechanism) string {
	switch {
	case m.Enforcer == limits.EnforcerNone && m.Reason != "":
		return "-" + m.Reason
	case m.Enforcer != limits.EnforcerNone && m.Reason == "":
		return m.Name
	}
	return "inconsistent: " + m.Name + " " + string(m.Enforcer) + " " + m.Reason
}

func TestProbe(t *testing.T) {
	const (
		controllersFile = "sys/fs/cgroup/cgroup.controllers"
		controlFile     = "sys/fs/cgroup/cgroup.subtree_control"
		noMemory        = "-the memory controller is not in /sys/fs/cgroup/cgroup.controllers"
		noIO            = "-the io controller is not in /sys/fs/cgroup/cgroup.controllers"
		noCgroups       = "-no cgroup controllers are mounted: /sys/fs/cgroup is not cgroup2 and /proc/self/mountinfo has no cgroup v1 mount"
		manager         = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"
		denied          = "-no permission to create a cgroup in "
		v1Memory        = "/sys/fs/cgroup/memory"
		v1Blkio         = "/sys/fs/cgroup/blkio"
		noThrottling    = " is missing: the kernel is built without CONFIG_BLK_DEV_THROTTLING"
		unknownIO       = "-it cannot be told whether this kernel has io.max: no cgroup below /sys/fs/cgroup has its controller on"
	)
	// The pair "io" of the tables below stands for all keys of that dimension.
	with := func(base map[limits.Key]string, pairs ...string) map[limits.Key]string {
		out := maps.Clone(base)
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] != "io" {
				out[limits.Key(pairs[i])] = pairs[i+1]
				continue
			}
			for _, key := range limits.IOKeys {
				out[key] = pairs[i+1]
			}
		}
		return out
	}
	v2 := with(map[limits.Key]string{
		limits.KeyMemory: "memory.max", limits.KeyMemoryHigh: "memory.high", limits.KeySwap: "memory.swap.max",
		limits.KeyPids: "pids.max", limits.KeyCPUs: "cpu.max", groupKill: "memory.oom.group",
	}, "io", "io.max")
	v1 := map[limits.Key]string{
		limits.KeyMemory: "memory.limit_in_bytes", limits.KeyMemoryHigh: "-cgroup v1 has no memory.high", limits.KeySwap: "memory.memsw.limit_in_bytes",
		limits.KeyPids: "pids.max", limits.KeyCPUs: "cpu.cfs_quota_us", groupKill: "-cgroup v1 has no group kill (memory.oom.group)",
		limits.KeyIOReadBPS: "blkio.throttle.read_bps_device", limits.KeyIOWriteBPS: "blkio.throttle.write_bps_device",
		limits.KeyIOReadIOPS: "blkio.throttle.read_iops_device", limits.KeyIOWriteIOPS: "blkio.throttle.write_iops_device",
	}
	all := func(text string) map[limits.Key]string {
		return with(map[limits.Key]string{
			limits.KeyMemory: text, limits.KeyMemoryHigh: text, limits.KeySwap: text,
			limits.KeyPids: text, limits.KeyCPUs: text, groupKill: text,
		}, "io", text)
	}
	edit := func(pairs ...string) func(string) {
		return func(root string) {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i+1] == "-" {
					cgrouptest.Remove(t, root, pairs[i])
					continue
				}
				cgrouptest.Write(t, root, pairs[i], pairs[i+1])
			}
		}
	}
	const (
		scope = "sys/fs/cgroup/system.slice/docker-0123456789ab.scope/"
		slice = "sys/fs/cgroup/system.slice/"

		initScope = "sys/fs/cgroup/init.scope/"
	)

	for _, c := range []struct {
		name, tree string
		change     func(root string)
		in         Input
		euid       int
		writable   string
		refusal    error
		version    int
		want       map[limits.Key]string
	}{
		{name: "v2", tree: "v2", in: Input{CgroupsPath: docker}, version: 2, want: v2},
		{name: "v2 systemd", tree: "v2", in: Input{CgroupsPath: "system.slice:docker:0123", Systemd: true}, version: 2, want: v2},
		{name: "v2 no path", tree: "v2", version: 2, want: v2},
		{
			name: "v2 memory and pids only", tree: "v2", in: Input{CgroupsPath: docker}, change: edit(controllersFile, "memory pids\n", controlFile, "memory pids\n"), version: 2,
			want: with(v2, "cpus", "-the cpu controller is not in /sys/fs/cgroup/cgroup.controllers", "io", noIO),
		},
		{name: "v2 without io", tree: "v2", in: Input{CgroupsPath: docker}, change: edit(controllersFile, "cpuset cpu memory pids\n", controlFile, "cpuset cpu memory pids\n"), version: 2, want: with(v2, "io", noIO)},
		{
			name: "v2 cgroup_disable=memory", tree: "v2", in: Input{CgroupsPath: docker}, change: edit(controllersFile, "cpu io pids\n", controlFile, "cpu io pids\n"), version: 2,
			want: with(v2, "memory", noMemory, "memory_high", noMemory, "swap", noMemory, "group_kill", noMemory),
		},
		{
			name: "v2 without swap accounting", tree: "v2", version: 2,
			change: edit(slice+"memory.swap.max", "-", scope+"memory.swap.max", "-"), in: Input{CgroupsPath: "/system.slice/x"},
			want: with(v2, "swap", "-/sys/fs/cgroup/system.slice/memory.swap.max is missing: the kernel does not account swap (boot it with swapaccount=1)"),
		},
		{
			name: "v2 before 4.19", tree: "v2", version: 2,
			change: edit(slice+"memory.oom.group", "-"), in: Input{CgroupsPath: "/system.slice/x"},
			want: with(v2, "group_kill", "-/sys/fs/cgroup/system.slice/memory.oom.group is missing: it came with Linux 4.19"),
		},
		{
			name: "v2 without CFS bandwidth", tree: "v2", version: 2,
			change: edit(slice+"cpu.max", "-"), in: Input{CgroupsPath: "/system.slice/x"},
			want: with(v2, "cpus", "-/sys/fs/cgroup/system.slice/cpu.max is missing: the kernel is built without CONFIG_CFS_BANDWIDTH"),
		},
		{
			name: "v2 without throttling", tree: "v2", version: 2, in: Input{CgroupsPath: "/system.slice/x"},
			change: edit(slice+"io.max", "-", scope+"io.max", "-", initScope+"io.max", "-",
				"proc/kallsyms", "ffffffff815e7a60 t blkcg_iostat_update\nffffffff815e9b40 t throtl_pd_alloc_not\nffffffffc03a1000 t throtl_pd_alloc\t[other]\n"),
			want: with(v2, "io", "-/proc/kallsyms has no throtl_pd_alloc: the kernel is built without CONFIG_BLK_DEV_THROTTLING"),
		},
		{
			name: "v2, only a cgroup beside it shows io.max", tree: "v2", version: 2, in: Input{CgroupsPath: "/system.slice/x"},
			change: edit(slice+"io.max", "-", scope+"io.max", "-"), want: v2,
		},
		{
			name: "v2 io.max cannot be told", tree: "v2", version: 2, in: Input{CgroupsPath: "/system.slice/x"},
			change: edit(slice+"io.max", "-", scope+"io.max", "-", initScope+"io.max", "-"), want: with(v2, "io", unknownIO),
		},
		{
			name: "v2 read-only", tree: "v2", in: Input{CgroupsPath: docker}, writable: "/nowhere", refusal: unix.EROFS, version: 2,
			want: all(denied + "/sys/fs/cgroup: it is mounted read-only"),
		},
		{
			name: "v2 no controllers file", tree: "v2", in: Input{CgroupsPath: docker}, change: edit(controllersFile, "-", controlFile, ""), version: 2,
			want: all("-the controllers cannot be read: open /sys/fs/cgroup/cgroup.controllers: no such file or directory"),
		},

		// Nothing to look at: what the kernel says about itself decides.
		{name: "bare", tree: "v2-bare", version: 2, want: v2},
		{
			name: "bare without CONFIG_SWAP", tree: "v2-bare", change: edit("proc/swaps", "-"), version: 2,
			want: with(v2, "swap", "-/proc/swaps is missing: the kernel is built without swap (CONFIG_SWAP)"),
		},
		{name: "bare, swapaccount=0 does nothing since 6.1", tree: "v2-bare", change: edit("proc/cmdline", "swapaccount=0\n"), version: 2, want: v2},
		{
			name: "bare 5.10 swapaccount=0", tree: "v2-bare", version: 2,
			change: edit("proc/cmdline", "swapaccount=1 swapaccount=0\n", "proc/sys/kernel/osrelease", "5.10.0-8-amd64\n"),
			want:   with(v2, "swap", "-swapaccount=0 in /proc/cmdline switches memory.swap.max off"),
		},
		{name: "bare 5.10", tree: "v2-bare", change: edit("proc/sys/kernel/osrelease", "5.10.0\n"), version: 2, want: v2},
		{
			name: "bare 5.4", tree: "v2-bare", change: edit("proc/sys/kernel/osrelease", "5.4.0\n"), version: 2,
			want: with(v2, "swap", "-it cannot be told whether this kernel has memory.swap.max: no cgroup below /sys/fs/cgroup has its controller on"),
		},
		{
			name: "bare 5.4 swapaccount=1", tree: "v2-bare", version: 2, want: v2,
			change: edit("proc/cmdline", "swapaccount=1\n", "proc/sys/kernel/osrelease", "5.4.0\n"),
		},
		{
			name: "bare 4.18", tree: "v2-bare", change: edit("proc/sys/kernel/osrelease", "4.18.0\n", "proc/cmdline", "swapaccount=1\n"), version: 2,
			want: with(v2, "group_kill", "-memory.oom.group came with Linux 4.19, this is 4.18"),
		},
		{
			name: "bare unknown release", tree: "v2-bare", change: edit("proc/sys/kernel/osrelease", "-", "proc/cmdline", "-"), version: 2,
			want: with(v2,
				"group_kill", "-it cannot be told whether this kernel has memory.oom.group: no cgroup below /sys/fs/cgroup has its controller on",
				"swap", "-it cannot be told whether this kernel has memory.swap.max: no cgroup below /sys/fs/cgroup has its controller on"),
		},
		{
			name: "bare without CFS bandwidth", tree: "v2-bare", change: edit("proc/sys/kernel/sched_cfs_bandwidth_slice_us", "-"), version: 2,
			want: with(v2, "cpus", "-/proc/sys/kernel/sched_cfs_bandwidth_slice_us is missing: the kernel is built without CONFIG_CFS_BANDWIDTH"),
		},
		{
			name: "bare without throttling", tree: "v2-bare", change: edit("proc/kallsyms", "ffffffff815e7a60 t blkcg_iostat_update\n"), version: 2,
			want: with(v2, "io", "-/proc/kallsyms has no throtl_pd_alloc: the kernel is built without CONFIG_BLK_DEV_THROTTLING"),
		},
		{name: "bare without symbols", tree: "v2-bare", change: edit("proc/kallsyms", "-"), version: 2, want: with(v2, "io", unknownIO)},
		{name: "bare with symbols hidden", tree: "v2-bare", change: edit("proc/kallsyms", ""), version: 2, want: with(v2, "io", unknownIO)},

		// Without root.
		{
			name: "user, systemd", tree: "v2-user", in: Input{CgroupsPath: "user.slice:libpod:0123", Systemd: true}, euid: 1000, writable: manager, refusal: unix.EACCES, version: 2,
			want: with(v2, "cpus", "-the cpu controller is not in "+manager+"/user.slice/cgroup.controllers", "io", "-the io controller is not in "+manager+"/user.slice/cgroup.controllers"),
		},
		{
			name: "user, systemd, no path", tree: "v2-user", in: Input{Systemd: true}, euid: 1000, writable: manager, refusal: unix.EACCES, version: 2,
			want: with(v2, "cpus", "-the cpu controller is not in "+manager+"/user.slice/cgroup.controllers", "io", "-the io controller is not in "+manager+"/user.slice/cgroup.controllers"),
		},
		{
			name: "user, not in a session", tree: "v2-user", change: edit("proc/self/cgroup", "0::/system.slice/x\n"),
			in: Input{Systemd: true}, euid: 1000, writable: manager, refusal: unix.EACCES, version: 2,
			want: with(v2, "cpus", "-the cpu controller is not in "+manager+"/user.slice/cgroup.controllers", "io", "-the io controller is not in "+manager+"/user.slice/cgroup.controllers"),
		},
		{
			name: "user, beside its own cgroup", tree: "v2-user", euid: 1000, writable: manager, refusal: unix.EACCES, version: 2,
			want: with(v2, "cpus", "-the cpu controller is not in "+manager+"/app.slice/cgroup.controllers", "io", "-the io controller is not in "+manager+"/app.slice/cgroup.controllers"),
		},
		{
			name: "user, relative path that climbs", tree: "v2-user", in: Input{CgroupsPath: "../../../../x"}, euid: 1000, writable: manager, refusal: unix.EACCES, version: 2,
			want: with(v2, "cpus", "-the cpu controller is not in "+manager+"/app.slice/cgroup.controllers", "io", "-the io controller is not in "+manager+"/app.slice/cgroup.controllers"),
		},
		{
			name: "user with io delegated", tree: "v2-user", in: Input{Systemd: true}, euid: 1000, writable: manager, refusal: unix.EACCES, version: 2,
			change: edit(manager[1:]+"/user.slice/cgroup.controllers", "cpu io memory pids\n", manager[1:]+"/user.slice/io.max", ""), want: v2,
		},
		{
			name: "user, controllers cannot be turned on", tree: "v2-user", in: Input{Systemd: true}, euid: 1000, writable: manager + "/user.slice\x00", refusal: unix.EACCES, version: 2,
			want: all(denied + manager + "/user.slice"),
		},
		{
			name: "user, absolute path", tree: "v2-user", in: Input{CgroupsPath: docker}, euid: 1000, writable: manager, refusal: unix.EACCES, version: 2,
			want: all(denied + "/sys/fs/cgroup"),
		},

		{name: "v1", tree: "v1", in: Input{CgroupsPath: docker}, version: 1, want: v1},
		{name: "v1 no path", tree: "v1", version: 1, want: v1},
		{name: "v1 systemd", tree: "v1", in: Input{CgroupsPath: "system.slice:docker:0123", Systemd: true}, version: 1, want: v1},
		{name: "hybrid", tree: "hybrid", in: Input{CgroupsPath: docker}, version: 1, want: v1},
		{
			name: "v1 no memsw", tree: "v1", in: Input{CgroupsPath: "/x"}, change: edit("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "-"), version: 1,
			want: with(v1, "swap", "-"+v1Memory+"/memory.memsw.limit_in_bytes is missing: the kernel does not account swap (boot it with swapaccount=1)"),
		},
		{
			name: "v1 no quota", tree: "v1", in: Input{CgroupsPath: "/x"}, change: edit("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-"), version: 1,
			want: with(v1, "cpus", "-/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us is missing: the kernel is built without CONFIG_CFS_BANDWIDTH"),
		},
		{
			name: "v1 cgroup_disable=memory", tree: "v1", version: 1,
			change: func(root string) {
				dropMount(t, root, "rw,memory")
				cgrouptest.Write(t, root, "proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t0\npids\t9\t50\t1\n")
			},
			want: with(v1,
				"memory", "-the memory controller is switched off: it has enabled 0 in /proc/cgroups (cgroup_disable on the kernel's command line)",
				"swap", "-the memory controller is switched off: it has enabled 0 in /proc/cgroups (cgroup_disable on the kernel's command line)"),
		},
		{
			name: "v1 pids not mounted", tree: "v1", version: 1, change: func(root string) { dropMount(t, root, "rw,pids") },
			want: with(v1, "pids", "-the pids controller is not mounted: /proc/self/mountinfo has no cgroup mount with it"),
		},
		{
			name: "v1 without blkio", tree: "v1", version: 1,
			change: func(root string) {
				dropMount(t, root, "rw,blkio")
				cgrouptest.Write(t, root, "proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t10\t80\t1\n")
			},
			want: with(v1, "io", "-the blkio controller is not mounted: /proc/self/mountinfo has no cgroup mount with it"),
		},
		{
			name: "v1 cgroup_disable=blkio", tree: "v1", version: 1,
			change: func(root string) {
				dropMount(t, root, "rw,blkio")
				cgrouptest.Write(t, root, "proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nblkio\t0\t1\t0\n")
			},
			want: with(v1, "io", "-the blkio controller is switched off: it has enabled 0 in /proc/cgroups (cgroup_disable on the kernel's command line)"),
		},
		{
			name: "v1 without throttling", tree: "v1", in: Input{CgroupsPath: "/x"}, version: 1,
			change: edit(
				"sys/fs/cgroup/blkio/blkio.throttle.read_bps_device", "-", "sys/fs/cgroup/blkio/blkio.throttle.write_bps_device", "-",
				"sys/fs/cgroup/blkio/blkio.throttle.read_iops_device", "-", "sys/fs/cgroup/blkio/blkio.throttle.write_iops_device", "-"),
			want: with(v1,
				"io_read_bps", "-"+v1Blkio+"/blkio.throttle.read_bps_device"+noThrottling, "io_write_bps", "-"+v1Blkio+"/blkio.throttle.write_bps_device"+noThrottling,
				"io_read_iops", "-"+v1Blkio+"/blkio.throttle.read_iops_device"+noThrottling, "io_write_iops", "-"+v1Blkio+"/blkio.throttle.write_iops_device"+noThrottling),
		},
		{
			name: "v1 hidden mount", tree: "v1", version: 1, change: edit("sys/fs/cgroup/pids", "-"),
			want: with(v1, "pids", "-/sys/fs/cgroup/pids is not there"),
		},
		{
			name: "v1 user", tree: "v1", in: Input{CgroupsPath: docker}, euid: 1000, writable: "/nowhere", refusal: unix.EACCES, version: 1,
			want: with(v1,
				"memory", denied+v1Memory+docker, "swap", denied+v1Memory+docker,
				"pids", denied+"/sys/fs/cgroup/pids"+docker, "cpus", denied+"/sys/fs/cgroup/cpu,cpuacct"+docker, "io", denied+v1Blkio+docker),
		},
		{
			name: "v1 odd refusal", tree: "v1", in: Input{CgroupsPath: docker}, writable: v1Memory, refusal: unix.EPERM, version: 1,
			want: with(v1,
				"pids", denied+"/sys/fs/cgroup/pids"+docker+": operation not permitted",
				"cpus", denied+"/sys/fs/cgroup/cpu,cpuacct"+docker+": operation not permitted",
				"io", denied+v1Blkio+docker+": operation not permitted"),
		},
		{
			name: "no cgroups asked for", tree: "v2", in: Input{CgroupsPath: docker, NoCgroups: true}, version: 0,
			want: all("-the low-level runtime is told to use no cgroup"),
		},
		{name: "none", tree: "none", version: 0, want: all(noCgroups)},
		{
			name: "no proc", tree: "none", change: edit("proc/self/mountinfo", "-"), version: 0,
			want: all("-the cgroup mounts cannot be read: open /proc/self/mountinfo: no such file or directory"),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, c.tree)
			if c.change != nil {
				c.change(root)
			}
			h := probeAs(root, c.euid, c.in, c.writable, c.refusal)
			if h.CgroupVersion != c.version {
				t.Errorf("version %d, want %d", h.CgroupVersion, c.version)
			}
			want := with(c.want, "open_files", "RLIMIT_NOFILE", "file_size", "RLIMIT_FSIZE", "core_dumps", "RLIMIT_CORE")
			got := mechanisms(h)
			for key := range want {
				if got[key] != want[key] {
					t.Errorf("%s: %q\nwant %q", key, got[key], want[key])
				}
			}
			if len(got) != len(want) {
				t.Errorf("keys %v", got)
			}
		})
	}
}

// setControllers sets which controllers the cgroup at the mount point has. What
// it passes on is never more than that.
func setControllers(t *testing.T, root, list string) {
	t.Helper()
	cgrouptest.Write(t, root, "sys/fs/cgroup/cgroup.controllers", list)
	cgrouptest.Write(t, root, "sys/fs/cgroup/cgroup.subtree_control", list)
}

// dropMount takes a mount out of a tree by its options.
func dropMount(t *testing.T, root, options string) {
	t.Helper()
	data, err := os.ReadFile(root + "/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var kept strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasSuffix(line, " "+options+"\n") {
			kept.WriteString(line)
		}
	}
	cgrouptest.Write(t, root, "proc/self/mountinfo", kept.String())
}

func TestControllersFile(t *testing.T) {
	root := cgrouptest.Tree(t, "v2-user")
	p := prober{fs: cgroup.FS(root), access: func(path string, mode uint32) error { return unix.EACCES }}
	if got := p.controllersFile("/sys/fs/cgroup/a"); got != "/sys/fs/cgroup/a/cgroup.subtree_control" {
		t.Error(got)
	}
}

func TestExpandSlice(t *testing.T) {
	for slice, want := range map[string]string{
		"system.slice": "/system.slice", "a-b-c.slice": "/a.slice/a-b.slice/a-b-c.slice", "-.slice": "/",
		"": "/", ".slice": "/", "a": "/", "a--b.slice": "/", "-a.slice": "/", "../a.slice": "/", "a-.slice": "/",
		strings.Repeat("a-", 3000) + "a.slice": "/", // longer than the name of a unit can be
	} {
		if got := expandSlice(slice); got != want {
			t.Errorf("%q: %q, want %q", slice, got, want)
		}
	}
}

func TestParseRelease(t *testing.T) {
	for text, want := range map[string]kernel{
		"6.1.0-18-amd64\n": {6, 1}, "5.15": {5, 15}, "4.19-rc1": {4, 19}, "6.18.44-fc": {6, 18},
		"": {}, "6": {}, "x.1": {}, "6.x": {}, "-6.1": {},
	} {
		if got := parseRelease(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestParseSwapAccount(t *testing.T) {
	for cmdline, want := range map[string][2]bool{
		"": {false, false}, "quiet 0 1": {false, false}, "swapaccount=0": {false, true}, "swapaccount=1 quiet\n": {true, true},
		"swapaccount=0 swapaccount=1": {true, true}, "swapaccount=x": {false, false}, "noswapaccount=1": {false, false},
	} {
		if on, given := parseSwapAccount(cmdline); on != want[0] || given != want[1] {
			t.Errorf("%q: %v, %v", cmdline, on, given)
		}
	}
}

func TestParsePidMax(t *testing.T) {
	for text, want := range map[string]int64{"4194304\n": 4194304, "32768": 32768, "": 0, "x": 0, "-1\n": 0, "99999999999999999999\n": 0} {
		if got := parsePidMax([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestProbeLive(t *testing.T) {
	h := Probe(cgroup.Host, Input{CgroupsPath: docker})
	t.Logf("%+v", h)
	if h.MemoryBytes < 1<<20 || h.CPUs != runtime.NumCPU() || h.PidMax < 300 {
		t.Errorf("memory %d, CPUs %d, pid_max %d", h.MemoryBytes, h.CPUs, h.PidMax)
	}
	var nofile unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile); err != nil {
		t.Fatal(err)
	}
	if h.OpenFilesHard != int64(nofile.Max) {
		t.Errorf("open files %d, want %d", h.OpenFilesHard, nofile.Max)
	}
	for key, text := range mechanisms(h) {
		if strings.HasPrefix(text, "inconsistent") {
			t.Errorf("%s: %s", key, text)
		}
	}
	layout, err := cgroup.Host.Layout()
	if err != nil || layout.Version != h.CgroupVersion {
		t.Errorf("version %d, %v; the probe has %d", layout.Version, err, h.CgroupVersion)
	}
}

// BenchmarkProbe shows what a container start waits for, with a note and without.
// "v2-kallsyms" is a machine whose cgroups do not show whether there is io.max,
// with the list of symbols of the kernel that the benchmark runs on.
func BenchmarkProbe(b *testing.B) {
	kallsyms := cgrouptest.Tree(b, "v2-bare")
	if symbols, err := os.ReadFile("/proc/kallsyms"); err == nil {
		cgrouptest.Write(b, kallsyms, "proc/kallsyms", string(symbols))
	}
	slice := Input{CgroupsPath: "system.slice:docker:0123", Systemd: true}
	for _, c := range []struct {
		name string
		fs   cgroup.FS
		in   Input
	}{
		{"live", cgroup.Host, Input{CgroupsPath: docker}},
		{"v1", cgroup.FS(cgrouptest.Tree(b, "v1")), Input{CgroupsPath: docker}},
		{"v2", cgroup.FS(cgrouptest.Tree(b, "v2")), slice},
		{"v2-bare", cgroup.FS(cgrouptest.Tree(b, "v2-bare")), Input{CgroupsPath: docker}},
		{"v2-kallsyms", cgroup.FS(kallsyms), Input{CgroupsPath: docker}},
	} {
		for _, notes := range []string{"", b.TempDir()} {
			name := c.name
			if notes != "" {
				name += "-noted"
			}
			c.in.Notes = notes
			b.Run(name, func(b *testing.B) {
				Probe(c.fs, c.in)
				b.ReportAllocs()
				for b.Loop() {
					Probe(c.fs, c.in)
				}
			})
		}
	}
}

// BenchmarkHasFunction reads the list of symbols of this machine to its end.
func BenchmarkHasFunction(b *testing.B) {
	for _, notes := range []string{"", b.TempDir()} {
		name := "asked"
		if notes != "" {
			name = "noted"
		}
		b.Run(name, func(b *testing.B) {
			p := prober{fs: cgroup.Host, in: Input{Notes: notes}}
			for b.Loop() {
				if has, err := p.hasFunction("agentbox_has_none"); has || err != nil {
					b.Fatal(has, err)
				}
			}
		})
	}
}

func FuzzPlace(f *testing.F) {
	f.Add("/docker/abc", "", false, 0)
	f.Add("../../x", "0::/a/b\n", false, 1000)
	f.Add("a-b.slice:x:y", "0::/../c\n", true, 0)
	f.Add("", "0::/user.slice/user-1000.slice/user@1000.service/app.slice\n", true, 1000)
	f.Fuzz(func(t *testing.T, cgroupsPath, own string, systemd bool, euid int) {
		root := t.TempDir()
		cgrouptest.Write(t, root, "proc/self/cgroup", own)
		p := prober{fs: cgroup.FS(root), in: Input{CgroupsPath: cgroupsPath, Systemd: systemd}, euid: euid, access: access}
		got := p.intended(func() string { return p.ownCgroup("") })
		// It stays below the mount point, whatever the specification says.
		if !strings.HasPrefix(got, "/") || strings.Contains(got+"/", "/../") {
			t.Errorf("%q", got)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("6.1.0-18-amd64\n")
	f.Add("quiet swapaccount=0\n")
	f.Add("#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t0\n")
	f.Add("4194304\n")
	f.Fuzz(func(t *testing.T, text string) {
		if k := parseRelease(text); k.major < 0 || k.minor < 0 {
			t.Errorf("%v", k)
		}
		if on, given := parseSwapAccount(text); on && !given {
			t.Error("on, but not given")
		}
		if n := parsePidMax([]byte(text)); n < 0 {
			t.Errorf("%d", n)
		}
		switchedOff(text, "memory")
	})
}
