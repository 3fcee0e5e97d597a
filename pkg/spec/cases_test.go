package spec_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

// reread returns the output as runc reads it.
func (r *rewritten) reread(t *testing.T) *specs.Spec {
	t.Helper()
	s, err := decode(r.data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSwapIsOffWhateverTheEngineSendsWithMemory(t *testing.T) {
	const limit = 64 * mib
	for name, memory := range map[string]string{
		"swap is twice the limit":       `"memory":{"limit":67108864,"swap":134217728}`,
		"swap is absent":                `"memory":{"limit":67108864}`,
		"swap is null":                  `"memory":{"limit":67108864,"swap":null}`,
		"swap is 0":                     `"memory":{"limit":67108864,"swap":0}`,
		"swap is unlimited":             `"memory":{"limit":67108864,"swap":-1}`,
		"swap is the limit":             `"memory":{"limit":67108864,"swap":67108864}`,
		"swap is the largest number":    `"memory":{"limit":67108864,"swap":9223372036854775807}`,
		"swap is unlimited in unified":  `"memory":{"limit":67108864},"unified":{"memory.swap.max":"max"}`,
		"the limit is in unified":       `"unified":{"memory.max":"67108864","memory.swap.max":"67108864"}`,
		"unified is stricter":           `"memory":{"limit":671088640,"swap":-1},"unified":{"memory.max":"67108864"}`,
		"the field is stricter":         `"memory":{"limit":67108864,"swap":-1},"unified":{"memory.max":"671088640"}`,
		"a swap value without a limit":  `"memory":{"swap":67108864}`,
		"a swap value, limit unlimited": `"memory":{"limit":-1,"swap":67108864}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := v2World().mustRewrite(t, resources(memory))
			res := r.reread(t).Linux.Resources
			if *res.Memory.Limit != limit || *res.Memory.Swap != limit {
				t.Errorf("memory = %d, swap = %d, want %d for both", *res.Memory.Limit, *res.Memory.Swap, limit)
			}
			if res.Unified["memory.swap.max"] != "0" {
				t.Errorf("memory.swap.max = %q, want 0", res.Unified["memory.swap.max"])
			}
			if max, ok := res.Unified["memory.max"]; ok {
				t.Errorf("memory.max = %q is still there and wins over the field", max)
			}
			w := v1World()
			res = w.mustRewrite(t, resources(memory)).reread(t).Linux.Resources
			if *res.Memory.Limit != limit || *res.Memory.Swap != limit {
				t.Errorf("cgroup v1: memory = %d, swap = %d, want %d for both", *res.Memory.Limit, *res.Memory.Swap, limit)
			}
		})
	}
}

func TestSwapThatThePolicyGivesIsAddedToTheLimit(t *testing.T) {
	w := v2World()
	w.policy.Defaults[limits.KeySwap] = limits.Limit(16 * mib)
	for memory, want := range map[string]int64{
		`"memory":{"limit":67108864,"swap":134217728}`: 16 * mib,
		`"memory":{"limit":67108864,"swap":68157440}`:  mib,
		`"memory":{"limit":67108864,"swap":67108864}`:  0,
		`"memory":{"limit":67108864}`:                  16 * mib,
	} {
		res := w.mustRewrite(t, resources(memory)).reread(t).Linux.Resources
		if *res.Memory.Swap != 64*mib+want || res.Unified["memory.swap.max"] != fmt.Sprint(want) {
			t.Errorf("%s: swap = %d, memory.swap.max = %s, want %d and %d", memory, *res.Memory.Swap, res.Unified["memory.swap.max"], 64*mib+want, want)
		}
	}
}

func TestWhereSwapCannotBeLimitedItGrowsByNothing(t *testing.T) {
	w := v2World().without(limits.KeySwap)
	w.annotations = limits.Set{limits.KeyMemory: limits.Limit(gib)}
	for memory, want := range map[string]int64{
		`"memory":{"limit":4294967296,"swap":5368709120}`: 2 * gib, // 1 GiB of swap before and after
		`"memory":{"limit":4294967296,"swap":4294967296}`: gib,
		`"memory":{"limit":4294967296,"swap":-1}`:         -1,
		`"memory":{"swap":536870912}`:                     gib / 2,
	} {
		if res := w.mustRewrite(t, resources(memory)).reread(t).Linux.Resources; *res.Memory.Swap != want {
			t.Errorf("%s: swap = %d with limit %d, want %d", memory, *res.Memory.Swap, *res.Memory.Limit, want)
		}
	}
}

func TestUnifiedCannotLiftALimit(t *testing.T) {
	r := weightWorld().mustRewrite(t, resources(`"memory":{"limit":67108864},"pids":{"limit":100},"cpu":{"quota":50000,"period":100000},
		"unified":{"memory.max":"max","memory.high":"max","memory.swap.max":"max","memory.oom.group":"0","pids.max":"max","cpu.max":"max 100000","cpu.max.burst":"9999999","io.weight":"100"}`))
	res := r.reread(t).Linux.Resources
	if *res.Memory.Limit != 64*mib || *res.Pids.Limit != 100 || *res.CPU.Quota != 50_000 || *res.CPU.Period != 100_000 {
		t.Errorf("resources = %s, want the fields as they were", r.data)
	}
	// memory.high has no limit in the policy, so max there is nobody's business.
	if want := map[string]string{"memory.high": "max", "memory.swap.max": "0", "memory.oom.group": "1", "io.weight": "100"}; !maps.Equal(res.Unified, want) {
		t.Errorf("unified = %v, want %v", res.Unified, want)
	}
	if all := strings.Join(r.warnings, "\n"); !strings.Contains(all, "memory.oom.group=0 from the spec is dropped") || !strings.Contains(all, "swap: no limit in the spec lowered to 0") {
		t.Errorf("warnings = %q, want the group kill and the swap in them", all)
	}
}

func TestUnifiedAloneIsARequestToo(t *testing.T) {
	r := v2World().mustRewrite(t, resources(`"unified":{"memory.max":"100000000","memory.high":" 90000000\n","memory.swap.max":"0","pids.max":"77","cpu.max":"50000 200000"}`))
	res := r.reread(t).Linux.Resources
	if *res.Memory.Limit != 100_000_000 || *res.Pids.Limit != 77 || *res.CPU.Quota != 50_000 || *res.CPU.Period != 200_000 {
		t.Errorf("resources = %s, want what unified asked for in the fields", r.data)
	}
	if want := map[string]string{"memory.high": "90000000", "memory.swap.max": "0", "memory.oom.group": "1"}; !maps.Equal(res.Unified, want) {
		t.Errorf("unified = %v, want %v", res.Unified, want)
	}
}

func TestWhereTheKernelCannotEnforceUnifiedStays(t *testing.T) {
	const text = `"unified":{"memory.max":"100000000","memory.oom.group":"0","pids.max":"77"}`
	r := noMemoryWorld().mustRewrite(t, resources(text))
	res := r.reread(t).Linux.Resources
	if res.Memory != nil || !maps.Equal(res.Unified, map[string]string{"memory.max": "100000000", "memory.oom.group": "0"}) {
		t.Errorf("rewritten to %s, want memory left as it was", r.data)
	}
	if *res.Pids.Limit != 77 {
		t.Errorf("pids = %d, want 77", *res.Pids.Limit)
	}
}

func TestPidsThatMeanNoLimitGetThePolicysValue(t *testing.T) {
	for _, text := range []string{
		``, `"pids":{}`, `"pids":null`, `"pids":{"limit":null}`, `"pids":{"limit":0}`, `"pids":{"limit":-0}`, `"pids":{"limit":-1}`, `"pids":{"limit":-7}`,
		`"pids":{"limit":9223372036854775807}`, `"pids":{"limit":4194305}`, `"unified":{"pids.max":"max"}`, `"pids":{"limit":0},"unified":{"pids.max":"max\n"}`,
		`"unified":{"pids.max":"9223372036854775807"}`,
	} {
		for name, w := range map[string]world{"v2": v2World(), "v1": v1World()} {
			r := w.mustRewrite(t, resources(text))
			res := r.reread(t).Linux.Resources
			if *res.Pids.Limit != 2048 {
				t.Errorf("%s, %s: pids = %d, want the policy's 2048", name, text, *res.Pids.Limit)
			}
			if _, ok := res.Unified["pids.max"]; ok && name == "v2" {
				t.Errorf("%s: pids.max is still in unified: %s", text, r.data)
			}
		}
	}
	v2World().mustRefuse(t, resources(`"pids":{"limit":1}`), "pids 1 from the spec is too small")
	v2World().mustRefuse(t, resources(`"unified":{"pids.max":"0"}`), "pids 0 from the spec is too small")
}

func TestTheCPUQuotaOfTheSpec(t *testing.T) {
	for _, c := range []struct {
		name, text    string
		quota, period int64
		refused       string
	}{
		{name: "a fraction", text: `"cpu":{"quota":12345,"period":100000}`, quota: 12345, period: 100_000},
		{name: "a short period", text: `"cpu":{"quota":20000,"period":10000}`, quota: 20_000, period: 10_000},
		{name: "no period", text: `"cpu":{"quota":50000}`, quota: 50_000, period: 100_000},
		{name: "no quota", text: `"cpu":{"period":50000}`, quota: 100_000, period: 50_000},
		{name: "a negative quota", text: `"cpu":{"quota":-1,"period":50000}`, quota: 100_000, period: 50_000},
		{name: "more than the host", text: `"cpu":{"quota":6400000,"period":100000}`, quota: 800_000, period: 100_000},
		{name: "more than any host", text: `"cpu":{"quota":9223372036854775807,"period":1000}`, quota: 2_000, period: 1_000},
		{name: "unified is stricter", text: `"cpu":{"quota":50000,"period":100000},"unified":{"cpu.max":"10000 50000"}`, quota: 10_000, period: 50_000},
		{name: "unified is looser", text: `"cpu":{"quota":50000,"period":100000},"unified":{"cpu.max":"100000 50000"}`, quota: 50_000, period: 100_000},
		{name: "unified leaves the period to the fields", text: `"cpu":{"period":1000000},"unified":{"cpu.max":"50000"}`, quota: 50_000, period: 1_000_000},
		{name: "unified has no period at all", text: `"unified":{"cpu.max":"50000"}`, quota: 50_000, period: 100_000},
		{name: "unified has no limit", text: `"cpu":{"quota":50000,"period":100000},"unified":{"cpu.max":"max 50000"}`, quota: 50_000, period: 100_000},
		{name: "a quota that the kernel refuses", text: `"cpu":{"quota":500,"period":100000}`, refused: "cpu quota 500 µs is below the kernel's minimum of 1000"},
		{name: "a period that the kernel refuses", text: `"cpu":{"quota":50000,"period":10}`, refused: "cpu period 10 µs is outside"},
		{name: "a period above the kernel's", text: `"cpu":{"period":1000001}`, refused: "cpu period 1000001 µs is outside"},
		{name: "a quota of nothing in unified", text: `"unified":{"cpu.max":"0 100000"}`, refused: "cpu quota 0 µs is below"},
		{name: "a period of nothing in unified", text: `"unified":{"cpu.max":"5000 0"}`, refused: `"5000 0" where`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.refused != "" {
				v2World().mustRefuse(t, resources(c.text), c.refused)
				return
			}
			cpu := v2World().mustRewrite(t, resources(c.text)).reread(t).Linux.Resources.CPU
			if *cpu.Quota != c.quota || int64(*cpu.Period) != c.period {
				t.Errorf("cpu = %d/%d, want %d/%d", *cpu.Quota, *cpu.Period, c.quota, c.period)
			}
		})
	}
}

func TestABurstNeverExceedsTheQuota(t *testing.T) {
	cpu := v2World().mustRewrite(t, resources(`"cpu":{"quota":50000,"period":100000,"burst":60000}`)).reread(t).Linux.Resources.CPU
	if *cpu.Burst != 50_000 {
		t.Errorf("burst = %d, want 50000", *cpu.Burst)
	}
	for text, keep := range map[string]bool{"50000": true, "50001": false, "max": false, "0x9": false} {
		res := v2World().mustRewrite(t, resources(`"cpu":{"quota":50000,"period":100000},"unified":{"cpu.max.burst":"`+text+`"}`)).reread(t).Linux.Resources
		if _, kept := res.Unified["cpu.max.burst"]; kept != keep {
			t.Errorf("cpu.max.burst %s is kept: %v, want %v", text, kept, keep)
		}
	}
}

// The kernel and runc read more forms of a number than one; a form that could be
// read in two ways is refused.
func TestUnifiedValuesThatCouldBeReadInTwoWaysAreRefused(t *testing.T) {
	for _, value := range []string{
		"", " ", "-1", "+67108864", "0400000000", "00", "0x4000000", "512M", "1G", "1e9", "1.0", "100%", "MAX", "max max", "67108864 1",
		"67108864\nmax", "\u00a067108864", "9223372036854775808", "\uff11", "1_000_000_000",
	} {
		for _, name := range []string{"memory.max", "memory.high", "memory.swap.max", "pids.max"} {
			text, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			v2World().mustRefuse(t, resources(fmt.Sprintf(`"unified":{%q:%s}`, name, text)), name)
		}
	}
	for _, value := range []string{"", "50000\t100000", "050000 100000", "50000 0100000", "+50000", "-1 100000", "50000 100000 1", "50000abc", "max\n50000 100000", "5e4", "50000 max"} {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		v2World().mustRefuse(t, resources(fmt.Sprintf(`"unified":{"cpu.max":%s}`, text)), "cpu.max")
	}
	for _, value := range []string{
		"", " ", "\n", "max", "8", "8:", "8:0:0 rbps=1", "+8:0 rbps=1", "-:0 rbps=1", "9223372036854775808:0 rbps=1", "sda rbps=1", "8:0 rbps", "8:0 rbps=", "8:0 rbps=0", "8:0 rbps=-1", "8:0 rbps=+1", "8:0 rbps=0100", "8:0 rbps=0x10", "8:0 rbps=1M", "8:0 rbps=MAX",
		"8:0 bps=1", "8:0 RBPS=1", "8:0 rbps=1,wbps=2", "8:0\u00a0rbps=1", "8:0 rbps=1 254:0 rbps=1", "8:0 rbps=1\nwbps=2", "8:0 rbps=1\n\n254:0 rbps=1", "8:0 rbps=18446744073709551616", "8:0 " + strings.Repeat("x", 5000),
	} {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		v2World().mustRefuse(t, resources(fmt.Sprintf(`"unified":{"io.max":%s}`, text)), `linux.resources.unified["io.max"] is`)
	}
	v2World().mustRefuse(t, resources(`"unified":{"../memory.max":"max"}`), "is not a file name")
	for _, name := range []string{"cgroup.procs", "cgroup.freeze", "cgroup.kill", `\u0063group.type`} {
		v2World().mustRefuse(t, resources(`"unified":{"`+name+`":"1"}`), "is no resource of a container")
	}
	v2World().mustRefuse(t, resources(`"unified":{"memory.max":"1","memory.max":"max"}`), "is there twice")
	v2World().mustRefuse(t, resources(`"unified":{"memory.max":null}`), "is null where a string is expected")
}

// crun reads a key or a string up to the NUL in it, and the last of two equal
// keys wins.
func TestAZeroCharacterIsRefusedWhereverItStands(t *testing.T) {
	for _, data := range []string{
		`{"linux":{},"linux\u0000z":{}}`,
		`{"linux":{"resources\u0000":{}}}`,
		`{"process\u0000":{}}`,
		process(`"rlimits":[{"type":"RLIMIT_CORE","hard":0,"soft":0,"hard\u0000":5}]`),
		process(`"rlimits":[{"type":"RLIMIT_NOFILE\u0000x","hard":99,"soft":99}]`),
		resources(`"unified":{"pids.max\u0000":"max"}`),
		`{"annotations":{"x":"a\u0000"}}`,
		`{"x":[{"y":["\\\u0000"]}]}`,
		`{"x":"\\\\\u0000"}`,
		`{"x":"\"\u0000"}`,
	} {
		for _, w := range worlds() {
			w.mustRefuse(t, data, `holds \u0000`)
		}
	}
	for _, data := range []string{
		`{"x":"\\u0000","\\u0000":"\\\\u0000"}`, // a backslash and a text
		`{"x":"\u0001\u1000u0000"}`,
	} {
		v2World().verify(t, []byte(data), v2World().mustRewrite(t, data))
	}
}

func TestFieldsThatReadersDisagreeAboutAreRefused(t *testing.T) {
	for _, c := range []struct{ text, message string }{
		{`{"Linux":{}}`, `"Linux" is not spelled "linux"`},
		{`{"linux":{},"linux":{}}`, "there twice"},
		{`{"linux":{},"\u006cinux":{}}`, "there twice"},
		{`{"linux":{"\u212a":1},"LINUX":{}}`, "not spelled"},
		{`{"linux":{"Resources":{}}}`, "linux: the key"},
		{`{"linux":{"resources":{"Memory":{"limit":-1}}}}`, "linux.resources: the key"},
		{`{"linux":{"resources":{"memory":{"limit":67108864,"Limit":-1}}}}`, "linux.resources.memory: the key"},
		{`{"linux":{"resources":{"memory":{"limit":67108864,"limit":-1}}}}`, "there twice"},
		{`{"linux":{"resources":{"memory":{"swap":1,"SWAP":-1}}}}`, "not spelled"},
		{"{\"linux\":{\"resources\":{\"memory\":{\"disableOOM\u212ailler\":true}}}}", "not spelled"},
		{"{\"linux\":{\"re\u017fources\":{}}}", "not spelled"},
		{`{"linux":{"resources":{"pids":{"LIMIT":1}}}}`, "not spelled"},
		{`{"linux":{"resources":{"cpu":{"Quota":1}}}}`, "not spelled"},
		{`{"linux":{"resources":{"cpu":{"pEriod":1}}}}`, "not spelled"},
		{`{"linux":{"resources":{"cpu":{"burst":1,"Burst":2}}}}`, "not spelled"},
		{`{"linux":{"resources":{"Unified":{}}}}`, "not spelled"},
		{`{"Process":{}}`, "not spelled"},
		{`{"process":{"oomscoreadj":-1000}}`, "not spelled"},
		{`{"process":{"Rlimits":[]}}`, "not spelled"},
		{`{"process":{"rlimits":[{"type":"RLIMIT_CORE","hard":1,"Hard":2,"soft":1}]}}`, "process.rlimits[0]: the key"},
		{`{"process":{"rlimits":[{"type":"RLIMIT_CORE","hard":1,"soft":1},{"type":"RLIMIT_CORE","hard":2,"soft":2}]}}`, "twice"},
		{`{"linux":{"resources":{"blockio":{}}}}`, "not spelled"},
		{`{"linux":{"resources":{"blockIO":{},"blockio":{"throttleReadBpsDevice":[]}}}}`, `linux.resources: the key "blockio" is not spelled "blockIO"`},
		{`{"linux":{"resources":{"blockIO":{},"blockIO":{}}}}`, "there twice"},
		{`{"linux":{"resources":{"blockIO":{"ThrottleReadBpsDevice":[]}}}}`, "not spelled"},
		{`{"linux":{"resources":{"blockIO":{"throttleWriteBPSDevice":[]}}}}`, "not spelled"},
		{`{"linux":{"resources":{"blockIO":{"throttleReadIopsDevice":[]}}}}`, "not spelled"},
		{`{"linux":{"resources":{"blockIO":{"throttleWriteIOPSDevice":[],"throttleWriteIOPSDevice":[]}}}}`, "there twice"},
		{`{"linux":{"resources":{"blockIO":{"Weight":1}}}}`, "not spelled"},
		{`{"linux":{"resources":{"blockIO":{"leafweight":1}}}}`, "not spelled"},
		{`{"linux":{"resources":{"blockIO":{"weightdevice":[]}}}}`, "not spelled"},
		{`{"linux":{"resources":{"blockIO":{"throttleReadBpsDevice":[{"major":8,"Major":9,"minor":0,"rate":1}]}}}}`, `linux.resources.blockIO.throttleReadBpsDevice[0]: the key "Major"`},
		{`{"linux":{"resources":{"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"minor":1,"rate":1}]}}}}`, "there twice"},
		{`{"linux":{"resources":{"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1,"rate":2}]}}}}`, "there twice"},
		{`{"linux":{"resources":{"blockIO":{"weightDevice":[{"major":8,"minor":0,"weight":100,"WEIGHT":2}]}}}}`, "not spelled"},
		{`{"linux":{"resources":{"unified":{"io.max":"8:0 rbps=1","io.max":"8:0 rbps=max"}}}}`, "there twice"},
		{`{"linux":{"devices":[{"type":"b","Type":"c"}]}}`, "linux.devices[0]: the key"},
		{`{"linux":{"devices":[{"type":"b","MAJOR":8}]}}`, "not spelled"},
		{`{"linux":{"Devices":[]}}`, "not spelled"},
		{`{"root":{"Path":"x"}}`, "root: the key"},
		{`{"root":{"path":"x","readOnly":true}}`, "not spelled"},
		{`{"root":{"path":"x"},"Root":{}}`, "not spelled"},
		{`{"Mounts":[]}`, "not spelled"},
		{`{"mounts":[{"source":"/a","source":"/b"}]}`, "mounts[0]: the key"},
		{`{"mounts":[{"Type":"bind"}]}`, "not spelled"},
		{`{"mounts":[{"Destination":"/x"}]}`, "not spelled"},
		{`{"mounts":[{"options":[],"Options":["bind"]}]}`, "not spelled"},
		{`{"annotations":{"a":"1","a":"2"}}`, "there twice"},
		{`{"Annotations":{}}`, "not spelled"},
		{`{"Hooks":{}}`, "not spelled"},
		{`{"hooks":{"CreateRuntime":[]}}`, "not spelled"},
	} {
		v2World().mustRefuse(t, c.text, c.message)
	}
}

func TestValuesOfTheWrongKindAreRefusedByName(t *testing.T) {
	for _, c := range []struct{ text, message string }{
		{``, "not valid JSON"},
		{`{`, "not valid JSON at byte 1"},
		{`{} {}`, "not valid JSON at byte 4"},
		{"\xef\xbb\xbf{}", "not valid JSON at byte 1"},
		{`[]`, "the document is a list where an object is expected"},
		{`null`, "the document is null where an object is expected"},
		{`{"linux":[]}`, "linux is a list where an object is expected"},
		{`{"linux":{"resources":"x"}}`, "linux.resources is a string where an object is expected"},
		{`{"linux":{"resources":{"memory":{"limit":"64m"}}}}`, "linux.resources.memory.limit is"},
		{`{"linux":{"resources":{"memory":{"limit":1e9}}}}`, "1e9 where a whole number"},
		{`{"linux":{"resources":{"memory":{"limit":1.0}}}}`, "1.0 where a whole number"},
		{`{"linux":{"resources":{"memory":{"limit":9223372036854775808}}}}`, "below 2^63"},
		{`{"linux":{"resources":{"memory":{"swap":true}}}}`, "linux.resources.memory.swap is"},
		{`{"linux":{"resources":{"memory":{"limit":67108864,"swap":67108863}}}}`, "is below linux.resources.memory.limit"},
		{`{"linux":{"resources":{"memory":5}}}`, "linux.resources.memory is a number"},
		{`{"linux":{"resources":{"pids":{"limit":{}}}}}`, "linux.resources.pids.limit is"},
		{`{"linux":{"resources":{"cpu":{"quota":[]}}}}`, "linux.resources.cpu.quota is"},
		{`{"linux":{"resources":{"unified":{"memory.max":5}}}}`, "is a number where a string is expected"},
		{`{"linux":{"resources":{"memory":{"limit":6291455}}}}`, "too small for a container to start"},
		{`{"process":{"rlimits":{}}}`, "process.rlimits is an object where a list is expected"},
		{`{"process":{"rlimits":[5]}}`, "process.rlimits[0] is a number where an object is expected"},
		{`{"process":{"rlimits":[{}]}}`, "process.rlimits[0].type is nothing where a string is expected"},
		{`{"process":{"rlimits":[{"type":"RLIMIT_CORE","hard":-1,"soft":0}]}}`, "process.rlimits[0].hard is -1 where"},
		{`{"process":{"rlimits":[{"type":"RLIMIT_CORE","hard":18446744073709551616,"soft":0}]}}`, "below 2^64"},
		{`{"process":{"rlimits":[{"type":"RLIMIT_NOFILE","hard":18446744073709551615,"soft":3}]}}`, "soft limit 3 of RLIMIT_NOFILE is too small"},
		{`{"process":{"oomScoreAdj":1001}}`, "outside the kernel's range"},
		{`{"process":{"oomScoreAdj":"500"}}`, "process.oomScoreAdj is"},
		{`{"linux":{"resources":{"blockIO":[]}}}`, "linux.resources.blockIO is a list where an object is expected"},
		{`{"linux":{"resources":{"blockIO":{"throttleReadBpsDevice":{}}}}}`, "linux.resources.blockIO.throttleReadBpsDevice is an object where a list is expected"},
		{`{"linux":{"resources":{"blockIO":{"throttleWriteBpsDevice":[null]}}}}`, "linux.resources.blockIO.throttleWriteBpsDevice[0] is null where an object is expected"},
		{`{"linux":{"resources":{"blockIO":{"throttleReadIOPSDevice":[{"rate":1},{"major":"8"}]}}}}`, `linux.resources.blockIO.throttleReadIOPSDevice[1].major is "8" where a whole number`},
		{`{"linux":{"resources":{"blockIO":{"throttleReadIOPSDevice":[{"major":9223372036854775808}]}}}}`, "throttleReadIOPSDevice[0].major is 9223372036854775808 where a whole number below 2^63 is expected"},
		{`{"linux":{"resources":{"devices":{}}}}`, "linux.resources.devices is an object where a list is expected"},
		{`{"linux":{"resources":{"devices":[{"allow":true,"access":5}]}}}`, "linux.resources.devices[0].access is a number where a string is expected"},
		{`{"linux":{"resources":{"devices":[{},{"minor":"8"}]}}}`, `linux.resources.devices[1].minor is "8" where a whole number`},
		{`{"linux":{"resources":{"blockIO":{"throttleWriteIOPSDevice":[{"rate":-1}]}}}}`, "linux.resources.blockIO.throttleWriteIOPSDevice[0].rate is -1 where a whole number below 2^64"},
		{`{"linux":{"resources":{"blockIO":{"throttleWriteIOPSDevice":[{"rate":1e6}]}}}}`, "rate is 1e6 where"},
		{`{"linux":{"resources":{"blockIO":{"throttleWriteIOPSDevice":[{"rate":18446744073709551616}]}}}}`, "below 2^64"},
		{`{"linux":{"resources":{"blockIO":{"weight":"500"}}}}`, `linux.resources.blockIO.weight is "500" where`},
		{`{"linux":{"resources":{"blockIO":{"leafWeight":[]}}}}`, "linux.resources.blockIO.leafWeight is"},
		{`{"linux":{"resources":{"blockIO":{"weightDevice":5}}}}`, "linux.resources.blockIO.weightDevice is a number where a list"},
		{`{"linux":{"resources":{"blockIO":{"weightDevice":["8:0"]}}}}`, "linux.resources.blockIO.weightDevice[0] is a string where an object"},
		{`{"linux":{"resources":{"blockIO":{"weightDevice":[{"weight":1.5}]}}}}`, "linux.resources.blockIO.weightDevice[0].weight is 1.5 where"},
		{`{"linux":{"resources":{"blockIO":{"weightDevice":[{"major":1e0}]}}}}`, "linux.resources.blockIO.weightDevice[0].major is 1e0 where"},
		{`{"linux":{"devices":{}}}`, "linux.devices is an object where a list is expected"},
		{`{"linux":{"devices":[5]}}`, "linux.devices[0] is a number where an object is expected"},
		{`{"linux":{"devices":[{"type":5}]}}`, "linux.devices[0].type is a number where a string is expected"},
		{`{"linux":{"devices":[{"type":"b","path":[]}]}}`, "linux.devices[0].path is a list where a string is expected"},
		{`{"root":[]}`, "root is a list where an object is expected"},
		{`{"root":{"path":5}}`, "root.path is a number where a string is expected"},
		{`{"mounts":{}}`, "mounts is an object where a list is expected"},
		{`{"mounts":["x"]}`, "mounts[0] is a string where an object is expected"},
		{`{"mounts":[{},{"source":5}]}`, "mounts[1].source is a number where a string is expected"},
		{`{"mounts":[{"options":"ro"}]}`, `mounts[0].options is "ro" where a list of strings is expected`},
		{`{"mounts":[{"options":[5]}]}`, "mounts[0].options is [5] where a list of strings is expected"},
		{`{"annotations":{"a":1}}`, `the value of "a" is a number where a string is expected`},
		{`{"annotations":{"` + strings.Repeat("x", 5000) + `":1}}`, "where a string is expected"},
		{`{"hooks":{"createRuntime":5}}`, "hooks.createRuntime is a number where a list is expected"},
	} {
		v2World().mustRefuse(t, c.text, c.message)
	}
}

func TestRlimitsAreLoweredInPlaceAndAddedAtTheEnd(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"nothing given", `"env":[]`, `[{"type":"RLIMIT_NOFILE","hard":524288,"soft":65536},{"type":"RLIMIT_CORE","hard":0,"soft":0}]`},
		{"a null list", `"rlimits":null`, `[{"type":"RLIMIT_NOFILE","hard":524288,"soft":65536},{"type":"RLIMIT_CORE","hard":0,"soft":0}]`},
		{
			"unlimited", `"rlimits":[{"type":"RLIMIT_NOFILE","hard":18446744073709551615,"soft":18446744073709551615},{"type":"RLIMIT_STACK","hard":9,"soft":8}]`,
			`[{"type":"RLIMIT_NOFILE","hard":524288,"soft":65536},{"type":"RLIMIT_STACK","hard":9,"soft":8},{"type":"RLIMIT_CORE","hard":0,"soft":0}]`,
		},
		{
			"unlimited with a soft number", `"rlimits":[{"soft":1024,"hard":18446744073709551615,"type":"RLIMIT_NOFILE"}]`,
			`[{"soft":1024,"hard":524288,"type":"RLIMIT_NOFILE"},{"type":"RLIMIT_CORE","hard":0,"soft":0}]`,
		},
		{
			"less than the default", `"rlimits":[{"type":"RLIMIT_NOFILE","hard":2048, "soft":1024}]`,
			`[{"type":"RLIMIT_NOFILE","hard":2048, "soft":1024},{"type":"RLIMIT_CORE","hard":0,"soft":0}]`,
		},
		{
			"more than the caller has", `"rlimits":[{"type":"RLIMIT_NOFILE","hard":2000000,"soft":1500000}]`,
			`[{"type":"RLIMIT_NOFILE","hard":1048576,"soft":1048576},{"type":"RLIMIT_CORE","hard":0,"soft":0}]`,
		},
		{
			"core dumps without limit", `"rlimits":[{"type":"RLIMIT_CORE","hard":18446744073709551615,"soft":0,"x":[1]},{"type":"RLIMIT_NOFILE","hard":64,"soft":64}]`,
			`[{"type":"RLIMIT_CORE","hard":0,"soft":0,"x":[1]},{"type":"RLIMIT_NOFILE","hard":64,"soft":64}]`,
		},
		{
			"some core dumps, which the ceiling allows", `"rlimits":[{"type":"RLIMIT_CORE","hard":1000,"soft":10},{"type":"RLIMIT_NOFILE","hard":64,"soft":64}]`,
			`[{"type":"RLIMIT_CORE","hard":1000,"soft":10},{"type":"RLIMIT_NOFILE","hard":64,"soft":64}]`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out struct {
				Process struct {
					Rlimits json.RawMessage `json:"rlimits"`
				} `json:"process"`
			}
			if err := json.Unmarshal(v2World().mustRewrite(t, process(c.in)).data, &out); err != nil {
				t.Fatal(err)
			}
			if string(out.Process.Rlimits) != c.want {
				t.Errorf("rlimits\n%s, want\n%s", out.Process.Rlimits, c.want)
			}
		})
	}
}

func TestAnnotationsThatReachBeyondTheContainerAreDropped(t *testing.T) {
	const in = `{"annotations":{"org.systemd.property.MemoryMax":"uint64 1","run.oci.keep_original_groups":"1","org.criu.config":"/etc/x","\u0072un.oci.handler":"krun",
		"org.systemd.propertyless":"stays","x.run.oci.y":"stays","agentbox.dev/memory":"64GiB"},"process":{}}`
	names := func(r *rewritten) []string { return slices.Sorted(maps.Keys(r.reread(t).Annotations)) }

	r := v2World().mustRewrite(t, in)
	if want := []string{"agentbox.dev/memory", "agentbox.dev/original", "org.systemd.propertyless", "x.run.oci.y"}; !slices.Equal(names(r), want) {
		t.Errorf("annotations %q, want %q", names(r), want)
	}
	for _, name := range []string{"org.systemd.property.MemoryMax", "run.oci.keep_original_groups", "org.criu.config", "run.oci.handler"} {
		if !strings.Contains(strings.Join(r.warnings, "\n"), fmt.Sprintf("annotation %q is dropped", name)) {
			t.Errorf("no warning about %s in %q", name, r.warnings)
		}
	}

	w := v2World()
	w.policy.AllowAnnotations = []string{"run.oci.*", "org.criu.config"}
	if want := []string{"agentbox.dev/memory", "agentbox.dev/original", "org.criu.config", "org.systemd.propertyless", "run.oci.handler", "run.oci.keep_original_groups", "x.run.oci.y"}; !slices.Equal(names(w.mustRewrite(t, in)), want) {
		t.Errorf("annotations %q, want %q", names(w.mustRewrite(t, in)), want)
	}

	w = v2World()
	w.annotations = limits.Set{limits.KeyMemory: limits.Limit(64 * gib)}
	r = w.mustRewrite(t, in)
	if e := r.plan.Entry(limits.KeyMemory); e.Source != limits.SourceCeiling || !strings.Contains(strings.Join(r.warnings, "\n"), "memory: 64GiB from the annotation lowered to") {
		t.Errorf("memory = %+v with warnings %q, want the ceiling and a word about it", e, r.warnings)
	}
}

// What keeps memory.oom.group is set whatever the container says, and nobody else's
// word about the unit comes with it.
func TestSystemdIsToldOfTheGroupKill(t *testing.T) {
	const name = "org.systemd.property.OOMPolicy"
	for _, tc := range []struct {
		name, value string // of the container's own annotation
		systemd     int    // version; 0: the cgroupfs driver
		allow       bool
		want        string
		dropped     bool
	}{
		{name: "systemd", systemd: 257, want: "'kill'"},
		{name: "what the container says is replaced", value: "'continue'", systemd: 257, want: "'kill'"},
		{name: "also where it may say so", value: "'continue'", systemd: 257, allow: true, want: "'kill'"},
		{name: "a systemd that would refuse it", systemd: 252},
		{name: "a systemd that would refuse it from the container too", value: "'kill'", systemd: 252, dropped: true},
		{name: "the cgroupfs driver"},
		{name: "the cgroupfs driver, where the container may say so", value: "'stop'", allow: true, want: "'stop'"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := v2World()
			w.host.Systemd, w.host.SystemdVersion = tc.systemd > 0, tc.systemd
			if tc.allow {
				w.policy.AllowAnnotations = []string{"org.systemd.property.*"}
			}
			in := `{"annotations":{},"process":{}}`
			if tc.value != "" {
				in = fmt.Sprintf(`{"annotations":{%q:%q},"process":{}}`, name, tc.value)
			}
			r := w.mustRewrite(t, in)
			if got := r.reread(t).Annotations[name]; got != tc.want {
				t.Errorf("annotation %q, want %q", got, tc.want)
			}
			if dropped := strings.Contains(strings.Join(r.warnings, "\n"), "is dropped: it reaches beyond the container"); dropped != tc.dropped {
				t.Errorf("warnings %q", r.warnings)
			}
			again := w.mustRewrite(t, string(r.data))
			if string(again.data) != string(r.data) {
				t.Errorf("a second rewrite makes\n%s of\n%s", again.data, r.data)
			}
		})
	}
}

func TestRewritingWhatIsRewrittenIsTheSameAsOnce(t *testing.T) {
	for name, data := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			w := goldenWorld()
			first := w.mustRewrite(t, string(data))
			second := w.mustRewrite(t, string(first.data))
			if string(second.data) != string(first.data) {
				t.Errorf("twice gives\n%s, once\n%s", second.data, first.data)
			}
			// Why a value was lowered is not recorded.
			for i, e := range first.plan.Entries {
				if e.Applies() {
					first.plan.Entries[i].Detail = ""
				}
			}
			if a, b := entries(first), entries(second); a != b {
				t.Errorf("the second report says\n%s, the first\n%s", b, a)
			}
		})
	}
}

