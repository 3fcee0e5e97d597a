package install

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	runcName = "runc"
	runcType = "io.containerd.runc.v2"
	// whyRunc stands above the entry of runc.
	whyRunc = "# Kubernetes' part of containerd does not load when runtimes are listed without runc."
)

// podAnnotations are the annotations of a pod that its containers get to see.
var podAnnotations = []string{"agentbox.dev/*"}

// criPlugin is the part of containerd that speaks to Kubernetes, by the version
// of the configuration file (containerd, docs/cri/config.md and PLUGINS.md).
var criPlugin = map[int64]string{
	1: "cri",
	2: "io.containerd.grpc.v1.cri",
	3: "io.containerd.cri.v1.runtime",
	4: "io.containerd.cri.v1.runtime", // moved other things only
}

// newest is the version of a configuration file for containerd of a major
// version, where there is none yet. Containerd 1 reads 2 from 1.3 on.
func newest(major int) int64 {
	if major >= 2 {
		return 3
	}
	return 2
}

// containerdVersion returns the version of a file. One that says nothing is of
// version 1.
func (f *tomlFile) containerdVersion() (int64, error) {
	const key = "version"
	value := f.get(key)
	if value == nil {
		return 1, nil
	}
	version, ok := value.(int64)
	if ok && version == 0 {
		return 1, nil
	}
	if !ok || criPlugin[version] == "" {
		return 0, &Error{File: f.name, Line: f.line([]string{key}), Text: fmt.Sprintf("version %s is not one that this agentbox knows: expected 1 to %d", shown(value), len(criPlugin))}
	}
	return version, nil
}

// runtimesPath is where a file of a version lists its runtimes.
func runtimesPath(version int64) []string {
	return []string{"plugins", criPlugin[version], "containerd", "runtimes"}
}

// containerdDefaults are where a file of any version names its default runtime.
func containerdDefaults() (paths [][]string) {
	for _, version := range []int64{1, 2, 3} {
		paths = append(paths, []string{"plugins", criPlugin[version], "containerd", "default_runtime_name"})
	}
	return paths
}

func below(path []string, names ...string) []string { return slices.Concat(path, names) }

func containerdTables(f *tomlFile, want Want) (tables []table, notes []string, err error) {
	main := f // what decides about the version, and lists the runtimes
	if want.Main != nil {
		if main, err = parseTOML("the importing file", want.Main); err != nil {
			return nil, nil, err
		}
	}
	if len(main.parts) == 0 {
		version := newest(want.Major)
		tables = []table{{keys: []keyValue{{"version", version}}}}
		return append(tables, entries(version, want, main, true)...), nil, nil
	}
	version, err := main.containerdVersion()
	if err != nil {
		return nil, nil, err
	}
	if main.disabled(version) {
		notes = append(notes, "Kubernetes' part of containerd is switched off in disabled_plugins: until it is on, only ctr and nerdctl can start agentbox, and they need no entry")
	}
	path := runtimesPath(version)
	tables = entries(version, want, main, main.get(path...) == nil)
	if main != f && len(f.parts) == 0 {
		tables = append([]table{{keys: []keyValue{{"version", version}}}}, tables...)
	}
	own := below(path, RuntimeName)
	has := f.get(own...)
	if has == nil {
		return tables, notes, nil
	}
	if wanted := added(own, settings(tables, own)); !wanted.differs(has) {
		return nil, notes, nil
	}
	return nil, nil, &ExistsError{File: f.name, Line: f.line(own), Key: dotted(own), Has: shown(has)}
}

// entries are the tables of the runtimes. A list without runc gets one too.
func entries(version int64, want Want, main *tomlFile, withRunc bool) []table {
	path := runtimesPath(version)
	var tables []table
	if withRunc {
		tables = append(tables, table{
			path: below(path, runcName), keys: []keyValue{{"runtime_type", runcType}}, why: whyRunc, whole: true,
		})
	}
	own := table{path: below(path, RuntimeName), whole: true, keys: []keyValue{{"runtime_type", RuntimeType}}}
	if want.ShimPath != "" {
		own.keys = append(own.keys, keyValue{"runtime_path", want.ShimPath})
	}
	annotations := keyValue{"pod_annotations", podAnnotations}
	if want.Shim {
		own.keys = append(own.keys, annotations)
		return append(tables, own)
	}
	own.keys = []keyValue{{"runtime_type", runcType}, annotations}
	options := table{path: below(own.path, "options"), keys: []keyValue{{"BinaryName", want.Runtime}}, inner: true}
	// containerd's own shim for runc has to be told what the agentbox shim sees.
	if systemd, _ := main.get(below(path, runcName, "options", "SystemdCgroup")...).(bool); systemd {
		options.keys = append(options.keys, keyValue{"SystemdCgroup", true})
	}
	return append(tables, own, options)
}

// disabled reports whether the plugin of Kubernetes is switched off.
func (f *tomlFile) disabled(version int64) bool {
	list, _ := f.get("disabled_plugins").([]any)
	return slices.Contains(list, any(criPlugin[version])) || version > 2 && slices.Contains(list, any(criPlugin[2]))
}

// DropIn returns where containerd reads a file of agentbox's own: the first folder
// of which its configuration file imports all files. It is empty when there is
// none, and for versions before 2: these do not merge an imported file with the
// settings of Kubernetes' part, they replace all of them.
//
// name and data are those of the configuration file. The error is an *Error.
func DropIn(name string, data []byte, major int) (string, error) {
	f, err := parseTOML(name, data)
	if err != nil || major < 2 {
		return "", err
	}
	list, _ := f.get("imports").([]any)
	for _, value := range list {
		pattern, _ := value.(string)
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(name), pattern)
		}
		dir, base := filepath.Split(pattern)
		if base == "*.toml" && !strings.ContainsAny(dir, `*?[\`) {
			return filepath.Join(dir, "50-agentbox.toml"), nil
		}
	}
	return "", nil
}

// versionNumber is the first number of a version: 2 in "containerd
// github.com/containerd/containerd 2.1.9~ds1 2.1.9", 28 in "Docker version
// 28.5.2, build ecc6942".
var versionNumber = regexp.MustCompile(`(?:^|\s)v?([0-9]{1,4})\.[0-9]`)

// Major returns the first number of the version that an engine's --version
// prints; 0 when there is none.
func Major(output string) int {
	m := versionNumber.FindStringSubmatch(output)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1]) // at most four digits
	return n
}
