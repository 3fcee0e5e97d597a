package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/agentbox/agentbox/test/vm/internal/console"
	"github.com/agentbox/agentbox/test/vm/internal/engine"
	"github.com/agentbox/agentbox/test/vm/internal/host"
)

// errTimeout marks a guest that was killed because its time was over.
var errTimeout = errors.New("the time is over")

// session is one guest from its start to its end.
type session struct {
	options       options
	stdout        io.Writer
	progress      *host.Progress
	headline      []string // facts of the host, printed before the guest's
	bootTimeout   time.Duration
	beforeCommand func() error // called when the command is about to start

	started time.Time
	facts   []string
	phases  []string
	boot    lastLines

	mutex    sync.Mutex // guards what follows: the console is read elsewhere
	running  bool       // the command has the console
	exitCode int
	problem  error // why there is no exit code

	commandStarted chan struct{} // closed with running
	finished       chan struct{} // closed with exitCode or problem
	finish         sync.Once
}

// run starts the engine and follows the guest until its command ended, its time
// is over, or the user had enough. The engine is dead when run returns.
func (s *session) run(ctx context.Context, command engine.Command, token string, input io.Reader) (int, error) {
	s.commandStarted = make(chan struct{})
	s.finished = make(chan struct{})
	var bootOutput io.Writer = &s.boot
	if s.options.verbose {
		bootOutput = io.MultiWriter(&s.boot, s.stdout)
	}
	var filter *console.Filter
	filter = console.NewFilter(token, bootOutput, func(message console.Message) { s.handle(message, filter) })

	s.progress.Printf("booting: %s", strings.TrimPrefix(s.headline[len(s.headline)-1], "engine: "))
	s.started = time.Now()
	process, err := engine.Start(command, input, filter)
	if err != nil {
		return 0, err
	}
	defer process.Kill()

	if err := s.follow(ctx, process); err != nil {
		process.Kill()
		return 0, errors.Join(err, filter.Flush())
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.exitCode, s.problem
}

// follow returns nil when the guest said how its command ended.
func (s *session) follow(ctx context.Context, process *engine.Process) error {
	bootTimer := time.NewTimer(s.bootTimeout)
	defer bootTimer.Stop()
	var whole <-chan time.Time
	if s.options.timeout > 0 {
		timer := time.NewTimer(s.options.timeout)
		defer timer.Stop()
		whole = timer.C
	}
	commandStarted := s.commandStarted
	for {
		select {
		case <-s.finished:
			s.awaitPowerOff(ctx, process)
			return nil
		case <-process.Done():
			select {
			case <-s.finished:
				return nil
			default:
				return s.silentEnd(process.Err())
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-commandStarted:
			bootTimer.Stop()
			commandStarted = nil
		case <-bootTimer.C:
			return s.explain(fmt.Errorf("%w: the guest did not boot within %v", errTimeout, s.bootTimeout))
		case <-whole:
			return s.explain(fmt.Errorf("%w: the guest was killed after %v", errTimeout, s.options.timeout))
		}
	}
}

// awaitPowerOff gives a guest that did its work the time to stop by itself.
func (s *session) awaitPowerOff(ctx context.Context, process *engine.Process) {
	s.mutex.Lock()
	problem := s.problem
	s.mutex.Unlock()
	if problem != nil {
		return
	}
	select {
	case <-process.Done():
	case <-time.After(powerOffGrace):
	case <-ctx.Done():
	}
}

// handle takes one control line; it runs on the goroutine that reads the console.
func (s *session) handle(message console.Message, filter *console.Filter) {
	switch message.Verb {
	case "FACT":
		s.facts = append(s.facts, "guest: "+message.Rest)
	case "PHASE":
		s.phases = append(s.phases, fmt.Sprintf("%s %.1f s", message.Rest, time.Since(s.started).Seconds()))
		if message.Rest == "command" {
			s.commandBegins(filter)
		}
	case "EXIT":
		// What follows is the kernel's farewell, not the command's output.
		filter.SetOutput(&s.boot)
		code, err := message.ExitCode()
		s.end(code, err)
	case "FAIL":
		s.end(0, s.explain(fmt.Errorf("the guest cannot go on: %s", message.Rest)))
	}
}

// commandBegins prints the facts and hands the console to the command.
func (s *session) commandBegins(filter *console.Filter) {
	for _, line := range append(append(s.headline, s.facts...), "boot: "+strings.Join(s.phases, ", ")) {
		fmt.Fprintln(s.stdout, line)
	}
	if s.beforeCommand != nil {
		if err := s.beforeCommand(); err != nil {
			s.end(0, err)
		}
	}
	// The boot log stays useful: it sees the command's last words too, which is
	// where a panic shows up.
	filter.SetOutput(io.MultiWriter(s.stdout, &s.boot))
	s.mutex.Lock()
	s.running = true
	s.mutex.Unlock()
	close(s.commandStarted)
}

func (s *session) end(code int, problem error) {
	s.finish.Do(func() {
		s.mutex.Lock()
		s.exitCode, s.problem = code, problem
		s.mutex.Unlock()
		close(s.finished)
	})
}

// silentEnd is the error for an engine that stopped before the guest reported an
// exit code. How the engine itself exited is worth a word only if it failed.
func (s *session) silentEnd(engineErr error) error {
	for _, line := range s.boot.last(200) {
		if _, reason, ok := strings.Cut(line, "Kernel panic - not syncing: "); ok {
			return s.explain(fmt.Errorf("the guest's kernel panicked: %s", reason))
		}
	}
	if engineErr != nil {
		return s.explain(fmt.Errorf("the guest stopped without an exit line: %w", engineErr))
	}
	return s.explain(errors.New("the guest stopped without an exit line"))
}

// explain shows the end of the boot log, unless the user saw it already, and
// returns err.
func (s *session) explain(err error) error {
	s.mutex.Lock()
	shown := s.running || s.options.verbose
	s.mutex.Unlock()
	if shown {
		return err
	}
	for _, line := range s.boot.last(20) {
		s.progress.Printf("guest: %s", line)
	}
	return err
}
