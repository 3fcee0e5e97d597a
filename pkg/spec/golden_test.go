package spec_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

var update = flag.Bool("update", false, "write the golden files")

// fixtures returns the config.json files that were captured from or written in
// the style of real engines, by name.
func fixtures(t testing.TB) map[string][]byte {
	paths, err := filepath.Glob("testdata/rewrite/*.json")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		if strings.HasSuffix(name, ".golden") {
			continue
		}
		if files[name], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if len(files) < 6 {
		t.Fatalf("%d fixtures, some are missing", len(files))
	}
	return files
}

// goldenWorld is a cgroup v2 host with a hook and an annotation.
func goldenWorld() world {
	w := v2World()
	w.hook = &spec.Hook{Path: "/usr/local/bin/agentbox-runtime", Args: []string{"attach"}}
	w.annotations = limits.Set{limits.KeyCPUs: limits.Limit(1_000_000)}
	return w
}

func report(r *rewritten) []byte {
	var b bytes.Buffer
	for _, e := range r.plan.Entries {
		info, _ := e.Key.Info() // the keys of a plan are known
		requested := "-"
		if e.Requested != nil {
			requested = info.String(*e.Requested)
		}
		fmt.Fprintf(&b, "%-16s asked %-14s gets %-14s from the %-10s by %-8s %-16s %s\n",
			e.Key, requested, info.String(e.Value), e.Source, e.Enforcer, e.Mechanism, e.Detail)
	}
	for _, disk := range r.plan.IO.Disks {
		for _, l := range disk.Limits {
			info, _ := l.Key.Info()
			requested := "-"
			if l.Requested != nil {
				requested = info.String(*l.Requested)
			}
			fmt.Fprintf(&b, "%-16s asked %-14s gets %-14s from the %-10s on %s\n", l.Key, requested, info.String(l.Value), l.Source, disk.Name)
		}
	}
	fmt.Fprintf(&b, "cpu.max %d %d, scope %s, group kill %v, oom_score_adj %d\n",
		r.plan.CPUQuota, r.plan.CPUPeriod, r.plan.OOMScope, r.plan.GroupKill, r.plan.OOMScoreAdj)
	for _, w := range r.warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.Bytes()
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: make it with -update", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; look at it with -update and git diff:\n%s", path, got)
	}
}

func TestEnginesFilesAreRewrittenAsRecorded(t *testing.T) {
	for name, data := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			r := goldenWorld().mustRewrite(t, string(data))
			golden(t, filepath.Join("testdata/rewrite", name+".golden.json"), r.data)
			golden(t, filepath.Join("testdata/rewrite", name+".report.txt"), report(r))
		})
	}
}

// worlds are the policies and hosts that every fixture and every fuzzed file is
// rewritten for.
func worlds() map[string]world {
	off := v2World()
	off.policy.Mode = limits.ModeOff
	kubernetesLike := everythingWorld()
	kubernetesLike.annotations, kubernetesLike.hook = nil, nil
	wanted := everythingWorld().supervised()
	wanted.policy.Supervise = limits.Supervisable[:]
	systemd := v2World()
	systemd.host.Systemd, systemd.host.SystemdVersion = true, 257
	return map[string]world{
		"v2, systemd":                  systemd,
		"v2":                           v2World(),
		"v2 with a hook":               goldenWorld(),
		"v2, low limits":               everythingWorld(),
		"v2, low limits, nobody asked": kubernetesLike,
		"v2, generous":                 generousWorld(),
		"v2, no swap":                  v2World().without(limits.KeySwap),
		"v2, no cpu":                   generousWorld().without(limits.KeyCPUs),
		"v2, some supervised":          noMemoryWorld().without(limits.KeyCPUs, limits.KeyIOWriteBPS).supervised(),
		"v2, supervised by choice":     wanted,
		"v1, no memsw, supervised":     v1World().without(limits.KeySwap).supervised(),
		"no cgroup, supervised":        noCgroupWorld().supervised(),
		"v1":                           v1World(),
		"v1, no memsw":                 v1World().without(limits.KeySwap),
		"v1, weights":                  v1WeightWorld(),
		"no memory":                    noMemoryWorld(),
		"no cgroup":                    noCgroupWorld(),
		"v2, no io":                    noIOWorld(),
		"v2, some io":                  v2World().without(limits.KeyIOWriteBPS, limits.KeyIOReadIOPS),
		"v2, weights":                  weightWorld(),
		"v2, no disk":                  disklessWorld(),
		"v2, network":                  networkWorld(),
		"off":                          off,
	}
}

func TestEnginesFilesKeepEveryPromiseOnEveryHost(t *testing.T) {
	for name, data := range fixtures(t) {
		for world, w := range worlds() {
			t.Run(name+"/"+world, func(t *testing.T) {
				w.verify(t, data, w.mustRewrite(t, string(data)))
			})
		}
	}
}

// The promises above include what runc makes of a file, as far as runc takes it:
// it must take all of these.
func TestRuncTakesTheFixtures(t *testing.T) {
	for name, data := range fixtures(t) {
		s, err := decode(data)
		if err == nil {
			_, err = libcontainer(s)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
