package procfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"
)

const statTail = " S 7 42 42 0 -1 4194560 1 0 0 0 150 50 3 4 20 0 5 0 12345 1 1"

func TestParseStat(t *testing.T) {
	right := Stat{
		State: 'S', Parent: 7, UTime: 1500 * time.Millisecond, STime: 500 * time.Millisecond,
		CUTime: 30 * time.Millisecond, CSTime: 40 * time.Millisecond, Threads: 5, StartTime: 12345,
	}
	zombie, late := right, right
	zombie.State = 'Z'
	late.StartTime = 18446744073709551615
	tests := []struct {
		name, stat string
		want       Stat // the zero value: an error
	}{
		{"plain", "42 (sh)" + statTail, right},
		{"spaces", "42 (tmux: server)" + statTail, right},
		{"brackets", "42 ((sd-pam))" + statTail, right},
		{"a forged tail", "42 (x) S 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 99 0)" + statTail, right},
		{"a newline", "42 (a\nb)" + statTail, right},
		{"nothing in the brackets", "42 ()" + statTail, right},
		{"a zombie", "42 (sh)" + strings.Replace(statTail, "S", "Z", 1), zombie},
		{"the largest", "42 (sh)" + strings.Replace(statTail, "12345", "18446744073709551615", 1), late},
		{"too large", "42 (sh)" + strings.Replace(statTail, "12345", "18446744073709551616", 1), Stat{}},
		{"empty", "", Stat{}},
		{"no bracket", "42 sh S 1", Stat{}},
		{"cut off", "42 (sh) S 1 42", Stat{}},
		{"not a number", "42 (sh)" + strings.Replace(statTail, "12345", "-5", 1), Stat{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat([]byte(tt.stat))
			if got != tt.want || (err != nil) != (tt.want == Stat{}) {
				t.Errorf("got %+v, %v", got, err)
			}
			if err != nil && !errors.Is(err, ErrFormat) {
				t.Errorf("an error of another kind: %v", err)
			}
		})
	}
}