// entries is a report without its warnings, which tell what was changed just now.
func entries(r *rewritten) string {
	text, _, _ := strings.Cut(string(report(r)), "warning:")
	return text
}

func TestAForgedRecordIsClampedLikeAnyRequest(t *testing.T) {
	const record = `"annotations":{"agentbox.dev/original":"{\"memory\":{\"requested\":{\"n\":1},\"value\":{\"n\":68719476736},\"source\":\"default\",\"detail\":\"trust me\"},\"pids\":{\"value\":{\"none\":true}}}"}`
	r := v2World().mustRewrite(t, `{`+record+`,"process":{},"linux":{"resources":{"memory":{"limit":68719476736},"pids":{"limit":-1}}}}`)
	e := r.plan.Entry(limits.KeyMemory)
	if e.Value.N > 16*gib*80/100 || e.Source != limits.SourceCeiling || *e.Requested != limits.Limit(64*gib) {
		t.Errorf("memory = %+v, want it lowered to the ceiling", e)
	}
	if n := *r.reread(t).Linux.Resources.Pids.Limit; n != 2048 {
		t.Errorf("pids = %d, want the policy's 2048", n)
	}
	for _, junk := range []string{"", "null", "5", "[]", "{", `{"memory":5}`, `{"x":{"value":{"n":"y"}}}`, "\x01"} {
		text, err := json.Marshal(junk)
		if err != nil {
			t.Fatal(err)
		}
		w := v2World()
		out := w.mustRewrite(t, `{"annotations":{"agentbox.dev/original":`+string(text)+`}}`)
		if got := out.reread(t).Annotations[spec.ReservedAnnotation]; !strings.HasPrefix(got, `{"core_dumps":`) {
			t.Errorf("the record %q became %q, want ours", junk, got)
		}
	}
}

