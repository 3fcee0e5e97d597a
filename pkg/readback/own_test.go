package readback

import (
	"testing"

	"github.com/agentbox/agentbox/pkg/cgroup"
	"github.com/agentbox/agentbox/pkg/cgroup/cgrouptest"
)

// What a low-level runtime leaves in the cgroup of its caller has none of its own.
func TestOwnCgroup(t *testing.T) {
	const scope = "/system.slice/docker-0123456789ab.scope"
	for _, c := range []struct{ name, its, here, own string }{
		{"beside that of the caller", scope, "/", scope},
		{"that of the caller", scope, scope, ""},
		{"below that of the caller", scope, "/system.slice", scope},
		{"the caller's is not known", scope, "/gone", scope},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := cgrouptest.Tree(t, "v2")
			cgrouptest.Write(t, root, "proc/70/cgroup", "0::"+c.its+"\n")
			cgrouptest.Write(t, root, "proc/71/cgroup", "0::"+c.here+"\n")
			r := reader{fs: cgroup.FS(root), self: 71}
			its, err := cgroup.Of(r.fs, 70)
			if err != nil {
				t.Fatal(err)
			}
			own := ""
			if got := r.ownCgroup(its.Paths()); got != nil {
				own = got.Places[""].Path
			}
			if own != c.own {
				t.Errorf("got %q, want %q", own, c.own)
			}
		})
	}
}
