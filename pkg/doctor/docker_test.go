package doctor

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseDocker(t *testing.T) {
	for _, c := range []struct {
		name, text, problem string
		want                DockerSettings
	}{
		{name: "nothing", text: " \n"},
		{name: "no settings", text: "{}"},
		{
			name: "all that is looked at, among others",
			text: `{"log-driver": "json-file", "log-opts": {"max-size": "10m"}, "data-root": "/srv/docker", "iptables": false,
				"exec-opts": ["native.cgroupdriver=systemd"], "runtimes": {"agentbox": {"path": "/bin/agentbox-runtime", "runtimeArgs": ["-x"]}, "shim": {"runtimeType": "io.containerd.agentbox.v1"}}}`,
			want: DockerSettings{
				LogDriver: "json-file", LogOpts: map[string]string{"max-size": "10m"}, DataRoot: "/srv/docker",
				ExecOpts: []string{"native.cgroupdriver=systemd"},
				Runtimes: map[string]DockerRuntime{"agentbox": {Path: "/bin/agentbox-runtime"}, "shim": {Type: "io.containerd.agentbox.v1"}},
			},
		},
		{name: "half a file", text: `{"log-driver": "js`, problem: "not the JSON that Docker expects: it ends in the middle"},
		{name: "a number where Docker wants a text", text: `{"log-opts": {"max-size": 10}}`, problem: "is a number where a text is expected"},
		{name: "a list where Docker wants an object", text: `{"runtimes": []}`, problem: "expects: runtimes is a list where an object is expected"},
		{name: "true where Docker wants a list", text: `{"exec-opts": true}`, problem: "expects: exec-opts is true or false where a list is expected"},
		{name: "a text where Docker wants an object", text: `{"runtimes": {"x": "/y"}}`, problem: "is a text where an object is expected"},
		{name: "an object where Docker wants a text", text: `{"data-root": {}}`, problem: "expects: data-root is an object where a text is expected"},
		{name: "no JSON", text: `{log-driver}`, problem: "expects: at byte 2: invalid character 'l'"},
		{name: "something behind", text: `{} {}`, problem: "something after its JSON object"},
		{name: "a list", text: `[]`, problem: "expects: it is a list where an object is expected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseDocker([]byte(c.text))
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v", got)
			}
			if c.problem == "" && err != nil || c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("error %v, want %q", err, c.problem)
			}
			if err != nil && strings.Contains(err.Error(), "Go ") {
				t.Errorf("%v", err)
			}
		})
	}
}

func cmdline(args ...string) []byte { return []byte(strings.Join(args, "\x00") + "\x00") }

func TestParseDockerd(t *testing.T) {
	for _, c := range []struct {
		name    string
		cmdline []byte
		want    DockerSettings
		names   []string
		file    string
		ok      bool
	}{
		{name: "nothing", cmdline: nil},
		{name: "another program", cmdline: cmdline("/usr/bin/podman", "--log-driver=local")},
		{name: "no flags", cmdline: cmdline("dockerd"), ok: true},
		{name: "as Debian starts it", cmdline: cmdline("/usr/sbin/dockerd", "-H", "fd://", "--containerd=/run/containerd/containerd.sock"), ok: true},
		{
			name:    "with = and without",
			cmdline: cmdline("/usr/bin/dockerd", "--debug", "--log-driver", "local", "--log-opt=max-size=10m", "--log-opt", "max-file=3", "--config-file", "/x.json", "--data-root=/srv"),
			want:    DockerSettings{LogDriver: "local", LogOpts: map[string]string{"max-size": "10m", "max-file": "3"}, DataRoot: "/srv"},
			names:   []string{"log-driver", "log-opts", "data-root"}, file: "/x.json", ok: true,
		},
		{
			name:    "runtimes and exec-opts",
			cmdline: cmdline("dockerd", "--add-runtime", "agentbox=/bin/agentbox-runtime", "--exec-opt=native.cgroupdriver=systemd"),
			want: DockerSettings{
				Runtimes: map[string]DockerRuntime{"agentbox": {Path: "/bin/agentbox-runtime"}}, ExecOpts: []string{"native.cgroupdriver=systemd"},
			},
			names: []string{"runtimes", "exec-opts"}, ok: true,
		},
		{name: "the value of another flag", cmdline: cmdline("dockerd", "--label", "--log-driver", "x"), want: DockerSettings{LogDriver: "x"}, names: []string{"log-driver"}, ok: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, names, file, ok := parseDockerd(c.cmdline)
			if !reflect.DeepEqual(got, c.want) || !slices.Equal(names, c.names) || file != c.file || ok != c.ok {
				t.Errorf("%+v, %v, %q, %t", got, names, file, ok)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	file := DockerSettings{LogDriver: "a", LogOpts: map[string]string{"x": "1"}, ExecOpts: []string{"e"}, Runtimes: map[string]DockerRuntime{"r": {}}}
	if got := file.merge(DockerSettings{}); got.LogDriver != "a" || got.LogOpts["x"] != "1" || got.ExecOpts[0] != "e" || len(got.Runtimes) != 1 || got.DataRoot != dockerRoot {
		t.Errorf("without flags: %+v", got)
	}
	flags := DockerSettings{LogDriver: "b", LogOpts: map[string]string{"y": "2"}, ExecOpts: []string{"f"}, Runtimes: map[string]DockerRuntime{}, DataRoot: "/d"}
	if got := file.merge(flags); !reflect.DeepEqual(got, flags) {
		t.Errorf("with flags: %+v", got)
	}
}

func TestBroken(t *testing.T) {
	s := DockerSettings{Runtimes: map[string]DockerRuntime{
		"z": {Path: "/gone/agentbox-runtime"}, "a": {Path: "/gone/agentbox-runtime"}, "good": {Path: "/bin/agentbox-runtime"}, "other": {Path: "/gone/runsc"}, "shim": {},
	}}
	got := s.broken(func(path string) bool { return strings.HasPrefix(path, "/bin/") })
	if !slices.Equal(got, []string{"a", "z"}) {
		t.Errorf("%v", got)
	}
}

func FuzzParseDocker(f *testing.F) {
	f.Add([]byte(`{"log-opts": {"max-size": "10m"}}`))
	f.Add([]byte("dockerd\x00--log-opt\x00max-size=10m\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := parseDocker(data); err != nil && !reflect.DeepEqual(s, DockerSettings{}) {
			t.Errorf("%v, and settings %+v", err, s)
		}
		_, names, _, ok := parseDockerd(data)
		slices.Sort(names)
		if !ok && names != nil || len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("%v, %t", names, ok)
		}
	})
}
