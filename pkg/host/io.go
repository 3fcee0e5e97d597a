package host

import (
	"path"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/blockdev"
	"github.com/agentbox/agentbox/pkg/limits"
)

// diskFinder is blockdev.Finder.
type diskFinder interface {
	Behind(path string) blockdev.Backing
	Below(path string) []blockdev.Submount
	Mounted(fstype, source string) blockdev.Backing
	Devices() ([]limits.Device, error)
	Whole(d limits.Device) (blockdev.Disk, string)
	Node(path string) (blockdev.Disk, string)
	Scheduler(d limits.Device) string
}

// io finds the disks behind the container's files, and those that its request
// names. Where nothing can limit them anyway, they are not looked for, and it
// must not look as if there were none: a container without disks is fine in
// strict mode.
func (p *prober) io() {
	io, req := &p.host.IO, p.in.Request
	if req == nil || p.host.Mechanisms[limits.KeyIOReadBPS].Enforcer != limits.EnforcerKernel {
		io.Unknown = true
		return
	}
	found := &diskSet{at: map[limits.Device]int{}, placed: map[placed]bool{}}
	if len(p.in.IODevices) > 0 {
		for _, path := range p.in.IODevices {
			disk, reason := p.disks.Node(path)
			if reason != "" {
				p.diskless(path+" (io_device)", reason)
				continue
			}
			found.add(disk, path, "", "")
		}
	} else {
		p.findDisks(found)
	}
	io.Disks = found.list
	if len(req.Devices) == 0 {
		return
	}
	io.Asked = make(map[limits.Device]limits.AskedDisk, len(req.Devices))
	for device := range req.Devices {
		disk, reason := p.disks.Whole(device)
		io.Asked[device] = limits.AskedDisk{
			Disk:   limits.BlockDevice{Device: disk.Device, Name: disk.Name, Places: []string{"device " + device.String() + " of the spec"}},
			Reason: reason,
		}
	}
}

func (p *prober) findDisks(found *diskSet) {
	req := p.in.Request
	for _, place := range req.Places {
		p.place(found, place.Path, place.Writable, p.backing(place))
		if !place.Recursive {
			continue
		}
		for _, sub := range p.disks.Below(place.Source) {
			p.place(found, path.Join(place.Path, sub.Path), !sub.ReadOnly && !place.RecursiveReadOnly, sub.Backing)
		}
	}
	named := make(map[limits.Device]bool, len(req.RawDisks))
	for _, raw := range req.RawDisks {
		named[raw.Device] = true
		p.rawDisk(found, raw.Path, raw.Device)
	}
	for _, device := range p.openable(req.DeviceRules) {
		if !named[device] {
			p.rawDisk(found, "device "+device.String(), device)
		}
	}
}

func (p *prober) backing(place limits.Place) blockdev.Backing {
	if place.Type != "" {
		return p.disks.Mounted(place.Type, place.Source)
	}
	return p.disks.Behind(place.Source)
}

// place records what is behind a place of the container.
func (p *prober) place(found *diskSet, where string, writable bool, b blockdev.Backing) {
	for _, disk := range b.Disks {
		found.add(disk, where, b.Filesystem, p.counted(b))
	}
	for _, disk := range b.Lower {
		found.add(disk, where, "", onlyReads)
	}
	// What a container only reads is somebody else's, and often on a network.
	if b.Reason != "" && writable {
		p.diskless(where, b.Reason)
	}
}

func (p *prober) rawDisk(found *diskSet, where string, device limits.Device) {
	disk, reason := p.disks.Whole(device)
	if reason != "" {
		p.diskless(where, reason)
		return
	}
	found.add(disk, where, "", "")
}

func (p *prober) diskless(where, reason string) {
	io := &p.host.IO
	if len(io.Diskless) == limits.MaxPlaces {
		io.MoreDiskless++
		return
	}
	io.Diskless = append(io.Diskless, limits.Diskless{Place: where, Reason: reason})
}

