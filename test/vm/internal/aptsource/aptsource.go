// Package aptsource reads the host's apt sources, so that the guest image can be
// built from the very mirror the host already uses and no mirror name has to be
// written down anywhere in this project.
//
// Both formats of sources.list(5) are read: one line per source (*.list) and
// paragraphs of fields (*.sources).
package aptsource

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// ErrNoMirror is returned when no source serves the wanted suite.
var ErrNoMirror = errors.New("no apt source of this host serves that suite")

// Source is one archive as apt sees it.
type Source struct {
	Types      []string // "deb", "deb-src"
	URIs       []string
	Suites     []string
	Components []string
}

// Mirror returns the URI of the first binary source under etcApt (the host's
// /etc/apt) that serves component main of the given suite, such as "bookworm".
// Security and update suites have other names, so they never match. The error
// wraps ErrNoMirror when there is none.
func Mirror(etcApt fs.FS, suite string) (string, error) {
	sources, err := Read(etcApt)
	if err != nil {
		return "", err
	}
	for _, source := range sources {
		if !slices.Contains(source.Types, "deb") || !slices.Contains(source.Suites, suite) || !slices.Contains(source.Components, "main") {
			continue
		}
		for _, uri := range source.URIs {
			if strings.HasPrefix(uri, "http://") || strings.HasPrefix(uri, "https://") {
				return uri, nil
			}
		}
	}
	return "", fmt.Errorf("suite %q: %w", suite, ErrNoMirror)
}

// Read returns every enabled source in the order in which apt reads the files:
// sources.list first, then sources.list.d by name.
func Read(etcApt fs.FS) ([]Source, error) {
	names := []string{"sources.list"}
	for _, pattern := range []string{"sources.list.d/*.list", "sources.list.d/*.sources"} {
		matches, err := fs.Glob(etcApt, pattern)
		if err != nil {
			return nil, fmt.Errorf("list apt sources: %w", err)
		}
		names = append(names, matches...)
	}
	slices.Sort(names[1:])

	var sources []Source
	for _, name := range names {
		data, err := fs.ReadFile(etcApt, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read apt sources: %w", err)
		}
		if path.Ext(name) == ".sources" {
			sources = append(sources, parseParagraphs(string(data))...)
			continue
		}
		sources = append(sources, parseLines(string(data))...)
	}
	return sources, nil
}

// parseLines reads the one-line format: TYPE [options] URI SUITE COMPONENT...
func parseLines(text string) []Source {
	var sources []Source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		kind, rest, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			if _, rest, ok = strings.Cut(rest, "]"); !ok {
				continue
			}
		}
		fields := strings.Fields(rest)
		if len(fields) < 2 {
			continue
		}
		sources = append(sources, Source{
			Types:      []string{kind},
			URIs:       fields[:1],
			Suites:     fields[1:2],
			Components: fields[2:],
		})
	}
	return sources
}

// parseParagraphs reads the deb822 format: fields, continued by indented lines,
// in paragraphs that an empty line ends.
func parseParagraphs(text string) []Source {
	var sources []Source
	fields := map[string]string{}
	last := ""
	flush := func() {
		if len(fields) > 0 && !strings.EqualFold(strings.TrimSpace(fields["enabled"]), "no") {
			sources = append(sources, Source{
				Types:      strings.Fields(fields["types"]),
				URIs:       strings.Fields(fields["uris"]),
				Suites:     strings.Fields(fields["suites"]),
				Components: strings.Fields(fields["components"]),
			})
		}
		fields, last = map[string]string{}, ""
	}
	scanner := bufio.NewScanner(strings.NewReader(text))
	for scanner.Scan() {
		line := scanner.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t"):
			if last != "" {
				fields[last] += " " + strings.TrimSpace(line)
			}
		default:
			name, value, ok := strings.Cut(line, ":")
			if !ok {
				continue
			}
			last = strings.ToLower(strings.TrimSpace(name))
			fields[last] = strings.TrimSpace(value)
		}
	}
	flush()
	return sources
}
