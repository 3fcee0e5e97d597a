package spec_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentbox/agentbox/pkg/limits"
)

// The I/O side of strict_test.go: from outside, without the package's code.

// device is a number as the runtime specification has it.
type device struct{ major, minor int64 }

// ioWords are the words of io.max, with the key that each of them is.
var ioWords = map[string]limits.Key{
	"rbps": limits.KeyIOReadBPS, "wbps": limits.KeyIOWriteBPS, "riops": limits.KeyIOReadIOPS, "wiops": limits.KeyIOWriteIOPS,
}

// rates are the limits of one device, by the word; a missing one is none.
type rates map[string]uint64

// see takes one more limit for a device; the stricter one stays.
func see(all map[device]rates, d device, word string, rate uint64) {
	most := uint64(math.MaxInt64)
	if strings.HasSuffix(word, "iops") {
		most = math.MaxUint32 - 1
	}
	if rate == 0 || rate > most {
		return
	}
	if all[d] == nil {
		all[d] = rates{}
	}
	if have, ok := all[d][word]; !ok || rate < have {
		all[d][word] = rate
	}
}

func throttlesOf(r *specs.LinuxResources) map[string][]specs.LinuxThrottleDevice {
	if r == nil || r.BlockIO == nil {
		return nil
	}
	b := r.BlockIO
	return map[string][]specs.LinuxThrottleDevice{
		"rbps": b.ThrottleReadBpsDevice, "wbps": b.ThrottleWriteBpsDevice, "riops": b.ThrottleReadIOPSDevice, "wiops": b.ThrottleWriteIOPSDevice,
	}
}

// ratesOf is what a specification asks of each device, in its fields and in
// unified["io.max"]. runc writes the latter line by line, and the kernel reads a
// device and its words from each (tg_set_limit in block/blk-throttle.c).
func ratesOf(r *specs.LinuxResources) map[device]rates {
	all := map[device]rates{}
	for word, list := range throttlesOf(r) {
		for _, td := range list {
			see(all, device{td.Major, td.Minor}, word, td.Rate)
		}
	}
	if r == nil {
		return all
	}
	for line := range strings.SplitSeq(r.Unified["io.max"], "\n") {
		words := strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(kernelSpace, c) })
		if len(words) == 0 {
			continue
		}
		var d device
		if n, _ := fmt.Sscanf(words[0], "%d:%d", &d.major, &d.minor); n != 2 {
			continue
		}
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			if rate, err := strconv.ParseUint(value, 10, 64); err == nil {
				see(all, d, name, rate)
			}
		}
	}
	return all
}

// byKernelIO says whether this host can limit a key of io.
func (w world) byKernelIO(key limits.Key) bool {
	return w.host.Mechanisms[key].Enforcer == limits.EnforcerKernel
}

// rate is what a disk is to get when the specification asks for a rate of it; 0
// is none.
func (w world) rate(key limits.Key, disk limits.Device, asked uint64) uint64 {
	if !w.byKernelIO(key) {
		return 0
	}
	value := func(set limits.Set) uint64 {
		if v, ok := set[key]; ok && !v.None {
			return uint64(v.N)
		}
		return math.MaxUint64
	}
	ceiling, rate := value(w.policy.Ceilings), asked
	own := slices.ContainsFunc(w.host.IO.Disks, func(d limits.BlockDevice) bool { return d.Device == disk })
	_, inAnn := w.annotations[key]
	switch {
	case asked == 0 && !own:
		return 0
	case asked == 0 && inAnn:
		rate = value(w.annotations)
	case asked == 0:
		rate = value(w.policy.Defaults)
	case inAnn:
		rate = min(asked, value(w.annotations))
	}
	if rate = min(rate, ceiling); rate == math.MaxUint64 {
		return 0
	}
	return rate
}

