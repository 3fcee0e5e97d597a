package spec

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/agentbox/agentbox/pkg/limits"
)

// throttle is a way to set a rate of one device: a field of
// linux.resources.blockIO (config-linux.md, Block IO), and a word in io.max.
type throttle struct {
	field string
	word  string
	key   limits.Key
}

var throttles = []throttle{
	{"throttleReadBpsDevice", "rbps", limits.KeyIOReadBPS},
	{"throttleWriteBpsDevice", "wbps", limits.KeyIOWriteBPS},
	{"throttleReadIOPSDevice", "riops", limits.KeyIOReadIOPS},
	{"throttleWriteIOPSDevice", "wiops", limits.KeyIOWriteIOPS},
}

// maxOps is the largest number of operations per second that is a limit to the
// kernel.
const maxOps = math.MaxUint32 - 1

const fileIOMax = "io.max"

func (d *Document) readIO(req *limits.Request) error {
	blockIO, err := d.section("linux", "resources", "blockIO")
	if err != nil {
		return err
	}
	if blockIO != nil {
		for _, t := range throttles {
			if err := readThrottles(req, blockIO, t.field, t.key); err != nil {
				return err
			}
		}
		if err := readWeights(req, blockIO); err != nil {
			return err
		}
	}
	for name := range d.unified {
		if strings.HasPrefix(name, "io.") && name != fileIOMax {
			req.IOFiles = append(req.IOFiles, name)
		}
	}
	slices.Sort(req.IOFiles)
	text, ok := d.unified[fileIOMax]
	if !ok {
		return nil
	}
	return readIOMax(req, text)
}

func readThrottles(req *limits.Request, blockIO *object, field string, key limits.Key) error {
	raw, err := blockIO.get(field)
	if err != nil {
		return err
	}
	list, err := elements(blockIO.at(field), raw)
	if err != nil {
		return err
	}
	for i, element := range list {
		o, err := split(fmt.Sprintf("%s[%d]", blockIO.at(field), i), element)
		if err != nil {
			return err
		}
		device, err := o.device()
		if err != nil {
			return err
		}
		raw, err := o.get("rate")
		if err != nil {
			return err
		}
		rate := uint64(0) // a field that is not there, as the low-level runtimes read it
		if raw != nil {
			if rate, err = strconv.ParseUint(string(raw), 10, 64); err != nil {
				return fmt.Errorf("%s is %.40s where a whole number below 2^64 is expected", o.at("rate"), raw)
			}
		}
		askRate(req, device, key, rate)
	}
	return nil
}

// device reads the fields major and minor.
func (o *object) device() (d limits.Device, err error) {
	for name, to := range map[string]*int64{"major": &d.Major, "minor": &d.Minor} {
		if *to, _, err = o.integer(name); err != nil {
			return limits.Device{}, err
		}
	}
	return d, nil
}

// askRate records a rate of one device; 0 is none. Of two, the stricter one.
func askRate(req *limits.Request, device limits.Device, key limits.Key, rate uint64) {
	if req.Devices == nil {
		req.Devices = map[limits.Device]limits.Set{}
	}
	if req.Devices[device] == nil {
		req.Devices[device] = limits.Set{}
	}
	most := uint64(math.MaxInt64)
	if key == limits.KeyIOReadIOPS || key == limits.KeyIOWriteIOPS {
		most = maxOps
	}
	v := limits.NoLimit()
	if rate > 0 && rate <= most {
		v = limits.Limit(int64(rate))
	}
	tighten(req.Devices[device], key, v)
}

// readIOMax reads unified["io.max"]. The kernel takes one device in one write,
// and the low-level runtime writes line by line.
func readIOMax(req *limits.Request, text string) error {
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if !readIOMaxLine(req, line) {
			return fmt.Errorf(`linux.resources.unified["io.max"] is %.80q where one device and its limits are expected, such as "8:0 rbps=1048576 wiops=max"`, text)
		}
	}
	return nil
}

