package spec_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/limits"
	"github.com/agentbox/agentbox/pkg/spec"
)

func mustRequest(t *testing.T, data string) limits.Request {
	t.Helper()
	doc, err := spec.Parse([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	req, err := doc.Request("/bundle")
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestRatesOfDevicesAreRead(t *testing.T) {
	none := limits.NoLimit()
	for _, c := range []struct {
		name, text string
		want       map[limits.Device]limits.Set
	}{
		{"nothing", ``, nil},
		{"null", `"blockIO":null`, nil},
		{"empty lists", `"blockIO":{"throttleReadBpsDevice":[],"throttleWriteIOPSDevice":null}`, nil},
		{
			"each field", `"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":1,"rate":1}],"throttleWriteBpsDevice":[{"major":8,"minor":1,"rate":2}],
				"throttleReadIOPSDevice":[{"major":8,"minor":1,"rate":3}],"throttleWriteIOPSDevice":[{"major":8,"minor":1,"rate":4}]}`,
			map[limits.Device]limits.Set{sda1: {limits.KeyIOReadBPS: limits.Limit(1), limits.KeyIOWriteBPS: limits.Limit(2), limits.KeyIOReadIOPS: limits.Limit(3), limits.KeyIOWriteIOPS: limits.Limit(4)}},
		},
		{
			"each word", `"unified":{"io.max":"8:1 rbps=1 wbps=2 riops=3 wiops=4"}`,
			map[limits.Device]limits.Set{sda1: {limits.KeyIOReadBPS: limits.Limit(1), limits.KeyIOWriteBPS: limits.Limit(2), limits.KeyIOReadIOPS: limits.Limit(3), limits.KeyIOWriteIOPS: limits.Limit(4)}},
		},
		{
			"a device twice: the stricter one", `"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5},{"minor":16,"major":8,"rate":9},{"major":8,"minor":0,"rate":7}]}`,
			map[limits.Device]limits.Set{sda: {limits.KeyIOReadBPS: limits.Limit(5)}, sdb: {limits.KeyIOReadBPS: limits.Limit(9)}},
		},
		{
			"io.max is stricter", `"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5}]},"unified":{"io.max":"8:0 rbps=4"}`,
			map[limits.Device]limits.Set{sda: {limits.KeyIOReadBPS: limits.Limit(4)}},
		},
		{
			"the field is stricter", `"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5}]},"unified":{"io.max":"8:0 rbps=max wbps=6"}`,
			map[limits.Device]limits.Set{sda: {limits.KeyIOReadBPS: limits.Limit(5), limits.KeyIOWriteBPS: limits.Limit(6)}},
		},
		{"no limit", `"unified":{"io.max":"8:0 rbps=max"}`, map[limits.Device]limits.Set{sda: {limits.KeyIOReadBPS: none}}},
		{"a device alone", `"unified":{"io.max":"8:0"}`, nil},
		{
			"a line for each device", `"unified":{"io.max":"8:0 rbps=1\n254:0\twiops=2 \n"}`,
			map[limits.Device]limits.Set{sda: {limits.KeyIOReadBPS: limits.Limit(1)}, vda: {limits.KeyIOWriteIOPS: limits.Limit(2)}},
		},
		{
			"the largest numbers of a text", `"unified":{"io.max":"8:0 rbps=9223372036854775807 wbps=9223372036854775808 riops=18446744073709551615"}`,
			map[limits.Device]limits.Set{sda: {limits.KeyIOReadBPS: limits.Limit(1<<63 - 1), limits.KeyIOWriteBPS: none, limits.KeyIOReadIOPS: none}},
		},
		{"the last one of a word that is there twice may be looser", `"unified":{"io.max":"8:0 rbps=1 rbps=2"}`, map[limits.Device]limits.Set{sda: {limits.KeyIOReadBPS: limits.Limit(1)}}},
		{
			"missing numbers are 0, and a rate of 0 is no limit", `"blockIO":{"throttleReadBpsDevice":[{"rate":7},{"major":8,"minor":null,"rate":0},{"major":254}]}`,
			map[limits.Device]limits.Set{{}: {limits.KeyIOReadBPS: limits.Limit(7)}, sda: {limits.KeyIOReadBPS: none}, vda: {limits.KeyIOReadBPS: none}},
		},
		{
			"the largest numbers", `"blockIO":{"throttleReadBpsDevice":[{"major":4294967295,"minor":4294967295,"rate":9223372036854775807},{"major":8,"rate":9223372036854775808},{"major":254,"rate":18446744073709551615}],
				"throttleReadIOPSDevice":[{"major":8,"rate":4294967294},{"major":254,"rate":4294967295}],"throttleWriteIOPSDevice":[{"major":8,"rate":4294967295}],"throttleWriteBpsDevice":[{"major":8,"rate":4294967295}]}`,
			map[limits.Device]limits.Set{
				{Major: 1<<32 - 1, Minor: 1<<32 - 1}: {limits.KeyIOReadBPS: limits.Limit(1<<63 - 1)},
				sda:                                  {limits.KeyIOReadBPS: none, limits.KeyIOReadIOPS: limits.Limit(1<<32 - 2), limits.KeyIOWriteIOPS: none, limits.KeyIOWriteBPS: limits.Limit(1<<32 - 1)},
				vda:                                  {limits.KeyIOReadBPS: none, limits.KeyIOReadIOPS: none},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := mustRequest(t, resources(c.text))
			if !reflect.DeepEqual(req.Devices, c.want) {
				t.Errorf("%v, want %v", req.Devices, c.want)
			}
			if len(req.Spec) != 0 {
				t.Errorf("asks for %v besides", req.Spec)
			}
		})
	}
}

func TestWhatIOFilesAreWantedIsRead(t *testing.T) {
	for _, c := range []struct {
		name, text string
		weight     bool
		devices    []limits.Device
		files      []string
	}{
		{name: "nothing", text: `"memory":{}`},
		{name: "weights of 0", text: `"blockIO":{"weight":0,"leafWeight":300,"weightDevice":[]}`},
		{name: "a weight", text: `"blockIO":{"weight":5}`, weight: true},
		{name: "weights of devices", text: `"blockIO":{"weightDevice":[{"major":8,"minor":1,"weight":300},{"major":254,"leafWeight":1}]}`, devices: []limits.Device{sda1, vda}},
		{name: "files, sorted, without io.max", text: `"unified":{"io.weight":"1","io.latency":"x","io.max":"8:0","memory.max":"max","io.b":"","io.d":"","iox":"1","io.c":"","io.a":""}`, files: []string{"io.a", "io.b", "io.c", "io.d", "io.latency", "io.weight"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := mustRequest(t, resources(c.text))
			if req.IOWeight != c.weight || !slices.Equal(req.IOWeightDevices, c.devices) || !slices.Equal(req.IOFiles, c.files) {
				t.Errorf("weight %v, of devices %v, files %q; want %v, %v, %q", req.IOWeight, req.IOWeightDevices, req.IOFiles, c.weight, c.devices, c.files)
			}
		})
	}
}

func TestPlacesOfTheContainersFiles(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []limits.Place
	}{
		{"nothing", `{}`, nil},
		{"no root", `{"root":null}`, nil},
		{"a root without a path is the bundle", `{"root":{"readonly":true},"mounts":[]}`, []limits.Place{{Path: "/", Source: "/bundle", Recursive: true}}},
		{"a root with an empty path is the bundle", `{"root":{"path":""}}`, []limits.Place{{Path: "/", Source: "/bundle", Writable: true, Recursive: true}}},
		{"a relative root", `{"root":{"path":"rootfs"}}`, []limits.Place{{Path: "/", Source: "/bundle/rootfs", Writable: true, Recursive: true}}},
		{"a root outside of the bundle", `{"root":{"path":"../x"}}`, []limits.Place{{Path: "/", Source: "/x", Writable: true, Recursive: true}}},
		{"an absolute root that is read only", `{"root":{"path":"/srv/../r","readonly":true}}`, []limits.Place{{Path: "/", Source: "/srv/../r", Recursive: true}}},
		{"a root that is writable in so many words", `{"root":{"path":"/r","readonly":false},"mounts":null}`, []limits.Place{{Path: "/", Source: "/r", Writable: true, Recursive: true}}},
		{
			"bind mounts", `{"mounts":[{"destination":"/a","type":"bind","source":"/src/a"},{"destination":"/b","source":"data/b","options":["nosuid","rbind","ro"]},
				{"destination":"/c","type":"none","source":"/c","options":["bind"]},{"destination":"/d","type":"bind"},{"destination":"/e","type":"overlay","source":"/e","options":["bind"]},{"destination":"/f","source":"/./dev/sdb"}]}`,
			[]limits.Place{
				{Path: "/a", Source: "/src/a", Writable: true},
				{Path: "/b", Source: "/bundle/data/b", Recursive: true},
				{Path: "/c", Source: "/c", Writable: true},
				{Path: "/e", Source: "/e", Writable: true},
				{Path: "/f", Source: "/./dev/sdb", Writable: true},
			},
		},
		{
			"read only, and what is mounted below too", `{"mounts":[{"destination":"/a","type":"bind","source":"/a","options":["rbind","rro"]},{"destination":"/b","type":"bind","source":"/b","options":["rro","rbind","rrw"]}]}`,
			[]limits.Place{{Path: "/a", Source: "/a", Recursive: true, RecursiveReadOnly: true}, {Path: "/b", Source: "/b", Writable: true, Recursive: true}},
		},
		{
			"the last of ro and rw counts", `{"mounts":[{"destination":"/a","type":"bind","source":"/a","options":["ro","rw"]},{"destination":"/b","type":"bind","source":"/b","options":["rw","ro"]}]}`,
			[]limits.Place{{Path: "/a", Source: "/a", Writable: true}, {Path: "/b", Source: "/b"}},
		},
		{
			"overlays", `{"mounts":[{"destination":"/o","type":"overlay","source":"overlay","options":["lowerdir=/l","upperdir=up","workdir=/w"]},{"destination":"/l","type":"overlay","source":"overlay","options":["lowerdir=/l:/m"]}]}`,
			[]limits.Place{{Path: "/o", Source: "/bundle/up", Writable: true}, {Path: "/o", Source: "/l"}, {Path: "/l", Source: "/l"}, {Path: "/l", Source: "/m"}},
		},
		{
			"an overlay with several options in a text, and two that are written", `{"mounts":[{"destination":"/o","type":"overlay","options":["lowerdir=/l:m,upperdir=/tmp/u","upperdir=/u,workdir=/w","ro"]}]}`,
			[]limits.Place{{Path: "/o", Source: "/u"}, {Path: "/o", Source: "/l"}, {Path: "/o", Source: "/bundle/m"}},
		},
		{"an overlay without layers", `{"mounts":[{"destination":"/o","type":"overlay","source":"/dev/sdb"}]}`, nil},
		{
			"a file system on a device", `{"mounts":[{"destination":"/v","type":"ext4","source":"/dev/vdb","options":["ro"]},{"destination":"/t","type":"tmpfs","source":"tmpfs"},
				{"destination":"/proc","type":"proc","source":"proc"},{"destination":"/n","type":"nfs","source":"srv:/x"},{"destination":"/e"}]}`,
			[]limits.Place{
				{Path: "/v", Source: "/dev/vdb", Type: "ext4"},
				{Path: "/t", Source: "/bundle/tmpfs", Type: "tmpfs", Writable: true},
				{Path: "/proc", Source: "/bundle/proc", Type: "proc", Writable: true},
				{Path: "/n", Source: "/bundle/srv:/x", Type: "nfs", Writable: true},
			},
		},
		{
			"a file system on a device by another name", `{"mounts":[{"destination":"/v","type":"ext4","source":"/./dev/vdb"},{"destination":"/w","type":"xfs","source":"disk"},{"destination":"/z","type":"zfs","source":""}]}`,
			[]limits.Place{
				{Path: "/v", Source: "/./dev/vdb", Type: "ext4", Writable: true},
				{Path: "/w", Source: "/bundle/disk", Type: "xfs", Writable: true},
				{Path: "/z", Source: "/bundle", Type: "zfs", Writable: true},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := mustRequest(t, c.text).Places; !slices.Equal(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestBlockDevicesOfTheContainer(t *testing.T) {
	for text, want := range map[string][]limits.RawDisk{
		`{}`:                         nil,
		`{"linux":{"devices":null}}`: nil,
		`{"linux":{"devices":[{"type":"c","path":"/dev/fuse","major":10,"minor":229},{"type":"b","path":"/dev/x","major":8,"minor":18},{"path":"/dev/p","type":"p"},{"type":"b","path":"/dev/y","major":254}]}}`: {
			{Path: "/dev/x", Device: sdb2}, {Path: "/dev/y", Device: vda},
		},
	} {
		if got := mustRequest(t, text).RawDisks; !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestBlockDevicesThatTheContainerMayOpen(t *testing.T) {
	const all = limits.AnyNumber
	for _, c := range []struct {
		name, text string
		want       []limits.DeviceRule
	}{
		{"nothing", `"devices":null`, nil},
		{
			"what Docker writes", `"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"minor":5,"access":"rwm"},{"allow":true,"type":"c","access":"m"},{"allow":true,"type":"b","access":"m"}]`,
			[]limits.DeviceRule{{Device: limits.Device{Major: all, Minor: all}}},
		},
		{"privileged", `"devices":[{"allow":true,"access":"rwm"}]`, []limits.DeviceRule{{Allow: true, Device: limits.Device{Major: all, Minor: all}}}},
		{
			"one device", `"devices":[{"allow":true,"type":"b","major":8,"minor":17,"access":"r"},{"allow":true,"type":"b","major":8,"minor":0,"access":"mw"}]`,
			[]limits.DeviceRule{{Allow: true, Device: limits.Device{Major: 8, Minor: 17}}, {Allow: true, Device: sda}},
		},
		{
			"a kind of device", `"devices":[{"allow":true,"type":"b","major":98,"access":"rwm"},{"allow":true,"type":"b","major":-1,"minor":3,"access":"rwm"}]`,
			[]limits.DeviceRule{{Allow: true, Device: limits.Device{Major: 98, Minor: all}}, {Allow: true, Device: limits.Device{Major: all, Minor: 3}}},
		},
		{
			"all devices, whatever number stands there", `"devices":[{"allow":true,"type":"a","major":8,"minor":0,"access":"w"}]`,
			[]limits.DeviceRule{{Allow: true, Device: limits.Device{Major: all, Minor: all}}},
		},
		{
			"what takes something away", `"devices":[{"allow":false,"type":"b","major":8,"minor":0,"access":"wr"},{"type":"a","major":8,"minor":0,"access":"rwm"},{"allow":false,"type":"b","access":"r"},{"allow":false,"access":"w"},{"allow":false,"type":"c","access":"rw"}]`,
			[]limits.DeviceRule{{Device: sda}, {Device: sda}},
		},
		{"a rule without an access", `"devices":[{"allow":true},{"allow":true,"type":"b","access":""},{"allow":false}]`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := mustRequest(t, resources(c.text)).DeviceRules; !slices.Equal(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// A number that no device can have is that of a device which is not there.
func TestDeviceNumbersOutOfRangeAreNoRefusal(t *testing.T) {
	for text, device := range map[string]string{
		`"blockIO":{"throttleReadBpsDevice":[{"major":-1,"minor":0,"rate":5}]}`:                   "-1:0",
		`"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":4294967296,"rate":5}]}`:           "8:4294967296",
		`"blockIO":{"throttleReadBpsDevice":[{"major":9223372036854775807,"minor":-9,"rate":5}]}`: "9223372036854775807:-9",
		`"unified":{"io.max":"4294967304:0 rbps=5"}`:                                              "4294967304:0",
		`"unified":{"io.max":"-8:0 rbps=5"}`:                                                      "-8:0",
		`"blockIO":{"throttleReadBpsDevice":[{"major":4294967304,"minor":4294967296,"rate":5}]}`:  "4294967304:4294967296",
	} {
		w := v2World()
		data := resources(text)
		r := w.mustRewrite(t, data)
		w.verify(t, []byte(data), r)
		parts{"io_read_bps: 5 of device " + device + " from the spec is dropped: this host does not know it"}.check(t, r)
	}
	w := weightWorld()
	w.policy.Defaults = limits.Set{}
	const weights = `"blockIO":{"weightDevice":[{"major":4294967304,"minor":-1,"weight":300}]}`
	parts{"io: the weight of device 4294967304:-1 from the spec is dropped"}.check(t, w.mustRewrite(t, resources(weights)))
	if got := mustRequest(t, `{"linux":{"devices":[{"type":"b","path":"/dev/x","major":-1,"minor":4294967296}]}}`).RawDisks; !slices.Equal(got, []limits.RawDisk{{Path: "/dev/x", Device: limits.Device{Major: -1, Minor: 1 << 32}}}) {
		t.Errorf("%+v", got)
	}
}

// blockIO returns linux.resources.blockIO of a rewritten file as it stands there;
// "" when there is none.
func (r *rewritten) blockIO(t *testing.T) string {
	t.Helper()
	var out struct {
		Linux struct {
			Resources struct {
				BlockIO json.RawMessage `json:"blockIO"`
			} `json:"resources"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(r.data, &out); err != nil {
		t.Fatal(err)
	}
	return string(out.Linux.Resources.BlockIO)
}

// ioWarnings are the warnings about io.
func (r *rewritten) ioWarnings() []string {
	return slices.DeleteFunc(slices.Clone(r.warnings), func(w string) bool { return !strings.HasPrefix(w, "io") })
}

func TestRatesAreWrittenForEachDisk(t *testing.T) {
	// The policy has 256 MiB/s to read and to write, on sda and vda.
	const (
		defaults = `"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":268435456},{"major":254,"minor":0,"rate":268435456}],"throttleWriteBpsDevice":[{"major":8,"minor":0,"rate":268435456},{"major":254,"minor":0,"rate":268435456}]`
		writes   = `"throttleWriteBpsDevice":[{"major":8,"minor":0,"rate":268435456},{"major":254,"minor":0,"rate":268435456}]`
	)
	lowCeiling := v2World()
	lowCeiling.policy.Ceilings[limits.KeyIOReadBPS] = limits.Limit(1 << 30)
	annotated := v2World()
	annotated.annotations = limits.Set{limits.KeyIOReadBPS: limits.Limit(mib)}
	noWBPS := v2World().without(limits.KeyIOWriteBPS)
	for _, c := range []struct {
		name, text, want string
		world            world
		warnings         parts
	}{
		{name: "nothing asked", want: `{` + defaults + `}`},
		{name: "nothing asked on v1", world: v1World(), want: `{` + defaults + `}`},
		{name: "null", text: `"blockIO":null`, want: `{` + defaults + `}`},
		{name: "what else is there stays in its place", text: `"blockIO":{"weight":0, "x-more": [1.50],"throttleReadBpsDevice":null}`, want: `{"weight":0,"x-more":[1.50],` + defaults + `}`},
		{
			name: "less for one disk, by its partition", text: `"blockIO":{"throttleReadBpsDevice":[{"rate": 5, "minor":1,"major":8, "x":1}]}`,
			want: `{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5},{"major":254,"minor":0,"rate":268435456}],` + writes + `}`,
		},
		{
			name: "in io.max", text: `"unified":{"io.max":"8:1 rbps=5 riops=6"}`,
			want: `{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5},{"major":254,"minor":0,"rate":268435456}],` + writes + `,"throttleReadIOPSDevice":[{"major":8,"minor":0,"rate":6}]}`,
		},
		{
			name: "in io.max on v1", world: v1World(), text: `"unified":{"io.max":"8:1 rbps=5"}`,
			want: `{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5},{"major":254,"minor":0,"rate":268435456}],` + writes + `}`,
		},
		{
			name: "a disk that only the file names", world: disklessWorld(), text: `"blockIO":{"throttleWriteIOPSDevice":[{"major":8,"minor":18,"rate":9}],"throttleReadBpsDevice":[{"major":8,"minor":16,"rate":0}]}`,
			want: `{"throttleWriteIOPSDevice":[{"major":8,"minor":16,"rate":9}]}`,
		},
		{
			name: "above the ceiling", world: lowCeiling, text: `"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":2147483648}]}`,
			want:     `{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1073741824},{"major":254,"minor":0,"rate":268435456}],` + writes + `}`,
			warnings: parts{"io_read_bps: 2GiB of sda from the spec lowered to 1GiB, the ceiling in the configuration"},
		},
		{
			name: "an annotation", world: annotated, text: `"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":2147483648},{"major":8,"minor":16,"rate":2147483648},{"major":254,"minor":0,"rate":1}]}`,
			want:     `{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":1048576},{"major":8,"minor":16,"rate":1048576},{"major":254,"minor":0,"rate":1}],` + writes + `}`,
			warnings: parts{"io_read_bps: 1MiB from the annotation allows more than 1 of vda from the spec: the stricter one wins"},
		},
		{
			name: "devices that cannot be limited", text: `"blockIO":{"throttleReadBpsDevice":[{"major":7,"minor":0,"rate":5}],"throttleWriteIOPSDevice":[{"major":99,"minor":9,"rate":6}]}`, want: `{` + defaults + `}`,
			warnings: parts{"io_read_bps: 5 of device 7:0 from the spec is dropped: loop0 is a file of the host", "io_write_iops: 6 of device 99:9 from the spec is dropped: this host does not know it"},
		},
		{
			name: "devices that cannot be limited, in io.max", text: `"unified":{"io.max":"7:0 rbps=5\n99:9 wiops=6"}`, want: `{` + defaults + `}`,
			warnings: parts{"io_read_bps: 5 of device 7:0 from the spec is dropped: loop0 is a file of the host", "io_write_iops: 6 of device 99:9 from the spec is dropped: this host does not know it"},
		},
		{
			name: "no mechanism", world: noIOWorld(), text: `"blockIO":{"x-more":1,"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5}],"throttleReadIOPSDevice":[]},"unified":{"io.max":"8:0 wiops=6"}`, want: `{"x-more":1}`,
			warnings: parts{"io_read_bps: 5 of device 8:0 from the spec is dropped: not on this host", "io_write_iops: 6 of device 8:0 from the spec is dropped: not on this host"},
		},
		{
			name: "no cgroup", world: noCgroupWorld(), text: `"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5}]}`, want: `{}`,
			warnings: parts{"io_read_bps: 5 of device 8:0 from the spec is dropped: not on this host"},
		},
		{name: "no mechanism and nothing asked", world: noIOWorld(), want: ``},
		{name: "no disk and nothing asked", world: disklessWorld(), want: ``},
		{
			name: "one mechanism is missing", world: noWBPS, text: `"blockIO":{"throttleWriteBpsDevice":[{"major":8,"minor":0,"rate":5}],"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":6}]}`,
			want:     `{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":6},{"major":254,"minor":0,"rate":268435456}]}`,
			warnings: parts{"io_write_bps: 5 of device 8:0 from the spec is dropped: not on this host"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := c.world
			if w.devices == nil {
				w = v2World()
			}
			data := resources(c.text)
			r := w.mustRewrite(t, data)
			w.verify(t, []byte(data), r)
			if got := r.blockIO(t); got != c.want {
				t.Errorf("blockIO\n%s, want\n%s", got, c.want)
			}
			if _, ok := r.reread(t).Linux.Resources.Unified["io.max"]; ok {
				t.Errorf("io.max is still there and wins over the fields: %s", r.data)
			}
			c.warnings.check(t, r)
		})
	}
}

