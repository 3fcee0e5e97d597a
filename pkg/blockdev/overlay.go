package blockdev

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/agentbox/agentbox/pkg/limits"
)

// behindOverlay returns what is behind the folder that takes the writes of an
// overlay, or of one that is only read, behind its topmost layer; and the disks of
// the layers below (Documentation/filesystems/overlayfs.rst).
func (f Finder) behindOverlay(m *mountinfo.Info, depth int) Backing {
	none := Backing{Filesystem: m.FSType, Options: m.VFSOptions}
	if depth == 0 {
		none.Reason = fmt.Sprintf("more than %d overlays lie on top of each other at %s", maxDepth, m.Mountpoint)
		return none
	}
	upper, lower := overlayLayers(m.VFSOptions)
	layers := slices.Concat(upper, lower)
	if len(layers) == 0 {
		none.Reason = fmt.Sprintf("the overlay at %s names no layer", m.Mountpoint)
		return none
	}
	st, err := f.layer(layers[0], m.Mountpoint)
	b := none
	if err != nil {
		b.Reason = fmt.Sprintf("the layer %q of the overlay at %s cannot be looked at from here: %v", layers[0], m.Mountpoint, err)
	} else {
		b = f.behind(st, depth-1)
	}
	// Layers are many, and mostly on the file system that takes the writes.
	seen := map[limits.Device]bool{st.Device: err == nil}
	for _, layer := range layers[1:] {
		st, err := f.layer(layer, m.Mountpoint)
		if err != nil || seen[st.Device] {
			continue
		}
		seen[st.Device] = true
		read := f.behind(st, depth-1)
		for _, disk := range slices.Concat(read.Disks, read.Lower) {
			if !slices.Contains(b.Disks, disk) && !slices.Contains(b.Lower, disk) {
				b.Lower = append(b.Lower, disk)
			}
		}
	}
	return b
}

// layer looks at a layer of an overlay.
func (f Finder) layer(name, point string) (st Stat, err error) {
	var first error
	for _, dir := range layerPaths(name, point) {
		if st, err = f.stat(dir); err == nil {
			return st, nil
		}
		first = cmp.Or(first, err)
	}
	return Stat{}, first
}

// Layers returns the folders that an overlay is made of, from its options as
// mount(2) gets them: the one that takes the writes, empty where there is none,
// and those that are only read. They may be relative.
func Layers(options string) (upper string, lower []string) {
	up, low := overlayLayers(shown(options))
	for i := range low {
		lower = append(lower, unbackslash(low[i]))
	}
	if len(up) > 0 {
		upper = unbackslash(up[0])
	}
	return upper, lower
}

// shown writes options as mountinfo shows them. A comma that belongs to a value
// has a backslash before it where they are given, and is in octal where they are
// shown; so is the backslash.
func shown(options string) string { return given.Replace(options) }

var given = strings.NewReplacer(`\\`, `\134\134`, `\,`, `\134\054`, `\`, `\134`)

// overlayLayers returns the folder in the options of an overlay that takes its
// writes, if there is one, and those that are only read, the topmost first. Of
// several that take the writes the kernel takes the last one.
func overlayLayers(options string) (upper, lower []string) {
	for option := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "upperdir":
			upper = []string{unescape(value)}
		case "lowerdir", "lowerdir+", "datadir+": // the latter once for each layer, since Linux 6.7
			for value != "" {
				var layer string
				layer, value = firstLayer(value)
				if layer != "" { // before "::", after which are layers of data
					lower = append(lower, unescape(layer))
				}
			}
		}
	}
	return upper, lower
}

// firstLayer cuts a list of layers at the first colon. One that belongs to a name
// has a backslash before it, which is in octal here.
func firstLayer(list string) (layer, rest string) {
	const backslash = `\134`
	for i := 0; i < len(list); {
		switch {
		case list[i] == ':':
			return list[:i], list[i+1:]
		case strings.HasPrefix(list[i:], backslash+backslash):
			i += 2 * len(backslash)
		case strings.HasPrefix(list[i:], backslash):
			i += len(backslash) + 1
		default:
			i++
		}
	}
	return list, ""
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
