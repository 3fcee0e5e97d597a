//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/result"
)

// The tests that measure rates run alone, before the parallel ones.

// slowIO is a configuration with a rate that every disk exceeds.
const (
	slowRate = 20 * mib
	slowIO   = "[limits]\nio_read_bps = \"20MiB\"\nio_write_bps = \"20MiB\""
	freeIO   = "[limits]\nio_read_bps = \"none\"\nio_write_bps = \"none\""
)

// withData gives the container a folder of the host at /data.
func withData(source string) Tweak {
	return func(s Spec) {
		s["mounts"] = append(s["mounts"].([]any), map[string]any{
			"destination": "/data", "type": "bind", "source": source, "options": []string{"rbind"},
		})
	}
}

// timed is a script that prints how long a command took, in hundredths of a
// second, by the kernel's clock.
func timed(command string) string {
	return "read a _ </proc/uptime; " + command + " 2>/dev/null || echo failed; read b _ </proc/uptime; echo took $a $b"
}

// took reads what timed printed.
func took(t *testing.T, out string) time.Duration {
	t.Helper()
	var from, to float64
	_, words, _ := strings.Cut(out, "took ")
	if n, err := fmt.Sscan(words, &from, &to); n != 2 || to <= from || strings.Contains(out, "failed") {
		t.Fatalf("the container printed no time: %v: %q", err, out)
	}
	return time.Duration((to - from) * float64(time.Second))
}

// An ioWay is a way to use a disk. dd comes from busybox.
type ioWay struct {
	name    string
	command string // writes or reads a file in /data
	bytes   int
	above   float64 // how far from the limit the rate may be
	below   float64
}

// A cgroup has a head start of a tenth of a second, which is under 2 % of the time
// of the direct writes. Each writes a file of its own: what is in the page cache
// is counted for the cgroup that the file belonged to, which may be that of a
// container before.
const (
	directMiB = 110
	otherMiB  = 60
)

var ioWays = []ioWay{
	{"direct writes", fmt.Sprintf("dd if=/dev/zero of=/data/direct bs=1M count=%d oflag=direct", directMiB), directMiB * mib, 0.03, 0.03},
	{"direct reads", fmt.Sprintf("dd if=/data/direct of=/dev/null bs=1M count=%d iflag=direct", otherMiB), otherMiB * mib, 0.05, 0.05},
	// fsync has to wait for the journal too, above all on a loop device, which is
	// a file on another file system.
	{"buffered writes and fsync", fmt.Sprintf("rm -f /data/fsync; dd if=/dev/zero of=/data/fsync bs=1M count=%d conv=fsync", otherMiB), otherMiB * mib, 0.10, 0.35},
}

// rate runs a command in a container with the storage at /data, and returns bytes
// per second by the container's clock. A first look happens while it waits.
func (b *Box) rate(s Storage, w ioWay, first func(*Container)) float64 {
	b.t.Helper()
	c := b.heldContainer(timed(w.command), withData(s.Dir))
	c.begin(byCreate)
	first(c)
	c.release()
	out := c.await(byCreate)
	c.delete()
	return float64(w.bytes) / took(b.t, out.Stdout).Seconds()
}

func noLook(*Container) {}

// wantRate measures. More than the limit is never right; less may be because the
// machine is busy with something else, so that is tried again.
func wantRate(t *testing.T, what string, limit, above, below float64, measure func() float64) {
	t.Helper()
	for range attempts {
		off := measure()/limit - 1
		t.Logf("%s: %+.1f %% off the limit", what, 100*off)
		if off > above {
			t.Errorf("%s: %+.1f %% off the limit, more than %.0f %%", what, 100*off, 100*above)
			return
		}
		if off >= -below {
			return
		}
	}
	t.Errorf("%s: more than %.0f %% below the limit each time", what, 100*below)
}

// wantFaster is the control of wantRate: without a limit the same is twice as fast
// at least, unless the machine is busy with something else, so it is tried again.
func wantFaster(t *testing.T, what string, limit float64, measure func() float64) {
	t.Helper()
	for range attempts {
		times := measure() / limit
		t.Logf("%s without a limit: %.1f times the limit", what, times)
		if times >= 2 {
			return
		}
	}
	t.Errorf("%s are not much faster without a limit, so that the limit proves nothing", what)
}

