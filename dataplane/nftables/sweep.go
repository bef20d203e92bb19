// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// sweepAgain is how long after a sweep the same pins are looked at once more: a
// first packet may have been on its way to an endpoint while its pin was deleted,
// and may have written it again.
const sweepAgain = 200 * time.Millisecond

// pinKernel is what a sweep needs of the kernel.
type pinKernel interface {
	elements(ctx context.Context, f family, set string, yield func(element)) error
	apply(ctx context.Context, f family, ops []op) error
	close() error
}

// sweeper deletes pins. Listing many takes long, so it does not happen in Sync.
type sweeper struct {
	books  map[dataplane.Family]*pinBooks
	due    chan struct{}
	log    *slog.Logger
	size   int
	bounds int

	// mu has one sweep at a time; it guards kernel.
	mu     sync.Mutex
	kernel pinKernel
	// full are the maps that were found full and logged.
	full map[string]bool
}

func newSweeper(options Options, k pinKernel) *sweeper {
	w := &sweeper{
		books: make(map[dataplane.Family]*pinBooks), due: make(chan struct{}, 1), log: options.Logger,
		size: options.MaxPins, bounds: options.BatchElements, kernel: k, full: make(map[string]bool),
	}
	for _, f := range families() {
		w.books[f.id] = newPinBooks()
	}
	return w
}

// note takes what has changed.
func (w *sweeper) note(t *table, update *dataplane.Update) {
	books := w.books[t.family.id]
	for _, key := range update.Removed {
		if key.Family == t.family.id {
			books.set(key, nil, 0)
		}
	}
	for i := range update.Changed {
		if sp := &update.Changed[i]; sp.Key.Family == t.family.id {
			books.set(sp.Key, sp, t.ids.of(sp))
		}
	}
	w.wake()
}

// reset takes everything. All pins are looked at: they may be from before this
// process. Groups that this process knows of may still move.
func (w *sweeper) reset(t *table, ports []dataplane.ServicePort) {
	books := w.books[t.family.id]
	wanted := make(map[dataplane.ServicePortKey]struct{})
	for i := range ports {
		if ports[i].AffinitySeconds > 0 {
			wanted[ports[i].Key] = struct{}{}
			books.set(ports[i].Key, &ports[i], t.ids.of(&ports[i]))
		}
	}
	for _, key := range books.keys() {
		if _, ok := wanted[key]; !ok {
			books.set(key, nil, 0)
		}
	}
	books.markDirty(dataplane.Protocols()...)
	w.wake()
}

// keys returns the ServicePorts with session affinity.
func (b *pinBooks) keys() []dataplane.ServicePortKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	keys := make([]dataplane.ServicePortKey, 0, len(b.ports))
	for key := range b.ports {
		keys = append(keys, key)
	}
	return keys
}

// wake has Sweep called if there is something to look at.
func (w *sweeper) wake() {
	for _, books := range w.books {
		books.mu.Lock()
		dirty := len(books.dirty) > 0
		books.mu.Unlock()
		if !dirty {
			continue
		}
		select {
		case w.due <- struct{}{}:
		default:
		}
	}
}

// SweepReport says what a sweep did.
type SweepReport struct {
	// Pins are those that were looked at.
	Pins int
	// Deleted are those that led to an endpoint that their client may not use any
	// more, Changed those that got another timeout or key.
	Deleted, Changed int
}

// Sweep removes the pins of session affinity that the ServicePorts of the last Sync
// do not allow: of endpoints that are gone or not ready, of ServicePorts without
// affinity. It may be called while Sync runs, and lists only maps that something
// has changed for. After an error the next call looks at the same maps.
func (s *Syncer) Sweep(ctx context.Context) (SweepReport, error) {
	return s.sweeper.pass(ctx, s.families, s.sweeper.takeDirty())
}

// KeepPins sweeps whenever it is due, and once more a moment later, until ctx is
// done.
func (s *Syncer) KeepPins(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.sweeper.due:
		}
		what := s.sweeper.takeDirty()
		for range 2 {
			if _, err := s.sweeper.pass(ctx, s.families, what); err != nil && ctx.Err() == nil {
				s.log.Warn("pins of session affinity could not be swept, trying again", "err", err)
				s.sweeper.wake()
			}
			timer := time.NewTimer(sweepAgain)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

// takeDirty returns the pins that have to be looked at, and forgets that.
func (w *sweeper) takeDirty() map[dataplane.Family][]dataplane.Protocol {
	what := make(map[dataplane.Family][]dataplane.Protocol)
	for id, books := range w.books {
		what[id] = books.takeDirty()
	}
	return what
}

// pass looks at the pins of the families and protocols.
func (w *sweeper) pass(ctx context.Context, families []family, what map[dataplane.Family][]dataplane.Protocol) (SweepReport, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var report SweepReport
	for _, f := range families {
		books := w.books[f.id]
		for i, p := range what[f.id] {
			err := errors.Join(w.sweep(ctx, f, affinityMap(p), &report), w.sweep(ctx, f, affinityIDMap(p), &report))
			if err != nil {
				books.markDirty(what[f.id][i:]...)
				return report, fmt.Errorf("sweep pins of %s: %w", f.id, err)
			}
		}
		if len(what[f.id]) > 0 {
			books.moved()
		}
	}
	if report.Deleted+report.Changed > 0 {
		w.log.Debug("swept pins", "pins", report.Pins, "deleted", report.Deleted, "changed", report.Changed)
	}
	return report, nil
}

// sweep looks at the pins of one map.
func (w *sweeper) sweep(ctx context.Context, f family, set string, report *SweepReport) error {
	var units [][]op
	pins := 0
	err := w.kernel.elements(ctx, f, set, func(e element) {
		pins++
		if ops := w.books[f.id].judge(f, e); len(ops) > 0 {
			units = append(units, ops)
		}
	})
	if err != nil {
		return err
	}
	report.Pins += pins
	w.noteFull(f, set, pins)
	for _, unit := range units {
		if len(unit) == 1 {
			report.Deleted++
		} else {
			report.Changed++
		}
	}
	for len(units) > 0 {
		n := min(len(units), max(w.bounds/2, 1))
		if err := w.apply(ctx, f, units[:n]); err != nil {
			return err
		}
		units = units[n:]
	}
	return nil
}

// apply runs operations on pins. Meanwhile a pin may have expired, and one may have
// been written where another should move to; the others are done all the same.
func (w *sweeper) apply(ctx context.Context, f family, units [][]op) error {
	var ops []op
	for _, unit := range units {
		ops = append(ops, unit...)
	}
	err := w.kernel.apply(ctx, f, ops)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EEXIST):
		return err
	case len(units) > 1:
		half := len(units) / 2
		return errors.Join(w.apply(ctx, f, units[:half]), w.apply(ctx, f, units[half:]))
	case len(ops) > 1:
		return w.apply(ctx, f, [][]op{ops[:1]})
	default:
		return nil
	}
}

// noteFull says once that a map is full.
func (w *sweeper) noteFull(f family, set string, pins int) {
	name := f.ip + " " + set
	full := pins >= w.size
	if full && !w.full[name] {
		w.log.Warn("the map of session affinity is full: more clients are served, but not kept at an endpoint; see affinity.maxPins",
			"family", f.id, "map", set, "pins", pins)
	}
	w.full[name] = full
}
