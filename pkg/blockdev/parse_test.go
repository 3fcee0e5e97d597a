package blockdev

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
)

func TestOverlayLayers(t *testing.T) {
	for _, tt := range []struct {
		name, options, upper string
		lower                []string
	}{
		{"writable", "rw,lowerdir=/l:/m,upperdir=/u,workdir=/w", "/u", []string{"/l", "/m"}},
		{"upper first", "rw,upperdir=/u,lowerdir=/l", "/u", []string{"/l"}},
		{"two that are written: the last one", "rw,upperdir=/tmp,lowerdir=/l,upperdir=/u", "/u", []string{"/l"}},
		{"read only", "ro,lowerdir=/a:/b", "", []string{"/a", "/b"}},
		{"data layers", "ro,lowerdir=/a::/data::/more", "", []string{"/a", "/data", "/more"}},
		{"one by one", "ro,lowerdir+=/a,lowerdir+=/b,datadir+=/d", "", []string{"/a", "/b", "/d"}},
		{"a path of an option's name", "rw,lowerdir=/upperdir=x", "", []string{"/upperdir=x"}},
		{"colon in a name, as given", `ro,lowerdir=/a\134:b:/c`, "", []string{`/a\:b`, "/c"}},
		{"colon in a name, in octal", `ro,lowerdir=/a\072b:/c`, "", []string{`/a:b`, "/c"}},
		{"backslash before the colon", `ro,lowerdir=/a\134\134:/c`, "", []string{`/a\\`, "/c"}},
		{"comma and space", `rw,upperdir=/a\134\054b\040c,workdir=/w`, `/a\,b c`, nil},
		{"none", "rw,index=off,xino=off", "", nil},
		{"empty", "", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			upper, lower := overlayLayers(tt.options)
			if strings.Join(upper, " and ") != tt.upper || !slices.Equal(lower, tt.lower) {
				t.Errorf("got %q and %q, want %q and %q", upper, lower, tt.upper, tt.lower)
			}
		})
	}
}