// What goes to a disk takes its time, whatever lies between the disk and the
// file. The kernel's own table shows the limit on that disk, and the report says
// the same.
func TestIORateHoldsOnEveryStorage(t *testing.T) {
	need(t, runc, spare, ioLimit)
	for i, s := range storages(t) {
		t.Run(s.Name, func(t *testing.T) {
			slow, free := newBox(t, "runc", slowIO), newBox(t, "runc", freeIO)
			uses := ioWays
			if i > 2 { // the same file systems, on something else
				uses = ioWays[:1]
			}
			for _, w := range uses {
				wantRate(t, w.name, slowRate, w.above, w.below, func() float64 {
					return slow.rate(s, w, func(c *Container) { c.wantRates(s.Disk, "rbps=20971520 wbps=20971520 riops=max wiops=max") })
				})
			}
			// Without the limit it is faster, so that it was the limit that was measured.
			w := ioWays[0]
			wantFaster(t, w.name, slowRate, func() float64 {
				return free.rate(s, w, func(c *Container) { c.wantRates(s.Disk, "") })
			})
		})
	}
}

// wantRates compares the kernel's table of this container with what is wanted
// for a disk, and with the report; "" is no limit.
func (c *Container) wantRates(disk, want string) {
	c.t.Helper()
	g := cgroupOf(c.t, c.pid())
	if got := g.rates(disk); got != want {
		c.t.Errorf("the kernel limits %s to %q, want %q", disk, got, want)
	}
	sameRates(c.t, g, c.result())
}

// rates are the limits of a disk in the form of io.max: "rbps=1 wbps=max
// riops=max wiops=max", "" without any.
func (g Cgroup) rates(disk string) string {
	g.t.Helper()
	if cgroupVersion() == 2 {
		for line := range strings.Lines(g.read("io.max")) {
			if rest, ok := strings.CutPrefix(line, disk+" "); ok {
				return strings.TrimSpace(rest)
			}
		}
		return ""
	}
	words, limited := []string{}, false
	for _, f := range [][2]string{{"rbps", "read_bps"}, {"wbps", "write_bps"}, {"riops", "read_iops"}, {"wiops", "write_iops"}} {
		value := "max"
		for line := range strings.Lines(g.read("blkio.throttle." + f[1] + "_device")) {
			if rest, ok := strings.CutPrefix(line, disk+" "); ok {
				value, limited = strings.TrimSpace(rest), true
			}
		}
		words = append(words, f[0]+"="+value)
	}
	if !limited {
		return ""
	}
	return strings.Join(words, " ")
}

// sameRates fails when the report and the kernel's table say different things
// about a disk.
func sameRates(t *testing.T, g Cgroup, r *result.Result) {
	t.Helper()
	number := func(n *json.Number) string {
		if n == nil {
			return "max"
		}
		return n.String()
	}
	for _, d := range r.Enforcement["io"].Disks {
		said := fmt.Sprintf("rbps=%s wbps=%s riops=%s wiops=%s", number(d.ReadBPS), number(d.WriteBPS), number(d.ReadIOPS), number(d.WriteIOPS))
		if have := g.rates(d.Device.String()); said != have && (have != "" || said != "rbps=max wbps=max riops=max wiops=max") {
			t.Errorf("the report says %q of %s, the kernel %q", said, d.Device, have)
		}
	}
}

// reportedDisk returns what the report says about a disk.
func reportedDisk(t *testing.T, r *result.Result, device string) result.Disk {
	t.Helper()
	for _, d := range r.Enforcement["io"].Disks {
		if d.Device.String() == device {
			return d
		}
	}
	t.Fatalf("the report has no disk %s: %+v", device, r.Enforcement["io"])
	return result.Disk{}
}

// Operations are limited apart from bytes, reads apart from writes.
func TestIOOperationsHold(t *testing.T) {
	need(t, runc, spare, ioLimit)
	s := storages(t)[0]
	const perSecond, count = 200, 1200
	b := newBox(t, "runc", "[limits]\nio_read_bps = \"none\"\nio_write_bps = \"none\"\nio_read_iops = 200\nio_write_iops = 200")
	free := newBox(t, "runc", freeIO)
	for _, w := range []ioWay{
		{"writes", fmt.Sprintf("dd if=/dev/zero of=/data/f bs=4k count=%d oflag=direct", count), count, 0.05, 0.05},
		{"reads", fmt.Sprintf("dd if=/data/f of=/dev/null bs=4k count=%d iflag=direct", count), count, 0.05, 0.05},
	} {
		wantRate(t, w.name, perSecond, w.above, w.below, func() float64 {
			return b.rate(s, w, func(c *Container) { c.wantRates(s.Disk, "rbps=max wbps=max riops=200 wiops=200") })
		})
		wantFaster(t, w.name, perSecond, func() float64 { return free.rate(s, w, noLook) })
	}
}

