package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

func TestIndent(t *testing.T) {
	tests := []struct{ name, json, want string }{
		{"order and numbers", ` {"b":1e400,"a":[1,{}],"c":123456789012345678901} `, "{\n  \"b\": 1e400,\n  \"a\": [\n    1,\n    {}\n  ],\n  \"c\": 123456789012345678901\n}\n"},
		{"indented otherwise", "{\n\t\"a\"  :\n [ ] }\n\n", "{\n  \"a\": []\n}\n"},
		{"text", `"é 日本 \n \u001b"`, `"é 日本 \n \u001b"` + "\n"},
		{"C1, bidi, DEL", "\"\u009b\u202e\x7f\"", `"\u009b\u202e\u007f"` + "\n"},
		{"no text", "\"\xff\xfe\"", `"\ufffd\ufffd"` + "\n"},
		{"beyond 16 bits", "\"\U000e0001😀\"", `"\udb40\udc01😀"` + "\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := indent([]byte(tt.json))
			if err != nil || string(got) != tt.want {
				t.Errorf("%v, got\n%s\nwant\n%s", err, got, tt.want)
			}
		})
	}
}

// TestIndentIsBounded: a small file of nested lists grows with the square of its
// depth.
func TestIndentIsBounded(t *testing.T) {
	deep := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	if _, err := indent(deep(1000)); err != nil {
		t.Error(err)
	}
	_, err := indent(deep(9000))
	if err == nil || !strings.Contains(err.Error(), "when it is indented, more than the 16777216 that --diff shows") {
		t.Errorf("error %v", err)
	}
}

// FuzzIndent: what is indented means the same, is safe for a terminal, and is no
// larger than was reckoned.
func FuzzIndent(f *testing.F) {
	f.Add([]byte(`{"a":[{},[],{"b":[1,2,"}]\"\\"]}],"c":"` + "\u009b\xff\U000e0001" + `"}`))
	f.Add([]byte(` "\\" `))
	f.Add([]byte(`["\"",[[[[[[1]]]]]]]`))
	f.Add([]byte("[\t1 ,\n[[[null]]]]\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if !json.Valid(data) {
			return
		}
		got, err := indent(data)
		if err != nil {
			return
		}
		var plain bytes.Buffer
		if err := json.Indent(&plain, bytes.TrimSpace(data), "", "  "); err != nil {
			t.Fatal(err)
		}
		if size := indentedSize(bytes.TrimSpace(data)); plain.Len() > size {
			t.Errorf("%d bytes, reckoned %d", plain.Len(), size)
		}
		for _, r := range string(got) {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%q is left in %q", r, got)
			}
		}
		if before, after := read(t, data), read(t, got); !reflect.DeepEqual(before, after) {
			t.Errorf("%q reads as %v, before %v", got, after, before)
		}
	})
}

func read(t *testing.T, data []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return v
}

func TestDiffColour(t *testing.T) {
	p := printer{colour: true}
	p.diff([]byte("diff a b\n--- a\n+++ b\n@@ -1,3 +1,3 @@\n {\n---\n+++\n }\n"))
	want := "\x1b[1mdiff a b\x1b[0m\n\x1b[1m--- a\x1b[0m\n\x1b[1m+++ b\x1b[0m\n\x1b[36m@@ -1,3 +1,3 @@\x1b[0m\n" +
		" {\n\x1b[31m---\x1b[0m\n\x1b[32m+++\x1b[0m\n }\n"
	if p.String() != want {
		t.Errorf("got\n%q\nwant\n%q", p.String(), want)
	}
}
