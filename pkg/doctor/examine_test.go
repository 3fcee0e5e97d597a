package doctor

import (
	"context"
	"encoding/json"
	"maps"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

// row is what is said about one dimension: the answer, then the mechanisms or
// the reason, then the fix as "text | line | line".
type row struct{ answer, why, fix string }

func rowOf(d Dimension) row {
	var names []string
	for _, l := range d.Limits {
		if l.Mechanism != "" && !slices.Contains(names, l.Mechanism) {
			names = append(names, l.Mechanism)
		}
	}
	why := strings.Join(names, " ")
	if d.Reason != "" {
		why = d.Reason
	}
	return row{string(d.Answer), why, fixWords(d.Fix)}
}

func fixWords(f *Fix) string {
	if f == nil {
		return ""
	}
	return strings.Join(append([]string{f.Text}, f.Lines...), " | ")
}

// rows are those that depend on the kernel.
func rows(r Report) map[string]row {
	got := map[string]row{"group kill": {string(r.GroupKill.Answer), r.GroupKill.Mechanism + r.GroupKill.Reason, fixWords(r.GroupKill.Fix)}}
	for _, d := range []limits.Dimension{limits.Memory, limits.Swap, limits.Pids, limits.CPU, limits.IO} {
		got[string(d)] = rowOf(r.Dimensions[d])
	}
	return got
}

// TestExamine has each kind of host that there is, as its files show it.
func TestExamine(t *testing.T) {
	const (
		controllersFile = "sys/fs/cgroup/cgroup.controllers"
		controlFile     = "sys/fs/cgroup/cgroup.subtree_control"
		grub            = "/etc/default/grub /etc/default/grub.d"
		noLimitOfSwap   = "cgroup v1 limits swap only together with memory"
		notMounted      = "no cgroup controllers are mounted: /sys/fs/cgroup is not cgroup2 and /proc/self/mountinfo has no cgroup v1 mount"
		mount           = "mount cgroup v2 | mount -t cgroup2 cgroup2 /sys/fs/cgroup"
		openRC          = `mount cgroup v2 at /sys/fs/cgroup in place of v1, in the scripts that start this machine (OpenRC: rc_cgroup_mode="unified" in /etc/rc.conf)`
		toUnified       = "boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
	)
	absent := func(controller string) string {
		return "the " + controller + " controller is not in /sys/fs/cgroup/cgroup.controllers"
	}
	unmounted := func(controller string) string {
		return "the " + controller + " controller is not mounted: /proc/self/mountinfo has no cgroup mount with it"
	}
	without := func(word string) string { return "boot without " + word + " on the kernel's command line" }
	v2 := map[string]row{
		"memory": {"yes", "memory.max", ""}, "group kill": {"yes", "memory.oom.group", ""}, "swap": {"yes", "memory.swap.max", ""},
		"pids": {"yes", "pids.max", ""}, "cpu": {"yes", "cpu.max", ""}, "io": {"yes", "io.max", ""},
	}
	v1 := map[string]row{
		"memory": {"yes", "memory.limit_in_bytes", ""}, "group kill": {"no", "cgroup v1 has no group kill (memory.oom.group)", ""},
		"swap": {"yes", "memory.memsw.limit_in_bytes", ""}, "pids": {"yes", "pids.max", ""}, "cpu": {"yes", "cpu.cfs_quota_us", ""},
		"io": {"yes", "blkio.throttle.read_bps_device blkio.throttle.write_bps_device", ""},
	}
	groupKillV1 := func(fix string) row { return row{"no", "cgroup v1 has no group kill (memory.oom.group)", fix} }
	// noMemory is cgroup v2 without the memory controller.
	noMemory := func(fix string) map[string]row {
		no := row{"no", absent("memory"), fix}
		return map[string]row{"memory": no, "group kill": no, "swap": no}
	}
	for _, c := range []struct {
		name, tree string
		programs   []string
		files      []string // path and content; "-" takes it away
		facts      func(f *Facts)
		base, want map[string]row
		missing    []string
	}{
		{name: "cgroup v2, complete", tree: "v2-7.2", base: v2},
		{name: "cgroup v2 of Debian 12 with systemd", tree: "v2", base: v2},
		{name: "cgroup v2 without a cgroup", tree: "v2-bare", base: v2},
		{
			name: "cgroup v2 without io", tree: "v2-7.2-noio", base: v2,
			want: map[string]row{"io": {"no", absent("io"), without("cgroup_disable=io")}},
		},
		{
			name: "cgroup_disable=memory", tree: "v2-7.2-nomemory", base: v2,
			want: noMemory(without("cgroup_disable=memory")), missing: []string{"memory", "swap"},
		},
		{
			name: "cgroup_disable=memory with grubby", tree: "v2-7.2-nomemory", base: v2, programs: []string{"grubby"},
			want:    noMemory(without("cgroup_disable=memory") + " | grubby --update-kernel=ALL --remove-args=cgroup_disable=memory | reboot"),
			missing: []string{"memory", "swap"},
		},
		{
			name: "cgroup_disable=memory with update-grub", tree: "v2-7.2-nomemory", base: v2, programs: []string{"update-grub"},
			want:    noMemory(without("cgroup_disable=memory") + " | grep -rl 'cgroup_disable=memory' " + grub + " | xargs -r sed -i 's/cgroup_disable=memory//' | update-grub | reboot"),
			missing: []string{"memory", "swap"},
		},
		{
			name: "a command line that no shell should see", tree: "v2-7.2-nomemory", base: v2, programs: []string{"grubby"},
			files: []string{"proc/cmdline", "cgroup_disable=memory,$(reboot)\n"},
			want:  noMemory(without("cgroup_disable=memory,$(reboot)")), missing: []string{"memory", "swap"},
		},
		{
			name: "only memory and pids", tree: "v2-7.2", base: v2, files: []string{controllersFile, "memory pids\n", controlFile, "memory pids\n", "proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\npids\t0\t3\t1\n"},
			want: map[string]row{
				"cpu": {"no", absent("cpu"), "boot a kernel that is built with CONFIG_CGROUP_SCHED | grep CONFIG_CGROUP_SCHED= /boot/config-*"},
				"io":  {"no", absent("io"), "boot a kernel that is built with CONFIG_BLK_CGROUP | grep CONFIG_BLK_CGROUP= /boot/config-*"},
			},
			missing: []string{"cpu"},
		},
		{
			name: "pids is on cgroup v1", tree: "v2-7.2", base: v2,
			files: []string{
				controllersFile, "cpu io memory\n", controlFile, "cpu io memory\n", "proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\npids\t3\t3\t1\n",
				"proc/self/mountinfo", "29 23 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n30 23 0:25 / /mnt/pids rw - cgroup cgroup rw,pids\n",
			},
			want:    map[string]row{"pids": {"no", absent("pids"), "unmount the cgroup v1 that has the pids controller | umount /mnt/pids"}},
			missing: []string{"pids"},
		},
		{
			name: "a cgroup namespace that was given less", tree: "v2-7.2", base: v2, files: []string{controllersFile, "cpu memory pids\n", controlFile, "cpu memory pids\n", "sys/fs/cgroup/cgroup.events", "populated 1\n"},
			want: map[string]row{"io": {"no", absent("io"), "ask on the host, or let the host pass the io controller on to this cgroup namespace"}},
		},
		{
			name: "nobody knows why", tree: "v2-7.2", base: v2, files: []string{controllersFile, "cpu memory pids\n", controlFile, "cpu memory pids\n", "proc/cgroups", "-"},
			want: map[string]row{"io": {"no", absent("io"), ""}},
		},
		{
			name: "no CFS bandwidth", tree: "v2-bare", base: v2, files: []string{"proc/sys/kernel/sched_cfs_bandwidth_slice_us", "-"},
			want: map[string]row{"cpu": {
				"no", "/proc/sys/kernel/sched_cfs_bandwidth_slice_us is missing: the kernel is built without CONFIG_CFS_BANDWIDTH",
				"boot a kernel that is built with CONFIG_CFS_BANDWIDTH | grep CONFIG_CFS_BANDWIDTH= /boot/config-*",
			}},
			missing: []string{"cpu"},
		},
		{
			name: "no swap in the kernel", tree: "v2-bare", base: v2, files: []string{"proc/swaps", "-"},
			want: map[string]row{"swap": {
				"no", "/proc/swaps is missing: the kernel is built without swap (CONFIG_SWAP)",
				"boot a kernel that is built with CONFIG_SWAP | grep CONFIG_SWAP= /boot/config-*",
			}},
			missing: []string{"swap"},
		},
		{
			name: "swapaccount=0", tree: "v2-bare", base: v2, programs: []string{"grubby"}, files: []string{"proc/cmdline", "quiet swapaccount=0\n", "proc/sys/kernel/osrelease", "5.10.0-8-amd64\n"},
			want: map[string]row{"swap": {
				"no", "swapaccount=0 in /proc/cmdline switches memory.swap.max off",
				"boot with swapaccount=1 in place of swapaccount=0 on the kernel's command line | grubby --update-kernel=ALL --remove-args=swapaccount=0 --args=swapaccount=1 | reboot",
			}},
			missing: []string{"swap"},
		},
		{
			name: "swap that is not accounted", tree: "v2-bare", base: v2, programs: []string{"update-grub"}, files: []string{"proc/sys/kernel/osrelease", "5.4.0\n"},
			want: map[string]row{"swap": {
				"no", "it cannot be told whether this kernel has memory.swap.max: no cgroup below /sys/fs/cgroup has its controller on",
				`boot with swapaccount=1 on the kernel's command line | mkdir -p /etc/default/grub.d | echo 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX swapaccount=1"' >> /etc/default/grub.d/agentbox.cfg | update-grub | reboot`,
			}},
			missing: []string{"swap"},
		},
		{
			name: "no cgroup", tree: "none-7.2",
			want: map[string]row{
				"memory": {"no", notMounted, mount}, "group kill": {"no", notMounted, mount}, "swap": {"no", notMounted, mount},
				"pids": {"no", notMounted, mount}, "cpu": {"no", notMounted, mount}, "io": {"no", notMounted, mount},
			},
			missing: []string{"memory", "swap", "pids", "cpu"},
		},
		{
			name: "a kernel without cgroups", tree: "none-7.2", files: []string{"proc/filesystems", "nodev\ttmpfs\n"}, base: map[string]row{},
			want:    map[string]row{"pids": {"no", notMounted, "boot a kernel that is built with CONFIG_CGROUPS | grep CONFIG_CGROUPS= /boot/config-*"}},
			missing: []string{"memory", "swap", "pids", "cpu"},
		},
		{name: "cgroup v1", tree: "v1", base: v1},
		{name: "hybrid", tree: "hybrid", base: v1},
		{
			name: "cgroup v1 with systemd", tree: "v1", base: v1, files: []string{"run/systemd/system/x", "", "proc/filesystems", "nodev\tcgroup2\n"},
			want: map[string]row{"group kill": groupKillV1(toUnified)},
		},
		{
			name: "cgroup v1 that was asked for", tree: "v1", base: v1, programs: []string{"update-grub"},
			files: []string{"run/systemd/system/x", "", "proc/filesystems", "nodev\tcgroup2\n", "proc/cmdline", "systemd.unified_cgroup_hierarchy=0\n"},
			want: map[string]row{"group kill": groupKillV1(
				"boot with systemd.unified_cgroup_hierarchy=1 in place of systemd.unified_cgroup_hierarchy=0 on the kernel's command line" +
					" | grep -rl 'systemd.unified_cgroup_hierarchy=0' " + grub + " | xargs -r sed -i 's/systemd.unified_cgroup_hierarchy=0//'" +
					` | mkdir -p /etc/default/grub.d | echo 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX systemd.unified_cgroup_hierarchy=1"' >> /etc/default/grub.d/agentbox.cfg | update-grub | reboot`)},
		},
		{
			name: "cgroup v1 on a kernel without its memory controller", tree: "v1-7.2", base: v1,
			want: map[string]row{
				"memory": {"no", unmounted("memory"), openRC}, "group kill": groupKillV1(openRC), "swap": {"no", unmounted("memory"), openRC},
			},
			missing: []string{"memory", "swap"},
		},
		{
			name: "hybrid with the memory controller on cgroup v2", tree: "hybrid-7.2", base: v1, files: []string{"run/systemd/system/x", ""},
			want: map[string]row{
				"memory": {"no", unmounted("memory"), toUnified}, "group kill": groupKillV1(toUnified), "swap": {"no", unmounted("memory"), toUnified},
			},
			missing: []string{"memory", "swap"},
		},
		{
			name: "cgroup v1, an old kernel without a memory controller", tree: "v1-7.2", base: v1, files: []string{"proc/sys/kernel/osrelease", "4.9.0\n", "proc/filesystems", "nodev\tcgroup\n"},
			want: map[string]row{
				"memory": {"no", unmounted("memory"), "boot a kernel that is built with CONFIG_MEMCG | grep CONFIG_MEMCG= /boot/config-*"},
				"swap":   {"no", unmounted("memory"), "boot a kernel that is built with CONFIG_MEMCG | grep CONFIG_MEMCG= /boot/config-*"},
			},
			missing: []string{"memory", "swap"},
		},
		{
			name: "cgroup v1, pids switched off by the distributor", tree: "v1-7.2", base: v1,
			files: []string{
				"proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t3\t1\npids\t0\t1\t0\n",
				"proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n33 31 0:30 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n",
			},
			want: map[string]row{
				"pids":   {"no", "the pids controller is switched off: it has enabled 0 in /proc/cgroups (cgroup_disable on the kernel's command line)", "boot with cgroup_enable=pids on the kernel's command line"},
				"memory": {"no", unmounted("memory"), openRC}, "group kill": groupKillV1(openRC), "swap": {"no", unmounted("memory"), openRC},
			},
			missing: []string{"memory", "swap", "pids"},
		},
		{
			name: "cgroup v1, pids not mounted", tree: "v1", base: v1, files: []string{
				"proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t2\t3\t1\npids\t0\t1\t1\n",
				"proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n33 31 0:30 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			},
			want: map[string]row{
				"pids": {"no", unmounted("pids"), "mount the pids controller | mkdir -p /sys/fs/cgroup/pids | mount -t cgroup -o pids cgroup /sys/fs/cgroup/pids"},
			},
			missing: []string{"pids"},
		},
		{
			name: "cgroup v1 without swap accounting", tree: "v1", base: v1, programs: []string{"grubby"},
			files: []string{"sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "-", "sys/fs/cgroup/memory/docker", "-"},
			want: map[string]row{"swap": {
				"no", "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes is missing: the kernel does not account swap (boot it with swapaccount=1)",
				"boot with swapaccount=1 on the kernel's command line | grubby --update-kernel=ALL --args=swapaccount=1 | reboot",
			}},
			missing: []string{"swap"},
		},
		{
			name: "cgroup v1 without throttling", tree: "v1", base: v1, files: []string{
				"sys/fs/cgroup/blkio/blkio.throttle.read_bps_device", "-", "sys/fs/cgroup/blkio/blkio.throttle.write_bps_device", "-", "sys/fs/cgroup/blkio/docker", "-",
			},
			want: map[string]row{"io": {
				"no", "/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device is missing: the kernel is built without CONFIG_BLK_DEV_THROTTLING; " +
					"/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device is missing: the kernel is built without CONFIG_BLK_DEV_THROTTLING",
				"boot a kernel that is built with CONFIG_BLK_DEV_THROTTLING | grep CONFIG_BLK_DEV_THROTTLING= /boot/config-*",
			}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, c.tree)
			for i := 0; i < len(c.files); i += 2 {
				if c.files[i+1] == "-" {
					cgrouptest.Remove(t, root, c.files[i])
					continue
				}
				cgrouptest.Write(t, root, c.files[i], c.files[i+1])
			}
			r := Examine(machine(t, root, c.programs...))
			got := rows(r)
			for name, want := range c.base {
				if _, changed := c.want[name]; !changed && got[name] != want {
					t.Errorf("%s: %+v\nwant %+v", name, got[name], want)
				}
			}
			for name, want := range c.want {
				if got[name] != want {
					t.Errorf("%s: %+v\nwant %+v", name, got[name], want)
				}
			}
			var missing []string
			for _, m := range r.Missing {
				missing = append(missing, string(m.Dimension))
			}
			if !slices.Equal(missing, c.missing) || r.Ready != (c.missing == nil) {
				t.Errorf("missing %v, ready %t; want %v", missing, r.Ready, c.missing)
			}
		})
	}
}

// facts are those of a host that can do everything.
func facts(t *testing.T) Facts { return machine(t, cgrouptest.Tree(t, "v2-7.2")) }

// copyOf returns facts that can be changed.
func copyOf(f Facts) Facts {
	f.Host.Mechanisms = maps.Clone(f.Host.Mechanisms)
	f.Config.Policy.Defaults = maps.Clone(f.Config.Policy.Defaults)
	return f
}

// no takes a mechanism away.
func no(f *Facts, key limits.Key, reason string) {
	m := f.Host.Mechanisms[key]
	f.Host.Mechanisms[key] = limits.Mechanism{Name: m.Name, Enforcer: limits.EnforcerNone, Reason: reason}
}

// TestDelegation is about who is not root: the probe says that a controller is
// missing, and the chain shows where.
func TestDelegation(t *testing.T) {
	const root, user = "/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"
	all, some := []string{"cpu", "io", "memory", "pids"}, []string{"memory", "pids"}
	byHand := "pass the cpu controller on | echo +cpu > " + root + "/ci/cgroup.subtree_control | echo +cpu > " + root + "/ci/a/cgroup.subtree_control"
	manager := `let systemd delegate the cpu controller to users, and log in again | mkdir -p /etc/systemd/system/user@.service.d` +
		` | printf '[Service]\nDelegate=cpu cpuset io memory pids\n' > /etc/systemd/system/user@.service.d/delegate.conf | systemctl daemon-reload`
	able := facts(t)
	at := func(path string, controllers, passed []string, controls, writable bool) Folder {
		return Folder{Path: path, Controllers: controllers, Passed: passed, Controls: controls, Writable: writable, Type: "domain"}
	}
	const asRoot = "ask as root for containers that root starts; for those of a user, ask in a systemd session with --systemd-cgroup | sudo agentbox doctor"
	for _, c := range []struct {
		name    string
		chain   []Folder
		systemd bool
		root    bool
		ro      []string
		fix     string
	}{
		{
			name: "a user's systemd without cpu", systemd: true,
			chain: []Folder{at(root, all, all, false, false), at(root+"/user.slice", all, some, false, false), at(user, some, some, true, true), at(user+"/app.slice", some, some, true, true)},
			fix:   manager,
		},
		{
			name: "the same without systemd",
			chain: []Folder{
				at(root, all, all, false, false), at(root+"/ci", all, some, false, false), at(root+"/ci/a", some, some, false, true),
			},
			fix: byHand,
		},
		{name: "the last one may pass it on", chain: []Folder{at(root, all, all, false, false), at(root+"/ci", all, some, true, true)}},
		{name: "the last one may not", chain: []Folder{at(root, all, all, false, false), at(root+"/ci", all, some, false, true)}, fix: "pass the cpu controller on | echo +cpu > " + root + "/ci/cgroup.subtree_control"},
		{
			name: "a hostile name", fix: "pass the cpu controller on | echo +cpu > '" + root + `/a; reboot; '\''/cgroup.subtree_control'`,
			chain: []Folder{at(root, all, all, false, false), at(root+"/a; reboot; '", all, some, false, false), at(root+"/a; reboot; '/b", some, some, true, true)},
		},
		{name: "no permission", chain: []Folder{at(root, all, all, false, false)}, fix: asRoot},
		{name: "read-only", chain: []Folder{at(root, all, all, false, false)}, root: true, ro: []string{root}, fix: "mount the cgroups writable | mount -o remount,rw " + root},
		{name: "root in a user namespace", chain: []Folder{at(root, all, all, false, false)}, root: true},
		{name: "nothing is there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := copyOf(able)
			f.Root, f.Systemd, f.Cgroup.Chain, f.Cgroup.ReadOnly = c.root, c.systemd, c.chain, c.ro
			no(&f, limits.KeyCPUs, "a reason")
			got := Examine(f).Dimensions[limits.CPU]
			if want := (row{"no", "a reason", c.fix}); rowOf(got) != want {
				t.Errorf("%+v\nwant %+v", rowOf(got), want)
			}
		})
	}
}

// TestNoRoom is about cgroups on the way that have processes of their own, or are
// threaded: the probe says so, and the same files show what to do.
func TestNoRoom(t *testing.T) {
	const par = "/sys/fs/cgroup/par"
	move := func(at string) string {
		return "move the processes in " + at + " into a cgroup below it, and let what starts them put new ones there"
	}
	lines := func(at string) string {
		return " | mkdir -p " + at + "/rest | for pid in $(cat " + at + "/cgroup.procs); do echo $pid > " + at + "/rest/cgroup.procs; done"
	}
	const elsewhere = "place containers in another cgroup than " + par + ", which is threaded (docker run --cgroup-parent, or cgroupsPath in the specification)"
	busy := []string{"par/cgroup.type", "domain\n", "par/cgroup.procs", "17\n", "par/cgroup.subtree_control", "", "par/cgroup.controllers", "cpu io memory pids\n"}
	ran := []string{"par/cgroup.type", "domain threaded\n", "par/cgroup.subtree_control", "cpu pids\n"}
	for _, c := range []struct {
		name   string
		path   string
		files  []string // below the mount point, with their content
		fix    string
		ready  bool
		reason string // of memory
	}{
		{
			name: "processes", path: "/par/x", files: busy, fix: move(par) + lines(par),
			reason: "the memory controller cannot be turned on in " + par + ", which has processes of its own: move them into a cgroup below it",
		},
		{
			name: "processes, after a container", path: "/par/x", files: append(slices.Clone(busy), ran...),
			fix:    move(par) + " | echo -cpu -pids > " + par + "/cgroup.subtree_control" + lines(par),
			reason: "the memory controller cannot be turned on in " + par + ", which is threaded (its cgroup.type is domain threaded): move its processes into a cgroup below it, or place the container in another cgroup (cgroupsPath)",
		},
		{
			name: "processes, and a container that runs", path: "/par/x", files: append(append(slices.Clone(busy), ran...), "par/y/cgroup.type", "threaded\n"), fix: elsewhere,
			reason: "the memory controller cannot be turned on in " + par + ", which is threaded (its cgroup.type is domain threaded): move its processes into a cgroup below it, or place the container in another cgroup (cgroupsPath)",
		},
		{
			name: "threaded", path: "/par/x", files: append(slices.Clone(busy), "par/cgroup.type", "threaded\n"), fix: elsewhere,
			reason: "the memory controller cannot be turned on in " + par + ", which is threaded (its cgroup.type is threaded): place the container in another cgroup (cgroupsPath)",
		},
		{
			name: "the root of a namespace", path: "/x", files: []string{"cgroup.type", "domain\n", "cgroup.events", "populated 1\n", "cgroup.subtree_control", "", "job/cgroup.events", "populated 0\n"},
			fix:    move("/sys/fs/cgroup") + lines("/sys/fs/cgroup"),
			reason: "the memory controller cannot be turned on in /sys/fs/cgroup, which has processes of its own: move them into a cgroup below it",
		},
		{name: "the real root", path: "/x", files: []string{"cgroup.subtree_control", ""}, ready: true},
		{name: "a cgroup that is empty", path: "/par/x", files: append(slices.Clone(busy), "par/cgroup.procs", ""), ready: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, "v2-7.2")
			for i := 0; i < len(c.files); i += 2 {
				cgrouptest.Write(t, root, "sys/fs/cgroup/"+c.files[i], c.files[i+1])
			}
			g := gathererOf(t, root)
			g.o.CgroupsPath = c.path
			r := Examine(g.gather(context.Background()))
			want := row{"no", c.reason, c.fix}
			if c.ready {
				want = row{"yes", "memory.max", ""}
			}
			if got := rowOf(r.Dimensions[limits.Memory]); got != want || r.Ready != c.ready {
				t.Errorf("ready %t, %+v\nwant %+v", r.Ready, got, want)
			}
			if got := rowOf(r.Dimensions[limits.CPU]); fixWords(r.Dimensions[limits.CPU].Fix) != c.fix || fixWords(r.GroupKill.Fix) != c.fix {
				t.Errorf("cpu %+v, group kill %+v", got, r.GroupKill)
			}
			if got := r.Dimensions[limits.Pids]; got.Answer != Enforced {
				t.Errorf("pids %+v", got)
			}
		})
	}
}

