package job

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	tests := []struct {
		name    string
		job     Job
		problem string // part of the message, empty if there is none
	}{
		{"spin", Job{Kind: Spin, Threads: 4, Seconds: 1}, ""},
		{"spin for ever", Job{Kind: Spin, Threads: 4}, "no job"},
		{"spin in no thread", Job{Kind: Spin, Seconds: 1}, "no job"},
		{"write some bytes", Job{Kind: Write, Block: 1, Bytes: 1}, ""},
		{"read for a time", Job{Kind: Read, Block: 1, Seconds: 1}, ""},
		{"nothing", Job{}, "no job"},
		{"children", Job{Kind: Fork, Processes: 1}, ""},
		{"no children", Job{Kind: Fork}, "no job"},
		{"grow", Job{Kind: Grow, Threads: 1, Block: 2, Bytes: 4}, ""},
		{"grow in no thread", Job{Kind: Grow, Block: 2, Bytes: 4}, "no growth"},
		{"grow by half a step", Job{Kind: Grow, Threads: 1, Block: 2, Bytes: 5}, "no growth"},
		{"grow below zero", Job{Kind: Grow, Threads: 1, Block: 2, Bytes: 4, Rate: -1}, "no growth"},
		{"no block", Job{Kind: Read, Bytes: 1}, "out of range"},
		{"negative", Job{Kind: Read, Block: 1, Bytes: 1, Pause: -1}, "out of range"},
		{"block above the file", Job{Kind: Read, Block: 2, Bytes: 2, Size: 1}, "do not fit"},
		{"no end", Job{Kind: Read, Block: 1}, "no end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.job.Check()
			if tt.problem == "" && err != nil || tt.problem != "" && (err == nil || !strings.Contains(err.Error(), tt.problem)) {
				t.Errorf("error %v, want %q", err, tt.problem)
			}
		})
	}
}

func TestPosition(t *testing.T) {
	tests := []struct {
		name string
		job  Job
		want []int64
	}{
		{"a file that grows", Job{Block: 10}, []int64{0, 10, 20, 30}},
		{"a file that is used again", Job{Block: 10, Size: 20}, []int64{0, 10, 0, 10}},
		{"a rest is left out", Job{Block: 10, Size: 29}, []int64{0, 10, 0, 10}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i, want := range tt.want {
				if got := tt.job.Position(int64(i)); got != want {
					t.Errorf("call %d is at %d, want %d", i, got, want)
				}
			}
		})
	}
}

func TestJobsAreServedInTurn(t *testing.T) {
	jobs, toProgram := io.Pipe()
	fromProgram, outcomes := io.Pipe()
	end := make(chan error, 1)
	go func() {
		end <- Serve(jobs, outcomes, func(j Job) (Outcome, error) {
			if j.File == "bad" {
				return Outcome{}, errors.New("no such file")
			}
			return Outcome{Bytes: j.Bytes, Commits: []float64{0.5}}, nil
		})
	}()
	c := NewClient(toProgram, fromProgram)
	for _, n := range []int64{1, 2} {
		o, err := c.Do(Job{Kind: Write, Block: 1, Bytes: n})
		if err != nil || o.Bytes != n || len(o.Commits) != 1 {
			t.Errorf("job of %d bytes: %+v, %v", n, o, err)
		}
	}
	if _, err := c.Do(Job{Kind: Read, Block: 1, Bytes: 1, File: "bad"}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v, want that of the program", err)
	}
	if _, err := c.Do(Job{Kind: Read}); err == nil {
		t.Error("a job that cannot be done was given")
	}
	toProgram.Close()
	if err := <-end; err != nil {
		t.Error(err)
	}
	fromProgram.CloseWithError(io.ErrClosedPipe)
	if _, err := c.Do(Job{Kind: Read, Block: 1, Bytes: 1}); err == nil {
		t.Error("a program that is gone did a job")
	}
}

// FuzzServe feeds what no client writes: the program must end or answer, and do
// only what it was told.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"kind":"spin","threads":1,"seconds":1}`))
	f.Add([]byte(`{"kind":"write","block":4096,"bytes":4096}{"kind":"read"}`))
	f.Add([]byte(`[1`))
	f.Fuzz(func(t *testing.T, data []byte) {
		done := 0
		var out strings.Builder
		err := Serve(strings.NewReader(string(data)), &out, func(Job) (Outcome, error) { done++; return Outcome{}, nil })
		if lines := strings.Count(out.String(), "\n"); lines != done {
			t.Errorf("%d jobs, %d outcomes, %v", done, lines, err)
		}
	})
}
