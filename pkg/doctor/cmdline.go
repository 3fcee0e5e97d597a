package doctor

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// word returns the last word of the kernel's command line that gives a
// parameter, with its value.
func (k Kernel) word(parameter string) (word, value string, ok bool) {
	for w := range strings.FieldsSeq(k.Cmdline) {
		if v, found := strings.CutPrefix(w, parameter+"="); found {
			word, value, ok = w, v, true
		}
	}
	return word, value, ok
}

// disabledBy returns the word of the command line that switches a controller
// off: cgroup_disable=, with one name or several, those of cgroup v1 or v2
// (Documentation/admin-guide/kernel-parameters.txt).
func (k Kernel) disabledBy(controller string) (word string, ok bool) {
	for w := range strings.FieldsSeq(k.Cmdline) {
		list, found := strings.CutPrefix(w, "cgroup_disable=")
		if !found {
			continue
		}
		names := strings.Split(list, ",")
		if slices.Contains(names, controller) || slices.Contains(names, nameV1(controller)) {
			return w, true
		}
	}
	return "", false
}

// nameV1 returns the name that a controller of cgroup v2 has on v1.
func nameV1(controller string) string {
	if controller == "io" {
		return "blkio"
	}
	return controller
}

// parseControllers reads /proc/cgroups. A line that is none of a controller is
// left out.
func parseControllers(data []byte) map[string]Controller {
	all := map[string]Controller{}
	for line := range bytes.Lines(data) {
		// "memory	9	105	1": name, hierarchy, number of cgroups, enabled
		fields := strings.Fields(string(line))
		if len(fields) != 4 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		hierarchy, err := strconv.ParseUint(fields[1], 10, 31)
		if err != nil {
			continue
		}
		all[fields[0]] = Controller{Hierarchy: int(hierarchy), Enabled: fields[3] != "0"}
	}
	return all
}

// parseSwaps adds up the sizes in /proc/swaps (proc_swaps(5)), in bytes.
func parseSwaps(data []byte) int64 {
	total := int64(0)
	for line := range bytes.Lines(data) {
		// "/dev/sda2 partition 262140 0 -2": the size is in KiB
		fields := strings.Fields(string(line))
		if len(fields) != 5 {
			continue
		}
		if kib, err := strconv.ParseUint(fields[2], 10, 40); err == nil {
			total += int64(kib) << 10
		}
	}
	return total
}

// knows reports whether /proc/filesystems lists a type (proc_filesystems(5)).
func knows(data []byte, fstype string) bool {
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) > 0 && fields[len(fields)-1] == fstype {
			return true
		}
	}
	return false
}
