// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"slices"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// planner adds to a plan what a transition needs and reports whether that was
// all. It may stop after limit operations, and does so where there is no need to
// have them in one transaction.
type planner func(p *plan, tr *transition, limit int) (done bool)

// entry is one transition's part of a transaction.
type entry struct {
	tr   *transition
	plan plan
	// limit is the number of operations that there was room for.
	limit int
}

// run plans all transitions and sends them in transactions of at most
// [Options].BatchElements elements, if none needs more at once. A transition that the kernel refuses is
// rejected; the others are programmed. The error is one of those for which lost
// is true, or about a deletion.
func (s *Syncer) run(ctx context.Context, t *table, list []*transition, plan planner) error {
	q := &queue{syncer: s, table: t, plan: plan}
	for _, tr := range list {
		for done := false; !done && !s.isRejected(tr); {
			e := &entry{tr: tr, limit: s.options.BatchElements - q.size}
			done = plan(&e.plan, tr, e.limit)
			fits := len(e.plan.ops) <= e.limit || q.size == 0
			if fits {
				q.add(e)
			} else {
				e.plan.rollback()
				done = false
			}
			if !fits || max(q.size, len(q.entries)) >= s.options.BatchElements {
				if err := q.send(ctx); err != nil {
					return err
				}
			}
		}
	}
	return q.finish(ctx)
}

// queue sends one transaction while the next is planned: with two CPUs a start
// takes little longer than the kernel's part of it.
type queue struct {
	syncer *Syncer
	table  *table
	plan   planner
	// entries are those of the next transaction, with size operations.
	entries []*entry
	size    int
	// sending is the transaction under way, nil if there is none.
	sending *transaction
}

// transaction is a number of entries on their way to the kernel.
type transaction struct {
	entries []*entry
	ops     []op
	took    time.Duration
	err     error
	done    chan struct{}
}

func (q *queue) add(e *entry) {
	if len(e.plan.undo) > 0 {
		q.entries = append(q.entries, e)
		q.size += len(e.plan.ops)
	}
}

// send starts the next transaction, after the one under way.
func (q *queue) send(ctx context.Context) error {
	if err := q.await(ctx); err != nil {
		return err
	}
	tx := &transaction{entries: q.entries, ops: operations(q.entries), done: make(chan struct{})}
	q.entries, q.size, q.sending = nil, 0, tx
	go func() {
		defer close(tx.done)
		q.syncer.transact(ctx, q.table, tx)
	}()
	return nil
}

// finish sends what is left and waits until all is done.
func (q *queue) finish(ctx context.Context) error {
	if err := q.await(ctx); err != nil {
		return err
	}
	entries := q.entries
	q.entries, q.size = nil, 0
	return q.syncer.commit(ctx, q.table, entries, q.plan)
}

// await waits for the transaction under way. If it has failed, the entries
// planned meanwhile were planned for a table that is another now.
func (q *queue) await(ctx context.Context) error {
	tx := q.sending
	if tx == nil {
		return nil
	}
	<-tx.done
	q.sending = nil
	if tx.err == nil {
		q.syncer.account(q.table, tx)
		return nil
	}
	rollback(q.entries)
	if err := q.syncer.settleFailure(ctx, q.table, tx, q.plan); err != nil {
		return err
	}
	planned := q.entries
	q.entries, q.size = nil, 0
	for _, e := range planned {
		if !q.syncer.isRejected(e.tr) {
			q.plan(&e.plan, e.tr, e.limit)
			q.add(e)
		}
	}
	return nil
}

func operations(entries []*entry) []op {
	n := 0
	for _, e := range entries {
		n += len(e.plan.ops)
	}
	ops := make([]op, 0, n)
	for _, e := range entries {
		ops = append(ops, e.plan.ops...)
	}
	return ops
}

// rollback takes back entries that were not sent, or that the kernel refused.
func rollback(entries []*entry) {
	for _, e := range slices.Backward(entries) {
		e.plan.rollback()
	}
}

// commit sends the entries in one transaction and waits for it.
func (s *Syncer) commit(ctx context.Context, t *table, entries []*entry, plan planner) error {
	tx := &transaction{entries: entries, ops: operations(entries)}
	s.transact(ctx, t, tx)
	if tx.err != nil {
		return s.settleFailure(ctx, t, tx, plan)
	}
	s.account(t, tx)
	return nil
}

// transact has the kernel run a transaction. It touches nothing but tx.
func (s *Syncer) transact(ctx context.Context, t *table, tx *transaction) {
	if len(tx.ops) == 0 {
		return
	}
	start := time.Now()
	tx.err = s.kernel.apply(ctx, t.family, tx.ops)
	tx.took = time.Since(start)
}

// account counts a transaction that the kernel has run.
func (s *Syncer) account(t *table, tx *transaction) {
	if len(tx.ops) == 0 {
		return
	}
	s.noteCommit(tx.took)
	s.report.ElementsSent += len(tx.ops)
	for _, o := range tx.ops {
		if o.delete {
			t.elements--
		} else {
			t.elements++
		}
	}
}

// settleFailure takes back a transaction that failed as a whole and sends its
// halves, until the transition at fault stands alone.
func (s *Syncer) settleFailure(ctx context.Context, t *table, tx *transaction, plan planner) error {
	s.noteCommit(tx.took)
	rollback(tx.entries)
	err := describe(t.family, t.layout, tx.ops, tx.err)
	n := len(tx.entries)
	if lost(tx.err) || n == 1 && onlyDeletes(tx.ops) {
		return err
	}
	if n == 1 {
		s.reject(t, tx.entries[0].tr, err)
		return nil
	}
	for _, half := range [][]*entry{tx.entries[:n/2], tx.entries[n/2:]} {
		var planned []*entry
		for _, e := range half {
			if !s.isRejected(e.tr) {
				plan(&e.plan, e.tr, e.limit)
				planned = append(planned, e)
			}
		}
		if err := s.commit(ctx, t, planned, plan); err != nil {
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
