package install

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Docker's log limits where the administrator has none: enough to see what an
// agent did last, and nothing that fills a disk.
var logLimits = [...]struct{ key, value string }{{"max-size", "10m"}, {"max-file", "3"}}

const logOpts = "log-opts"

// dockerFile is daemon.json (dockerd(8)).
type dockerFile struct{}

// entry is what agentbox is among Docker's runtimes.
func entry(want Want) map[string]string {
	if want.Shim {
		return map[string]string{"runtimeType": cmp.Or(want.ShimPath, RuntimeType)}
	}
	return map[string]string{"path": want.Runtime}
}

func (dockerFile) add(name string, data []byte, want Want) (Edit, error) {
	blank := len(bytes.TrimSpace(bytes.TrimPrefix(data, byteOrderMark))) == 0
	text := data
	if blank { // dockerd reads it as no settings, since version 23
		text = []byte("{\n}\n")
	}
	f, err := parseJSON(name, text)
	if err != nil {
		return Edit{}, err
	}
	list, err := f.addRuntime(want)
	if err != nil {
		return Edit{}, err
	}
	var notes []string
	if want.LogLimits {
		more, note, err := f.addLogLimits()
		if err != nil {
			return Edit{}, err
		}
		list = append(list, more...)
		if note != "" {
			notes = append(notes, note)
		}
	}
	if len(list) == 0 {
		return Edit{Data: data, Notes: notes}, nil
	}
	return Edit{Data: f.data, Added: list, Notes: notes}, nil
}

// dockerLater says what of a change dockerd takes only when it starts: on SIGHUP
// it leaves the options of its log driver alone, and the runtimes too where the
// file has no list of them any more.
func dockerLater(before, after []byte) (notes []string) {
	keys := func(data []byte) (m map[string]json.RawMessage) {
		_ = json.Unmarshal(bytes.TrimPrefix(data, byteOrderMark), &m) // nothing in it: no keys
		return m
	}
	was, is := keys(before), keys(after)
	if !bytes.Equal(was[logOpts], is[logOpts]) {
		notes = append(notes, "the limits of logs change when Docker is restarted, for containers that are made after that; without live-restore a restart ends those that run")
	}
	if was["runtimes"] != nil && is["runtimes"] == nil {
		notes = append(notes, "Docker knows agentbox until it is restarted: where its file lists no runtimes any more, a reload leaves the old list")
	}
	return notes
}

func (f *jsonFile) addRuntime(want Want) ([]Added, error) {
	path := []string{"runtimes", RuntimeName}
	value, start, err := f.get(path...)
	if err != nil {
		return nil, err
	}
	if value == nil {
		return f.add(path, entry(want))
	}
	var has map[string]any
	if json.Unmarshal(value, &has) == nil && !added(path, entry(want)).differs(has) {
		return nil, nil
	}
	line, _ := position(f.data, start)
	return nil, &ExistsError{File: f.name, Line: line, Key: "runtimes.agentbox", Has: short(value)}
}

// addLogLimits bounds the logs of containers, which json-file, the default
// driver, lets grow for ever. The note says why nothing was added.
func (f *jsonFile) addLogLimits() (list []Added, note string, err error) {
	driver, _, err := f.get("log-driver")
	if err != nil {
		return nil, "", err
	}
	if driver != nil && string(driver) != `"json-file"` {
		return nil, fmt.Sprintf("log limits are not added: the log-driver is %s, which has options of its own", short(driver)), nil
	}
	same := 0
	for _, limit := range logLimits {
		has, _, err := f.get(logOpts, limit.key)
		if err != nil {
			return nil, "", err
		}
		if has != nil {
			note = fmt.Sprintf("log limits are not added: %s has %s already, as %s", logOpts, limit.key, short(has))
		}
		if string(has) == strconv.Quote(limit.value) {
			same++
		}
	}
	if same == len(logLimits) {
		return nil, "", nil
	}
	if note != "" {
		return nil, note, nil
	}
	for _, limit := range logLimits {
		more, err := f.add([]string{logOpts, limit.key}, limit.value)
		if err != nil {
			return nil, "", err
		}
		list = append(list, more...)
	}
	return list, "", nil
}

func (dockerFile) remove(name string, data []byte, list []Added) ([]byte, error) {
	f, err := parseJSON(name, data)
	if err != nil {
		return nil, err
	}
	for _, a := range slices.Backward(list) {
		value, _, err := f.get(a.Path...)
		if err != nil {
			return nil, err
		}
		if value == nil || !f.isOurs(a, value) {
			continue
		}
		if err := f.remove(a.Path); err != nil {
			return nil, err
		}
	}
	return f.data, nil
}

// isOurs reports whether a value may go: agentbox's own entry, a value as it was
// written, or an object that was made to hold these and holds nothing now.
func (f *jsonFile) isOurs(a Added, value []byte) bool {
	var now any
	_ = json.Unmarshal(value, &now) // it was parsed before
	if a.Value == nil {
		m, isObject := now.(map[string]any)
		return isObject && len(m) == 0
	}
	return !a.stays(now)
}

func (dockerFile) holds(data []byte) bool {
	var m map[string]json.RawMessage
	_ = json.Unmarshal(bytes.TrimPrefix(data, byteOrderMark), &m)
	return len(m) > 0
}

func (dockerFile) defaults(name string, data []byte) (line int, key string) {
	const runtime = "default-runtime"
	f, err := parseJSON(name, data)
	if err != nil {
		return 0, ""
	}
	value, start, err := f.get(runtime)
	if err != nil || string(value) != strconv.Quote(RuntimeName) {
		return 0, ""
	}
	line, _ = position(data, start)
	return line, runtime
}
