package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/agentbox/agentbox/pkg/host"
	"github.com/agentbox/agentbox/pkg/limits"
)

// v2Host is a cgroup v2 host with one disk, on which all files of a container
// are.
func v2Host(in host.Input) limits.Host {
	kernel := func(name string) limits.Mechanism {
		return limits.Mechanism{Name: name, Enforcer: limits.EnforcerKernel}
	}
	process := func(name string) limits.Mechanism {
		return limits.Mechanism{Name: name, Enforcer: limits.EnforcerProcess}
	}
	h := limits.Host{
		CgroupVersion: 2, MemoryBytes: 16 << 30, CPUs: 8, PidMax: 4_194_304,
		Mechanisms: map[limits.Key]limits.Mechanism{
			limits.KeyMemory:     kernel("memory.max"),
			limits.KeyMemoryHigh: kernel("memory.high"),
			limits.KeySwap:       kernel("memory.swap.max"),
			limits.KeyPids:       kernel("pids.max"),
			limits.KeyCPUs:       kernel("cpu.max"),
			limits.KeyOpenFiles:  process("RLIMIT_NOFILE"),
			limits.KeyFileSize:   process("RLIMIT_FSIZE"),
			limits.KeyCoreDumps:  process("RLIMIT_CORE"),
		},
		GroupKill:     kernel("memory.oom.group"),
		OpenFilesHard: 1 << 20, FileSizeHard: -1, CoreHard: -1,
	}
	for _, key := range limits.IOKeys {
		h.Mechanisms[key] = kernel("io.max")
	}
	if h.IO.Unknown = in.Request == nil; h.IO.Unknown {
		return h
	}
	disk := limits.BlockDevice{
		Device: limits.Device{Major: 254}, Name: "vda",
		Filesystem: "ext4", Counted: "reads and all writes (buffered, fsync, direct)",
	}
	for _, place := range in.Request.Places {
		if place.Type != "" {
			continue // in memory, all of them
		}
		disk.Places = append(disk.Places, place.Path)
	}
	if disk.Places != nil {
		h.IO.Disks = []limits.BlockDevice{disk}
	}
	h.IO.Asked = map[limits.Device]limits.AskedDisk{}
	for device := range in.Request.Devices {
		asked := limits.AskedDisk{Disk: disk}
		if device != disk.Device {
			asked.Reason = "there is no block device with this number"
		}
		h.IO.Asked[device] = asked
	}
	return h
}

// v1Host is a host where swap is not accounted and nothing ends as one.
func v1Host(in host.Input) limits.Host {
	h := v2Host(in)
	h.CgroupVersion, h.IO = 1, limits.HostIO{}
	h.Mechanisms[limits.KeyMemory] = limits.Mechanism{Name: "memory.limit_in_bytes", Enforcer: limits.EnforcerKernel}
	h.Mechanisms[limits.KeyCPUs] = limits.Mechanism{Name: "cpu.cfs_quota_us", Enforcer: limits.EnforcerKernel}
	missing := func(reason string) limits.Mechanism {
		return limits.Mechanism{Enforcer: limits.EnforcerNone, Reason: reason}
	}
	h.Mechanisms[limits.KeySwap] = missing("the kernel does not account swap (boot it with swapaccount=1)")
	h.Mechanisms[limits.KeyMemoryHigh] = missing("cgroup v1 has no memory.high")
	h.GroupKill = missing("cgroup v1 has no group kill (memory.oom.group)")
	for _, key := range limits.IOKeys {
		h.Mechanisms[key] = missing("the blkio controller is not mounted")
	}
	return h
}

// planFixture is a folder with bundles and a configuration.
type planFixture struct {
	t     *testing.T
	dir   string
	probe func(host.Input) limits.Host

	supervisor limits.Mechanism
}

func newPlanFixture(t *testing.T) *planFixture {
	f := &planFixture{t: t, dir: t.TempDir(), probe: v2Host}
	f.write("config.toml", "")
	return f
}

func (f *planFixture) write(name, content string) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// bundle makes a bundle of a specification; "docker" stands for one that Docker
// wrote, and "" for none.
func (f *planFixture) bundle(content string) {
	f.t.Helper()
	if content == "docker" {
		data, err := os.ReadFile("../../pkg/spec/testdata/rewrite/docker.json")
		if err != nil {
			f.t.Fatal(err)
		}
		content = string(data)
	}
	if content != "" {
		f.write("bundle/config.json", content)
	}
}

