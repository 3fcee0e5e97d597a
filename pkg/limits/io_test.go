package limits_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/agentbox/agentbox/pkg/limits"
)

var (
	sda  = BlockDevice{Device: Device{Major: 8}, Name: "sda", Places: []string{"/", "/data"}, Filesystem: "ext4", Counted: "all"}
	sda1 = Device{Major: 8, Minor: 1}
	sdb  = BlockDevice{Device: Device{Major: 8, Minor: 16}, Name: "sdb"}
	sdb1 = Device{Major: 8, Minor: 17}
	vda  = BlockDevice{Device: Device{Major: 254}, Name: "vda", Places: []string{"/work"}}
	loop = Device{Major: 7}
	gone = Device{Major: 99, Minor: 9}
)

// ioHost has files of the container on sda and vda. sdb is there too, and a loop
// device that cannot be limited; partitions lead to their disks.
func ioHost() HostIO {
	named := func(disk BlockDevice, by Device) AskedDisk {
		return AskedDisk{Disk: BlockDevice{Device: disk.Device, Name: disk.Name, Places: []string{"device " + by.String()}}}
	}
	return HostIO{
		Disks: []BlockDevice{vda, sda},
		Asked: map[Device]AskedDisk{
			sda.Device: named(sda, sda.Device), sda1: named(sda, sda1),
			sdb.Device: named(sdb, sdb.Device), sdb1: named(sdb, sdb1),
			vda.Device: named(vda, vda.Device),
			loop:       {Reason: "loop0 is a file of the host"},
		},
	}
}

// asksOf asks for one rate of one device.
func asksOf(d Device, k Key, v Value) Request {
	return Request{Devices: map[Device]Set{d: {k: v}}}
}

// annotated is a request with an annotation besides.
func annotated(r Request, k Key, v Value) Request {
	r.Annotations = Set{k: v}
	return r
}

// rates lists what a plan gives of one key, a line for each disk in the order of
// the plan: "sda 1MiB spec, asked 1MiB".
func rates(plan *Plan, key Key) []string {
	list := []string{}
	info, _ := key.Info() // an io key is a key
	for _, disk := range plan.IO.Disks {
		for _, l := range disk.Limits {
			if l.Key != key {
				continue
			}
			line := fmt.Sprintf("%s %s %s", disk.Name, info.String(l.Value), l.Source)
			if l.Requested != nil {
				line += ", asked " + info.String(*l.Requested)
			}
			list = append(list, line)
		}
	}
	return list
}

