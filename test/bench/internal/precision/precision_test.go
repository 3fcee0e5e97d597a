package precision

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/test/bench/internal/job"
	"github.com/agentbox/agentbox/test/bench/internal/sandbox"
)

func TestMet(t *testing.T) {
	base := Series{Unit: Bytes, Limit: 100, Kernel: []float64{98, 101, 150}, Clock: []float64{98, 101, 150}, Free: 1000, Tolerance: 0.1}
	with := func(change func(*Series)) Series {
		s := base
		change(&s)
		return s
	}
	tests := []struct {
		name   string
		series Series
		want   bool
	}{
		{"the median counts", base, true},
		{"at the edge", with(func(s *Series) { s.Kernel = []float64{110} }), true},
		{"above", with(func(s *Series) { s.Kernel = []float64{111} }), false},
		{"below", with(func(s *Series) { s.Kernel = []float64{89} }), false},
		{"nothing was measured", with(func(s *Series) { s.Kernel = nil }), false},
		{"no faster without the limit", with(func(s *Series) { s.Free = 105 }), false},
		{"bytes that nobody was charged for", with(func(s *Series) { s.Clock = []float64{500} }), false},
		{"the file system writes more than it is given", with(func(s *Series) { s.Clock = []float64{50} }), true},
		{"operations that were joined", with(func(s *Series) { s.Unit, s.Clock = Operations, []float64{116} }), true},
		{"CPU time has no count of the program", with(func(s *Series) { s.Unit, s.Clock = CPUs, nil }), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.series.Met(); got != tt.want {
				t.Errorf("met %v, want %v: ratio %v, program %v", got, tt.want, tt.series.Ratio(), tt.series.ClockRatio())
			}
		})
	}
	if got := base.Worst(); got != 1.5 {
		t.Errorf("the worst run is %v, want 1.5", got)
	}
}

// What the configuration does not know would be no limit.
func TestLimitsAreThoseOfTheConfiguration(t *testing.T) {
	want := map[string]map[limits.Key]limits.Value{
		"none": {limits.KeyIOReadBPS: limits.NoLimit(), limits.KeyIOWriteBPS: limits.NoLimit(), limits.KeyIOReadIOPS: limits.NoLimit(), limits.KeyIOWriteIOPS: limits.NoLimit()},
		"bytes": {
			limits.KeyIOReadBPS: limits.Limit(limitBPS), limits.KeyIOWriteBPS: limits.Limit(limitBPS),
			limits.KeyIOReadIOPS: limits.NoLimit(), limits.KeyIOWriteIOPS: limits.NoLimit(),
		},
		"operations": {
			limits.KeyIOReadBPS: limits.NoLimit(), limits.KeyIOWriteBPS: limits.NoLimit(),
			limits.KeyIOReadIOPS: limits.Limit(limitOps), limits.KeyIOWriteIOPS: limits.Limit(limitOps),
		},
	}
	for name, lines := range map[string][]string{"none": unlimited(), "bytes": limitedBytes(), "operations": limitedOperations()} {
		file, err := config.Parse("test", []byte("[limits]\n"+strings.Join(lines, "\n")+"\n"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for key, value := range want[name] {
			if got := file.Policy.Defaults[key]; got != value {
				t.Errorf("%s: %s is %+v, want %+v", name, key, got, value)
			}
		}
	}
}

func TestUses(t *testing.T) {
	seen := map[string]bool{}
	for _, uses := range allUses() {
		for _, u := range uses.list {
			if seen[u.what] {
				t.Errorf("two uses are called %q", u.what)
			}
			seen[u.what] = true
			j := u.lasting(2)
			if err := j.Check(); err != nil {
				t.Errorf("%s: %v", u.what, err)
			}
			total := float64(j.Bytes)
			if u.unit == Operations {
				total /= float64(j.Block)
			}
			if math.Abs(total/u.limit-2) > 0.06 {
				t.Errorf("%s takes %v s at its limit, want 2", u.what, total/u.limit)
			}
			if j.Kind == job.Read && j.Bytes > dataSize {
				t.Errorf("%s reads %d bytes of a file that has %d", u.what, j.Bytes, dataSize)
			}
			if u.lasting(1e-9).Bytes != j.Block {
				t.Errorf("%s does nothing in a short time", u.what)
			}
		}
	}
}

func TestRates(t *testing.T) {
	io := sandbox.IO{ReadBytes: 100, WriteBytes: 200, Reads: 30, Writes: 40}
	o := job.Outcome{Bytes: 1000, Calls: 10, Seconds: 2}
	tests := []struct {
		name          string
		use           use
		kernel, clock float64
	}{
		{"read bytes", use{unit: Bytes, job: job.Job{Kind: job.Read}}, 50, 500},
		{"write bytes", use{unit: Bytes, job: job.Job{Kind: job.Write}}, 100, 500},
		{"reads", use{unit: Operations, job: job.Job{Kind: job.Read}}, 15, 5},
		{"writes", use{unit: Operations, job: job.Job{Kind: job.Write}}, 20, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kernel, clock := tt.use.rates(io, o)
			if kernel != tt.kernel || clock != tt.clock {
				t.Errorf("%v by the kernel, %v by the clock; want %v, %v", kernel, clock, tt.kernel, tt.clock)
			}
		})
	}
}

func TestWholeDisk(t *testing.T) {
	root := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("devices/vda/dev", "254:0\n")
	write("devices/vda/vda1/dev", "259:7\n")
	write("devices/vda/vda1/partition", "1\n")
	write("block/keep", "")
	for number, device := range map[string]string{"254:0": "../devices/vda", "259:7": "../devices/vda/vda1"} {
		if err := os.Symlink(device, filepath.Join(root, "block", number)); err != nil {
			t.Fatal(err)
		}
	}
	for number, want := range map[string]string{"254:0": "254:0", "259:7": "254:0"} {
		if got, err := wholeDisk(filepath.Join(root, "block"), number); got != want || err != nil {
			t.Errorf("the disk of %s is %q, %v, want %s", number, got, err, want)
		}
	}
	if _, err := wholeDisk(filepath.Join(root, "block"), "0:42"); err == nil {
		t.Error("an anonymous number has a disk")
	}
}

func TestPlace(t *testing.T) {
	plain := Place{Folder: "/mnt"}
	if got := plain.inside(dataFile); got != "/mnt/data" {
		t.Errorf("the file is at %s", got)
	}
	if got := plain.want(nil); got.Work != "/mnt" || got.Root != "" {
		t.Errorf("a folder becomes %+v", got)
	}
	if got := (Place{Folder: "/mnt/files", Root: "/mnt"}).want(nil); got.Work != "" || got.Root != "/mnt" {
		t.Errorf("a root file system becomes %+v", got)
	}
}
