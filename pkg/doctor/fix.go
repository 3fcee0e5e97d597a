package doctor

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/limits"
)

// Controllers of cgroup v2, with the option of the kernel's build that brings
// each.
var options = map[string]string{
	"memory": "CONFIG_MEMCG",
	"pids":   "CONFIG_CGROUP_PIDS",
	"cpu":    "CONFIG_CGROUP_SCHED",
	"io":     "CONFIG_BLK_CGROUP",
}

// controllerOf returns the controller of cgroup v2 behind a key; empty for a key
// that no cgroup limits.
func controllerOf(key limits.Key) string {
	switch key {
	case limits.KeyMemory, limits.KeyMemoryHigh, limits.KeySwap:
		return "memory"
	case limits.KeyPids:
		return "pids"
	case limits.KeyCPUs:
		return "cpu"
	case limits.KeyIOReadBPS, limits.KeyIOWriteBPS, limits.KeyIOReadIOPS, limits.KeyIOWriteIOPS:
		return "io"
	}
	return ""
}

// mechanismFix finds what keeps the mechanism of a key from being there, from
// facts of its own, and what to do about it. nil: not known, or nothing helps.
func mechanismFix(f *Facts, plan *limits.Plan, key limits.Key) *Fix {
	controller := controllerOf(key)
	if controller == "" {
		return nil
	}
	switch f.Host.CgroupVersion {
	case 0:
		return mountFix(f)
	case 1:
		if key == limits.KeySwap && !plan.Entry(limits.KeyMemory).ByKernel() {
			key = limits.KeyMemory // v1 has no swap limit without one of memory
		}
		return fixV1(f, key, controller)
	default:
		return fixV2(f, key, controller)
	}
}

// mountFix is for a host on which no cgroup is mounted that runc would use.
func mountFix(f *Facts) *Fix {
	if !f.Kernel.Cgroup2 {
		return buildWith("CONFIG_CGROUPS")
	}
	return &Fix{Text: "mount cgroup v2", Lines: []string{"mount -t cgroup2 cgroup2 " + cgroup.MountPoint}}
}

func fixV2(f *Facts, key limits.Key, controller string) *Fix {
	if len(f.Cgroup.Chain) == 0 {
		return nil
	}
	if !f.Cgroup.Chain[len(f.Cgroup.Chain)-1].Writable {
		return deniedFix(f)
	}
	if !slices.Contains(f.Cgroup.Chain[0].Controllers, controller) {
		return absentV2(f, controller)
	}
	if fix := delegate(f, controller); fix != nil {
		return fix
	}
	if fix := makeRoom(f); fix != nil {
		return fix
	}
	return fileFix(f, key)
}

// makeRoom is for a folder on the way in which the kernel refuses to turn
// controllers on: it has processes of its own, or is threaded (cgroup-v2.rst, No
// Internal Process Constraint and Threads). A cgroup that was made threaded stays
// so; one that only has become the root of threaded ones, since controllers were
// turned on while it had processes, is a domain again when these are off.
func makeRoom(f *Facts) *Fix {
	i := slices.IndexFunc(f.Cgroup.Chain, func(c Folder) bool {
		return c.Type != "" && (c.Type != "domain" || c.Processes)
	})
	if i < 0 {
		return nil
	}
	at := f.Cgroup.Chain[i]
	if !at.Processes || at.Threads || at.Type == threaded {
		return &Fix{Text: fmt.Sprintf("place containers in another cgroup than %s, which is threaded (docker run --cgroup-parent, or cgroupsPath in the specification)", at.Path)}
	}
	fix := &Fix{Text: fmt.Sprintf("move the processes in %s into a cgroup below it, and let what starts them put new ones there", at.Path)}
	if len(at.Passed) > 0 {
		fix.Lines = append(fix.Lines, fmt.Sprintf("echo -%s > %s", strings.Join(at.Passed, " -"), quote(at.Path+"/cgroup.subtree_control")))
	}
	rest := at.Path + "/rest"
	fix.Lines = append(fix.Lines, "mkdir -p "+quote(rest),
		fmt.Sprintf("for pid in $(cat %s); do echo $pid > %s; done", quote(at.Path+"/cgroup.procs"), quote(rest+"/cgroup.procs")))
	return fix
}

