package host

import (
	"bytes"
	"math"
)

// systemd looks up who sets the container's limits: the low-level runtime, or
// systemd, and then which version. It is read out of the memory map of the running
// one (proc_pid_maps(5)), since what is installed may be newer, and asking over D-Bus
// takes longer than everything else here. Without root that map cannot be read.
func (p *prober) systemd() {
	if !p.in.Systemd || p.host.CgroupVersion == 0 {
		return
	}
	p.host.Systemd = true
	maps, err := p.fs.ReadFile("/proc/1/maps")
	if err != nil {
		return
	}
	p.host.SystemdVersion = parseSystemdVersion(maps)
}

// parseSystemdVersion returns the version of the systemd whose memory map this is,
// by the name of its private library: .../systemd/libsystemd-shared-257.so, with more
// behind the number on some distributions. 0: this is no systemd, or it has the
// library built in.
func parseSystemdVersion(maps []byte) int {
	_, rest, found := bytes.Cut(maps, []byte("/libsystemd-shared-"))
	if !found {
		return 0
	}
	n := 0
	for _, c := range rest {
		if c < '0' || c > '9' {
			return n
		}
		if n > math.MaxInt16 {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return n
}
