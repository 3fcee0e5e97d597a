//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/agentbox/agentbox/pkg/result"
	"github.com/agentbox/agentbox/pkg/verdict"
)

// wantBombResult checks the result of a container whose first process was a
// memory bomb.
func wantBombResult(t *testing.T, r *result.Result) {
	t.Helper()
	wantOOMEvidence(t, r)
	if has(cgroup2) {
		wantOOMVerdict(t, r)
		return
	}
	wantEnded(t, r)
}

// Docker forgets a container that was run with --rm; why it ended can still be
// read.
func TestDockerResultOutlivesTheContainer(t *testing.T) {
	c := newDocker(t).held("agentbox", "--rm -m 64m", "exec tail /dev/zero")
	c.letGo()
	if out := c.ends(); out.Code != 137 {
		t.Errorf("the container was not killed: %v", out)
	}
	if out := c.run("inspect", c.Name); !strings.Contains(out.Stderr, "No such object") {
		t.Errorf("docker still has the container: %v", out)
	}
	wantBombResult(t, c.verdict())
	if r, out := c.inspect(c.Name); r == nil || r.ID != c.ID {
		t.Errorf("agentbox inspect %s: %v", c.Name, out)
	}
}

// A container that is started again shows what it is now and why it ended
// before, once: the run after that has another one before it.
func TestDockerRestartKeepsThePreviousVerdict(t *testing.T) {
	c := newDocker(t).held("agentbox", "-m 64m", "[ -e /tmp/again ] && exec sleep 1000; : >/tmp/again; exec tail /dev/zero")
	c.letGo()
	if code := c.wait(); code != 137 {
		t.Errorf("the container ended with %d, want 137", code)
	}
	wantBombResult(t, c.verdict())

	c.do("start", c.Name)
	second, out := c.inspect(c.Name)
	if second == nil || second.Status != verdict.Running || second.ErrorCode != "" || second.Events.OOMKill != 0 || second.Previous == nil {
		t.Fatalf("the second run: %v", out)
	}
	wantBombResult(t, second.Previous)

	c.do("restart", "--time", "0", c.Name)
	third, out := c.inspect(c.Name)
	if third == nil || third.Status != verdict.Running || third.Previous == nil {
		t.Fatalf("the third run: %v", out)
	}
	wantEnded(t, third.Previous)
	if third.Previous.Nonce != second.Nonce || third.Previous.Events.OOMKill != 0 {
		t.Errorf("the run before the third is not the second: %s", describe(third.Previous))
	}
}

// The name of a container is the one that Docker has for it at the moment.
func TestDockerRenamedContainerIsFound(t *testing.T) {
	c := newDocker(t).detached("agentbox", "", "exec sleep 1000")
	old := c.Name
	c.do("rename", old, old+"-renamed")
	c.Name = old + "-renamed"
	if r, out := c.inspect(c.Name); r == nil || r.ID != c.ID || r.Name != c.Name {
		t.Errorf("agentbox inspect by the new name: %v", out)
	}
	if r, out := c.inspect(old); r != nil {
		t.Errorf("agentbox inspect by a name that nothing has any more: %v", out)
	}
	c.do("kill", c.Name)
	c.wait()
	c.verdict()
	if r, out := c.inspect(c.Name); r == nil || r.ID != c.ID || r.FinishedAt == nil {
		t.Errorf("agentbox inspect by the new name after the end: %v", out)
	}
}

// Where a few letters may mean several containers, agentbox says which.
func TestDockerIDThatIsTooShort(t *testing.T) {
	d := newDocker(t)
	byFirst := map[string][]string{}
	add := func(id string) []string {
		byFirst[id[:1]] = append(byFirst[id[:1]], id)
		return byFirst[id[:1]]
	}
	var same []string
	ids, err := d.Results.IDs() // of the tests before
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if list := add(id); len(list) == 2 {
			same = list
			break
		}
	}
	for same == nil { // ids are hexadecimal: 17 containers at most
		c := d.detached("agentbox", "", "exit 0")
		c.verdict()
		if list := add(c.ID); len(list) == 2 {
			same = list
		}
	}
	r, out := d.inspect(same[0][:1])
	if r != nil || !strings.Contains(out.Stderr, same[0]) || !strings.Contains(out.Stderr, same[1]) {
		t.Errorf("%q may be %q, and agentbox inspect says %v", same[0][:1], same, out)
	}
	if r, out := d.inspect("0123456789abcdef"); r != nil || !strings.Contains(out.Stderr, "0123456789abcdef") {
		t.Errorf("agentbox inspect of what is not there: %v", out)
	}
}
