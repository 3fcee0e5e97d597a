package readback

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
)

const (
	slice = "sys/fs/cgroup/system.slice/"
	blkio = "sys/fs/cgroup/blkio/docker/0123456789ab/blkio.throttle."
)

var (
	// vda is the disk of the recorded trees: 256 MiB/s of reads and of writes.
	vda = limits.BlockDevice{Device: limits.Device{Major: 254}, Name: "vda", Places: []string{"/"}, Filesystem: "ext4", Counted: "all"}
	sdb = limits.BlockDevice{Device: limits.Device{Major: 8, Minor: 16}, Name: "sdb", Places: []string{"/data"}}
)

// ioCase is a container that has one or more disks and some limits of them.
type ioCase struct {
	name   string
	tree   string               // "v2" unless given
	files  map[string]string    // of the tree; "-" removes one
	pid    int                  // 42 unless given
	disks  []limits.BlockDevice // vda unless given
	policy func(*limits.Policy)
	req    limits.Request
	host   func(*limits.Host)

	want    map[string]string // line, by name; the names are all of io that are told
	detail  map[string]string // of those that have one
	disk    []string          // diskLine
	missing string            // why io is missing in strict mode
}

const (
	holds = "268435456 kernel io.max self 3 % over a second"
	not   = "null none   none"
)

func ioHost(version int, disks []limits.BlockDevice) limits.Host {
	h := hostOf(version)
	h.IO.Disks = disks
	for _, key := range limits.IOKeys {
		name := "io.max"
		if version == 1 {
			name = cgroup.ThrottleFileV1(key)
		}
		h.Mechanisms[key] = limits.Mechanism{Name: name, Enforcer: limits.EnforcerKernel}
	}
	return h
}

// noIO is a host without the io controller.
func noIO(h *limits.Host) {
	h.IO = limits.HostIO{Unknown: true}
	for _, key := range limits.IOKeys {
		h.Mechanisms[key] = limits.Mechanism{Name: "io.max", Enforcer: limits.EnforcerNone, Reason: "no io here"}
	}
}

func diskLine(d result.Disk) string {
	return fmt.Sprintf("%s %s %s [%s] %s %s %s %s", d.Name, d.Device, strings.Join(d.Places, " "), strings.Trim(d.Filesystem+" "+d.Counted, " "),
		show(d.ReadBPS), show(d.WriteBPS), show(d.ReadIOPS), show(d.WriteIOPS))
}

func (c *ioCase) read(t *testing.T) Report {
	t.Helper()
	c.tree = orElse(c.tree, "v2")
	version := int(c.tree[1] - '0')
	root := cgrouptest.Tree(t, c.tree)
	for path, content := range c.files {
		if content == "-" {
			cgrouptest.Remove(t, root, path)
			continue
		}
		cgrouptest.Write(t, root, path, content)
	}
	if c.disks == nil {
		c.disks = []limits.BlockDevice{vda}
	}
	host := ioHost(version, c.disks)
	if c.host != nil {
		c.host(&host)
	}
	policy := limits.DefaultPolicy()
	policy.StrictRequire = []limits.Dimension{limits.IO}
	if c.policy != nil {
		c.policy(&policy)
	}
	plan, err := limits.Resolve(policy, c.req, host)
	if err != nil {
		t.Fatal(err)
	}
	c.pid = orElse(c.pid, pid)
	r := reader{fs: cgroup.FS(root), rlimits: rlimits, plan: plan, at: AtStart}
	return r.read(c.pid)
}

