package blockdev

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/moby/sys/mountinfo"
)

// mount returns the mount that a file is on. Where its id is not known, or not
// shown (it belongs to another mount namespace, or lies outside of a chroot),
// any mount with its device number will do: type, source and options of the
// super block are the same for all.
func (f Finder) mount(st Stat) (*mountinfo.Info, error) {
	data, err := f.mountinfo()
	if err != nil {
		return nil, fmt.Errorf("the mounts cannot be read: %w", err)
	}
	line := selectMount(data, st)
	if line == nil {
		return nil, fmt.Errorf("/proc/self/mountinfo has neither a mount %d nor one of the filesystem %s", st.Mount, st.Device)
	}
	mounts, err := mountinfo.GetMountsFromReader(bytes.NewReader(line), nil)
	if err != nil {
		return nil, fmt.Errorf("/proc/self/mountinfo: %w", err)
	}
	if len(mounts) != 1 {
		return nil, fmt.Errorf("/proc/self/mountinfo: %d mounts in the line %q", len(mounts), line)
	}
	return mounts[0], nil
}

// selectMount returns the line of mountinfo that describes a mount. Lines that
// are not wanted are not parsed: a host of many containers has thousands.
func selectMount(data []byte, st Stat) []byte {
	if st.Mount != 0 {
		if line := lineWith(data, 0, strconv.FormatUint(st.Mount, 10)); line != nil {
			return line
		}
	}
	return lineWith(data, 2, st.Device.String())
}

// lineWith returns the first line with this text in the field with this index;
// nil if there is none.
func lineWith(data []byte, index int, text string) []byte {
	want := []byte(text + " ")
	for line := range bytes.Lines(data) {
		rest := line
		for range index {
			_, rest, _ = bytes.Cut(rest, []byte(" "))
		}
		if bytes.HasPrefix(rest, want) {
			return line
		}
	}
	return nil
}
