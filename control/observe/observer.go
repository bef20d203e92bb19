// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/runner"
)

// Options are what an [Observer] is made of.
type Options struct {
	// Probes may be nil: then nothing is observed, and Status says why.
	Probes Probes
	// Status is that of no Probes.
	Status ProbeStatus
	Logger *slog.Logger
	// Clock is the system's if nil.
	Clock runner.Clock
	// Interval is the time between two readings. 5 s if 0.
	Interval time.Duration
	// Alpha bounds false alarms of statistics: the share of false ones among the
	// Services that are reported as uneven, and the chance that an endpoint is
	// falsely reported as never selected. 1e-3 if 0: among ten thousand Services
	// that are all even, evidence of 10⁷ is needed to report one.
	Alpha float64
}

const (
	defaultInterval = 5 * time.Second
	defaultAlpha    = 1e-3
)

// Observer is a [dataplane.Syncer] that knows what the one behind it has programmed,
// and what the probes saw of it.
type Observer struct {
	dataplane.Syncer
	o         Options
	frontends frontends

	// mu guards what the goroutine that programs hands to the one that reads.
	mu     sync.Mutex
	events []event
	// begun asks Run to read now, so that draws count from the start.
	begun chan struct{}

	// reading is held while the counters are read.
	reading  sync.Mutex
	ledger   *ledger
	snapshot atomic.Pointer[Snapshot]
}

// event is the begin or the end of a call that programs.
type event struct {
	// ended says that it succeeded. After one that did not, nobody knows what the
	// kernel has until another has.
	ended bool
	// touched are the ServicePorts that it is about: at its begin those that become
	// something else, at its end all that the kernel has for sure.
	touched []dataplane.ServicePortKey
	// changed and removed are those that have become something else, once it ended.
	changed []*dataplane.ServicePort
	removed []dataplane.ServicePortKey
	// seen is when the changes were noticed.
	seen time.Time
}

// New returns an Observer before inner.
func New(inner dataplane.Syncer, o Options) *Observer {
	if o.Clock == nil {
		o.Clock = runner.RealClock{}
	}
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.Alpha == 0 {
		o.Alpha = defaultAlpha
	}
	if o.Probes != nil {
		o.Status = o.Probes.Status()
	}
	obs := &Observer{
		Syncer: inner, o: o, ledger: newLedger(&o),
		frontends: newFrontends(o.Probes, o.Logger), begun: make(chan struct{}, 1),
	}
	obs.snapshot.Store(&Snapshot{Probes: o.Status})
	return obs
}

// Reset is part of dataplane.Syncer.
func (o *Observer) Reset(ctx context.Context, state dataplane.State) (dataplane.Report, error) {
	// Before they are programmed, so that their first connection is counted.
	o.frontends.addAll(state.ServicePorts)
	o.queue(event{touched: o.frontends.differing(state.ServicePorts)})
	end := event{ended: true, seen: o.o.Clock.Now()}
	report, err := o.Syncer.Reset(ctx, state)
	if err != nil {
		return report, err
	}
	end.removed = o.frontends.retain(state.ServicePorts)
	for key, sp := range state.ServicePorts {
		end.touched = append(end.touched, key)
		if o.frontends.note(&sp) {
			end.changed = append(end.changed, &sp)
		}
	}
	o.queue(end)
	select {
	case o.begun <- struct{}{}:
	default:
	}
	return report, nil
}

// Sync is part of dataplane.Syncer.
func (o *Observer) Sync(ctx context.Context, update dataplane.Update) (dataplane.Report, error) {
	o.frontends.add(update.Changed)
	begin := event{touched: slices.Clone(update.Removed)}
	end := event{ended: true, seen: update.Seen, removed: update.Removed}
	for i := range update.Changed {
		sp := &update.Changed[i]
		end.touched = append(end.touched, sp.Key)
		if o.frontends.differs(sp) {
			begin.touched = append(begin.touched, sp.Key)
		}
	}
	o.queue(begin)
	report, err := o.Syncer.Sync(ctx, update)
	if err != nil {
		return report, err
	}
	for _, key := range update.Removed {
		o.frontends.remove(key)
	}
	for i := range update.Changed {
		sp := update.Changed[i]
		if o.frontends.note(&sp) {
			end.changed = append(end.changed, &sp)
		}
	}
	o.frontends.flush()
	o.queue(end)
	return report, nil
}

func (o *Observer) queue(e event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}

func (o *Observer) take() []event {
	o.mu.Lock()
	defer o.mu.Unlock()
	events := o.events
	o.events = nil
	return events
}

// Run reads at intervals, and after each Reset, until ctx is done.
func (o *Observer) Run(ctx context.Context) error {
	for {
		timer := o.o.Clock.NewTimer(o.o.Interval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C():
			o.Refresh()
		case <-o.begun:
			timer.Stop()
			o.Refresh()
		}
	}
}

// Snapshot returns the last one. It is not nil, and not to be changed.
func (o *Observer) Snapshot() *Snapshot { return o.snapshot.Load() }

// Refresh reads the counters now and returns what they say. The error of a reading is
// in the Snapshot.
func (o *Observer) Refresh() *Snapshot {
	o.reading.Lock()
	defer o.reading.Unlock()
	// What is programmed before the counters are read is what they are compared
	// with: draws that are counted later are of it.
	o.ledger.learn(o.take(), before)
	reading, err := o.read()
	// What came meanwhile may have been counted or not.
	o.ledger.learn(o.take(), during)
	if err != nil {
		return o.publish(o.ledger.failed(o.snapshot.Load(), err))
	}
	useless := o.ledger.enter(&reading)
	if o.o.Probes != nil {
		if err := o.o.Probes.Forget(useless); err != nil {
			o.ledger.warnOnce("cannot remove counters of endpoints that have left", err)
		} else {
			o.ledger.forget(useless)
		}
		o.ledger.judge(&reading)
	}
	return o.publish(o.ledger.view(&reading, o.o.Status))
}

// read returns an empty reading without probes.
func (o *Observer) read() (Reading, error) {
	if o.o.Probes == nil {
		return Reading{At: o.o.Clock.Now()}, nil
	}
	return o.o.Probes.Read()
}

func (o *Observer) publish(s *Snapshot) *Snapshot {
	o.snapshot.Store(s)
	return s
}
