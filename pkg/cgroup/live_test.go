package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/test/promise"
)

func inode(st fs.FileInfo) uint64 { return st.Sys().(*syscall.Stat_t).Ino }

// cgrouptestMkdir makes one more folder level; past PATH_MAX it goes by
// descriptor, as a container's own mkdir would.
func cgrouptestMkdir(t *testing.T, f FS, path string) {
	t.Helper()
	err := os.Mkdir(f.Path("/"+path), 0o755)
	if err == nil || errors.Is(err, unix.ENAMETOOLONG) || errors.Is(err, fs.ErrNotExist) {
		return
	}
	t.Fatal(err)
}

// live returns the cgroup of this test on the machine that it runs on.
func live(t testing.TB) *Cgroup {
	t.Helper()
	c, err := Of(Host, os.Getpid())
	if errors.Is(err, ErrNoCgroups) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLive(t *testing.T) {
	c := live(t)
	all, err := c.EffectiveAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range EffectiveKeys {
		if e := all[key]; !e.Value.None && e.Mechanism == "" {
			t.Errorf("%s: %+v", key, e)
		}
	}
	evidence, err := c.Evidence()
	if err != nil {
		t.Fatal(err)
	}
	usage, err := c.Usage()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("cgroups: %s", show(c.Paths()))
	t.Logf("effective: %+v", all)
	t.Logf("evidence: %s", show(evidence))
	t.Logf("usage: %s", show(usage))
	if usage.CPUUsec != nil && *usage.CPUUsec == 0 {
		t.Error("no CPU time was used")
	}
	procs, err := c.Procs()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(procs, os.Getpid()) {
		t.Error("this process is not listed")
	}
}

// A process that has exited and was not waited for is in no cgroup that could be
// read: v1 shows the root.
func TestLiveZombie(t *testing.T) {
	live(t)
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	// Wait for the exit and leave the zombie.
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	c, err := Of(Host, cmd.Process.Pid)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v", err)
		}
		return
	}
	if c.paths.Version == 1 {
		t.Errorf("v1: a zombie has the cgroup %s", show(c.Paths()))
	}
}

func TestLiveGone(t *testing.T) {
	c := live(t)
	paths := c.Paths()
	for name, place := range paths.Places {
		place.Path, place.ID = "/agentbox-there-is-no-such-cgroup", 0
		paths.Places[name] = place
	}
	c, err := Open(Host, paths)
	if err != nil {
		t.Fatal(err)
	}
	everythingGone(t, c)
}

// TestLiveIO sets a rate on a cgroup of its own and reads it back. Without root,
// or a cgroup that can limit I/O, it reads the rates of this process.
func TestLiveIO(t *testing.T) {
	c := live(t)
	disks := liveDisks(t)
	all, err := c.EffectiveIO(disks)
	if err != nil {
		t.Fatal(err)
	}
	for disk, rates := range all {
		for key, e := range rates {
			if e.Mechanism == "" || e.Value.None != (e.Owner == "") {
				t.Errorf("%s: %s: %+v", disk, key, e)
			}
		}
	}
	const rate = 123 << 20
	child, disk := limited(t, c, disks, rate)
	all, err = child.EffectiveIO([]limits.Device{disk})
	if err != nil {
		t.Fatal(err)
	}
	if got := all[disk][limits.KeyIOWriteBPS]; got.Value != limits.Limit(rate) || got.Owner != Self {
		t.Errorf("%s: %+v", disk, got)
	}
	if got := all[disk][limits.KeyIOReadBPS]; got.Value == limits.Limit(rate) {
		t.Errorf("%s: a limit of writes is one of reads: %+v", disk, got)
	}
}

func liveDisks(t *testing.T) []limits.Device {
	t.Helper()
	entries, err := os.ReadDir("/sys/block")
	if err != nil {
		promise.Lacks(t, err)
	}
	var disks []limits.Device
	for _, e := range entries {
		number, err := os.ReadFile("/sys/block/" + e.Name() + "/dev")
		if disk, ok := limits.ParseDevice(strings.TrimSpace(string(number))); err == nil && ok {
			disks = append(disks, disk)
		}
	}
	return disks
}

// limited makes a cgroup below c with a rate for the writes to the first disk
// that takes one.
func limited(t *testing.T, c *Cgroup, disks []limits.Device, rate int) (*Cgroup, limits.Device) {
	t.Helper()
	paths := c.Paths()
	controller, file := "blkio", ThrottleFileV1(limits.KeyIOWriteBPS)
	line := func(disk limits.Device) string { return fmt.Sprintf("%s %d", disk, rate) }
	if paths.Version == 2 {
		controller, file = "", fileIOMax
		line = func(disk limits.Device) string { return fmt.Sprintf("%s wbps=%d", disk, rate) }
	}
	place, ok := paths.Places[controller]
	if !ok {
		promise.Lacks(t, "the blkio controller is not mounted")
	}
	place.Path, place.ID = path.Join(place.Path, fmt.Sprintf("agentbox-unit-test-%d", os.Getpid())), 0
	if err := os.Mkdir(place.Dir(), 0o755); err != nil {
		promise.Lacks(t, err)
	}
	t.Cleanup(func() {
		if err := os.Remove(place.Dir()); err != nil {
			t.Error(err)
		}
	})
	child, err := Open(Host, Paths{Version: paths.Version, Places: map[string]Place{controller: place}})
	if err != nil {
		t.Fatal(err)
	}
	for _, disk := range disks {
		err := os.WriteFile(path.Join(place.Dir(), file), []byte(line(disk)), 0)
		if err == nil {
			return child, disk
		}
		t.Logf("%s: %v", disk, err)
	}
	promise.Lacks(t, "no disk here takes a rate in this process's cgroup")
	return nil, limits.Device{}
}

func BenchmarkOf(b *testing.B) {
	live(b)
	pid := os.Getpid()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Of(Host, pid); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEffectiveAll(b *testing.B) {
	for name, c := range map[string]*Cgroup{"live": live(b), "v1": of(b, tree(b, "v1")), "v2": of(b, tree(b, "v2"))} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.EffectiveAll(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEvidence(b *testing.B) {
	for name, c := range map[string]*Cgroup{"live": live(b), "v2": of(b, tree(b, "v2"))} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Evidence(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
