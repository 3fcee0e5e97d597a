package oomlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// kernel makes records of lines as the kernel writes them; one that begins with
// "+ " goes on with the line before, "user " is written by a program.
func kernel(text string) [][]byte {
	var records [][]byte
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		head := fmt.Sprintf("6,%d,%d,-;", 100+i, 25_550_000+i)
		if rest, ok := strings.CutPrefix(line, "+ "); ok {
			line, head = rest, strings.Replace(head, "-", "c", 1)
		}
		if rest, ok := strings.CutPrefix(line, "user "); ok {
			line, head = rest, "14"+head[1:]
		}
		records = append(records, []byte(head+line+"\n SUBSYSTEM=x\n"))
	}
	return records
}

const scope = "/probe.slice/box-x1.scope"

// crunInAScope is of Linux 7.2, with crun 1.28 and systemd 262.
const crunInAScope = `
tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[   1410]     0  1410     8682     8503     8149        1       353   102400        0             0 tail
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/probe.slice/box-x1.scope,task_memcg=/probe.slice/box-x1.scope/container,task=tail,pid=1410,uid=0
Memory cgroup out of memory: Killed process 1410 (tail) total-vm:34728kB, anon-rss:32596kB, file-rss:4kB, shmem-rss:1412kB, UID:0 pgtables:100kB oom_score_adj:0
Tasks in /probe.slice/box-x1.scope are going to be killed due to memory.oom.group set
Memory cgroup out of memory: Killed process 1410 (tail) total-vm:34728kB, anon-rss:32596kB, file-rss:4kB, shmem-rss:1412kB, UID:0 pgtables:100kB oom_score_adj:0
Memory cgroup out of memory: Killed process 1411 (sleep) total-vm:4kB, anon-rss:4kB, file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:100kB oom_score_adj:0
`