// parts are texts, each of which is in a warning about io of its own, in this
// order.
type parts []string

// check checks also that there are no other warnings about io.
func (want parts) check(t *testing.T, r *rewritten) {
	t.Helper()
	got := r.ioWarnings()
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		ok = strings.Contains(got[i], want[i])
	}
	if !ok {
		t.Errorf("warnings\n%q, want\n%q", got, want)
	}
}

func TestWeightsStayWhereTheyCanBeSet(t *testing.T) {
	const (
		noFile = "io: linux.resources.blockIO.weight from the spec is dropped: this host has no file for it in the container's cgroup"
		leaf   = "io: linux.resources.blockIO.leafWeight from the spec is dropped: no kernel since Linux 5.0 has it"
		noBFQ  = "from the spec is dropped: it is no disk of this host whose I/O scheduler is bfq"
	)
	for _, c := range []struct {
		name, in, want string
		world          func() world
		warnings       parts
	}{
		{"a weight", `"weight":300`, `{"weight":300}`, weightWorld, nil},
		{"a weight on v1", `"weight":300`, `{"weight":300}`, v1WeightWorld, nil},
		{"the least weight", `"weight":10`, `{"weight":10}`, weightWorld, nil},
		{"the largest weight", `"weight":1000`, `{"weight":1000}`, weightWorld, nil},
		{"a weight below", `"weight":9`, `{"weight":10}`, weightWorld, parts{"io: linux.resources.blockIO.weight 9 from the spec is outside 10 to 1000: 10 is set"}},
		{"a weight above", `"weight":1001`, `{"weight":1000}`, weightWorld, parts{"weight 1001 from the spec is outside 10 to 1000: 1000 is set"}},
		{"a weight that no runtime reads", `"weight":-70000`, `{"weight":10}`, weightWorld, parts{"weight -70000"}},
		{"a weight of 0 is none", `"weight":0,"leafWeight":0`, `{"weight":0,"leafWeight":0}`, v2World, nil},
		{"a weight of null is none", `"weight":null,"leafWeight":null`, `{"weight":null,"leafWeight":null}`, v2World, nil},
		{"no file", `"weight":300,"x":1`, `{"x":1}`, v2World, parts{noFile}},
		{"no file, and out of range", `"weight":5000`, `{}`, v2World, parts{noFile}},
		{"no file on v1", `"weight":300`, `{}`, v1World, parts{noFile}},
		{"no io controller", `"weight":300,"weightDevice":[{"major":8,"minor":0,"weight":300}]`, `{}`, noIOWorld, parts{noFile, "the weight of device 8:0 " + noBFQ}},
		{"leafWeight never", `"leafWeight":300,"weight":300`, `{"weight":300}`, weightWorld, parts{leaf}},
		{"leafWeight never on v1", `"leafWeight":-1`, `{}`, v1WeightWorld, parts{leaf}},
		{
			"of a disk with bfq", `"weightDevice":[ {"weight":300, "major":8,"minor":16,"leafWeight":5},{"major":254,"minor":0,"weight":300},{"major":8,"minor":1,"weight":300} ]`,
			`{"weightDevice":[{"major":8,"minor":16,"weight":300}]}`, weightWorld,
			parts{"the weight of device 254:0 " + noBFQ, "the weight of device 8:1 " + noBFQ},
		},
		{"of a disk with bfq on v1", `"weightDevice":[{"major":254,"minor":0,"weight":10},{"major":8,"minor":0,"weight":10}]`, `{"weightDevice":[{"major":254,"minor":0,"weight":10}]}`, v1WeightWorld, parts{"the weight of device 8:0 " + noBFQ}},
		{
			"of a disk, out of range", `"weightDevice":[{"major":8,"minor":0,"weight":9},{"major":8,"minor":0,"weight":1001},{"major":8,"minor":0,"weight":1000},{"major":8,"minor":16,"leafWeight":30}]`,
			`{"weightDevice":[{"major":8,"minor":0,"weight":1000}]}`, weightWorld,
			parts{"the weight 9 of device 8:0 from the spec is dropped: it is outside 10 to 1000", "the weight 1001 of device 8:0", "the weight 0 of device 8:16"},
		},
		{"empty lists go", `"weightDevice":[],"throttleReadBpsDevice":[]`, `{}`, weightWorld, nil},
		{"a null list stays", `"weightDevice":null`, `{"weightDevice":null}`, weightWorld, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := c.world()
			w.policy.Defaults = limits.Set{} // no rates
			data := resources(`"blockIO":{` + c.in + `}`)
			r := w.mustRewrite(t, data)
			w.verify(t, []byte(data), r)
			if got := r.blockIO(t); got != c.want {
				t.Errorf("blockIO %s, want %s", got, c.want)
			}
			c.warnings.check(t, r)
		})
	}
}