func TestEachDiskGetsItsOwnRequestElseThePolicysValue(t *testing.T) {
	const key = KeyIOReadBPS
	small, large := Limit(mib), Limit(gib) // around the default of 256 MiB
	for _, c := range []struct {
		name    string
		policy  func(*Policy)
		host    func(*Host)
		req     Request
		key     Key // empty: io_read_bps
		want    []string
		warning string // a part of the only one; empty: there is none
	}{
		{name: "nobody asks", want: []string{"sda 256MiB default", "vda 256MiB default"}},
		{name: "a key without a value in the policy", key: KeyIOWriteIOPS, want: []string{}},
		{name: "a profile", policy: func(p *Policy) { p.Profiles["small"][key] = small }, req: Request{Profile: "small"}, want: []string{"sda 1MiB profile", "vda 1MiB profile"}},
		{name: "less for one disk", req: asksOf(sda.Device, key, small), want: []string{"sda 1MiB spec, asked 1MiB", "vda 256MiB default"}},
		{name: "more for one disk", req: asksOf(vda.Device, key, large), want: []string{"sda 256MiB default", "vda 1GiB spec, asked 1GiB"}},
		{name: "another key of the disk", req: asksOf(sda.Device, KeyIOWriteBPS, small), want: []string{"sda 256MiB default", "vda 256MiB default"}},
		{name: "a partition is its disk", req: asksOf(sda1, key, small), want: []string{"sda 1MiB spec, asked 1MiB", "vda 256MiB default"}},
		{
			name: "a disk and its partition: the stricter one", req: Request{Devices: map[Device]Set{sda1: {key: small}, sda.Device: {key: large}}},
			want: []string{"sda 1MiB spec, asked 1MiB", "vda 256MiB default"},
		},
		{
			name: "a partition and its disk: the stricter one", req: Request{Devices: map[Device]Set{sda1: {key: large}, sda.Device: {key: small}}},
			want: []string{"sda 1MiB spec, asked 1MiB", "vda 256MiB default"},
		},
		{
			name: "no limit for the disk and one for its partition", req: Request{Devices: map[Device]Set{sda1: {key: small}, sda.Device: {key: NoLimit()}}},
			want: []string{"sda 1MiB spec, asked 1MiB", "vda 256MiB default"},
		},
		{
			name: "the keys of a disk and of its partition come together", key: KeyIOWriteIOPS,
			req:  Request{Devices: map[Device]Set{sda.Device: {key: small}, sda1: {KeyIOWriteIOPS: Limit(50)}}},
			want: []string{"sda 50 spec, asked 50"},
		},
		{
			name: "a disk that only the request names", req: asksOf(sdb.Device, key, large),
			want: []string{"sda 256MiB default", "sdb 1GiB spec, asked 1GiB", "vda 256MiB default"},
		},
		{name: "and no other rate of it", key: KeyIOWriteBPS, req: asksOf(sdb.Device, key, large), want: []string{"sda 256MiB default", "vda 256MiB default"}},
		{name: "no limit for a disk that only the request names", req: asksOf(sdb.Device, key, NoLimit()), want: []string{"sda 256MiB default", "vda 256MiB default"}},
		{
			name: "no limit for a disk of the container", req: asksOf(sda.Device, key, NoLimit()),
			want: []string{"sda 256MiB default, asked none", "vda 256MiB default"}, warning: "io_read_bps: no limit of sda in the spec lowered to 256MiB, the default",
		},
		{name: "no limit, and the policy has none either", key: KeyIOReadIOPS, req: asksOf(sda.Device, KeyIOReadIOPS, NoLimit()), want: []string{}},
		{name: "a rate below the policy's minimum is kept", req: asksOf(sda.Device, key, Limit(1)), want: []string{"sda 1 spec, asked 1", "vda 256MiB default"}},
		{name: "operations below the policy's minimum are kept", key: KeyIOReadIOPS, req: asksOf(vda.Device, KeyIOReadIOPS, Limit(1)), want: []string{"vda 1 spec, asked 1"}},

		{name: "an annotation is for every disk of the container", req: annotates(key, small), want: []string{"sda 1MiB annotation, asked 1MiB", "vda 1MiB annotation, asked 1MiB"}},
		{name: "an annotation of none", req: annotates(key, NoLimit()), want: []string{}},
		{
			name: "the annotation is stricter than the spec", req: annotated(asksOf(vda.Device, key, large), key, small),
			want: []string{"sda 1MiB annotation, asked 1MiB", "vda 1MiB annotation, asked 1MiB"},
		},
		{
			name: "the annotation is stricter for a disk that only the request names", req: annotated(asksOf(sdb.Device, key, large), key, small),
			want: []string{"sda 1MiB annotation, asked 1MiB", "sdb 1MiB annotation, asked 1MiB", "vda 1MiB annotation, asked 1MiB"},
		},
		{
			name: "they agree", req: annotated(asksOf(sda.Device, key, small), key, small),
			want: []string{"sda 1MiB annotation, asked 1MiB", "vda 1MiB annotation, asked 1MiB"},
		},
		{
			name: "the spec is stricter than the annotation", req: annotated(asksOf(sda.Device, key, small), key, large),
			want:    []string{"sda 1MiB spec, asked 1MiB", "vda 1GiB annotation, asked 1GiB"},
			warning: "io_read_bps: 1GiB from the annotation allows more than 1MiB of sda from the spec: the stricter one wins",
		},
		{
			name: "the annotation says none", req: annotated(asksOf(sda.Device, key, small), key, NoLimit()),
			want: []string{"sda 1MiB spec, asked 1MiB"}, warning: "none from the annotation allows more than 1MiB of sda",
		},
		{
			name: "the spec has no limit and the annotation has one", req: annotated(asksOf(sda.Device, key, NoLimit()), key, small),
			want: []string{"sda 1MiB annotation, asked 1MiB", "vda 1MiB annotation, asked 1MiB"},
		},

		{
			name: "above the ceiling", policy: ceiling(key, Limit(512*mib)), req: asksOf(sda1, key, large),
			want:    []string{"sda 512MiB ceiling, asked 1GiB", "vda 256MiB default"},
			warning: "io_read_bps: 1GiB of sda from the spec lowered to 512MiB, the ceiling in the configuration",
		},
		{
			name: "above the ceiling on a disk that only the request names", policy: ceiling(key, Limit(512*mib)), req: asksOf(sdb.Device, key, large),
			want:    []string{"sda 256MiB default", "sdb 512MiB ceiling, asked 1GiB", "vda 256MiB default"},
			warning: "1GiB of sdb from the spec lowered to 512MiB",
		},
		{name: "exactly the ceiling", policy: ceiling(key, large), req: asksOf(sda.Device, key, large), want: []string{"sda 1GiB spec, asked 1GiB", "vda 256MiB default"}},
		{name: "a default above the ceiling", policy: ceiling(key, small), want: []string{"sda 1MiB ceiling", "vda 1MiB ceiling"}},
		{name: "a ceiling where the policy has no value", key: KeyIOWriteIOPS, policy: ceiling(KeyIOWriteIOPS, Limit(70)), want: []string{"sda 70 ceiling", "vda 70 ceiling"}},
		{
			name: "the annotation is above the ceiling, the spec below", policy: ceiling(key, Limit(512*mib)), req: annotated(asksOf(sda.Device, key, Limit(300*mib)), key, Limit(300*mib)),
			want: []string{"sda 300MiB annotation, asked 300MiB", "vda 300MiB annotation, asked 300MiB"},
		},

		{
			name: "a device that cannot be limited", req: asksOf(loop, key, small), want: []string{"sda 256MiB default", "vda 256MiB default"},
			warning: "io_read_bps: 1MiB of device 7:0 from the spec is dropped: loop0 is a file of the host",
		},
		{
			name: "a device that the host does not know", req: asksOf(gone, key, small), want: []string{"sda 256MiB default", "vda 256MiB default"},
			warning: "io_read_bps: 1MiB of device 99:9 from the spec is dropped: this host does not know it",
		},
		{name: "no limit of a device that the host does not know", req: asksOf(gone, key, NoLimit()), want: []string{"sda 256MiB default", "vda 256MiB default"}},
		{
			name: "no mechanism", host: func(h *Host) { *h = without(*h, "the io controller is off", IOKeys[:]...) }, req: asksOf(sda.Device, key, small), want: []string{},
			warning: "io_read_bps: 1MiB of device 8:0 from the spec is dropped: the io controller is off",
		},
		{
			name: "no mechanism and an unknown device: the first is why", host: func(h *Host) { *h = without(*h, "the io controller is off", IOKeys[:]...) }, req: asksOf(gone, key, small), want: []string{},
			warning: "is dropped: the io controller is off",
		},
		{
			name: "no mechanism at all", host: func(h *Host) { h.Mechanisms = nil }, req: asksOf(sda.Device, key, small), want: []string{},
			warning: "1MiB of device 8:0 from the spec is dropped: nothing here limits it",
		},
		{
			name: "a supervisor writes no io.max", host: func(h *Host) { *h = supervising(without(*h, "no such file", key)) }, req: supervisable(asksOf(sda.Device, key, small)), want: []string{},
			warning: "1MiB of device 8:0 from the spec is dropped: the supervisor limits all disks together",
		},
		{
			name: "the mechanism of another key is missing", host: func(h *Host) { *h = without(*h, "no such file", KeyIOReadBPS) }, key: KeyIOWriteBPS,
			req:     Request{Devices: map[Device]Set{sda.Device: {key: small, KeyIOWriteBPS: small}}},
			want:    []string{"sda 1MiB spec, asked 1MiB", "vda 256MiB default"},
			warning: "io_read_bps: 1MiB of device 8:0 from the spec is dropped: no such file",
		},
		{name: "the container does not exist yet", host: func(h *Host) { h.IO = HostIO{Unknown: true} }, want: []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy, host := DefaultPolicy(), fullHost()
			if c.policy != nil {
				c.policy(&policy)
			}
			if c.host != nil {
				c.host(&host)
			}
			if c.key == "" {
				c.key = key
			}
			plan := mustResolve(t, policy, c.req, host)
			if got := rates(plan, c.key); !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, want %q", c.key, got, c.want)
			}
			ioWarnings := slices.DeleteFunc(slices.Clone(plan.Warnings), func(w string) bool { return !strings.HasPrefix(w, "io") })
			if all := strings.Join(ioWarnings, "\n"); !strings.Contains(all, c.warning) || (c.warning == "") != (all == "") || len(ioWarnings) > 1 {
				t.Errorf("warnings = %q, want %q", ioWarnings, c.warning)
			}
		})
	}
}

