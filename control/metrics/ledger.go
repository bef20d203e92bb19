// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"iter"
	"slices"
)

// ledger makes counters of few series from counters of many subjects. No series
// ever decreases while its subject is there, and the sum of all is what all subjects
// counted.
type ledger[K comparable] struct {
	limit   int
	compare func(a, b K) int
	entries map[K]*entry
	// shown has the subjects with a series of their own.
	shown []K
	// rest is what subjects without one counted, also those that are gone.
	rest uint64
	// round numbers the calls of fold.
	round uint64
}

// entry is what is known of a subject.
type entry struct {
	// last is the count that was last seen.
	last uint64
	// series is the value of the subject's own series.
	series uint64
	shown  bool
	round  uint64
}

// newLedger returns a ledger of at most limit series and the rest. compare is the
// order of subjects with equal counts.
func newLedger[K comparable](limit int, compare func(a, b K) int) *ledger[K] {
	return &ledger[K]{limit: limit, compare: compare, entries: make(map[K]*entry)}
}

// candidate is a subject without a series of its own.
type candidate[K comparable] struct {
	key   K
	entry *entry
	// count is what was counted since the last time, total all there is.
	count, total uint64
}

// fold takes the counts of all subjects that there are; of one that comes twice, the
// first. A count below the last one is that of a counter that was restarted at 0.
func (l *ledger[K]) fold(counts iter.Seq2[K, uint64]) {
	l.round++
	var candidates []candidate[K]
	for key, count := range counts {
		e := l.entries[key]
		if e == nil {
			if count == 0 {
				continue
			}
			e = &entry{}
			l.entries[key] = e
		}
		if e.round == l.round {
			continue
		}
		e.round = l.round
		delta := e.advance(count)
		if e.shown {
			e.series += delta
		} else {
			candidates = append(candidates, candidate[K]{key, e, delta, count})
		}
	}
	l.forget()
	l.admit(candidates)
}

// advance returns what was counted since the last time.
func (e *entry) advance(count uint64) uint64 {
	delta := count
	if count >= e.last {
		delta -= e.last
	}
	e.last = count
	return delta
}

// forget removes the subjects that are gone.
func (l *ledger[K]) forget() {
	for key, e := range l.entries {
		if e.round != l.round {
			delete(l.entries, key)
		}
	}
	l.shown = slices.DeleteFunc(l.shown, func(key K) bool { return l.entries[key] == nil })
}

// admit gives series to the candidates with the highest counts as long as there is
// room, and adds what the others counted to the rest.
func (l *ledger[K]) admit(candidates []candidate[K]) {
	room := max(l.limit-len(l.shown), 0)
	if room > 0 && len(candidates) > room {
		slices.SortFunc(candidates, func(a, b candidate[K]) int {
			return cmp.Or(cmp.Compare(b.total, a.total), l.compare(a.key, b.key))
		})
	}
	for i, c := range candidates {
		if i >= room {
			l.rest += c.count
			continue
		}
		c.entry.shown, c.entry.series = true, c.count
		l.shown = append(l.shown, c.key)
	}
}

// series returns the subjects with series of their own and their values.
func (l *ledger[K]) series() iter.Seq2[K, uint64] {
	return func(yield func(K, uint64) bool) {
		for _, key := range l.shown {
			if !yield(key, l.entries[key].series) {
				return
			}
		}
	}
}

// has says whether the subject has a series of its own.
func (l *ledger[K]) has(key K) bool {
	e := l.entries[key]
	return e != nil && e.shown
}
