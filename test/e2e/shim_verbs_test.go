//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// What a client of containerd does with a task besides starting and killing it.

// A person runs a container in a terminal, and a command in another one: keys,
// Ctrl-C, the size of the window and the exit codes.
func TestShimTerminal(t *testing.T) {
	c := newCtr(t)
	c.watch()
	cc := c.container(sh("trap 'echo interrupted; exit 5' INT; tty; stty size; read line; echo got $line; while :; do sleep 0.05; done"),
		with(true, "process", "terminal"))
	screen := openScreen(t)
	size := unix.Winsize{Row: 33, Col: 99}
	if err := unix.IoctlSetWinsize(int(screen.master.Fd()), unix.TIOCSWINSZ, &size); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(int(screen.master.Fd()), true); err != nil { // Fd has changed that
		t.Fatal(err)
	}
	args := append([]string{"run", "--tty"}, cc.flags...)
	cc.main = screen.launch(c.ctr(append(args, "--config", cc.spec, cc.ID)...))
	screen.see("/dev/pts/0")
	screen.typed("hello\r")
	screen.see("got hello")

	second := openScreen(t)
	in := second.launch(c.ctr("task", "exec", "--tty", "--exec-id", "e1", cc.ID, "sh", "-c", "tty; stty size; read line; echo also $line; exit 6"))
	second.see("/dev/pts/1")
	second.typed("hello\r")
	second.see("also hello")
	if out := in.wait(60 * time.Second); out.Code != 6 {
		t.Errorf("ctr task exec --tty ended with %d: %q", out.Code, second.shown)
	}

	screen.typed("\x03")
	screen.see("interrupted")
	if out := cc.main.wait(60 * time.Second); out.Code != 5 {
		t.Errorf("ctr run --tty ended with %d: %q", out.Code, screen.shown)
	}
	wantSeen(t, told(t, c.until(cc.ID, "/tasks/exit")), verdict.Exited, 5)
}

// A client that comes later gets the output, and the exit code.
func TestShimAttach(t *testing.T) {
	c := newCtr(t)
	// It ends when its output was seen: an end that overtakes it would take the
	// client's pipe away.
	cc := c.held("echo hello; until [ -e /gate/seen ]; do sleep 0.02; done; exit 4")
	if out := cc.run("--detach").wait(60 * time.Second); out.Code != 0 {
		t.Fatalf("ctr run --detach: %v", out)
	}
	attached := launch(t, c.ctr("task", "attach", cc.ID))
	eventually(t, 60*time.Second, func() string {
		if !holdsOpen(attached.cmd.Process.Pid, cc.ID+"-stdout") {
			return "ctr task attach does not read the output"
		}
		return ""
	})
	cc.release()
	eventually(t, 60*time.Second, func() string {
		if out := attached.output(); out.Stdout != "hello\n" {
			return fmt.Sprintf("ctr task attach has not shown the output: %v", out)
		}
		return ""
	})
	writeFile(t, filepath.Join(cc.gate, "seen"), "")
	if out := attached.wait(60 * time.Second); out.Code != 4 || out.Stdout != "hello\n" {
		t.Errorf("ctr task attach: %v", out)
	}
}

// holdsOpen reports whether a process has a file of that name open.
func holdsOpen(pid int, name string) bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && filepath.Base(to) == name {
			return true
		}
	}
	return false
}

