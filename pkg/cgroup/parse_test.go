package cgroup

import (
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
)

func TestBandwidthValue(t *testing.T) {
	for b, want := range map[bandwidth]limits.Value{
		{-1, 100000}:             limits.NoLimit(),
		{150000, 100000}:         limits.Limit(1_500_000),
		{1000, 1000000}:          limits.Limit(1000),
		{1, 3}:                   limits.Limit(333_333),
		{2, 3}:                   limits.Limit(666_667),
		{1 << 44, 100000}:        limits.Limit(175_921_860_444_160),
		{math.MaxInt64, 1}:       limits.Limit(math.MaxInt64),
		{math.MaxInt64, 1000000}: limits.Limit(math.MaxInt64),
	} {
		if got := b.value(); got != want {
			t.Errorf("%+v: %+v, want %+v", b, got, want)
		}
	}
}

func TestParseMounts(t *testing.T) {
	const data = `27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 23 0:26 / /sys/fs/cgroup rw shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate
31 23 0:27 /a\040b /mnt/x\134y rw - cgroup cgroup rw,cpu,cpuacct
32 23 0:28 / /mnt/cgroupfs rw - cgroupsomething x rw
`
	want := []Mount{
		{V2: true, Point: "/sys/fs/cgroup", Root: "/", Options: "rw,nsdelegate"},
		{Point: `/mnt/x\y`, Root: "/a b", Options: "rw,cpu,cpuacct"},
	}
	got, err := ParseMounts([]byte(data))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if !got[1].Has("cpuacct") || got[1].Has("cp") || got[0].Has("nsdelegate") {
		t.Error("Has")
	}
	for _, bad := range []string{"x\n", " - cgroup\n", "1 2 0:1 / /x rw - cgroup\n", "1 2 0:1 a /x rw - cgroup cgroup rw\n", "1 2 - cgroup2 cgroup2 rw\n"} {
		if _, err := ParseMounts([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestFindMount(t *testing.T) {
	mounts := []Mount{
		{Point: "/mnt/memory", Options: "rw,memory"},
		{Point: "/sys/fs/cgroup/memory", Options: "rw,memory"},
		{Point: "/mnt/pids", Options: "rw,pids"},
	}
	for controller, want := range map[string]string{"memory": "/sys/fs/cgroup/memory", "pids": "/mnt/pids", "cpu": ""} {
		if m, ok := FindMount(mounts, controller); m.Point != want || ok != (want != "") {
			t.Errorf("%s: %q", controller, m.Point)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		root, cgroup, want string
		ok                 bool
	}{
		{"/", "/", "/", true},
		{"/", "/a/b", "/a/b", true},
		{"/a", "/a", "/", true},
		{"/a", "/a/b", "/b", true},
		{"/a", "/ab", "", false},
		{"/a", "/", "", false},
		{"/", "/../x", "", false},
		{"/..", "/../x", "/x", true},
		{"/..", "/../../x", "", false},
		{"/../..", "/../x", "", false},
		{"/..", "/", "", false},
	} {
		if got, ok := (Mount{Root: c.root}).Below(c.cgroup); got != c.want || ok != c.ok {
			t.Errorf("%s of %s: %q, %v", c.cgroup, c.root, got, ok)
		}
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add([]byte("30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"), "/a")
	f.Add([]byte("31 23 0:27 /a\\040b /mnt/x\\134y rw - cgroup cgroup rw,cpu,cpuacct\n"), "/a b/c")
	f.Add([]byte("31 23 0:27 /.. /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"), "/../x")
	f.Fuzz(func(t *testing.T, data []byte, cgroup string) {
		mounts, err := ParseMounts(data)
		if err != nil && mounts != nil {
			t.Error("an error and mounts")
		}
		FindMount(mounts, "memory")
		for _, m := range mounts {
			below, ok := m.Below(cgroup)
			if ok && !cleanPath(below) {
				t.Errorf("%q leaves the mount", below)
			}
		}
	})
}

func FuzzParseMembership(f *testing.F) {
	f.Add([]byte("0::/user.slice/session-1.scope\n"))
	f.Add([]byte("11:cpu,cpuacct:/docker/ab\n1:name=systemd:/\n0::/../x (deleted)\n"))
	f.Add([]byte("1:name=a:b:/c:d"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := ParseMembership(data)
		if (err == nil) != (len(list) > 0) {
			t.Errorf("%d lines, %v", len(list), err)
		}
		for _, m := range list {
			if !strings.HasPrefix(m.Path, "/") {
				t.Errorf("path %q", m.Path)
			}
		}
	})
}

func FuzzParseLimit(f *testing.F) {
	for _, seed := range []string{"max\n", "0\n", "536870912\n", "9223372036854771712\n", "-1\n", "200000 100000\n", "max 100000\n", "9223372036854775807 1\n", "9223372036854775808\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text := strings.TrimSuffix(string(data), "\n")
		if v, err := parseMax(data); err == nil && !v.None {
			// Go's own parser takes what ours takes, with the same result.
			if n, err := strconv.ParseInt(text, 10, 64); err != nil || n != v.N || n < 0 {
				t.Errorf("%q: %d, %v", data, v.N, err)
			}
		}
		if v, err := parseBytesV1(data); err == nil && v.N < 0 {
			t.Errorf("%q: %+v", data, v)
		}
		if n, err := parseQuotaV1(data); err == nil && n < -1 {
			t.Errorf("%q: %d", data, n)
		}
		if b, err := parseCPUMax(data); err == nil {
			if v := b.value(); b.period <= 0 || v.N < 0 || v.None != (b.quota < 0) {
				t.Errorf("%q: %+v, %+v", data, b, v)
			}
		}
	})
}

func FuzzParseFlat(f *testing.F) {
	f.Add([]byte("low 0\nhigh 3\nmax 41\noom 2\noom_kill 5\noom_group_kill 1\n"))
	f.Add([]byte("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"))
	f.Add([]byte("max 7"))
	f.Add([]byte("oom_kill 1 2\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseMemoryEvents(data)
		if err == nil && min(m.OOM, m.OOMKill, m.OOMGroupKill, m.High, m.Max) < 0 {
			t.Errorf("%q: %+v", data, m)
		}
	})
}

func FuzzParsePids(f *testing.F) {
	f.Add([]byte("1\n42\n4194304\n"))
	f.Add([]byte(""))
	f.Add([]byte("-1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		pids, err := parsePids(nil, data)
		if err != nil && pids != nil {
			t.Error("an error and pids")
		}
		for _, pid := range pids {
			if pid < 0 {
				t.Errorf("%q: %d", data, pid)
			}
		}
		if n, err := parseOOMScoreAdj(data); err == nil && (n < -1000 || n > 1000) {
			t.Errorf("%q: %d", data, n)
		}
	})
}
