package blockdev

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
)

func TestOverlayLayer(t *testing.T) {
	for _, tt := range []struct{ name, options, want string }{
		{"writable", "rw,lowerdir=/l,upperdir=/u,workdir=/w", "/u"},
		{"upper first", "rw,upperdir=/u,lowerdir=/l", "/u"},
		{"read only", "ro,lowerdir=/a:/b", "/a"},
		{"data layers", "ro,lowerdir=/a::/data", "/a"},
		{"one by one", "ro,lowerdir+=/a,lowerdir+=/b,datadir+=/d", "/a"},
		{"a path of an option's name", "rw,lowerdir=/upperdir=x", "/upperdir=x"},
		{"colon in a name, as given", `ro,lowerdir=/a\134:b:/c`, `/a\:b`},
		{"colon in a name, in octal", `ro,lowerdir=/a\072b:/c`, `/a:b`},
		{"backslash before the colon", `ro,lowerdir=/a\134\134:/c`, `/a\\`},
		{"comma and space", `rw,upperdir=/a\134\054b\040c,workdir=/w`, `/a\,b c`},
		{"none", "rw,index=off,xino=off", ""},
		{"empty", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := overlayLayer(tt.options); got != tt.want || ok != (tt.want != "") {
				t.Errorf("got %q, %v, want %q", got, ok, tt.want)
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

func TestSelectMount(t *testing.T) {
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
			got := string(selectMount([]byte(data), tt.stat))
			if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("got %q", got)
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
			f.Add([]byte(mounts), uint64(27), uint32(8), uint32(2))
			f.Add([]byte(mounts), uint64(0), uint32(0), uint32(66))
		}
	}
	for _, line := range []string{
		"1 1 0:1 / / rw - overlay x rw,upperdir=a,lowerdir=b",
		"1 1 0:1 / / rw - btrfs /dev/loop0p2 rw",
		"1 1 8:2 / / rw - ext4 x rw",
		`1 1 0:1 / /\040 rw - x /dev/a:/dev/b rw`,
	} {
		f.Add([]byte(line), uint64(1), uint32(0), uint32(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, mount uint64, major, minor uint32) {
		st := Stat{Mount: mount, Device: limits.Device{Major: major, Minor: minor}}
		finder := m.finder().WithStat(func(string) (Stat, error) { return st, nil })
		finder.mountinfo = func() ([]byte, error) { return data, nil }
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
		for _, d := range b.Disks {
			if whole, reason := finder.Whole(d.Device); whole != d {
				t.Errorf("%+v is not a whole disk: %+v %s", d, whole, reason)
			}
		}
	})
}

// FuzzOverlayLayer writes options as mounters and kernels do, and expects the
// folder back.
func FuzzOverlayLayer(f *testing.F) {
	for _, dir := range []string{"/u", "/a,b c:d=e/up", `/back\slash`, `/end\`, "/tab\tnew\nline", "/\xff#", `/\134`, "/a::b"} {
		f.Add(dir, "/other")
	}
	given := strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`)
	shown := strings.NewReplacer(`,`, `\054`, `=`, `\075`, ` `, `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)
	f.Fuzz(func(t *testing.T, dir, other string) {
		if !path.IsAbs(dir) || path.Clean(dir) != dir {
			t.Skip()
		}
		dir1, other1 := shown.Replace(given.Replace(dir)), shown.Replace(given.Replace(other))
		for _, options := range []string{
			"rw,lowerdir=" + other1 + ",upperdir=" + dir1 + ",workdir=" + other1,
			"ro,lowerdir=" + dir1 + ":" + other1,
			"ro,lowerdir+=" + dir1 + ",lowerdir+=" + other1,
		} {
			layer, ok := overlayLayer(options)
			if !ok || layerPaths(layer, "/m")[0] != dir {
				t.Errorf("%q: %q, %q", options, layer, layerPaths(layer, "/m"))
			}
		}
		// Anything else must not panic.
		layer, _ := overlayLayer(dir + "," + other)
		layerPaths(layer, other)
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
