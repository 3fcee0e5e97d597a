package cgroup

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
	"github.com/agentbox/agentbox/pkg/limits"
)

var (
	vda = limits.Device{Major: 254}
	sdb = limits.Device{Major: 8, Minor: 16}
)

// rates are those of one disk in the order of limits.IOKeys.
func rates(readBPS, writeBPS, readIOPS, writeIOPS Effective) Rates {
	return Rates{
		limits.KeyIOReadBPS: readBPS, limits.KeyIOWriteBPS: writeBPS,
		limits.KeyIOReadIOPS: readIOPS, limits.KeyIOWriteIOPS: writeIOPS,
	}
}

func TestEffectiveIO(t *testing.T) {
	const (
		scope = scopeV2 + "/"
		slice = "sys/fs/cgroup/system.slice/"
		blkio = "sys/fs/cgroup/blkio/"
		own   = blkio + dirV1 + "/"
	)
	self := func(n int64) Effective { return Effective{Value: limits.Limit(n), Owner: Self, Mechanism: "io.max"} }
	// above is set on the slice; below it, the cgroup may have a looser one.
	above := func(n int64) Effective {
		return Effective{Value: limits.Limit(n), Owner: "/" + slice[:len(slice)-1], Above: true, Mechanism: "io.max"}
	}
	both := func(n int64) Effective { // the cgroup's own is the tighter
		e := self(n)
		e.Above = true
		return e
	}
	none := Effective{Value: limits.NoLimit(), Mechanism: "io.max"}
	v1 := func(v limits.Value, owner, file string) Effective {
		return Effective{Value: v, Owner: owner, Mechanism: "blkio.throttle." + file + "_device"}
	}
	noneV1 := func(file string) Effective { return v1(limits.NoLimit(), "", file) }
	type files map[string]string // content; "-" removes the file
	for _, c := range []struct {
		name, tree string
		files      files
		disk       limits.Device
		want       Rates
	}{
		{"as recorded", "v2", nil, vda, rates(both(256<<20), self(256<<20), none, none)},
		{"a disk without a line", "v2", nil, sdb, rates(none, none, none, none)},
		{
			"every key", "v2",
			files{scope + "io.max": "254:0 rbps=1 wbps=2 riops=3 wiops=4\n", slice + "io.max": ""},
			vda, rates(self(1), self(2), self(3), self(4)),
		},
		{
			"the slice is tighter", "v2",
			files{slice + "io.max": "254:0 rbps=1048576 wbps=max riops=100 wiops=max\n"},
			vda, rates(above(1<<20), self(256<<20), above(100), none),
		},
		{
			"the slice is looser", "v2",
			files{slice + "io.max": "254:0 rbps=max wbps=268435457 riops=max wiops=max\n"},
			vda, rates(self(256<<20), both(256<<20), none, none),
		},
		{
			"the nearest among equals", "v2",
			files{slice + "io.max": "254:0 rbps=268435456 wbps=max riops=max wiops=max\n"},
			vda, rates(both(256<<20), self(256<<20), none, none),
		},
		{
			"several disks", "v2",
			files{scope + "io.max": "8:16 rbps=5 wbps=max riops=max wiops=max\n254:0 rbps=max wbps=max riops=max wiops=7\n", slice + "io.max": ""},
			sdb, rates(self(5), none, none, none),
		},
		{
			"only the slice has the file", "v2",
			files{scope + "io.max": "-"},
			vda, rates(above(1<<30), none, none, none),
		},
		{"no file anywhere", "v2", files{scope + "io.max": "-", slice + "io.max": "-", "sys/fs/cgroup/init.scope/io.max": "-"}, vda, Rates{}},

		{
			"v1", "v1", nil, vda,
			rates(v1(limits.Limit(256<<20), Self, "read_bps"), v1(limits.Limit(256<<20), Self, "write_bps"), noneV1("read_iops"), noneV1("write_iops")),
		},
		{
			"hybrid", "hybrid",
			files{own + "blkio.throttle.write_iops_device": "8:0 1\n254:0 120\n"},
			vda,
			rates(v1(limits.Limit(256<<20), Self, "read_bps"), v1(limits.Limit(256<<20), Self, "write_bps"), noneV1("read_iops"), v1(limits.Limit(120), Self, "write_iops")),
		},
		{
			"v1 a tighter parent does not count", "v1",
			files{blkio + "docker/blkio.throttle.read_bps_device": "254:0 1\n"},
			vda,
			rates(v1(limits.Limit(256<<20), Self, "read_bps"), v1(limits.Limit(256<<20), Self, "write_bps"), noneV1("read_iops"), noneV1("write_iops")),
		},
		{
			"v1 a file is missing", "v1",
			files{own + "blkio.throttle.read_bps_device": "-", own + "blkio.throttle.read_iops_device": "-"},
			sdb,
			Rates{limits.KeyIOWriteBPS: noneV1("write_bps"), limits.KeyIOWriteIOPS: noneV1("write_iops")},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := tree(t, c.tree)
			cg := of(t, f)
			for path, content := range c.files {
				if content == "-" {
					cgrouptest.Remove(t, string(f), path)
					continue
				}
				cgrouptest.Write(t, string(f), path, content)
			}
			// What else is asked for changes nothing.
			for _, disks := range [][]limits.Device{{c.disk}, {vda, sdb, {Major: 1}}} {
				got, err := cg.EffectiveIO(disks)
				if err != nil || len(got) != len(disks) {
					t.Fatalf("%d disks, %v", len(got), err)
				}
				if !reflect.DeepEqual(got[c.disk], c.want) {
					t.Errorf("got %+v\nwant %+v", got[c.disk], c.want)
				}
			}
		})
	}
}

