package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/test/bench/internal/job"
)

func TestTransfer(t *testing.T) {
	tests := []struct {
		name    string
		job     job.Job
		exists  int // size of the file before, in bytes
		calls   int64
		commits int
		size    int64 // of the file after
		problem string
	}{
		{name: "write", job: job.Job{Kind: job.Write, Block: 512, Bytes: 2048}, calls: 4, size: 2048},
		{name: "write in place", job: job.Job{Kind: job.Write, Block: 512, Bytes: 2048, Size: 1024}, calls: 4, size: 1024},
		{name: "fsync at the end", job: job.Job{Kind: job.Write, Block: 512, Bytes: 2048, Fsync: 1 << 40}, calls: 4, commits: 1, size: 2048},
		{name: "fsync of two calls, and of the rest", job: job.Job{Kind: job.Write, Block: 512, Bytes: 2560, Fsync: 1024}, calls: 5, commits: 3, size: 2560},
		{name: "read", job: job.Job{Kind: job.Read, Block: 512, Bytes: 2048}, exists: 2048, calls: 4, size: 2048},
		{name: "read again", job: job.Job{Kind: job.Read, Block: 512, Bytes: 2048, Size: 1024}, exists: 1024, calls: 4, size: 1024},
		{name: "a file that is too short", job: job.Job{Kind: job.Read, Block: 512, Bytes: 2048}, exists: 700, problem: "ends after 700 bytes"},
		{name: "a file that is not there", job: job.Job{Kind: job.Read, Block: 512, Bytes: 2048}, problem: "no such file"},
		{name: "no block", job: job.Job{Kind: job.Read, Bytes: 2048}, problem: "out of range"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.job.File = filepath.Join(t.TempDir(), "file")
			if tt.exists > 0 {
				if err := os.WriteFile(tt.job.File, make([]byte, tt.exists), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			o, err := do(tt.job)
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Fatalf("error %v, want %q", err, tt.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if o.Calls != tt.calls || o.Bytes != tt.job.Bytes || len(o.Commits) != tt.commits || o.Seconds <= 0 {
				t.Errorf("got %+v", o)
			}
			info, err := os.Stat(tt.job.File)
			if err != nil || info.Size() != tt.size {
				t.Errorf("the file has %v, want %d bytes", info, tt.size)
			}
		})
	}
}

func TestWhatIsWrittenIsNoHole(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if _, err := do(job.Job{Kind: job.Write, File: name, Block: 512, Bytes: 512}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(data), "\x00") > 2 {
		t.Errorf("zeros were written: %q", data)
	}
}

func TestJobsOfATimeTakeIt(t *testing.T) {
	const long = 30 * time.Millisecond
	for _, j := range []job.Job{
		{Kind: job.Spin, Threads: 2, Seconds: long.Seconds()},
		{Kind: job.Write, File: filepath.Join(t.TempDir(), "file"), Block: 512, Size: 512, Pause: 0.001, Seconds: long.Seconds()},
	} {
		o, err := do(j)
		if err != nil || o.Seconds < long.Seconds() || o.Seconds > 100*long.Seconds() {
			t.Errorf("%s: %+v, %v", j.Kind, o, err)
		}
	}
}