func TestTheDisksOfAPlanAreThoseOfTheHostAndThoseThatAreAsked(t *testing.T) {
	req := Request{Devices: map[Device]Set{
		sdb1: {KeyIOReadBPS: Limit(mib)}, sdb.Device: {KeyIOWriteBPS: Limit(2 * mib)}, sda1: {KeyIOReadIOPS: Limit(100)}, loop: {KeyIOReadBPS: Limit(1)},
	}}
	plan := mustResolve(t, DefaultPolicy(), req, fullHost())
	want := []DiskPlan{
		{BlockDevice: sda, Limits: []DiskLimit{
			{Key: KeyIOReadBPS, Value: Limit(256 * mib), Source: SourceDefault},
			{Key: KeyIOWriteBPS, Value: Limit(256 * mib), Source: SourceDefault},
			{Key: KeyIOReadIOPS, Requested: new(Limit(100)), Value: Limit(100), Source: SourceSpec},
		}},
		{BlockDevice: BlockDevice{Device: sdb.Device, Name: "sdb", Places: []string{"device 8:16", "device 8:17"}}, Asked: true, Limits: []DiskLimit{
			{Key: KeyIOReadBPS, Requested: new(Limit(mib)), Value: Limit(mib), Source: SourceSpec},
			{Key: KeyIOWriteBPS, Requested: new(Limit(2 * mib)), Value: Limit(2 * mib), Source: SourceSpec},
		}},
		{BlockDevice: vda, Limits: []DiskLimit{
			{Key: KeyIOReadBPS, Value: Limit(256 * mib), Source: SourceDefault},
			{Key: KeyIOWriteBPS, Value: Limit(256 * mib), Source: SourceDefault},
		}},
	}
	if !reflect.DeepEqual(plan.IO.Disks, want) {
		t.Errorf("disks\n%+v, want\n%+v", plan.IO.Disks, want)
	}
	if plan := mustResolve(t, DefaultPolicy(), asksOf(sdb.Device, KeyIOReadBPS, NoLimit()), fullHost()); len(plan.IO.Disks) != 2 {
		t.Errorf("disks %+v for a request of no limit, want those of the container", plan.IO.Disks)
	}
	unset := DefaultPolicy()
	unset.Defaults = Set{}
	if plan := mustResolve(t, unset, Request{}, fullHost()); len(plan.IO.Disks) != 2 {
		t.Errorf("disks %+v without limits, want those of the container", plan.IO.Disks)
	}
	host := fullHost()
	if !reflect.DeepEqual(host.IO, ioHost()) || !reflect.DeepEqual(req.Devices[sdb1], Set{KeyIOReadBPS: Limit(mib)}) {
		t.Error("the inputs were changed")
	}
}

