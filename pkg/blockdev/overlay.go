package blockdev

import (
	"fmt"
	"path"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// behindOverlay returns what is behind the folder that takes the writes of an
// overlay, or of one that is only read, behind its topmost layer
// (Documentation/filesystems/overlayfs.rst).
func (f Finder) behindOverlay(m *mountinfo.Info, depth int) Backing {
	none := Backing{Filesystem: m.FSType, Options: m.VFSOptions}
	if depth == 0 {
		none.Reason = fmt.Sprintf("more than %d overlays lie on top of each other at %s", maxDepth, m.Mountpoint)
		return none
	}
	layer, ok := overlayLayer(m.VFSOptions)
	if !ok {
		none.Reason = fmt.Sprintf("the overlay at %s names no layer", m.Mountpoint)
		return none
	}
	var first error
	for _, dir := range layerPaths(layer, m.Mountpoint) {
		st, err := f.stat(dir)
		if err == nil {
			return f.behind(st, depth-1)
		}
		if first == nil {
			first = err
		}
	}
	none.Reason = fmt.Sprintf("the layer %q of the overlay at %s cannot be looked at from here: %v", layer, m.Mountpoint, first)
	return none
}

// overlayLayer returns the folder in the options of an overlay that takes its
// writes, or without one, the topmost that is read.
func overlayLayer(options string) (dir string, ok bool) {
	for option := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "upperdir":
			return unescape(value), true
		case "lowerdir", "lowerdir+": // the latter once for each layer, since Linux 6.7
			if !ok {
				dir, ok = unescape(firstLayer(value)), true
			}
		}
	}
	return dir, ok
}

// firstLayer cuts a list of layers at the first colon. One that belongs to a name
// has a backslash before it, which is in octal here.
func firstLayer(list string) string {
	const backslash = `\134`
	for i := 0; i < len(list); {
		switch {
		case list[i] == ':':
			return list[:i]
		case strings.HasPrefix(list[i:], backslash+backslash):
			i += 2 * len(backslash)
		case strings.HasPrefix(list[i:], backslash):
			i += len(backslash) + 1
		default:
			i++
		}
	}
	return list
}

// layerPaths returns where a layer may be. A relative one belongs to the folder
// in which the mount was made: the engines' stores mount ID/merged with the layer
// ID/diff or l/NAME from within their home folder.
func layerPaths(layer, point string) []string {
	forms := []string{layer}
	// The kernel keeps the backslashes before special characters as they were given.
	if plain := unbackslash(layer); plain != layer {
		forms = []string{plain, layer}
	}
	var paths []string
	for _, form := range forms {
		if path.IsAbs(form) {
			paths = append(paths, form)
			continue
		}
		parent := path.Dir(point)
		paths = append(paths, path.Join(parent, form), path.Join(path.Dir(parent), form))
	}
	return paths
}

// unbackslash takes away the backslash before each character that has one.
func unbackslash(s string) string {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		out = append(out, s[i])
	}
	return string(out)
}

// unescape undoes the octal form in which the kernel writes special characters of
// an option's value. The options are the one part of a mount that mountinfo's
// parser leaves as it is, since they have to be split first.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && s[i+1] <= '3' && octal(s[i+1]) && octal(s[i+2]) && octal(s[i+3]) {
			out = append(out, (s[i+1]-'0')<<6|(s[i+2]-'0')<<3|(s[i+3]-'0'))
			i += 3
			continue
		}
		out = append(out, s[i])
	}
	return string(out)
}

func octal(c byte) bool { return '0' <= c && c <= '7' }
