package config

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/limits"
)

const example = "testdata/config.toml"

func TestExample(t *testing.T) {
	got, err := Parse(example, readFile(t, example))
	if err != nil {
		t.Fatal(err)
	}
	const (
		mib    = int64(1) << 20
		gib    = mib << 10
		second = int64(time.Second)
	)
	want := Default()
	want.ResultsDir = SystemResultsDir // the example gives it
	want.Policy.AllowAnnotations = []string{"org.systemd.property.TasksMax", "run.oci.*"}
	want.Policy.IODevices = []string{"/dev/vda", "/srv"}
	want.Policy.Supervise = []limits.Dimension{limits.Pids}
	want.Policy.OOMScopes = []limits.Scope{limits.ScopeContainer, limits.ScopeProcess}
	maps.Copy(want.Policy.Defaults, map[limits.Key]limits.Value{
		limits.KeyMemoryHigh:     limits.NoLimit(),
		limits.KeyIOReadIOPS:     limits.Limit(5000),
		limits.KeyIOWriteIOPS:    limits.Limit(5000),
		limits.KeyCPUTime:        limits.Limit(2 * 3600 * second),
		limits.KeyWallTime:       limits.Limit(24 * 3600 * second),
		limits.KeyFileSize:       limits.Limit(8 * gib),
		limits.KeyNetworkEgress:  limits.Limit(50 * mib),
		limits.KeyNetworkIngress: limits.Limit(100 * mib),
		limits.KeyConnections:    limits.Limit(1024),
	})
	want.Policy.Ceilings = limits.Set{
		limits.KeyMemory:   limits.Limit(16 * gib),
		limits.KeySwap:     limits.Limit(gib),
		limits.KeyPids:     limits.Limit(8192),
		limits.KeyCPUs:     limits.Limit(8_000_000),
		limits.KeyWallTime: limits.Limit(72 * 3600 * second),
	}
	want.Policy.Profiles["small"][limits.KeyPids] = limits.Limit(256)
	want.Policy.Profiles["gpu"] = limits.Set{
		limits.KeyMemory:   limits.Limit(12 * gib),
		limits.KeyCPUs:     limits.Limit(6_500_000),
		limits.KeyWallTime: limits.NoLimit(),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for _, info := range limits.Keys {
		if _, ok := got.Policy.Defaults[info.Key]; !ok {
			t.Errorf("the example does not show %s", info.Key)
		}
	}
}

const (
	document     = "../../docs/configuration.md"
	documentMark = "<!-- pkg/config/testdata/config.toml -->\n```toml\n"
)

var update = flag.Bool("update", false, "write the example into the documentation")

// The documentation shows the example, names every setting, and the TOML that
// it has elsewhere is accepted too.
func TestDocumentation(t *testing.T) {
	text := string(readFile(t, document))
	head, rest, ok := strings.Cut(text, documentMark)
	shown, tail, ok2 := strings.Cut(rest, "```\n")
	if !ok || !ok2 {
		t.Fatalf("%s does not have the example after %q", document, documentMark)
	}
	if want := string(readFile(t, example)); shown != want {
		if *update {
			if err := os.WriteFile(document, []byte(head+documentMark+want+"```\n"+tail), 0o644); err != nil {
				t.Fatal(err)
			}
		} else {
			t.Errorf("%s does not show %s as it is: run go test with -update", document, example)
		}
	}
	for _, info := range limits.Keys {
		for _, word := range []string{"`" + string(info.Key) + "`", "`" + AnnotationName(info.Key) + "`"} {
			if !strings.Contains(text, word) {
				t.Errorf("%s does not explain %s", document, word)
			}
		}
	}
	for key, v := range limits.DefaultPolicy().Defaults {
		info, _ := key.Info()
		ok := false
		for line := range strings.Lines(text) {
			ok = ok || strings.HasPrefix(line, "| `") && strings.Contains(line, "`"+string(key)+"`") && strings.Contains(line, info.String(v))
		}
		if !ok {
			t.Errorf("%s does not say that %s is %s by default", document, key, info.String(v))
		}
	}
	for _, dir := range []string{"`\"" + SystemResultsDir + "\"`", "`$XDG_STATE_HOME/agentbox/results`", "`$HOME/.local/state/agentbox/results`"} {
		if !strings.Contains(text, dir) {
			t.Errorf("%s does not name the default folder of results %s", document, dir)
		}
	}
	for _, key := range append(topKeys, oomKeys...) {
		if !strings.Contains(text, "`"+key+"`") && !strings.Contains(text, "`["+key) {
			t.Errorf("%s does not explain %s", document, key)
		}
	}
	for i, block := range strings.Split(text, "```toml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if _, err := Parse(document, []byte(block)); err != nil {
			t.Errorf("TOML block %d: %v", i+1, err)
		}
	}
}

