package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

func TestApplyAnnotations(t *testing.T) {
	req := limits.Request{
		Spec:        limits.Set{limits.KeyMemory: limits.Limit(1)},
		Annotations: limits.Set{limits.KeyPids: limits.Limit(5), limits.KeySwap: limits.Limit(7)},
		Kubernetes:  true,
	}
	before := req.Annotations
	err := ApplyAnnotations(map[string]string{
		"agentbox.dev/memory":       "512MiB",
		"agentbox.dev/memory-high":  "none",
		"agentbox.dev/pids":         "64",
		"agentbox.dev/io-read-iops": "100",
		"agentbox.dev/core-dumps":   "true",
		"agentbox.dev/profile":      "small",
		"agentbox.dev/oom-scope":    "process",
		"agentbox.dev/original":     "{anything",
		"agentbox.development/x":    "not ours",
		"example.com/memory":        "not ours",
		"agentbox.dev":              "not ours",
		"Agentbox.dev/memory":       "not ours",
	}, &req)
	if err != nil {
		t.Fatal(err)
	}
	want := limits.Request{
		Profile:  "small",
		OOMScope: limits.ScopeProcess,
		Spec:     limits.Set{limits.KeyMemory: limits.Limit(1)},
		Annotations: limits.Set{
			limits.KeyMemory:     limits.Limit(512 << 20),
			limits.KeyMemoryHigh: limits.NoLimit(),
			limits.KeyPids:       limits.Limit(64),
			limits.KeySwap:       limits.Limit(7),
			limits.KeyIOReadIOPS: limits.Limit(100),
			limits.KeyCoreDumps:  limits.NoLimit(),
		},
		Kubernetes: true,
	}
	if !reflect.DeepEqual(req, want) {
		t.Errorf("got  %+v\nwant %+v", req, want)
	}
	if before[limits.KeyPids] != limits.Limit(5) {
		t.Error("the caller's set was changed in place")
	}
}

func TestApplyAnnotationsNoneOfOurs(t *testing.T) {
	for _, annotations := range []map[string]string{nil, {}, {"a": "b"}, {spec.ReservedAnnotation: "x"}} {
		var req limits.Request
		if err := ApplyAnnotations(annotations, &req); err != nil || !reflect.DeepEqual(req, limits.Request{}) {
			t.Errorf("%v: got %+v, %v", annotations, req, err)
		}
	}
}

func TestAnnotationName(t *testing.T) {
	for _, info := range limits.Keys {
		key, ok := annotationKey(AnnotationName(info.Key))
		if !ok || key != info.Key {
			t.Errorf("%s: got %q, %v", info.Key, key, ok)
		}
	}
	if got := AnnotationName(limits.KeyIOReadBPS); got != "agentbox.dev/io-read-bps" {
		t.Errorf("got %s", got)
	}
}