// A paused container does not run, and is no other sandbox when it goes on.
func TestShimPauseAndResume(t *testing.T) {
	c := newCtr(t)
	c.watch()
	cc := c.container(sh("trap 'exit 7' TERM; while :; do :; done"))
	cc.detached()
	cgroup := cgroupOf(t, cc.pid())
	used := func(d time.Duration) int64 {
		before := cgroup.cpuUsec()
		time.Sleep(d)
		return cgroup.cpuUsec() - before
	}
	running := func() {
		t.Helper()
		eventually(t, 60*time.Second, func() string {
			if n := used(50 * time.Millisecond); n == 0 {
				return "the container does not run"
			}
			return ""
		})
	}
	running()
	cc.call("task", "pause", cc.ID)
	if n := used(300 * time.Millisecond); n > 0 {
		t.Errorf("the paused container has used %d us of CPU time", n)
	}
	if out := c.call("task", "ls"); !strings.Contains(lineOf(out.Stdout, cc.ID), "PAUSED") {
		t.Errorf("ctr task ls: %v", out)
	}
	if out := cc.exec("e1", "echo in"); out.Code == 0 || !strings.Contains(out.Stderr, "paused") {
		t.Errorf("ctr task exec does not say that the container is paused: %v", out)
	}
	if r := cc.result(cc.ID); r.Status != verdict.Running {
		t.Errorf("paused: %s", describe(r))
	}
	cc.call("task", "resume", cc.ID)
	running()
	if have := cgroupOf(t, cc.pid()).limits(); have != defaultLimits() {
		t.Errorf("after the pause the cgroup has %+v, want the defaults", have)
	}
	if out := cc.exec("e2", "exit 5"); out.Code != 5 {
		t.Errorf("ctr task exec: %v", out)
	}
	cc.call("task", "kill", "--signal", "TERM", cc.ID)
	list := c.until(cc.ID, "/agentbox/verdict")
	wantSeen(t, told(t, list), verdict.Exited, 7)
	wantTopics(t, list, "/tasks/paused", "/tasks/resumed")
}

// lineOf is the line of a table that begins with a word; "" without one.
func lineOf(table, word string) string {
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == word {
			return line
		}
	}
	return ""
}

// wantTopics checks that topics are there, in this order.
func wantTopics(t *testing.T, list []Event, want ...string) {
	t.Helper()
	rest := want
	for _, e := range list {
		if len(rest) > 0 && e.Topic == rest[0] {
			rest = rest[1:]
		}
	}
	if len(rest) > 0 {
		t.Errorf("published %q, want among them %q", topics(list), want)
	}
}

// An update changes what it names, in the kernel and in the verdict, and nothing
// else. ctr has no command for it.
func TestShimUpdate(t *testing.T) {
	c := newCtr(t)
	c.watch()
	cc := c.held("exec tail /dev/zero", memoryLimit(64*mib))
	cc.detached()
	want := cgroupOf(t, cc.pid()).limits()
	for _, size := range []int64{128 * mib, 24 * mib} {
		cc.update(map[string]any{"memory": map[string]any{"limit": size, "swap": size}})
		want.Memory = size
		if have := cgroupOf(t, cc.pid()).limits(); have != want {
			t.Errorf("the container has %+v, want %+v", have, want)
		}
	}
	cc.release()
	list := c.until(cc.ID, "/tasks/exit")
	wantOrder(t, list, 1)
	r := told(t, list)
	wantOOMVerdict(t, r)
	if peak := r.Usage; peak == nil || peak.MemoryPeakBytes == nil || *peak.MemoryPeakBytes > 25*mib {
		t.Errorf("it had more than what it was updated to: %+v", peak)
	}
}

// update is what containerd's Go client sends for Task.Update.
func (c *CtrContainer) update(resources map[string]any) {
	c.t.Helper()
	conn, err := grpc.NewClient("unix://"+c.containerdSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	data, err := json.Marshal(resources)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scaled(30*time.Second))
	defer cancel()
	_, err = tasks.NewTasksClient(conn).Update(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", token), &tasks.UpdateTaskRequest{
		ContainerID: c.ID,
		Resources:   &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: data},
	})
	if err != nil {
		c.t.Fatalf("update %v: %v", resources, err)
	}
}

