package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/rogpeppe/go-internal/diff"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const program = "/usr/local/bin/agentbox-runtime"

var (
	byRuntime = Want{Runtime: program}
	byShim    = Want{Runtime: program, Shim: true}
	withLogs  = Want{Runtime: program, LogLimits: true}
)

// cases are files as engines and their packages leave them, and what agentbox is
// told to add. A golden file has the difference.
var cases = []struct {
	name   string
	engine Engine
	file   string // in testdata; "": there is none
	want   Want
}{
	{"docker-absent", Docker, "", byRuntime},
	{"docker-absent-logs", Docker, "", withLogs},
	{"docker", Docker, "daemon.json", byRuntime},
	{"docker-logs", Docker, "daemon.json", withLogs},
	{"docker-shim", Docker, "daemon.json", byShim},
	{"containerd-absent", Containerd, "", Want{Runtime: program, Shim: true, Major: 1}},
	{"containerd-absent-2", Containerd, "", Want{Runtime: program, Shim: true, Major: 2}},
	{"containerd-1.6", Containerd, "containerd-1.6.toml", byShim},
	{"containerd-1.6-runtime", Containerd, "containerd-1.6.toml", byRuntime},
	{"containerd-2.1", Containerd, "containerd-2.1.toml", byShim},
	{"containerd-2.1-runtime", Containerd, "containerd-2.1.toml", byRuntime},
	{"containerd-docker-ce", Containerd, "docker-ce.toml", byShim},
	{"containerd-debian", Containerd, "debian.toml", byShim},
	{"containerd-kubeadm", Containerd, "kubeadm.toml", byShim},
	{"containerd-kubeadm-runtime", Containerd, "kubeadm.toml", byRuntime},
	{"containerd-shim-elsewhere", Containerd, "kubeadm.toml", Want{Runtime: program, Shim: true, ShimPath: "/opt/agentbox/containerd-shim-agentbox-v1"}},
	{"containerd-drop-in", Containerd, "", Want{Runtime: program, Shim: true, Major: 2, Main: []byte("version = 3\nimports = [\"conf.d/*.toml\"]\n")}},
	{"containerd-drop-in-beside-runc", Containerd, "", Want{Runtime: program, Shim: true, Major: 2, Main: fixture("kubeadm.toml")}},
	{"crio", CRIO, "", byRuntime},
	{"podman", Podman, "", byRuntime},
}

// fixture is nil where there is no file.
func fixture(name string) []byte {
	if name == "" {
		return nil
	}
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		panic(err)
	}
	return data
}

func TestAdd(t *testing.T) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			before := fixture(tt.file)
			edit := roundTrip(t, tt.engine, before, tt.want)
			got := string(diff.Diff("before", before, "after", edit.Data))
			for _, note := range edit.Notes {
				got += "note: " + note + "\n"
			}
			golden := filepath.Join("testdata", "golden", tt.name+".diff")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// roundTrip adds agentbox, and checks what holds for every file: what was there
// is there, adding again adds nothing, and removing gives the same bytes.
func roundTrip(t *testing.T, e Engine, before []byte, want Want) Edit {
	t.Helper()
	edit, err := Add(e, "FILE", before, want)
	if err != nil {
		t.Fatal(err)
	}
	if len(edit.Added) == 0 {
		if !bytes.Equal(edit.Data, before) {
			t.Errorf("nothing was added, and the file is another: %q, was %q", edit.Data, before)
		}
		return edit
	}
	keepsAll(t, e, before, edit)
	again, err := Add(e, "FILE", edit.Data, want)
	if err != nil || len(again.Added) > 0 || !bytes.Equal(again.Data, edit.Data) {
		t.Errorf("adding again adds %v (%v)", again.Added, err)
	}
	added := throughJSON(t, edit.Added)
	after, err := Remove(e, "FILE", edit.Data, added)
	if err != nil {
		t.Fatalf("%v in\n%s", err, edit.Data)
	}
	if e == Docker && len(bytes.TrimSpace(bytes.TrimPrefix(before, byteOrderMark))) == 0 {
		if Holds(e, after) {
			t.Errorf("%q is left", after)
		}
		return edit
	}
	if !bytes.Equal(after, before) {
		t.Errorf("removing gives\n%q\nwhich was\n%q\nwith it\n%q", after, before, edit.Data)
	}
	return edit
}