// plan runs the command on the host of the fixture. "DIR" in an argument and in
// the answers is the folder of the fixture.
func (f *planFixture) plan(args ...string) (stdout, stderr string, code int) {
	f.t.Helper()
	p := planner{probe: f.probe, supervisor: f.supervisor}
	cmd := p.command(&options{config: filepath.Join(f.dir, "config.toml"), state: filepath.Join(f.dir, "state")})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	return f.execute(cmd, args)
}

func (f *planFixture) execute(cmd *cobra.Command, args []string) (stdout, stderr string, code int) {
	f.t.Helper()
	given := make([]string, len(args))
	for i, arg := range args {
		given[i] = strings.ReplaceAll(arg, "DIR", f.dir)
	}
	var out, errs bytes.Buffer
	cmd.SetArgs(given)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	if err := cmd.Execute(); err != nil {
		say(&errs, err.Error())
		code = exitCode(err)
	}
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	names := strings.NewReplacer(f.dir, "DIR", filepath.Dir(self), "BIN")
	return names.Replace(out.String()), names.Replace(errs.String()), code
}

// hostile is the specification of a container that tries to write to the
// terminal of whoever looks at it: with the escapes of JSON, and with C1 control
// characters and direction marks as they are.
const hostile = `{"root":{"path":"rootfs"},"process":{"args":["\u001b[31m"]},
"mounts":[{"destination":"/\u001b]0;title\u0007` + "\u009b31m\u202e" + `","type":"bind","source":"/srv"}],
"annotations":{"agentbox.dev/profile":"small","run.oci.` + "\u009b" + `\u001b[2J\n":"x","b":"` + "\x7f\xff\U000e0001" + `"},
"linux":{"resources":{"unified":{"io.\u001b[31m":"1"}}}}`

func TestPlanGolden(t *testing.T) {
	tests := []struct {
		name   string
		config string
		bundle string // the specification; "docker": Docker's
		host   func(host.Input) limits.Host
		args   []string
		code   int
		stderr string

		supervised bool // there is a supervisor
	}{
		{name: "small", args: []string{"--profile", "small", "--annotation", "agentbox.dev/open-files=1024:4096"}},
		{name: "docker", bundle: "docker", args: []string{"DIR/bundle"}},
		{
			name: "clamped", bundle: "docker", config: "allow_annotations = [\"run.oci.keep\"]\n[ceilings]\nmemory = \"32MiB\"\npids = 50\n",
			args: []string{
				"DIR/bundle", "--annotation", "agentbox.dev/cpus=none", "--annotation", "agentbox.dev/memory=64GiB",
				"--annotation", "run.oci.keep=1", "--annotation", "run.oci.other=1",
			},
		},
		{
			name: "disks", bundle: `{"root":{"path":"rootfs"},"linux":{"resources":{"blockIO":{"weight":500,
				"throttleReadBpsDevice":[{"major":254,"minor":0,"rate":1048576},{"major":9,"minor":9,"rate":4096}]}}}}`,
			args: []string{"DIR/bundle"},
		},
		{
			name: "v1", bundle: "docker", host: v1Host, args: []string{"--spec", "DIR/bundle/config.json"},
		},
		{
			name: "strict", config: "mode = \"strict\"\n", bundle: "docker", host: v1Host, args: []string{"DIR/bundle"}, code: 1,
			stderr: "agentbox: strict mode: this host does not enforce swap (the kernel does not account swap (boot it with swapaccount=1)); " +
				"fix the host, remove the dimension from strict_require, or set mode = \"auto\"\n",
		},
		{
			name: "supervised", config: "supervise = [\"pids\"]\n", bundle: "docker", host: v1Host, supervised: true,
			args: []string{"DIR/bundle", "--annotation", "agentbox.dev/cpu-time=5m"},
		},
		{name: "off", config: "mode = \"off\"\n", bundle: "docker", args: []string{"DIR/bundle"}},
		{name: "hostile", bundle: hostile, args: []string{"DIR/bundle"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newPlanFixture(t)
			f.write("config.toml", tt.config)
			f.bundle(tt.bundle)
			if tt.host != nil {
				f.probe = tt.host
			}
			if tt.supervised {
				f.supervisor = limits.Mechanism{Name: limits.SupervisorName, Enforcer: limits.EnforcerSupervisor}
			}
			stdout, stderr, code := f.plan(tt.args...)
			if code != tt.code || stderr != tt.stderr {
				t.Errorf("code %d, stderr %q", code, stderr)
			}
			golden(t, "plan/"+tt.name+".golden.txt", []byte(stdout))
		})
	}
}