// absentV2 is for a controller that the cgroup at the mount point does not have.
func absentV2(f *Facts, controller string) *Fix {
	if word, ok := f.Kernel.disabledBy(controller); ok {
		return commandLine(f, word, "")
	}
	if !f.Cgroup.True {
		return &Fix{Text: fmt.Sprintf("ask on the host, or let the host pass the %s controller on to this cgroup namespace", controller)}
	}
	if f.Kernel.Controllers == nil {
		return nil
	}
	// A controller belongs to one hierarchy: what v1 has, v2 cannot have.
	if f.Kernel.Controllers[nameV1(controller)].Hierarchy == 0 {
		return buildWith(options[controller])
	}
	fix := &Fix{Text: fmt.Sprintf("unmount the cgroup v1 that has the %s controller", controller)}
	if point := f.Cgroup.V1[nameV1(controller)]; point != "" {
		fix.Lines = []string{"umount " + quote(point)}
	}
	return fix
}

// delegate is for a controller that the mount point has and that is not passed on
// to where containers are placed. nil: it is.
func delegate(f *Facts, controller string) *Fix {
	chain := f.Cgroup.Chain
	if chain[0].Controls {
		return nil // whoever may do so there, can do so all the way down, as the low-level runtime does
	}
	at := slices.IndexFunc(chain, func(c Folder) bool { return !slices.Contains(c.Passed, controller) })
	if at < 0 || at == len(chain)-1 && chain[at].Controls {
		return nil
	}
	if f.Systemd && slices.ContainsFunc(chain[at+1:], func(c Folder) bool { return isUserManager(c.Path) }) {
		const dir = "/etc/systemd/system/user@.service.d"
		return &Fix{
			Text: fmt.Sprintf("let systemd delegate the %s controller to users, and log in again", controller),
			Lines: []string{
				"mkdir -p " + dir,
				`printf '[Service]\nDelegate=cpu cpuset io memory pids\n' > ` + dir + "/delegate.conf",
				"systemctl daemon-reload",
			},
		}
	}
	fix := &Fix{Text: fmt.Sprintf("pass the %s controller on", controller)}
	for i, folder := range chain[at:] {
		if at+i == len(chain)-1 && folder.Controls {
			break // the low-level runtime does that
		}
		fix.Lines = append(fix.Lines, fmt.Sprintf("echo +%s > %s", controller, quote(folder.Path+"/cgroup.subtree_control")))
	}
	return fix
}

// isUserManager reports whether a cgroup is that of a user's systemd:
// user@1000.service (systemd.special(7)).
func isUserManager(folder string) bool {
	name := path.Base(folder)
	return strings.HasPrefix(name, "user@") && strings.HasSuffix(name, ".service")
}

func fixV1(f *Facts, key limits.Key, controller string) *Fix {
	v1 := nameV1(controller)
	point, mounted := f.Cgroup.V1[v1]
	switch {
	case key == limits.KeyMemoryHigh:
		return unified(f)
	case !mounted:
		return absentV1(f, controller)
	case slices.Contains(f.Cgroup.ReadOnly, point), !f.Root:
		return deniedFix(f)
	}
	return fileFix(f, key)
}

// absentV1 is for a controller that no cgroup v1 has.
func absentV1(f *Facts, controller string) *Fix {
	v1 := nameV1(controller)
	known, listed := f.Kernel.Controllers[v1]
	release, _ := parseVersion(f.Kernel.Release)
	word, disabled := f.Kernel.disabledBy(controller)
	switch {
	case disabled:
		return commandLine(f, word, "")
	case listed && !known.Enabled:
		// Some distributors switch memory off unless it is asked for.
		return commandLine(f, "", "cgroup_enable="+v1)
	case f.Kernel.Controllers == nil:
		return nil
	case slices.Contains(f.Cgroup.V2Has, controller) && f.Systemd, listed && f.Systemd:
		return unified(f)
	case listed:
		point := cgroup.MountPoint + "/" + v1
		return &Fix{
			Text:  fmt.Sprintf("mount the %s controller", v1),
			Lines: []string{"mkdir -p " + point, fmt.Sprintf("mount -t cgroup -o %s cgroup %s", v1, point)},
		}
	case slices.Contains(f.Cgroup.V2Has, controller), controller == "memory" && !release.before(linux(6, 11)):
		return unified(f) // since Linux 6.11 the memory controller of v1 is an option of its own
	}
	return buildWith(options[controller])
}

// fileFix is for a controller that is there without the file that is needed.
func fileFix(f *Facts, key limits.Key) *Fix {
	switch controllerOf(key) {
	case "cpu":
		if !f.Kernel.Bandwidth {
			return buildWith("CONFIG_CFS_BANDWIDTH")
		}
	case "io":
		if f.Kernel.Throttling == No {
			return buildWith("CONFIG_BLK_DEV_THROTTLING")
		}
	case "memory":
		if key == limits.KeySwap {
			return swapFix(f)
		}
	}
	return nil
}

