// Package oomlog reads what the kernel's log says of out-of-memory kills. It is
// what is left of the reason when a cgroup is gone with its counters, as a systemd
// scope is with its last process.
//
// The lines are those of mm/oom_kill.c and mm/memcontrol.c, in their form since
// Linux 5.1, and the records those of Documentation/ABI/testing/dev-kmsg. Only the
// kernel's own records count: what programs write to the log has another facility.
// Names of cgroups and processes are a container's to choose; a line that can be
// read in two ways is not read.
package oomlog

import (
	"bytes"
	"errors"
	"io/fs"
	"iter"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Device is the kernel's log.
const Device = "/dev/kmsg"

// Kill is one time that the kernel killed for want of memory.
type Kill struct {
	// Global says that the machine ran out, and not a limit of a cgroup.
	Global bool
	// Owner is the cgroup whose limit ran out, from the root of the hierarchy;
	// empty: not known, since the kernel says this of ten kills in 5 s at most.
	Owner string
	// Group is the cgroup that was killed as a whole; empty: only one process was.
	Group string
	// Pids are the killed processes, as the host counts.
	Pids []int
}

// Read returns the kills that the log still has, in order. The log is a ring: old
// ones are overwritten. It takes root, or a kernel that shows its log to all.
func Read(device string) (kills []Kill, err error) {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: device, Err: err}
	}
	defer unix.Close(fd)
	kills = Parse(func(yield func([]byte) bool) { err = records(fd, yield) })
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: device, Err: err}
	}
	return kills, nil
}

// records calls yield with each record, which is what one read gives.
func records(fd int, yield func([]byte) bool) error {
	buf := make([]byte, 16<<10) // more than the kernel ever makes
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EPIPE): // EPIPE: this one was overwritten
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		case n == 0 || !yield(buf[:n]):
			return nil
		}
	}
}

// Parse returns the kills among records of the log.
func Parse(log iter.Seq[[]byte]) []Kill {
	var p parser
	for record := range log {
		text, more, ok := message(record)
		if !ok {
			continue
		}
		if more {
			if p.open == "" {
				continue
			}
			text = p.open + text
		}
		p.line(text)
	}
	return p.kills
}

// message returns the text of a record of the kernel: "6,1035,25550000,-;TEXT\n",
// with lines of other fields behind. more: it goes on with the text of the record
// before, which somebody else's came between.
func message(record []byte) (text string, more, ok bool) {
	head, rest, found := bytes.Cut(record, []byte(";"))
	fields := bytes.Split(head, []byte(","))
	if !found || len(fields) < 4 {
		return "", false, false
	}
	priority, err := strconv.Atoi(string(fields[0]))
	if err != nil || priority < 0 || priority > 7 { // above: the facility is not the kernel
		return "", false, false
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return unescaped(string(line)), string(fields[3]) == "c", true
}

// unescaped undoes what the kernel does to bytes that are not printable ASCII, and
// to the backslash, which names of systemd's units are full of: "\x2d" is
// "\x5cx2d" in a record.
func unescaped(text string) string {
	const escape, size = `\x`, len(`\x5c`)
	if !strings.Contains(text, escape) {
		return text
	}
	var b strings.Builder
	for text != "" {
		if strings.HasPrefix(text, escape) && len(text) >= size {
			if n, err := strconv.ParseUint(text[len(escape):size], 16, 8); err == nil {
				b.WriteByte(byte(n))
				text = text[size:]
				continue
			}
		}
		b.WriteByte(text[0])
		text = text[1:]
	}
	return b.String()
}

// parser follows the kernel, which has a lock around each kill: what it says of one
// does not mix with what it says of another.
type parser struct {
	kills []Kill
	open  string // a line that is not complete
	next  Kill   // what was said of the next kill before its first victim
	ahead bool   // next is in use
}

// The heads are longer than a process's name, which some lines of the kernel begin
// with, or need the tail too.
const (
	ownerHead = "oom-kill:constraint=CONSTRAINT_"
	groupHead = "Tasks in "
	groupTail = " are going to be killed due to memory.oom.group set"
)

func (p *parser) line(text string) {
	switch {
	case strings.HasPrefix(text, ownerHead):
		k, complete := parseOwner(text)
		if !complete {
			p.open = text
			return
		}
		p.open, p.next, p.ahead = "", k, true
	case strings.HasPrefix(text, groupHead):
		group, complete := strings.CutSuffix(text[len(groupHead):], groupTail)
		if !complete {
			p.open = text
			return
		}
		p.open = ""
		p.group(group)
	default:
		if global, pid, ok := parseVictim(text); ok {
			p.victim(global, pid)
		}
	}
}

// victim takes in a killed process. Where the kernel did not say before that a kill
// begins, it is one more of the last group, or the first of another kill: group
// decides.
func (p *parser) victim(global bool, pid int) {
	if last := p.last(); !p.ahead && last != nil && last.Group != "" && last.Global == global {
		last.Pids = append(last.Pids, pid)
		return
	}
	k := p.next
	if k.Global != global { // of another kill, of which the first line was lost
		k = Kill{Global: global}
	}
	k.Pids = []int{pid}
	p.kills, p.next, p.ahead = append(p.kills, k), Kill{}, false
}

// group takes in that the last victim's cgroup is killed as a whole.
func (p *parser) group(path string) {
	last := p.last()
	if last == nil {
		return
	}
	if last.Group != "" {
		end := len(last.Pids) - 1
		k := Kill{Global: last.Global, Pids: []int{last.Pids[end]}}
		last.Pids = last.Pids[:end:end]
		p.kills = append(p.kills, k)
		last = p.last()
	}
	last.Group = path
}

func (p *parser) last() *Kill {
	if len(p.kills) == 0 {
		return nil
	}
	return &p.kills[len(p.kills)-1]
}

// parseOwner reads
// "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=tail,pid=42,uid=0",
// where a kill of the whole machine has ",global_oom" for the oom_memcg.
func parseOwner(text string) (k Kill, complete bool) {
	if !strings.Contains(text, ",uid=") {
		return Kill{}, false
	}
	const owner, task, global = ",oom_memcg=", ",task_memcg=", ",global_oom"
	if strings.Count(text, owner)+strings.Count(text, global) != 1 || strings.Count(text, task) > 1 {
		return Kill{}, true // a name that looks like it: nothing is known
	}
	_, rest, limited := strings.Cut(text, owner)
	if !limited {
		return Kill{Global: true}, true
	}
	path, _, found := strings.Cut(rest, task)
	if !found {
		return Kill{}, true
	}
	return Kill{Owner: path}, true
}

// parseVictim reads "Memory cgroup out of memory: Killed process 42 (tail) ..." and
// "Out of memory: Killed process 42 ...".
func parseVictim(text string) (global bool, pid int, ok bool) {
	reason, rest, found := strings.Cut(text, ": Killed process ")
	if !found {
		return false, 0, false
	}
	switch reason {
	case "Memory cgroup out of memory":
	case "Out of memory", "Out of memory (oom_kill_allocating_task)":
		global = true
	default:
		return false, 0, false
	}
	number, _, found := strings.Cut(rest, " (")
	pid, err := strconv.Atoi(number)
	return global, pid, found && err == nil
}