// TestPlanJSON pins the shape that docs/plan.md promises, and looks that the
// page names every field of it.
func TestPlanJSON(t *testing.T) {
	f := newPlanFixture(t)
	f.bundle("docker")
	stdout, stderr, code := f.plan("DIR/bundle", "--json", "--profile", "browser", "--annotation", "run.oci.keep=1")
	if code != 0 || stderr != "" {
		t.Fatalf("code %d, stderr %q", code, stderr)
	}
	golden(t, "plan/docker.golden.json", []byte(stdout))

	var plan limits.Plan
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&plan); err != nil {
		t.Fatal(err)
	}
	if len(plan.Entries) != len(limits.Keys) || plan.Entry(limits.KeyMemory).Value != limits.Limit(64<<20) || plan.Profile != "browser" {
		t.Errorf("the plan reads as %+v", plan)
	}
	if !slices.ContainsFunc(plan.Warnings, func(w string) bool { return strings.Contains(w, `"run.oci.keep" is dropped`) }) {
		t.Errorf("the warnings lack those of the rewriting: %q", plan.Warnings)
	}

	page, err := os.ReadFile("../../docs/plan.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range jsonNames(reflect.TypeFor[limits.Plan]()) {
		if !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("docs/plan.md does not name the field %s", name)
		}
	}
}

// jsonNames returns the names of all fields that a type has in JSON.
func jsonNames(t reflect.Type) []string {
	switch {
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice:
		return jsonNames(t.Elem())
	case t.Kind() != reflect.Struct || t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return nil
	}
	var names []string
	for field := range t.Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
		names = append(names, jsonNames(field.Type)...)
	}
	return names
}

// TestPlanPage looks that the example of the page is what the command prints.
func TestPlanPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/plan.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/plan/small.golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, want) {
		t.Error("docs/plan.md does not show testdata/plan/small.golden.txt")
	}
}

func TestPlanDiff(t *testing.T) {
	// What the record of the request holds is pkg/spec's to test.
	record := regexp.MustCompile(`("agentbox.dev/original": )"(\\.|[^"\\])*"`)
	tests := []struct {
		name   string
		bundle string
		args   []string
	}{
		{"docker", "docker", []string{"DIR/bundle", "--annotation", "agentbox.dev/cpus=1", "--annotation", "run.oci.keep=1"}},
		{"run", "docker", []string{"DIR/bundle", "--verb", "run"}},
		{"no_bundle", "", []string{"--profile", "small"}},
		{"hostile", hostile, []string{"DIR/bundle"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newPlanFixture(t)
			f.bundle(tt.bundle)
			stdout, stderr, code := f.plan(append(tt.args, "--diff")...)
			if code != 0 || stderr != "" {
				t.Errorf("code %d, stderr %q", code, stderr)
			}
			golden(t, "plan/"+tt.name+".golden.diff", record.ReplaceAll([]byte(stdout), []byte(`$1"RECORD"`)))
		})
	}
}

// TestPlanDiffOfNothing is about containers whose specification stays as it is.
func TestPlanDiffOfNothing(t *testing.T) {
	tests := []struct {
		name, config string
		rewritten    bool
	}{{"mode off", `mode = "off"`, false}, {"rewritten before", "", true}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newPlanFixture(t)
			f.write("config.toml", tt.config)
			f.bundle("docker")
			if tt.rewritten {
				f.rewrite("bundle")
			}
			if stdout, stderr, code := f.plan("DIR/bundle", "--diff"); stdout != "" || stderr != "" || code != 0 {
				t.Errorf("code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
			}
		})
	}
}