// keepsIO says whether an entry "io.*" of the unified map stays on this host.
func (w world) keepsIO(name, text string) bool {
	if !w.byKernelIO(limits.KeyIOReadBPS) || !slices.Contains(w.ioFiles, name) {
		return false
	}
	weight := regexp.MustCompile(`^[ \t\n\v\f\r]*(?:default [ \t\n\v\f\r]*)?([1-9][0-9]{0,4})[ \t\n\v\f\r]*$`).FindStringSubmatch(text)
	most := map[string]int{"io.weight": 10_000, "io.bfq.weight": 1000}[name]
	if most == 0 {
		return name == "io.prio.class" && regexp.MustCompile(`^(no-change|none-to-rt|restrict-to-be|idle)\n?$`).MatchString(text)
	}
	if weight == nil {
		return false
	}
	n, _ := strconv.Atoi(weight[1]) // digits
	return n <= most
}

// unifiedIO returns a unified map without what a plan takes out of its I/O part.
func (w world) unifiedIO(m map[string]string) map[string]string {
	m = maps.Clone(m)
	maps.DeleteFunc(m, func(name, text string) bool { return strings.HasPrefix(name, "io.") && !w.keepsIO(name, text) })
	return m
}

// verifyIO checks that every disk gets exactly what it is to get, that nothing is
// left that would fail, and that what was taken away was said.
func (w world) verifyIO(t *testing.T, before, after *specs.Spec, out *rewritten) {
	t.Helper()
	in, is := resourcesOf(before), resourcesOf(after)
	asked := map[limits.Device]rates{}
	for d, list := range ratesOf(in) {
		found, known := w.devices[limits.Device{Major: d.major, Minor: d.minor}]
		known = known && found.Reason == ""
		for word, rate := range list {
			key := ioWords[word]
			if !known || !w.byKernelIO(key) || bySupervisor(out.plan.Entry(key)) {
				out.mustWarn(t, string(key)+": ", fmt.Sprintf("of device %d:%d from the spec is dropped: ", d.major, d.minor))
				continue
			}
			disk := found.Disk.Device
			if asked[disk] == nil {
				asked[disk] = rates{}
			}
			if have, ok := asked[disk][word]; !ok || rate < have {
				asked[disk][word] = rate
			}
		}
	}
	got := map[limits.Device]rates{}
	for word, list := range throttlesOf(is) {
		for _, td := range list {
			disk := limits.Device{Major: td.Major, Minor: td.Minor}
			if got[disk] == nil {
				got[disk] = rates{}
			}
			if _, again := got[disk][word]; again {
				t.Errorf("%s of %s is set twice", word, disk)
			}
			got[disk][word] = td.Rate
		}
	}
	disks := slices.Collect(maps.Keys(got))
	for _, found := range w.devices {
		disks = append(disks, found.Disk.Device)
	}
	for _, disk := range disks {
		for word, key := range ioWords {
			want, planned := w.rate(key, disk, asked[disk][word]), uint64(0)
			if bySupervisor(out.plan.Entry(key)) {
				want = 0
			}
			for _, p := range out.plan.IO.Disks {
				for _, l := range p.Limits {
					if p.Device == disk && l.Key == key {
						planned = uint64(l.Value.N)
					}
				}
			}
			if rate := got[disk][word]; rate != want || planned != want {
				t.Errorf("%s of %s is %d, the plan says %d, want %d: %d was asked for", word, disk, rate, planned, want, asked[disk][word])
			}
		}
	}
	w.verifyWeights(t, in, is, out)
	if in == nil {
		return
	}
	for name, text := range in.Unified {
		if strings.HasPrefix(name, "io.") && name != "io.max" && !w.keepsIO(name, text) {
			out.mustWarn(t, "io: ", fmt.Sprintf("unified[%.80q] from the spec is dropped: ", name))
		}
	}
}

// mustWarn checks that one of the warnings starts with a text and has another.
func (r *rewritten) mustWarn(t *testing.T, start, part string) {
	t.Helper()
	if !slices.ContainsFunc(r.warnings, func(w string) bool { return strings.HasPrefix(w, start) && strings.Contains(w, part) }) {
		t.Errorf("no warning %q with %q in it among %q", start, part, r.warnings)
	}
}

