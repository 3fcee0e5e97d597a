package supervise

import "github.com/agentbox/agentbox/pkg/fallback"

// Engine is fallback.Engine.
type Engine interface {
	Run() error // until Close
	Add(s fallback.Sandbox) error
	Close() // what was stopped runs on
}

// newEngine makes the engine. Tests have one of their own.
var newEngine = func(h fallback.Host) (Engine, error) { return fallback.New(h) }
