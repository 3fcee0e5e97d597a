package page

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

func sample() Section {
	return Section{Name: "cpu", Blocks: []Block{
		{Text: "A machine."},
		{Table: &Table{
			Columns: []string{"what", "ratio", ""},
			Rows:    [][]string{{"0.25 CPUs", "1.001", Met}, {"a|b", "", NotMet}},
		}},
		{Text: "The end."},
	}}
}

func TestSection(t *testing.T) {
	tests := []struct{ golden, got string }{
		{"testdata/section.md", sample().Markdown()},
		{"testdata/section.txt", sample().Text()},
	}
	for _, tt := range tests {
		t.Run(tt.golden, func(t *testing.T) {
			if *update {
				if err := os.WriteFile(tt.golden, []byte(tt.got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(tt.golden)
			if err != nil {
				t.Fatal(err)
			}
			if tt.got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", tt.got, want)
			}
		})
	}
}

const doc = `# Title
<!-- bench:a -->
old
<!-- /bench -->
between
<!-- bench:b -->
<!-- /bench -->
after
`

func TestReplace(t *testing.T) {
	tests := []struct {
		name, page, part string
		want             string
		problem          string // part of the message, empty if there is none
	}{
		{name: "what was there goes", page: doc, part: "a", want: strings.Replace(doc, "old\n", "\nnew\n\n", 1)},
		{name: "an empty part", page: doc, part: "b", want: strings.Replace(doc, "b -->\n", "b -->\n\nnew\n\n", 1)},
		{name: "no such part", page: doc, part: "c", problem: `has no line "<!-- bench:c -->"`},
		{name: "a part in a line of text", page: "see <!-- bench:c --> there\n", part: "c", problem: "has no line"},
		{name: "twice", page: doc + doc, part: "a", problem: "2 times"},
		{name: "not closed", page: "<!-- bench:a -->\nx\n", part: "a", problem: "not closed"},
		{name: "closed by the next one", page: "<!-- bench:a -->\n<!-- bench:b -->\n<!-- /bench -->\n", part: "a", problem: "not closed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Replace([]byte(tt.page), tt.part, "new\n")
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) {
					t.Fatalf("error %v, want one with %q", err, tt.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// Writing the same numbers again changes nothing, and all that is outside of the
// part stays.
func FuzzReplace(f *testing.F) {
	f.Add([]byte(doc), "new\n")
	f.Add([]byte("<!-- bench:a -->\n<!-- /bench --><!-- /bench -->"), "")
	f.Add([]byte("x<!-- bench:a -->\n"), "y")
	f.Fuzz(func(t *testing.T, page []byte, text string) {
		once, err := Replace(page, "a", text)
		if err != nil || strings.Contains(text, "<!--") {
			return
		}
		twice, err := Replace(once, "a", text)
		if err != nil || string(twice) != string(once) {
			t.Errorf("writing twice: %v\n%q\n%q", err, once, twice)
		}
		before, _, _ := strings.Cut(string(page), start("a"))
		if !strings.HasPrefix(string(once), before) {
			t.Errorf("what is before the part has changed: %q", once)
		}
	})
}
