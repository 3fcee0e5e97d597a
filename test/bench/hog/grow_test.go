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
			before := resident(t)
			o, err := do(j)
			if err != nil || o.Bytes != n*block {
				t.Fatalf("%+v, %v", o, err)
			}
			// Some pages may not have been counted yet.
			if after := resident(t); after-before < n*block-block {
				t.Errorf("it grew from %d to %d bytes", before, after)
			}
			data, err := os.ReadFile(j.File)
			if err != nil {
				t.Fatal(err)
			}
			steps, err := job.ParseTrace(data)
			if err != nil || len(steps) != n {
				t.Fatalf("%d steps, %v", len(steps), err)
			}
			if took := steps[n-1] - steps[n/2-1]; j.Rate > 0 && (took < 80*time.Millisecond || took > 5*time.Second) {
				t.Errorf("at that rate it took %v, want 0.1 s", took)
			}
		})
	}
}

// resident is the memory of this process, in bytes (proc_pid_statm(5)).
func resident(t *testing.T) int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
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
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			t.Error(err)
		}
	}
}
