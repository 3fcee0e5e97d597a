package ocicli

import (
	"strconv"
	"strings"
)

// kind says what may follow the name of a flag.
type kind uint8

const (
	boolean  kind = iota // nothing, or =true and the like (Go only)
	valued               // a value, behind "=" or in the next argument
	optional             // nothing or =VALUE (argp's OPTION_ARG_OPTIONAL)
)

// flag is one flag, under all its names.
type flag struct {
	name  string // the long name
	short string // every letter that means the same
	kind  kind
}

// flagTable holds the flags that any of the low-level runtimes has at one
// place of its command line. A flag that the runtime behind does not have
// makes it fail, so that the union of the tables is safe as long as no two
// runtimes disagree about a flag's kind. Nowhere do they.
type flagTable []flag

// argp gives --help, -? and --usage to every verb of crun; -h is urfave/cli's.
var (
	helpFlag  = flag{"help", "h?", boolean}
	usageFlag = flag{"usage", "", boolean}
)

// globalFlags stand in front of the verb.
var globalFlags = flagTable{
	{"root", "", valued},
	{"log", "", valued},
	{"log-format", "", valued},
	{"log-level", "", valued}, // crun since 1.9
	{"systemd-cgroup", "", boolean},
	{"cgroup-manager", "", valued}, // crun
	{"debug", "", boolean},
	{"rootless", "", valued},
	{"criu", "", valued}, // runc up to 1.3
	{"version", "vV", boolean},
	helpFlag, usageFlag,
}

// createFlags are those of create.
var createFlags = flagTable{
	{"bundle", "b", valued},
	{"config", "f", valued}, // crun
	{"pid-file", "", valued},
	{"console-socket", "", valued},
	{"pidfd-socket", "", valued}, // runc
	{"preserve-fds", "", valued},
	{"no-pivot", "", boolean},
	{"no-new-keyring", "", boolean},
	{"no-subreaper", "", boolean}, // crun
	helpFlag, usageFlag,
}

// runFlags are those of run.
var runFlags = flagTable{
	{"bundle", "b", valued},
	{"config", "f", valued}, // crun
	{"pid-file", "", valued},
	{"detach", "d", boolean},
	{"keep", "", boolean}, // crun since 1.9
	{"console-socket", "", valued},
	{"pidfd-socket", "", valued}, // runc
	{"preserve-fds", "", valued},
	{"no-pivot", "", boolean},
	{"no-new-keyring", "", boolean},
	{"no-subreaper", "", boolean},
	helpFlag, usageFlag,
}

// restoreFlags are those of restore.
var restoreFlags = flagTable{
	{"bundle", "b", valued},
	{"pid-file", "", valued},
	{"detach", "d", boolean},
	{"console-socket", "", valued},
	{"image-path", "", valued},
	{"work-path", "", valued},
	{"tcp-established", "", boolean},
	{"tcp-close", "", boolean}, // crun
	{"ext-unix-sk", "", boolean},
	{"shell-job", "", boolean},
	{"file-locks", "", boolean},
	{"manage-cgroups-mode", "", valued},
	{"network-lock", "", valued}, // crun, which reads only the next argument
	{"no-subreaper", "", boolean},
	{"no-pivot", "", boolean},
	{"empty-ns", "", valued},
	{"auto-dedup", "", boolean},
	{"lazy-pages", "", boolean},
	{"lsm-profile", "", valued},
	{"lsm-mount-context", "", valued},
	helpFlag, usageFlag,
}

// deleteFlags are those of delete.
var deleteFlags = flagTable{
	{"force", "f", boolean},
	{"regex", "r", boolean}, // crun
	helpFlag, usageFlag,
}

// execFlags are those of exec.
var execFlags = flagTable{
	{"console-socket", "", valued},
	{"pidfd-socket", "", valued},
	{"cwd", "", valued},
	{"env", "e", valued},
	{"tty", "t", optional},
	{"user", "u", valued},
	{"additional-gids", "g", valued},
	{"process", "p", valued},
	{"detach", "d", boolean},
	{"pid-file", "", valued},
	{"process-label", "", valued},
	{"apparmor", "", valued},
	{"no-new-privs", "", boolean},
	{"cap", "c", valued},
	{"preserve-fds", "", valued},
	{"cgroup", "", valued},
	{"ignore-paused", "", boolean},
	{"no-subreaper", "", boolean}, // runc up to 1.0
	helpFlag, usageFlag,
}

// updateFlags are those of update.
var updateFlags = flagTable{
	{"resources", "r", valued},
	{"blkio-weight", "", valued},
	{"cpu-period", "", valued},
	{"cpu-quota", "", valued},
	{"cpu-burst", "", valued},
	{"cpu-share", "", valued},
	{"cpu-rt-period", "", valued},
	{"cpu-rt-runtime", "", valued},
	{"cpuset-cpus", "", valued},
	{"cpuset-mems", "", valued},
	{"kernel-memory", "", valued},
	{"kernel-memory-tcp", "", valued},
	{"memory", "", valued},
	{"memory-reservation", "", valued},
	{"memory-swap", "", valued},
	{"cpu-idle", "", valued},
	{"pids-limit", "", valued},
	{"l3-cache-schema", "", valued},
	{"mem-bw-schema", "", valued},
	helpFlag, usageFlag,
}

