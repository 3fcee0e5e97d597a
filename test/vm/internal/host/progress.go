// Package host is the harness's view of the machine it runs on: its packages,
// facts, scratch folders, and the lines a person reads while waiting.
package host

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// stillInterval is how long a step may be silent.
const stillInterval = 10 * time.Second

// Progress writes one line when a step begins, one for every ten seconds it
// takes, and one when it ends. The zero value is silent.
type Progress struct {
	w     io.Writer
	mutex sync.Mutex
}

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w} }

// Printf writes one line of its own.
func (p *Progress) Printf(format string, arguments ...any) {
	if p.w == nil {
		return
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	fmt.Fprintf(p.w, "vm: "+format+"\n", arguments...)
}

// Step announces work and returns the function that ends it.
func (p *Progress) Step(what string) (done func()) {
	p.Printf("%s ...", what)
	started := time.Now()
	ticker := time.NewTicker(stillInterval)
	stop := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for {
			select {
			case <-ticker.C:
				p.Printf("%s: still at it after %.0f s", what, time.Since(started).Seconds())
			case <-stop:
				return
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(stop)
		<-finished
		p.Printf("%s: %.1f s", what, time.Since(started).Seconds())
	}
}