// TestRoomForCrun: crun limits the CPU where runc refuses to, and the probe is told
// which one it is.
func TestRoomForCrun(t *testing.T) {
	for runtime, want := range map[string]Answer{"runc": NotEnforced, "crun": Enforced} {
		root := cgrouptest.Tree(t, "v2-7.2")
		cgrouptest.Write(t, root, "sys/fs/cgroup/par/cgroup.type", "domain\n")
		cgrouptest.Write(t, root, "sys/fs/cgroup/par/cgroup.procs", "17\n")
		g := gathererOf(t, root)
		g.o.CgroupsPath, g.o.Config.Runtime = "/par/x", runtime
		if got := Examine(g.gather(context.Background())).Dimensions[limits.CPU]; got.Answer != want {
			t.Errorf("%s: %+v", runtime, got)
		}
	}
}

func TestDeniedOnV1(t *testing.T) {
	f := machine(t, cgrouptest.Tree(t, "v1"))
	f.Root = false
	no(&f, limits.KeyPids, "no permission")
	if got := fixWords(Examine(f).Dimensions[limits.Pids].Fix); !strings.HasPrefix(got, "ask as root") {
		t.Errorf("%s", got)
	}
	f.Root, f.Cgroup.ReadOnly = true, []string{"/sys/fs/cgroup/pids"}
	if got := fixWords(Examine(f).Dimensions[limits.Pids].Fix); got != "mount the cgroups writable | mount -o remount,rw /sys/fs/cgroup/pids" {
		t.Errorf("%s", got)
	}
}

