package limits

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// IOKeys are the keys of the io dimension, each a rate of one disk.
var IOKeys = [...]Key{KeyIOReadBPS, KeyIOWriteBPS, KeyIOReadIOPS, KeyIOWriteIOPS}

// The smallest rates that a policy or an annotation may set. A process that
// waits for its turn at a disk cannot be killed meanwhile: at a few bytes per
// second a container could neither start nor end.
const (
	MinIOBytes = 64 << 10 // bytes per second
	MinIOOps   = 10       // operations per second
)

// Device is the number of a block device. The zero value is none. The parts are
// as wide as in the runtime specification: one below 0 or above 2^32 is the
// number of a device that does not exist.
type Device struct{ Major, Minor int64 }

// String writes the number as the kernel does: "8:0".
func (d Device) String() string {
	return strconv.FormatInt(d.Major, 10) + ":" + strconv.FormatInt(d.Minor, 10)
}

// ParseDevice reads "8:0", as the kernel writes it: parts below 2^32.
func ParseDevice(text string) (Device, bool) {
	majorText, minorText, ok := strings.Cut(text, ":")
	major, err1 := strconv.ParseUint(majorText, 10, 32)
	minor, err2 := strconv.ParseUint(minorText, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return Device{}, false
	}
	return Device{Major: int64(major), Minor: int64(minor)}, true
}

// MarshalText is String.
func (d Device) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDevice.
func (d *Device) UnmarshalText(text []byte) error {
	parsed, ok := ParseDevice(string(text))
	if !ok {
		return fmt.Errorf("%.40q is no device number: expected MAJOR:MINOR", text)
	}
	*d = parsed
	return nil
}

func (d Device) compare(other Device) int {
	return cmp.Or(cmp.Compare(d.Major, other.Major), cmp.Compare(d.Minor, other.Minor))
}

// BlockDevice is one whose I/O the kernel can limit for each cgroup: a whole
// disk, never a partition.
type BlockDevice struct {
	Device Device `json:"device"`
	Name   string `json:"name"` // the kernel's: "vda", "dm-0"
	// Places are the container's paths whose files are on it; for a disk that
	// the policy or the request names, how it is named there. Of many, the first
	// MaxPlaces; MorePlaces is how many there are besides.
	Places     []string `json:"places,omitempty"`
	MorePlaces int      `json:"more_places,omitempty"`
	// Filesystem is the type of the one that takes the container's writes
	// there; several have a comma between. Empty: not known.
	Filesystem string `json:"filesystem,omitempty"`
	// Counted says, for a person, which reads and writes the kernel counts for
	// the container on that file system.
	Counted string `json:"counted,omitempty"`
}

// MaxPlaces is how many places are listed for one disk, and how many that no
// disk limit reaches. The rest is only counted: a specification may have any
// number of mounts, and a report is read by people.
const MaxPlaces = 100

// Diskless is a place of a container whose I/O no disk limit can reach.
type Diskless struct {
	Place  string `json:"place"`  // path in the container
	Reason string `json:"reason"` // for a person: "nfs4 is a network filesystem"
}

// HostIO is what this machine can do about a container's I/O, beyond the
// Mechanisms of the io keys.
type HostIO struct {
	// Disks are behind the container's files, or named by the policy instead.
	Disks []BlockDevice
	// Unknown says that nobody has looked for disks: the container does not exist
	// yet, or nothing here could limit them.
	Unknown bool
	// Diskless has the first MaxPlaces, MoreDiskless counts those besides.
	Diskless     []Diskless
	MoreDiskless int

	// Asked has, for each device that the request names, the disk that limits
	// it, or why there is none.
	Asked map[Device]AskedDisk

	// Weight is the file of the cgroup for an I/O weight, and WeightDisks those
	// for whose number it can be set apart.
	Weight      Mechanism
	WeightDisks []Device
	// Files lists files named "io.*" that a cgroup has here, among those that
	// the request wants written.
	Files []string
}