func orElse[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

func TestIO(t *testing.T) {
	ioMax := func(text string) map[string]string { return map[string]string{dir + "io.max": text} }
	set := func(pairs ...any) func(*limits.Policy) {
		return func(p *limits.Policy) {
			for i := 0; i < len(pairs); i += 2 {
				p.Defaults[pairs[i].(limits.Key)] = pairs[i+1].(limits.Value)
			}
		}
	}
	none := limits.NoLimit()
	unlimited := set(limits.KeyIOReadBPS, none, limits.KeyIOWriteBPS, none)
	off := func(p *limits.Policy) { p.Mode = limits.ModeOff }
	asks := func(d limits.Device, rates limits.Set) limits.Request {
		return limits.Request{Devices: map[limits.Device]limits.Set{d: rates}}
	}
	knows := func(asked ...limits.BlockDevice) func(*limits.Host) {
		return func(h *limits.Host) {
			h.IO.Asked = map[limits.Device]limits.AskedDisk{}
			for _, d := range asked {
				d.Places = []string{"device " + d.Device.String() + " of the spec"}
				h.IO.Asked[d.Device] = limits.AskedDisk{Disk: d}
			}
		}
	}
	both := map[string]string{"io": "null kernel io.max self 3 % over a second", "io_read_bps": holds, "io_write_bps": holds}
	neither := map[string]string{"io": not, "io_read_bps": not, "io_write_bps": not}
	const vdaLine = "vda 254:0 / [ext4 all] 268435456 268435456 null null"

	for _, c := range []ioCase{
		{name: "all as planned", want: both, disk: []string{vdaLine}},
		{
			name: "all four", files: ioMax("254:0 rbps=268435456 wbps=268435456 riops=1000 wiops=2000\n"),
			policy: set(limits.KeyIOReadIOPS, limits.Limit(1000), limits.KeyIOWriteIOPS, limits.Limit(2000)),
			want: map[string]string{
				"io": both["io"], "io_read_bps": holds, "io_write_bps": holds,
				"io_read_iops": "1000 kernel io.max self 3 % over a second", "io_write_iops": "2000 kernel io.max self 3 % over a second",
			},
			disk: []string{"vda 254:0 / [ext4 all] 268435456 268435456 1000 2000"},
		},
		{
			name: "tighter than planned", files: ioMax("254:0 rbps=1048576 wbps=268435456 riops=max wiops=max\n"),
			want: map[string]string{"io": both["io"], "io_read_bps": "1048576 kernel io.max self 3 % over a second", "io_write_bps": holds},
			disk: []string{"vda 254:0 / [ext4 all] 1048576 268435456 null null"},
		},
		{
			name: "the slice is tighter for one key", files: map[string]string{slice + "io.max": "254:0 rbps=1048576 wbps=max riops=max wiops=max\n"},
			want: map[string]string{
				"io": "null kernel io.max  3 % over a second", "io_write_bps": holds,
				"io_read_bps": "1048576 kernel io.max /sys/fs/cgroup/system.slice 3 % over a second",
			},
			disk: []string{"vda 254:0 / [ext4 all] 1048576 268435456 null null"},
		},
		{
			name: "one key looser", files: ioMax("254:0 rbps=268435456 wbps=268435457 riops=max wiops=max\n"),
			want:    map[string]string{"io": both["io"], "io_read_bps": holds, "io_write_bps": "268435457 kernel io.max self 3 % over a second"},
			detail:  map[string]string{"io_write_bps": "256MiB was planned for vda and io.max is 268435457", "io": "io_write_bps: 256MiB was planned for vda and io.max is 268435457"},
			disk:    []string{"vda 254:0 / [ext4 all] 268435456 268435457 null null"},
			missing: "io_write_bps: 256MiB was planned for vda and io.max is 268435457",
		},
		{
			name: "one key lost, and the slice has a looser one", files: ioMax("254:0 rbps=max wbps=268435456 riops=max wiops=max\n"),
			want:    map[string]string{"io": "null kernel io.max  3 % over a second", "io_write_bps": holds, "io_read_bps": "1073741824 kernel io.max /sys/fs/cgroup/system.slice 3 % over a second"},
			detail:  map[string]string{"io_read_bps": "256MiB was planned for vda and io.max is 1GiB", "io": "io_read_bps: 256MiB was planned for vda and io.max is 1GiB"},
			disk:    []string{"vda 254:0 / [ext4 all] 1073741824 268435456 null null"},
			missing: "io_read_bps: 256MiB was planned for vda and io.max is 1GiB",
		},
		{
			name: "one key lost", files: map[string]string{dir + "io.max": "254:0 rbps=max wbps=268435456 riops=max wiops=max\n", slice + "io.max": ""},
			want:    map[string]string{"io": not, "io_read_bps": not, "io_write_bps": holds},
			detail:  map[string]string{"io_read_bps": "256MiB was planned for vda and io.max is none", "io": "io_read_bps: 256MiB was planned for vda and io.max is none"},
			disk:    []string{"vda 254:0 / [ext4 all] null 268435456 null null"},
			missing: "io_read_bps: 256MiB was planned for vda and io.max is none",
		},
		{
			name: "the other key lost", files: ioMax("254:0 rbps=268435456 wbps=max riops=max wiops=max\n"),
			want:    map[string]string{"io": not, "io_read_bps": holds, "io_write_bps": not},
			detail:  map[string]string{"io_write_bps": "256MiB was planned for vda and io.max is none", "io": "io_write_bps: 256MiB was planned for vda and io.max is none"},
			disk:    []string{"vda 254:0 / [ext4 all] 268435456 null null null"},
			missing: "io_write_bps: 256MiB was planned for vda and io.max is none",
		},
		{
			name: "one disk missing", disks: []limits.BlockDevice{vda, sdb},
			want: neither,
			detail: map[string]string{
				"io_read_bps": "256MiB was planned for sdb and io.max is none", "io_write_bps": "256MiB was planned for sdb and io.max is none",
				"io": "256MiB was planned for sdb and io.max is none",
			},
			disk:    []string{"sdb 8:16 /data [] null null null null", vdaLine},
			missing: "io_read_bps: 256MiB was planned for sdb and io.max is none; io_write_bps: 256MiB was planned for sdb and io.max is none",
		},
		{
			name: "the loosest of several disks counts", disks: []limits.BlockDevice{vda, sdb},
			files: map[string]string{
				dir + "io.max":   "8:16 rbps=268435456 wbps=2097152 riops=max wiops=max\n254:0 rbps=1048576 wbps=1048576 riops=max wiops=max\n",
				slice + "io.max": "8:16 rbps=max wbps=2097151 riops=max wiops=max\n",
			},
			want: map[string]string{"io": "null kernel io.max  3 % over a second", "io_read_bps": holds, "io_write_bps": "2097151 kernel io.max /sys/fs/cgroup/system.slice 3 % over a second"},
			disk: []string{"sdb 8:16 /data [] 268435456 2097151 null null", "vda 254:0 / [ext4 all] 1048576 1048576 null null"},
		},
		{
			name: "no file", files: map[string]string{dir + "io.max": "-", slice + "io.max": "-", "sys/fs/cgroup/init.scope/io.max": "-"},
			want: neither,
			detail: map[string]string{
				"io_read_bps": "256MiB was planned for vda and io.max is not there", "io_write_bps": "256MiB was planned for vda and io.max is not there",
				"io": "256MiB was planned for vda and io.max is not there",
			},
			disk:    []string{"vda 254:0 / [ext4 all] null null null null"},
			missing: "io_read_bps: 256MiB was planned for vda and io.max is not there; io_write_bps: 256MiB was planned for vda and io.max is not there",
		},
		{
			name: "the process is gone", pid: 43,
			want: neither,
			detail: map[string]string{
				"io_read_bps":  "256MiB was planned for vda and could not be read back: open /proc/43/cgroup: no such file or directory",
				"io_write_bps": "256MiB was planned for vda and could not be read back: open /proc/43/cgroup: no such file or directory",
				"io":           "256MiB was planned for vda and could not be read back: open /proc/43/cgroup: no such file or directory",
			},
			disk: []string{"vda 254:0 / [ext4 all] null null null null"},
			missing: "io_read_bps: 256MiB was planned for vda and could not be read back: open /proc/43/cgroup: no such file or directory; " +
				"io_write_bps: 256MiB was planned for vda and could not be read back: open /proc/43/cgroup: no such file or directory",
		},
		{
			name: "not readable further up", files: map[string]string{slice + "io.max": "?\n"},
			want: neither,
			detail: map[string]string{
				"io_read_bps":  `256MiB was planned for vda and could not be read back: /sys/fs/cgroup/system.slice/io.max: not a device number: "?"`,
				"io_write_bps": `256MiB was planned for vda and could not be read back: /sys/fs/cgroup/system.slice/io.max: not a device number: "?"`,
				"io":           `256MiB was planned for vda and could not be read back: /sys/fs/cgroup/system.slice/io.max: not a device number: "?"`,
			},
			disk: []string{"vda 254:0 / [ext4 all] null null null null"},
			missing: `io_read_bps: 256MiB was planned for vda and could not be read back: /sys/fs/cgroup/system.slice/io.max: not a device number: "?"; ` +
				`io_write_bps: 256MiB was planned for vda and could not be read back: /sys/fs/cgroup/system.slice/io.max: not a device number: "?"`,
		},
		{
			name: "nothing configured", policy: unlimited, files: map[string]string{dir + "io.max": "", slice + "io.max": ""},
			want: map[string]string{"io": not}, detail: map[string]string{"io": "no limit is configured"},
			disk: []string{"vda 254:0 / [ext4 all] null null null null"},
		},
		{
			name: "nothing configured, and the slice has a limit", policy: unlimited, files: map[string]string{dir + "io.max": "", slice + "io.max": "254:0 rbps=max wbps=5 riops=max wiops=max\n"},
			want: map[string]string{
				"io":           "null kernel io.max /sys/fs/cgroup/system.slice 3 % over a second",
				"io_write_bps": "5 kernel io.max /sys/fs/cgroup/system.slice 3 % over a second",
			},
			disk: []string{"vda 254:0 / [ext4 all] null 5 null null"},
		},
		{
			name: "an annotation asks for no limit of reads", files: map[string]string{dir + "io.max": "254:0 rbps=max wbps=268435456 riops=max wiops=max\n", slice + "io.max": ""},
			req:    limits.Request{Annotations: limits.Set{limits.KeyIOReadBPS: none}},
			want:   map[string]string{"io": both["io"], "io_read_bps": not, "io_write_bps": holds},
			detail: map[string]string{"io_read_bps": "no limit is configured"},
			disk:   []string{"vda 254:0 / [ext4 all] null 268435456 null null"},
		},

		// What the specification asks for one disk.
		{
			name: "asked of the container's disk", policy: unlimited, req: asks(vda.Device, limits.Set{limits.KeyIOReadBPS: limits.Limit(268435456)}), host: knows(vda),
			files: ioMax("254:0 rbps=268435456 wbps=max riops=max wiops=max\n"),
			want:  map[string]string{"io": both["io"], "io_read_bps": holds},
			disk:  []string{"vda 254:0 / [ext4 all] 268435456 null null null"},
		},
		{
			name: "asked of a disk without files of the container", policy: unlimited, req: asks(sdb.Device, limits.Set{limits.KeyIOReadBPS: limits.Limit(1048576)}), host: knows(sdb),
			files:  map[string]string{dir + "io.max": "8:16 rbps=1048576 wbps=max riops=max wiops=max\n", slice + "io.max": ""},
			want:   map[string]string{"io": not, "io_read_bps": not},
			detail: map[string]string{"io_read_bps": "1MiB on sdb from the spec", "io": "1MiB on sdb from the spec"},
			disk:   []string{"sdb 8:16 device 8:16 of the spec [] 1048576 null null null", "vda 254:0 / [ext4 all] null null null null"},
		},
		{
			name: "asked of such a disk, beside a default", req: asks(sdb.Device, limits.Set{limits.KeyIOReadBPS: limits.Limit(1048576)}), host: knows(sdb),
			files:  ioMax("8:16 rbps=1048576 wbps=max riops=max wiops=max\n254:0 rbps=268435456 wbps=268435456 riops=max wiops=max\n"),
			want:   both,
			detail: map[string]string{"io_read_bps": "1MiB on sdb from the spec", "io": "io_read_bps: 1MiB on sdb from the spec"},
			disk:   []string{"sdb 8:16 device 8:16 of the spec [] 1048576 null null null", vdaLine},
		},
		{
			name: "asked of such a disk, and lost", req: asks(sdb.Device, limits.Set{limits.KeyIOReadBPS: limits.Limit(1048576)}), host: knows(sdb),
			want: map[string]string{"io": not, "io_read_bps": not, "io_write_bps": holds},
			detail: map[string]string{
				"io_read_bps": "1MiB on sdb from the spec; 1MiB was planned for sdb and io.max is none",
				"io":          "io_read_bps: 1MiB on sdb from the spec; 1MiB was planned for sdb and io.max is none",
			},
			disk:    []string{"sdb 8:16 device 8:16 of the spec [] null null null null", vdaLine},
			missing: "io_read_bps: 1MiB was planned for sdb and io.max is none",
		},
		{
			name: "asked of the only disk", disks: []limits.BlockDevice{}, policy: unlimited, req: asks(sdb.Device, limits.Set{limits.KeyIOWriteIOPS: limits.Limit(120)}), host: knows(sdb),
			files: ioMax("8:16 rbps=max wbps=max riops=max wiops=120\n"),
			want:  map[string]string{"io": both["io"], "io_write_iops": "120 kernel io.max self 3 % over a second"},
			disk:  []string{"sdb 8:16 device 8:16 of the spec [] null null null 120"},
		},

		// Files that are on no disk.
		{
			name: "no disk", disks: []limits.BlockDevice{}, want: neither,
			detail: map[string]string{
				"io": "none of the container's files is on a disk", "io_read_bps": "none of the container's files is on a disk", "io_write_bps": "none of the container's files is on a disk",
			},
		},
		{
			name: "some files are elsewhere", host: func(h *limits.Host) {
				h.IO.Diskless = []limits.Diskless{{Place: "/nfs", Reason: "nfs4 is a network filesystem"}}
			},
			want: both,
			detail: map[string]string{
				"io": "not on /nfs: nfs4 is a network filesystem", "io_read_bps": "not on /nfs: nfs4 is a network filesystem", "io_write_bps": "not on /nfs: nfs4 is a network filesystem",
			},
			disk: []string{vdaLine},
		},
		{
			name: "all files are elsewhere", disks: []limits.BlockDevice{}, host: func(h *limits.Host) { h.IO.Diskless = []limits.Diskless{{Place: "/", Reason: "zfs"}} },
			want: neither, detail: map[string]string{"io": "not on /: zfs", "io_read_bps": "not on /: zfs", "io_write_bps": "not on /: zfs"},
		},
		{
			name: "a host that cannot limit I/O", disks: []limits.BlockDevice{}, host: noIO, want: neither,
			detail: map[string]string{"io": "no io here", "io_read_bps": "no io here", "io_write_bps": "no io here"},
		},

		// Mode off changes nothing, and tells what is there.
		{
			name: "mode off", policy: off, want: both, disk: []string{vdaLine},
			detail: map[string]string{
				"io_read_bps": "mode off: it would be 256MiB on vda", "io_write_bps": "mode off: it would be 256MiB on vda",
				"io": "mode off: it would be 256MiB on vda",
			},
		},
		{
			name: "mode off without limits", policy: off, files: map[string]string{dir + "io.max": "", slice + "io.max": ""}, want: neither,
			disk: []string{"vda 254:0 / [ext4 all] null null null null"},
			detail: map[string]string{
				"io_read_bps": "mode off: it would be 256MiB on vda", "io_write_bps": "mode off: it would be 256MiB on vda",
				"io": "mode off: it would be 256MiB on vda",
			},
		},
		{
			name: "mode off on a host that cannot limit I/O", policy: off, disks: []limits.BlockDevice{}, host: noIO, want: neither,
			detail: map[string]string{
				"io_read_bps": "no io here; mode off: it would be 256MiB", "io_write_bps": "no io here; mode off: it would be 256MiB",
				"io": "no io here; mode off: it would be 256MiB",
			},
		},

		{
			name: "v1", tree: "v1",
			want: map[string]string{
				"io":           "null kernel blkio.throttle self 3 % over a second",
				"io_read_bps":  "268435456 kernel blkio.throttle.read_bps_device self 3 % over a second",
				"io_write_bps": "268435456 kernel blkio.throttle.write_bps_device self 3 % over a second",
			},
			disk: []string{vdaLine},
		},
		{
			name: "v1 lost", tree: "v1", files: map[string]string{blkio + "read_bps_device": "", blkio + "write_bps_device": "-"},
			want: neither,
			detail: map[string]string{
				"io_read_bps":  "256MiB was planned for vda and blkio.throttle.read_bps_device is none",
				"io_write_bps": "256MiB was planned for vda and blkio.throttle.write_bps_device is not there",
				"io":           "io_read_bps: 256MiB was planned for vda and blkio.throttle.read_bps_device is none; io_write_bps: 256MiB was planned for vda and blkio.throttle.write_bps_device is not there",
			},
			disk:    []string{"vda 254:0 / [ext4 all] null null null null"},
			missing: "io_read_bps: 256MiB was planned for vda and blkio.throttle.read_bps_device is none; io_write_bps: 256MiB was planned for vda and blkio.throttle.write_bps_device is not there",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.read(t)
			for name, e := range got.Enforcement {
				if !strings.HasPrefix(name, "io") {
					continue
				}
				if want, told := c.want[name]; !told || line(e) != want {
					t.Errorf("%s: %s\nwant %s", name, line(e), want)
				}
				if e.Detail != c.detail[name] {
					t.Errorf("%s: %q\nwant %q", name, e.Detail, c.detail[name])
				}
			}
			for name := range c.want {
				if _, told := got.Enforcement[name]; !told {
					t.Errorf("%s is not told", name)
				}
			}
			var disks []string
			for _, d := range got.Enforcement["io"].Disks {
				disks = append(disks, diskLine(d))
			}
			if !slices.Equal(disks, c.disk) {
				t.Errorf("disks\n%s\nwant\n%s", strings.Join(disks, "\n"), strings.Join(c.disk, "\n"))
			}
			var missing []limits.Missing
			if c.missing != "" {
				missing = []limits.Missing{{Dimension: limits.IO, Reason: c.missing}}
			}
			if !slices.Equal(got.Missing, missing) {
				t.Errorf("missing %q\nwant %q", got.Missing, missing)
			}
			// There is a warning for each thing that is missing.
			var warnings []string
			for _, w := range got.Warnings {
				if strings.HasPrefix(w, "io") {
					warnings = append(warnings, w)
				}
			}
			if strings.Join(warnings, "; ") != c.missing {
				t.Errorf("warnings %q", warnings)
			}
		})
	}
}

