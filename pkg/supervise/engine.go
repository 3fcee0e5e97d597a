package supervise

import (
	"errors"

	"github.com/agentbox/agentbox/pkg/fallback"
)

// newEngine makes the engine; tests have one of their own.
var newEngine = func(fallback.Host) (Engine, error) {
	return nil, errors.New("no engine")
}
