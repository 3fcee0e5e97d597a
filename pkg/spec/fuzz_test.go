package spec_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

// pickWorld returns one of the worlds; the same number is the same one.
func pickWorld(n byte) world {
	all := allWorlds()
	return all[int(n)%len(all)].world
}

type namedWorld struct {
	name string
	world
}

var allWorlds = sync.OnceValue(func() (list []namedWorld) {
	all := worlds()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, namedWorld{name, all[name]})
	}
	return list
})

// FuzzRewrite feeds any bytes.
func FuzzRewrite(f *testing.F) {
	for _, data := range fixtures(f) {
		f.Add(data, byte(0))
	}
	f.Add([]byte(`{"linux":{"resources":{"memory":{"limit":-1},"unified":{"memory.max":"max"}}}}`), byte(3))
	f.Fuzz(func(t *testing.T, data []byte, n byte) {
		w := pickWorld(n)
		if out, err := w.rewrite(data); err == nil {
			w.verify(t, data, out)
		}
	})
}

// FuzzRewriteFields feeds bytes that choose, for each field that matters, one of
// its hostile values.
func FuzzRewriteFields(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		f.Add(randomScript(r), byte(r.Uint32()))
	}
	f.Fuzz(func(t *testing.T, choices []byte, n byte) {
		data := []byte(script{choices}.document())
		w := pickWorld(n)
		if out, err := w.rewrite(data); err == nil {
			w.verify(t, data, out)
			if t.Failed() {
				t.Logf("from %s", data)
			}
		}
	})
}

// randomScript is hostile in one half or in both.
func randomScript(r *rand.Rand) []byte {
	choices := make([]byte, 2*scriptOfIO)
	hostile := r.IntN(3)
	for n, half := range [][]byte{choices[:scriptOfIO], choices[scriptOfIO:]} {
		sparse := r.IntN(4)
		for i := range half {
			if hostile != n && r.IntN(4) >= sparse {
				half[i] = byte(r.Uint32())
			}
		}
	}
	return choices
}

// The structured fuzzer's check on many random files, so that it runs without a
// fuzzer too; a good part must be accepted, or nothing was checked.
func TestRandomFilesAreRewrittenWithEveryPromiseKept(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const rounds = 3_000
	accepted, byRunc, withRates := 0, 0, 0
	for i := range rounds {
		data := []byte(script{randomScript(r)}.document())
		w := allWorlds()[i%len(allWorlds())]
		out, err := w.rewrite(data)
		if err != nil {
			continue
		}
		accepted++
		if s, err := decode(data); err == nil {
			if _, err := libcontainer(s); err == nil {
				byRunc++
			}
			if len(ratesOf(resourcesOf(s))) > 0 {
				withRates++
			}
		}
		w.verify(t, data, out)
		if t.Failed() {
			t.Fatalf("%s, from %s", w.name, data)
		}
	}
	if accepted < rounds/10 || byRunc < rounds/20 || withRates < rounds/20 {
		t.Errorf("%d of %d files were accepted, %d also by runc, %d ask for rates of devices: too few to mean much", accepted, rounds, byRunc, withRates)
	}
	t.Logf("%d of %d files were accepted, %d also by runc, %d ask for rates of devices", accepted, rounds, byRunc, withRates)
}

// script turns bytes into a specification, one choice each.
type script struct{ choices []byte }

// pick returns one of the values; the first one when the bytes have run out. Most
// bytes choose the first value too, so that a file is not hostile everywhere at
// once.
func (s *script) pick(values ...string) string {
	if len(s.choices) == 0 {
		return values[0]
	}
	n := int(s.choices[0])
	s.choices = s.choices[1:]
	if n >= 64 {
		return values[0]
	}
	return values[n%len(values)]
}

// count returns a number up to a maximum, each as likely as the others; 0 when
// the bytes have run out.
func (s *script) count(most int) int {
	if len(s.choices) == 0 {
		return 0
	}
	n := int(s.choices[0]) % (most + 1)
	s.choices = s.choices[1:]
	return n
}