func TestThePlanSaysWhetherThereIsADisk(t *testing.T) {
	network := []Diskless{{"/", "9p is a network filesystem"}}
	for name, c := range map[string]struct {
		host func(*Host)
		want bool
	}{
		"disks":                            {func(*Host) {}, false},
		"no disk":                          {func(h *Host) { h.IO.Disks = nil }, true},
		"a network":                        {func(h *Host) { h.IO = HostIO{Diskless: network} }, false},
		"more of it than are listed":       {func(h *Host) { h.IO = HostIO{Diskless: network, MoreDiskless: 3} }, false},
		"nobody looked":                    {func(h *Host) { h.IO = HostIO{Unknown: true} }, false},
		"nobody looks without a mechanism": {func(h *Host) { h.Mechanisms, h.IO = nil, HostIO{} }, false},
		"nor with one that is no file": {func(h *Host) {
			*h = supervising(without(*h, "no such file", KeyIOReadBPS))
			h.IO = HostIO{}
		}, false},
	} {
		host := fullHost()
		c.host(&host)
		io := mustResolve(t, DefaultPolicy(), asksOf(sdb.Device, KeyIOWriteBPS, Limit(mib)), host).IO
		if io.MoreDiskless != host.IO.MoreDiskless || io.NoDisk != c.want || !slices.Equal(io.Diskless, host.IO.Diskless) {
			t.Errorf("%s: no disk %v, diskless %v; want %v, %v", name, io.NoDisk, io.Diskless, c.want, host.IO.Diskless)
		}
	}
}

func TestThePlanSaysWhichWeightsCanBeSet(t *testing.T) {
	host := fullHost()
	if io := mustResolve(t, DefaultPolicy(), Request{}, host).IO; io.Weight || io.WeightDisks != nil || io.Files != nil || io.NoDisk || io.Diskless != nil {
		t.Errorf("plan = %+v, want no weights, and disks", io)
	}
	host.IO.Weight = Mechanism{Name: "io.weight", Enforcer: EnforcerKernel}
	host.IO.WeightDisks, host.IO.Files = []Device{sda.Device}, []string{"io.latency"}
	io := mustResolve(t, DefaultPolicy(), Request{}, host).IO
	if !io.Weight || !slices.Equal(io.WeightDisks, host.IO.WeightDisks) || !slices.Equal(io.Files, host.IO.Files) {
		t.Errorf("plan = %+v, want a weight, also for sda, and io.latency", io)
	}
	host.IO.Weight.Enforcer = EnforcerNone
	if io := mustResolve(t, DefaultPolicy(), Request{}, host).IO; io.Weight {
		t.Error("a weight is planned that the host does not have")
	}
}