func TestAForgedRecordHasNoSayInReports(t *testing.T) {
	for record, want := range map[string]limits.Entry{
		`{"pids":{"value":{"n":100},"source":"default","detail":"trust me"}}`:       {Source: limits.SourceDefault},
		`{"pids":{"value":{"n":100},"source":"god"}}`:                               {Source: limits.SourceSpec, Requested: new(limits.Limit(100))},
		`{"pids":{"value":{"n":100},"source":"ceiling","requested":{"n":-5}}}`:      {Source: limits.SourceSpec, Requested: new(limits.Limit(100))},
		`{"pids":{"value":{"n":100},"source":"ceiling","requested":{"soft":-5}}}`:   {Source: limits.SourceSpec, Requested: new(limits.Limit(100))},
		`{"pids":{"value":{"n":100},"source":"ceiling","requested":{"n":1000000}}}`: {Source: limits.SourceCeiling, Requested: new(limits.Limit(1_000_000))},
	} {
		text, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		r := v2World().mustRewrite(t, `{"annotations":{"agentbox.dev/original":`+string(text)+`},"linux":{"resources":{"pids":{"limit":100}}}}`)
		e := r.plan.Entry(limits.KeyPids)
		if e.Value != limits.Limit(100) || e.Source != want.Source || e.Detail != "" || !reflect.DeepEqual(e.Requested, want.Requested) {
			t.Errorf("%s makes the report say %+v (%v)", record, e, e.Requested)
		}
		if strings.Contains(string(r.data), "trust me") {
			t.Errorf("the text of %s was recorded again", record)
		}
	}
}