// rewrite puts into a bundle what the runtime would.
func (f *planFixture) rewrite(bundle string) {
	f.t.Helper()
	p := planner{bundle: filepath.Join(f.dir, bundle), verb: "create", probe: f.probe}
	cfg, err := loadConfig(filepath.Join(f.dir, "config.toml"))
	if err != nil {
		f.t.Fatal(err)
	}
	o, err := p.decide(cfg, &options{})
	if err != nil {
		f.t.Fatal(err)
	}
	if bytes.Equal(o.before, o.after) {
		f.t.Fatal("nothing was rewritten")
	}
	f.write(bundle+"/config.json", string(o.after))
}

func TestPlanRefusals(t *testing.T) {
	tests := []struct {
		name   string
		config string
		bundle string
		link   bool // config.json is a symbolic link to a good one
		args   []string
		code   int
		says   []string
	}{
		{name: "a bundle that is not there", args: []string{"DIR/none"}, code: 1, says: []string{"open the bundle DIR/none: no such file or directory"}},
		{name: "a bundle without config.json", args: []string{"DIR"}, code: 1, says: []string{"open DIR/config.json: no such file or directory"}},
		{name: "a specification that is not there", args: []string{"--spec", "DIR/x.json"}, code: 1, says: []string{"open DIR/x.json: no such file or directory"}},
		{name: "mode off and no config.json", config: `mode = "off"`, args: []string{"DIR"}, code: 1, says: []string{"no such file"}},
		{name: "a symbolic link", link: true, args: []string{"DIR/bundle"}, code: 1, says: []string{"DIR/bundle/config.json is a symbolic link: agentbox replaces only a regular file"}},
		{name: "mode off and a symbolic link", config: `mode = "off"`, link: true, args: []string{"DIR/bundle"}, code: 0, says: []string{"mode off, the container starts as it is", "symbolic link"}},
		{name: "a folder for a file", args: []string{"--spec", "DIR"}, code: 1, says: []string{"DIR is not a regular file"}},
		{name: "not JSON", bundle: `{"a":`, args: []string{"DIR/bundle"}, code: 1, says: []string{"DIR/bundle/config.json: not valid JSON at byte 5"}},
		{name: "an ambiguous key", bundle: `{"Annotations":{}}`, args: []string{"DIR/bundle", "--profile", "small"}, code: 1, says: []string{`the key "Annotations" is not spelled "annotations"`}},
		{name: "an unknown annotation", args: []string{"--annotation", "agentbox.dev/memroy=1g"}, code: 1, says: []string{`agentbox: annotation agentbox.dev/memroy = "1g" is not known: did you mean agentbox.dev/memory?`}},
		{name: "a malformed annotation of the bundle", bundle: `{"annotations":{"agentbox.dev/pids":"\u001b[31m"}}`, args: []string{"DIR/bundle"}, code: 1, says: []string{`DIR/bundle/config.json: annotation agentbox.dev/pids = "\x1b[31m"`}},
		{name: "an unknown profile", args: []string{"--profile", "huge"}, code: 1, says: []string{`profile "huge"`, "[browser build small]"}},
		{name: "above a ceiling", config: "[ceilings]\npids = 50\n", args: []string{"--kubernetes", "--annotation", "agentbox.dev/pids=51"}, code: 1, says: []string{"pids 51 from the annotation is above the ceiling in the configuration (50)"}},
		{name: "mode off and above a ceiling", config: "mode = \"off\"\n[ceilings]\npids = 50\n", args: []string{"--kubernetes", "--annotation", "agentbox.dev/pids=51"}, code: 0, says: []string{"mode off, the container starts as it is", "pids 51"}},
		{name: "a value of another kind", bundle: `{"linux":{"resources":{"pids":{"limit":"` + "\u009b31m" + `"}}}}`, args: []string{"DIR/bundle"}, code: 1, says: []string{`linux.resources.pids.limit is "` + "\ufffd31m"}},
		{name: "a wrong configuration", config: "[limits]\nmemory = \"2gg\"\n", code: 1, says: []string{"DIR/config.toml:2: limits.memory"}},
		{name: "an unknown flag", args: []string{"--memory", "1g"}, code: 2, says: []string{"unknown flag: --memory"}},
		{name: "two bundles", args: []string{"DIR", "DIR"}, code: 2, says: []string{"plan takes one bundle, not 2"}},
		{name: "a bundle and a file", args: []string{"DIR", "--spec", "x"}, code: 2, says: []string{`"DIR" is a bundle and --spec is a file`}},
		{name: "no name", args: []string{"--annotation", "=x"}, code: 2, says: []string{`--annotation "=x" is not NAME=VALUE`}},
		{name: "no value", args: []string{"--annotation", "agentbox.dev/memory"}, code: 2, says: []string{"is not NAME=VALUE"}},
		{name: "no text", args: []string{"--annotation", "n=\xff"}, code: 2, says: []string{`--annotation "n=\xff" is not UTF-8`}},
		{name: "two outputs", args: []string{"--json", "--diff"}, code: 2, says: []string{"--json prints the plan and --diff"}},
		{name: "an unknown verb", args: []string{"--verb", "start", "--diff"}, code: 2, says: []string{`--verb "start" makes no plan: expected create, run, restore`}},
		{name: "a verb for nothing", args: []string{"--verb", "run"}, code: 2, says: []string{"add --diff"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newPlanFixture(t)
			f.write("config.toml", tt.config)
			f.bundle(tt.bundle)
			if tt.link {
				f.write("elsewhere/config.json", "{}")
				f.write("bundle/rootfs/file", "")
				if err := os.Symlink("../elsewhere/config.json", filepath.Join(f.dir, "bundle/config.json")); err != nil {
					t.Fatal(err)
				}
			}
			stdout, stderr, code := f.plan(tt.args...)
			if code != tt.code || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "agentbox: ") {
				t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
			for _, says := range tt.says {
				if !strings.Contains(stderr, says) {
					t.Errorf("%q does not say %q", stderr, says)
				}
			}
			if strings.ContainsAny(stderr, "\u009b\x1b\x07") {
				t.Errorf("%q reaches the terminal", stderr)
			}
		})
	}
}