// AskedDisk is what a device number of a request leads to.
type AskedDisk struct {
	Disk   BlockDevice
	Reason string // why there is no disk; empty: there is
}

// DiskPlan is what one disk gives a container.
type DiskPlan struct {
	BlockDevice
	Limits []DiskLimit `json:"limits,omitempty"` // in the order of IOKeys, without keys that have no limit
	// Asked says that only the request names the disk: none of the container's
	// files is known to be there, and a key without a limit is no hole.
	Asked bool `json:"asked,omitempty"`
}

// DiskLimit is one planned rate of a disk.
type DiskLimit struct {
	Key       Key    `json:"key"`
	Requested *Value `json:"requested,omitempty"` // what the container asked for; nil: nothing
	Value     Value  `json:"value"`
	Source    Source `json:"source"`
}

// IOPlan is what a plan says about I/O beyond the entries of the io keys.
type IOPlan struct {
	Disks []DiskPlan `json:"disks,omitempty"` // sorted by device
	// Diskless are places that no disk limit reaches: the first MaxPlaces, and
	// how many there are besides. NoDisk says that there is neither such a place
	// nor a disk, so that there is nothing to limit.
	Diskless     []Diskless `json:"diskless,omitempty"`
	MoreDiskless int        `json:"more_diskless,omitempty"`
	NoDisk       bool       `json:"no_disk,omitempty"`
	// Weight says that a weight of the request can be set, WeightDisks for
	// which disks apart, and Files which other io.* files it may write.
	Weight      bool     `json:"weight,omitempty"`
	WeightDisks []Device `json:"weight_disks,omitempty"`
	Files       []string `json:"files,omitempty"`
}

// limit returns the limit of a key; nil when there is none.
func (p *DiskPlan) limit(key Key) *DiskLimit {
	for i := range p.Limits {
		if p.Limits[i].Key == key {
			return &p.Limits[i]
		}
	}
	return nil
}

// On returns the name under which Request.Prior has the rate of one disk.
func (k Key) On(d Device) Key { return k + Key("@"+d.String()) }

// disks plans the rates of each disk: the request for that disk, else the value
// of the key, both within the ceiling. What a request asks of a device that
// cannot be limited is dropped and said: I/O never keeps a container from
// starting.
func (r *resolver) disks() error {
	host, p := &r.host.IO, &r.plan.IO
	*p = IOPlan{
		Diskless:     host.Diskless,
		MoreDiskless: host.MoreDiskless,
		NoDisk:       r.looked() && len(host.Disks)+len(host.Diskless) == 0,
		Weight:       host.Weight.Enforcer == EnforcerKernel,
		WeightDisks:  host.WeightDisks,
		Files:        host.Files,
	}
	asked := r.askedDisks()
	for _, disk := range host.Disks {
		p.Disks = append(p.Disks, DiskPlan{BlockDevice: disk})
	}
	for device, a := range asked {
		if !r.behind(device) {
			p.Disks = append(p.Disks, DiskPlan{BlockDevice: a.BlockDevice, Asked: true})
		}
	}
	slices.SortFunc(p.Disks, func(a, b DiskPlan) int { return a.Device.compare(b.Device) })
	for i := range p.Disks {
		if err := r.diskLimits(&p.Disks[i], asked[p.Disks[i].Device].rates); err != nil {
			return err
		}
	}
	p.Disks = slices.DeleteFunc(p.Disks, func(disk DiskPlan) bool { return len(disk.Limits) == 0 && disk.Asked })
	for _, key := range IOKeys {
		r.ioEntry(r.plan.entry(key))
	}
	return nil
}

// looked reports whether the disks behind the container's files were looked for.
// Nobody does where nothing limits them.
func (r *resolver) looked() bool {
	return !r.host.IO.Unknown && !slices.ContainsFunc(IOKeys[:], func(key Key) bool { return r.mechanismMissing(key) != "" })
}

