package decide_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/decide"
	"github.com/agentbox/agentbox/pkg/host"
	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

func parse(t *testing.T, text string) *spec.Document {
	t.Helper()
	doc, err := spec.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// bare is a host that enforces nothing.
func bare(host.Input) limits.Host {
	return limits.Host{OpenFilesHard: -1, FileSizeHard: -1, CoreHard: -1}
}

// TestWhatTheHostIsAsked: all that the specification, the configuration and the
// call say reaches the probe.
func TestWhatTheHostIsAsked(t *testing.T) {
	doc := parse(t, `{"root":{"path":"rootfs"},"annotations":{"agentbox.dev/profile":"small"},"linux":{"cgroupsPath":"/a/b"}}`)
	cfg := config.Default()
	cfg.Policy.IODevices, cfg.Runtime = []string{"/dev/vda"}, "crun"
	for _, tt := range []struct {
		name string
		call decide.Call
	}{
		{"a bundle", decide.Call{Bundle: "/b", Systemd: true, NoCgroups: true, Notes: "/notes"}},
		{"no bundle", decide.Call{NoBundle: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var in host.Input
			tt.call.Probe = func(asked host.Input) limits.Host {
				in = asked
				return bare(asked)
			}
			plan, err := decide.Plan(cfg, doc, tt.call)
			if err != nil || plan.Profile != "small" {
				t.Fatalf("%v, plan %+v", err, plan)
			}
			if in.CgroupsPath != "/a/b" || in.Systemd != tt.call.Systemd || in.NoCgroups != tt.call.NoCgroups || in.Notes != tt.call.Notes || len(in.IODevices) != 1 || in.Runtime != "crun" {
				t.Errorf("asked %+v", in)
			}
			if (in.Request == nil) != tt.call.NoBundle {
				t.Errorf("the request is %+v", in.Request)
			}
			if in.Request != nil && (in.Request.Profile != "small" || in.Request.Places[0].Source != "/b/rootfs") {
				t.Errorf("the request is %+v", in.Request)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	strict := config.Default()
	strict.Policy.Mode = limits.ModeStrict
	for _, tt := range []struct {
		name string
		cfg  *config.File
		spec string
		as   any
		plan bool
	}{
		{"a field", config.Default(), `{"process":{"oomScoreAdj":2000}}`, new(*limits.RequestError), false},
		{"an annotation", config.Default(), `{"annotations":{"agentbox.dev/x":"1"}}`, new(*config.AnnotationError), false},
		{"a profile", config.Default(), `{"annotations":{"agentbox.dev/profile":"x"}}`, new(*limits.RequestError), false},
		{"strict mode", strict, `{}`, new(*limits.UnenforceableError), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan, err := decide.Plan(tt.cfg, parse(t, tt.spec), decide.Call{Bundle: "/b", Probe: bare})
			if !errors.As(err, tt.as) {
				t.Errorf("error %v", err)
			}
			if (plan != nil) != tt.plan {
				t.Errorf("plan %+v", plan)
			}
		})
	}
	if _, err := decide.Plan(config.Default(), parse(t, `{"linux":{"cgroupsPath":1}}`), decide.Call{Bundle: "/b", Probe: bare}); err == nil {
		t.Error("a cgroupsPath that is a number gives no error")
	}
}

// TestThisHost: without a Probe, the machine itself is asked.
func TestThisHost(t *testing.T) {
	plan, err := decide.Plan(config.Default(), parse(t, `{}`), decide.Call{NoBundle: true})
	if err != nil {
		t.Fatal(err)
	}
	if plan.Entry(limits.KeyOpenFiles).Enforcer != limits.EnforcerProcess {
		t.Errorf("entries %+v", plan.Entries)
	}
}

// The pause container of a pod gets no limits; one that only says so gets what
// any container could ask for.
func TestPause(t *testing.T) {
	cfg := config.Default()
	cfg.Policy.Ceilings = limits.Set{limits.KeyPids: limits.Limit(100)}
	for _, tt := range []struct {
		name  string
		pause spec.Pause
		mode  limits.Mode
		pids  limits.Value
	}{
		{"none", spec.NotPause, limits.ModeAuto, limits.Limit(9)},
		{"one that claims it", spec.ClaimedPause, limits.ModeAuto, limits.Limit(100)},
		{"one that is known for it", spec.KnownPause, limits.ModeOff, limits.Limit(9)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg.Policy.Defaults = limits.Set{limits.KeyPids: limits.Limit(9)}
			plan, err := decide.Plan(cfg, parse(t, `{}`), decide.Call{Bundle: "/b", Probe: bare, Pause: tt.pause})
			if err != nil {
				t.Fatal(err)
			}
			if plan.Mode != tt.mode || plan.Entry(limits.KeyPids).Value != tt.pids {
				t.Errorf("mode %s, pids %+v", plan.Mode, plan.Entry(limits.KeyPids).Value)
			}
			if cfg.Policy.Mode != limits.ModeAuto {
				t.Error("the configuration was changed")
			}
		})
	}
}

// TestTheSupervisorOfThePlan: there is one where the call has found one and the
// kernel has what it needs, for a container with a pid namespace of its own.
func TestTheSupervisorOfThePlan(t *testing.T) {
	const own, shared = `{"linux":{"namespaces":[{"type":"pid"}]}}`, `{"linux":{"namespaces":[]}}`
	found := limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerSupervisor}
	missing := limits.Mechanism{Enforcer: limits.EnforcerNone, Reason: "there is no such program"}
	old := func(in host.Input) limits.Host {
		h := bare(in)
		h.Supervisor = limits.Mechanism{Enforcer: limits.EnforcerNone, Reason: "no pidfds"}
		return h
	}
	for _, c := range []struct {
		name   string
		spec   string
		call   decide.Call
		want   limits.Enforcer
		detail string
	}{
		{"one", own, decide.Call{Bundle: "/b", Supervisor: found, Probe: bare}, limits.EnforcerSupervisor, ""},
		{"no bundle", `{}`, decide.Call{NoBundle: true, Supervisor: found, Probe: bare}, limits.EnforcerSupervisor, ""},
		{"a shared namespace", shared, decide.Call{Bundle: "/b", Supervisor: found, Probe: bare}, limits.EnforcerNone, "pid namespace of its own"},
		{"no program", own, decide.Call{Bundle: "/b", Supervisor: missing, Probe: bare}, limits.EnforcerNone, "there is no such program"},
		{"an old kernel", own, decide.Call{Bundle: "/b", Supervisor: found, Probe: old}, limits.EnforcerNone, "no pidfds"},
		{"nobody looked, on an old kernel", own, decide.Call{Bundle: "/b", Probe: old}, limits.EnforcerNone, "there is none"},
	} {
		cfg := config.Default()
		cfg.Policy.Defaults[limits.KeyWallTime] = limits.Limit(60e9)
		plan, err := decide.Plan(cfg, parse(t, c.spec), c.call)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if e := plan.Entry(limits.KeyWallTime); e.Enforcer != c.want || !strings.Contains(e.Detail, c.detail) {
			t.Errorf("%s: %+v, want %s with %q", c.name, e, c.want, c.detail)
		}
	}
}