func TestParseRollup(t *testing.T) {
	const head = "5566f4e5b000-7ffe9f694000 ---p 00000000 00:00 0                          [rollup]\n"
	tests := []struct {
		name, text string
		want       Rollup
		bad        bool
	}{
		{"Linux 6.18", head + "Rss: 9 kB\nPss:  8 kB\nPss_Dirty: 1 kB\nPss_Anon: 3 kB\nPss_File: 4 kB\nPss_Shmem: 1 kB\nAnonymous: 5 kB\nLazyFree: 2 kB\nSwap: 9 kB\nSwapPss: 6 kB\n", Rollup{Anon: 3 << 10, File: 4 << 10, Shmem: 1 << 10, Swap: 6 << 10, LazyFree: 2 << 10, Others: 5 << 10}, false},
		{"before the kinds: shared", head + "Pss: 8 kB\nAnonymous: 50 kB\nSwapPss: 6 kB\n", Rollup{Anon: 8 << 10, Swap: 6 << 10, Others: 36 << 10}, false},
		{"before the kinds: files", head + "Pss: 80 kB\nAnonymous: 5 kB\nSwapPss: 0 kB\n", Rollup{Anon: 5 << 10}, false},
		{"no number", head + "Pss: x kB\n", Rollup{}, true},
		{"another file", "Name: x\n", Rollup{}, true},
		{"empty", "", Rollup{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseRollup([]byte(tt.text))
			if got != tt.want || (err != nil) != tt.bad {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestParseIO(t *testing.T) {
	got, err := parseIO([]byte("rchar: 9\nwchar: 9\nsyscr: 9\nsyscw: 9\nread_bytes: 880640\nwrite_bytes: 28672\ncancelled_write_bytes: 5\n"))
	if want := (IO{Read: 880640, Written: 28672, Cancelled: 5}); got != want || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "read_bytes: 1\nwrite_bytes: 1\n", "read_bytes: -1\nwrite_bytes: 1\ncancelled_write_bytes: 1\n"} {
		if got, err := parseIO([]byte(bad)); err == nil || got != (IO{}) {
			t.Errorf("%q: %+v, %v", bad, got, err)
		}
	}
}

func TestParseMount(t *testing.T) {
	tests := []struct {
		name, line string
		dev        Dev
		fields     string // "": an error
	}{
		{"a tmpfs", "25 24 0:23 / /dev/shm rw,relatime shared:5 - tmpfs tmpfs rw,size=24684084k", 23, "/dev/shm tmpfs rw,size=24684084k"},
		{"no optional field", "25 24 8:1 / / rw - ext4 /dev/sda1 rw", MakeDev(8, 1), "/ ext4 rw"},
		{"a dash and an escape", `25 24 0:1048575 /- /a\040- rw master:1 - tmpfs - rw`, 1048575, `/a\040- tmpfs rw`},
		{"no source", "25 24 0:23 / / rw - tmpfs  rw", 23, ""},
		{"no type", "25 24 0:23 / /dev/shm rw,relatime", 23, ""},
		{"no device", "25 24 023 / /dev/shm rw - tmpfs tmpfs rw", 0, ""},
		{"empty", "", 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseMount([]byte(tt.line))
			if (err != nil) != (tt.fields == "") {
				t.Fatalf("got %+v, %v", got, err)
			}
			if s := string(got.Point) + " " + string(got.Type) + " " + string(got.Options); err == nil && (s != tt.fields || got.Dev != tt.dev) {
				t.Errorf("got %v %s", got.Dev, s)
			}
		})
	}
}

func TestParseMapping(t *testing.T) {
	got, ok := ParseMapping([]byte("7f0e5c000000-7f0e5c021000 rw-s 00000000 00:01 1033                       /memfd:a b (deleted)"))
	if !ok || got.Start != 0x7f0e5c000000 || got.End != 0x7f0e5c021000 || got.Dev != 1 || got.Ino != 1033 || string(got.Name) != "/memfd:a b (deleted)" {
		t.Errorf("got %+v, %v", got, ok)
	}
	got, ok = ParseMapping([]byte("00400000-00401000 r-xp 00000000 fd:0a 12 "))
	if !ok || got.Start != 0x400000 || got.Dev != MakeDev(0xfd, 10) || got.Ino != 12 || len(got.Name) != 0 {
		t.Errorf("got %+v, %v", got, ok)
	}
	for _, line := range []string{"", "Pss:  4 kB", "VmFlags: rd wr", "Rss-Pss: 1 0 0:0 0", "400000-401000 r-xp 0 fd:00"} {
		if got, ok := ParseMapping([]byte(line)); ok {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

func TestParseSmallThings(t *testing.T) {
	if n, err := parseLastPid([]byte("0.20 0.18 0.12 1/80 11206\n")); n != 11206 || err != nil {
		t.Errorf("last pid %d, %v", n, err)
	}
	if n, err := parseNamespace([]byte("pid:[4026531836]")); n != 4026531836 || err != nil {
		t.Errorf("namespace %d, %v", n, err)
	}
	if n, err := parseAnonymous([]byte("MemTotal: 9 kB\nSwapTotal: 5 kB\nSwapFree: 2 kB\nAnonPages: 10 kB\n")); n != 13<<10 || err != nil {
		t.Errorf("anonymous %d, %v", n, err)
	}
	if m, err := parseStatm([]byte("10 3 1 0 0 0 0\n")); m != (Statm{10 * pageSize, 3 * pageSize}) || err != nil {
		t.Errorf("statm %+v, %v", m, err)
	}
	for _, bad := range []string{"", "x", "1 2 3 4", "pid:[", "pid:]1[", "pid:[]", "AnonPages: x kB\n", "AnonPages: 1 kB\nSwapFree:\n", "99999999999999999999 1"} {
		_, err1 := parseLastPid([]byte(bad))
		_, err2 := parseNamespace([]byte(bad))
		_, err3 := parseAnonymous([]byte(bad))
		if err1 == nil || err2 == nil || err3 == nil {
			t.Errorf("%q: %v, %v, %v", bad, err1, err2, err3)
		}
	}
}

func TestAppendEntries(t *testing.T) {
	record := func(ino uint64, name string) []byte {
		b := binary.NativeEndian.AppendUint64(nil, ino)
		b = append(b, make([]byte, 8)...)
		size := (19 + len(name) + 1 + 7) / 8 * 8
		b = binary.NativeEndian.AppendUint16(b, uint16(size))
		b = append(append(b, 4), name...)
		return append(b, make([]byte, size-len(b))...)
	}
	data := bytes.Join([][]byte{record(1, "."), record(5, "42"), record(6, "self"), record(7, "4x"), record(8, "4194304")}, nil)
	got := appendEntries(nil, data)
	if len(got) != 2 || got[0] != (Entry{42, 5}) || got[1] != (Entry{4194304, 8}) {
		t.Errorf("got %v", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("42 (sh)" + statTail))
	f.Add([]byte("Pss: 8 kB\nPss_Anon: 3 kB\nread_bytes: 1\nwrite_bytes: 2\ncancelled_write_bytes: 3\n"))
	f.Add([]byte("25 24 0:23 / /dev/shm rw,relatime shared:5 - tmpfs tmpfs rw,size=24684084k"))
	f.Add([]byte("7f0e5c000000-7f0e5c021000 rw-s 00000000 00:01 1033   /memfd:x (deleted)"))
	f.Add([]byte("0.20 0.18 0.12 1/80 11206 [1]"))
	f.Add([]byte("RssAnon:\t 12 kB"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := parseStat(data); (err != nil && got != Stat{}) || got.UTime < 0 || got.CSTime < 0 || got.Threads < 0 || got.Parent < 0 {
			t.Errorf("stat: %+v with %v", got, err)
		}
		if got, err := parseStatm(data); (err != nil && got != Statm{}) || got.Size < 0 || got.Resident < 0 {
			t.Errorf("statm: %+v with %v", got, err)
		}
		if got, err := parseRollup(data); (err != nil && got != Rollup{}) || got.Anon < 0 || got.Swap < 0 {
			t.Errorf("rollup: %+v with %v", got, err)
		}
		if got, err := parseIO(data); (err != nil && got != IO{}) || got.Read < 0 || got.Written < 0 {
			t.Errorf("io: %+v with %v", got, err)
		}
		var m Memory
		if err := m.line(data); (err != nil && m != Memory{}) || m.Anon < 0 || m.Swap < 0 {
			t.Errorf("memory: %+v with %v", m, err)
		}
		if got, err := ParseMount(data); err != nil && got.Options != nil {
			t.Errorf("mount: %+v with %v", got, err)
		}
		if got, ok := ParseMapping(data); !ok && got.Ino != 0 {
			t.Errorf("mapping: %+v", got)
		}
		if n, _ := ParsePss(data); n < 0 {
			t.Errorf("pss: %d", n)
		}
		if n, err := parseLastPid(data); n < 0 || (err != nil && n != 0) {
			t.Errorf("last pid: %d with %v", n, err)
		}
		if n, err := parseAnonymous(data); n < 0 || (err != nil && n != 0) {
			t.Errorf("anonymous: %d with %v", n, err)
		}
		if n, err := parseNamespace(data); err != nil && n != 0 {
			t.Errorf("namespace: %d with %v", n, err)
		}
		appendEntries(nil, data)
	})
}