// The value that the first run wrote is a request like any other: the record
// beside it may be forged, and an engine's own limit would be raised.
func TestAnAnnotationAddedAfterARewriteIsNotIgnoredInSilence(t *testing.T) {
	first := v2World().mustRewrite(t, `{}`)
	w := v2World()
	w.annotations = limits.Set{limits.KeyMemory: limits.Limit(3 * gib)}
	second := w.mustRewrite(t, string(first.data))
	if e := second.plan.Entry(limits.KeyMemory); e.Value != limits.Limit(2*gib) {
		t.Errorf("memory = %+v, want the 2GiB that stand in the file", e)
	}
	if all := strings.Join(second.warnings, "\n"); !strings.Contains(all, "memory: 3GiB from the annotation allows more than 2GiB from the spec") {
		t.Errorf("warnings = %q, want one about memory", all)
	}
}

func TestWhoCallsIsKubernetes(t *testing.T) {
	for text, want := range map[string]bool{
		`{}`:                                   false,
		`{"io.kubernetes.cri.sandbox-id":"1"}`: true,
		`{"io.kubernetes.cri-o.SandboxID":"1","io.container.manager":"cri-o"}`:            true,
		`{"io.kubernetes.pod.name":"x"}`:                                                  true,
		`{"io.kubernetes.cri-o.Created":"2026","io.container.manager":"libpod"}`:          false, // Podman marks its own so
		`{"io.kubernetesx":"1","x.io.kubernetes.cri.sandbox-id":"1","IO.KUBERNETES.":""}`: false,
	} {
		doc, err := spec.Parse([]byte(`{"annotations":` + text + `}`))
		if err != nil {
			t.Fatal(err)
		}
		req, err := doc.Request("/bundle")
		if err != nil {
			t.Fatal(err)
		}
		if req.Kubernetes != want {
			t.Errorf("%s is Kubernetes: %v, want %v", text, req.Kubernetes, want)
		}
	}
	v2World().mustRefuse(t, `{"annotations":{"io.kubernetes.cri.sandbox-id":"1"},"linux":{"resources":{"memory":{"limit":68719476736}}}}`, "ask for less, or raise [ceilings] memory")
}

