package main

import (
	"encoding/json"
	"fmt"

	eventtypes "github.com/containerd/containerd/api/events"

	"github.com/agentbox/agentbox/pkg/result"
)

// verdictTopic is the topic of the event that tells why a sandbox ended. It goes
// out just before the TaskExit of the first process.
const verdictTopic = "/agentbox/verdict"

// The labels of that event. Filters of containerd can use them, as in
// event.labels."agentbox.dev/status"==OOM_KILLED.
const (
	labelStatus = "agentbox.dev/status"
	labelCode   = "agentbox.dev/error-code"
	labelResult = "agentbox.dev/result" // the whole result, as agentbox inspect --json prints it
)

// verdictEvent makes the event of a result. Every client of containerd shows an
// event only if it knows its type, and containerd's own update of a container is
// the one that has an id and room for text.
func verdictEvent(r *result.Result) (*eventtypes.ContainerUpdate, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write the result of %s: %w", r.ID, err)
	}
	return &eventtypes.ContainerUpdate{ID: r.ID, Labels: map[string]string{
		labelStatus: string(r.Status),
		labelCode:   string(r.ErrorCode),
		labelResult: string(data),
	}}, nil
}