var (
	hostileNumbers = []string{
		"", "0", "-0", "-1", "-2", "1", "7", "8", "100", "999", "1000", "1001", "10501", "50000", "100000", "999999", "1000000", "4194304", "4194305",
		"6291455", "6291456", "67108864", "134217728", "536870913", "1073741824", "4294967296", "17179869184", "1e3", "1.0", "1E9", "0.5",
		"9007199254740993", "9223372036854771711", "9223372036854771712", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616",
		"null", "true", `"5"`, "{}", "[]",
	}
	hostileTexts = []string{
		"", `"max"`, `"max\n"`, `" max "`, `"MAX"`, `"0"`, `"00"`, `"-1"`, `"+67108864"`, `"67108864"`, `"67108864\n"`, `"67108864\nmax"`, `"0400000000"`, `"0x4000000"`, `"512M"`, `"512m"`, `"1G"`, `"1e9"`, `""`, `" "`,
		`"\u00a067108864"`, `"67108864\u0000"`, `"\u0036\u0037108864"`, `"1000000000000000000000"`, `"9223372036854775807"`, `"9"`, `"64"`, `"100%"`, "null", "5", "{}",
	}
	hostileCPU = []string{
		"", `"max"`, `"max 100000"`, `"max 50000"`, `"50000"`, `"50000 100000"`, `"50000  100000"`, `"50000\t100000"`, `"50000 100000\n"`, `"50000 100000 1"`, `"050000 100000"`, `"50000 0100000"`, `"0 100000"`,
		`"1 100000"`, `"999 1000"`, `"1000 1000"`, `"-1 100000"`, `"+50000 100000"`, `"50000 0"`, `"50000 999"`, `"50000 1000001"`, `"28004 7001"`, `"10501 7001"`, `"99999999999999999999 100000"`, `"9223372036854775807 100000"`, `"max max"`, `""`, "null", "5",
	}
	hostileRates = []string{
		"", "1048576", "0", "-0", "1", "50", "65536", "70000000", "268435456", "268435457", "4294967294", "4294967295", "4294967296", "9223372036854775807", "9223372036854775808",
		"18446744073709551615", "18446744073709551616", "-1", "1e6", "1.0", "null", `"1048576"`, "{}",
	}
	hostileWeights = []string{"", "500", "0", "-0", "9", "10", "1000", "1001", "65535", "65536", "-1", "1.0", "9223372036854775808", "null", `"500"`, "[]"}
	hostileIOMax   = []string{
		"", `"8:0 rbps=1048576"`, `"8:0 rbps=1048576 wbps=max riops=50 wiops=max"`, `"8:1 rbps=65536\n8:16 wiops=7\n"`, `"8:0 rbps=max"`, `"8:0"`, `"7:0 rbps=5"`, `"99:9 wbps=5"`, `" 8:0\trbps=1 \n"`,
		`"8:0 rbps=1\nwiops=5"`, `"8:0 rbps=1\n\n"`, `"8:0 rbps=0"`, `"8:0 rbps=-1"`, `"8:0 rbps=0100"`, `"8:0 rbps=1M"`, `"8:0 rbps"`, `"8:0 rbps="`, `"8:0 bps=1"`, `"8:0 RBPS=1"`, `"8 rbps=1"`, `"8:0:0 rbps=1"`,
		`"8:0 rbps=1 rbps=2"`, `"8:0\u00a0rbps=1"`, `"8:0 riops=4294967295"`, `"8:0 rbps=9223372036854775808"`, `"4294967296:0 rbps=1"`, `"-8:0 rbps=1"`, `"8:0 rbps=18446744073709551615"`, `""`, `"max"`, "null", "5",
	}
	hostileIOTexts = []string{
		"", `"100"`, `"default 50"`, `"default  50\n"`, `"0"`, `"1"`, `"1000"`, `"1001"`, `"10000"`, `"10001"`, `"8:0 100"`, `"default"`, `"default max"`, `"0100"`, `"-1"`, `"100\n200"`, `"idle"`, `"restrict-to-be\n"`, `" idle"`, `"99999999999999999999"`, `""`, "null", "5",
	}
)

// sameFolded spells a key with letters that fold to k and s: the Kelvin sign and
// the long s.
var sameFolded = strings.NewReplacer("k", "\u212a", "s", "\u017f")

// field renders a field under one of its spellings; "" as a value leaves it away.
func (s *script) field(list *[]string, name string, values []string) {
	value := s.pick(values...)
	if value == "" {
		return
	}
	key := s.pick(name, name, name, name, name, name, strings.ToUpper(name[:1])+name[1:], sameFolded.Replace(name), `\u00`+hex(name[0])+name[1:], name+" ")
	*list = append(*list, `"`+key+`":`+value)
	if s.pick("", "", "", "", "", "", "", "", "again") != "" {
		*list = append(*list, `"`+name+`":`+s.pick(values...))
		if strings.HasSuffix((*list)[len(*list)-1], ":") {
			*list = (*list)[:len(*list)-1]
		}
	}
}

