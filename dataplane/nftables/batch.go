// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"slices"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// planner adds to a plan what a transition needs, about limit operations at
// most, and reports whether that was all.
type planner func(p *plan, tr *transition, limit int) (done bool)

// entry is one transition's part of a transaction.
type entry struct {
	tr   *transition
	plan plan
}

// run plans all transitions and sends them in transactions of about limit
// elements. A transition that the kernel refuses is rejected; the others are
// programmed. The error is one of those for which [lost] is true, or about a
// deletion.
func (s *Syncer) run(ctx context.Context, t *table, list []*transition, plan planner) error {
	var entries []*entry
	size := 0
	flush := func() error {
		err := s.commit(ctx, t, entries, plan)
		entries, size = nil, 0
		return err
	}
	for _, tr := range list {
		for done := false; !done && !s.isRejected(tr); {
			e := &entry{tr: tr}
			done = plan(&e.plan, tr, s.options.BatchElements-size)
			if len(e.plan.undo) > 0 {
				entries = append(entries, e)
				size += len(e.plan.ops)
			}
			if max(size, len(entries)) >= s.options.BatchElements {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}

// commit sends the entries in one transaction. If it fails, it sends the halves,
// until the transition at fault stands alone.
func (s *Syncer) commit(ctx context.Context, t *table, entries []*entry, plan planner) error {
	var ops []op
	for _, e := range entries {
		ops = append(ops, e.plan.ops...)
	}
	if len(ops) == 0 {
		return nil
	}
	err := s.apply(ctx, t, ops)
	if err == nil {
		return nil
	}
	for i := range entries {
		entries[len(entries)-1-i].plan.rollback()
	}
	switch {
	case lost(err), len(entries) == 1 && onlyDeletes(ops):
		return describe(t.family, t.layout, ops, err)
	case len(entries) == 1:
		s.reject(t, entries[0].tr, describe(t.family, t.layout, ops, err))
		return nil
	}
	for _, half := range [][]*entry{entries[:len(entries)/2], entries[len(entries)/2:]} {
		for _, e := range half {
			plan(&e.plan, e.tr, s.options.BatchElements)
		}
		if err := s.commit(ctx, t, half, plan); err != nil {
			return err
		}
	}
	return nil
}

// onlyDeletes says that a refusal is not about an element that a ServicePort wants:
// what should be deleted is not what it was thought to be.
func onlyDeletes(ops []op) bool {
	return !slices.ContainsFunc(ops, func(o op) bool { return !o.delete })
}

// apply runs one transaction of elements and keeps count.
func (s *Syncer) apply(ctx context.Context, t *table, ops []op) error {
	start := time.Now()
	err := s.kernel.apply(ctx, t.family, ops)
	s.noteCommit(time.Since(start))
	if err != nil {
		return err
	}
	s.report.ElementsSent += len(ops)
	for _, o := range ops {
		if o.delete {
			t.elements--
		} else {
			t.elements++
		}
	}
	return nil
}

func (s *Syncer) noteCommit(d time.Duration) {
	s.report.Transactions++
	s.report.LongestCommit = max(s.report.LongestCommit, d)
}

// Back-off of rejected ServicePorts. Nothing but a change of the object or of
// the kernel's limits helps, so there is no hurry.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

// rejected is a transition to a ServicePort that the kernel refused.
type rejected struct {
	tr    *transition
	err   error
	delay time.Duration
	at    time.Time
}

func (s *Syncer) reject(t *table, tr *transition, err error) {
	delay := firstRetry
	if old := s.rejected[tr.vip]; old != nil {
		delay = min(2*old.delay, lastRetry)
	}
	s.rejected[tr.vip] = &rejected{tr: tr, err: err, delay: delay, at: s.options.Now().Add(delay)}
	s.refused[tr] = struct{}{}
	s.log.Error("the kernel refused a ServicePort; the others are programmed, this one is tried again",
		"servicePort", tr.to.Key.String(), "err", err, "retryIn", delay)
	// Rows may be there already that no verdict leads to.
	var p plan
	t.planTrimAt(&p, tr.vip, s.options.Now().Add(s.options.SurplusDelay))
}

func (s *Syncer) isRejected(tr *transition) bool {
	_, ok := s.refused[tr]
	return ok
}

// retries forgets the rejected transitions that the update makes obsolete, and
// returns the VIPs that they were about and the other transitions that are due.
// A VIP passes on only in an update that names the ServicePort that wanted it.
func (s *Syncer) retries(update *dataplane.Update, now time.Time) (due []*rejected, calledOff []dataplane.VIP) {
	if len(s.rejected) == 0 {
		return nil, nil
	}
	keys := make(map[dataplane.ServicePortKey]struct{}, len(update.Removed)+len(update.Changed))
	for _, key := range update.Removed {
		keys[key] = struct{}{}
	}
	for i := range update.Changed {
		keys[update.Changed[i].Key] = struct{}{}
	}
	for vip, r := range s.rejected {
		_, obsolete := keys[r.tr.to.Key]
		switch {
		case obsolete:
			delete(s.rejected, vip)
			calledOff = append(calledOff, vip)
		case !r.at.After(now):
			due = append(due, r)
		}
	}
	return due, calledOff
}