// openable returns the block devices that rules let a container open: those that
// they name, and of those that they leave open, all that are there. A privileged
// container has a rule that leaves everything open.
func (p *prober) openable(rules []limits.DeviceRule) []limits.Device {
	var devices []limits.Device
	open := false
	for _, rule := range rules {
		switch d := rule.Device; {
		case !rule.Allow:
		case d.Major == limits.AnyNumber || d.Minor == limits.AnyNumber:
			open = true
		default:
			devices = append(devices, d)
		}
	}
	if open {
		all, err := p.disks.Devices()
		if err != nil {
			p.diskless("block devices that the container may open", err.Error())
		}
		devices = append(devices, all...)
	}
	allowed := ruled(rules)
	seen := make(map[limits.Device]bool, len(devices))
	return slices.DeleteFunc(devices, func(d limits.Device) bool {
		again := seen[d]
		seen[d] = true
		return again || !allowed(d)
	})
}

// ruled returns what reports whether a device may be opened: the last rule about
// it decides. Rules may be many, and only those that leave a number open have to
// be gone through.
func ruled(rules []limits.DeviceRule) func(limits.Device) bool {
	exact := map[limits.Device]int{}
	wide := map[limits.DeviceRule]int{}
	for i, rule := range rules {
		if rule.Device.Major == limits.AnyNumber || rule.Device.Minor == limits.AnyNumber {
			wide[rule] = i + 1
			continue
		}
		exact[rule.Device] = i + 1
	}
	return func(d limits.Device) bool {
		last := exact[d]
		for _, pattern := range [...]limits.Device{
			{Major: limits.AnyNumber, Minor: limits.AnyNumber}, {Major: d.Major, Minor: limits.AnyNumber}, {Major: limits.AnyNumber, Minor: d.Minor},
		} {
			last = max(last, wide[limits.DeviceRule{Allow: true, Device: pattern}], wide[limits.DeviceRule{Device: pattern}])
		}
		return last > 0 && rules[last-1].Allow
	}
}

// diskSet collects disks, each with all that was found on it.
type diskSet struct {
	list   []limits.BlockDevice
	at     map[limits.Device]int // index in list
	placed map[placed]bool
}

// placed says that a disk has a place.
type placed struct {
	disk  limits.Device
	place string
}

func (s *diskSet) add(disk blockdev.Disk, place, filesystem, counted string) {
	i, ok := s.at[disk.Device]
	if !ok {
		i = len(s.list)
		s.at[disk.Device] = i
		s.list = append(s.list, limits.BlockDevice{Device: disk.Device, Name: disk.Name})
	}
	b := &s.list[i]
	if key := (placed{disk.Device, place}); !s.placed[key] {
		s.placed[key] = true
		if len(b.Places) < limits.MaxPlaces {
			b.Places = append(b.Places, place)
		} else {
			b.MorePlaces++
		}
	}
	join(&b.Filesystem, filesystem, ", ")
	// A layer that is only read adds nothing to what is known of the disk.
	switch {
	case b.Counted == onlyReads && counted != "":
		b.Counted = counted
	case counted != onlyReads || b.Counted == "":
		join(&b.Counted, counted, "; ")
	}
}

// onlyReads is what is counted on the disk of an overlay's lower layer.
const onlyReads = "reads, of a layer that takes no writes"

// join appends a text that is not there yet.
func join(list *string, text, separator string) {
	switch {
	case text == "" || slices.Contains(strings.Split(*list, separator), text):
	case *list == "":
		*list = text
	default:
		*list += separator + text
	}
}