func TestParse(t *testing.T) {
	const (
		victim7 = "Memory cgroup out of memory: Killed process 7 (a) total-vm:1kB\n"
		victim8 = "Memory cgroup out of memory: Killed process 8 (b) total-vm:1kB\n"
		tasksIn = "Tasks in %s are going to be killed due to memory.oom.group set\n"
		owner   = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=%s,mems_allowed=0,oom_memcg=%s,task_memcg=%s,task=%s,pid=7,uid=0\n"
	)
	groupA, groupB := fmt.Sprintf(tasksIn, "/a"), fmt.Sprintf(tasksIn, "/b")
	for _, c := range []struct {
		name, log string
		want      []Kill
	}{
		{"crun in a scope", crunInAScope, []Kill{{Owner: scope, Group: scope, Pids: []int{1410, 1410, 1411}}}},
		{"no group", fmt.Sprintf(owner, "/", "/a", "/a/b", "x") + victim7, []Kill{{Owner: "/a", Pids: []int{7}}}},
		{
			"the first line of the second was left out", fmt.Sprintf(owner, "/", "/a", "/a", "x") + victim7 + groupA + victim7 + victim8 + groupB + victim8,
			[]Kill{{Owner: "/a", Group: "/a", Pids: []int{7, 7}}, {Group: "/b", Pids: []int{8, 8}}},
		},
		{"two without a group", victim7 + victim8, []Kill{{Pids: []int{7}}, {Pids: []int{8}}}},
		{
			"the whole machine", "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=x,pid=7,uid=0\n" +
				"Out of memory: Killed process 7 (a) total-vm:1kB\n" + groupA + "Out of memory: Killed process 8 (b) total-vm:1kB\n",
			[]Kill{{Global: true, Group: "/a", Pids: []int{7, 8}}},
		},
		{
			"the whole machine, after a cgroup", victim7 + groupA + victim7 + "Out of memory: Killed process 8 (b) total-vm:1kB\n",
			[]Kill{{Group: "/a", Pids: []int{7, 7}}, {Global: true, Pids: []int{8}}},
		},
		{
			"somebody came between", "Tasks in /a\nuser Tasks in /c are going to be killed due to memory.oom.group set\nrandom: 3 urandom warnings\n" +
				"+  are going to be killed due to memory.oom.group set\n", nil,
		},
		{
			"somebody came between, with a victim", victim7 + "Tasks in /a\nuser x\nrandom: y\n+  are going to be killed due to memory.oom.group set\n",
			[]Kill{{Group: "/a", Pids: []int{7}}},
		},
		{"written by a program", "user " + victim7 + "user " + groupA, nil},
		{"a group without a victim", groupA, nil},
		{"a cgroup with a deceitful name", fmt.Sprintf(owner, "x,oom_memcg=/b,task_memcg=/b", "/a", "/a", "x") + victim7, []Kill{{Pids: []int{7}}}},
		{"another", fmt.Sprintf(owner, "/", "/a/,task_memcg=/b", "/a", "x") + victim7, []Kill{{Pids: []int{7}}}},
		{"a process with a deceitful name", fmt.Sprintf(owner, "/", "/a", "/a", ",task_memcg=/b") + victim7, []Kill{{Pids: []int{7}}}},
		{"a process named as a kill", "Memory cgroup out of memory: Killed process 7 (: Killed process) total-vm:1kB\n", []Kill{{Pids: []int{7}}}},
		{
			"names that the log escapes", fmt.Sprintf(owner, "/", `/my\x5cx2dagents.slice/box \xc3\xa9.scope`, "/", "x") + victim7 +
				fmt.Sprintf(tasksIn, `/my\x5cx2dagents.slice/box \xc3\xa9.scope`) + victim7,
			[]Kill{{Owner: `/my\x2dagents.slice/box é.scope`, Group: `/my\x2dagents.slice/box é.scope`, Pids: []int{7, 7}}},
		},
		{"no escape", fmt.Sprintf(owner, "/", `/a\xg1\x`, "/", "x") + victim7, []Kill{{Owner: `/a\xg1\x`, Pids: []int{7}}}},
		{
			"others whose names look like a kill crash meanwhile", victim7 + groupA + victim7 +
				"oom-kill:,uid=[9]: segfault at 0 ip 0 sp 0 error 4 in x,global_oom[400,401+1]\nTasks in /b[9]: segfault at 0 ip 0 sp 0 error 4\n" + victim8,
			[]Kill{{Group: "/a", Pids: []int{7, 7, 8}}},
		},
		{"what others say", "x: Killed process 7 (a)\nMemory cgroup out of memory: Killed process seven (a)\noom_reaper: reaped process 7 (a), now anon-rss:0kB\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Parse(slices.Values(kernel(c.log))); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// What is no record is skipped, and takes nothing with it.
func TestParseGarbage(t *testing.T) {
	records := [][]byte{nil, []byte("\n"), []byte("6,1,2;Tasks in /a\n"), []byte("x,1,2,-;y\n"), []byte("-1,1,2,-;y\n")}
	records = append(records, kernel("Memory cgroup out of memory: Killed process 7 (a) total-vm:1kB")...)
	if got := Parse(slices.Values(records)); len(got) != 1 || got[0].Pids[0] != 7 {
		t.Errorf("got %+v", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(crunInAScope)
	f.Fuzz(func(t *testing.T, text string) {
		records := kernel(text)
		records = append(records, []byte(text))
		for _, k := range Parse(slices.Values(records)) {
			if len(k.Pids) == 0 || k.Global && k.Owner != "" {
				t.Errorf("%+v", k)
			}
		}
	})
}

// A machine may keep its log from us, and then says so. A socket stands in for records,
// of which one comes at a time.
func TestRead(t *testing.T) {
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no device: %v", err)
	}
	if _, err := Read(Device); err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	for _, record := range kernel(crunInAScope) {
		if _, err := unix.Write(pair[0], record); err != nil {
			t.Fatal(err)
		}
	}
	kills := Parse(func(yield func([]byte) bool) { err = records(pair[1], yield) })
	if err != nil || len(kills) != 1 || kills[0].Group != scope {
		t.Errorf("%+v, %v", kills, err)
	}
}