func readIOMaxLine(req *limits.Request, line string) (ok bool) {
	words := strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(kernelSpace, c) })
	if len(words) == 0 {
		return false // which the kernel refuses
	}
	device, ok := parseDevice(words[0])
	if !ok {
		return false
	}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		i := slices.IndexFunc(throttles, func(t throttle) bool { return t.word == name })
		if i < 0 {
			return false
		}
		rate := uint64(0)
		if value != "max" {
			if rate, ok = kernelUint(value); !ok || rate == 0 {
				return false
			}
		}
		askRate(req, device, throttles[i].key, rate)
	}
	return true
}

// parseDevice reads a device number whose parts may be out of range, like those
// of a field.
func parseDevice(text string) (limits.Device, bool) {
	majorText, minorText, _ := strings.Cut(text, ":")
	major, err1 := strconv.ParseInt(majorText, 10, 64)
	minor, err2 := strconv.ParseInt(minorText, 10, 64)
	return limits.Device{Major: major, Minor: minor}, err1 == nil && err2 == nil && !strings.Contains(text, "+")
}

// applyIO sets the planned rates of each disk as fields, which both cgroup
// versions have, and takes away what would keep the container from starting: a
// device that cannot be limited, a file that is not there.
func (d *Document) applyIO(plan *limits.Plan) (warnings []string, err error) {
	blockIO, err := d.section("linux", "resources", "blockIO")
	if err == nil && blockIO == nil && slices.ContainsFunc(plan.IO.Disks, hasLimits) {
		blockIO, err = d.ensureSection("linux", "resources", "blockIO")
	}
	if err != nil {
		return nil, err
	}
	if blockIO != nil {
		for _, t := range throttles {
			setThrottles(blockIO, t.field, t.key, plan.IO.Disks)
		}
		if warnings, err = applyWeight(blockIO, plan.IO); err != nil {
			return nil, err
		}
	}
	unified, err := d.section("linux", "resources", "unified")
	if err != nil || unified == nil {
		return warnings, err
	}
	unified.remove(func(name string) bool {
		if name == fileIOMax {
			return true // its device is among those of the plan, or was dropped with a warning
		}
		reason := ""
		switch {
		case !strings.HasPrefix(name, "io."):
			return false
		case !slices.Contains(plan.IO.Files, name):
			reason = "this host has no such file in the container's cgroup"
		default:
			reason = wrongValue(name, d.unified[name])
		}
		if reason == "" {
			return false
		}
		warnings = append(warnings, fmt.Sprintf("io: linux.resources.unified[%.80q] from the spec is dropped: %s", name, reason))
		return true
	})
	return warnings, nil
}

// ioPrioClasses are the words that every kernel with the file takes (cgroup-v2.rst,
// IO Priority). Linux 6.5 has promote-to-rt besides.
var ioPrioClasses = []string{"no-change", "none-to-rt", "restrict-to-be", "idle"}

// wrongValue says why a value of an io.* file could fail the create; empty when
// the kernel takes it.
func wrongValue(name, text string) string {
	switch name {
	case "io.weight", "io.bfq.weight":
		most := int64(10000)
		if name == "io.bfq.weight" {
			most = 1000
		}
		if !isWeight(text, most) {
			return "it is no weight for all disks"
		}
	case "io.prio.class":
		if !slices.Contains(ioPrioClasses, strings.TrimSuffix(text, "\n")) {
			return "it is none of " + strings.Join(ioPrioClasses, ", ")
		}
	default:
		return "a value that this kernel refuses would keep the container from starting, and this one cannot be checked"
	}
	return ""
}

func hasLimits(p limits.DiskPlan) bool { return len(p.Limits) > 0 }

func setThrottles(blockIO *object, field string, key limits.Key, disks []limits.DiskPlan) {
	var list [][]byte
	for _, disk := range disks {
		for _, limit := range disk.Limits {
			if limit.Key == key {
				list = append(list, fmt.Appendf(nil, `{"major":%d,"minor":%d,"rate":%d}`, disk.Device.Major, disk.Device.Minor, limit.Value.N))
			}
		}
	}
	if list == nil {
		blockIO.remove(func(name string) bool { return name == field })
		return
	}
	blockIO.set(field, joinList(list))
}

