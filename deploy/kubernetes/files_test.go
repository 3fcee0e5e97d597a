package kubernetes_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"github.com/agentbox/agentbox/deploy/kubernetes"
	"github.com/agentbox/agentbox/pkg/config"
	"github.com/agentbox/agentbox/pkg/limits"
)

// The part of the Kubernetes API that the manifests use, so that a field that
// does not exist, or has another type, is an error. The API's own Go types would
// say the same, and take longer to compile than all of agentbox.
type (
	meta struct {
		Name, Namespace     string
		Labels, Annotations map[string]string
	}
	head struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
	}
	namespace struct {
		head `yaml:",inline"`
	}
	runtimeClass struct {
		head       `yaml:",inline"`
		Handler    string
		Scheduling struct {
			NodeSelector map[string]string `yaml:"nodeSelector"`
		}
	}
	daemonSet struct {
		head `yaml:",inline"`
		Spec struct {
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			UpdateStrategy struct {
				Type          string
				RollingUpdate struct {
					MaxUnavailable int `yaml:"maxUnavailable"`
				} `yaml:"rollingUpdate"`
			} `yaml:"updateStrategy"`
			Template struct {
				Metadata meta
				Spec     podSpec
			}
		}
	}
	pod struct {
		head `yaml:",inline"`
		Spec podSpec
	}
	podSpec struct {
		RuntimeClassName              string            `yaml:"runtimeClassName"`
		NodeSelector                  map[string]string `yaml:"nodeSelector"`
		Tolerations                   []struct{ Operator string }
		RestartPolicy                 string `yaml:"restartPolicy"`
		AutomountServiceAccountToken  *bool  `yaml:"automountServiceAccountToken"`
		EnableServiceLinks            *bool  `yaml:"enableServiceLinks"`
		HostPID                       bool   `yaml:"hostPID"`
		TerminationGracePeriodSeconds int64  `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               struct {
			RunAsNonRoot   bool  `yaml:"runAsNonRoot"`
			RunAsUser      int64 `yaml:"runAsUser"`
			RunAsGroup     int64 `yaml:"runAsGroup"`
			FSGroup        int64 `yaml:"fsGroup"`
			SeccompProfile struct {
				Type string
			} `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		InitContainers []container `yaml:"initContainers"`
		Containers     []container
		Volumes        []struct {
			Name     string
			EmptyDir *struct {
				Medium    string
				SizeLimit string `yaml:"sizeLimit"`
			} `yaml:"emptyDir"`
			HostPath *struct{ Path, Type string } `yaml:"hostPath"`
		}
	}
	container struct {
		Name, Image string
		Command     []string
		Env         []struct{ Name, Value string }
		Resources   struct {
			Requests, Limits map[string]string
		}
		SecurityContext struct {
			Privileged               bool
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
)

// kustomization is kubectl's own file (kubernetes-sigs/kustomize, api/types).
type kustomization struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Resources  []string
	Images     []struct {
		Name    string
		NewName string `yaml:"newName"`
		NewTag  string `yaml:"newTag"`
	}
}

// kinds are the types of what has an apiVersion and a kind.
var kinds = map[string]func() any{
	"v1 Namespace":                func() any { return &namespace{} },
	"v1 Pod":                      func() any { return &pod{} },
	"apps/v1 DaemonSet":           func() any { return &daemonSet{} },
	"node.k8s.io/v1 RuntimeClass": func() any { return &runtimeClass{} },

	"kustomize.config.k8s.io/v1beta1 Kustomization": func() any { return &kustomization{} },
}

// decode reads the objects of a manifest, and nothing else.
func decode(data []byte) (list []any, err error) {
	loose, strict := yaml.NewDecoder(bytes.NewReader(data)), yaml.NewDecoder(bytes.NewReader(data))
	strict.KnownFields(true)
	for {
		var h head
		if err := loose.Decode(&h); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		object := kinds[h.APIVersion+" "+h.Kind]
		if object == nil {
			return nil, errors.New("there is no " + h.APIVersion + " " + h.Kind)
		}
		o := object()
		if err := strict.Decode(o); err != nil {
			return nil, err
		}
		list = append(list, o)
	}
}