func TestTheHookIsTheLastOneAndThereOnce(t *testing.T) {
	const ours = `{"path":"/old","args":["/old","--agentbox-hook","stale"]}`
	for _, c := range []struct{ name, in, with, without string }{
		{"no hooks", `{}`, `[HOOK]`, ``},
		{"null", `{"hooks":null}`, `[HOOK]`, ``},
		{"null list", `{"hooks":{"createRuntime":null}}`, `[HOOK]`, `null`},
		{"others", `{"hooks":{"createRuntime":[{"path":"/a"}, {"path":"/b"}]}}`, `[{"path":"/a"},{"path":"/b"},HOOK]`, `[{"path":"/a"}, {"path":"/b"}]`},
		{"a stale one", `{"hooks":{"createRuntime":[` + ours + `,{"path":"/b"}]}}`, `[{"path":"/b"},HOOK]`, `[{"path":"/b"}]`},
		{"only a stale one", `{"hooks":{"createRuntime":[` + ours + `]}}`, `[HOOK]`, `[]`},
		{
			"one that looks like ours in its path only", `{"hooks":{"createRuntime":[{"path":"--agentbox-hook","args":["--agentbox-hook"]}]}}`,
			`[{"path":"--agentbox-hook","args":["--agentbox-hook"]},HOOK]`, `[{"path":"--agentbox-hook","args":["--agentbox-hook"]}]`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := func(w world) string {
				var out struct {
					Hooks struct {
						CreateRuntime json.RawMessage `json:"createRuntime"`
					} `json:"hooks"`
				}
				if err := json.Unmarshal(w.mustRewrite(t, c.in).data, &out); err != nil {
					t.Fatal(err)
				}
				return string(out.Hooks.CreateRuntime)
			}
			w := v2World()
			if got := list(w); got != c.without {
				t.Errorf("without a hook: %s, want %s", got, c.without)
			}
			w.hook = &spec.Hook{Path: `/bin/"x"`, Args: []string{"attach", "<id>"}}
			hook := `{"args":["/bin/\"x\"","--agentbox-hook","attach","\u003cid\u003e"],"path":"/bin/\"x\""}`
			if got, want := list(w), strings.ReplaceAll(c.with, "HOOK", hook); got != want {
				t.Errorf("with a hook: %s, want %s", got, want)
			}
		})
	}
}

