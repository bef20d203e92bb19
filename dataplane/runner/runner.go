// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"time"
)

// Options are the function and the pace of a [Runner].
type Options struct {
	// Run does the work. It returns when it wants to be called again even
	// without a trigger, or the zero time. An error makes the runner retry;
	// telling anybody about it is the business of Run.
	Run func(ctx context.Context) (next time.Time, err error)
	// MinInterval is the least time from the end of a call to a call that
	// [Runner.Trigger] asked for.
	MinInterval time.Duration
	// RetryMin is the delay after the first error of a row, doubled with each
	// further one up to RetryMax. Zero means 100 ms and 30 s.
	RetryMin, RetryMax time.Duration
	// Clock is the system's clock if nil.
	Clock Clock
}

// Runner calls a function at a bounded rate. Its methods may be called from
// any goroutine.
type Runner struct {
	o       Options
	trigger chan struct{}
	now     chan struct{}

	// The rest belongs to the goroutine of Loop.
	pending bool
	lastEnd time.Time // zero before the first call
	next    time.Time // when Run asked to be called, or zero
	retryAt time.Time // zero unless the last call failed
	delay   time.Duration
}

// New returns a runner that does nothing before [Runner.Loop].
func New(o Options) *Runner {
	if o.RetryMin <= 0 {
		o.RetryMin = 100 * time.Millisecond
	}
	if o.RetryMax <= 0 {
		o.RetryMax = 30 * time.Second
	}
	o.RetryMax = max(o.RetryMax, o.RetryMin)
	if o.Clock == nil {
		o.Clock = RealClock{}
	}
	return &Runner{o: o, trigger: make(chan struct{}, 1), now: make(chan struct{}, 1)}
}

// Trigger asks for a call. It never blocks; any number of triggers before the
// next call begins are one.
func (r *Runner) Trigger() { raise(r.trigger) }

// TriggerNow asks for a call without the minimum pause. The caller sees to it
// that this does not happen too often.
func (r *Runner) TriggerNow() { raise(r.now) }

func raise(flag chan struct{}) {
	select {
	case flag <- struct{}{}:
	default:
	}
}

// Loop calls the function as asked, one call at a time, until ctx is done. It
// returns the cause of that and must be called once.
func (r *Runner) Loop(ctx context.Context) error {
	for ctx.Err() == nil {
		if r.wait(ctx) {
			r.run(ctx)
		}
	}
	return context.Cause(ctx)
}

// wait blocks until something happens and says whether a call is due.
func (r *Runner) wait(ctx context.Context) bool {
	var fired <-chan time.Time
	if at, ok := r.due(); ok {
		pause := at.Sub(r.o.Clock.Now())
		if pause <= 0 {
			return true
		}
		timer := r.o.Clock.NewTimer(pause)
		defer timer.Stop()
		fired = timer.C()
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.trigger:
		r.pending = true
		return false
	case <-r.now:
		return true
	case <-fired:
		return true
	}
}

// due returns the earliest time at which a call is wanted.
func (r *Runner) due() (time.Time, bool) {
	var at time.Time
	wanted := false
	consider := func(t time.Time) {
		if !wanted || t.Before(at) {
			at, wanted = t, true
		}
	}
	if r.pending {
		if r.lastEnd.IsZero() {
			return r.o.Clock.Now(), true
		}
		consider(r.lastEnd.Add(r.o.MinInterval))
	}
	if !r.retryAt.IsZero() {
		consider(r.retryAt)
	}
	if !r.next.IsZero() {
		consider(r.next)
	}
	return at, wanted
}

func (r *Runner) run(ctx context.Context) {
	// What was asked for until here is done by this call.
	lower(r.trigger)
	lower(r.now)
	r.pending = false
	next, err := r.o.Run(ctx)
	r.lastEnd, r.next, r.retryAt = r.o.Clock.Now(), next, time.Time{}
	if err == nil {
		r.delay = 0
		return
	}
	r.delay = min(max(2*r.delay, r.o.RetryMin), r.o.RetryMax)
	r.retryAt = r.lastEnd.Add(r.delay)
}

func lower(flag chan struct{}) {
	select {
	case <-flag:
	default:
	}
}