// TestPlanRefusedDiff: what is refused is not rewritten, so there is no diff.
func TestPlanRefusedDiff(t *testing.T) {
	f := newPlanFixture(t)
	f.write("config.toml", `mode = "strict"`)
	f.probe = v1Host
	if stdout, stderr, code := f.plan("--diff"); stdout != "" || code != 1 || !strings.Contains(stderr, "strict mode") {
		t.Errorf("code %d, stderr %q, stdout %q", code, stderr, stdout)
	}
	if stdout, _, code := f.plan("--json"); code != 1 || !json.Valid([]byte(stdout)) {
		t.Errorf("code %d, stdout %q", code, stdout)
	}
}

// TestPlanHere is about which specification is meant without an argument.
func TestPlanHere(t *testing.T) {
	f := newPlanFixture(t)
	f.write("bundle/config.json", `{"annotations":{"agentbox.dev/pids":"77"}}`)
	pids := func(args ...string) limits.Entry {
		t.Helper()
		stdout, stderr, code := f.plan(append(args, "--json")...)
		var plan limits.Plan
		if err := json.Unmarshal([]byte(stdout), &plan); err != nil || code != 0 {
			t.Fatalf("code %d, %v, stderr %q", code, err, stderr)
		}
		return plan.Entry(limits.KeyPids)
	}
	if got := pids(); got.Value.N != 2048 || got.Source != limits.SourceDefault {
		t.Errorf("without a bundle: %+v", got)
	}
	if got := pids("--annotation", "agentbox.dev/pids=5000", "--profile", "small"); got.Value.N != 5000 || got.Source != limits.SourceAnnotation {
		t.Errorf("an annotation over the profile: %+v", got)
	}
	t.Chdir(filepath.Join(f.dir, "bundle"))
	if got := pids(); got.Value.N != 77 {
		t.Errorf("in a bundle: %+v", got)
	}
	if got := pids("--annotation", "agentbox.dev/pids=88"); got.Value.N != 88 {
		t.Errorf("an annotation in place of the bundle's: %+v", got)
	}
	if got := pids("--spec", "config.json"); got.Value.N != 77 {
		t.Errorf("the file by its name: %+v", got)
	}
}