func TestIOFilesOfTheUnifiedMapStayWhereTheyCanBeWritten(t *testing.T) {
	const noFile, noWeight = "this host has no such file in the container's cgroup", "it is no weight for all disks"
	const noClass = "it is none of no-change, none-to-rt, restrict-to-be, idle"
	const unchecked = "a value that this kernel refuses would keep the container from starting, and this one cannot be checked"
	for _, c := range []struct {
		name, file, text string
		dropped          string // why on a host with the files; empty: it stays
	}{
		{"a weight", "io.weight", "100", ""},
		{"the default weight", "io.weight", "default 50", ""},
		{"space around", "io.weight", " default  50 \n", ""},
		{"the least", "io.weight", "1", ""},
		{"the largest", "io.weight", "10000", ""},
		{"too large", "io.weight", "10001", noWeight},
		{"0", "io.weight", "0", noWeight},
		{"a weight of one device", "io.weight", "8:0 100", noWeight},
		{"two lines", "io.weight", "100\n200", noWeight},
		{"a leading zero", "io.weight", "0100", noWeight},
		{"no number", "io.weight", "default", noWeight},
		{"default without a space", "io.weight", "default100", noWeight},
		{"nothing", "io.weight", "", noWeight},
		{"the least for bfq", "io.bfq.weight", "default 1", ""},
		{"the largest for bfq", "io.bfq.weight", "1000", ""},
		{"too large for bfq", "io.bfq.weight", "1001", noWeight},
		{"0 for bfq", "io.bfq.weight", "0", noWeight},
		{"a weight of one device for bfq", "io.bfq.weight", "8:0 100", noWeight},
		{"a class", "io.prio.class", "idle", ""},
		{"a class and the end of a line", "io.prio.class", "restrict-to-be\n", ""},
		{"a class of old", "io.prio.class", "none-to-rt", ""},
		{"no change of the class", "io.prio.class", "no-change", ""},
		{"a class that not every kernel has", "io.prio.class", "promote-to-rt", noClass},
		{"a class and space, which the kernel refuses", "io.prio.class", " idle", noClass},
		{"no class", "io.prio.class", "", noClass},
		{"a file with values that cannot be checked", "io.latency", "8:0 target=10", unchecked},
		{"a file that is not there", "io.cost.qos", "8:0 enable=1", noFile},
		{"no file at all", "io.", "x", noFile},
		{"a long name", "io." + strings.Repeat("x", 5000), "1", noFile},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, err := json.Marshal(map[string]string{c.file: c.text})
			if err != nil {
				t.Fatal(err)
			}
			data := resources(`"unified":` + string(text))
			for name, w := range map[string]world{"with the files": weightWorld(), "without": v2World(), "v1": v1WeightWorld(), "no io": noIOWorld(), "no cgroup": noCgroupWorld()} {
				reason := c.dropped
				if name != "with the files" {
					reason = noFile
				}
				r := w.mustRewrite(t, data)
				w.verify(t, []byte(data), r)
				got, stays := r.reread(t).Linux.Resources.Unified[c.file]
				want := parts{fmt.Sprintf("io: linux.resources.unified[%.80q] from the spec is dropped: %s", c.file, reason)}
				if reason == "" {
					want = nil
				}
				if stays != (reason == "") || stays && got != c.text {
					t.Errorf("%s: it is there: %v, as %q", name, stays, got)
				}
				want.check(t, r)
				for _, warning := range r.warnings {
					if len(warning) > 400 {
						t.Errorf("%s: a warning of %d characters", name, len(warning))
					}
				}
			}
		})
	}
}