// TestAnswers is about what the configuration limits, on a host that can do
// everything.
func TestAnswers(t *testing.T) {
	able := facts(t)
	disk := limits.BlockDevice{Device: limits.Device{Major: 8}, Name: "sda", Places: []string{"/var/lib/docker"}}
	nfs := limits.Diskless{Place: "/var/lib/docker", Reason: "nfs4 is a network filesystem"}
	wrong := limits.Diskless{Place: "/dev/sdx (io_device)", Reason: "stat /dev/sdx: no such file or directory"}
	for _, c := range []struct {
		name    string
		change  func(f *Facts)
		require limits.Dimension
		want    row
		missing string // the reason
	}{
		{"a limit of the kernel", nil, limits.Memory, row{"yes", "memory.max", ""}, ""},
		{"a limit for each process", nil, limits.OpenFiles, row{"per_process", "RLIMIT_NOFILE", ""}, ""},
		{"no limit and none required", nil, "", row{"not_limited", "", ""}, ""},
		{"what nobody enforces", nil, limits.Disk, row{"no", "this version does not enforce disk", ""}, "this version does not enforce disk"},
		{"required, no limit, and nobody would enforce it", nil, limits.WallTime, row{"not_limited", "", ""}, "it has no limit in the configuration"},
		{
			"required, no limit", func(f *Facts) { f.Config.Policy.Defaults[limits.KeyMemory] = limits.NoLimit() }, limits.Memory,
			row{"not_limited", "", `set a limit for memory in /etc/agentbox/config.toml | [limits] | memory = "2GiB"`},
			"it has no limit in the configuration",
		},
		{
			"required, no limit, no default", nil, limits.FileSize,
			row{"not_limited", "", "set a limit for file_size in /etc/agentbox/config.toml"},
			"it has no limit in the configuration",
		},
		{
			"required, core dumps allowed", func(f *Facts) { f.Config.Policy.Defaults[limits.KeyCoreDumps] = limits.NoLimit() }, limits.CoreDumps,
			row{"not_limited", "", "set a limit for core_dumps in /etc/agentbox/config.toml | [limits] | core_dumps = false"},
			"it has no limit in the configuration",
		},
		{
			"a limit of the supervisor", func(f *Facts) {
				supervisable(f)
				no(f, limits.KeyPids, "not here")
			}, limits.Pids, row{"supervised", "supervisor", ""}, "only the supervisor does: not here",
		},
		{
			"the supervisor, and what the kernel lacks", func(f *Facts) {
				supervisable(f)
				no(f, limits.KeySwap, "not accounted")
				f.Kernel.Release, f.Kernel.Cmdline = "5.10.0", ""
			}, limits.Swap, row{"supervised", "supervisor", "boot with swapaccount=1 on the kernel's command line"}, "only the supervisor does: not accounted; counted as memory",
		},
		{
			"the supervisor by choice", func(f *Facts) {
				supervisable(f)
				f.Config.Policy.Supervise = []limits.Dimension{limits.CPU}
			}, limits.CPU, row{"supervised", "supervisor", ""}, "only the supervisor does: 2 from the default lowered to 1, the built-in ceiling of this host; the configuration has it in supervise",
		},
		{
			"a time", func(f *Facts) {
				supervisable(f)
				f.Config.Policy.Defaults[limits.KeyWallTime] = limits.Limit(60e9)
			}, limits.WallTime, row{"supervised", "supervisor", ""}, "",
		},
		{
			"one key by the supervisor, one by nobody", func(f *Facts) {
				supervisable(f)
				f.Config.Policy.Defaults[limits.KeyMemoryHigh] = limits.Limit(1 << 30)
				no(f, limits.KeyMemory, "not here")
				no(f, limits.KeyMemoryHigh, "nor here")
			}, limits.Memory, row{"partly", "nor here", ""}, "only the supervisor does: not here",
		},
		{
			"one key of two", func(f *Facts) {
				f.Config.Policy.Defaults[limits.KeyMemoryHigh] = limits.Limit(1 << 30)
				no(f, limits.KeyMemoryHigh, "not here")
			}, limits.Memory, row{"partly", "not here", ""}, "not here",
		},
		{
			"a disk", func(f *Facts) { f.Host.IO = limits.HostIO{Disks: []limits.BlockDevice{disk}} }, limits.IO, row{"yes", "io.max", ""}, "",
		},
		{
			"no disk behind the storage", func(f *Facts) { f.Host.IO = limits.HostIO{Diskless: []limits.Diskless{nfs}} }, limits.IO,
			row{"no", "not on /var/lib/docker: nfs4 is a network filesystem", ""},
			"not on /var/lib/docker: nfs4 is a network filesystem",
		},
		{
			"a disk behind some of it", func(f *Facts) {
				f.Host.IO = limits.HostIO{Disks: []limits.BlockDevice{disk}, Diskless: []limits.Diskless{nfs}}
			}, limits.IO, row{"partly", "not on /var/lib/docker: nfs4 is a network filesystem", ""}, "not on /var/lib/docker: nfs4 is a network filesystem",
		},
		{
			"io_device points nowhere", func(f *Facts) {
				f.Config.Policy.IODevices, f.RootDisk = []string{"/dev/sdx"}, "vda"
				f.Host.IO = limits.HostIO{Diskless: []limits.Diskless{wrong}}
			}, limits.IO, row{
				"no", "not on /dev/sdx (io_device): stat /dev/sdx: no such file or directory",
				`correct io_device in /etc/agentbox/config.toml, or leave it out: disks are then found behind a container's files | io_device = "/dev/vda"`,
			}, "not on /dev/sdx (io_device): stat /dev/sdx: no such file or directory",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := copyOf(able)
			if c.change != nil {
				c.change(&f)
			}
			d := c.require
			f.Required = []limits.Dimension{d}
			if d == "" {
				f.Required, d = nil, limits.CPUTime
			}
			r := Examine(f)
			if got := rowOf(r.Dimensions[d]); got != c.want || r.Dimensions[d].Required != (c.require != "") {
				t.Errorf("%+v\nwant %+v", got, c.want)
			}
			var want []Missing
			if c.missing != "" {
				want = []Missing{{d, c.missing}}
			}
			if !reflect.DeepEqual(r.Missing, want) || r.Ready != (want == nil) {
				t.Errorf("missing %+v, ready %t; want %+v", r.Missing, r.Ready, want)
			}
		})
	}
}