func TestModeOffReturnsTheFileAsItCame(t *testing.T) {
	for name, data := range fixtures(t) {
		w := goldenWorld()
		w.policy.Mode = limits.ModeOff
		if r := w.mustRewrite(t, string(data)); string(r.data) != string(data) {
			t.Errorf("%s was changed to %s", name, r.data)
		}
	}
}

func TestWhatIsNotPlannedIsKeptToTheDigit(t *testing.T) {
	out := string(goldenWorld().mustRewrite(t, string(fixtures(t)["foreign"])).data)
	for _, text := range []string{
		`"zzz-unknown":{"b": 1, "a": [1.50, 1e400, -0, 18446744073709551616, 9007199254740993], "null": null}`,
		`"reservation":9007199254740993`, `"shares":18446744073709551615`, `"caf\u00e9":"caf\u0065"`, `"tab\tand \"quotes\"":"\u00e9\ud83d\ude00 \\ <&>"`, `"":"\u2028"`,
		`"time-travel":{"linux":{"resources":{"memory":{"limit":1}}}}`, `"devices":[ {"allow":false , "access":"rwm"} ]`, `"x-why":"\"]}"`, `["sh","-c","echo '}]' # \u007b"]`, `B=日本語`, `"hostname":"\u0062ox"`,
	} {
		if !strings.Contains(out, text) {
			t.Errorf("%s is not in the output any more:\n%s", text, out)
		}
	}
	order := []string{`"zzz-unknown"`, `"annotations"`, `"linux"`, `"process"`, `"root"`, `"ociVersion"`}
	last := -1
	for _, key := range order {
		i := strings.Index(out, key)
		if i < last {
			t.Errorf("%s comes earlier than before", key)
		}
		last = i
	}
}

func TestTheCgroupsPathIsRead(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "", `{"linux":null}`: "", `{"linux":{"cgroupsPath":null}}`: "", `{"linux":{"cgroupsPath":"/docker/\u0041"}}`: "/docker/A",
	} {
		doc, err := spec.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := doc.CgroupsPath(); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`{"linux":{"cgroupsPath":5}}`, `{"linux":{"CgroupsPath":"/x"}}`, `{"linux":{"cgroupsPath":"/a","cgroupsPath":"/b"}}`} {
		doc, err := spec.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := doc.CgroupsPath(); err == nil {
			t.Errorf("%s: %q, want an error", text, got)
		}
	}
}