// The first rewrite puts the planned rates of each disk where the next one finds
// requests: its report is the same nevertheless.
func TestTheReportOfASecondRewriteKnowsWhatWasAskedOfEachDisk(t *testing.T) {
	w := v2World()
	w.policy.Ceilings[limits.KeyIOReadBPS] = limits.Limit(gib)
	w.annotations = limits.Set{limits.KeyIOWriteBPS: limits.Limit(mib)}
	first := w.mustRewrite(t, resources(`"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":1,"rate":2147483648},{"major":8,"minor":16,"rate":268435456}],"throttleWriteBpsDevice":[{"major":8,"minor":16,"rate":5}]},
		"unified":{"io.max":"254:0 rbps=max"}`))
	type asked struct {
		limit  limits.Value
		asked  *limits.Value
		source limits.Source
	}
	want := map[limits.Device]map[limits.Key]asked{
		sda: {
			limits.KeyIOReadBPS:  {limits.Limit(gib), new(limits.Limit(2 * gib)), limits.SourceCeiling},
			limits.KeyIOWriteBPS: {limits.Limit(mib), new(limits.Limit(mib)), limits.SourceAnnotation},
		},
		sdb: {
			limits.KeyIOReadBPS:  {limits.Limit(256 * mib), new(limits.Limit(256 * mib)), limits.SourceSpec},
			limits.KeyIOWriteBPS: {limits.Limit(5), new(limits.Limit(5)), limits.SourceSpec},
		},
		vda: {
			limits.KeyIOReadBPS:  {limits.Limit(256 * mib), new(limits.NoLimit()), limits.SourceDefault},
			limits.KeyIOWriteBPS: {limits.Limit(mib), new(limits.Limit(mib)), limits.SourceAnnotation},
		},
	}
	second := w.mustRewrite(t, string(first.data))
	for name, r := range map[string]*rewritten{"first": first, "second": second} {
		got := map[limits.Device]map[limits.Key]asked{}
		for _, disk := range r.plan.IO.Disks {
			got[disk.Device] = map[limits.Key]asked{}
			for _, l := range disk.Limits {
				got[disk.Device][l.Key] = asked{l.Value, l.Requested, l.Source}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the %s plan says\n%+v, want\n%+v", name, got, want)
		}
	}
	if string(second.data) != string(first.data) {
		t.Errorf("twice gives\n%s, once\n%s", second.data, first.data)
	}
	if a, b := entries(first), entries(second); a != b {
		t.Errorf("the second report says\n%s, the first\n%s", b, a)
	}
}

func TestAForgedRecordOfADiskRaisesNothing(t *testing.T) {
	w := v2World()
	w.policy.Ceilings[limits.KeyIOReadBPS] = limits.Limit(gib)
	for record, want := range map[string]limits.DiskLimit{
		`{"io_read_bps@8:0":{"value":{"n":5},"source":"ceiling","requested":{"n":7}}}`: {Requested: new(limits.Limit(7)), Value: limits.Limit(5), Source: limits.SourceCeiling},
		`{"io_read_bps@8:0":{"value":{"n":9},"source":"ceiling"}}`:                     {Requested: new(limits.Limit(5)), Value: limits.Limit(5), Source: limits.SourceSpec},
		`{"io_read_bps@8:0":{"value":{"n":5},"source":"god"}}`:                         {Requested: new(limits.Limit(5)), Value: limits.Limit(5), Source: limits.SourceSpec},
		`{"io_read_bps":{"value":{"n":5},"source":"ceiling"}}`:                         {Requested: new(limits.Limit(5)), Value: limits.Limit(5), Source: limits.SourceSpec},
		`{"io_read_bps@8:0":{"value":{"none":true},"source":"ceiling"}}`:               {Requested: new(limits.Limit(5)), Value: limits.Limit(5), Source: limits.SourceSpec},
		`{"io_read_bps@8:0":5}`: {Requested: new(limits.Limit(5)), Value: limits.Limit(5), Source: limits.SourceSpec},
	} {
		text, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		r := w.mustRewrite(t, `{"annotations":{"agentbox.dev/original":`+string(text)+`},"linux":{"resources":{"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":5}]}}}}`)
		want.Key = limits.KeyIOReadBPS
		if got := r.plan.IO.Disks[0].Limits[0]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s makes the report say %+v, want %+v", record, got, want)
		}
	}
	const above = `{"annotations":{"agentbox.dev/original":"{\"io_read_bps@8:0\":{\"value\":{\"n\":2147483648},\"source\":\"default\"}}"},"linux":{"resources":{"blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":2147483648}]}}}}`
	if l := w.mustRewrite(t, above).plan.IO.Disks[0].Limits[0]; l.Value != limits.Limit(gib) || l.Source != limits.SourceCeiling {
		t.Errorf("a record of what is above the ceiling gives %+v", l)
	}
}

