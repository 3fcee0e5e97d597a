package spec_test

import (
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

func TestOnlyAPIDNamespaceOfItsOwnCounts(t *testing.T) {
	for namespaces, want := range map[string]bool{
		`[{"type":"pid"}]`: true,
		`[{"type":"mount"},{"type":"pid","path":""}]`:    true,
		`[{"type":"pid","path":null}]`:                   true,
		`[{"type":"pid","path":"/proc/1/ns/pid"}]`:       false,
		`[{"type":"pid","path":"/proc/7/ns/pid"}]`:       false,
		`[{"type":"pid"},{"type":"pid"}]`:                false,
		`[{"type":"pid","path":"/x"},{"type":"pid"}]`:    false,
		`[{"type":"pid"},{"type":"pid"},{"type":"pid"}]`: false,
		`[{"type":"mount"},{"type":"user","path":"/x"}]`: false,
		`[]`:   false,
		`null`: false,
	} {
		doc, err := spec.Parse([]byte(`{"linux":{"namespaces":` + namespaces + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		req, err := doc.Request("/")
		if err != nil || req.OwnPIDNamespace != want {
			t.Errorf("%s: %v, %v, want %v", namespaces, req.OwnPIDNamespace, err, want)
		}
	}
	for namespaces, want := range map[string]string{
		`{}`:                        "linux.namespaces",
		`[5]`:                       "linux.namespaces[0]",
		`[{"type":5}]`:              "linux.namespaces[0].type",
		`[{"type":"pid","path":5}]`: "linux.namespaces[0].path",
		`[{"Type":"pid"}]`:          "Type",
	} {
		doc, err := spec.Parse([]byte(`{"linux":{"namespaces":` + namespaces + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := doc.Request("/"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one about %s", namespaces, err, want)
		}
	}
}

const pidNamespace = `"namespaces":[{"type":"pid"}]`

func TestWhatTheSupervisorHoldsIsTakenOutAndRemembered(t *testing.T) {
	const in = `{"linux":{` + pidNamespace + `,"resources":{
		"memory":{"limit":1073741824,"swap":2147483648,"swappiness":10,"disableOOMKiller":true},
		"pids":{"limit":100},"cpu":{"quota":10000,"period":30000,"burst":5,"shares":512},
		"unified":{"memory.max":"536870912","memory.low":"1","memory.oom.group":"1","pids.max":"90","cpu.max":"9000 30000","cpu.max.burst":"1"}}}}`
	w := noCgroupWorld().supervised()
	out := w.mustRewrite(t, in)
	w.verify(t, []byte(in), out)
	text := string(out.data)
	for _, gone := range []string{`"limit"`, `"swap"`, "disableOOM", `"pids":{"limit`, `"quota"`, `"period"`, `"burst"`, "memory.max", "oom.group", "pids.max", "cpu.max"} {
		if strings.Contains(text, gone) {
			t.Errorf("%s is still there:\n%s", gone, text)
		}
	}
	for _, kept := range []string{`"swappiness":10`, `"shares":512`, `"memory.low":"1"`} {
		if !strings.Contains(text, kept) {
			t.Errorf("%s is gone:\n%s", kept, text)
		}
	}
	want := map[limits.Key]limits.Value{limits.KeyMemory: limits.Limit(512 * mib), limits.KeySwap: limits.Limit(0), limits.KeyPids: limits.Limit(90), limits.KeyCPUs: limits.Limit(300_000)}
	check := func(when string, plan *limits.Plan, enforcer limits.Enforcer) {
		t.Helper()
		for key, v := range want {
			if e := plan.Entry(key); e.Value != v || e.Enforcer != enforcer {
				t.Errorf("%s: %+v, want %+v by the %s", when, e, v, enforcer)
			}
		}
	}
	check("at first", out.plan, limits.EnforcerSupervisor)
	again := w.mustRewrite(t, text)
	check("again", again.plan, limits.EnforcerSupervisor)
	if e := again.plan.Entry(limits.KeyMemory); e.Source != limits.SourceSpec || e.Requested == nil || e.Requested.N != 512*mib {
		t.Errorf("the second report is %+v, want the request that was taken out", e)
	}
	// A host that can do it now gets what was asked for at first.
	check("where the kernel can", v2World().mustRewrite(t, text).plan, limits.EnforcerKernel)

	changed := strings.Replace(text, `"swappiness":10`, `"swappiness":10,"limit":2147483648`, 1)
	if e := w.mustRewrite(t, changed).plan.Entry(limits.KeyMemory); e.Value != limits.Limit(2*gib) {
		t.Errorf("memory %+v, want the field that somebody has set since", e)
	}
}

// TestAForgedRecordGetsNoMoreThanAnAnnotation: the ceiling holds, and a limit that
// the engine has set.
func TestAForgedRecordGetsNoMoreThanAnAnnotation(t *testing.T) {
	forged := func(n, resources string) string {
		return `{"annotations":{"agentbox.dev/original":"{\"memory\":{\"value\":{\"n\":` + n + `},\"source\":\"default\",\"removed\":true}}"},"linux":{` + pidNamespace + resources + `}}`
	}
	w := v2World()
	w.policy.Ceilings[limits.KeyMemory] = limits.Limit(3 * gib)
	for name, c := range map[string]struct {
		in   string
		want int64
	}{
		"above the ceiling":            {forged("9000000000000", ""), 3 * gib},
		"above the engine's limit":     {forged("2147483648", `,"resources":{"memory":{"limit":1073741824}}`), gib},
		"no number of a limit":         {forged("-5", ""), 2 * gib},
		"within what anybody may have": {forged("1073741824", ""), gib},
	} {
		if e := w.mustRewrite(t, c.in).plan.Entry(limits.KeyMemory); e.Value != limits.Limit(c.want) {
			t.Errorf("%s: %+v, want %d", name, e, c.want)
		}
	}
}