// What the report says about buffered writes is what happens. A process that
// leaves its data in the page cache lets somebody else write it to the disk: on
// cgroup v2 that is still held to its rate, on v1 it is not.
func TestReportSaysWhichWritesCount(t *testing.T) {
	need(t, runc, ioLimit)
	const above = 1.1 * slowRate
	got, counted := bufferedRate(t)
	for range attempts { // a busy machine may be as slow as the limit, which is no answer
		if has(cgroup2) || got >= above {
			break
		}
		got, counted = bufferedRate(t)
	}
	all := strings.HasPrefix(counted, "reads and all writes (")
	if all != has(cgroup2) {
		t.Errorf("the report says %q on cgroup v%d", counted, cgroupVersion())
	}
	if held := got < above; held != all {
		t.Errorf("%.1f MiB/s with a limit of 20, and the report says %q", got/mib, counted)
	}
}

// bufferedRate writes into the page cache in a container with a limit, waits until
// that is on the disk, and returns bytes per second and what the report says.
func bufferedRate(t *testing.T) (rate float64, counted string) {
	t.Helper()
	dir := onDiskDir(t)
	const amount = 60
	c := newBox(t, "runc", slowIO).heldContainer(fmt.Sprintf("dd if=/dev/zero of=/data/f bs=1M count=%d 2>/dev/null; echo written; sleep 1000", amount), withData(dir))
	c.begin(byCreate)
	disks := c.result().Enforcement["io"].Disks
	if len(disks) == 0 {
		t.Fatalf("%s is on no disk: %+v", dir, c.result().Enforcement["io"])
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c.release()
	began := time.Now()
	c.printed("written")
	buffered := time.Since(began)
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	rate = float64(amount*mib) / time.Since(began).Seconds()
	t.Logf("written to the page cache in %v, to the disk at %.1f MiB/s with a limit of 20; the report: %s", buffered.Round(time.Millisecond), rate/mib, disks[0].Counted)
	c.must("delete", "--force", c.ID)
	return rate, disks[0].Counted
}

// onDiskDir is a folder on a disk, which is removed at the end of the test.
func onDiskDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(onDisk(), token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Whatever device a request names, the container starts: the limit is on the disk
// that can have it, or the report says that there is none.
func TestIORequestForAnyDeviceNeverStopsAContainer(t *testing.T) {
	need(t, spare, ioLimit)
	list := storages(t)
	byName := func(name string) Storage {
		i := slices.IndexFunc(list, func(s Storage) bool { return s.Name == name })
		return list[i]
	}
	partition, mapper, loop := byName("ext4 on a partition"), byName("ext4 on device-mapper"), byName("ext4 on a loop device")
	const anonymous, nobody = "0:4242", "250:999"
	for _, lowLevel := range []feature{runc, crun} {
		t.Run(string(lowLevel), func(t *testing.T) {
			need(t, lowLevel)
			throttle := func(nodes ...string) []any {
				var devices []any
				for _, number := range nodes {
					d, ok := limits.ParseDevice(number)
					if !ok {
						t.Fatal(number)
					}
					devices = append(devices, map[string]any{"major": d.Major, "minor": d.Minor, "rate": mib})
				}
				return devices
			}
			c := newBox(t, string(lowLevel)).container(sh("sleep 1000"),
				resource(throttle(nodeNumber(t, partition.Node), mapper.Disk, loop.Disk, anonymous, nobody), "blockIO", "throttleWriteBpsDevice"),
				resource(7, "blockIO", "weight"),
				resource([]any{map[string]any{"major": 250, "minor": 999, "weight": 500}}, "blockIO", "weightDevice"),
				withData(partition.Dir))
			c.begin(byCreate)
			c.wantRates(partition.Disk, "rbps=268435456 wbps=1048576 riops=max wiops=max")
			c.wantRates(mapper.Disk, "rbps=max wbps=1048576 riops=max wiops=max")
			c.wantRates(loop.Disk, "rbps=max wbps=1048576 riops=max wiops=max")
			r := c.result()
			for _, device := range []string{anonymous, nobody} {
				if !slices.ContainsFunc(r.Warnings, func(w string) bool {
					return strings.Contains(w, "io_write_bps: 1MiB of device "+device+" from the spec is dropped: ")
				}) {
					t.Errorf("no warning about %s: %q", device, r.Warnings)
				}
			}
			c.must("delete", "--force", c.ID)
		})
	}
}

// The unified map cannot lift a limit, nor keep a container from starting by a
// file that this kernel does not have.
func TestUnifiedMapCannotLiftAnIOLimit(t *testing.T) {
	need(t, spare, ioLimit, cgroup2)
	s := storages(t)[0]
	for _, lowLevel := range []feature{runc, crun} {
		t.Run(string(lowLevel), func(t *testing.T) {
			need(t, lowLevel)
			c := newBox(t, string(lowLevel), slowIO).container(sh("sleep 1000"), withData(s.Dir),
				resource(map[string]any{
					"io.max":        s.Disk + " rbps=max wbps=max riops=100",
					"io.weight":     "default 70000",
					"io.bfq.weight": "100",
					"io.nonsense":   "1",
				}, "unified"))
			c.begin(byCreate)
			c.wantRates(s.Disk, "rbps=20971520 wbps=20971520 riops=100 wiops=max")
			c.must("delete", "--force", c.ID)
		})
	}
}

// A container without the io controller runs, and says that the kernel does not
// limit its I/O: the supervisor does, where processes say what they read and write,
// and else nobody. In strict mode that insists on io it does not start.
func TestWithoutIOControllerTheReportSaysSo(t *testing.T) {
	need(t, runc, cgroup2, spare)
	s := storages(t)[0]
	b := newBox(t, "runc", slowIO)
	c := b.container(sh("sleep 1000"), withData(s.Dir), with("/sub/"+token+"-noio", "linux", "cgroupsPath"),
		resource([]any{map[string]any{"major": 8, "minor": 0, "rate": mib}}, "blockIO", "throttleReadBpsDevice"), resource(500, "blockIO", "weight"))
	inDelegated(t, "memory pids", c.command("create", "--bundle", c.Bundle, "--pid-file", c.PidFile, c.ID))
	c.start()
	r := c.result()
	want := limits.EnforcerSupervisor
	if _, err := os.Stat("/proc/self/io"); err != nil {
		want = limits.EnforcerNone
	}
	for _, dimension := range []string{"io", "io_read_bps", "io_write_bps"} {
		e := r.Enforcement[dimension]
		held := want != limits.EnforcerNone && dimension != "io" // which has no number of its own
		if e.Enforcer != want || (e.Effective != nil) != held || !strings.Contains(e.Detail, "the io controller is not in") {
			t.Errorf("%s: %+v", dimension, e)
		}
	}
	if e := r.Enforcement["memory"]; e.Enforcer != limits.EnforcerKernel {
		t.Errorf("memory, which was delegated: %+v", e)
	}
	c.must("delete", "--force", c.ID)

	strict := newBox(t, "runc", "mode = \"strict\"\nstrict_require = [\"memory\", \"io\"]\n"+slowIO)
	c = strict.container(sh("sleep 1000"), withData(s.Dir), with("/sub/"+token+"-noio", "linux", "cgroupsPath"))
	out := tryDelegated(t, "memory pids", c.command("create", "--bundle", c.Bundle, c.ID))
	if out.Code == 0 || !strings.Contains(out.Stderr, "strict mode: this host does not enforce io (") || !strings.Contains(out.Stderr, "the io controller is not in ") || strings.Contains(out.Stderr, "memory (") {
		t.Errorf("strict mode: %v", out)
	}
}

// The policy may name the disk.
func TestIODeviceOfThePolicyIsTaken(t *testing.T) {
	need(t, runc, spare, ioLimit)
	list := storages(t)
	for _, c := range []struct{ name, setting string }{
		{"a partition", list[0].Node}, {"a folder", list[1].Dir}, {"the disk", spareDisk()},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBox(t, "runc", "io_device = "+strconv.Quote(c.setting)+"\n"+slowIO)
			box := b.container(sh("sleep 1000")) // none of its files is on that disk
			box.begin(byCreate)
			box.wantRates(list[0].Disk, "rbps=20971520 wbps=20971520 riops=max wiops=max")
			box.must("delete", "--force", box.ID)
		})
	}
}

// A container whose files are all in memory, or on no disk that can be limited,
// starts like any other.
func TestContainerWithoutADisk(t *testing.T) {
	need(t, runc, ioLimit)
	dir := filepath.Join("/dev/shm", token)
	if err := os.CopyFS(dir, os.DirFS(rootfs)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	b := newBox(t, "runc", "mode = \"strict\"\nstrict_require = [\"memory\", \"io\"]\n"+slowIO)
	c := b.container(sh("sleep 1000"), with(dir, "root", "path"))
	c.begin(byCreate)
	if e := c.result().Enforcement["io"]; e.Enforcer != limits.EnforcerNone || len(e.Disks) != 0 || !strings.Contains(e.Detail, "none of the container's files is on a disk") {
		t.Errorf("io: %+v", e)
	}
	c.must("delete", "--force", c.ID)
}