// counted says which I/O the kernel counts for the cgroup of a process.
//
// Whoever hands a request to the disk pays for it: reads, direct writes, and what
// fsync flushes are the process's own. What stays in the page cache is written
// back later by a kernel thread. Only file systems with cgroup writeback know
// then whose it was, and only when the memory and io controllers are on the same
// v2 hierarchy (cgroup-v2.rst, Writeback; cgroup-v1/blkio-controller.rst).
// ext4 with data=journal has neither direct writes nor cgroup writeback.
func (p *prober) counted(b blockdev.Backing) string {
	const (
		all     = "reads and all writes (buffered, fsync, direct)"
		flushed = "reads, direct writes and what fsync flushes, but not what the kernel writes back later"
	)
	journal := b.Filesystem == "ext4" && slices.Contains(strings.Split(b.Options, ","), "data=journal")
	switch {
	case b.Filesystem == "":
		return ""
	case journal:
		return "reads and what fsync flushes, on ext4 with data=journal, but not what the kernel writes back later"
	case p.host.CgroupVersion == 1:
		return flushed + " on cgroup v1"
	case p.host.Mechanisms[limits.KeyMemory].Enforcer != limits.EnforcerKernel:
		// Where an ancestor has the controller, writeback is counted for that one.
		return "reads and direct writes, but no other writes, without the memory controller"
	}
	switch b.Filesystem {
	case "btrfs", "ext2", "ext3", "ext4", "f2fs":
		return all
	case "xfs":
		if p.release().atLeast(5, 3) {
			return all
		}
		return flushed + " on xfs before Linux 5.3"
	}
	return flushed + " on " + b.Filesystem
}

// weightsV2 looks for the files of an I/O weight, which come with the schedulers
// bfq and iocost, only if the request has a weight (cgroup-v2.rst, IO Interface
// Files; Documentation/block/bfq-iosched.rst).
func (p *prober) weightsV2(witness string) {
	req := p.in.Request
	if req == nil || !req.IOWeight && len(req.IOWeightDevices) == 0 && len(req.IOFiles) == 0 {
		return
	}
	const bfq = "io.bfq.weight"
	has := func(file string) bool { return p.look(witness, file) == yes }
	for _, file := range req.IOFiles {
		if has(file) {
			p.host.IO.Files = append(p.host.IO.Files, file)
		}
	}
	p.host.IO.Weight = mechanism("io.weight", "no cgroup here has io.weight or "+bfq)
	if has(bfq) || has("io.weight") {
		p.host.IO.Weight = mechanism("io.weight", "")
	}
	if has(bfq) {
		p.weightDisks()
	}
}

// weightsV1 is weightsV2 for cgroup v1. The weight of bfq is in every cgroup but
// the root; its counters are in the root too. The low-level runtime prefers the
// files of cfq, the scheduler before Linux 5.0, whose weights for single devices
// bfq does not take.
func (p *prober) weightsV1(folder string) {
	req := p.in.Request
	if req == nil || !req.IOWeight && len(req.IOWeightDevices) == 0 {
		return
	}
	const file, bfq = "blkio.weight", "blkio.bfq.weight"
	hasCFQ := p.has(folder + "/" + file)
	hasBFQ := p.has(folder+"/"+bfq) || p.has(folder+"/blkio.bfq.io_service_bytes")
	if !hasCFQ && !hasBFQ {
		p.host.IO.Weight = mechanism(file, folder+" has neither "+file+" nor "+bfq)
		return
	}
	p.host.IO.Weight = mechanism(file, "")
	if hasBFQ && !hasCFQ {
		p.weightDisks()
	}
}

// weightDisks keeps those of the request's devices that bfq schedules: the kernel
// refuses a weight for any other, and before Linux 5.4 for all.
func (p *prober) weightDisks() {
	if !p.release().atLeast(5, 4) {
		return
	}
	for _, device := range p.in.Request.IOWeightDevices {
		if slices.Contains(p.host.IO.WeightDisks, device) {
			continue // which is there as often as the specification has it
		}
		if disk, reason := p.disks.Whole(device); reason == "" && disk.Device == device && p.disks.Scheduler(device) == "bfq" {
			p.host.IO.WeightDisks = append(p.host.IO.WeightDisks, device)
		}
	}
}