// ioMissing says why the kernel does not limit an io key disk by disk; "" when it
// does.
func (r *resolver) ioMissing(key Key) string {
	if r.plan.Entry(key).BySupervisor() {
		return "the supervisor limits all disks together"
	}
	return r.mechanismMissing(key)
}

func (r *resolver) mechanismMissing(key Key) string {
	m := r.host.Mechanisms[key]
	if m.Enforcer == EnforcerKernel {
		return ""
	}
	return cmp.Or(m.Reason, "nothing here limits it")
}

// behind reports whether the policy's rates hold for a disk: files of the
// container are on it, or the policy names it.
func (r *resolver) behind(disk Device) bool {
	return slices.ContainsFunc(r.host.IO.Disks, func(d BlockDevice) bool { return d.Device == disk })
}

// askedDisk is a disk that the request names, and the rates that it wants there.
type askedDisk struct {
	BlockDevice
	rates Set
}

// askedDisks returns what the request wants, by the disk that limits it. Of two
// rates for one disk, the stricter one counts.
func (r *resolver) askedDisks() map[Device]askedDisk {
	asked := map[Device]askedDisk{}
	for _, device := range slices.SortedFunc(maps.Keys(r.req.Devices), Device.compare) {
		rates := r.askedOf(device)
		if len(rates) == 0 {
			continue
		}
		disk := r.host.IO.Asked[device].Disk
		before := asked[disk.Device]
		disk.Places = slices.Concat(before.Places, disk.Places)
		for key, v := range before.rates {
			if other, ok := rates[key]; ok {
				v = v.Tighten(other)
			}
			rates[key] = v
		}
		asked[disk.Device] = askedDisk{disk, rates}
	}
	return asked
}

// askedOf returns the rates that the request wants of one device and that can be
// limited, and says which ones cannot.
func (r *resolver) askedOf(device Device) Set {
	to, known := r.host.IO.Asked[device]
	lost := to.Reason
	if !known {
		lost = "this host does not know it"
	}
	rates := Set{}
	for _, key := range IOKeys {
		v, given := r.req.Devices[device][key]
		if !given {
			continue
		}
		reason := cmp.Or(r.ioMissing(key), lost)
		if reason == "" {
			rates[key] = v
			continue
		}
		if info, _ := key.Info(); !v.None {
			r.warnf("%s: %s of device %s from the spec is dropped: %s", key, info.String(v), device, reason)
		}
	}
	return rates
}

// diskLimits decides the rates of one disk.
func (r *resolver) diskLimits(p *DiskPlan, asked Set) error {
	for _, key := range IOKeys {
		if r.ioMissing(key) != "" {
			continue
		}
		limit, err := r.diskLimit(key, p.BlockDevice, asked)
		if err != nil {
			return err
		}
		if !limit.Value.None {
			p.Limits = append(p.Limits, limit)
		}
	}
	return nil
}

