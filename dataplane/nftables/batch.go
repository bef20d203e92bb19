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
// [Options].BatchElements elements, if none needs more at once. A transition that
// the kernel refuses is rejected; the others are programmed. The error is one of
// those for which lost is true, or about a deletion.
func (s *Syncer) run(ctx context.Context, t *table, list []*transition, plan planner) error {
	q := &queue{syncer: s, table: t, plan: plan, next: &transaction{}, spare: &transaction{}}
	for _, tr := range list {
		for done := false; !done && !s.isRejected(tr); {
			e := entry{tr: tr, limit: s.options.BatchElements - len(q.next.ops), plan: q.next.room()}
			done = plan(&e.plan, tr, e.limit)
			fits := len(e.plan.ops) <= e.limit || len(q.next.ops) == 0
			if fits {
				q.next.add(e)
			} else {
				e.plan.rollback()
				done = false
			}
			if !fits || max(len(q.next.ops), len(q.next.entries)) >= s.options.BatchElements {
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
	// next is the transaction that is planned.
	next *transaction
	// sending is the transaction under way, nil if there is none.
	sending *transaction
	// spare is a transaction that is over. Its memory is used again: a start
	// would leave tens of megabytes of them in garbage.
	spare *transaction
}

// transaction is a number of entries on their way to the kernel.
type transaction struct {
	entries []entry
	// ops are all that the entries do, undo all that takes it back.
	ops  []op
	undo []func()
	took time.Duration
	err  error
	done chan struct{}
}

// room returns a plan in the free memory of the transaction. What is planned
// there stays where it is when it is added.
func (tx *transaction) room() plan {
	return plan{ops: tx.ops[len(tx.ops):], undo: tx.undo[len(tx.undo):]}
}

// add adds an entry, unless it changes nothing.
func (tx *transaction) add(e entry) {
	if len(e.plan.undo) > 0 {
		tx.entries = append(tx.entries, e)
		tx.ops = append(tx.ops, e.plan.ops...)
		tx.undo = append(tx.undo, e.plan.undo...)
	}
}

// clear returns an empty transaction in the memory of tx.
func (tx *transaction) clear() *transaction {
	clear(tx.undo)
	return &transaction{entries: tx.entries[:0], ops: tx.ops[:0], undo: tx.undo[:0]}
}

// send starts the next transaction, after the one under way.
func (q *queue) send(ctx context.Context) error {
	if err := q.await(ctx); err != nil {
		return err
	}
	// A socket belongs to the network namespace of the thread that opens it.
	if err := q.syncer.kernel.open(ctx); err != nil {
		return err
	}
	tx := q.next
	q.next, q.spare, q.sending = q.spare.clear(), &transaction{}, tx
	tx.done = make(chan struct{})
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
	return q.syncer.commit(ctx, q.table, q.next, q.plan)
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
		q.spare = tx
		return nil
	}
	planned := q.next.entries
	q.next.rollback()
	if err := q.syncer.settleFailure(ctx, q.table, tx, q.plan); err != nil {
		return err
	}
	q.next = q.syncer.replan(planned, q.plan)
	return nil
}

// replan plans entries that were rolled back once more, without those that have
// been rejected since.
func (s *Syncer) replan(entries []entry, plan planner) *transaction {
	tx := &transaction{}
	for _, old := range entries {
		if !s.isRejected(old.tr) {
			e := entry{tr: old.tr, limit: old.limit}
			plan(&e.plan, e.tr, e.limit)
			tx.add(e)
		}
	}
	return tx
}

// rollback makes the table what it was before the transaction was planned.
func (tx *transaction) rollback() { takeBack(tx.undo) }

// commit sends a transaction and waits for it.
func (s *Syncer) commit(ctx context.Context, t *table, tx *transaction, plan planner) error {
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

// account counts a transaction that the kernel has run. Only now does the time
// begin that surplus rows stay: the kernel may have kept the transaction waiting.
func (s *Syncer) account(t *table, tx *transaction) {
	trimAt := s.options.Now().Add(s.options.SurplusDelay)
	for _, e := range tx.entries {
		if e.plan.surplus {
			t.trimAt(e.tr.vip, trimAt)
		}
	}
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
	tx.rollback()
	err := describe(t.family, tx.ops, tx.err)
	n := len(tx.entries)
	if lost(tx.err) || n == 1 && onlyDeletes(tx.ops) {
		return err
	}
	if n == 1 {
		s.reject(t, tx.entries[0].tr, err)
		return nil
	}
	for _, half := range [][]entry{tx.entries[:n/2], tx.entries[n/2:]} {
		if err := s.commit(ctx, t, s.replan(half, plan), plan); err != nil {
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

// frontendID names a VIP among both families: a NodePort has no address.
type frontendID struct {
	family dataplane.Family
	vip    dataplane.VIP
}

func (s *Syncer) reject(t *table, tr *transition, err error) {
	id := frontendID{t.family.id, tr.vip}
	delay := firstRetry
	if old := s.rejected[id]; old != nil {
		delay = min(2*old.delay, lastRetry)
	}
	s.rejected[id] = &rejected{tr: tr, err: err, delay: delay, at: s.options.Now().Add(delay)}
	s.refused[tr] = struct{}{}
	// The report tells the caller; how often it is tried is for who looks closer.
	s.log.Debug("the kernel refused a ServicePort; the others are programmed, this one is tried again",
		"servicePort", tr.to.Key.String(), "vip", tr.vip.String(), "err", err, "retryIn", delay)
	// Rows may be there already that no verdict leads to.
	t.trimAt(tr.vip, s.options.Now().Add(s.options.SurplusDelay))
}

func (s *Syncer) isRejected(tr *transition) bool {
	_, ok := s.refused[tr]
	return ok
}

// retries forgets the rejected transitions that the update makes obsolete, and
// returns by family the VIPs that they were about and the other transitions that
// are due. A VIP passes on only in an update that names the ServicePort that wanted
// it.
func (s *Syncer) retries(update *dataplane.Update, now time.Time) (
	due map[dataplane.Family][]*transition, calledOff map[dataplane.Family][]dataplane.VIP,
) {
	if len(s.rejected) == 0 {
		return nil, nil
	}
	due = make(map[dataplane.Family][]*transition)
	calledOff = make(map[dataplane.Family][]dataplane.VIP)
	keys := make(map[dataplane.ServicePortKey]struct{}, len(update.Removed)+len(update.Changed))
	for _, key := range update.Removed {
		keys[key] = struct{}{}
	}
	for i := range update.Changed {
		keys[update.Changed[i].Key] = struct{}{}
	}
	for id, r := range s.rejected {
		_, obsolete := keys[r.tr.to.Key]
		switch {
		case obsolete:
			delete(s.rejected, id)
			calledOff[id.family] = append(calledOff[id.family], id.vip)
		case !r.at.After(now):
			due[id.family] = append(due[id.family], r.tr)
		}
	}
	return due, calledOff
}