// What the report says about a key speaks for all disks: the loosest rate is
// what holds.
func TestTheEntryOfAnIOKey(t *testing.T) {
	const key = KeyIOWriteBPS
	nfs := []Diskless{{Place: "/mnt", Reason: "nfs4 is a network filesystem"}, {Place: "/img", Reason: "loop0 is a file of the host"}}
	onlySDA := func(h *Host) { h.IO.Disks = []BlockDevice{sda} }
	noDisk := func(h *Host) { h.IO.Disks = nil }
	network := func(h *Host) { h.IO.Disks, h.IO.Diskless = nil, nfs }
	unset := byDefault(key, NoLimit())
	for _, c := range []struct {
		name   string
		policy func(*Policy)
		host   func(*Host)
		req    Request
		want   Entry
	}{
		{name: "nobody asks", want: Entry{Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerKernel}},
		{name: "no limit", policy: unset, want: Entry{Value: NoLimit(), Source: SourceDefault, Enforcer: EnforcerKernel}},
		{
			name: "an annotation", req: annotates(key, Limit(mib)),
			want: Entry{Requested: new(Limit(mib)), Value: Limit(mib), Source: SourceAnnotation, Enforcer: EnforcerKernel},
		},
		{
			name: "a rate for the only disk", host: onlySDA, req: asksOf(sda1, key, Limit(mib)),
			want: Entry{Requested: new(Limit(mib)), Value: Limit(mib), Source: SourceSpec, Enforcer: EnforcerKernel},
		},
		{
			name: "lowered on the only disk", host: onlySDA, policy: ceiling(key, Limit(512*mib)), req: asksOf(sda.Device, key, Limit(gib)),
			want: Entry{Requested: new(Limit(gib)), Value: Limit(512 * mib), Source: SourceCeiling, Enforcer: EnforcerKernel},
		},
		{
			name: "less for one of two disks", req: asksOf(sda.Device, key, Limit(mib)),
			want: Entry{Requested: new(Limit(mib)), Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerKernel, Detail: "1MiB on sda from the spec"},
		},
		{
			name: "more for one of two disks", req: asksOf(vda.Device, key, Limit(gib)),
			want: Entry{Requested: new(Limit(gib)), Value: Limit(gib), Source: SourceSpec, Enforcer: EnforcerKernel, Detail: "256MiB on sda from the default"},
		},
		{
			name: "a rate for each", req: Request{Devices: map[Device]Set{sda.Device: {key: Limit(2 * mib)}, vda.Device: {key: Limit(mib)}}},
			want: Entry{Requested: new(Limit(2 * mib)), Value: Limit(2 * mib), Source: SourceSpec, Enforcer: EnforcerKernel, Detail: "1MiB on vda from the spec"},
		},
		{
			name: "less for two of three disks", req: Request{Devices: map[Device]Set{sda.Device: {key: Limit(2 * mib)}, sdb.Device: {key: Limit(mib)}}},
			want: Entry{Requested: new(Limit(2 * mib)), Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerKernel, Detail: "2MiB on sda from the spec; 1MiB on sdb from the spec"},
		},
		{
			name: "a rate for one of two, and no limit for the other", policy: unset, req: asksOf(sda.Device, key, Limit(mib)),
			want: Entry{Requested: new(Limit(mib)), Value: NoLimit(), Source: SourceDefault, Enforcer: EnforcerKernel, Detail: "1MiB on sda from the spec"},
		},
		{
			name: "a rate for the only disk, and no value in the policy", policy: unset, host: onlySDA, req: asksOf(sda.Device, key, Limit(mib)),
			want: Entry{Requested: new(Limit(mib)), Value: Limit(mib), Source: SourceSpec, Enforcer: EnforcerKernel},
		},
		{
			name: "no limit for the only disk", host: onlySDA, req: asksOf(sda.Device, key, NoLimit()),
			want: Entry{Requested: new(NoLimit()), Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerKernel},
		},
		{
			name: "an annotation and a stricter rate for one disk", req: annotated(asksOf(sda.Device, key, Limit(mib)), key, Limit(2*mib)),
			want: Entry{Requested: new(Limit(2 * mib)), Value: Limit(2 * mib), Source: SourceAnnotation, Enforcer: EnforcerKernel, Detail: "1MiB on sda from the spec"},
		},
		{
			name: "some files are not on a disk", host: func(h *Host) { h.IO.Diskless = nfs },
			want: Entry{
				Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerKernel,
				Detail: "not on /mnt: nfs4 is a network filesystem; not on /img: loop0 is a file of the host",
			},
		},
		{
			name: "no file is on a disk that can be limited", host: network,
			want: Entry{
				Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerNone,
				Detail: "not on /mnt: nfs4 is a network filesystem; not on /img: loop0 is a file of the host",
			},
		},
		{name: "and no limit is configured", policy: unset, host: network, want: Entry{Value: NoLimit(), Source: SourceDefault, Enforcer: EnforcerKernel}},
		{
			name: "no file is on a disk", host: noDisk,
			want: Entry{Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerNone, Detail: "none of the container's files is on a disk"},
		},
		{
			name: "no file is on a disk, and the request names one", host: noDisk, req: asksOf(sdb1, key, Limit(mib)),
			want: Entry{Requested: new(Limit(mib)), Value: Limit(mib), Source: SourceSpec, Enforcer: EnforcerKernel},
		},
		{
			name: "the container does not exist yet", host: func(h *Host) { h.IO = HostIO{Unknown: true} },
			want: Entry{Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerKernel},
		},
		{
			name: "no mechanism", host: func(h *Host) { *h = without(*h, "the io controller is off", IOKeys[:]...) }, req: asksOf(sda.Device, key, Limit(mib)),
			want: Entry{Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerNone, Detail: "the io controller is off"},
		},
		{
			name: "no mechanism, and nobody looked for disks", host: func(h *Host) {
				*h = without(*h, "the io controller is off", IOKeys[:]...)
				h.IO = HostIO{}
			},
			want: Entry{Value: Limit(256 * mib), Source: SourceDefault, Enforcer: EnforcerNone, Detail: "the io controller is off"},
		},
		{
			name: "mode off says what would be", policy: func(p *Policy) { p.Mode = ModeOff }, host: onlySDA, req: asksOf(sda1, key, Limit(mib)),
			want: Entry{Requested: new(Limit(mib)), Value: Limit(mib), Source: SourceSpec, Enforcer: EnforcerKernel},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy, host := DefaultPolicy(), fullHost()
			if c.policy != nil {
				c.policy(&policy)
			}
			if c.host != nil {
				c.host(&host)
			}
			c.want.Key, c.want.Dimension = key, IO
			if c.want.Enforcer == EnforcerKernel {
				c.want.Mechanism = "io.max"
			}
			if e := mustResolve(t, policy, c.req, host).Entry(key); !reflect.DeepEqual(e, c.want) {
				t.Errorf("entry\n%+v (asked %s), want\n%+v (asked %s)", e, show(e.Requested), c.want, show(c.want.Requested))
			}
		})
	}
}

