package guest

import (
	"os/exec"
	"strings"
	"testing"
)

func TestQuote(t *testing.T) {
	tests := []string{"", "plain", "two words", "it's", `"$HOME" \ ` + "`x`", "line\nline", "-n", "'''"}
	for _, word := range tests {
		t.Run(word, func(t *testing.T) {
			output, err := exec.Command("sh", "-c", "printf %s "+Quote(word)).Output()
			if err != nil || string(output) != word {
				t.Fatalf("the shell reads %s as %q, %v", Quote(word), output, err)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	run := Run{Docker: true, DataFS: "ext4", Init: "script", Cgroup: "hybrid", Command: []string{"echo", "it's"}, Environment: []string{"A=b c", "EMPTY="}}
	tests := []struct {
		file string
		want string
	}{
		{"etc/agentbox-vm/settings", "DOCKER=1\nDATA_FS='ext4'\nINIT='script'\nCGROUP='hybrid'\nSHELL_MODE=0\n"},
		{"etc/agentbox-vm/command", "export A='b c'\nexport EMPTY=''\ncd /payload || exit 125\nexec 'echo' 'it'\\''s'\n"},
		{"usr/lib/agentbox-vm/init", "#!/bin/sh\n"},
		{"usr/lib/agentbox-vm/cgroups", "#!/bin/sh\n"},
		{"usr/lib/agentbox-vm/docker-up", "#!/bin/sh\n"},
	}
	contents := map[string]string{}
	for _, file := range run.Files() {
		contents[file.Name] = string(file.Content)
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			if !strings.Contains(contents[tt.file], tt.want) {
				t.Fatalf("%s is\n%s\nwithout\n%s", tt.file, contents[tt.file], tt.want)
			}
		})
	}
}

// The unit is there only where systemd reads it, and starts a script that is.
func TestSystemdUnit(t *testing.T) {
	const name = "etc/systemd/system/agentbox-vm.service"
	for _, init := range Inits {
		t.Run(init, func(t *testing.T) {
			contents := map[string]string{}
			for _, file := range (Run{Init: init}).Files() {
				contents[file.Name] = string(file.Content)
			}
			unit, found := contents[name]
			if found != (init == Systemd) {
				t.Fatalf("the unit is there: %v", found)
			}
			if !found {
				return
			}
			_, rest, _ := strings.Cut(unit, "\nExecStart=/")
			program, _, _ := strings.Cut(rest, "\n")
			if contents[program] == "" {
				t.Errorf("the unit starts %q, which is not among the files", program)
			}
		})
	}
}

func TestScriptsParse(t *testing.T) {
	for _, name := range []string{"boot", "init", "initramfs", "cgroups", "docker-up", "docker-down", "import"} {
		t.Run(name, func(t *testing.T) {
			check := exec.Command("sh", "-n")
			check.Stdin = strings.NewReader(string(Script(name)))
			if output, err := check.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, output)
			}
		})
	}
}