// Weights that every file takes: blkio.weight (10 to 1000), io.bfq.weight (1 to
// 1000), and io.weight, to which the low-level runtimes convert.
const (
	minWeight = 10
	maxWeight = 1000
)

// applyWeight keeps the weights of a request that can be set here.
func applyWeight(blockIO *object, plan limits.IOPlan) (warnings []string, err error) {
	drop := func(field, reason string) {
		blockIO.remove(func(name string) bool { return name == field })
		warnings = append(warnings, fmt.Sprintf("io: linux.resources.blockIO.%s from the spec is dropped: %s", field, reason))
	}
	leaf, given, err := blockIO.integer("leafWeight")
	if err != nil {
		return nil, err
	}
	if given && leaf != 0 {
		drop("leafWeight", "no kernel since Linux 5.0 has it")
	}
	weight, _, err := blockIO.integer("weight")
	if err != nil {
		return nil, err
	}
	switch fits := min(max(weight, minWeight), maxWeight); {
	case weight == 0: // not given
	case !plan.Weight:
		drop("weight", "this host has no file for it in the container's cgroup")
	case weight != fits:
		blockIO.setInt("weight", fits)
		warnings = append(warnings, fmt.Sprintf("io: linux.resources.blockIO.weight %d from the spec is outside %d to %d: %d is set", weight, minWeight, maxWeight, fits))
	}
	list, err := weightDevices(blockIO)
	if err != nil || list == nil {
		return warnings, err
	}
	var kept [][]byte
	for _, w := range list {
		switch {
		case w.weight < minWeight || w.weight > maxWeight:
			warnings = append(warnings, fmt.Sprintf("io: the weight %d of device %s from the spec is dropped: it is outside %d to %d", w.weight, w.device, minWeight, maxWeight))
		case !slices.Contains(plan.WeightDisks, w.device):
			warnings = append(warnings, fmt.Sprintf("io: the weight of device %s from the spec is dropped: it is no disk of this host whose I/O scheduler is bfq", w.device))
		default:
			kept = append(kept, fmt.Appendf(nil, `{"major":%d,"minor":%d,"weight":%d}`, w.device.Major, w.device.Minor, w.weight))
		}
	}
	if kept == nil {
		blockIO.remove(func(name string) bool { return name == "weightDevice" })
		return warnings, nil
	}
	blockIO.set("weightDevice", joinList(kept))
	return warnings, nil
}

// deviceWeight is an element of blockIO.weightDevice.
type deviceWeight struct {
	device limits.Device
	weight int64
}

func weightDevices(blockIO *object) ([]deviceWeight, error) {
	raw, err := blockIO.get("weightDevice")
	if err != nil || raw == nil {
		return nil, err
	}
	list, err := elements(blockIO.at("weightDevice"), raw)
	if err != nil {
		return nil, err
	}
	weights := make([]deviceWeight, len(list))
	for i, element := range list {
		o, err := split(fmt.Sprintf("%s[%d]", blockIO.at("weightDevice"), i), element)
		if err != nil {
			return nil, err
		}
		if weights[i].device, err = o.device(); err != nil {
			return nil, err
		}
		if weights[i].weight, _, err = o.integer("weight"); err != nil {
			return nil, err
		}
	}
	return weights, nil
}

// readWeights records which weights the document wants: whether any for all
// disks, and for which disks one apart.
func readWeights(req *limits.Request, blockIO *object) error {
	weight, _, err := blockIO.integer("weight")
	if err != nil {
		return err
	}
	req.IOWeight = weight != 0
	list, err := weightDevices(blockIO)
	if err != nil {
		return err
	}
	for _, w := range list {
		req.IOWeightDevices = append(req.IOWeightDevices, w.device)
	}
	return nil
}

// isWeight reports whether a text is what io.weight and io.bfq.weight take for
// all devices together (cgroup-v2.rst, IO Interface Files).
func isWeight(text string, most int64) bool {
	text = strings.Trim(text, kernelSpace)
	if rest, ok := strings.CutPrefix(text, "default "); ok {
		text = strings.Trim(rest, kernelSpace)
	}
	n, ok := kernelNumber(text)
	return ok && n >= 1 && n <= most
}
