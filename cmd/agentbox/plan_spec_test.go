package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentbox/agentbox/pkg/spec"
)

func TestAnnotate(t *testing.T) {
	tests := []struct{ name, doc, want string }{
		{"no annotations", `{"a":1}`, `{"a":1,"annotations":{"n":"v"}}`},
		{"an empty document", `{}`, `{"annotations":{"n":"v"}}`},
		{"spaces", " { \n} \n", " { \n" + `"annotations":{"n":"v"}} ` + "\n"},
		{"null", `{"annotations":null,"z":2}`, `{"annotations":{"n":"v"},"z":2}`},
		{"empty", `{"annotations":{ },"z":2}`, `{"annotations":{ "n":"v"},"z":2}`},
		{"another", `{"annotations": {"b": "c" , "a":"d"} }`, `{"annotations": {"b": "c" , "a":"d","n":"v"} }`},
		{"replaced in its place", `{"annotations":{"b":"c", "n" : "old" ,"a":"d"}}`, `{"annotations":{"b":"c", "n" : "v" ,"a":"d"}}`},
		{"an escaped name", `{"\u0061nnotations":{"\u006e":"old"}}`, `{"\u0061nnotations":{"\u006e":"v"}}`},
		{"what is not known", `{"big":123456789012345678901234567890,"a":{"annotations":{}},"annotations":{}}`, `{"big":123456789012345678901234567890,"a":{"annotations":{}},"annotations":{"n":"v"}}`},
		{"a brace in a text", `{"a":"}","annotations":{"b":"}"}}`, `{"a":"}","annotations":{"b":"}","n":"v"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(annotate([]byte(tt.doc), "n", "v")); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// FuzzAnnotate: what was a specification is one afterwards, with one annotation
// more or another value.
func FuzzAnnotate(f *testing.F) {
	f.Add([]byte(`{"annotations":{"b": "c", "n":"v"},"process":{"args":["\u00e9"]}}`), "n", "new")
	f.Add([]byte(` {"a":1e400, "annotations" : null}`), "agentbox.dev/memory", "\"<&>\u2028\u009b")
	f.Add([]byte(`{"a":[1,{"annotations":{}}],"annotations":{}}`), "a\"b", "")
	f.Fuzz(func(t *testing.T, data []byte, name, value string) {
		before, err := spec.Parse(data)
		if err != nil || strings.ContainsRune(name+value, 0) || !utf8.ValidString(name) || !utf8.ValidString(value) {
			return // an argument has no NUL, and check wants UTF-8
		}
		next := annotate(data, name, value)
		after, err := spec.Parse(next)
		if err != nil {
			t.Fatalf("%s: %v", next, err)
		}
		want := maps.Clone(before.Annotations())
		if want == nil {
			want = map[string]string{}
		}
		want[name] = value
		if !maps.Equal(after.Annotations(), want) {
			t.Errorf("annotations %q, want %q", after.Annotations(), want)
		}
		if !maps.EqualFunc(fields(t, data), fields(t, next), func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Errorf("other fields of %s are not those of %s", next, data)
		}
	})
}

// fields returns the fields of a specification but its annotations.
func fields(t *testing.T, data []byte) map[string]json.RawMessage {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "annotations")
	return m
}

func TestHookRoot(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1000")
	want := "/run/runc" // root's does not move
	if os.Geteuid() != 0 {
		want = "/run/user/1000/runc"
	}
	if got := lowLevelRoot(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
