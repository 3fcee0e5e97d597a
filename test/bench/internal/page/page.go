// Package page turns results into tables, for a terminal and for a page of
// Markdown, and puts them into the marked parts of such a page.
package page

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"
)

// What a table says about a target.
const (
	Met    = "met"
	NotMet = "not met"
)

// Verdict says whether a target was met.
func Verdict(met bool) string {
	if met {
		return Met
	}
	return NotMet
}

// Table is a table; every row has as many cells as there are columns.
type Table struct {
	Columns []string
	Rows    [][]string
}

// Block is a paragraph, or a table where there is one.
type Block struct {
	Text  string
	Table *Table
}

// Section is what a marked part of the page has.
type Section struct {
	Name   string // of the mark
	Blocks []Block
}

// Text is the section for a terminal.
func (s Section) Text() string {
	return s.render(Table.text)
}

// Markdown is the section for the page.
func (s Section) Markdown() string {
	return s.render(Table.markdown)
}

func (s Section) render(table func(Table) string) string {
	parts := make([]string, len(s.Blocks))
	for i, b := range s.Blocks {
		if parts[i] = b.Text + "\n"; b.Table != nil {
			parts[i] = table(*b.Table)
		}
	}
	return strings.Join(parts, "\n")
}

func (t Table) text() string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.Columns}, t.Rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	// Lines end where their text does.
	var trimmed strings.Builder
	for line := range strings.Lines(out.String()) {
		trimmed.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return trimmed.String()
}

func (t Table) markdown() string {
	var out strings.Builder
	row := func(cells []string) {
		out.WriteString("|")
		for _, c := range cells {
			c = strings.ReplaceAll(c, "|", `\|`)
			if c == NotMet {
				c = "**" + c + "**"
			}
			if c != "" {
				c += " "
			}
			out.WriteString(" " + c + "|")
		}
		out.WriteString("\n")
	}
	row(t.Columns)
	out.WriteString(strings.Repeat("|---", len(t.Columns)) + "|\n")
	for _, r := range t.Rows {
		row(r)
	}
	return out.String()
}

// end closes every marked part.
const end = "<!-- /bench -->"

func start(name string) string { return "<!-- bench:" + name + " -->" }

// Replace puts text between the marks of a part:
//
//	<!-- bench:NAME -->
//	text
//	<!-- /bench -->
//
// All else stays as it is. A page that does not have the part just once, or does
// not close it, is an error.
func Replace(page []byte, name, text string) ([]byte, error) {
	open := []byte(start(name) + "\n")
	switch n := bytes.Count(page, open); n {
	case 0:
		return nil, fmt.Errorf("the page has no line %q: put it where the numbers go, and %q after it", start(name), end)
	case 1:
	default:
		return nil, fmt.Errorf("the page has the line %q %d times: leave one", start(name), n)
	}
	before, after, _ := bytes.Cut(page, open)
	old, rest, closed := bytes.Cut(after, []byte(end))
	if !closed || bytes.Contains(old, []byte("<!-- bench:")) {
		return nil, fmt.Errorf("the part %q of the page is not closed: put %q after it", start(name), end)
	}
	return bytes.Join([][]byte{before, open, []byte("\n" + text + "\n"), []byte(end), rest}, nil), nil
}
