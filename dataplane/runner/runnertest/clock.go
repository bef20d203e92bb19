// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package runnertest

import (
	"sync"
	"time"

	"github.com/veridict/veridict/dataplane/runner"
)

// Clock stands still except for Advance. It may be used from any goroutine.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*timer]struct{}
}

var _ runner.Clock = (*Clock)(nil)

// NewClock returns a clock that shows some fixed time.
func NewClock() *Clock {
	return &Clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), timers: map[*timer]struct{}{}}
}

// Now is part of [runner.Clock].
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// NewTimer is part of [runner.Clock].
func (c *Clock) NewTimer(d time.Duration) runner.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{clock: c, at: c.now.Add(d), c: make(chan time.Time, 1)}
	c.timers[t] = struct{}{}
	c.fire()
	return t
}

// Advance lets time pass and fires the timers that become due.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.fire()
}

func (c *Clock) fire() {
	for t := range c.timers {
		if !t.at.After(c.now) {
			t.c <- c.now
			delete(c.timers, t)
		}
	}
}

type timer struct {
	clock *Clock
	at    time.Time
	c     chan time.Time
}

// C is part of [runner.Timer].
func (t *timer) C() <-chan time.Time { return t.c }

// Stop is part of [runner.Timer].
func (t *timer) Stop() {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	delete(t.clock.timers, t)
}