// killFlags are those of kill.
var killFlags = flagTable{
	{"all", "a", boolean},
	{"regex", "r", boolean}, // crun
	helpFlag, usageFlag,
}

// psFlags are those of ps. Behind the id stand those of ps(1).
var psFlags = flagTable{
	{"format", "f", valued},
	helpFlag, usageFlag,
}

// eventsFlags are those of events.
var eventsFlags = flagTable{
	{"interval", "", valued},
	{"stats", "", boolean},
	helpFlag, usageFlag,
}

// plainFlags are those of the verbs that have none of their own.
var plainFlags = flagTable{helpFlag, usageFlag}

// verbFlags returns the flags of a verb, nil for one that is not read.
func verbFlags(verb string) flagTable {
	switch verb {
	case "create":
		return createFlags
	case "run":
		return runFlags
	case "restore":
		return restoreFlags
	case "delete":
		return deleteFlags
	case "exec":
		return execFlags
	case "update":
		return updateFlags
	case "kill":
		return killFlags
	case "ps":
		return psFlags
	case "events":
		return eventsFlags
	case "start", "state", "pause", "resume":
		return plainFlags
	}
	return nil
}

// looksLikeFlag says whether some low-level runtime takes token for a flag
// where flags may stand. urfave/cli v3 ignores white space around it.
func looksLikeFlag(token string) bool {
	token = strings.TrimSpace(token)
	return len(token) > 1 && token[0] == '-'
}

// split takes a flag apart, as Go's flag package does; long says that it has
// two dashes. The name is "" when there is none that a runtime would accept.
func split(token string) (name, value string, hasValue, long bool) {
	body, found := strings.CutPrefix(token, "-")
	if !found {
		return "", "", false, false
	}
	body, long = strings.CutPrefix(body, "-")
	name, value, hasValue = strings.Cut(body, "=")
	return name, value, hasValue, long
}

// find returns the flag of that name, or nil. Behind two dashes getopt_long
// also takes the beginning of a name, if it is the beginning of only one.
func (t flagTable) find(name string, long bool) *flag {
	if name == "" {
		return nil
	}
	var found *flag
	for i := range t {
		f := &t[i]
		if f.name == name || len(name) == 1 && strings.Contains(f.short, name) {
			return f
		}
		if !long || !strings.HasPrefix(f.name, name) {
			continue
		}
		if found != nil {
			long = false // more than one: only an exact name helps now
		}
		found = f
	}
	if !long {
		return nil
	}
	return found
}

// letter returns the flag that a single letter stands for, or nil.
func (t flagTable) letter(c byte) *flag { return t.find(string(c), false) }

// read takes the flag at the beginning of args and passes what it sets to set.
// It returns how many arguments that took, and what is wrong with the first
// one if it could not be read ("" if it could).
func (t flagTable) read(args []string, set func(f *flag, value string)) (tokens int, problem string) {
	name, value, hasValue, long := split(args[0])
	f := t.find(name, long)
	if f == nil && !long && name != "" {
		return t.readCluster(args, set)
	}
	switch {
	case f == nil:
		return 1, "is not a flag known here"
	case f.kind == valued && hasValue, f.kind == optional && hasValue:
		set(f, value)
		return 1, ""
	case f.kind == valued && len(args) == 1:
		return 1, "needs a value"
	case f.kind == valued:
		set(f, args[1])
		return 2, ""
	case value == "": // also behind "=", in urfave/cli v3; elsewhere that fails
		set(f, "true")
		return 1, ""
	}
	if _, err := strconv.ParseBool(value); err != nil {
		return 1, "does not take that value"
	}
	set(f, value)
	return 1, ""
}

// readCluster is read for letters behind one dash, of which only the last may
// take a value (getopt; Go's flag package knows no such thing and fails).
func (t flagTable) readCluster(args []string, set func(f *flag, value string)) (tokens int, problem string) {
	letters := args[0][1:]
	last := 0 // the letter that ends the cluster
	for ; last < len(letters); last++ {
		f := t.letter(letters[last])
		if f == nil {
			return 1, "is not a flag known here"
		}
		if f.kind != boolean {
			break
		}
	}
	for i := range last {
		set(t.letter(letters[i]), "true")
	}
	if last == len(letters) {
		return 1, ""
	}
	f, attached := t.letter(letters[last]), letters[last+1:]
	switch {
	case attached != "":
		set(f, attached)
	case f.kind == optional:
		set(f, "true")
	case len(args) == 1:
		return 1, "needs a value"
	default:
		set(f, args[1])
		return 2, ""
	}
	return 1, ""
}

// otherValue returns what getopt takes for the value of a flag like -b=B or
// -bundle=B, which Go's flag package reads by the whole of its name: "=B" and
// "undle=B". It returns "" where there is no such second reading.
func (t flagTable) otherValue(token string) string {
	name, _, _, long := split(token)
	if long || len(token) < 3 || t.find(name, false) == nil {
		return ""
	}
	if f := t.letter(token[1]); f != nil && f.kind == valued {
		return token[2:]
	}
	return ""
}
