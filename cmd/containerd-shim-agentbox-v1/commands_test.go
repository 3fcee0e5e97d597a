package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func TestRuntimeGetsOurOptions(t *testing.T) {
	var l commandLines
	l.set("/b/c1", []string{"--agentbox-door", "shim"})
	for _, tt := range []struct{ name, line, want string }{
		{"create", "/r --root /x --log /b/c1/log.json --log-format json create --bundle /b/c1 c1", "/r --agentbox-door shim --root /x --log /b/c1/log.json --log-format json create --bundle /b/c1 c1"},
		{"exec has a log of its own", "/r --root /x --log /b/c1/exec.json exec c1", "/r --agentbox-door shim --root /x --log /b/c1/exec.json exec c1"},
		{"another container", "/r --root /x --log /b/c2/log.json start c2", "/r --root /x --log /b/c2/log.json start c2"},
		{"no log", "/r features", "/r features"},
		{"a log without a name", "/r --log", "/r --log"},
	} {
		args := strings.Fields(tt.line)
		before := slices.Clone(args)
		if got := strings.Join(withFlags(args, l.of), " "); got != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
		if !slices.Equal(args, before) {
			t.Errorf("%s: changed what it was given: %q", tt.name, args)
		}
	}
	l.set("/b/c1", nil)
	if got := l.of("/b/c1"); got != nil {
		t.Errorf("kept %q", got)
	}
}

// The two versions of the task API have the same methods, and messages that read
// as each other: that is why one set of handlers serves both.
func TestTaskAPIVersionsAreTheSame(t *testing.T) {
	v2 := taskv2.File_runtime_task_v2_shim_proto.Services().ByName("Task").Methods()
	v3 := taskapi.File_runtime_task_v3_shim_proto.Services().ByName("Task").Methods()
	served := slices.Sorted(maps.Keys(taskMethods(&service{TTRPCTaskService: shutdowner{}})))
	var names []string
	for i := range v2.Len() {
		m := v2.Get(i)
		names = append(names, string(m.Name()))
		other := v3.ByName(m.Name())
		if other == nil {
			t.Errorf("version 3 has no %s", m.Name())
			continue
		}
		sameMessage(t, m.Input(), other.Input())
		sameMessage(t, m.Output(), other.Output())
	}
	slices.Sort(names)
	if !slices.Equal(names, served) {
		t.Errorf("served %q, want %q", served, names)
	}
	if string(v2.Get(0).Parent().FullName()) != "containerd.task.v2.Task" {
		t.Errorf("the service is %s", v2.Get(0).Parent().FullName())
	}
}

func sameMessage(t *testing.T, a, b protoreflect.MessageDescriptor) {
	t.Helper()
	if a.Fields().Len() != b.Fields().Len() {
		t.Errorf("%s and %s have different fields", a.FullName(), b.FullName())
		return
	}
	for i := range a.Fields().Len() {
		f := a.Fields().Get(i)
		g := b.Fields().ByNumber(f.Number())
		if g == nil || f.Name() != g.Name() || f.Kind() != g.Kind() || f.Cardinality() != g.Cardinality() {
			t.Errorf("%s and %s differ in field %d", a.FullName(), b.FullName(), f.Number())
		}
	}
}