func TestApplyAnnotationsErrors(t *testing.T) {
	tests := []struct {
		name, key, value, want string
		malformed              bool // the cause is a *ValueError
	}{
		{"bad size", "agentbox.dev/memory", "2gg", `annotation agentbox.dev/memory = "2gg" has the unknown unit "gg": expected a size such as`, true},
		{"empty", "agentbox.dev/memory", "", `annotation agentbox.dev/memory = "" is empty: expected a size`, true},
		{"zero", "agentbox.dev/pids", "0", `annotation agentbox.dev/pids = "0" is zero: expected a whole number`, true},
		{"negative", "agentbox.dev/swap", "-1", `annotation agentbox.dev/swap = "-1" is negative: expected a size such as 1GiB, 0 for no swap`, true},
		{"scope of a later version", "agentbox.dev/oom-scope", "exec", `annotation agentbox.dev/oom-scope = "exec" is not available in this version: expected container or process`, true},
		{"no scope", "agentbox.dev/oom-scope", "none", `annotation agentbox.dev/oom-scope = "none" is not a scope: expected container or process`, true},
		{"empty profile", "agentbox.dev/profile", "", `annotation agentbox.dev/profile = "" is empty: expected a name`, true},
		{"bad profile", "agentbox.dev/profile", "a\nb", `annotation agentbox.dev/profile = "a\nb" is not the name of a profile: expected a name`, true},
		{"long profile", "agentbox.dev/profile", strings.Repeat("a", 64), `is longer than 63 characters: expected a name`, true},
		{"typo", "agentbox.dev/memroy", "1g", `annotation agentbox.dev/memroy = "1g" is not known: did you mean agentbox.dev/memory?`, false},
		{"dimension", "agentbox.dev/cpu", "1", `annotation agentbox.dev/cpu = "1" is not known: did you mean agentbox.dev/cpus?`, false},
		{"underscore", "agentbox.dev/io_read_bps", "1", `annotation agentbox.dev/io_read_bps = "1" is not known: did you mean agentbox.dev/io-read-bps?`, false},
		{"underscore in the scope", "agentbox.dev/oom_scope", "process", `is not known: did you mean agentbox.dev/oom-scope?`, false},
		{"upper case", "agentbox.dev/Memory", "1", `is not known: did you mean agentbox.dev/memory?`, false},
		{"no name", "agentbox.dev/", "1", `annotation agentbox.dev/ = "1" is not known: expected agentbox.dev/profile, agentbox.dev/oom-scope, or a key of [limits] with - for _, such as agentbox.dev/memory`, false},
		{"space", "agentbox.dev/memory ", "1", `annotation "agentbox.dev/memory " = "1" is not known: did you mean agentbox.dev/memory?`, false},
		{"hostile name", "agentbox.dev/\x1b[2J\n", "\xff\u202e", `annotation "agentbox.dev/\x1b[2J\n" = "\xff\u202e" is not known: expected`, false},
		{"endless name", "agentbox.dev/" + strings.Repeat("x", 9999), "1", strings.Repeat("x", 67) + `"... = "1" is not known: expected`, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := limits.Request{Profile: "before"}
			err := ApplyAnnotations(map[string]string{tt.key: tt.value, "agentbox.dev/cpus": "1"}, &req)
			var ae *AnnotationError
			if !errors.As(err, &ae) || ae.Key != tt.key || ae.Value != tt.value {
				t.Fatalf("got %#v, want an *AnnotationError about %q", err, tt.key)
			}
			var ve *ValueError
			if errors.As(err, &ve) != tt.malformed {
				t.Errorf("cause is %#v", ae.Err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
			checkText(t, err)
			if !reflect.DeepEqual(req, limits.Request{Profile: "before"}) {
				t.Errorf("the request was changed: %+v", req)
			}
		})
	}
}

func TestApplyAnnotationsReportsTheFirstByName(t *testing.T) {
	for range 50 {
		err := ApplyAnnotations(map[string]string{
			"agentbox.dev/pids": "x", "agentbox.dev/cpus": "x", "agentbox.dev/zzz": "x",
			"agentbox.dev/io-read-bps": "1", "agentbox.dev/io_read_bps": "1",
		}, &limits.Request{})
		var ae *AnnotationError
		if !errors.As(err, &ae) || ae.Key != "agentbox.dev/cpus" {
			t.Fatalf("got %v", err)
		}
	}
}

func FuzzAnnotations(f *testing.F) {
	for _, info := range limits.Keys {
		f.Add(AnnotationName(info.Key), "512", "agentbox.dev/"+string(info.Key), "30s")
	}
	f.Add(ProfileAnnotation, "small", OOMScopeAnnotation, "exec")
	f.Add(spec.ReservedAnnotation, "{}", "agentbox.dev/\xff", "\x00")
	f.Add("agentbox.dev/memory", "-1", "org.systemd.property.X", "\n")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		annotations := map[string]string{k1: v1, k2: v2}
		var req limits.Request
		err := ApplyAnnotations(annotations, &req)
		if err != nil {
			var ae *AnnotationError
			if !errors.As(err, &ae) || annotations[ae.Key] != ae.Value || !strings.HasPrefix(ae.Key, Prefix) {
				t.Errorf("error is %#v", err)
			}
			checkText(t, err)
			if !reflect.DeepEqual(req, limits.Request{}) {
				t.Errorf("the request was changed: %+v", req)
			}
			return
		}
		asked := len(req.Annotations)
		if req.Profile != "" {
			asked++
		}
		if req.OOMScope != "" {
			asked++
		}
		ours := 0
		for k := range annotations {
			if strings.HasPrefix(k, Prefix) && k != spec.ReservedAnnotation {
				ours++
			}
		}
		if asked != ours {
			t.Errorf("%q: %d of ours, %d taken", annotations, ours, asked)
		}
		for k, v := range req.Annotations {
			info, _ := k.Info()
			checkSame(t, info, v)
		}
		// Written out and applied again, it is the same request.
		again, out := limits.Request{}, map[string]string{}
		for k, v := range req.Annotations {
			info, _ := k.Info()
			out[AnnotationName(k)] = info.String(v)
		}
		if req.Profile != "" {
			out[ProfileAnnotation] = req.Profile
		}
		if req.OOMScope != "" {
			out[OOMScopeAnnotation] = string(req.OOMScope)
		}
		if err := ApplyAnnotations(out, &again); err != nil {
			t.Errorf("%v: %v", out, err)
		}
		if len(req.Annotations)+len(again.Annotations) > 0 && !reflect.DeepEqual(again, req) {
			t.Errorf("got %+v, want %+v", again, req)
		}
	})
}