// A checkpoint that fails says why, and the container does not notice.
func TestShimCheckpointFails(t *testing.T) {
	programs := tempDir(t)
	if err := os.WriteFile(filepath.Join(programs, "criu"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := newOwnCtr(t, programs+":"+bin+":"+os.Getenv("PATH"))
	c.watch()
	cc := c.container(sh("trap 'exit 7' TERM; while :; do sleep 0.05; done"))
	cc.detached()
	pid := cc.pid()
	out := execute(t, 60*time.Second, c.ctr("task", "checkpoint", cc.ID))
	if out.Code == 0 || !strings.Contains(strings.ToLower(out.Stderr), "criu") {
		t.Errorf("ctr task checkpoint does not say that CRIU failed: %v", out)
	}
	if cc.pid() != pid || !alive(pid) {
		t.Errorf("process %d, %d before", cc.pid(), pid)
	}
	if have := cgroupOf(t, pid).limits(); have != defaultLimits() {
		t.Errorf("the cgroup has %+v, want the defaults", have)
	}
	if out := cc.exec("e1", "exit 5"); out.Code != 5 {
		t.Errorf("ctr task exec: %v", out)
	}
	if r := cc.result(cc.ID); r.Status != verdict.Running {
		t.Errorf("after the checkpoint: %s", describe(r))
	}
	cc.call("task", "kill", "--signal", "TERM", cc.ID)
	wantSeen(t, told(t, c.until(cc.ID, "/agentbox/verdict")), verdict.Exited, 7)
}

// What is removed as soon as it ends can be asked for afterwards.
func TestShimVerdictOfARemovedContainer(t *testing.T) {
	c := newCtr(t)
	cc := c.held("sleep 1000 & tail /dev/zero; echo survived", memoryLimit(64*mib))
	main := cc.run("--rm")
	cc.release()
	if out := main.wait(60 * time.Second); has(cgroup2) && out.Code != 137 {
		t.Errorf("ctr run --rm: %v", out)
	}
	cc.nothingLeft()
	if out := c.call("containers", "ls", "--quiet"); strings.Contains(out.Stdout, cc.ID) {
		t.Errorf("containerd still knows the container: %v", out)
	}
	r := cc.result(cc.ID)
	wantOOMEvidence(t, r)
	if has(cgroup2) {
		wantOOMVerdict(t, r)
		wantSeen(t, r, verdict.OOMKilled, 137)
	}
}

// A containerd that finds no bundle forgets the task and calls nobody, so the
// container goes on, with its limits. A person ends it by the runtime, which
// needs no bundle; then the id is free.
func TestShimBundleGone(t *testing.T) {
	c := newOwnCtr(t, bin+":"+os.Getenv("PATH"))
	cc := c.container(sh("sleep 1000"))
	cc.detached()
	pid, shims, socket := cc.pid(), cc.shimPids(), cc.socket()
	if len(shims) != 1 {
		t.Fatalf("shims %v", shims)
	}
	if err := c.containerd.cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.containerd.done
	kill(t, shims[0], unix.SIGKILL)
	eventually(t, 60*time.Second, func() string {
		if alive(shims[0]) {
			return "the shim lives"
		}
		return ""
	})
	if err := os.RemoveAll(cc.bundle); err != nil {
		t.Fatal(err)
	}
	if err := c.startContainerd(); err != nil {
		t.Fatal(err)
	}
	if err := c.waitCtr(); err != nil {
		t.Fatal(err)
	}
	if out := c.call("task", "ls", "--quiet"); strings.Contains(out.Stdout, cc.ID) {
		t.Errorf("containerd has the task: %v", out)
	}
	if have := cgroupOf(t, pid).limits(); have != defaultLimits() {
		t.Errorf("the cgroup has %+v, want the defaults", have)
	}
	if r := cc.result(cc.ID); r.Status != verdict.Running {
		t.Errorf("nobody has ended it: %s", describe(r))
	}

	c.must("delete", "--force", cc.ID)
	if alive(pid) {
		t.Error("the container lives")
	}
	cc.nothingLeft()
	if dir := filepath.Join(c.Root, cc.ID); exists(dir) {
		t.Errorf("%s of the low-level runtime is left", dir)
	}
	r := cc.result(cc.ID)
	if r.Status != verdict.Ended || r.ErrorCode != "" || r.ExitSource != verdict.ExitUnknown || r.FinishedAt == nil {
		t.Errorf("nobody saw the end: %s", describe(r))
	}

	c.call("containers", "rm", cc.ID)
	cc.detached()
	cc.call("task", "kill", "--signal", "KILL", cc.ID)
	eventually(t, 60*time.Second, func() string {
		if alive(cc.pid()) {
			return "the container lives"
		}
		return ""
	})
	cc.remove()
	if exists(socket) {
		t.Errorf("%s is left", socket)
	}
	if list := cc.kept(cc.ID); len(list) != 2 {
		t.Errorf("%d results are kept, want that of each container", len(list))
	}
}
