package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/limits"
)

// Where Docker looks when it is not told otherwise (dockerd(8)).
const (
	dockerFile = "/etc/docker/daemon.json"
	dockerRoot = "/var/lib/docker"
	dockerPid  = "/run/docker.pid"
)

// parseDocker reads a daemon.json. It is one JSON object; a file with nothing in
// it is as good as none.
func parseDocker(data []byte) (DockerSettings, error) {
	var s DockerSettings
	if len(bytes.TrimSpace(data)) == 0 {
		return s, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&s); err != nil {
		return DockerSettings{}, fmt.Errorf("it is not the JSON that Docker expects: %s", jsonProblem(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return DockerSettings{}, errors.New("there is something after its JSON object")
	}
	return s, nil
}

// jsonProblem says for a person what the JSON library found.
func jsonProblem(err error) string {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return fmt.Sprintf("it is %s where an object is expected", article(wrong.Value))
		}
		return fmt.Sprintf("%s is %s where %s is expected", limits.Shorten(wrong.Field, maxName), article(wrong.Value), kindWords(wrong.Type.Kind()))
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("at byte %d: %s", syntax.Offset, syntax)
	}
	return "it ends in the middle" // io.ErrUnexpectedEOF; reading from memory gives no other
}

// article names a value of JSON: "number 10" is what the library says of a
// number, and "array" of a list.
func article(value string) string {
	switch kind, _, _ := strings.Cut(value, " "); kind {
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "string":
		return "a text"
	case "bool":
		return "true or false"
	default:
		return "a " + kind
	}
}

// kindWords names what Docker expects, in the words of JSON.
func kindWords(kind reflect.Kind) string {
	switch kind {
	case reflect.String:
		return "a text"
	case reflect.Slice:
		return "a list"
	default:
		return "an object"
	}
}

// parseDockerd reads the command line of a running dockerd, as /proc/PID/cmdline
// has it. It returns the settings that are flags, their names in daemon.json, and
// the file that is used in place of the usual one. ok is false for any other
// program.
func parseDockerd(cmdline []byte) (s DockerSettings, names []string, file string, ok bool) {
	args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	if path.Base(args[0]) != "dockerd" {
		return s, nil, "", false
	}
	for i := 1; i < len(args); i++ {
		flag, value, together := strings.Cut(args[i], "=")
		if !together && i+1 < len(args) {
			value = args[i+1]
		}
		name := s.flag(flag, value)
		switch {
		case flag == "--config-file":
			file = value
		case name == "":
			continue // a flag that is not of interest, or the value of one
		case !slices.Contains(names, name):
			names = append(names, name)
		}
		if !together {
			i++
		}
	}
	return s, names, file, true
}

// flag takes one flag of dockerd, and returns the name of the setting; empty for
// one that doctor does not look at.
func (s *DockerSettings) flag(flag, value string) (name string) {
	key, rest, _ := strings.Cut(value, "=")
	switch flag {
	case "--log-driver":
		s.LogDriver = value
		return "log-driver"
	case "--log-opt":
		s.LogOpts = with(s.LogOpts, key, rest)
		return "log-opts"
	case "--data-root":
		s.DataRoot = value
		return "data-root"
	case "--exec-opt":
		s.ExecOpts = append(s.ExecOpts, value)
		return "exec-opts"
	case "--add-runtime":
		s.Runtimes = with(s.Runtimes, key, DockerRuntime{Path: rest})
		return "runtimes"
	}
	return ""
}

func with[T any](m map[string]T, key string, value T) map[string]T {
	if m == nil {
		m = map[string]T{}
	}
	m[key] = value
	return m
}

// merge puts the settings of flags over those of the file. Docker refuses to
// start when both give the same one.
func (s DockerSettings) merge(flags DockerSettings) DockerSettings {
	if flags.LogDriver != "" {
		s.LogDriver = flags.LogDriver
	}
	if flags.DataRoot != "" {
		s.DataRoot = flags.DataRoot
	}
	if flags.LogOpts != nil {
		s.LogOpts = flags.LogOpts
	}
	if flags.ExecOpts != nil {
		s.ExecOpts = flags.ExecOpts
	}
	if flags.Runtimes != nil {
		s.Runtimes = flags.Runtimes
	}
	if s.DataRoot == "" {
		s.DataRoot = dockerRoot
	}
	return s
}

// broken returns the names of the runtimes that are agentbox-runtime and that
// cannot be run, in their order. A runtime without a path is a shim, or "runc".
func (s DockerSettings) broken(runs func(path string) bool) []string {
	var names []string
	for name, r := range s.Runtimes {
		if path.Base(r.Path) == runtimeName && !runs(r.Path) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