func TestKubernetesRefusesARateAboveTheCeiling(t *testing.T) {
	const key = KeyIOReadIOPS
	policy := DefaultPolicy()
	policy.Ceilings[key] = Limit(1000)
	for name, c := range map[string]struct {
		req     Request
		refused string
	}{
		"within":                       {req: asksOf(sda.Device, key, Limit(1000))},
		"no limit":                     {req: asksOf(sda.Device, key, NoLimit())},
		"a device that is not limited": {req: asksOf(loop, key, Limit(1001))},
		"above":                        {asksOf(sda1, key, Limit(1001)), "io_read_iops 1001 of sda from the spec is above the ceiling in the configuration (1000): ask for less, or raise [ceilings] io_read_iops"},
		"above on a disk that only the request names": {asksOf(sdb.Device, key, Limit(1001)), "io_read_iops 1001 of sdb from the spec"},
		"above, with a stricter annotation":           {req: annotated(asksOf(sda.Device, key, Limit(1001)), key, Limit(500))},
		"a forged record of an earlier plan does not help": {func() Request {
			req := asksOf(sda.Device, key, Limit(1001))
			req.Prior = map[Key]Prior{key.On(sda.Device): {Value: Limit(1001), Source: SourceDefault}}
			return req
		}(), "io_read_iops 1001 of sda from the spec"},
	} {
		t.Run(name, func(t *testing.T) {
			c.req.Kubernetes = true
			_, err := Resolve(policy, c.req, fullHost())
			var refusal *RequestError
			switch {
			case c.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.refused != "" && (!errors.As(err, &refusal) || !strings.Contains(err.Error(), c.refused) || refusal.Key != key || refusal.Source != SourceSpec):
				t.Errorf("error = %#v, want a refusal with %q", err, c.refused)
			}
		})
	}
}

