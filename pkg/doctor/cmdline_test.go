package doctor

import (
	"maps"
	"testing"
)

func TestDisabledBy(t *testing.T) {
	for _, c := range []struct{ cmdline, controller, word string }{
		{"quiet cgroup_disable=memory ro", "memory", "cgroup_disable=memory"},
		{"cgroup_disable=memory", "pids", ""},
		{"cgroup_disable=memory cgroup_disable=pids", "pids", "cgroup_disable=pids"},
		{"cgroup_disable=cpuset,memory", "memory", "cgroup_disable=cpuset,memory"},
		{"cgroup_disable=blkio", "io", "cgroup_disable=blkio"},
		{"cgroup_disable=io", "io", "cgroup_disable=io"},
		{"cgroup_disable=memoryx", "memory", ""},
		{"xcgroup_disable=memory", "memory", ""},
		{"cgroup_no_v1=memory", "memory", ""},
		{"", "memory", ""},
	} {
		word, ok := Kernel{Cmdline: c.cmdline}.disabledBy(c.controller)
		if word != c.word || ok != (c.word != "") {
			t.Errorf("%q, %s: %q, %t", c.cmdline, c.controller, word, ok)
		}
	}
}

func TestWord(t *testing.T) {
	word, value, ok := Kernel{Cmdline: "ro swapaccount=0 quiet swapaccount=1 xswapaccount=2"}.word("swapaccount")
	if word != "swapaccount=1" || value != "1" || !ok {
		t.Errorf("%q, %q, %t: the last one counts", word, value, ok)
	}
	if word, _, ok := (Kernel{Cmdline: "swapaccountant=0"}).word("swapaccount"); ok {
		t.Errorf("found %q", word)
	}
}

func TestParseControllers(t *testing.T) {
	got := parseControllers([]byte("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t11\t40\t1\nmemory\t0\t1\t0\npids\t0\t3\t1\nbad\tx\t1\t1\nshort\t1\n"))
	want := map[string]Controller{"cpu": {11, true}, "memory": {0, false}, "pids": {0, true}}
	if !maps.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestParseSwaps(t *testing.T) {
	const head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	for text, want := range map[string]int64{
		"": 0, head: 0, head + "/dev/ubdd                               partition	262140		0		-1\n": 262140 << 10,
		head + "/swap\\040file file 1024 0 -2\n/dev/zram0 partition 2048 0 100\n": 3072 << 10,
		head + "/dev/sda2 partition x 0 -2\n":                                     0,
	} {
		if got := parseSwaps([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestKnows(t *testing.T) {
	list := []byte("nodev\tcgroup\nnodev\tcgroup2\n\text4\n")
	for name, want := range map[string]bool{"cgroup2": true, "ext4": true, "cgroup": true, "cgrou": false, "nodev": false, "": false} {
		if got := knows(list, name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}

func FuzzParseProc(f *testing.F) {
	f.Add("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t11\t40\t1\n")
	f.Add("Filename Type Size Used Priority\n/dev/sda2 partition 262140 0 -2\n")
	f.Add("quiet cgroup_disable=memory,blkio swapaccount=0")
	f.Fuzz(func(t *testing.T, text string) {
		for name, c := range parseControllers([]byte(text)) {
			if name == "" || c.Hierarchy < 0 {
				t.Errorf("%q: %+v", name, c)
			}
		}
		if n := parseSwaps([]byte(text)); n < 0 {
			t.Errorf("%d bytes of swap", n)
		}
		k := Kernel{Cmdline: text}
		for controller := range options {
			if word, ok := k.disabledBy(controller); ok && word == "" {
				t.Errorf("%s is switched off by an empty word", controller)
			}
		}
	})
}