// diskLimit decides one rate of one disk. One that only the request names gets
// what the request asks and no more.
func (r *resolver) diskLimit(key Key, disk BlockDevice, asked Set) (DiskLimit, error) {
	info, _ := key.Info() // an IOKey is a key
	general := r.plan.Entry(key)
	limit := DiskLimit{Key: key, Requested: general.Requested, Value: general.Value, Source: general.Source}
	spec, given := asked[key]
	if !given || spec.None {
		switch {
		case !r.behind(disk.Device):
			limit.Value = NoLimit()
		case given && limit.Requested == nil && !limit.Value.None:
			limit.Requested = &spec
			r.warnf("%s: no limit of %s in the spec lowered to %s, the %s", key, disk.Name, info.String(limit.Value), limit.Source)
		}
		return limit, nil
	}
	ann, inAnn := r.req.Annotations[key]
	if !inAnn || ann.looser(spec) {
		limit = DiskLimit{Key: key, Requested: &spec, Value: spec, Source: SourceSpec}
	}
	if inAnn && ann.looser(spec) {
		r.warnf("%s: %s from the annotation allows more than %s of %s from the spec: the stricter one wins",
			key, info.String(ann), info.String(spec), disk.Name)
	}
	if ceiling, _ := r.ceilingOf(key); limit.Value.looser(ceiling) {
		if r.req.Kubernetes {
			return DiskLimit{}, &RequestError{Key: key, Source: SourceSpec, Text: fmt.Sprintf(
				"%s %s of %s from the spec is above the ceiling in the configuration (%s): ask for less, or raise [ceilings] %s",
				key, info.String(spec), disk.Name, info.String(ceiling), key)}
		}
		r.warnf("%s: %s of %s from the spec lowered to %s, the ceiling in the configuration", key, info.String(spec), disk.Name, info.String(ceiling))
		limit.Value, limit.Source = ceiling, SourceCeiling
	}
	if prior, ok := r.recalled(key.On(disk.Device), spec, limit.Value); ok {
		limit.Requested, limit.Source = prior.Requested, prior.Source
	}
	return limit, nil
}

// ioEntry makes the entry of a key speak for the container's disks together:
// what holds is the loosest of their rates.
func (r *resolver) ioEntry(e *Entry) {
	if e.Enforcer != EnforcerKernel || r.host.IO.Unknown {
		return
	}
	var loosest *DiskLimit
	var asked *Value
	unlimited := false
	for _, p := range r.plan.IO.Disks {
		limit := p.limit(e.Key)
		if limit == nil {
			unlimited = unlimited || !p.Asked
			continue
		}
		if loosest == nil || limit.Value.looser(loosest.Value) {
			loosest = limit
		}
		if limit.Requested != nil && (asked == nil || limit.Requested.looser(*asked)) {
			asked = limit.Requested
		}
	}
	if loosest != nil && !unlimited {
		e.Requested, e.Value, e.Source = loosest.Requested, loosest.Value, loosest.Source
	}
	if e.Requested == nil {
		e.Requested = asked
	}
	info, _ := e.Key.Info()
	for _, p := range r.plan.IO.Disks {
		if limit := p.limit(e.Key); limit != nil && limit.Value != e.Value {
			e.appendDetail(fmt.Sprintf("%s on %s from the %s", info.String(limit.Value), p.Name, limit.Source))
		}
	}
	if e.Value.None {
		return
	}
	for _, text := range notOn(r.host.IO.Diskless, r.host.IO.MoreDiskless) {
		e.appendDetail(text)
	}
	if loosest != nil {
		return
	}
	e.Enforcer, e.Mechanism = EnforcerNone, ""
	if r.plan.IO.NoDisk {
		e.appendDetail("none of the container's files is on a disk")
	}
}

// notOn says for a person which places no limit reaches: a sentence for each of
// the first reasons, with the first of its places, and how many are not told.
func notOn(places []Diskless, more int) []string {
	const named, reasons = 3, 5
	groups := map[string][]string{}
	var order []string
	for _, d := range places {
		if groups[d.Reason] == nil {
			order = append(order, d.Reason)
		}
		groups[d.Reason] = append(groups[d.Reason], d.Place)
	}
	var texts []string
	for i, reason := range order {
		same := groups[reason]
		if i >= reasons {
			more += len(same)
			continue
		}
		where := strings.Join(same[:min(named, len(same))], ", ")
		if rest := len(same) - named; rest > 0 {
			where += fmt.Sprintf(" and %d more", rest)
		}
		texts = append(texts, "not on "+where+": "+reason)
	}
	switch {
	case more == 1:
		texts = append(texts, "and not on 1 more place")
	case more > 1:
		texts = append(texts, fmt.Sprintf("and not on %d more places", more))
	}
	return texts
}