// The options as mount(2) gets them.
func TestLayers(t *testing.T) {
	for _, tt := range []struct {
		name, options, upper string
		lower                []string
	}{
		{"writable", "nosuid,lowerdir=/l:m,upperdir=/u,workdir=/w", "/u", []string{"/l", "m"}},
		{"the last one that takes writes", "upperdir=/tmp,lowerdir=/l,upperdir=u", "u", []string{"/l"}},
		{"read only", "lowerdir=/a:/b", "", []string{"/a", "/b"}},
		{"colon in a name", `lowerdir=/a\:b:/c`, "", []string{"/a:b", "/c"}},
		{"comma in a name", `upperdir=/a\,upperdir=x,lowerdir=/c`, "/a,upperdir=x", []string{"/c"}},
		{"backslash in a name", `upperdir=/a\\,lowerdir=/c\\:/d`, `/a\`, []string{`/c\`, "/d"}},
		{"what looks like octal", `upperdir=/a\\054b`, `/a\054b`, nil},
		{"no layer", "ro", "", nil},
		{"nothing", "", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			upper, lower := Layers(tt.options)
			if upper != tt.upper || !slices.Equal(lower, tt.lower) {
				t.Errorf("got %q and %q, want %q and %q", upper, lower, tt.upper, tt.lower)
			}
		})
	}
}

func TestUnescape(t *testing.T) {
	for text, want := range map[string]string{
		`/a\040b\134c\054d\075e`: `/a b\c,d=e`,
		`/plain`:                 `/plain`,
		`\377`:                   "\xff",
		`\400 \08 \1`:            `\400 \08 \1`, // none of which the kernel writes
		``:                       ``,
	} {
		if got := unescape(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestLayerPaths(t *testing.T) {
	for _, tt := range []struct {
		name, layer, point string
		want               []string
	}{
		{"absolute", "/u", "/m", []string{"/u"}},
		{"relative", "id/diff", "/home/id/merged", []string{"/home/id/id/diff", "/home/id/diff"}},
		{"relative near the root", "u", "/m", []string{"/u", "/u"}},
		{"backslashes", `/a\:b`, "/m", []string{"/a:b", `/a\:b`}},
		{"backslash at the end", `/a\`, "/m", []string{`/a\`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := layerPaths(tt.layer, tt.point); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseScheduler(t *testing.T) {
	for text, want := range map[string]string{
		"none [mq-deadline] kyber bfq \n": "mq-deadline",
		"[none] mq-deadline\n":            "none",
		"none\n":                          "none",
		"noop deadline [cfq]\n":           "cfq",
		"none mq-deadline\n":              "",
		"[":                               "",
		"":                                "",
	} {
		if got := parseScheduler([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestParseMountID(t *testing.T) {
	for text, want := range map[string]uint64{
		"pos:\t0\nflags:\t012000000\nmnt_id:\t27\nino:\t2\n": 27,
		"pos:\t0\nflags:\t012000000\n":                       0,
		"mnt_id:\t-1\n":                                      0,
		"":                                                   0,
	} {
		if got := parseMountID([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestMountOfAFile(t *testing.T) {
	const data = "7 1 0:45 / /a rw - overlay x rw\n" +
		"77 1 0:4 / /b rw - tmpfs 0:5 rw\n" +
		"78 77 0:45 / /c rw - overlay x rw\n" +
		"79 77 0:5 / /d rw - nfs x rw"
	for _, tt := range []struct {
		name string
		stat Stat
		want string
	}{
		{"id", Stat{Mount: 77}, "77 "},
		{"id that begins like another", Stat{Mount: 7}, "7 "},
		{"id before number", Stat{Mount: 78, Device: limits.Device{Minor: 5}}, "78 "},
		{"number", Stat{Device: limits.Device{Minor: 45}}, "7 "},
		{"number that begins like another", Stat{Device: limits.Device{Minor: 4}}, "77 "},
		{"number, and not a source that looks like it", Stat{Device: limits.Device{Minor: 5}}, "79 "},
		{"id that is not shown", Stat{Mount: 1, Device: limits.Device{Minor: 45}}, "7 "},
		{"parent's id", Stat{Mount: 1}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMounts([]byte(data))
			for n := range fewQuestions + 2 { // one by one, and by the index
				got := string(m.of(tt.stat))
				if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
					t.Errorf("question %d: got %q", n, got)
				}
			}
		})
	}
}

// FuzzBehind feeds mountinfo. Whatever is in it, there is exactly one kind of
// answer, and it comes to an end: every path leads to the same mount.
func FuzzBehind(f *testing.F) {
	m := recorded(f)
	for section := range strings.SplitSeq(machine, "\n-- ") {
		if mounts, ok := strings.CutPrefix(section, "-- proc/self/mountinfo --\n"); ok {
			f.Add([]byte(mounts), uint64(27), int64(8), int64(2))
			f.Add([]byte(mounts), uint64(0), int64(0), int64(66))
		}
	}
	for _, line := range []string{
		"1 1 0:1 / / rw - overlay x rw,upperdir=a,lowerdir=b",
		"1 1 0:1 / / rw - btrfs /dev/loop0p2 rw",
		"1 1 8:2 / / rw - ext4 x rw",
		`1 1 0:1 / /\040 rw - x /dev/a:/dev/b rw`,
	} {
		f.Add([]byte(line), uint64(1), int64(0), int64(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, mount uint64, major, minor int64) {
		st := Stat{Mount: mount, Device: limits.Device{Major: major, Minor: minor}}
		finder := m.finder().WithStat(func(string) (Stat, error) { return st, nil })
		finder.mounts = func() (*mounts, error) { return newMounts(data), nil }
		b := finder.Behind("/x")
		answers := 0
		for _, yes := range []bool{len(b.Disks) > 0, b.InMemory, b.Reason != ""} {
			if yes {
				answers++
			}
		}
		if answers != 1 {
			t.Errorf("%d answers: %+v", answers, b)
		}
		for _, m := range finder.Below("/x") {
			if len(m.Disks) == 0 && !m.InMemory && m.Reason == "" {
				t.Errorf("no answer for %+v", m)
			}
		}
		for _, d := range slices.Concat(b.Disks, b.Lower) {
			if whole, reason := finder.Whole(d.Device); whole != d {
				t.Errorf("%+v is not a whole disk: %+v %s", d, whole, reason)
			}
		}
	})
}

// FuzzOverlayLayers writes options as mounters and kernels do, and expects the
// folders back.
func FuzzOverlayLayers(f *testing.F) {
	for _, dir := range []string{"/u", "/a,b c:d=e/up", `/back\slash`, `/end\`, "/tab\tnew\nline", "/\xff#", `/\134`, "/a::b"} {
		f.Add(dir, "/other")
	}
	mounter := strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`)
	octal := strings.NewReplacer(`,`, `\054`, `=`, `\075`, ` `, `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)
	f.Fuzz(func(t *testing.T, dir, other string) {
		// Anything at all must not panic.
		for _, layer := range slices.Concat(overlayLayers(dir + "," + other)) {
			layerPaths(layer, other)
		}
		Layers(dir + "," + other)
		for _, name := range []string{dir, other} {
			if !path.IsAbs(name) || path.Clean(name) != name {
				t.Skip()
			}
		}
		one, two := mounter.Replace(dir), mounter.Replace(other)
		for _, c := range []struct {
			options string
			upper   bool
			lower   []string
		}{
			{"rw,lowerdir=" + two + ",upperdir=" + one + ",workdir=" + two, true, []string{other}},
			{"ro,lowerdir=" + one + ":" + two, false, []string{dir, other}},
			{"ro,lowerdir+=" + one + ",lowerdir+=" + two, false, []string{dir, other}},
		} {
			upper, lower := Layers(c.options)
			if c.upper != (upper == dir) || !slices.Equal(lower, c.lower) {
				t.Errorf("%q: %q, %q", c.options, upper, lower)
			}
		}
		// The kernel writes the values, and not what is between them, in octal.
		options := "lowerdir=" + octal.Replace(one) + ":" + octal.Replace(two) + ",upperdir=" + octal.Replace(one)
		seen, low := overlayLayers(options)
		for i, want := range []string{dir, other} {
			if len(low) != 2 || len(seen) != 1 || layerPaths(low[i], "/m")[0] != want || layerPaths(seen[0], "/m")[0] != dir {
				t.Errorf("%q: %q, %q", options, seen, low)
			}
		}
	})
}

func FuzzParseScheduler(f *testing.F) {
	for _, text := range []string{"none [mq-deadline] kyber bfq \n", "none\n", "[none]", "]x["} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got := parseScheduler(data)
		if !strings.Contains(string(data), got) || strings.TrimSpace(got) != got {
			t.Errorf("%q: %q", data, got)
		}
	})
}

func FuzzParseMountID(f *testing.F) {
	f.Add([]byte("pos:\t0\nflags:\t012000000\nmnt_id:\t27\nino:\t2\n"))
	f.Add([]byte("mnt_id:"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if id := parseMountID(data); id != 0 && !strings.Contains(string(data), "mnt_id:") {
			t.Errorf("%q: %d", data, id)
		}
	})
}