// What the I/O limits lack is not said of another dimension.
func TestBrokenIOIsOnlyIO(t *testing.T) {
	c := ioCase{
		files: map[string]string{dir + "io.max": "?\n"},
		policy: func(p *limits.Policy) {
			p.StrictRequire = []limits.Dimension{limits.Memory, limits.Swap, limits.Pids}
			p.Defaults[limits.KeyMemory] = limits.Limit(512 << 20)
		},
	}
	got := c.read(t)
	if len(got.Missing) != 0 || !got.Held.GroupKill || line(got.Enforcement["memory"]) != "536870912 kernel memory.max self exact" {
		t.Errorf("missing %q, held %+v, memory %s", got.Missing, got.Held, line(got.Enforcement["memory"]))
	}
	if len(got.Warnings) != 3 { // the file, and two keys
		t.Errorf("warnings %q", got.Warnings)
	}
}

// A disk behind the container's files without a limit makes a key not hold,
// whatever holds on the others. One that only the specification names does not.
func TestADiskWithoutALimitOfTheKey(t *testing.T) {
	for asked, want := range map[bool]string{false: not, true: holds} {
		plan, err := limits.Resolve(limits.DefaultPolicy(), limits.Request{}, ioHost(2, []limits.BlockDevice{vda, sdb}))
		if err != nil {
			t.Fatal(err)
		}
		plan.Mode, plan.StrictRequire = limits.ModeStrict, []limits.Dimension{limits.IO}
		plan.IO.Disks[0].Limits, plan.IO.Disks[0].Asked = nil, asked // sdb
		r := reader{fs: cgroup.FS(cgrouptest.Tree(t, "v2")), rlimits: rlimits, plan: plan, at: AtStart}
		got := r.read(pid)
		e := got.Enforcement[string(limits.KeyIOReadBPS)]
		if line(e) != want || (e.Detail == "no limit was planned for sdb") == asked || (len(got.Missing) > 0) == asked {
			t.Errorf("asked %t: %s, %q, missing %q", asked, line(e), e.Detail, got.Missing)
		}
	}
}

// Units, sources and what was asked for are those of the plan.
func TestIOEntries(t *testing.T) {
	c := ioCase{
		files: map[string]string{dir + "io.max": "254:0 rbps=1048576 wbps=268435456 riops=max wiops=120\n"},
		req: limits.Request{Annotations: limits.Set{limits.KeyIOReadBPS: limits.Limit(1 << 20)}, Devices: map[limits.Device]limits.Set{
			vda.Device: {limits.KeyIOWriteIOPS: limits.Limit(120)},
		}},
		host: func(h *limits.Host) {
			h.IO.Asked = map[limits.Device]limits.AskedDisk{vda.Device: {Disk: vda}}
		},
	}
	got := c.read(t).Enforcement
	for name, want := range map[string]string{
		"io":            "null null  annotation",
		"io_read_bps":   "1048576 1048576 bytes/s annotation",
		"io_write_bps":  "null 268435456 bytes/s default",
		"io_write_iops": "120 120 operations/s spec",
		"io_read_iops":  "null null  ", // not told
	} {
		e := got[name]
		if have := strings.Join([]string{show(e.Requested), show(e.Effective), e.Unit, string(e.Source)}, " "); have != want {
			t.Errorf("%s: %q, want %q", name, have, want)
		}
	}
}
