// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane/runner"
	"github.com/veridict/veridict/dataplane/runner/runnertest"
)

// harness runs a loop whose calls it notes by the time since the start.
type harness struct {
	*runner.Runner
	clock *runnertest.Clock
	start time.Time
	calls []time.Duration
	// answer is what the next calls return; next is from the time of the call.
	next time.Duration
	err  error
}

func (h *harness) run(context.Context) (time.Time, error) {
	h.calls = append(h.calls, h.clock.Now().Sub(h.start))
	if h.next == 0 {
		return time.Time{}, h.err
	}
	return h.clock.Now().Add(h.next), h.err
}

// pass lets d pass in steps of 10 ms, with the loop running at each.
func (h *harness) pass(d time.Duration) {
	synctest.Wait()
	for range d / (10 * time.Millisecond) {
		h.clock.Advance(10 * time.Millisecond)
		synctest.Wait()
	}
}

func (h *harness) trigger() {
	h.Trigger()
	synctest.Wait()
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func TestRunner(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		do   func(h *harness)
		want []time.Duration
	}{
		{"nothing without a trigger", func(h *harness) { h.pass(seconds(5)) }, nil},
		{"the first trigger is served at once", func(h *harness) {
			h.pass(seconds(2))
			h.trigger()
		}, []time.Duration{seconds(2)}},
		{"triggers within the minimum pause are one call", func(h *harness) {
			h.trigger()
			for range 3 {
				h.pass(seconds(0.1))
				h.trigger()
			}
			h.pass(seconds(5))
		}, []time.Duration{0, seconds(1)}},
		{"a trigger after the pause is served at once", func(h *harness) {
			h.trigger()
			h.pass(seconds(3))
			h.trigger()
		}, []time.Duration{0, seconds(3)}},
		{"TriggerNow does not wait", func(h *harness) {
			h.trigger()
			h.pass(seconds(0.1))
			h.TriggerNow()
			h.pass(seconds(3))
		}, []time.Duration{0, seconds(0.1)}},
		{"errors are retried with growing delays up to the longest", func(h *harness) {
			h.err = errors.New("no")
			h.trigger()
			h.pass(seconds(3))
		}, []time.Duration{0, seconds(0.1), seconds(0.3), seconds(0.7), seconds(1.2), seconds(1.7), seconds(2.2), seconds(2.7)}},
		{"a success starts the delays anew", func(h *harness) {
			h.err = errors.New("no")
			h.trigger()
			h.pass(seconds(0.2))
			h.err = nil
			h.pass(seconds(1))
			h.err = errors.New("no")
			h.pass(seconds(1))
			h.trigger()
			h.pass(seconds(0.1))
		}, []time.Duration{0, seconds(0.1), seconds(0.3), seconds(2.2), seconds(2.3)}},
		{"a trigger does not wait for a retry that is far off", func(h *harness) {
			h.err = errors.New("no")
			h.trigger()
			h.pass(seconds(0.8))
			h.err = nil
			h.trigger()
			h.pass(seconds(5))
		}, []time.Duration{0, seconds(0.1), seconds(0.3), seconds(0.7), seconds(1.2)}},
		{"the function is called when it asked for it", func(h *harness) {
			h.next = seconds(0.3)
			h.trigger()
			h.pass(seconds(0.5))
			h.next = 0
			h.pass(seconds(5))
		}, []time.Duration{0, seconds(0.3), seconds(0.6)}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &harness{clock: runnertest.NewClock()}
				h.start = h.clock.Now()
				h.Runner = runner.New(runner.Options{
					Run: h.run, MinInterval: time.Second, RetryMax: seconds(0.5), Clock: h.clock,
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				ended := make(chan error)
				go func() { ended <- h.Loop(ctx) }()
				synctest.Wait()
				test.do(h)
				stop := errors.New("stop")
				cancel(stop)
				if err := <-ended; !errors.Is(err, stop) {
					t.Errorf("Loop returned %v, want the cause", err)
				}
				if diff := cmp.Diff(test.want, h.calls); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestTriggerDuringCallIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := runnertest.NewClock()
		calls := 0
		var r *runner.Runner
		r = runner.New(runner.Options{Clock: clock, Run: func(context.Context) (time.Time, error) {
			if calls++; calls == 1 {
				r.Trigger()
			}
			return time.Time{}, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = r.Loop(ctx) }()
		r.Trigger()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
	})
}