func TestQuote(t *testing.T) {
	for path, want := range map[string]string{
		"/sys/fs/cgroup/user.slice/user@1000.service": "/sys/fs/cgroup/user.slice/user@1000.service",
		"/a b": "'/a b'", "/$(x)": "'/$(x)'", "/it's": `'/it'\''s'`, "": "",
	} {
		if got := quote(path); got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
		out, err := exec.Command("sh", "-c", "printf %s "+quote(path)).Output()
		if err != nil || string(out) != path {
			t.Errorf("%q: the shell reads %q, %v", path, out, err)
		}
	}
}

func TestGroupKill(t *testing.T) {
	f := facts(t)
	f.Config.Policy.OOMScope = limits.ScopeProcess
	if g := Examine(f).GroupKill; g.Answer != NotLimited || g.Reason != "the configuration has the oom scope process" {
		t.Errorf("scope: %+v", g)
	}
	f = facts(t)
	f.Config.Policy.Defaults[limits.KeyMemory] = limits.NoLimit()
	if g := Examine(f).GroupKill; g.Answer != NotLimited || g.Reason != "the configuration has no limit for memory" {
		t.Errorf("no limit: %+v", g)
	}
	f = facts(t)
	f.Host.GroupKill = limits.Mechanism{Name: "memory.oom.group", Enforcer: limits.EnforcerNone, Reason: "too old"}
	if g := Examine(f).GroupKill; g.Answer != NotEnforced || g.Reason != "too old" || g.Fix != nil {
		t.Errorf("old kernel: %+v", g)
	}
}

