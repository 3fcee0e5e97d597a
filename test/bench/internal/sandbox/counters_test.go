package sandbox

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseIOStat(t *testing.T) {
	tests := []struct {
		name, data string
		want       map[string]IO
		bad        bool
	}{
		{name: "empty", want: map[string]IO{}},
		{name: "recorded", data: string(fixture(t, "io.stat")), want: map[string]IO{
			"7:1": {}, "7:0": {},
			"98:64": {ReadBytes: 1188864, WriteBytes: 76529664, Reads: 160, Writes: 675},
			"98:0":  {ReadBytes: 77824, Reads: 3},
		}},
		{name: "lines that do not end", data: "7:1 7:0 8:0 rbytes=1 wbytes=2 rios=3 wios=4\n", want: map[string]IO{
			"8:0": {ReadBytes: 1, WriteBytes: 2, Reads: 3, Writes: 4},
		}},
		{name: "iocost has more words", data: "8:0 rbytes=1 wbytes=0 rios=1 wios=0 cost.vrate=100.00 cost.usage=7\n", want: map[string]IO{
			"8:0": {ReadBytes: 1, Reads: 1},
		}},
		{name: "not a number", data: "8:0 rbytes=x\n", bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseIOStat([]byte(tt.data))
			if (err != nil) != tt.bad || err == nil && !maps.Equal(got, tt.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestParseServiced(t *testing.T) {
	got, err := parseServiced(fixture(t, "blkio.throttle.io_service_bytes"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got["254:0"]["Read"] != 1169281024 || got["254:0"]["Write"] != 3864289280 || got["7:0"]["Write"] != 93733888 {
		t.Errorf("got %v", got)
	}
	if _, err := parseServiced([]byte("8:0 Read x\n")); err == nil {
		t.Error("a count that is not a number is no error")
	}
}

func TestParseNumber(t *testing.T) {
	tests := []struct {
		name, data, field string
		want              int64
		bad               bool
	}{
		{name: "a field of cpu.stat", data: string(fixture(t, "cpu.stat")), field: "usage_usec", want: 50000},
		{name: "cpuacct.usage", data: "123456789\n", want: 123456789},
		{name: "no such field", data: string(fixture(t, "cpu.stat")), field: "usage", bad: true},
		{name: "empty", bad: true},
		{name: "not a number", data: "usage_usec -\n", field: "usage_usec", bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseNumber([]byte(tt.data), tt.field)
			if (err != nil) != tt.bad || got != tt.want {
				t.Errorf("got %d, %v, want %d", got, err, tt.want)
			}
		})
	}
}

// No kernel file may bring down a run of ten minutes.
func FuzzCounters(f *testing.F) {
	f.Add(fixture(f, "io.stat"), "usage_usec")
	f.Add(fixture(f, "cpu.stat"), "usage_usec")
	f.Add(fixture(f, "blkio.throttle.io_service_bytes"), "")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		all, err := parseIOStat(data)
		for disk := range all {
			if err == nil && !strings.Contains(string(data), disk) {
				t.Errorf("disk %q is not in %q", disk, data)
			}
		}
		if _, err := parseServiced(data); err != nil && !strings.Contains(err.Error(), "parsing") {
			t.Errorf("another error than that of a number: %v", err)
		}
		if _, err := parseNumber(data, name); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
	})
}

func TestSub(t *testing.T) {
	got := IO{ReadBytes: 10, WriteBytes: 20, Reads: 3, Writes: 4}.Sub(IO{ReadBytes: 1, WriteBytes: 2, Reads: 1, Writes: 1})
	if want := (IO{ReadBytes: 9, WriteBytes: 18, Reads: 2, Writes: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWaitEnded(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	write := func(pid string) {
		if err := os.WriteFile(pidFile, []byte(pid), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	if err := WaitEnded(pidFile, time.Millisecond); err == nil {
		t.Error("process 1 has ended")
	}
	write("4194305") // above any pid: PID_MAX_LIMIT is 4194304
	if err := WaitEnded(pidFile, time.Second); err != nil {
		t.Error(err)
	}
}