func TestStrictModeWithIO(t *testing.T) {
	unset := func(p *Policy) {
		for _, key := range IOKeys {
			p.Defaults[key] = NoLimit()
		}
	}
	for _, c := range []struct {
		name    string
		policy  func(*Policy)
		host    func(*Host)
		req     Request
		refused string
	}{
		{name: "disks that can be limited"},
		{name: "before there is a container", host: func(h *Host) { h.IO = HostIO{Unknown: true} }},
		{name: "nothing of the container is on a disk", host: func(h *Host) { h.IO.Disks = nil }},
		{name: "a place without a disk", host: func(h *Host) { h.IO.Diskless = []Diskless{{"/mnt", "nfs4 is a network filesystem"}} }, refused: "io (not on /mnt: nfs4 is a network filesystem)"},
		{name: "many places without a disk", host: func(h *Host) {
			h.IO.Diskless = []Diskless{{"/a", "nfs"}, {"/z", "zfs"}, {"/b", "nfs"}, {"/c", "nfs"}, {"/d", "nfs"}, {"/e", "nfs"}}
		}, refused: "io (not on /a, /b, /c and 2 more: nfs; not on /z: zfs)"},
		{name: "many reasons", host: func(h *Host) {
			h.IO.MoreDiskless = 7
			for i := range MaxPlaces {
				h.IO.Diskless = append(h.IO.Diskless, Diskless{fmt.Sprintf("/%d", i), fmt.Sprintf("no %d", i)})
			}
		}, refused: "io (not on /0: no 0; not on /1: no 1; not on /2: no 2; not on /3: no 3; not on /4: no 4; and not on 102 more places)"},
		{name: "one more than the reasons that are told", host: func(h *Host) {
			h.IO.Diskless = []Diskless{{"/a", "1"}, {"/b", "2"}, {"/c", "3"}, {"/d", "4"}, {"/e", "5"}, {"/f", "6"}}
		}, refused: "not on /e: 5; and not on 1 more place)"},
		{name: "only places without a disk", host: func(h *Host) { h.IO = HostIO{Diskless: []Diskless{{"/", "9p is a network filesystem"}}} }, refused: "io (not on /: 9p is a network filesystem)"},
		{name: "no mechanism", host: func(h *Host) { *h = without(*h, "the io controller is off", IOKeys[:]...) }, refused: "io (the io controller is off)"},
		{
			name: "no mechanism, so that nobody looked for disks", host: func(h *Host) {
				*h = without(*h, "the io controller is off", IOKeys[:]...)
				h.IO = HostIO{}
			}, refused: "io (the io controller is off)",
		},
		{name: "no mechanism for one key that has a limit", host: func(h *Host) { *h = without(*h, "no such file", KeyIOWriteBPS) }, refused: "io (no such file)"},
		{name: "no mechanism for one key that has no limit", host: func(h *Host) { *h = without(*h, "no such file", KeyIOWriteIOPS) }},
		{name: "no limit in the policy", policy: unset, refused: "io (it has no limit in the configuration)"},
		{name: "a limit on one of two disks is none", policy: unset, req: asksOf(sda.Device, KeyIOReadBPS, Limit(mib)), refused: "io (it has no limit in the configuration)"},
		{name: "a limit of the spec on each disk", policy: unset, req: Request{Devices: map[Device]Set{sda.Device: {KeyIOReadBPS: Limit(mib)}, vda.Device: {KeyIOReadBPS: Limit(mib)}}}},
		{name: "a dropped request is no reason", req: asksOf(gone, KeyIOReadBPS, Limit(mib))},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy, host := DefaultPolicy(), fullHost()
			policy.Mode, policy.StrictRequire = ModeStrict, []Dimension{IO}
			if c.policy != nil {
				c.policy(&policy)
			}
			if c.host != nil {
				c.host(&host)
			}
			_, err := Resolve(policy, c.req, host)
			var missing *UnenforceableError
			switch {
			case c.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.refused != "" && (!errors.As(err, &missing) || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("error = %v, want a refusal with %q", err, c.refused)
			}
			policy.Mode = ModeAuto
			mustResolve(t, policy, c.req, host) // I/O alone never keeps a container from starting
		})
	}
}

