package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentbox/agentbox/pkg/spec"
)

// configType may stand as TypeUrl beside a ConfigPath, as some of the other shims
// ask for.
const configType = runtimeType + ".options"

// settings are a container's options as the task service and agentbox-runtime
// take them.
type settings struct {
	runc       *runcoptions.Options
	configPath string // of agentbox's configuration; "": the default
	configBody []byte // the configuration itself; nil: none
}

// translate reads the options of a container. For a runtime type that is not
// runc's, containerd, Docker and Kubernetes send runtimeoptions.v1.Options; runc's
// own are taken too. No options are none.
func translate(given *anypb.Any) (settings, error) {
	s := settings{runc: &runcoptions.Options{}}
	if given.GetTypeUrl() == "" && len(given.GetValue()) == 0 {
		return s, nil
	}
	generic := &runtimeoptions.Options{}
	switch name := typeName(given.GetTypeUrl()); name {
	case string(s.runc.ProtoReflect().Descriptor().FullName()):
		if err := proto.Unmarshal(given.GetValue(), s.runc); err != nil {
			return s, fmt.Errorf("the options are no %s: %w", name, err)
		}
		return s, nil
	case string(generic.ProtoReflect().Descriptor().FullName()):
		if err := proto.Unmarshal(given.GetValue(), generic); err != nil {
			return s, fmt.Errorf("the options are no %s: %w", name, err)
		}
		return s, s.take(generic)
	default:
		return s, fmt.Errorf("options of the type %.80q are not known to agentbox: give the path of its configuration as ConfigPath", name)
	}
}

// typeName is the name in a type URL, which may have a host in front.
func typeName(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

func (s *settings) take(generic *runtimeoptions.Options) error {
	if err := checkType(generic.GetTypeUrl()); err != nil {
		return err
	}
	if path := generic.GetConfigPath(); path != "" { // wins over the body (api.proto)
		return s.takePath(path)
	}
	return s.takeBody(generic.GetConfigBody())
}

func (s *settings) takePath(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("the option ConfigPath %.200q is not absolute: give the whole path", path)
	}
	s.configPath = path
	return nil
}

func checkType(name string) error {
	if name != "" && name != configType {
		return fmt.Errorf("the option TypeUrl %.80q is not known to agentbox: leave it out", name)
	}
	return nil
}

// containerdKeys are the options of containerd that may stand in a ConfigBody:
// Kubernetes' side of containerd puts its whole options table there, where people
// write runc's options too. agentbox's own keys begin with a small letter.
type containerdKeys struct {
	TypeURL       string `toml:"TypeUrl"`
	ConfigPath    string
	BinaryName    string
	Root          string
	SystemdCgroup bool
	NoPivotRoot   bool
	NoNewKeyring  bool
}

func (s *settings) takeBody(body []byte) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	own := map[string]any{}
	if toml.Unmarshal(body, &own) != nil {
		s.configBody = body // agentbox-runtime says what is wrong, and where
		return nil
	}
	theirs := map[string]any{}
	for key, value := range own {
		if key != "" && 'A' <= key[0] && key[0] <= 'Z' {
			theirs[key] = value
			delete(own, key)
		}
	}
	if len(theirs) == 0 {
		s.configBody = body
		return nil
	}
	if err := s.takeKeys(theirs); err != nil || len(own) == 0 || s.configPath != "" {
		return err
	}
	rest, err := toml.Marshal(own)
	if err != nil {
		return fmt.Errorf("take agentbox's part of the option ConfigBody: %w", err)
	}
	s.configBody = rest
	return nil
}

func (s *settings) takeKeys(theirs map[string]any) error {
	data, err := toml.Marshal(theirs)
	if err != nil {
		return fmt.Errorf("take containerd's part of the option ConfigBody: %w", err)
	}
	var keys containerdKeys
	err = toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&keys)
	if unknown, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		return fmt.Errorf("the option %s is not known to agentbox: leave it out", strings.Join(unknown.Errors[0].Key(), "."))
	}
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		return fmt.Errorf("the option %s: %w", strings.Join(wrong.Key(), "."), err)
	}
	if err != nil {
		return fmt.Errorf("read the options in ConfigBody: %w", err)
	}
	if err := checkType(keys.TypeURL); err != nil {
		return err
	}
	s.runc.BinaryName, s.runc.Root = keys.BinaryName, keys.Root
	s.runc.SystemdCgroup, s.runc.NoPivotRoot, s.runc.NoNewKeyring = keys.SystemdCgroup, keys.NoPivotRoot, keys.NoNewKeyring
	if keys.ConfigPath == "" {
		return nil
	}
	return s.takePath(keys.ConfigPath)
}

// bodyName is the file of a bundle in which a ConfigBody is kept.
const bodyName = "agentbox.toml"

// flags are the options of agentbox-runtime for a container. A configuration
// that came as text is written into the bundle, which goes with the container.
func (s *settings) flags(bundle string) ([]string, error) {
	flags := []string{"--agentbox-door", "shim"}
	path := s.configPath
	if s.configBody != nil {
		path = filepath.Join(bundle, bodyName)
		if err := os.WriteFile(path, s.configBody, 0o600); err != nil {
			return nil, fmt.Errorf("keep the option ConfigBody: %w", err)
		}
	}
	if path != "" {
		flags = append(flags, "--agentbox-config", path)
	}
	return flags, nil
}

// isSystemdPath reports whether a cgroupsPath is one for the systemd driver:
// slice:prefix:name (runc, docs/systemd.md). Docker and Kubernetes use that form
// with this driver only, and tell shims of other types than runc's nothing else.
func isSystemdPath(path string) bool {
	parts := strings.Split(path, ":")
	return len(parts) == 3 && parts[2] != "" && (parts[0] == "" || parts[0] == "-" || strings.HasSuffix(parts[0], ".slice"))
}

// cgroupsPath reads linux.cgroupsPath of a bundle; "" when that cannot be read,
// of which agentbox-runtime tells when it reads the same file.
func cgroupsPath(bundle string) string {
	file, err := spec.Open(filepath.Join(bundle, spec.ConfigName))
	if err != nil {
		return ""
	}
	defer file.Close()
	var s struct {
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	}
	if json.Unmarshal(file.Data, &s) != nil {
		return ""
	}
	return s.Linux.CgroupsPath
}