// objectOf returns the object of a type in a manifest.
func objectOf[T any](t *testing.T, name string) T {
	t.Helper()
	data, err := kubernetes.Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	list, err := decode(data)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, o := range list {
		if found, ok := o.(*T); ok {
			return *found
		}
	}
	t.Fatalf("%s has no %T", name, *new(T))
	panic("not reached")
}

func manifests(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(kubernetes.Files, "*.yaml")
	if err != nil || len(names) < 3 {
		t.Fatalf("the manifests are %q: %v", names, err)
	}
	return names
}

func TestManifests(t *testing.T) {
	for _, name := range manifests(t) {
		data, err := kubernetes.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		list, err := decode(data)
		if err != nil || len(list) == 0 {
			t.Errorf("%s: %d objects, %v", name, len(list), err)
		}
	}
}

// TestDecode is about the check itself.
func TestDecode(t *testing.T) {
	const start = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  "
	for _, tt := range []struct{ name, text, says string }{
		{"right", start + "runtimeClassName: agentbox", ""},
		{"misspelt", start + "runtimeClasName: agentbox", "runtimeClasName not found"},
		{"another case", start + "runtimeclassname: agentbox", "runtimeclassname not found"},
		{"in the wrong place", start + "containers: [{runtimeClassName: agentbox}]", "runtimeClassName not found"},
		{"twice", start + "hostPID: true\n  hostPID: true", "already defined"},
		{"another type", start + "hostPID: often", "into bool"},
		{"an API that is not there", "apiVersion: v1beta1\nkind: Pod", "no v1beta1 Pod"},
		{"the second of two", start + "hostPID: true\n---\n" + start + "hostPid: true", "hostPid not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := decode([]byte(tt.text))
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
}

// pods are all that the manifests start, by the name of the object.
func pods(t *testing.T) map[string]podSpec {
	t.Helper()
	return map[string]podSpec{
		"installer.yaml": objectOf[daemonSet](t, "installer.yaml").Spec.Template.Spec,
		"agent-pod.yaml": objectOf[pod](t, "agent-pod.yaml").Spec,
	}
}

// quantity is Kubernetes' form of a number (apimachinery, pkg/api/resource), as
// far as people write it.
var quantity = regexp.MustCompile(`^([0-9]+|[0-9]*\.[0-9]+)(m|[kMGTPE]|[KMGTPE]i)?$`)

func TestContainers(t *testing.T) {
	for name, spec := range pods(t) {
		var volumes []string
		for _, v := range spec.Volumes {
			volumes = append(volumes, v.Name)
			if (v.EmptyDir == nil) == (v.HostPath == nil) || v.EmptyDir != nil && !quantity.MatchString(v.EmptyDir.SizeLimit) {
				t.Errorf("%s: the volume %+v", name, v)
			}
		}
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			for _, m := range c.VolumeMounts {
				if !slices.Contains(volumes, m.Name) || !path.IsAbs(m.MountPath) {
					t.Errorf("%s: %s mounts %+v, and there is %q", name, c.Name, m, volumes)
				}
			}
			for _, list := range []map[string]string{c.Resources.Requests, c.Resources.Limits} {
				for resource, value := range list {
					if !slices.Contains([]string{"cpu", "memory", "ephemeral-storage"}, resource) || !quantity.MatchString(value) {
						t.Errorf("%s: %s has %s %q", name, c.Name, resource, value)
					}
				}
			}
			if c.Resources.Limits["memory"] == "" {
				t.Errorf("%s: %s has no memory limit", name, c.Name)
			}
		}
	}
}

// TestNames holds the files together: one name for the runtime, one label for its
// nodes.
func TestNames(t *testing.T) {
	class := objectOf[runtimeClass](t, "runtimeclass.yaml")
	set := objectOf[daemonSet](t, "installer.yaml")
	if got := objectOf[pod](t, "agent-pod.yaml").Spec.RuntimeClassName; got != class.Metadata.Name {
		t.Errorf("the pod is of class %q, and the class is %q", got, class.Metadata.Name)
	}
	label, want := set.Spec.Template.Spec.NodeSelector, class.Scheduling.NodeSelector
	if len(want) != 1 || len(label) != 1 || label["agentbox.dev/runtime"] != want["agentbox.dev/runtime"] {
		t.Errorf("agentbox is installed on nodes with %v, and pods go to nodes with %v", label, want)
	}
	for key, value := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Metadata.Labels[key] != value {
			t.Errorf("the DaemonSet does not select its own pods by %s", key)
		}
	}
	if ns := objectOf[namespace](t, "installer.yaml").Metadata.Name; set.Metadata.Namespace != ns {
		t.Errorf("the DaemonSet is in the namespace %q, made is %q", set.Metadata.Namespace, ns)
	}
	k := objectOf[kustomization](t, "kustomization.yaml")
	if !slices.Equal(k.Resources, []string{"runtimeclass.yaml", "installer.yaml"}) {
		t.Errorf("the kustomization has %q", k.Resources)
	}
	for _, c := range slices.Concat(set.Spec.Template.Spec.InitContainers, set.Spec.Template.Spec.Containers) {
		if image, _, _ := strings.Cut(c.Image, ":"); len(k.Images) != 1 || image != k.Images[0].Name {
			t.Errorf("%s has the image %s, and renamed is %v", c.Name, c.Image, k.Images)
		}
	}
	for _, version := range []int{2, 3} {
		if runtimes := runtimesOf(t, version); runtimes[class.Handler].Type == "" {
			t.Errorf("version %d has no handler %q: %v", version, class.Handler, runtimes)
		}
	}
}

