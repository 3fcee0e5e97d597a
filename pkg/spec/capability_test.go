package spec_test

import (
	"testing"

	"github.com/agentbox/agentbox/pkg/spec"
)

func TestMayHave(t *testing.T) {
	for _, c := range []struct {
		name, config string
		want         bool
	}{
		{"in the bounding set", `{"process":{"capabilities":{"bounding":["CAP_KILL","CAP_SYS_RESOURCE"]}}}`, true},
		{"not in the bounding set", `{"process":{"capabilities":{"bounding":["CAP_KILL"],"effective":["CAP_SYS_RESOURCE"]}}}`, false},
		{"an empty bounding set", `{"process":{"capabilities":{"bounding":[]}}}`, false},
		{"no bounding set", `{"process":{"capabilities":{}}}`, false},
		{"no word of capabilities", `{"process":{}}`, true},
		{"something else in their place", `{"process":{"capabilities":{"bounding":7}}}`, true},
	} {
		d, err := spec.Parse([]byte(c.config))
		if err != nil {
			t.Fatal(err)
		}
		if got := d.MayHave("CAP_SYS_RESOURCE"); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
