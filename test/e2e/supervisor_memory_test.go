//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentbox/agentbox/pkg/verdict"
)

// memoryAttack is what an attack wants, and what it may have. In user-mode Linux
// a page takes 0.2 ms.
func memoryAttack() (limit, wants int) {
	if has(cpus2) {
		return 192, 2048
	}
	return 48, 512
}

// Memory is bounded, however it is taken and hidden.
func TestSupervisorMemoryBomb(t *testing.T) {
	limit, wants := memoryAttack()
	many := fmt.Sprintf("many 200 %d", wants/200)
	bombs := []struct {
		name  string
		words string // for the program
		also  string // what the shell does beside it
		kinds string // the grounds; "": all
	}{
		{name: "one process", words: "take anon %d"},
		{name: "200 small ones", words: many},
		{name: "a file of a tmpfs", words: "take file:/tmp/file %d"},
		{name: "dev shm", words: "take file:/dev/shm/file %d", kinds: "runc, crun without cgroups"},
		{name: "a deleted file of a tmpfs", words: "take unlinked:/tmp/file %d"},
		{name: "memfd", words: "take memfd %d"},
		{name: "SysV shared memory", words: "take shm %d"},
		{name: "SysV shared memory that nobody has attached", words: "take shm-detached %d"},
		{name: "another session and user", words: "leave 1000 take anon %d", kinds: "runc, crun without cgroups"},
		{name: "nested namespaces", words: "nested take anon %d"},
		{name: "a file system mounted inside", words: "nested mounted %d"},
		{name: "siblings are killed all the time", words: "take anon %d", also: "(while :; do sleep 10; done)& attack kill & "},
	}
	eachGround(t, func(t *testing.T, g *ground) {
		for _, b := range bombs {
			if b.kinds != "" && !strings.Contains(b.kinds, g.kind.name) {
				continue
			}
			t.Run(b.name, func(t *testing.T) {
				t.Parallel()
				words := b.words
				if strings.Contains(words, "%d") {
					words = fmt.Sprintf(words, wants)
				}
				also := b.also
				if also != "" { // who kills all others must not kill the bomb
					words, also = "take anon "+itoa(wants), ""
				}
				script := also + "attack " + words + "; echo bomb ended; sleep 30; echo survived"
				if b.also != "" {
					script = "while :; do attack kill & attack " + words + "; done"
				}
				a := g.attack(t, fmt.Sprintf("[limits]\nmemory = \"%dMiB\"", limit), sh(script))
				out, r := a.ends()
				if strings.Contains(out.Stdout, "survived") || strings.Contains(out.Stdout, "bomb ended") || strings.Contains(out.Stdout, "took it all") {
					t.Errorf("the bomb was not stopped: %v", out)
				}
				wantStruck(t, r, verdict.MemoryLimitExceeded)
				wantSupervised(t, r, "memory")
				got := taken(t, a.count)
				t.Logf("took %d MiB of %d, measured %d MiB", got/mib, limit, r.Evidence.Strike.Measured/mib)
				if got > int64(limit)*mib*3/2 {
					t.Errorf("it took %d MiB, and may have %d", got/mib, limit)
				}
			})
		}
	})
}

// What only looks like much memory is let alone.
func TestSupervisorInnocents(t *testing.T) {
	limit, _ := memoryAttack()
	const size = 300 // MiB of a file
	innocents := []struct{ name, words string }{
		{"100 GiB of address space", "reserve 100"},
		{"a large file that is mapped", fmt.Sprintf("map /data/file %d", size)},
		{"workers that share memory", fmt.Sprintf("workers 30 %d", limit*2/3)},
	}
	eachGround(t, func(t *testing.T, g *ground) {
		for _, i := range innocents {
			t.Run(i.name, func(t *testing.T) {
				t.Parallel()
				dir := tempDir(t)
				file := filepath.Join(dir, "file")
				writeFile(t, file, "")
				if err := os.Truncate(file, size*mib); err != nil {
					t.Fatal(err)
				}
				if err := g.own(dir); err != nil {
					t.Fatal(err)
				}
				a := g.attack(t, fmt.Sprintf("[limits]\nmemory = \"%dMiB\"", limit), sh("attack "+i.words), withData(dir))
				out, r := a.ends()
				if !strings.Contains(out.Stdout, "unharmed") {
					t.Errorf("an innocent program did not come to its end: %v", out)
				}
				wantNoLimit(t, r)
				wantSupervised(t, r, "memory")
			})
		}
	})
}

// A neighbour of the bomb may itself be near its limit: only the one that is
// above it is ended.
func TestSupervisorEndsTheRightOne(t *testing.T) {
	limit, wants := memoryAttack()
	eachGround(t, func(t *testing.T, g *ground) {
		policy := fmt.Sprintf("[limits]\nmemory = \"%dMiB\"", limit)
		near := g.attack(t, policy, sh(fmt.Sprintf("attack take anon %d", limit*3/4)))
		near.printed("took it all")
		bomb := g.attack(t, policy, sh(fmt.Sprintf("attack take anon %d", wants)))
		_, r := bomb.ends()
		wantStruck(t, r, verdict.MemoryLimitExceeded)
		time.Sleep(time.Second) // long enough to look at it again
		if !alive(near.pid()) {
			t.Error("the one below its limit was ended too")
		}
		near.must("kill", near.ID, "KILL")
		_, r = near.ends()
		wantNoLimit(t, r)
	})
}
