package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	if m == nil {
		return nil
	}
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func body(text string) proto.Message { return &runtimeoptions.Options{ConfigBody: []byte(text)} }

func TestTranslate(t *testing.T) {
	none := &runcoptions.Options{}
	tests := []struct {
		name  string
		given proto.Message
		runc  *runcoptions.Options
		path  string
		body  string
	}{
		{"nothing", nil, none, "", ""},
		{"an empty message", &anypb.Any{}, none, "", ""},
		{"generic and empty", &runtimeoptions.Options{}, none, "", ""},
		{"a path", &runtimeoptions.Options{ConfigPath: "/etc/a.toml"}, none, "/etc/a.toml", ""},
		{"a path with our type", &runtimeoptions.Options{TypeUrl: "io.containerd.agentbox.v1.options", ConfigPath: "/etc/a.toml"}, none, "/etc/a.toml", ""},
		{"a path wins over a body", &runtimeoptions.Options{ConfigPath: "/etc/a.toml", ConfigBody: []byte("x")}, none, "/etc/a.toml", ""},
		{"a body", body("mode = 'strict'\n[limits]\npids = 9\n"), none, "", "mode = 'strict'\n[limits]\npids = 9\n"},
		{"a body of spaces", body(" \n"), none, "", ""},
		{"a body that is no TOML", body("mode = \n"), none, "", "mode = \n"},
		{"a body with unknown keys of ours", body("memroy = 1"), none, "", "memroy = 1"},
		{"Kubernetes, systemd", body("SystemdCgroup = true\n"), &runcoptions.Options{SystemdCgroup: true}, "", ""},
		{
			"Kubernetes, more of runc's", body("BinaryName = '/opt/agentbox-runtime'\nRoot = '/run/r'\nNoPivotRoot = true\nNoNewKeyring = true\nConfigPath = ''\nTypeUrl = ''\n"),
			&runcoptions.Options{BinaryName: "/opt/agentbox-runtime", Root: "/run/r", NoPivotRoot: true, NoNewKeyring: true}, "", "",
		},
		{"both", body("SystemdCgroup = true\nmode = 'strict'\n[limits]\npids = 9\n"), &runcoptions.Options{SystemdCgroup: true}, "", "mode = 'strict'\n\n[limits]\npids = 9\n"},
		{"a path in the body", body("ConfigPath = '/etc/a.toml'\nSystemdCgroup = true\n"), &runcoptions.Options{SystemdCgroup: true}, "/etc/a.toml", ""},
		{"a path in the body wins over the rest", body("ConfigPath = '/etc/a.toml'\nmode = 'off'\n"), none, "/etc/a.toml", ""},
		{"runc's own", &runcoptions.Options{SystemdCgroup: true, Root: "/run/r", IoUid: 7}, &runcoptions.Options{SystemdCgroup: true, Root: "/run/r", IoUid: 7}, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			given, ok := tt.given.(*anypb.Any)
			if !ok {
				given = pack(t, tt.given)
			}
			s, err := translate(given)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(s.runc, tt.runc) || s.configPath != tt.path || string(s.configBody) != tt.body {
				t.Errorf("got %v, path %q, body %q", s.runc, s.configPath, s.configBody)
			}
		})
	}
}

