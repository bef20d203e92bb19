// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// Table is the kernel's table of flows.
type Table interface {
	// List yields the UDP flows to a frontend; all of the family if the frontend has
	// neither address nor port. It may yield others.
	List(ctx context.Context, front Frontend, yield func(Flow)) error
	// Delete removes a flow. One that is gone is no error.
	Delete(ctx context.Context, flow Flow) error
}

// Options are what a [Syncer] is made of.
type Options struct {
	// Table is that of the calling thread's network namespace if nil.
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
	// again are frontends that are looked at once more at recheck: a packet may have
	// been between its lookup and the confirmation of its flow.
	again   map[Frontend]struct{}
	recheck time.Time
	started bool
}

const (
	// secondLook is when flows are looked at once more, and when a failure is tried
	// again.
	secondLook = 200 * time.Millisecond
	retry      = time.Second
	// singly is the largest number of frontends whose flows are asked for one by
	// one. The kernel goes through its whole table each time.
	singly = 8
)

// New returns a Syncer that calls inner.
func New(inner dataplane.Syncer, o Options) *Syncer {
	o.Table = cmp.Or[Table](o.Table, &netlinkTable{})
	if o.Local == nil {
		o.Local = localAddresses
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Syncer{Syncer: inner, o: o, frontends: newFrontends(), again: make(map[Frontend]struct{})}
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
	look := maps.Clone(s.frontends.dirty)
	if !s.recheck.IsZero() && !now.Before(s.recheck) {
		maps.Copy(look, s.again)
		clear(s.again)
		s.recheck = time.Time{}
	}
	if len(look) > 0 {
		n, err := s.remove(ctx, look)
		report.StaleFlows += n
		if n > 0 {
			s.o.Logger.Info("removed stale UDP flows", "flows", n)
		}
		switch {
		case err != nil:
			s.o.Logger.Warn("stale UDP flows could not be removed, trying again", "err", err)
			maps.Copy(s.frontends.dirty, look)
			s.due(now.Add(retry))
		case len(s.frontends.dirty) > 0:
			maps.Copy(s.again, s.frontends.dirty)
			clear(s.frontends.dirty)
			s.due(now.Add(secondLook))
		}
	}
	if !s.recheck.IsZero() && (report.Due.IsZero() || s.recheck.Before(report.Due)) {
		report.Due = s.recheck
	}
}

// due makes an appointment, unless there is an earlier one.
func (s *Syncer) due(at time.Time) {
	if s.recheck.IsZero() || at.Before(s.recheck) {
		s.recheck = at
	}
}

// remove deletes the stale flows of the frontends and returns how many there were.
func (s *Syncer) remove(ctx context.Context, look map[Frontend]struct{}) (int, error) {
	local := s.o.Local()
	// Listings overlap where the kernel does not filter them.
	stale := make(map[Flow]struct{})
	collect := func(flow Flow) {
		if front, ok := frontendOf(&flow, look); ok && s.frontends.stale(front, &flow, local) {
			stale[flow] = struct{}{}
		}
	}
	var errs []error
	for front := range listings(look) {
		errs = append(errs, s.o.Table.List(ctx, front, collect))
	}
	n := 0
	for flow := range stale {
		if err := s.o.Table.Delete(ctx, flow); err != nil {
			errs = append(errs, err)
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}

// listings returns what to ask the table for: few frontends one by one, otherwise
// all flows of their families.
func listings(look map[Frontend]struct{}) map[Frontend]struct{} {
	if len(look) <= singly {
		return look
	}
	families := make(map[Frontend]struct{})
	for front := range look {
		families[Frontend{Family: front.Family}] = struct{}{}
	}
	return families
}