func hex(b byte) string { return string("0123456789abcdef"[b>>4]) + string("0123456789abcdef"[b&15]) }

// object renders an object, or something that is not one.
func (s *script) object(list []string) string {
	if odd := s.pick("", "", "", "", "", "", "", "", "", "", "", "null", "5", "[]"); odd != "" {
		return odd
	}
	if n := len(list); n > 1 && s.pick("", "reverse") != "" {
		slices.Reverse(list)
	}
	return s.pick("{", "{ ", "{\n\t") + strings.Join(list, s.pick(",", " , ")) + s.pick("}", "\n}")
}

// scriptOfIO is how many bytes of a script come before those that choose what is
// about I/O.
const scriptOfIO = 64

// halves returns the script of I/O and that of everything else.
func (s script) halves() (io, rest *script) {
	n := min(scriptOfIO, len(s.choices))
	return &script{s.choices[n:]}, &script{s.choices[:n]}
}

// device appends the number of a block device.
func (s *script) device(list *[]string) {
	number := s.pick("8 0", "8 1", "8 16", "8 18", "254 0", "7 0", "99 9", "8 0", "8 ", " 16", "-1 0", "8 4294967296", "null 0", `8.0 0`, `"8" 0`)
	major, minor, _ := strings.Cut(number, " ")
	s.field(list, "major", []string{major})
	s.field(list, "minor", []string{minor})
}

// blockIO returns linux.resources.blockIO.
func (s *script) blockIO() string {
	var fields []string
	for _, name := range []string{"throttleReadBpsDevice", "throttleWriteBpsDevice", "throttleReadIOPSDevice", "throttleWriteIOPSDevice", "weightDevice"} {
		var list []string
		for range s.count(3) {
			var element []string
			s.device(&element)
			if name == "weightDevice" {
				s.field(&element, "weight", hostileWeights)
				s.field(&element, "leafWeight", hostileWeights)
			} else {
				s.field(&element, "rate", hostileRates[1:])
			}
			list = append(list, s.object(element))
		}
		s.field(&fields, name, []string{"[" + strings.Join(list, " , ") + "]", "[]", "null", "{}", "5"})
	}
	s.field(&fields, "weight", hostileWeights)
	s.field(&fields, "leafWeight", hostileWeights)
	s.field(&fields, "x-more", []string{"", "[1.50]", `{"weight":1}`})
	return s.object(fields)
}

func (s script) document() string { return document(s.halves()) }