func TestParse(t *testing.T) {
	tests := []struct {
		name, in string
		change   func(*File)
	}{
		{"empty", "", func(*File) {}},
		{"only a comment", "# nothing\n", func(*File) {}},
		{"byte order mark and CRLF", "\xef\xbb\xbfmode = 'strict'\r\n", func(f *File) { f.Policy.Mode = limits.ModeStrict }},
		{"absolute runtime", `runtime = "/usr/local/my bin/crun"`, func(f *File) { f.Runtime = "/usr/local/my bin/crun" }},
		{"nobody's results", `group = ""`, func(f *File) { f.Group = "" }},
		{"results", "results = '/x/y/'\nresults_max = 0x10\nresults_max_age = '90m'", func(f *File) {
			f.ResultsDir, f.ResultsMax, f.ResultsMaxAge = "/x/y/", 16, 90*time.Minute
		}},
		{"supervised", "supervise = ['cpu', \"memory\", 'pids', 'io']", func(f *File) {
			f.Policy.Supervise = []limits.Dimension{limits.CPU, limits.Memory, limits.Pids, limits.IO}
		}},
		{"strict about nothing", "strict_require = []", func(f *File) { f.Policy.StrictRequire = []limits.Dimension{} }},
		{"strict about disk", "strict_require = ['disk', 'open_files']", func(f *File) {
			f.Policy.StrictRequire = []limits.Dimension{limits.Disk, limits.OpenFiles}
		}},
		{"limits keep the other defaults", "[limits]\nmemory = 1_048_576_000", func(f *File) {
			f.Policy.Defaults[limits.KeyMemory] = limits.Limit(1048576000)
		}},
		{"none switches off", "[limits]\ndisk = 'none'", func(f *File) { f.Policy.Defaults[limits.KeyDisk] = limits.NoLimit() }},
		{"native and quoted numbers", "[limits]\npids = '100'\ncpus = 0.1\nopen_files = 4_096\nswap = 0\ncore_dumps = 'true'", func(f *File) {
			d := f.Policy.Defaults
			d[limits.KeyPids], d[limits.KeyCPUs] = limits.Limit(100), limits.Limit(100_000)
			d[limits.KeyOpenFiles] = limits.Value{Soft: 4096, N: 4096}
			d[limits.KeyCoreDumps] = limits.NoLimit()
		}},
		{"an integer that floating point cannot hold", "[limits]\ninodes = 9007199254740993", func(f *File) {
			f.Policy.Defaults[limits.KeyInodes] = limits.Limit(9007199254740993)
		}},
		{"a decimal with a sign and grouping", "[limits]\ncpus = +1_0.2_5", func(f *File) {
			f.Policy.Defaults[limits.KeyCPUs] = limits.Limit(10_250_000)
		}},
		{"inline tables", "limits = {pids = 9, cpus = 1}\nprofiles = {small = {pids = 8}, mine = {}}\noom.scope = 'process'", func(f *File) {
			f.Policy.Defaults[limits.KeyPids], f.Policy.Defaults[limits.KeyCPUs] = limits.Limit(9), limits.Limit(1_000_000)
			f.Policy.Profiles["small"][limits.KeyPids] = limits.Limit(8)
			f.Policy.Profiles["mine"] = limits.Set{}
			f.Policy.OOMScope = limits.ScopeProcess
			f.Policy.OOMScopes = []limits.Scope{limits.ScopeContainer, limits.ScopeProcess}
		}},
		{"dotted keys", "ceilings.pids = 5\nprofiles.'v1.2'.pids = 6", func(f *File) {
			f.Policy.Ceilings[limits.KeyPids] = limits.Limit(5)
			f.Policy.Profiles["v1.2"] = limits.Set{limits.KeyPids: limits.Limit(6)}
		}},
		{"no ceiling", "[ceilings]\nmemory = 'none'", func(f *File) { f.Policy.Ceilings[limits.KeyMemory] = limits.NoLimit() }},
		{"the scope is always allowed", "[oom]\nscope = 'process'\nallow = []", func(f *File) {
			f.Policy.OOMScope, f.Policy.OOMScopes = limits.ScopeProcess, []limits.Scope{limits.ScopeProcess}
		}},
		{"no other scope", "[oom]\nallow = ['container']\nscore_adj_min = -1_000", func(f *File) { f.Policy.OOMScoreAdjMin = -1000 }},
		{"one device", "io_device = '/dev/sdb'", func(f *File) { f.Policy.IODevices = []string{"/dev/sdb"} }},
		{"annotations", "allow_annotations = [\n 'a.b/c', # why\n 'run.oci.*',\n]", func(f *File) {
			f.Policy.AllowAnnotations = []string{"a.b/c", "run.oci.*"}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := Default()
			tt.change(want)
			got, err := Parse("c.toml", []byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	const (
		size = `expected a size such as 512MiB, 1.5GiB or 2g, or "none" for no limit`
		name = `expected the name of a runtime such as runc, or its absolute path`
	)
	tests := []struct {
		name, in string
		line     int
		want     string // from the line on, or a part of it after "..."
	}{
		// What is not known.
		{"unknown at the top", "\nfoo = 1", 2, `foo is not a known key: expected one of runtime, mode, strict_require, supervise, group, results, results_max, results_max_age, allow_annotations, io_device, limits, ceilings, profiles, oom`},
		{"near miss at the top", "run-time = 'runc'", 1, `run-time is not a known key: did you mean runtime?`},
		{"near miss table", "[limit]\nmemory = 1", 1, `limit is not a known key: did you mean limits?`},
		{"near miss key", "[limits]\n# one\nmemroy = 1", 3, `limits.memroy is not a known key: did you mean memory?`},
		{"near miss in a ceiling", "[ceilings]\npid = 1", 2, `ceilings.pid is not a known key: did you mean pids?`},
		{"near miss in a profile", "[profiles.x]\nwalltime = 1", 2, `profiles.x.walltime is not a known key: did you mean wall_time?`},
		{"near miss in oom", "[oom]\nallowed = []", 2, `oom.allowed is not a known key: did you mean allow?`},
		{"dimension for a key", "[limits]\ncpu = 1", 2, `limits.cpu is not a known key: did you mean cpus?`},
		{"dimension of several keys", "[limits]\nnetwork = 1", 2, `limits.network is not a known key: did you mean network_egress?`},
		{"hyphens of an annotation", "[limits]\ncpu-time = '1h'", 2, `limits.cpu-time is not a known key: did you mean cpu_time?`},
		{"limit at the top", "memory = '1g'", 1, `memory is not a known key: it belongs below [limits], [ceilings] or a profile`},
		{"top key below a table", "[limits]\n\nruntime = 'runc'", 3, `limits.runtime is not a known key: it belongs at the top of the file, before the first [table]`},
		{"foreign table", "[agentbox.limits]\nmemory = 1", 1, `agentbox is not a known key: expected one of`},
		{"too deep", "[profiles.x.y]", 1, `profiles.x.y is not a known key: expected one of memory,`},
		{"below a value", "runtime.name = 'x'", 1, `runtime.name is not a known key: expected nothing below runtime`},
		{"empty key", `"" = 1`, 1, `"" is not a known key: expected one of`},
		{"hostile key", `"a\u001b\nb" = 1`, 1, `"a\x1b\nb" is not a known key: expected one of`},
		{"long key", strings.Repeat("k", 5000) + " = 1", 1, `"` + strings.Repeat("k", 80) + `"... is not a known key: expected one of`},
		{"long path", "profiles.a.b.c.d.e.f = 1", 1, `profiles.a.b.c... is not a known key: expected nothing below profiles.a.b.c...`},

		// Wrong types.
		{"number for a text", "runtime = 1", 1, `runtime = 1 has the wrong type: ` + name + `, in quotes`},
		{"boolean for a text", "mode = true", 1, `mode = true has the wrong type: expected auto, strict or off, in quotes`},
		{"array for a text", "group = ['a']", 1, `group is an array: expected the name of a group, or "" for nobody, in quotes`},
		{"table for a text", "[mode]", 1, `mode is a table: expected a single value, written as mode = ...`},
		{"number for a path", "io_device = 8", 1, `io_device = 8 has the wrong type: expected the absolute path of a device node, or of a file on the disk that is meant, or an array of them, in quotes`},
		{"relative path in an array", "io_device = ['/srv', 'sda']", 1, `io_device = "sda" is a relative path: expected the absolute path of a device node, or of a file on the disk that is meant`},
		{"text for an array", "allow_annotations = 'run.oci.*'", 1, `allow_annotations = "run.oci.*" has the wrong type: expected an array such as ["org.systemd.property.*"]`},
		{"number in an array", "allow_annotations = [1]", 1, `allow_annotations = 1 has the wrong type: expected the name of an annotation, or its beginning with a * at the end, in quotes`},
		{"table in an array", "strict_require = [{}]", 1, `strict_require is a table: expected one of memory,`},
		{"text for a number", "results_max = '5'", 1, `results_max = "5" has the wrong type: expected a whole number from 1 to 2147483647`},
		{"fraction for a number", "[oom]\nscore_adj_min = 1.5", 2, `oom.score_adj_min = 1.5 has the wrong type: expected a whole number from -1000 to 1000`},
		{"boolean for a size", "[limits]\nmemory = false", 2, `limits.memory = false is not a size: ` + size},
		{"array for a size", "[limits]\nmemory = ['1g']", 2, `limits.memory is an array: ` + size},
		{"date for a size", "[limits]\nmemory = 2024-01-01", 2, `limits.memory is a date or a time: ` + size},
		{"table for a size", "[limits.memory]", 1, `limits.memory is a table: expected a single value, written as memory = ...`},
		{"inline table for a size", "limits = {memory = {}}", 1, `limits.memory is a table: expected a single value, written as memory = ...`},
		{"number for a table", "limits = 1", 1, `limits = 1 has the wrong type: expected a table, written as [limits]`},
		{"number for a profile", "[profiles]\nx = 1", 2, `profiles.x = 1 has the wrong type: expected a table, written as [profiles.x]`},
		{"array of tables", "[[limits]]", 1, `limits is an array of tables: expected [limits]`},
		{"array of profiles", "[[profiles.x]]", 1, `profiles.x is an array of tables: expected [profiles.x]`},
		{"number for a duration", "[limits]\nwall_time = 30", 2, `limits.wall_time = 30 has no unit: expected a duration such as 30s, 15m or 1h30m, or "none" for no limit`},
		{"fraction for a count", "[limits]\npids = 10.0", 2, `limits.pids = 10.0 is not a whole number: expected`},

		// Bad values.
		{"bad size", "[limits]\nmemory = '2gg'", 2, `limits.memory = "2gg" has the unknown unit "gg": ` + size},
		{"bad ceiling", "[ceilings]\ndisk = '-1'", 2, `ceilings.disk = "-1" is negative: ` + size},
		{"bad profile value", "[profiles.small]\npids = 'many'", 2, `profiles.small.pids = "many" is not a whole number: expected`},
		{"negative number", "[limits]\nmemory = -1", 2, `limits.memory = -1 is negative: ` + size},
		{"zero", "[limits]\nmemory = 0", 2, `limits.memory = 0 is zero: ` + size},
		{"zero CPUs", "[limits]\ncpus = 0.0", 2, `limits.cpus = 0.0 is zero: expected`},
		{"zero duration", "[limits]\ncpu_time = '0s'", 2, `limits.cpu_time = "0s" is zero: expected`},
		{"zero ceiling", "[ceilings]\npids = 0", 2, `ceilings.pids = 0 is zero: expected`},
		{"overflow", "[limits]\npids = 9223372036854775808", 2, `limits.pids = 9223372036854775808 is more than 9223372036854775807: expected`},
		{"hexadecimal overflow", "[limits]\npids = 0xffffffffffffffff", 2, `limits.pids = 0xffffffffffffffff is not a whole number: expected`},
		{"nan", "[limits]\ncpus = nan", 2, `limits.cpus = nan is not a number of CPUs: expected`},
		{"inf", "[limits]\ncpus = +inf", 2, `limits.cpus = +inf is not a number of CPUs: expected`},
		{"minus inf", "[limits]\ncpus = -inf", 2, `limits.cpus = -inf is not a number of CPUs: expected`},
		{"soft above hard", "[limits]\nopen_files = '2:1'", 2, `limits.open_files = "2:1" has a soft limit above the hard one: expected`},
		{"ambiguous none", "[limits]\ncore_dumps = 'none'", 2, `limits.core_dumps = "none" is neither true nor false: expected true or false`},
		{"mode", "mode = 'Auto'", 1, `mode = "Auto" is not a mode: expected auto, strict or off`},
		{"no runtime", "runtime = ''", 1, `runtime = "" is empty: ` + name},
		{"relative runtime", "runtime = 'bin/runc'", 1, `runtime = "bin/runc" is a relative path: ` + name},
		{"runtime with arguments", "runtime = 'runc --debug'", 1, `runtime = "runc --debug" has a space, and arguments cannot be given here: ` + name},
		{"folder as runtime", "runtime = '/usr/bin/'", 1, `runtime = "/usr/bin/" is a folder: ` + name},
		{"dots as runtime", "runtime = '..'", 1, `runtime = ".." is a folder: ` + name},
		{"runtime is ours", "runtime = 'agentbox-runtime'", 1, `runtime = "agentbox-runtime" would start agentbox again and again: ` + name},
		{"runtime is ours by path", "runtime = '/opt/x/agentbox-runtime'", 1, `runtime = "/opt/x/agentbox-runtime" would start agentbox again and again: ` + name},
		{"runtime with a NUL", `runtime = "ru\u0000nc"`, 1, `runtime = "ru\x00nc" has characters that cannot be printed: ` + name},
		{"group", "group = 'a:b'", 1, `group = "a:b" is not the name of a group: expected the name of a group`},
		{"relative results", "results = 'var/x'", 1, `results = "var/x" is a relative path: expected the absolute path of a folder`},
		{"dotted results", "results = '/var/../x'", 1, `results = "/var/../x" is not the plain path of a folder of its own: expected the absolute path of a folder`},
		{"root as results", "results = '/'", 1, `results = "/" is not the plain path of a folder of its own: expected the absolute path of a folder`},
		{"results with an escape", `results = "/x\u001b"`, 1, `results = "/x\x1b" has characters that cannot be printed: expected the absolute path of a folder`},
		{"array for an age", "results_max_age = []", 1, `results_max_age is an array: expected a duration such as 168h`},
		{"empty results", "results = ''", 1, `results = "" is empty: expected the absolute path of a folder`},
		{"no results", "results_max = 0", 1, `results_max = 0 is out of range: expected a whole number from 1 to 2147483647`},
		{"many results", "results_max = 99999999999999999999", 1, `results_max = 99999999999999999999 is out of range: expected`},
		{"days", "results_max_age = '7d'", 1, `results_max_age = "7d" is in days, which are not a unit here (1d is 24h): expected a duration such as 168h`},
		{"no age", "results_max_age = '0s'", 1, `results_max_age = "0s" is zero: expected a duration such as 168h`},
		{"endless age", "results_max_age = 'none'", 1, `results_max_age = "none" is not a duration: expected a duration such as 168h`},
		{"dimension", "strict_require = ['memory',\n 'cpus']", 2, `strict_require = "cpus" is not a dimension: expected one of memory, swap, pids, cpu, io,`},
		{"what the supervisor cannot do", "supervise = ['memory', 'disk']", 1, `supervise = "disk" is not a dimension: expected one of memory, pids, cpu, io`},
		{"dimension twice", "strict_require = ['memory', 'memory']", 1, `strict_require = "memory" is there twice: expected`},
		{"every annotation", "allow_annotations = ['*']", 1, `allow_annotations = "*" would allow every annotation: expected`},
		{"star inside", "allow_annotations = ['a*b']", 1, `allow_annotations = "a*b" has a * that is not at its end: expected`},
		{"empty annotation", "allow_annotations = ['']", 1, `allow_annotations = "" is empty: expected`},
		{"annotation with a space", "allow_annotations = ['a b']", 1, `allow_annotations = "a b" is not the name of an annotation: expected`},
		{"scope", "[oom]\nscope = 'sandbox'", 2, `oom.scope = "sandbox" is not a scope: expected container or process`},
		{"scope of a later version", "[oom]\nscope = 'exec'", 2, `oom.scope = "exec" is not available in this version: expected container or process`},
		{"allowed scope of a later version", "[oom]\nallow = [\n'container',\n'exec']", 4, `oom.allow = "exec" is not available in this version: expected container or process`},
		{"score too high", "[oom]\nscore_adj_min = 1001", 2, `oom.score_adj_min = 1001 is out of range: expected a whole number from -1000 to 1000`},
		{"score too low", "[oom]\nscore_adj_min = -1001", 2, `oom.score_adj_min = -1001 is out of range: expected a whole number from -1000 to 1000`},
		{"profile name", "[profiles.'a b']", 1, `profiles."a b" does not name a profile: expected a name of letters, digits, '-', '_' and '.', such as small`},
		{"profile name in a dotted key", "profiles.''.pids = 1", 1, `profiles."".pids = 1 does not name a profile: expected a name`},
		{"long value", "[limits]\nmemory = '" + strings.Repeat("é", 200) + "'", 2, `limits.memory = "` + strings.Repeat("é", 40) + `"... is not a size: ` + size},
		{"long value, cut before a character", "[limits]\nmemory = 'x" + strings.Repeat("é", 200) + "'", 2, `limits.memory = "x` + strings.Repeat("é", 39) + `"... is not a size: ` + size},
		{"long number", "[limits]\nmemory = " + strings.Repeat("1", 200), 2, `limits.memory = ` + strings.Repeat("1", 80) + `... is more than`},

		// Given twice.
		{"key twice", "[limits]\npids = 1\n\npids = 2", 4, `limits.pids = 2 is given twice: expected once, and line 2 has it already`},
		{"key twice at the top", "mode = 'off'\nmode = 'off'", 2, `mode = "off" is given twice: expected once, and line 1 has it already`},
		{"key twice inline", "\nlimits = {pids = 1, pids = 2}", 2, `limits.pids = 2 is given twice: expected once, and line 2 has it already`},
		{"table twice", "[limits]\npids = 1\n[limits]\ncpus = 1", 3, `is not valid TOML: table limits already exists, in the line "[limits]"`},
		{"table after a dotted key", "limits.pids = 1\n[limits]", 2, `is not valid TOML: table limits already exists as defined by a dotted key, in the line "[limits]"`},

		// Not TOML.
		{"size without quotes", "[limits]\nmemory = 512MiB", 2, `is not valid TOML: strings must be quoted, in the line "memory = 512MiB" (write text, sizes and durations in quotes)`},
		{"text without quotes", "mode = auto", 1, `... in the line "mode = auto" (write text, sizes and durations in quotes)`},
		{"leading zero", "[limits]\npids = 007", 2, `is not valid TOML: integers cannot have leading zeroes, in the line "pids = 007"`},
		{"no value", "mode", 1, `is not valid TOML: expected '=' after key, in the line "mode"`},
		{"open string", "mode = \"auto\n", 1, `... in the line "mode = \"auto"`},
		{"open table", "\n[limits", 2, `is not valid TOML: expected ']' to close table name, in the line "[limits"`},
		{"control character", "mode = \"\x1b\"", 1, `... in the line "mode = \"\x1b\""`},
		{"latin 1", "mode = 'auto'\n# caf\xe9", 2, `is not UTF-8 text: expected a TOML file`},
		{"binary", "\x7fELF\x00\xff", 1, `is not UTF-8 text: expected a TOML file`},
		{"huge", strings.Repeat("#", MaxSize+1), 0, `is larger than 1 MiB: expected a configuration file`},
		{"first of several", "[limits]\npids = 0\nmemory = 0\n[nope", 2, `limits.pids = 0 is zero: expected`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := Parse("dir/c.toml", []byte(tt.in))
			var ce *Error
			if !errors.As(err, &ce) || f != nil {
				t.Fatalf("got %+v, %#v; want an *Error", f, err)
			}
			if ce.File != "dir/c.toml" || ce.Line != tt.line {
				t.Errorf("got file %q line %d, want line %d", ce.File, ce.Line, tt.line)
			}
			got, rest := err.Error(), ""
			if tt.line > 0 {
				rest, _ = strings.CutPrefix(got, "dir/c.toml:"+itoa(tt.line)+": ")
			} else {
				rest, _ = strings.CutPrefix(got, "dir/c.toml: ")
			}
			part, inside := strings.CutPrefix(tt.want, "...")
			if inside && !strings.Contains(rest, part) || !inside && !strings.HasPrefix(rest, tt.want) {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			checkText(t, err)
		})
	}
}

func itoa(n int) string { return limits.KeyInfo{Kind: limits.Count}.String(limits.Limit(int64(n))) }

func TestDefaultResultsDir(t *testing.T) {
	tests := []struct {
		name string
		euid int
		env  map[string]string
		want string
	}{
		{"root", 0, map[string]string{"XDG_STATE_HOME": "/s", "HOME": "/root"}, SystemResultsDir},
		{"user", 7, map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/7"}, "/home/u/.local/state/agentbox/results"},
		{"user with a state folder", 7, map[string]string{"XDG_STATE_HOME": "/s", "HOME": "/home/u"}, "/s/agentbox/results"},
		{"relative", 7, map[string]string{"XDG_STATE_HOME": "s", "HOME": "/home/u"}, "/home/u/.local/state/agentbox/results"},
		{"no home", 7, map[string]string{"XDG_RUNTIME_DIR": "/r"}, "/r/agentbox/results"},
		{"nothing", 7, nil, "/run/user/7/agentbox/results"},
	}
	for _, tt := range tests {
		if got := defaultResultsDir(tt.euid, func(name string) string { return tt.env[name] }); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := Default().ResultsDir; got != defaultResultsDir(os.Geteuid(), os.Getenv) {
		t.Errorf("Default has %s", got)
	}
}

// Two files must not share what the defaults are made of.
func TestDefaultIsFresh(t *testing.T) {
	if _, err := Parse("", []byte("[limits]\npids = 1\n[profiles.small]\npids = 1\n[ceilings]\npids = 1")); err != nil {
		t.Fatal(err)
	}
	f := Default()
	if f.Policy.Defaults[limits.KeyPids].N != 2048 || f.Policy.Profiles["small"][limits.KeyPids].N != 512 || len(f.Policy.Ceilings) != 0 {
		t.Errorf("the built-in policy was changed: %+v", f.Policy)
	}
}

func TestErrorFileName(t *testing.T) {
	_, err := Parse("a\x1b[2J\nb", []byte("x"))
	if want := `"a\x1b[2J\nb":1: is not valid TOML`; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.toml", "runtime = 'crun'\n")
	link := filepath.Join(dir, "link.toml")
	broken := filepath.Join(dir, "broken.toml")
	fifo := filepath.Join(dir, "fifo")
	for _, err := range []error{os.Symlink("good.toml", link), os.Symlink("nowhere", broken), syscall.Mkfifo(fifo, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	missing := filepath.Join(dir, "missing.toml")
	tests := []struct {
		name, path string
		runtime    string // of Load
		optional   string // of LoadOptional
		want       string // the error of Load
		is         error
	}{
		{"good", good, "crun", "crun", "", nil},
		{"symbolic link", link, "crun", "crun", "", nil},
		{"missing", missing, "", "runc", ": cannot read the configuration: does not exist", fs.ErrNotExist},
		{"link to nothing", broken, "", "", ": cannot read the configuration: does not exist, or is a symbolic link to a file that does not", fs.ErrNotExist},
		{"below a file", good + "/x", "", "", ": cannot read the configuration: not a directory", syscall.ENOTDIR},
		{"folder", dir, "", "", ": is not a regular file: expected a TOML file", nil},
		{"FIFO", fifo, "", "", ": is not a regular file: expected a TOML file", nil},
		{"device", "/dev/zero", "", "", ": is not a regular file: expected a TOML file", nil},
		{"huge", write("huge.toml", strings.Repeat("#", MaxSize+1)), "", "", ": is larger than 1 MiB: expected a configuration file", nil},
		{"largest", write("largest.toml", strings.Repeat("#", MaxSize)), "runc", "runc", "", nil},
		{"wrong", write("wrong.toml", "\nmode = 1"), "", "", ":2: mode = 1 has the wrong type", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := Load(tt.path)
			if (err == nil) != (tt.want == "") || err == nil && f.Runtime != tt.runtime {
				t.Fatalf("Load: got %+v, %v", f, err)
			}
			if err != nil {
				var ce *Error
				if !errors.As(err, &ce) || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), tt.path) {
					t.Errorf("Load: got %v, want %s", err, tt.want)
				}
				if tt.is != nil && !errors.Is(err, tt.is) {
					t.Errorf("Load: got %v, want %v behind it", err, tt.is)
				}
				checkText(t, err)
			}
			f, err = LoadOptional(tt.path)
			if (err == nil) != (tt.optional != "") || err == nil && f.Runtime != tt.optional {
				t.Errorf("LoadOptional: got %+v, %v", f, err)
			}
		})
	}
	if f, err := LoadOptional(missing); err != nil || !reflect.DeepEqual(f, Default()) {
		t.Errorf("LoadOptional of a missing file: got %+v, %v", f, err)
	}
}

type fakeInfo struct {
	fs.FileInfo
	mode fs.FileMode
	gid  uint32
}

func (i fakeInfo) Mode() fs.FileMode { return i.mode }
func (i fakeInfo) Sys() any          { return &syscall.Stat_t{Gid: i.gid} }

func TestCheckMode(t *testing.T) {
	tests := []struct {
		name string
		mode fs.FileMode
		gid  uint32
		euid int
		want string
	}{
		{"usual", 0o644, 0, 0, ""},
		{"owner only", 0o600, 1000, 0, ""},
		{"group root may write", 0o664, 0, 0, ""},
		{"another group may write", 0o664, 999, 0, "can be written by a group other than root"},
		{"everybody may write", 0o646, 0, 0, "can be written by everybody"},
		{"everybody may write, read by a user", 0o666, 999, 1000, ""},
		{"folder", fs.ModeDir | 0o755, 0, 0, "is not a regular file"},
		{"device, read by a user", fs.ModeDevice | 0o666, 0, 1000, "is not a regular file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := checkMode(fakeInfo{mode: tt.mode, gid: tt.gid}, tt.euid)
			if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("on disk", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "c.toml")
		if err := os.WriteFile(path, []byte("runtime = 'crun'"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		_, err := LoadOptional(path)
		if refused := err != nil; refused != (os.Geteuid() == 0) {
			t.Errorf("as user %d: got %v", os.Geteuid(), err)
		}
		if lenient := LenientRuntime(path); (lenient == "") != (os.Geteuid() == 0) {
			t.Errorf("as user %d: LenientRuntime is %q", os.Geteuid(), lenient)
		}
	})
}

func TestLenientRuntime(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"good file", "runtime = 'crun'\n[limits]\npids = 1\n", "crun"},
		{"bad value elsewhere", "mode = 'x'\nruntime = \"/usr/bin/crun\" # why\n", "/usr/bin/crun"},
		{"unknown key", "foo = 1\nruntime = 'crun'", "crun"},
		{"syntax error before", "mode = auto\n\"runtime\" = 'crun'\n[limits]", "crun"},
		{"syntax error after", "runtime = 'crun'\n[limits\nmemory = 5GiB", "crun"},
		{"open string before", "group = \"\"\"\nruntime = 'crun'\n", "crun"},
		{"not UTF-8", "# \xff\nruntime = 'crun'\n", "crun"},
		{"byte order mark, CRLF, indent", "\xef\xbb\xbf  runtime='crun'\r\n", "crun"},
		{"first of two", "runtime = 'crun'\nruntime = 'youki'", "crun"},
		{"in an array before", "allow_annotations = [\n 'runtime',\n]\nruntime = 'crun'", "crun"},
		{"none", "mode = 'auto'", ""},
		{"comment", "# runtime = 'crun'", ""},
		{"another key", "my.runtime = 'crun'\nruntime2 = 'x'\nruntime.x = 'y'", ""},
		{"below a table", "[limits]\nruntime = 'crun'", ""},
		{"line that is wrong itself", "runtime = crun", ""},
		{"wrong type", "runtime = 5", ""},
		{"would be refused", "runtime = './crun'", ""},
		{"ours", "runtime = 'agentbox-runtime'\nruntime = 'crun'", ""},
		{"too large", "runtime = 'crun'\n" + strings.Repeat("#", MaxSize), "crun"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.toml")
			if err := os.WriteFile(path, []byte(tt.in), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := LenientRuntime(path); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if f, err := Parse(path, []byte(tt.in)); err == nil && tt.want != "" && f.Runtime != tt.want {
				t.Errorf("Parse has %q", f.Runtime)
			}
		})
	}
	if got := LenientRuntime(filepath.Join(t.TempDir(), "missing")); got != "" {
		t.Errorf("missing file: got %q", got)
	}
	if got := LenientRuntime(t.TempDir()); got != "" {
		t.Errorf("folder: got %q", got)
	}
}

func TestNearest(t *testing.T) {
	for word, want := range map[string]string{
		"runtmie": "runtime", "result": "results", "ceiling": "ceilings", "x": "", "": "", "om": "", "omo": "oom", "ooom": "oom", "completely": "",
	} {
		if got := nearest(word, topKeys); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func FuzzParse(f *testing.F) {
	f.Add(readFile(f, example))
	for _, s := range []string{
		"", "\xef\xbb\xbf", "[limits]\nmemory = 512MiB", "limits = {pids = 1, cpus = 0.5}\n[profiles.x]\npids = 0x10\n",
		"[oom]\nallow = ['process',\n'exec']", "profiles.'a.b'.pids = 5", "a = \"\"\"\n\n", "[[limits]]", "x = 1979-05-27T07:32:00Z",
		"runtime = \"ru\\u0000nc\"", "strict_require = [[{}]]", "[limits]\n[limits]\n", "limits.pids = 1\n[limits]\ncpus = nan",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		given := bytes.Clone(data)
		file, err := Parse("c.toml", data)
		if !bytes.Equal(data, given) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			var ce *Error
			if !errors.As(err, &ce) || file != nil || ce.Line < 0 || ce.Line > 1+bytes.Count(data, []byte("\n")) {
				t.Errorf("got %+v, %#v", file, err)
			}
			checkText(t, err)
			return
		}
		if checkRuntime(file.Runtime) != "" || file.ResultsMax < 1 || file.ResultsMaxAge <= 0 || !filepath.IsAbs(file.ResultsDir) {
			t.Errorf("got %+v", file)
		}
		sets := []limits.Set{file.Policy.Defaults, file.Policy.Ceilings}
		for _, p := range file.Policy.Profiles {
			sets = append(sets, p)
		}
		for _, set := range sets {
			for k, v := range set {
				info, ok := k.Info()
				if !ok {
					t.Errorf("the key %q is not known", k)
				}
				checkSame(t, info, v)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	data := readFile(b, example)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(example, data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLoadOptionalMissing(b *testing.B) {
	path := filepath.Join(b.TempDir(), "missing")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := LoadOptional(path); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApplyAnnotations(b *testing.B) {
	annotations := map[string]string{"agentbox.dev/memory": "512MiB", "agentbox.dev/cpus": "1.5", "agentbox.dev/profile": "small", "other": "x"}
	b.ReportAllocs()
	for b.Loop() {
		var req limits.Request
		if err := ApplyAnnotations(annotations, &req); err != nil {
			b.Fatal(err)
		}
	}
}
