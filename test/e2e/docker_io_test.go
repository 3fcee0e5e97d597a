//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/result"
)

// dataDisk is the disk of the daemons' data.
func (d *Docker) dataDisk() string {
	d.t.Helper()
	number, err := diskOf(d.disk)
	if err != nil {
		d.t.Fatal(err)
	}
	return number
}

// The layers of Docker's overlay2, an anonymous volume and a bind mount are on the
// disk of its data folder: found by itself, limited, and measured.
func TestDockerIORateHolds(t *testing.T) {
	d := newDocker(t, ioLimit)
	disk := d.dataDisk()
	bind := onDiskDir(t)
	const amount = 100
	for _, where := range []string{"/f", "/volume/f", "/bind/f"} {
		wantRate(t, where, slowRate, 0.03, 0.03, func() float64 {
			c := d.held("agentbox-io", "--volume /volume --volume "+bind+":/bind", timed(fmt.Sprintf("dd if=/dev/zero of=%s bs=1M count=%d oflag=direct", where, amount)))
			if got, want := c.Cgroup.rates(disk), "rbps=20971520 wbps=20971520 riops=max wiops=max"; got != want {
				t.Errorf("the kernel limits %s to %q, want %q", disk, got, want)
			}
			r, _ := c.inspect(c.ID)
			sameRates(t, c.Cgroup, r)
			places := reportedDisk(t, r, disk).Places
			for _, place := range []string{"/", "/volume", "/bind"} {
				if !slices.Contains(places, place) {
					t.Errorf("the report has nothing at %s on %s: %q", place, disk, places)
				}
			}
			c.letGo()
			took := took(t, c.ends().Stdout)
			c.do("rm", "--volumes", c.Name)
			return amount * mib / took.Seconds()
		})
	}
}

// docker run --device-write-bps of a partition, or of a disk that is none of the
// container's: neither stops it.
func TestDockerDeviceRatesNeverStopAContainer(t *testing.T) {
	d := newDocker(t, ioLimit)
	disk := d.dataDisk()
	for _, flag := range []string{"--device-write-bps %s:1mb", "--device-read-iops %s:100", "--blkio-weight 300", "--blkio-weight-device %s:300"} {
		t.Run(flag, func(t *testing.T) {
			need(t)
			node := nodeOf(t, disk)
			if strings.Contains(flag, "%s") {
				flag = fmt.Sprintf(flag, node)
			}
			c := *d
			c.t = t
			c.Box = d.on(t)
			box := c.detached("agentbox", flag, "sleep 1000")
			r, _ := box.inspect(box.ID)
			if r == nil || r.Status != "RUNNING" {
				t.Errorf("it does not run: %+v", r)
			}
			if strings.HasPrefix(flag, "--device-write-bps") {
				want := "rbps=268435456 wbps=1048576 riops=max wiops=max"
				if box.about("{{len .HostConfig.BlkioDeviceWriteBps}}") == "0" { // Docker 26 loses its own flag here, with runc too
					want = "rbps=268435456 wbps=268435456 riops=max wiops=max"
				}
				if got := box.Cgroup.rates(disk); got != want {
					t.Errorf("the kernel limits %s to %q, want %q", disk, got, want)
				}
			}
		})
	}
}

// nodeOf is the node of a disk.
func nodeOf(t *testing.T, number string) string {
	t.Helper()
	target, err := os.Readlink("/sys/dev/block/" + number)
	if err != nil {
		t.Fatal(err)
	}
	return "/dev/" + filepath.Base(target)
}

// containerd's snapshots are limited in the same way.
func TestContainerdSnapshotIORateHolds(t *testing.T) {
	d := newDocker(t, ioLimit)
	if _, err := exec.LookPath("ctr"); err != nil {
		t.Fatalf("containerd comes with ctr: %v", err)
	}
	disk := d.dataDisk()
	ctr := func(args ...string) *exec.Cmd {
		return exec.Command("ctr", append([]string{"--address", d.file("containerd.sock"), "--namespace", token}, args...)...)
	}
	run := func(args ...string) {
		t.Helper()
		if out := execute(t, 60*time.Second, ctr(args...)); out.Code != 0 {
			t.Fatalf("ctr %q: %v", args, out)
		}
	}
	archive := filepath.Join(tempDir(t), "busybox.tar")
	d.do("save", "--output", archive, "busybox")
	run("images", "import", archive)
	const image = "docker.io/library/busybox:latest"
	t.Cleanup(func() { run("images", "remove", "--sync", image) })
	// ctr hands no arguments to a runtime.
	wrapper := filepath.Join(tempDir(t), "agentbox-io")
	script := fmt.Sprintf("#!/bin/sh\nexec %s --agentbox-config %s --agentbox-state %s \"$@\"\n", runtimePath(), d.config("agentbox-io"), d.state())
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	const amount = 100
	name := ""
	t.Cleanup(func() { // when the test ended early
		_ = ctr("tasks", "kill", "--signal", "KILL", name).Run()
		_ = ctr("containers", "delete", name).Run()
	})
	wantRate(t, "a snapshot", slowRate, 0.03, 0.03, func() float64 {
		name = d.newName()
		out := execute(t, 60*time.Second, ctr("run", "--rm", "--runtime", "io.containerd.runc.v2", "--runc-binary", wrapper,
			"--snapshotter", "overlayfs", "--cgroup", "/"+token+"/"+dockerCgroup+"/"+name,
			image, name, "sh", "-c", timed(fmt.Sprintf("dd if=/dev/zero of=/f bs=1M count=%d oflag=direct", amount))))
		return amount * mib / took(t, out.Stdout).Seconds()
	})
	var r *result.Result
	eventually(t, 60*time.Second, func() string {
		if r, _ = d.inspect(name); r == nil || r.FinishedAt == nil {
			return fmt.Sprintf("the container has no result: %+v", r)
		}
		return ""
	})
	if e := r.Enforcement["io_write_bps"]; e.Effective == nil || e.Effective.String() != "20971520" {
		t.Errorf("io_write_bps: %+v", e)
	}
	if places := reportedDisk(t, r, disk).Places; places[0] != "/" {
		t.Errorf("%s is behind %q", disk, places)
	}
}

// A privileged container is given every block device of the machine, drives
// without a medium and loop devices without a file among them. Each of them gets
// the limit, and none keeps the container from starting.
func TestDockerPrivilegedContainerIsLimitedOnEveryDisk(t *testing.T) {
	d := newDocker(t, ioLimit, allCaps)
	c := d.detached("agentbox-io", "--privileged", "sleep 1000")
	r, out := c.inspect(c.ID)
	if r == nil || r.Status != "RUNNING" {
		t.Fatalf("it does not run: %v", out)
	}
	sameRates(t, c.Cgroup, r)
	names, err := filepath.Glob("/sys/block/*/dev")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d disks: %v", len(names), err)
	}
	for _, name := range names {
		disk := strings.TrimSpace(readFile(t, name))
		if !exists("/dev/" + filepath.Base(filepath.Dir(name))) {
			continue // Docker hands on what has a node
		}
		if got, want := c.Cgroup.rates(disk), "rbps=20971520 wbps=20971520 riops=max wiops=max"; got != want {
			t.Errorf("the kernel limits %s (%s) to %q, want %q", name, disk, got, want)
		}
	}
}