func document(io, s *script) string {
	var memory, pids, cpu, unified, resources, linux, rlimits, process, annotations, root []string
	s.field(&memory, "limit", hostileNumbers)
	s.field(&memory, "swap", hostileNumbers)
	s.field(&memory, "reservation", []string{"", "9007199254740993", "-1"})
	s.field(&memory, "disableOOMKiller", []string{"", "true", "false", "null"})
	s.field(&pids, "limit", hostileNumbers)
	s.field(&cpu, "quota", hostileNumbers)
	s.field(&cpu, "period", []string{"", "0", "1000", "7001", "10000", "50000", "100000", "1000000", "1000001", "999", "-1", "null"})
	s.field(&cpu, "burst", []string{"", "0", "1000", "50000", "100000000", "18446744073709551615", "-1"})
	for _, name := range []string{"memory.max", "memory.high", "memory.swap.max", "pids.max", "memory.oom.group", "cpu.max.burst"} {
		s.field(&unified, name, hostileTexts)
	}
	s.field(&unified, "cpu.max", hostileCPU)
	s.field(&unified, s.pick("io.weight", "memory.low", "a/b", "Memory.max"), []string{"", `"5"`, `"max"`})
	io.field(&unified, "io.max", hostileIOMax)
	for _, name := range []string{"io.weight", "io.bfq.weight", "io.latency", "io.prio.class"} {
		if !slices.ContainsFunc(unified, func(f string) bool { return strings.HasPrefix(f, `"`+name+`"`) }) {
			io.field(&unified, name, hostileIOTexts)
		}
	}
	for _, name := range []string{"RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CORE", s.pick("RLIMIT_NPROC", "RLIMIT_NOFILE", "rlimit_core")} {
		var rlimit []string
		s.field(&rlimit, "hard", hostileNumbers)
		s.field(&rlimit, "soft", hostileNumbers)
		if len(rlimit) > 0 {
			s.field(&rlimit, "type", []string{`"` + name + `"`})
			rlimits = append(rlimits, s.object(rlimit))
		}
	}
	for _, a := range []string{"org.systemd.property.MemoryMax", "run.oci.x", "io.kubernetes.cri.sandbox-id", "\\u006frg.criu.config", "agentbox.dev/original", "x"} {
		s.field(&annotations, a, []string{
			"", `"{\"memory\":{\"value\":{\"n\":67108864},\"source\":\"default\",\"removed\":true},\"pids\":{\"value\":{\"n\":-1},\"removed\":true},\"cpus\":{\"value\":{\"n\":9000000},\"removed\":true}}"`,
			`"1"`, `"{\"memory\":{\"value\":{\"n\":67108864},\"source\":\"ceiling\",\"detail\":\"\\u001b[2J\"}}"`,
			`"{\"swap\":{\"value\":{\"n\":0},\"source\":\"ceiling\",\"requested\":{\"n\":-5}},\"pids\":{\"value\":{\"n\":100},\"source\":\"annotation\",\"detail\":\"<&>\\u2028\"}}"`,
		})
	}
	sub := func(list *[]string, name string, fields []string) {
		if len(fields) > 0 {
			s.field(list, name, []string{s.object(fields)})
		}
	}
	sub(&resources, "memory", memory)
	sub(&resources, "pids", pids)
	sub(&resources, "cpu", cpu)
	sub(&resources, "unified", unified)
	s.field(&resources, "devices", []string{"", `[{"allow":false,"access":"rwm"}]`, `[ {"allow":true,"type":"b","major":98,"access":"rw"},{"allow":1,"minor":-7} ]`, `[{"major":"8"}]`, `[{"access":{}}]`, "[5]", "{}", "null"})
	io.field(&resources, "blockIO", []string{io.blockIO(), "", "null", "{}"})
	sub(&linux, "resources", resources)
	s.field(&linux, "cgroupsPath", []string{"", `"/docker/x"`, `"a:b:c"`})
	io.field(&linux, "devices", []string{
		"", "null", "[]", `[ {"type":"b","path":"/dev/x","major":8,"minor":16} ]`, `[{"type":"c","path":"/dev/y","major":-1}]`, `[{"type":"b","Major":8}]`, `[{"type":"b","major":-1}]`, `[{"type":5}]`, "[5]", "{}",
	})
	io.field(&root, "mounts", []string{
		"", "null", "[]", `[ {"destination":"/data", "type":"bind","source":"data","options":["rbind","ro"]},{"destination":"/proc","type":"proc","source":"proc"} ]`,
		`[{"type":"overlay","options":["lowerdir=/a","upperdir=/b"]}]`, `[{"Source":"/x"}]`, `[{"source":5}]`, `[{"options":[5]}]`, `[{"options":{}}]`, "[5]", "{}",
	})
	io.field(&linux, "namespaces", []string{`[{"type":"pid"},{"type":"mount"}]`, "", `[{"type":"pid","path":"/proc/1/ns/pid"}]`, `[{"type":"pid"},{"type":"pid"}]`, `[{"type":5}]`, `[{"Type":"pid"}]`, "{}"})
	s.field(&process, "oomScoreAdj", []string{"", "0", "-1000", "-1001", "985", "1000", "1001", "5e2", "null", `"5"`})
	if len(rlimits) > 0 {
		s.field(&process, "rlimits", []string{"[" + strings.Join(rlimits, ",") + "]", "null"})
	}
	s.field(&process, "args", []string{`["sh"]`})
	sub(&root, "linux", linux)
	sub(&root, "process", process)
	sub(&root, "annotations", annotations)
	s.field(&root, "hooks", []string{"", "null", `{"createRuntime":null}`, `{"createRuntime":[{"path":"/x"}, {"args":["a","` + spec.HookFlag + `"],"path":"/y"}],"prestart":[]}`, `{"createRuntime":{}}`})
	s.field(&root, "root", []string{`{"path":"rootfs"}`, `{ "path" : "rootfs", "readonly":true}`, "null", `{"Path":"x"}`, `{"path":5}`})
	return s.object(root)
}

// A file that only says what the policy says anyway keeps every byte that is
// not a limit, whatever the worlds are: the script's empty choice.
func TestTheEmptyScriptIsAcceptedEverywhere(t *testing.T) {
	data := script{}.document()
	for name, w := range worlds() {
		t.Run(name, func(t *testing.T) {
			w.verify(t, []byte(data), w.mustRewrite(t, data))
		})
	}
	if _, ok := limits.KeyMemory.Info(); !ok || !strings.Contains(data, `"root"`) {
		t.Errorf("the empty script is %s", data)
	}
}
