//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	bombs := []struct {
		name   string
		script string
		kinds  string // the grounds; "": all
	}{
		{name: "one process", script: "attack take anon WANTS"},
		{name: "200 small ones", script: fmt.Sprintf("attack many 200 %d", wants/200)},
		{name: "a file of a tmpfs", script: "attack take file:/tmp/file WANTS"},
		{name: "dev shm", script: "attack take file:/dev/shm/file WANTS"},
		{name: "a deleted file of a tmpfs", script: "attack take unlinked:/tmp/file WANTS"},
		{name: "memfd", script: "attack take memfd WANTS"},
		{name: "SysV shared memory", script: "attack take shm WANTS"},
		{name: "SysV shared memory that nobody has attached", script: "attack take shm-detached WANTS", kinds: "runc, crun without cgroups"}, // to see them needs a right,
		{name: "another session and user", script: "attack leave 1000 take anon WANTS; sleep 1000", kinds: "runc, crun without cgroups"},
		{name: "nested namespaces", script: "attack nested take anon WANTS"},
		{name: "a file system mounted inside", script: "attack nested mounted WANTS"},
		// The first process is the one that nobody inside can kill.
		{name: "all else is killed", script: "attack kill & exec attack take anon WANTS"},
	}
	eachGround(t, func(t *testing.T, g *ground) {
		for _, b := range few(g, bombs, 1) {
			if b.kinds != "" && !strings.Contains(b.kinds, g.kind.name) {
				continue
			}
			t.Run(b.name, func(t *testing.T) {
				t.Parallel()
				a := g.attack(t, fmt.Sprintf("[limits]\nmemory = \"%dMiB\"", limit), sh(strings.ReplaceAll(b.script, "WANTS", itoa(wants))+"; echo bomb ended; sleep 1000"), mayNest)
				out, r := a.ends()
				if strings.Contains(out.Stdout, "bomb ended") || strings.Contains(out.Stdout, "took it all") {
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

// mayNest lets root inside make user namespaces, as engines do by default.
func mayNest(s Spec) {
	sets := s["process"].(map[string]any)["capabilities"].(map[string]any)
	for name, list := range sets {
		sets[name] = append(slices.Clone(list.([]string)), "CAP_SETFCAP")
	}
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
		for _, i := range few(g, innocents, 1) {
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
			_, r = near.ends()
			t.Fatalf("the one that had taken %d MiB of %d was ended too: %s", limit*3/4, limit, describe(r))
		}
		near.must("kill", near.ID, "KILL")
		_, r = near.ends()
		wantNoLimit(t, r)
	})
}
