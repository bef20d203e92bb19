// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// Table is the kernel's table of flows.
type Table interface {
	// List yields the UDP flows to a frontend; all of the family if the frontend has
	// neither address nor port. It may yield others, and one of them several times.
	List(ctx context.Context, front Frontend, yield func(Flow)) error
	// Delete removes flows and returns how many of them were there. One that cannot
	// be removed does not keep the others.
	Delete(ctx context.Context, flows []Flow) (int, error)
}

// Options are what a [Syncer] is made of.
type Options struct {
	// Table is [Kernel] if nil.
	Table Table
	// Local returns a function that says whether an address is one of the node's. The
	// routing table is asked if nil.
	Local  func() func(netip.Addr) bool
	Logger *slog.Logger
	// Now is time.Now if nil.
	Now func() time.Time
}

// Syncer removes stale flows after each success of another Syncer.
type Syncer struct {
	dataplane.Syncer
	o         Options
	frontends *frontends
	// looks are those still to take, the earliest first.
	looks []look
	// retryAt is when to try again after so many failures, zero if there was none.
	retryAt  time.Time
	failures int
	started  bool
}

// look is an appointment to look at flows once more.
type look struct {
	at     time.Time
	fronts map[Frontend]struct{}
}

const (
	// secondLook is when flows are looked at once more: a packet may have been
	// between its lookup and the confirmation of its flow.
	secondLook = 200 * time.Millisecond
	// retryFirst is when a failure is tried again. It doubles with each, up to
	// retryLast.
	retryFirst = time.Second
	retryLast  = time.Minute
	// singly is the largest number of frontends whose flows are asked for one by
	// one. The kernel goes through its whole table each time.
	singly = 8
)

// pinLooks returns when flows of ServicePorts with session affinity are looked at,
// too. Pins are removed beside the sync, the more there are the later; until then they
// take their clients back to an endpoint that is gone.
func pinLooks() []time.Duration { return []time.Duration{time.Second, 5 * time.Second} }

// New returns a Syncer that calls inner.
func New(inner dataplane.Syncer, o Options) *Syncer {
	if o.Table == nil {
		o.Table = &Kernel{}
	}
	if o.Local == nil {
		o.Local = localAddresses
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Syncer{Syncer: inner, o: o, frontends: newFrontends()}
}

// Reset is part of dataplane.Syncer.
func (s *Syncer) Reset(ctx context.Context, state dataplane.State) (dataplane.Report, error) {
	// What happened to the flows before this process is not known.
	s.frontends.reset(&state, !s.started)
	s.started = true
	report, err := s.Syncer.Reset(ctx, state)
	if err != nil {
		return report, err
	}
	s.clean(ctx, &report)
	return report, nil
}

// Sync is part of dataplane.Syncer.
func (s *Syncer) Sync(ctx context.Context, update dataplane.Update) (dataplane.Report, error) {
	s.frontends.apply(&update)
	report, err := s.Syncer.Sync(ctx, update)
	if err != nil {
		return report, err
	}
	s.clean(ctx, &report)
	return report, nil
}

// clean removes the stale flows of dirty frontends, and of those that are due to be
// looked at again.
func (s *Syncer) clean(ctx context.Context, report *dataplane.Report) {
	now := s.o.Now()
	s.frontends.hold(report.Rejected)
	fresh := s.frontends.ready()
	fronts := maps.Clone(fresh)
	for len(s.looks) > 0 && !now.Before(s.looks[0].at) {
		maps.Copy(fronts, s.looks[0].fronts)
		s.looks = s.looks[1:]
	}
	s.retryAt = time.Time{}
	if len(fronts) > 0 {
		n, err := s.remove(ctx, fronts)
		report.StaleFlows += n
		if n > 0 {
			s.o.Logger.Info("removed stale UDP flows", "flows", n)
		}
		if err != nil {
			s.fail(now, fronts, err)
		} else {
			s.succeed(now, fresh)
		}
	}
	due := s.retryAt
	if len(s.looks) > 0 && (due.IsZero() || s.looks[0].at.Before(due)) {
		due = s.looks[0].at
	}
	if !due.IsZero() && (report.Due.IsZero() || due.Before(report.Due)) {
		report.Due = due
	}
}

// fail has the frontends looked at again.
func (s *Syncer) fail(now time.Time, fronts map[Frontend]struct{}, err error) {
	maps.Copy(s.frontends.dirty, fronts)
	wait := min(retryFirst<<min(s.failures, 10), retryLast)
	s.failures++
	s.retryAt = now.Add(wait)
	s.o.Logger.Warn("stale UDP flows could not be removed, trying again", "err", err, "in", wait)
}

// succeed makes appointments to look at the frontends again.
func (s *Syncer) succeed(now time.Time, fresh map[Frontend]struct{}) {
	s.failures = 0
	for front := range fresh {
		delete(s.frontends.dirty, front)
	}
	s.appoint(now.Add(secondLook), fresh)
	sticky := s.frontends.sticky(fresh)
	for _, after := range pinLooks() {
		s.appoint(now.Add(after), sticky)
	}
}

func (s *Syncer) appoint(at time.Time, fronts map[Frontend]struct{}) {
	if len(fronts) == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(s.looks, at, func(l look, at time.Time) int { return l.at.Compare(at) })
	s.looks = slices.Insert(s.looks, i, look{at, fronts})
}

// remove deletes the stale flows of the frontends and returns how many there were.
func (s *Syncer) remove(ctx context.Context, fronts map[Frontend]struct{}) (int, error) {
	local := s.o.Local()
	// Listings overlap where the kernel does not filter them.
	stale := make(map[Flow]struct{})
	collect := func(flow Flow) {
		if s.frontends.stale(&flow, fronts, local) {
			stale[flow] = struct{}{}
		}
	}
	var errs []error
	for front := range listings(fronts) {
		errs = append(errs, s.o.Table.List(ctx, front, collect))
	}
	n := 0
	if len(stale) > 0 {
		var err error
		n, err = s.o.Table.Delete(ctx, slices.Collect(maps.Keys(stale)))
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// listings returns what to ask the table for: few frontends one by one, otherwise
// all flows of their families.
func listings(fronts map[Frontend]struct{}) map[Frontend]struct{} {
	if len(fronts) <= singly {
		return fronts
	}
	families := make(map[Frontend]struct{})
	for front := range fronts {
		families[Frontend{Family: front.Family}] = struct{}{}
	}
	return families
}
