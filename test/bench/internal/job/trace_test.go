package job

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"
)

func TestParseTrace(t *testing.T) {
	j := Job{Kind: Grow, Threads: 2, Block: 10, Bytes: 50}
	data := make([]byte, j.TraceSize())
	for i, n := range []uint64{300, 0, 200, 400} { // the second step was not done, nor the last one
		binary.NativeEndian.PutUint64(data[8*i:], n)
	}
	got, err := ParseTrace(data)
	if err != nil || !slices.Equal(got, []time.Duration{200, 300, 400}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, size := range []int{7, 9} {
		if _, err := ParseTrace(make([]byte, size)); err == nil {
			t.Errorf("a trace of %d bytes is one", size)
		}
	}
}

func FuzzParseTrace(f *testing.F) {
	f.Add(make([]byte, 24))
	f.Fuzz(func(t *testing.T, data []byte) {
		steps, err := ParseTrace(data)
		if err == nil && (len(steps) > len(data)/8 || !slices.IsSorted(steps)) {
			t.Errorf("%d bytes have the steps %v", len(data), steps)
		}
	})
}