// throughJSON is what a record makes of it.
func throughJSON(t *testing.T, list []Added) (back []Added) {
	t.Helper()
	data, err := json.MarshalIndent(list, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	return back
}

// keepsAll decodes both files and takes what was added out of the new one.
func keepsAll(t *testing.T, e Engine, before []byte, edit Edit) {
	t.Helper()
	was, is := decode(t, e, before), decode(t, e, edit.Data)
	for _, a := range slices.Backward(edit.Added) {
		path := a.Path
		parent, ok := lookUp(is, path[:len(path)-1]).(map[string]any)
		if !ok || parent[path[len(path)-1]] == nil {
			t.Errorf("%q is not in the file", path)
			continue
		}
		if m, isTable := parent[path[len(path)-1]].(map[string]any); a.Value == nil && isTable && len(m) > 0 {
			continue // it was there, in another form
		}
		delete(parent, path[len(path)-1])
	}
	prune(was)
	prune(is)
	if fmt.Sprint(was) != fmt.Sprint(is) {
		t.Errorf("the file says\n%v\nand said\n%v", is, was)
	}
}

// prune removes empty tables: TOML makes those above a table.
func prune(m map[string]any) {
	for name, value := range m {
		if inner, ok := value.(map[string]any); ok {
			if prune(inner); len(inner) == 0 {
				delete(m, name)
			}
		}
	}
}

func decode(t *testing.T, e Engine, data []byte) map[string]any {
	t.Helper()
	m := map[string]any{}
	data = bytes.TrimPrefix(data, byteOrderMark)
	if len(bytes.TrimSpace(data)) == 0 {
		return m
	}
	unmarshal := toml.Unmarshal
	if e == Docker {
		unmarshal = json.Unmarshal
	}
	if err := unmarshal(data, &m); err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	return m
}

// Files that people and their editors write.
func TestOddFiles(t *testing.T) {
	const (
		runtimes = `"runtimes": {"agentbox":{"path":"/usr/local/bin/agentbox-runtime"}}`
		table    = marker + "\n[engine.runtimes]\nagentbox = [\"/usr/local/bin/agentbox-runtime\"]"
	)
	tests := []struct {
		name, before, after string
		engine              Engine
	}{
		{"braces", "{}", "{" + runtimes + "}", Docker},
		{"braces and a newline", "{}\n", "{" + runtimes + "}\n", Docker},
		{"braces on two lines", "{\n}", "{\n  \"runtimes\": {\n    \"agentbox\": {\n      \"path\": \"" + program + "\"\n    }\n  }\n}", Docker},
		{"empty", "", "{\n  \"runtimes\": {\n    \"agentbox\": {\n      \"path\": \"" + program + "\"\n    }\n  }\n}\n", Docker},
		{"one line", `{"debug":true}`, `{"debug":true, ` + runtimes + `}`, Docker},
		{"no newline at the end", "{\n  \"debug\": true\n}", "{\n  \"debug\": true,\n  \"runtimes\": {\n    \"agentbox\": {\n      \"path\": \"" + program + "\"\n    }\n  }\n}", Docker},
		{"tabs", "{\n\t\"debug\": true\n}\n", "{\n\t\"debug\": true,\n\t\"runtimes\": {\n\t\t\"agentbox\": {\n\t\t\t\"path\": \"" + program + "\"\n\t\t}\n\t}\n}\n", Docker},
		{"CRLF", "{\r\n  \"debug\": true\r\n}\r\n", "{\r\n  \"debug\": true,\r\n  \"runtimes\": {\r\n    \"agentbox\": {\r\n      \"path\": \"" + program + "\"\r\n    }\r\n  }\r\n}\r\n", Docker},
		{"byte order mark", "\xef\xbb\xbf{\"debug\": true}", "\xef\xbb\xbf{\"debug\": true, " + runtimes + "}", Docker},
		{"no runtimes yet", "{\n  \"runtimes\": {\n  }\n}\n", "{\n  \"runtimes\": {\n    \"agentbox\": {\n      \"path\": \"" + program + "\"\n    }\n  }\n}\n", Docker},
		{"space around it", " \n\t{ } \n", " \n\t{" + runtimes + " } \n", Docker},
		{"names with escapes", `{"a\"b\\": {"}": "{"}}`, `{"a\"b\\": {"}": "{"}, ` + runtimes + `}`, Docker},
		{"numbers as they are", `{"a": 1.50e+1, "b": 12345678901234567890}`, `{"a": 1.50e+1, "b": 12345678901234567890, ` + runtimes + `}`, Docker},

		{"empty", "", table + "\n", Podman},
		{"comments everywhere", "# a\n\n[containers] # b\n# c\npids_limit = 1 # d\n\n# e\n", "# a\n\n[containers] # b\n# c\npids_limit = 1 # d\n\n# e\n\n" + table + "\n", Podman},
		{"no newline at the end", "[containers]\npids_limit = 1", "[containers]\npids_limit = 1\n" + table, Podman},
		{"a comment without a newline", "# the end", "# the end\n" + table, Podman},
		{"empty lines at the end", "[containers]\n\n\n", "[containers]\n\n\n\n" + table + "\n", Podman},
		{"spaces at the end", "[containers]\n  ", "[containers]\n  \n" + table, Podman},
		{"CRLF", "[containers]\r\npids_limit = 1\r\n", "[containers]\r\npids_limit = 1\r\n\r\n" + strings.ReplaceAll(table, "\n", "\r\n") + "\r\n", Podman},
		{"tabs", "[containers]\n\tpids_limit\t=\t1\n", "[containers]\n\tpids_limit\t=\t1\n\n" + table + "\n", Podman},
		{"byte order mark", "\xef\xbb\xbf[containers]\n", "\xef\xbb\xbf[containers]\n\n" + table + "\n", Podman},
		{"a header in a text", "a = '''\n[engine.runtimes]\nagentbox = 1\n'''\n", "a = '''\n[engine.runtimes]\nagentbox = 1\n'''\n\n" + table + "\n", Podman},
		{"the table above is a dotted key", "engine.cgroup_manager = \"cgroupfs\"\n", "engine.cgroup_manager = \"cgroupfs\"\n\n" + table + "\n", Podman},
	}
	for _, tt := range tests {
		t.Run(string(tt.engine)+" "+tt.name, func(t *testing.T) {
			if got := roundTrip(t, tt.engine, []byte(tt.before), byRuntime); string(got.Data) != tt.after {
				t.Errorf("got\n%q\nwant\n%q", got.Data, tt.after)
			}
		})
	}
}

// Files that their engines would refuse, or that mean several things, are refused
// with the place, and nothing is made of them.
func TestRefused(t *testing.T) {
	tests := []struct {
		name   string
		engine Engine
		data   string
		says   string
	}{
		{"half a file", Docker, "{\n  \"debug\": tru\n}", "FILE:2:15: is not valid JSON"},
		{"cut off", Docker, "{\n  \"debug\": true", "FILE:2:15: is not valid JSON: unexpected end"},
		{"a comment", Docker, "{\n  // mine\n}", "FILE:2:3: is not valid JSON"},
		{"a comma too many", Docker, "{\"debug\": true,}", "FILE:1:16: is not valid JSON"},
		{"two files", Docker, "{}\n{}", "FILE:2:1: is not valid JSON"},
		{"a wide character before it", Docker, `{"é": }`, "FILE:1:7: is not valid JSON"},
		{"a list", Docker, " [1]", "FILE:1:2: is [1] where an object is expected"},
		{"null", Docker, "null", "FILE:1:1: is null where an object is expected"},
		{"UTF-16", Docker, "\xff\xfe{\x00}\x00", "FILE:1:1: is not UTF-8"},
		{"not text", Docker, "{\"a\":\n \"\xc3\"}", "FILE:2:3: is not UTF-8"},
		{"runtimes is a list", Docker, `{"runtimes": []}`, "FILE:1:14: runtimes is [] where an object is expected"},
		{"runtimes is null", Docker, `{"runtimes": null}`, "FILE:1:14: runtimes is null where"},
		{"runtimes twice", Docker, `{"runtimes": {}, "runtimes": {}}`, `FILE:1:18: the key "runtimes" is there twice`},
		{"runtimes in capitals", Docker, "{\n\"Runtimes\": {}}", `FILE:2:1: the key "Runtimes" is not spelled "runtimes"`},
		{"agentbox is another", Docker, "{\"runtimes\":\n{\"agentbox\": {\"path\": \"/opt/x\"}}}", `FILE:2: runtimes.agentbox is {"path": "/opt/x"} already`},

		{"no value", Containerd, "version = 2\n[plugins\n", "FILE:2:"},
		{"a key twice", Containerd, "version = 2\nroot = 'a'\nroot = 'b'\n", "FILE:3:1: is not valid TOML"},
		{"not text", Containerd, "version = 2\n# \xff\n", "FILE:2:3: is not UTF-8"},
		{"a version that is a text", Containerd, "version = \"2\"\n", `FILE:1: version "2" is not one that this agentbox knows: expected 1 to 4`},
		{"a version to come", Containerd, "\nversion = 9\n", "FILE:2: version 9 is not one that this agentbox knows: expected 1 to 4"},
		{"a version in quotes", Containerd, "version = '2'\n", `FILE:1: version "2" is not one`},
		{"plugins in one piece", Containerd, "version = 2\nplugins = {}\n", "FILE:2: plugins is written in one piece"},
		{"runtimes in one piece", Containerd, "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nruntimes = {runc = {runtime_type = 'io.containerd.runc.v2'}}\n", `FILE:3: plugins."io.containerd.grpc.v1.cri".containerd.runtimes is written in one piece`},
		{"plugins are a list", Containerd, "version = 2\n[[plugins]]\n", "FILE:2: plugins is written in one piece"},
		{"agentbox is another", Containerd, "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.agentbox]\nruntime_type = 'x'\n", `FILE:2: plugins."io.containerd.grpc.v1.cri".containerd.runtimes.agentbox is {"runtime_type":"x"} already`},
		{"agentbox is another", CRIO, "[crio.runtime]\nruntimes = {agentbox = {}}\n", "FILE:2: crio.runtime.runtimes.agentbox is {} already"},
		{"agentbox is another", Podman, "[engine.runtimes]\nagentbox = []\n", "FILE:2: engine.runtimes.agentbox is [] already"},
		{"runtimes are there", Podman, "[engine.runtimes]\nx = []\n", "agentbox cannot be added at the end of the file"},
	}
	for _, tt := range tests {
		t.Run(string(tt.engine)+" "+tt.name, func(t *testing.T) {
			edit, err := Add(tt.engine, "FILE", []byte(tt.data), byRuntime)
			if err == nil || edit.Data != nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want it to say %q; data %q", err, tt.says, edit.Data)
			}
			var e *Error
			var exists *ExistsError
			if !errors.As(err, &e) && !errors.As(err, &exists) {
				t.Errorf("%v is a %T", err, err)
			}
		})
	}
}