// swapFix is for a kernel that does not account swap. Since Linux 6.1 nothing
// switches that off any more.
func swapFix(f *Facts) *Fix {
	if !f.Kernel.Swap {
		return buildWith("CONFIG_SWAP")
	}
	if release, ok := parseVersion(f.Kernel.Release); !ok || !release.before(linux(6, 1)) {
		return nil
	}
	word, value, given := f.Kernel.word("swapaccount")
	if given && value != "1" {
		return commandLine(f, word, "swapaccount=1")
	}
	if given {
		return nil
	}
	return commandLine(f, "", "swapaccount=1")
}

// deniedFix is for cgroups that are there and cannot be used.
func deniedFix(f *Facts) *Fix {
	if len(f.Cgroup.ReadOnly) > 0 {
		fix := &Fix{Text: "mount the cgroups writable"}
		for _, point := range f.Cgroup.ReadOnly {
			fix.Lines = append(fix.Lines, "mount -o remount,rw "+quote(point))
		}
		return fix
	}
	if f.Root {
		return nil
	}
	return &Fix{
		Text:  "ask as root for containers that root starts; for those of a user, ask in a systemd session with --systemd-cgroup",
		Lines: []string{"sudo agentbox doctor"},
	}
}

// disklessFix is for folders whose I/O no disk limit reaches: something can be
// done where the configuration names what is no disk.
func disklessFix(f *Facts) *Fix {
	if len(f.Config.Policy.IODevices) == 0 {
		return nil
	}
	fix := &Fix{Text: fmt.Sprintf("correct io_device in %s, or leave it out: disks are then found behind a container's files", f.Config.Path)}
	if f.RootDisk != "" {
		fix.Lines = []string{fmt.Sprintf("io_device = %q", "/dev/"+f.RootDisk)}
	}
	return fix
}

// unified is for what only cgroup v2 has.
func unified(f *Facts) *Fix {
	if !f.Kernel.Cgroup2 {
		return nil
	}
	if !f.Systemd {
		return &Fix{Text: "mount cgroup v2 at " + cgroup.MountPoint + " in place of v1, in the scripts that start this machine (OpenRC: rc_cgroup_mode=\"unified\" in /etc/rc.conf)"}
	}
	const parameter = "systemd.unified_cgroup_hierarchy"
	word, _, _ := f.Kernel.word(parameter)
	return commandLine(f, word, parameter+"=1")
}

func buildWith(option string) *Fix {
	return &Fix{
		Text:  "boot a kernel that is built with " + option,
		Lines: []string{"grep " + option + "= /boot/config-*"},
	}
}

// commandLine changes the kernel's command line: a word goes, another one comes.
func commandLine(f *Facts, remove, add string) *Fix {
	fix := &Fix{Text: "boot with " + add + " on the kernel's command line"}
	switch {
	case add == "":
		fix.Text = "boot without " + remove + " on the kernel's command line"
	case remove != "":
		fix.Text = fmt.Sprintf("boot with %s in place of %s on the kernel's command line", add, remove)
	}
	switch {
	case !plainWord(remove):
	case f.Tools.Grubby:
		fix.Lines = []string{grubby(remove, add), "reboot"}
	case f.Tools.UpdateGrub:
		fix.Lines = append(updateGrub(remove, add), "reboot")
	}
	return fix
}

// words makes one line of a shell.
func words(list []string) string {
	quoted := make([]string, 0, len(list))
	for _, word := range list {
		quoted = append(quoted, quote(word))
	}
	return strings.Join(quoted, " ")
}

// quote makes a path or a flag one word of a shell: whoever may make cgroups
// chooses their names, and a flag can have any text.
func quote(word string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/_.-@:,=", r)
	}
	if strings.IndexFunc(word, special) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// plainWord reports whether a word of the command line can stand in a shell and
// in an expression of sed as it is.
func plainWord(word string) bool {
	return strings.IndexFunc(word, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("_=,.", r)
	}) < 0
}

func grubby(remove, add string) string {
	line := "grubby --update-kernel=ALL"
	if remove != "" {
		line += " --remove-args=" + remove
	}
	if add != "" {
		line += " --args=" + add
	}
	return line
}

// updateGrub is for Debian and what comes from it, where grub-mkconfig(8) reads
// files in /etc/default/grub.d too.
func updateGrub(remove, add string) (lines []string) {
	const file, dir = "/etc/default/grub", "/etc/default/grub.d"
	if remove != "" {
		lines = append(lines, fmt.Sprintf("grep -rl '%[1]s' %[2]s %[3]s | xargs -r sed -i 's/%[1]s//'", remove, file, dir))
	}
	if add != "" {
		lines = append(lines, "mkdir -p "+dir,
			fmt.Sprintf(`echo 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX %s"' >> %s/agentbox.cfg`, add, dir))
	}
	return append(lines, "update-grub")
}
