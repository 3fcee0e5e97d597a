// Package layout checks the shape of the code: imports point one way, and the
// runtime, whose start-up every container pays for, stays light.
package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/agentbox/agentbox/"

// order lists the packages from the bottom up. A package imports only packages
// above it in this list.
var order = []string{
	"pkg/limits",
	"pkg/smallfile",
	"pkg/procfs",
	"pkg/blockdev",
	"pkg/note",
	"pkg/oomlog",
	"pkg/engine",
	"pkg/ocicli",
	"pkg/lowlevel",
	"pkg/verdict",
	"pkg/cgroup",
	"pkg/host",
	"pkg/spec",
	"pkg/config",
	"pkg/decide",
	"pkg/lease",
	"pkg/result",
	"pkg/doctor",
	"pkg/readback",
	"pkg/fallback",
	"pkg/state",
	"pkg/harvest",
	"pkg/supervise",
	"pkg/install",
	"cmd/agentbox-runtime",
	"cmd/agentbox",
	"cmd/containerd-shim-agentbox-v1",
}

// heavy are module paths whose start-up cost the runtime must not have.
var heavy = []string{
	"github.com/containerd/",
	"github.com/opencontainers/",
	"github.com/spf13/",
	"github.com/urfave/",
	"google.golang.org/",
	"k8s.io/",
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func list(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", module+"cmd/...", module+"pkg/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range list(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasSuffix(name, "test") {
			continue // support for tests, linked into no program
		}
		rank := slices.Index(order, name)
		if rank < 0 {
			t.Errorf("%s has no place in the order of packages: give it one", name)
			continue
		}
		for _, imported := range p.Imports {
			other, ours := strings.CutPrefix(imported, module)
			if ours && slices.Index(order, other) >= rank {
				t.Errorf("%s imports %s, which is above it", name, other)
			}
		}
	}
}

func TestTheRuntimeStaysLight(t *testing.T) {
	for _, p := range list(t) {
		if p.ImportPath != module+"cmd/agentbox-runtime" {
			continue
		}
		for _, dep := range p.Deps {
			for _, prefix := range heavy {
				if strings.HasPrefix(dep, prefix) {
					t.Errorf("agentbox-runtime links %s", dep)
				}
			}
		}
		return
	}
	t.Fatal("cmd/agentbox-runtime is not in the list")
}

// TestOnlyTheShimLinksContainerd: it is large, and slow to start.
func TestOnlyTheShimLinksContainerd(t *testing.T) {
	links := func(p goPackage) bool {
		return slices.ContainsFunc(p.Deps, func(dep string) bool { return strings.HasPrefix(dep, "github.com/containerd/") })
	}
	found := false
	for _, p := range list(t) {
		shim := p.ImportPath == module+"cmd/containerd-shim-agentbox-v1"
		found = found || shim
		if links(p) != shim {
			t.Errorf("%s links containerd: %v", p.ImportPath, !shim)
		}
	}
	if !found {
		t.Fatal("the shim is not in the list")
	}
}

// TestTheShimStaysLight: each container or pod has one, and what it links is in
// its memory. The build tag keeps gRPC out, which the shim does not speak, and
// with it HTTP, TLS and templates: 40 % of the program.
func TestTheShimStaysLight(t *testing.T) {
	const tag = "-tags no_grpc"
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), tag) {
		t.Errorf("the Makefile does not build with %s", tag)
	}
	out, err := exec.Command("go", "list", "-deps", "-tags", "no_grpc", module+"cmd/containerd-shim-agentbox-v1").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "github.com/containerd/ttrpc") {
		t.Fatal("this is not the list of a shim")
	}
	for _, dep := range []string{"google.golang.org/grpc", "net/http", "crypto/tls", "text/template"} {
		if slices.Contains(deps, dep) {
			t.Errorf("the shim links %s", dep)
		}
	}
}

// TestNoProgramLinksKubernetes: its API is there for tests to speak it.
func TestNoProgramLinksKubernetes(t *testing.T) {
	all := list(t)
	for _, p := range all {
		for _, dep := range p.Deps {
			if first, _, _ := strings.Cut(dep, "/"); first == "k8s.io" || first == "sigs.k8s.io" || dep == module+"deploy/kubernetes" {
				t.Errorf("%s links %s", p.ImportPath, dep)
			}
		}
	}
	if len(all) < len(order) {
		t.Errorf("only %d packages are in the list", len(all))
	}
}

func TestLimitsUsesTheStandardLibraryOnly(t *testing.T) {
	for _, p := range list(t) {
		if p.ImportPath != module+"pkg/limits" {
			continue
		}
		for _, dep := range p.Deps {
			if first, _, _ := strings.Cut(dep, "/"); strings.Contains(first, ".") {
				t.Errorf("pkg/limits links %s", dep)
			}
		}
		return
	}
	t.Fatal("pkg/limits is not in the list")
}