func TestUnknownEngine(t *testing.T) {
	if _, err := Add("lxc", "FILE", nil, byRuntime); err == nil || !strings.Contains(err.Error(), `"lxc" is not an engine`) {
		t.Errorf("got %v", err)
	}
	for _, path := range []string{"/a\nb", "/\xff", "/\x1b[0m"} {
		if _, err := Add(Podman, "FILE", nil, Want{Runtime: path}); err == nil || !strings.Contains(err.Error(), "cannot name safely") {
			t.Errorf("%q: %v", path, err)
		}
	}
	if _, err := Remove("lxc", "FILE", nil, nil); err == nil {
		t.Error("no error")
	}
}

func TestLogLimits(t *testing.T) {
	tests := []struct {
		name, data string
		added      int // keys below log-opts
		note       string
	}{
		{"nothing there", "{}", 2, ""},
		{"the default by name", `{"log-driver": "json-file"}`, 2, ""},
		{"other options", `{"log-opts": {"labels": "x"}}`, 2, ""},
		{"a size", `{"log-opts": {"max-size": "1g"}}`, 0, `log-opts has max-size already, as "1g"`},
		{"a number of files", `{"log-opts": {"max-file": "9"}}`, 0, `log-opts has max-file already, as "9"`},
		{"ours by hand", `{"log-opts": {"max-file": "3", "max-size": "10m"}}`, 0, ""},
		{"one as ours", `{"log-opts": {"max-size": "10m"}}`, 0, `log-opts has max-size already, as "10m"`},
		{"another driver", `{"log-driver": "journald"}`, 0, `the log-driver is "journald"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			edit := roundTrip(t, Docker, []byte(tt.data), withLogs)
			var now struct {
				Opts map[string]string `json:"log-opts"`
			}
			if err := json.Unmarshal(edit.Data, &now); err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, a := range edit.Added {
				if a.Path[0] == "log-opts" && len(a.Path) == 2 {
					n++
				}
			}
			if n != tt.added || tt.added == 2 && (now.Opts["max-size"] != "10m" || now.Opts["max-file"] != "3") {
				t.Errorf("added %d: %s", n, edit.Data)
			}
			if note := strings.Join(edit.Notes, "\n"); (note == "") != (tt.note == "") || !strings.Contains(note, tt.note) {
				t.Errorf("note %q, want %q", note, tt.note)
			}
		})
	}
}

// What the administrator did since is his.
func TestRemoveFromAChangedFile(t *testing.T) {
	tests := []struct {
		name   string
		engine Engine
		before string
		want   Want
		change func(string) string
		after  string
	}{
		{"a setting behind ours", Docker, "{\n  \"a\": 1\n}", byRuntime, func(s string) string {
			return strings.TrimSuffix(s, "\n}") + ",\n  \"b\": 2\n}"
		}, "{\n  \"a\": 1,\n  \"b\": 2\n}"},
		{"ours is the first now", Docker, "{\n  \"a\": 1\n}", byRuntime, func(s string) string {
			return strings.Replace(strings.TrimSuffix(s, "\n}"), "\n  \"a\": 1,", "", 1) + ",\n  \"b\": 2\n}"
		}, "{\n  \"b\": 2\n}"},
		{"another runtime in our table", Docker, "{}", byRuntime, func(s string) string {
			return strings.Replace(s, `{"agentbox"`, `{"x": {"path": "x"}, "agentbox"`, 1)
		}, `{"runtimes": {"x": {"path": "x"}}}`},
		{"arguments for agentbox", Docker, "{}", byRuntime, func(s string) string {
			return strings.Replace(s, `-runtime"}`, `-runtime", "runtimeArgs": []}`, 1)
		}, `{}`},
		{"another log size", Docker, "{}", withLogs, func(s string) string {
			return strings.Replace(s, `"10m"`, `"99m"`, 1)
		}, `{ "log-opts": {"max-size":"99m"}}`},
		{"our entry is gone", Docker, `{"a": 1}`, byRuntime, func(string) string { return `{"a": 2}` }, `{"a": 2}`},
		{"formatted anew", Docker, `{"a":1}`, byRuntime, func(s string) string {
			var b bytes.Buffer
			if err := json.Indent(&b, []byte(s), "", "    "); err != nil {
				panic(err)
			}
			return b.String()
		}, "{\n    \"a\": 1\n}"},

		{"settings behind ours", Podman, "[a]\nb = 1\n", byRuntime, func(s string) string { return s + "\n# mine\n[c]\nd = 2\n" }, "[a]\nb = 1\n\n# mine\n[c]\nd = 2\n"},
		{"settings behind ours, and no newline before", Podman, "[a]\nb = 1", byRuntime, func(s string) string { return s + "\n[c]\nd = 2\n" }, "[a]\nb = 1\n[c]\nd = 2\n"},
		{"another runtime in our table", Podman, "", byRuntime, func(s string) string { return s + "x = ['y']\n" }, marker + "\n[engine.runtimes]\nx = ['y']\n"},
		{"comments are lost", Podman, "[a]\n", byRuntime, func(s string) string { return strings.Replace(s, marker+"\n", "", 1) }, "[a]\n\n"},
		{"runc has options now", Containerd, "version = 2\n", byShim, func(s string) string {
			return strings.Replace(s, runcType+"\"\n", runcType+"\"\nsnapshotter = \"zfs\"\n", 1)
		}, "version = 2\n\n" + marker + "\n" + whyRunc + "\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\nsnapshotter = \"zfs\"\n"},
		{"another runtime needs runc", Containerd, "version = 2\n", byShim, func(s string) string {
			return s + "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.x]\n"
		}, "version = 2\n\n" + marker + "\n" + whyRunc + "\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.x]\n"},
		{"options in two places", Containerd, "version = 3\n", byShim, func(s string) string {
			return s + "[a]\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.agentbox.options]\nx = 1\n[b]\n"
		}, "version = 3\n[a]\n[b]\n"},
		{"a version for other settings", Containerd, "", Want{Shim: true, Major: 2}, func(s string) string { return "root = '/x'\n" + s }, "root = '/x'\n" + marker + "\nversion = 3\n"},
	}
	for _, tt := range tests {
		t.Run(string(tt.engine)+" "+tt.name, func(t *testing.T) {
			edit, err := Add(tt.engine, "FILE", []byte(tt.before), tt.want)
			if err != nil {
				t.Fatal(err)
			}
			changed := tt.change(string(edit.Data))
			if changed == string(edit.Data) {
				t.Fatalf("the case changes nothing in %q", changed)
			}
			got, err := Remove(tt.engine, "FILE", []byte(changed), throughJSON(t, edit.Added))
			if err != nil {
				t.Fatalf("%v in\n%s", err, changed)
			}
			if string(got) != tt.after {
				t.Errorf("got\n%q\nwant\n%q\nfrom\n%q", got, tt.after, changed)
			}
		})
	}
}

func TestRemoveRefuses(t *testing.T) {
	edit, err := Add(CRIO, "FILE", nil, byRuntime)
	if err != nil {
		t.Fatal(err)
	}
	inline := "[crio.runtime]\n# x\nruntimes = {agentbox = {runtime_path = \"x\"}}\n"
	if _, err := Remove(CRIO, "FILE", []byte(inline), edit.Added); err == nil || !strings.Contains(err.Error(), "FILE:3: crio.runtime.runtimes.agentbox is written in another form") {
		t.Errorf("got %v", err)
	}
	if _, err := Remove(CRIO, "FILE", []byte("[crio"), edit.Added); err == nil || !strings.Contains(err.Error(), "FILE:1:") {
		t.Errorf("got %v", err)
	}
	if _, err := Remove(Docker, "FILE", []byte("{"), nil); err == nil || !strings.Contains(err.Error(), "FILE:1:") {
		t.Errorf("got %v", err)
	}
}

func TestDropIn(t *testing.T) {
	const file = "/etc/containerd/config.toml"
	tests := []struct {
		name, data string
		major      int
		want       string
	}{
		{"no imports", "version = 3\n", 2, ""},
		{"the folder of containerd 2.2", `imports = ["/etc/containerd/conf.d/*.toml"]`, 2, "/etc/containerd/conf.d/50-agentbox.toml"},
		{"a relative one", `imports = ["conf.d/*.toml"]`, 2, "/etc/containerd/conf.d/50-agentbox.toml"},
		{"the second", `imports = ["/etc/one.toml", "/etc/*/x/*.toml", "/srv/c/*.toml"]`, 2, "/srv/c/50-agentbox.toml"},
		{"containerd 1 would drop the other settings", `imports = ["/etc/containerd/conf.d/*.toml"]`, 1, ""},
		{"of no known version", `imports = ["/etc/containerd/conf.d/*.toml"]`, 0, ""},
		{"other files only", `imports = ["/etc/containerd/conf.d/*.conf"]`, 2, ""},
		{"not a list", `imports = 3`, 2, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := DropIn(file, []byte(tt.data), tt.major)
			if err != nil || got != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
	if _, err := DropIn(file, []byte("["), 2); err == nil {
		t.Error("a file that is not TOML has a drop-in folder")
	}
}

func TestMajor(t *testing.T) {
	tests := map[string]int{
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3":                    1,
		"containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376": 2,
		"containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da":                       1,
		"Docker version 28.5.2+dfsg4, build ecc6942":                                                     28,
		"Docker version 20.10.24+dfsg1, build 297e128":                                                   20,
		"":                      0,
		"exec format error":     0,
		"containerd 99999999.1": 0,
	}
	for output, want := range tests {
		if got := Major(output); got != want {
			t.Errorf("%q is of version %d, want %d", output, got, want)
		}
	}
}

// The last look before a file is written: it says what it said, and the tables.
func TestOnlyTheTablesAreAdded(t *testing.T) {
	before, err := parseTOML("FILE", []byte("a = 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	tables := []table{{path: []string{"b"}, keys: []keyValue{{"c", "d"}}}}
	for text, good := range map[string]bool{
		"a = 1\n[b]\nc = 'd'\n":        true,
		"a = 1\n[b]\nc = 'd'\ne = 2\n": false, // more
		"a = 2\n[b]\nc = 'd'\n":        false, // another
		"[b]\nc = 'd'\n":               false, // less
		"a = 1\n[b]\n":                 false, // not what was to be added
	} {
		after, err := parseTOML("FILE", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := after.only(before, tables); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}