// TestAnnotations reads the pod's annotations, and its limits, as the runtime does.
func TestAnnotations(t *testing.T) {
	p := objectOf[pod](t, "agent-pod.yaml")
	var req limits.Request
	if err := config.ApplyAnnotations(p.Metadata.Annotations, &req); err != nil || len(req.Annotations) == 0 {
		t.Errorf("%v: %v", req.Annotations, err)
	}
}

// criRuntime is a runtime in containerd's configuration (containerd,
// docs/cri/config.md).
type criRuntime struct {
	Type           string   `toml:"runtime_type"`
	PodAnnotations []string `toml:"pod_annotations"`
}

func runtimesOf(t *testing.T, version int) map[string]criRuntime {
	t.Helper()
	name := kubernetes.Snippet(version)
	data, err := kubernetes.Files.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	type cri struct {
		Containerd struct {
			Runtimes map[string]criRuntime `toml:"runtimes"`
		} `toml:"containerd"`
	}
	var file struct {
		Plugins struct {
			V2 cri `toml:"io.containerd.grpc.v1.cri"`
			V3 cri `toml:"io.containerd.cri.v1.runtime"`
		} `toml:"plugins"`
	}
	if err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&file); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if version == 2 {
		return file.Plugins.V2.Containerd.Runtimes
	}
	return file.Plugins.V3.Containerd.Runtimes
}

func TestSnippets(t *testing.T) {
	for _, version := range []int{2, 3} {
		runtimes := runtimesOf(t, version)
		if got := runtimes["agentbox"]; got.Type != "io.containerd.agentbox.v1" || !slices.Equal(got.PodAnnotations, []string{config.Prefix + "*"}) {
			t.Errorf("version %d: agentbox is %+v", version, got)
		}
		if got := runtimes["runc"]; got.Type != "io.containerd.runc.v2" {
			t.Errorf("version %d: without runc containerd does not serve Kubernetes: %+v", version, got)
		}
	}
	if kubernetes.Snippet(4) != kubernetes.Snippet(3) || kubernetes.Snippet(1) != "" || kubernetes.Snippet(5) != "" {
		t.Error("a version has the wrong file")
	}
}

