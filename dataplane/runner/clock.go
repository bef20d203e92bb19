// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package runner

import "time"

// Clock tells the time and waits.
type Clock interface {
	Now() time.Time
	// NewTimer returns a timer that fires once, d from now.
	NewTimer(d time.Duration) Timer
}

// Timer is one pending wait of a [Clock].
type Timer interface {
	C() <-chan time.Time
	// Stop releases the timer; its channel may or may not fire afterwards.
	Stop()
}

// RealClock is the system's clock.
type RealClock struct{}

// Now is part of [Clock].
func (RealClock) Now() time.Time { return time.Now() }

// NewTimer is part of [Clock].
func (RealClock) NewTimer(d time.Duration) Timer { return realTimer{time.NewTimer(d)} }

type realTimer struct{ timer *time.Timer }

func (t realTimer) C() <-chan time.Time { return t.timer.C }
func (t realTimer) Stop()               { t.timer.Stop() }