// On v1 the controller may be mounted nowhere.
func TestEffectiveIONotMounted(t *testing.T) {
	c, err := Open(Host, Paths{Version: 1, Places: map[string]Place{}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.EffectiveIO([]limits.Device{vda}); err != nil || len(got) != 1 || len(got[vda]) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// What is not understood is an error that names the file, and then nothing is
// told: what was read below may be looser than what holds.
func TestEffectiveIOGarbage(t *testing.T) {
	for _, c := range []struct{ tree, file, content string }{
		{"v2", scopeV2 + "/io.max", "254:0 rbps=-1\n"},
		{"v2", "sys/fs/cgroup/system.slice/io.max", "sda rbps=1\n"},
		{"v1", "sys/fs/cgroup/blkio/" + dirV1 + "/blkio.throttle.write_iops_device", "254:0 max\n"},
	} {
		f := tree(t, c.tree)
		cg := of(t, f)
		cgrouptest.Write(t, string(f), c.file, c.content)
		got, err := cg.EffectiveIO([]limits.Device{vda})
		if err == nil || !strings.Contains(err.Error(), "/"+c.file) || got != nil {
			t.Errorf("%s = %q: %+v, %v", c.file, c.content, got, err)
		}
	}
}

func TestThrottleFileV1(t *testing.T) {
	for _, key := range limits.IOKeys {
		// "io_read_bps" is in "blkio.throttle.read_bps_device".
		if word := strings.TrimPrefix(string(key), "io_"); ThrottleFileV1(key) != "blkio.throttle."+word+"_device" {
			t.Errorf("%s: %s", key, ThrottleFileV1(key))
		}
	}
}

func TestParseIOMax(t *testing.T) {
	type lines map[limits.Device]limits.Set
	set := func(readBPS, writeBPS, readIOPS, writeIOPS int64) limits.Set {
		s := limits.Set{}
		for i, n := range []int64{readBPS, writeBPS, readIOPS, writeIOPS} {
			s[limits.IOKeys[i]] = limits.Limit(n)
			if n < 0 {
				s[limits.IOKeys[i]] = limits.NoLimit()
			}
		}
		return s
	}
	for _, c := range []struct {
		name, text string
		want       lines
	}{
		{"nothing", "", lines{}},
		{"an empty line", "\n", lines{}},
		{"one disk", "8:16 rbps=2097152 wbps=max riops=max wiops=120\n", lines{sdb: set(2097152, -1, -1, 120)}},
		{"several", "8:16 rbps=1 wbps=2 riops=3 wiops=4\n254:0 rbps=5 wbps=6 riops=7 wiops=8\n", lines{sdb: set(1, 2, 3, 4), vda: set(5, 6, 7, 8)}},
		{"no newline at the end", "254:0 rbps=1 wbps=2 riops=3 wiops=4", lines{vda: set(1, 2, 3, 4)}},
		{"words of other kernels", "254:0 rbps=1 latency=x idle wiops=4 \n", lines{vda: {limits.KeyIOReadBPS: limits.Limit(1), limits.KeyIOWriteIOPS: limits.Limit(4)}}},
		{"no words", "254:0\n", lines{vda: {}}},
		{"a disk that was unplugged", "(unknown) rbps=1 wbps=max riops=max wiops=max\n254:0 rbps=1 wbps=2 riops=3 wiops=4\n", lines{vda: set(1, 2, 3, 4)}},
		{"the largest number", "1048575:4294967295 wiops=9223372036854775807\n", lines{{Major: 1048575, Minor: 4294967295}: {limits.KeyIOWriteIOPS: limits.Limit(1<<63 - 1)}}},
		{"a name", "sda rbps=1\n", nil},
		{"no number", "8 rbps=1\n", nil},
		{"negative", "8:0 rbps=-1\n", nil},
		{"no value", "8:0 rbps\n", nil},
		{"an empty value", "8:0 rbps=\n", nil},
		{"a word", "8:0 rbps=maximum\n", nil},
		{"too large", "8:0 rbps=9223372036854775808\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseIOMax([]byte(c.text))
			if (err == nil) != (c.want != nil) || err == nil && !reflect.DeepEqual(lines(got), c.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func TestParseThrottleV1(t *testing.T) {
	type lines map[limits.Device]limits.Value
	for _, c := range []struct {
		name, text string
		want       lines
	}{
		{"nothing", "", lines{}},
		{"one disk", "8:16 1048576\n", lines{sdb: limits.Limit(1 << 20)}},
		{"several", "8:16 1\n254:0 2\n", lines{sdb: limits.Limit(1), vda: limits.Limit(2)}},
		{"a tab", "8:16\t1048576\n", lines{sdb: limits.Limit(1 << 20)}},
		{"no newline at the end", "254:0 3", lines{vda: limits.Limit(3)}},
		{"a disk that was unplugged", "(unknown) 5\n254:0 3\n", lines{vda: limits.Limit(3)}},
		{"a name", "sda 1\n", nil},
		{"no rate", "8:0\n", nil},
		{"two rates", "8:0 1 2\n", nil},
		{"max", "8:0 max\n", nil},
		{"negative", "8:0 -1\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseThrottleV1([]byte(c.text))
			if (err == nil) != (c.want != nil) || err == nil && !reflect.DeepEqual(lines(got), c.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func FuzzParseIOMax(f *testing.F) {
	f.Add([]byte("8:16 rbps=2097152 wbps=max riops=max wiops=120\n254:0 rbps=max wbps=1 riops=2 wiops=3\n"))
	f.Add([]byte("(unknown) rbps=1\n"))
	f.Add([]byte("8:0 idle=100 rbps=\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parseIOMax(data)
		if err != nil && all != nil {
			t.Error("an error and rates")
		}
		// What it writes again in the kernel's form is read as the same.
		var text strings.Builder
		for disk, set := range all {
			fmt.Fprint(&text, disk)
			for word, key := range ioWords {
				if v, given := set[key]; given && v.None {
					fmt.Fprintf(&text, " %s=max", word)
				} else if given {
					fmt.Fprintf(&text, " %s=%d", word, v.N)
				}
			}
			text.WriteString("\n")
		}
		if again, err := parseIOMax([]byte(text.String())); err != nil || !maps.EqualFunc(all, again, maps.Equal) {
			t.Errorf("%q: %v, then %v", data, all, again)
		}
	})
}

func FuzzParseThrottleV1(f *testing.F) {
	f.Add([]byte("8:16 1048576\n254:0 7\n"))
	f.Add([]byte("(unknown) 1\n8:0\t1"))
	f.Add([]byte("8:0 18446744073709551615\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parseThrottleV1(data)
		if err != nil && all != nil {
			t.Error("an error and rates")
		}
		// What it writes again in the kernel's form is read as the same.
		var text strings.Builder
		for disk, v := range all {
			if v.None || v.N < 0 {
				t.Errorf("%q: %s %+v", data, disk, v)
			}
			fmt.Fprintf(&text, "%s %d\n", disk, v.N)
		}
		if again, err := parseThrottleV1([]byte(text.String())); err != nil || !maps.Equal(all, again) {
			t.Errorf("%q: %v, then %v", data, all, again)
		}
	})
}