// supervisable gives a host a supervisor.
func supervisable(f *Facts) {
	f.Supervisor = "/usr/local/bin/agentbox"
	f.Host.Supervisor = limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerSupervisor}
	f.Host.CPUs, f.Host.SupervisorNoIO = 1, ""
}

func TestTheSupervisorItself(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *Facts)
		want   SupervisorReport
	}{
		"signals":       {func(f *Facts) { f.Freezer = "" }, SupervisorReport{Available: true, Stops: "SIGSTOP"}},
		"a freezer":     {func(f *Facts) { f.Freezer = "cgroup.freeze" }, SupervisorReport{Available: true, Stops: "cgroup.freeze"}},
		"no I/O":        {func(f *Facts) { f.Host.SupervisorNoIO, f.Freezer = "no /proc/PID/io", "" }, SupervisorReport{Available: true, Stops: "SIGSTOP", Reason: "no /proc/PID/io"}},
		"no pidfds":     {func(f *Facts) { f.Host.Supervisor = limits.Mechanism{Enforcer: limits.EnforcerNone, Reason: "too old"} }, SupervisorReport{Reason: "too old"}},
		"nobody looked": {func(f *Facts) { f.Host.Supervisor = limits.Mechanism{} }, SupervisorReport{Reason: "nobody has looked for one"}},
	} {
		f := facts(t)
		supervisable(&f)
		c.change(&f)
		c.want.Program = f.Supervisor
		if got := Examine(f).Supervisor; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestSwapThatTheSupervisorCountsIsNoRisk, and a sandbox that it ends ends as one.
func TestSwapThatTheSupervisorCountsIsNoRisk(t *testing.T) {
	f := facts(t)
	no(&f, limits.KeyMemory, "not here")
	no(&f, limits.KeySwap, "not here")
	f.SwapBytes = 1 << 30
	hasSwap := func(r Report) bool {
		return slices.ContainsFunc(r.Findings, func(x Finding) bool { return x.Check == "swap" })
	}
	if r := Examine(f); !hasSwap(r) || r.GroupKill.Answer != NotEnforced {
		t.Errorf("without a supervisor: %+v, %+v", r.Findings, r.GroupKill)
	}
	supervisable(&f)
	if r := Examine(f); hasSwap(r) || r.GroupKill.Answer != Supervised || r.GroupKill.Mechanism != "supervisor" {
		t.Errorf("with one: %+v, %+v", r.Findings, r.GroupKill)
	}
}

// TestModeDoesNotMatter: the answers are those of a container in mode auto, and
// what is missing those of one in strict mode.
func TestModeDoesNotMatter(t *testing.T) {
	var first Report
	for i, mode := range []limits.Mode{limits.ModeAuto, limits.ModeStrict, limits.ModeOff} {
		f := machine(t, cgrouptest.Tree(t, "v2-7.2-nomemory"))
		f.Config.Policy.Mode = mode
		r := Examine(f)
		if r.Configuration.Mode != mode {
			t.Errorf("mode %s", r.Configuration.Mode)
		}
		if i == 0 {
			first = r
		}
		if !reflect.DeepEqual(r.Dimensions, first.Dimensions) || !reflect.DeepEqual(r.Missing, first.Missing) || len(r.Missing) != 2 {
			t.Errorf("%s: %+v", mode, r)
		}
	}
}

func TestUnusablePolicy(t *testing.T) {
	f := facts(t)
	f.Config.Policy.Defaults[limits.KeyMemory] = limits.Limit(1)
	r := Examine(f)
	if r.Ready || r.Dimensions != nil || !strings.Contains(r.Configuration.Problem, "too small for a container to start") {
		t.Errorf("%+v", r)
	}
	if len(r.Findings) == 0 || r.Findings[0].Level != Error || !strings.Contains(r.Findings[0].Text, "cannot start with /etc/agentbox/config.toml") {
		t.Errorf("%+v", r.Findings)
	}
}

// TestJSONHasNoNull: lists are lists and objects are objects, for jq.
func TestJSONHasNoNull(t *testing.T) {
	for name, r := range map[string]Report{"nothing": {}, "a host": Examine(facts(t)), "no host": Examine(machine(t, t.TempDir()))} {
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var top map[string]json.RawMessage
		if err := json.Unmarshal(data, &top); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"required", "missing", "dimensions", "disks", "findings"} {
			if text := string(top[key]); text == "null" || text == "" {
				t.Errorf("%s: %s is %q", name, key, text)
			}
		}
		if strings.Contains(string(data), `"lines":null`) || strings.Contains(string(data), `"limits":null`) {
			t.Errorf("%s: %s", name, data)
		}
	}
}
