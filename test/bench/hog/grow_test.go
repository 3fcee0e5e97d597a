package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/job"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == waitArg {
		main()
	}
	os.Exit(m.Run())
}

func TestGrow(t *testing.T) {
	const block, n = 1 << 20, 40
	for name, j := range map[string]job.Job{
		"as fast as it goes": {Threads: 2},
		"huge pages":         {Threads: 1, Huge: true},
		"at a rate":          {Threads: 2, Rate: 200 * block, First: 20 * block}, // 0.1 s
	} {
		t.Run(name, func(t *testing.T) {
			j.Kind, j.Block, j.Bytes, j.File = job.Grow, block, n*block, filepath.Join(t.TempDir(), "trace")
			before, err := anonymous()
			if err != nil {
				t.Fatal(err)
			}
			o, err := do(j)
			if err != nil || o.Bytes != n*block {
				t.Fatalf("%+v, %v", o, err)
			}
			if after, err := anonymous(); err != nil || after-before < n*block {
				t.Errorf("it grew from %d to %d bytes, %v", before, after, err)
			}
			data, err := os.ReadFile(j.File)
			if err != nil {
				t.Fatal(err)
			}
			trace, err := job.ParseTrace(data)
			if err != nil || len(trace.Steps) != n || trace.Before < before/2 {
				t.Errorf("%d steps, %d bytes before, %v", len(trace.Steps), trace.Before, err)
			}
			if took := trace.Steps[n-1] - trace.Steps[0]; j.Rate > 0 && (took < 80*time.Millisecond || took > 5*time.Second) {
				t.Errorf("at that rate it took %v, want 0.1 s", took)
			}
		})
	}
}

func TestChildrenWait(t *testing.T) {
	children := func() (all []string) {
		files, err := filepath.Glob("/proc/self/task/*/children")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, strings.Fields(string(data))...)
		}
		return all
	}
	if _, err := do(job.Job{Kind: job.Fork, Processes: 2}); err != nil {
		t.Fatal(err)
	}
	all := children()
	if len(all) != 2 {
		t.Errorf("children %q", all)
	}
	for _, child := range all {
		pid, err := strconv.Atoi(child)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}