func TestTheRecordOfADiskExplainsAndNeverChanges(t *testing.T) {
	const key = KeyIOReadBPS
	asked := new(Limit(4 * gib))
	record := func(name Key, p Prior) map[Key]Prior { return map[Key]Prior{name: p} }
	lowered := Prior{Requested: asked, Value: Limit(gib), Source: SourceCeiling}
	for _, c := range []struct {
		name   string
		policy func(*Policy)
		spec   Value // of sda
		ann    *Value
		prior  map[Key]Prior
		want   string
	}{
		{name: "the value stands as it was set", spec: Limit(gib), prior: record("io_read_bps@8:0", lowered), want: "sda 1GiB ceiling, asked 4GiB"},
		{name: "nobody had asked", spec: Limit(gib), prior: record(key.On(sda.Device), Prior{Value: Limit(gib), Source: SourceDefault}), want: "sda 1GiB default"},
		{name: "somebody changed the field since", spec: Limit(2 * gib), prior: record(key.On(sda.Device), lowered), want: "sda 2GiB spec, asked 2GiB"},
		{name: "the ceiling was lowered since", policy: ceiling(key, Limit(512*mib)), spec: Limit(gib), prior: record(key.On(sda.Device), lowered), want: "sda 512MiB ceiling, asked 1GiB"},
		{name: "the field is gone", spec: NoLimit(), prior: record(key.On(sda.Device), lowered), want: "sda 256MiB default, asked none"},
		{name: "the record of another disk", spec: Limit(gib), prior: record(key.On(vda.Device), lowered), want: "sda 1GiB spec, asked 1GiB"},
		{name: "the record of another key", spec: Limit(gib), prior: record(KeyIOWriteBPS.On(sda.Device), lowered), want: "sda 1GiB spec, asked 1GiB"},
		{name: "a record for all disks", spec: Limit(gib), prior: record(key, lowered), want: "sda 1GiB spec, asked 1GiB"},
		{name: "a source that does not exist", spec: Limit(gib), prior: record(key.On(sda.Device), Prior{Value: Limit(gib), Source: "god"}), want: "sda 1GiB spec, asked 1GiB"},
		{name: "a negative request", spec: Limit(gib), prior: record(key.On(sda.Device), Prior{Requested: new(Limit(-1)), Value: Limit(gib), Source: SourceCeiling}), want: "sda 1GiB spec, asked 1GiB"},
		{
			name: "an annotation does not raise what an earlier plan is said to have set", spec: Limit(gib), ann: new(Limit(2 * gib)),
			prior: record(key.On(sda.Device), lowered), want: "sda 1GiB ceiling, asked 4GiB",
		},
		{name: "a stricter annotation since", spec: Limit(gib), ann: new(Limit(mib)), prior: record(key.On(sda.Device), lowered), want: "sda 1MiB annotation, asked 1MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy, host, req := DefaultPolicy(), fullHost(), asksOf(sda.Device, key, c.spec)
			if c.policy != nil {
				c.policy(&policy)
			}
			if c.ann != nil {
				req.Annotations = Set{key: *c.ann}
			}
			host.IO.Disks, req.Prior = []BlockDevice{sda}, c.prior
			if got := rates(mustResolve(t, policy, req, host), key); !slices.Equal(got, []string{c.want}) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestDeviceNumbers(t *testing.T) {
	for text, want := range map[string]Device{
		"8:0": {8, 0}, "0:0": {}, "259:1048575": {259, 1048575}, "4294967295:4294967295": {math.MaxUint32, math.MaxUint32}, "08:00": {8, 0},
	} {
		if d, ok := ParseDevice(text); !ok || d != want {
			t.Errorf("ParseDevice(%q) = %v, %v, want %v", text, d, ok, want)
		}
	}
	for _, text := range []string{"", ":", "8", "8:", ":0", "8:0:0", "-8:0", "+8:0", "8:-1", "a:b", "8: 0", " 8:0", "8:0\n", "0x8:0", "4294967296:0", "0:4294967296", "1_0:0"} {
		if d, ok := ParseDevice(text); ok || d != (Device{}) {
			t.Errorf("ParseDevice(%q) = %v, want none", text, d)
		}
	}
	if text := (Device{259, 7}).String(); text != "259:7" {
		t.Errorf("String() = %q", text)
	}
	data, err := json.Marshal(map[Device]Device{{8, 16}: {253, 0}})
	if err != nil || string(data) != `{"8:16":"253:0"}` {
		t.Errorf("as JSON %s, %v", data, err)
	}
	var m map[Device]Device
	if err := json.Unmarshal(data, &m); err != nil || m[Device{8, 16}] != (Device{253, 0}) {
		t.Errorf("from JSON %v, %v", m, err)
	}
	var d Device
	if err := json.Unmarshal([]byte(`"sda"`), &d); err == nil || !strings.Contains(err.Error(), `"sda" is no device number: expected MAJOR:MINOR`) {
		t.Errorf("error = %v, want one about sda", err)
	}
}

// Whatever is read as a device number is written as the kernel does, and read
// again as the same.
func FuzzParseDevice(f *testing.F) {
	for _, text := range []string{"8:0", "259:1048575", "", ":", "08:01", "8:0:0", "-1:0", "4294967296:0", "8:0 rbps=1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, ok := ParseDevice(text)
		if !ok {
			if d != (Device{}) {
				t.Errorf("%q is no device and gave %v", text, d)
			}
			return
		}
		var major, minor int64
		if n, err := fmt.Sscanf(d.String()+"\n", "%d:%d\n", &major, &minor); n != 2 || err != nil || d != (Device{major, minor}) {
			t.Errorf("%q became %v, written as %q", text, d, d.String())
		}
		if again, ok := ParseDevice(d.String()); !ok || again != d {
			t.Errorf("%q became %v, and that %v", text, d, again)
		}
	})
}
