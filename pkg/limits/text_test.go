package limits_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	. "github.com/agentbox/agentbox/pkg/limits"
)

func TestShorten(t *testing.T) {
	for _, c := range []struct {
		name, text string
		most       int
		want       string
	}{
		{"nothing", "", 20, ""},
		{"short", "no such file", 20, "no such file"},
		{"just as long", "01234567890123456789", 20, "01234567890123456789"},
		{"one byte too long", "012345678901234567890", 20, "0123456 [...] 567890"},
		{"of several bytes", "ääääääääääääääääääää", 20, "äää [...] äää"},
		{"no room", "0123456789", 3, " [...] "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Shorten(c.text, c.most); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func FuzzShorten(f *testing.F) {
	f.Add("/mnt/nfs/a\u00e4", 20)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = max(most, 20)
		got := Shorten(text, most)
		if len(got) > most || len(text) <= most && got != text || utf8.ValidString(text) && !utf8.ValidString(got) {
			t.Errorf("%q of at most %d bytes: %q", text, most, got)
		}
	})
}

// A specification can name paths of any length, and what the kernel says about
// one repeats it.
func TestTextsFromOutsideAreCut(t *testing.T) {
	long := "/" + strings.Repeat("x", 200_000)
	host := fullHost()
	host.IO.Diskless = []Diskless{{Place: long, Reason: "stat " + long + ": file name too long"}}
	host.IO.Disks = []BlockDevice{{Device: Device{Major: 8}, Name: "sda", Places: []string{long}}}
	device := Device{Major: 9}
	host.IO.Asked = map[Device]AskedDisk{device: {Reason: long}}
	host.Mechanisms[KeyPids] = Mechanism{Enforcer: EnforcerNone, Reason: long}
	plan, err := Resolve(DefaultPolicy(), Request{Devices: map[Device]Set{device: {KeyIOReadBPS: Limit(1 << 20)}}}, host)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 30_000 {
		t.Errorf("the plan has %d bytes", len(data))
	}
	if d := plan.IO.Diskless[0]; !strings.HasPrefix(d.Reason, "stat /xxx") || !strings.HasSuffix(d.Reason, ": file name too long") || !strings.HasPrefix(d.Place, "/xxx") {
		t.Errorf("%.80q", d)
	}
	if host.IO.Diskless[0].Place != long || host.IO.Disks[0].Places[0] != long {
		t.Error("the host's facts were changed")
	}
	_, err = Resolve(DefaultPolicy(), Request{Profile: long}, fullHost())
	if err == nil || len(err.Error()) > MaxText {
		t.Errorf("a profile: %.80v", err)
	}
}

// A specification can ask for limits on any number of devices that are not there.
func TestWarningsAreCounted(t *testing.T) {
	req := Request{Devices: map[Device]Set{}}
	host := fullHost()
	host.IO.Asked = map[Device]AskedDisk{}
	for minor := range int64(1000) {
		device := Device{Major: 9, Minor: minor}
		req.Devices[device] = Set{KeyIOReadBPS: Limit(1 << 20)}
		host.IO.Asked[device] = AskedDisk{Reason: "it is not there"}
	}
	plan, err := Resolve(DefaultPolicy(), req, host)
	if err != nil {
		t.Fatal(err)
	}
	if last := len(plan.Warnings) - 1; last != MaxWarnings || plan.Warnings[last] != "900 more warnings are left out" {
		t.Errorf("%d warnings, the last is %q", last+1, plan.Warnings[last])
	}
	if list := FirstWarnings(plan.Warnings[:MaxWarnings]); len(list) != MaxWarnings {
		t.Errorf("%d are left of %d", len(list), MaxWarnings)
	}
}
