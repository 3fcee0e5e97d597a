package install

import (
	"bytes"
	"fmt"
	"strings"
)

// UnitName is the service that runs the supervisor.
const UnitName = "agentbox-supervise.service"

// unitText is that service (systemd.service(5)). A supervisor that was killed is
// back at once, and however often that happens: without it there are limits that
// nobody enforces.
const unitText = `# Made by agentbox install systemd, and removed by agentbox uninstall systemd.
# Changes belong in a drop-in: systemctl edit ` + UnitName + `

[Unit]
Description=Holds sandboxes to the limits that the kernel does not enforce
Before=docker.service containerd.service crio.service
StartLimitIntervalSec=0

[Service]
ExecStart=%s supervise
Restart=always
RestartSec=100ms
Slice=agentbox.slice
OOMScoreAdjust=-900
UMask=0077

[Install]
WantedBy=multi-user.target
`

// unitFile is a file that is agentbox's as a whole.
type unitFile struct{}

func (unitFile) add(name string, data []byte, want Want) (Edit, error) {
	if strings.ContainsFunc(want.Runtime, func(r rune) bool { return !plain(r) }) {
		return Edit{}, fmt.Errorf("the path %q has characters that mean something in a unit of systemd: move the program", want.Runtime)
	}
	text := fmt.Appendf(nil, unitText, want.Runtime)
	switch {
	case bytes.Equal(data, text):
		return Edit{Data: data}, nil
	case len(bytes.TrimSpace(data)) > 0:
		return Edit{}, &ExistsError{File: name, Line: 1, Key: UnitName, Has: "there"}
	}
	return Edit{Data: text, Added: []Added{{Path: []string{UnitName}}}}, nil
}

func plain(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("/._+-", r)
}

func (unitFile) remove(string, []byte, []Added) ([]byte, error) { return nil, nil }

func (unitFile) holds(data []byte) bool { return len(bytes.TrimSpace(data)) > 0 }

func (unitFile) defaults(string, []byte) (line int, key string) { return 0, "" }