// TestPlanAsksTheHost is about what the probe is told: what the runtime tells it,
// but no folder to keep notes in.
func TestPlanAsksTheHost(t *testing.T) {
	tests := []struct {
		name   string
		bundle string
		args   []string
		want   host.Input
		asked  bool // the container's request is known
	}{
		{"no bundle", "", nil, host.Input{Runtime: "runc"}, false},
		{
			"a bundle", `{"linux":{"cgroupsPath":"a.slice:b:c"},"root":{"path":"rootfs"}}`,
			[]string{"DIR/bundle", "--systemd-cgroup"},
			host.Input{CgroupsPath: "a.slice:b:c", Systemd: true, Runtime: "runc"},
			true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newPlanFixture(t)
			f.bundle(tt.bundle)
			var got host.Input
			f.probe = func(in host.Input) limits.Host {
				got = in
				return v2Host(in)
			}
			if _, stderr, code := f.plan(tt.args...); code != 0 {
				t.Fatalf("code %d, stderr %q", code, stderr)
			}
			if asked := got.Request != nil; asked != tt.asked {
				t.Errorf("the request is known: %t", asked)
			} else if asked && got.Request.Places[0].Source != filepath.Join(f.dir, "bundle/rootfs") {
				t.Errorf("places %+v", got.Request.Places)
			}
			got.Request = nil
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestPlanWritesNothing runs against the real probe of this host.
func TestPlanWritesNothing(t *testing.T) {
	f := newPlanFixture(t)
	f.bundle("docker")
	f.write("state/before", "")
	f.probe = nil
	before := snapshot(t, f.dir)
	for _, args := range [][]string{{"DIR/bundle"}, {"DIR/bundle", "--json"}, {"DIR/bundle", "--diff", "--verb", "run"}} {
		if stdout, stderr, code := f.plan(args...); code != 0 || stdout == "" {
			t.Errorf("%q: code %d, stderr %q", args, code, stderr)
		}
	}
	if after := snapshot(t, f.dir); !maps.Equal(before, after) {
		t.Errorf("files before:\n%v\nafter:\n%v", before, after)
	}
}

// snapshot returns all files below a folder, with their contents.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestPlanIsThere runs the whole program: the command is registered, and wrong
// use has its own exit code.
func TestPlanIsThere(t *testing.T) {
	f := newFixture(t)
	if stdout, stderr, code := f.run("plan", "--profile", "small"); code != 0 || !strings.Contains(stdout, "profile small") {
		t.Errorf("code %d, stderr %q, stdout %q", code, stderr, stdout)
	}
	if _, stderr, code := f.run("plan", "a", "b"); code != 2 || strings.Count(stderr, "\n") != 1 {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
	if _, _, code := f.run("plan", f.dir); code != 1 {
		t.Errorf("code %d for a folder that is no bundle", code)
	}
}

func TestPlanCompletion(t *testing.T) {
	f := newFixture(t)
	f.write("config.toml", "[profiles.gpu]\nmemory = \"1GiB\"\n")
	tests := []struct {
		name  string
		args  []string
		words []string
	}{
		{"flags", []string{"--"}, []string{"--annotation", "--diff", "--json", "--kubernetes", "--profile", "--spec", "--systemd-cgroup", "--verb"}},
		{"profiles", []string{"--profile", ""}, []string{"browser", "build", "gpu", "small"}},
		{"verbs", []string{"--verb", ""}, []string{"create", "run", "restore"}},
		{"annotations", []string{"--annotation", ""}, []string{"agentbox.dev/io-read-bps=", "agentbox.dev/oom-scope=", "agentbox.dev/profile="}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stdout, _, _ := f.run(append([]string{cobra.ShellCompNoDescRequestCmd, "plan"}, tt.args...)...)
			words := strings.Fields(stdout)
			for _, word := range tt.words {
				if !slices.Contains(words, word) {
					t.Errorf("%q lacks %s", words, word)
				}
			}
		})
	}
	f.write("config.toml", "[profiles")
	if stdout, _, _ := f.run(cobra.ShellCompNoDescRequestCmd, "plan", "--profile", ""); strings.Contains(stdout, "small") {
		t.Errorf("a wrong configuration completes to %q", stdout)
	}
}