func TestTranslateRefuses(t *testing.T) {
	tests := []struct {
		name  string
		given *anypb.Any
		says  string
	}{
		{"another type", pack(t, &emptypb.Empty{}), `options of the type "google.protobuf.Empty" are not known`},
		{"a value without a type", &anypb.Any{Value: []byte("x")}, `options of the type ""`},
		{"a relative path", pack(t, &runtimeoptions.Options{ConfigPath: "a.toml"}), `ConfigPath "a.toml" is not absolute`},
		{"a relative path in the body", pack(t, body("ConfigPath = 'a.toml'")), `ConfigPath "a.toml" is not absolute`},
		{"another shim's type", pack(t, &runtimeoptions.Options{TypeUrl: "io.containerd.runsc.v1.options"}), `TypeUrl "io.containerd.runsc.v1.options" is not known`},
		{"broken", &anypb.Any{TypeUrl: "runtimeoptions.v1.Options", Value: []byte{0xff}}, "the options are no runtimeoptions.v1.Options"},
		{"broken, of runc", &anypb.Any{TypeUrl: "types.googleapis.com/containerd.runc.v1.Options", Value: []byte{0xff}}, "the options are no containerd.runc.v1.Options"},
		{"an unknown key", pack(t, body("SystemdCgruop = true")), "the option SystemdCgruop is not known"},
		{"a key of another kind", pack(t, body("SystemdCgroup = 'yes'")), "the option SystemdCgroup: "},
		{"another shim's type in the body", pack(t, body("TypeUrl = 'x'")), `TypeUrl "x" is not known`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := translate(tt.given)
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	bundle := t.TempDir()
	for _, tt := range []struct {
		name string
		s    settings
		want []string
	}{
		{"nothing", settings{}, []string{"--agentbox-door", "shim"}},
		{"a path", settings{configPath: "/c"}, []string{"--agentbox-door", "shim", "--agentbox-config", "/c"}},
		{"a body", settings{configBody: []byte("x = 1")}, []string{"--agentbox-door", "shim", "--agentbox-config", filepath.Join(bundle, "agentbox.toml")}},
	} {
		got, err := tt.s.flags(bundle)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
	data, err := os.ReadFile(filepath.Join(bundle, "agentbox.toml"))
	if err != nil || string(data) != "x = 1" {
		t.Errorf("kept %q, %v", data, err)
	}
	if _, err := (&settings{configBody: []byte("x")}).flags(filepath.Join(bundle, "nowhere")); err == nil {
		t.Error("no error where there is no bundle")
	}
}

func TestSystemdIsInferred(t *testing.T) {
	for path, want := range map[string]bool{
		"system.slice:docker:0123":                           true,
		"kubepods-besteffort-pod1.slice:cri-containerd:0123": true,
		":docker:0123":         true,
		"-:docker:0123":        true,
		"/kubepods/pod1/0123":  false,
		"/docker/0123":         false,
		"/odd.slice:name:0123": true, // what runc takes for it
		"/a:b:c":               false,
		"system.slice:docker":  false,
		"system.slice:docker:": false,
		"system.slice:a:b:c":   false,
		"":                     false,
	} {
		if got := isSystemdPath(path); got != want {
			t.Errorf("%q: %v", path, got)
		}
	}
}

func TestCgroupsPath(t *testing.T) {
	for name, tt := range map[string]struct{ spec, want string }{
		"there":     {`{"linux":{"cgroupsPath":"system.slice:docker:1"}}`, "system.slice:docker:1"},
		"not there": {`{"linux":{}}`, ""},
		"a number":  {`{"linux":{"cgroupsPath":1}}`, ""},
		"no JSON":   {`{`, ""},
	} {
		bundle := t.TempDir()
		if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(tt.spec), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := cgroupsPath(bundle); got != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := cgroupsPath(filepath.Join(t.TempDir(), "nowhere")); got != "" {
		t.Errorf("no bundle: %q", got)
	}
}

func TestAnotherRuntimeIsRefused(t *testing.T) {
	ours := filepath.Join(t.TempDir(), "agentbox-runtime")
	if err := os.WriteFile(ours, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := findRuntime(ours); err != nil || got != ours {
		t.Errorf("%q, %v", got, err)
	}
	for name, says := range map[string]string{
		"runc":                      "would start containers without limits",
		"/usr/bin/crun":             "would start containers without limits",
		ours + "/":                  "", // not a program
		"/nowhere/agentbox-runtime": "/nowhere/agentbox-runtime",
	} {
		if got, err := findRuntime(name); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if got, err := findRuntime(""); err == nil || !strings.Contains(err.Error(), "install it beside") {
		t.Errorf("%q, %v", got, err)
	}
	t.Setenv("PATH", filepath.Dir(ours))
	if got, err := findRuntime(""); err != nil || got != ours {
		t.Errorf("on the PATH: %q, %v", got, err)
	}
}

// FuzzTranslate: options are taken or refused in one line, and never lead to a
// type that containerd's service does not expect.
func FuzzTranslate(f *testing.F) {
	for _, text := range []string{"", "SystemdCgroup = true\nmode = 'strict'", "x = ", "[limits]\npids = 1", "'' = 1", "A.b = 1", "BinaryName = 1"} {
		f.Add("runtimeoptions.v1.Options", pack(f, body(text)).GetValue())
	}
	f.Add("containerd.runc.v1.Options", []byte("\x48\x01"))
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		s, err := translate(&anypb.Any{TypeUrl: name, Value: value})
		if err != nil {
			return
		}
		if s.runc == nil || s.configPath != "" && (s.configBody != nil || !filepath.IsAbs(s.configPath)) {
			t.Errorf("%+v", s)
		}
	})
}

// containerd asks a shim what its runtime can do, with the options of a
// container.
func TestInfo(t *testing.T) {
	dir := t.TempDir()
	program := "#!/bin/sh\n[ \"$1\" = features ] && echo '{\"ociVersionMin\":\"1.0.0\",\"ociVersionMax\":\"1.2.0\"}'\n"
	if err := os.WriteFile(filepath.Join(dir, "agentbox-runtime"), []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for name, given := range map[string]proto.Message{
		"no options":      nil,
		"a path":          &runtimeoptions.Options{ConfigPath: "/etc/a.toml"},
		"options of runc": &runcoptions.Options{SystemdCgroup: true},
	} {
		t.Run(name, func(t *testing.T) {
			var input []byte
			if given != nil {
				var err error
				if input, err = proto.Marshal(pack(t, given)); err != nil {
					t.Fatal(err)
				}
			}
			info, err := newManager().Info(t.Context(), bytes.NewReader(input))
			if err != nil {
				t.Fatal(err)
			}
			if info.GetName() != runtimeType || info.GetVersion().GetVersion() != version() || !strings.Contains(string(info.GetFeatures().GetValue()), "1.2.0") {
				t.Errorf("got %v", info)
			}
			var runc runcoptions.Options
			if err := info.GetOptions().UnmarshalTo(&runc); err != nil || runc.GetBinaryName() != filepath.Join(dir, "agentbox-runtime") {
				t.Errorf("options %v, %v", info.GetOptions(), err)
			}
		})
	}
	if _, err := newManager().Info(t.Context(), strings.NewReader("{")); err == nil {
		t.Error("no error for what is no message")
	}
}
