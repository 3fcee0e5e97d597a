package host

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentbox/agentbox/pkg/cgroup"
)

// Place returns the folder, below the mount point of cgroup v2, in which the
// low-level runtime with this effective user id will create the container's
// cgroup: the folder of that cgroup, where the specification names it, else the
// one above it. It need not exist.
func Place(f cgroup.FS, in Input, euid int) string {
	p := prober{fs: f, in: in, euid: euid}
	return p.placeV2()
}

// placeV2 is the intended folder on cgroup v2.
func (p *prober) placeV2() string {
	return p.intended(func() string { return path.Dir(p.ownCgroup("")) })
}

// intended returns the folder, below the mount point of a hierarchy, in which
// the low-level runtime will create the container's cgroup, as far as it is
// known before the create: with an empty cgroupsPath the last part is the
// container's id, which makes no difference here.
//
// base is what a relative path starts from: runc takes the parent of its own
// cgroup on v2, and its own cgroup on v1. It is only called for when needed.
func (p *prober) intended(base func() string) string {
	if p.in.Systemd {
		return p.intendedSystemd()
	}
	if path.IsAbs(p.in.CgroupsPath) {
		return path.Clean(p.in.CgroupsPath)
	}
	return path.Join(base(), path.Clean("/"+p.in.CgroupsPath))
}

// intendedSystemd returns the folder of the slice of "slice:prefix:id". The slice
// is system.slice when none is given; without root it is a slice of the user's
// manager, user.slice when none is given.
func (p *prober) intendedSystemd() string {
	slice, _, _ := strings.Cut(p.in.CgroupsPath, ":")
	manager := "/"
	if p.euid != 0 {
		manager = p.userManager()
	}
	switch {
	case slice != "":
	case p.euid != 0:
		slice = "user.slice"
	default:
		slice = "system.slice"
	}
	return path.Join(manager, expandSlice(slice))
}

// maxUnitName is the most bytes in the name of a unit (systemd.unit(5)).
const maxUnitName = 255

// expandSlice returns the folder of a slice: systemd puts a-b.slice into a.slice
// (systemd.slice(5)). A name that is not a slice gives "/"; the low-level
// runtime or systemd refuses it.
func expandSlice(slice string) string {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || len(slice) > maxUnitName || name == "" || name == "-" || strings.Contains(name, "/") {
		return "/"
	}
	folder, prefix := "", ""
	for part := range strings.SplitSeq(name, "-") {
		if part == "" {
			return "/"
		}
		prefix += part
		folder += "/" + prefix + ".slice"
		prefix += "-"
	}
	return folder
}

// userManager returns the cgroup of the user's systemd manager: the one that
// this process is below, or else where systemd puts it.
func (p *prober) userManager() string {
	own := p.ownCgroup("")
	for at := own; at != "/" && at != "."; at = path.Dir(at) {
		if name := path.Base(at); strings.HasPrefix(name, "user@") && strings.HasSuffix(name, ".service") {
			return at
		}
	}
	uid := strconv.Itoa(p.euid)
	return "/user.slice/user-" + uid + ".slice/user@" + uid + ".service"
}

// ownCgroup returns the path of this process in a hierarchy; "/" when it is not
// known.
func (p *prober) ownCgroup(controller string) string {
	list, err := p.fs.Membership(0)
	if err != nil {
		return "/"
	}
	own, ok := cgroup.In(list, controller)
	if !ok {
		return "/"
	}
	return own
}

// ancestor goes down to the intended folder below a mount point, as far as it
// exists. ok is false when not even the mount point does. It goes down and not
// up, since the specification may have a path of any length.
func (p *prober) ancestor(mount, intended string) (at place, ok bool) {
	at.ancestor = mount
	rest := strings.Trim(intended, "/")
	for rest != "" {
		name, below, _ := strings.Cut(rest, "/")
		next := at.ancestor + "/" + name
		if !p.has(next) {
			at.missing = 1 + strings.Count(rest, "/")
			break
		}
		at.ancestor, rest = next, below
	}
	if at.ancestor == mount && !p.has(mount) {
		return place{}, false
	}
	if p.in.Systemd || p.in.CgroupsPath == "" {
		at.missing++ // the last one is not in intended
	}
	return at, true
}

// denied says why no cgroup can be created in a folder; empty when it can.
func (p *prober) denied(folder string) string {
	err := p.access(p.fs.Path(folder), unix.W_OK)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.EROFS):
		return "no permission to create a cgroup in " + folder + ": it is mounted read-only"
	case errors.Is(err, unix.EACCES):
		return "no permission to create a cgroup in " + folder
	default:
		return "no permission to create a cgroup in " + folder + ": " + err.Error()
	}
}
