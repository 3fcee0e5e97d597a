package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agentbox/agentbox/pkg/ocicli"
)

// fail tells the caller why nothing was started: one sentence on stderr and, as
// runc does, as the last line of the --log file, which is all that Docker and
// containerd show. It returns the exit code.
func fail(cmd *ocicli.Command, err error) int {
	text := "agentbox: " + oneLine(err.Error())
	fmt.Fprintln(os.Stderr, text)
	if cmd != nil && cmd.Log != "" {
		if logErr := appendLog(cmd.Log, cmd.LogFormat, "error", text, time.Now()); logErr != nil {
			fmt.Fprintln(os.Stderr, "agentbox: write the log:", logErr)
		}
	}
	return 1
}

// warn tells about something that went wrong beside what the caller asked for.
// It goes to the --log file when there is one, since stderr may be the
// container's own.
func (inv *invocation) warn(err error) {
	text := "agentbox: " + oneLine(err.Error())
	if inv.cmd.Log == "" || appendLog(inv.cmd.Log, inv.cmd.LogFormat, "warning", text, time.Now()) != nil {
		fmt.Fprintln(os.Stderr, text)
	}
}

func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
}

// appendLog writes one line in the format of runc's logger.
func appendLog(path, format, level, text string, now time.Time) error {
	stamp := now.UTC().Format(time.RFC3339)
	line := fmt.Sprintf("time=%q level=%s msg=%q\n", stamp, level, text)
	if format == "json" {
		data, err := json.Marshal(struct {
			Level string `json:"level"`
			Msg   string `json:"msg"`
			Time  string `json:"time"`
		}{level, text, stamp})
		if err != nil {
			return err
		}
		line = string(data) + "\n"
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(line)
	return err
}