// node is a node as the installer's script sees it: its programs, and commands
// that are noted instead of run.
type node struct {
	t          *testing.T
	dir        string
	changed    bool   // agentbox install would change something
	fails      string // how the command ends that fails
	haveMarker bool
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

const marker = "bin/.agentbox-restart"

// install runs the script and returns the commands that it ran on the node.
func (n *node) install() (commands []string, err error) {
	n.t.Helper()
	install := objectOf[daemonSet](n.t, "installer.yaml").Spec.Template.Spec.InitContainers[0]
	if len(install.Command) != 3 || install.Command[0] != "sh" {
		n.t.Fatalf("the command is %q", install.Command)
	}
	n.dir = n.t.TempDir()
	for _, name := range []string{"image", "bin", "stub"} {
		if err := os.Mkdir(n.file(name), 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	n.write("image/agentbox", "new agentbox")
	n.write("image/agentbox-runtime", "new runtime")
	n.write("image/containerd-shim-agentbox-v1", "new shim")
	n.write("bin/agentbox-runtime", "old")
	if n.haveMarker {
		n.write(marker, "")
	}
	n.write("stub/nsenter", `#!/bin/sh
shift 4 # -t 1 -m --
echo "$*" >>"$DIR/commands"
if [ -n "$FAILS" ]; then case "$*" in *"$FAILS") exit 1 ;; esac; fi
case "$*" in *--json) printf '{\n  "changed": %s\n}\n' "$CHANGED" ;; esac
`)
	cmd := exec.Command(install.Command[0], install.Command[1:]...)
	changed := "false"
	if n.changed {
		changed = "true"
	}
	cmd.Env = []string{
		"PATH=" + n.file("stub") + ":/usr/bin:/bin", "DIR=" + n.dir, "CHANGED=" + changed, "FAILS=" + n.fails,
		"IMAGE_BIN=" + n.file("image"), "NODE_BIN=" + n.file("bin"),
	}
	out, err := cmd.CombinedOutput()
	if len(out) > 0 {
		n.t.Logf("%s", out)
	}
	data, readErr := os.ReadFile(n.file("commands"))
	if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
		n.t.Fatal(readErr)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' }), err
}

func (n *node) write(name, text string) {
	n.t.Helper()
	if err := os.WriteFile(n.file(name), []byte(text), 0o755); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) has(name string) bool {
	_, err := os.Stat(n.file(name))
	return err == nil
}

func TestInstaller(t *testing.T) {
	const (
		dryRun  = "/usr/local/bin/agentbox install containerd --dry-run --json"
		install = "/usr/local/bin/agentbox install containerd"
		restart = "systemctl restart containerd"
	)
	for _, tt := range []struct {
		name     string
		node     node
		commands []string
		fails    bool
		marker   bool // is left
	}{
		{"a new node", node{changed: true}, []string{dryRun, install, restart}, false, false},
		{"a node that has it", node{}, []string{dryRun, install}, false, false},
		{"a restart that was missed", node{haveMarker: true}, []string{dryRun, install, restart}, false, false},
		{"a configuration that is refused", node{fails: "--json"}, []string{dryRun}, true, false},
		{"an install that fails", node{changed: true, fails: "install containerd"}, []string{dryRun, install}, true, true},
		{"a restart that fails", node{changed: true, fails: "restart containerd"}, []string{dryRun, install, restart}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := tt.node
			n.t = t
			commands, err := n.install()
			if (err != nil) != tt.fails || !slices.Equal(commands, tt.commands) {
				t.Errorf("ran %q, %v", commands, err)
			}
			if n.has(marker) != tt.marker {
				t.Errorf("the mark of a restart is there: %v", n.has(marker))
			}
			for name, want := range map[string]string{"agentbox": "new agentbox", "agentbox-runtime": "new runtime", "containerd-shim-agentbox-v1": "new shim"} {
				if data, err := os.ReadFile(n.file("bin/" + name)); string(data) != want {
					t.Errorf("%s on the node is %q: %v", name, data, err)
				}
				if n.has("bin/." + name + ".new") {
					t.Errorf("a half of %s is left", name)
				}
			}
		})
	}
}

// TestImage compares what the image has with what the script takes from it.
func TestImage(t *testing.T) {
	data, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	install := objectOf[daemonSet](t, "installer.yaml").Spec.Template.Spec.InitContainers[0]
	programs, err := os.ReadDir("../../cmd")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if !strings.Contains(install.Command[2], p.Name()) || !strings.Contains(string(data), " "+p.Name()+" ") {
			t.Errorf("%s is not in the image, or is not installed", p.Name())
		}
	}
	env := map[string]string{}
	for _, e := range install.Env {
		env[e.Name] = e.Value
	}
	if !strings.Contains(string(data), " "+env["IMAGE_BIN"]+"/\n") || env["NODE_BIN"] != install.VolumeMounts[0].MountPath {
		t.Errorf("the script looks in the wrong places: %v", env)
	}
}