func TestKubernetesRefusesARateAboveTheCeiling(t *testing.T) {
	w := v2World()
	w.policy.Ceilings[limits.KeyIOWriteIOPS] = limits.Limit(100)
	pod := func(resources string) string {
		return `{"annotations":{"io.kubernetes.cri.sandbox-id":"1"},"linux":{"resources":{` + resources + `}}}`
	}
	const refusal = "of sda from the spec is above the ceiling in the configuration (100): ask for less, or raise [ceilings] io_write_iops"
	w.mustRefuse(t, pod(`"blockIO":{"throttleWriteIOPSDevice":[{"major":8,"minor":1,"rate":101}]}`), "io_write_iops 101 "+refusal)
	w.mustRefuse(t, pod(`"unified":{"io.max":"8:0 wiops=102"}`), "io_write_iops 102 "+refusal)
	for _, text := range []string{`"blockIO":{"throttleWriteIOPSDevice":[{"major":8,"minor":1,"rate":100},{"major":99,"minor":1,"rate":101}]}`, `"unified":{"io.max":"8:0 wiops=max"}`} {
		w.verify(t, []byte(pod(text)), w.mustRewrite(t, pod(text)))
	}
}

func TestStrictModeWithIO(t *testing.T) {
	const none = `{"root":{"path":"rootfs"}}`
	for name, c := range map[string]struct {
		world   world
		refused string
	}{
		"v2":         {world: v2World()},
		"v1":         {world: v1World()},
		"no disk":    {world: disklessWorld()},
		"no io":      {noIOWorld(), "io (not on this host)"},
		"no cgroup":  {noCgroupWorld(), "io (not on this host)"},
		"a network":  {networkWorld(), "io (not on /: nfs4 is a network filesystem)"},
		"no limit":   {generousWorld(), "io (it has no limit in the configuration)"},
		"supervised": {worlds()["v2, supervised"], "io ("},
	} {
		t.Run(name, func(t *testing.T) {
			c.world.policy.Mode, c.world.policy.StrictRequire = limits.ModeStrict, []limits.Dimension{limits.IO}
			_, err := c.world.rewrite([]byte(none))
			var missing *limits.UnenforceableError
			if c.refused == "" && err != nil || c.refused != "" && (!errors.As(err, &missing) || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("error = %v, want %q", err, c.refused)
			}
		})
	}
}

// FuzzIOMax feeds any text as unified["io.max"].
func FuzzIOMax(f *testing.F) {
	for _, text := range hostileIOMax {
		var s string
		if json.Unmarshal([]byte(text), &s) == nil {
			f.Add(s, byte(0))
		}
	}
	f.Add("8:0 rbps=1048576 wbps=max\n254:0 riops=120 wiops=4294967295\n", byte(6))
	f.Fuzz(func(t *testing.T, text string, n byte) {
		value, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		w := pickWorld(n)
		data := []byte(resources(`"unified":{"io.max":` + string(value) + `}`))
		if out, err := w.rewrite(data); err == nil {
			w.verify(t, data, out)
		}
	})
}