// verifyWeights checks that weights are those that the files of this host take.
func (w world) verifyWeights(t *testing.T, in, is *specs.LinuxResources, out *rewritten) {
	t.Helper()
	blockIO := func(r *specs.LinuxResources) specs.LinuxBlockIO {
		if r == nil || r.BlockIO == nil {
			return specs.LinuxBlockIO{}
		}
		return *r.BlockIO
	}
	was, now := blockIO(in), blockIO(is)
	number := func(p *uint16) int {
		if p == nil {
			return 0
		}
		return int(*p)
	}
	weighs := w.byKernelIO(limits.KeyIOReadBPS) && w.host.IO.Weight.Enforcer == limits.EnforcerKernel
	switch asked, got := number(was.Weight), number(now.Weight); {
	case asked == 0:
		if got != 0 {
			t.Errorf("weight = %d, nobody asked", got)
		}
	case !weighs:
		if got != 0 {
			t.Errorf("weight = %d, and there is no file for it", got)
		}
		out.mustWarn(t, "io: ", "blockIO.weight from the spec is dropped: ")
	default:
		if want := min(max(asked, 10), 1000); got != want {
			t.Errorf("weight = %d, want %d", got, want)
		} else if asked != want {
			out.mustWarn(t, "io: ", fmt.Sprintf("blockIO.weight %d from the spec is outside", asked))
		}
	}
	if number(now.LeafWeight) != 0 {
		t.Errorf("leafWeight = %d", number(now.LeafWeight))
	} else if number(was.LeafWeight) != 0 {
		out.mustWarn(t, "io: ", "blockIO.leafWeight from the spec is dropped: ")
	}
	var want []specs.LinuxWeightDevice
	for _, wd := range was.WeightDevice {
		d, weight := limits.Device{Major: wd.Major, Minor: wd.Minor}, number(wd.Weight)
		if weight >= 10 && weight <= 1000 && w.byKernelIO(limits.KeyIOReadBPS) && slices.Contains(w.bfq, d) {
			wd.LeafWeight = nil
			want = append(want, wd)
			continue
		}
		out.mustWarn(t, "io: ", fmt.Sprintf("of device %d:%d from the spec is dropped: ", wd.Major, wd.Minor))
	}
	if !reflect.DeepEqual(now.WeightDevice, want) {
		t.Errorf("weightDevice = %+v, want %+v", now.WeightDevice, want)
	}
}

// verifyIOOracle checks that what runc is going to set is the plan.
func verifyIOOracle(t *testing.T, r *cgroups.Resources, plan *limits.Plan) {
	t.Helper()
	for key, list := range map[limits.Key][]*cgroups.ThrottleDevice{
		limits.KeyIOReadBPS: r.BlkioThrottleReadBpsDevice, limits.KeyIOWriteBPS: r.BlkioThrottleWriteBpsDevice,
		limits.KeyIOReadIOPS: r.BlkioThrottleReadIOPSDevice, limits.KeyIOWriteIOPS: r.BlkioThrottleWriteIOPSDevice,
	} {
		var got, want []string
		for _, td := range list {
			got = append(got, td.String())
		}
		for _, disk := range plan.IO.Disks {
			for _, l := range disk.Limits {
				if l.Key == key {
					want = append(want, fmt.Sprintf("%s %d", disk.Device, l.Value.N))
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("runc is going to set %s to %q, the plan says %q", key, got, want)
		}
	}
	if r.BlkioLeafWeight != 0 || !plan.IO.Weight && r.BlkioWeight != 0 {
		t.Errorf("runc is going to set the weight %d and the leaf weight %d, for which there is no file", r.BlkioWeight, r.BlkioLeafWeight)
	}
	for _, wd := range r.BlkioWeightDevice {
		if d := (limits.Device{Major: wd.Major, Minor: wd.Minor}); wd.LeafWeight != 0 || !slices.Contains(plan.IO.WeightDisks, d) {
			t.Errorf("runc is going to set the weight of a device %+v", cmp.Or(wd.WeightString(), wd.LeafWeightString()))
		}
	}
}
