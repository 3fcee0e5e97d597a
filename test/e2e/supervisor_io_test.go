//go:build e2e

package e2e

import (
	"os"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
)

// What goes to a disk takes its time also where only the supervisor can see to
// that. Where it cannot, the report says so.
func TestSupervisorIO(t *testing.T) {
	hogs := []struct {
		name, command string
		bytes         int
		above, below  float64
	}{
		{name: "direct writes", command: "dd if=/dev/zero of=/data/direct bs=256K count=320 oflag=direct", bytes: 80 * mib, above: 0.08, below: 0.3},
		{name: "buffered writes and fsync", command: "dd if=/dev/zero of=/data/fsync bs=256K count=320 conv=fsync", bytes: 80 * mib, above: 0.08, below: 0.5},
		{name: "by two processes", command: "(dd if=/dev/zero of=/data/a bs=256K count=160 oflag=direct & dd if=/dev/zero of=/data/b bs=256K count=160 oflag=direct; wait)", bytes: 80 * mib, above: 0.08, below: 0.3},
	}
	eachGround(t, func(t *testing.T, g *ground) {
		for _, h := range few(g, hogs, 1) {
			t.Run(h.name, func(t *testing.T) {
				t.Parallel()
				dir := diskDir(t)
				if err := g.own(dir); err != nil {
					t.Fatal(err)
				}
				a := g.attack(t, slowIO, sh(timed(h.command)), withData(dir))
				out, r := a.ends()
				wantNoLimit(t, r)
				e := r.Enforcement["io_write_bps"]
				if e.Enforcer != limits.EnforcerSupervisor {
					t.Fatalf("the supervisor does not enforce it: %+v", e)
				}
				rate := float64(h.bytes) / took(t, out.Stdout).Seconds()
				t.Logf("%+.1f %% off the limit", 100*(rate/slowRate-1))
				if rate > slowRate*(1+h.above) {
					t.Errorf("%.1f MiB/s, the limit is %d", rate/mib, slowRate/mib)
				}
				if rate < slowRate*(1-h.below) {
					t.Errorf("only %.1f MiB/s, the limit is %d", rate/mib, slowRate/mib)
				}
			})
		}
		t.Run("control without a limit", func(t *testing.T) {
			dir := diskDir(t)
			if err := g.own(dir); err != nil {
				t.Fatal(err)
			}
			a := g.attack(t, freeIO, sh(timed(hogs[0].command)), withData(dir))
			out, _ := a.ends()
			if rate := float64(hogs[0].bytes) / took(t, out.Stdout).Seconds(); rate < 1.5*slowRate {
				t.Errorf("%.1f MiB/s without a limit, so that the limit proves nothing", rate/mib)
			}
		})
	})
}

// diskDir is a folder on a disk.
func diskDir(t *testing.T) string {
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
