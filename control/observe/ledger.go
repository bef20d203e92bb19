// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// ledger joins the counters of the kernel with the ServicePorts that they are of.
// It belongs to whoever holds Observer.reading.
type ledger struct {
	alpha float64
	// interval is how long a counter has to be still before it is removed.
	interval time.Duration
	log      *slog.Logger
	warned   map[string]string

	records map[dataplane.ServicePortKey]*record
	// order is sorted by key; nil if it has to be made anew.
	order    []*record
	owners   map[FrontendID]*record
	counters map[SelectionKey]*counter
	// fresh are the records that are settled from this reading on or, if they were
	// programmed during it, from the next.
	fresh map[*record]moment
	// known says that nothing is being programmed: the kernel has no ServicePort that
	// is not known here.
	known bool

	readings   int
	selections uint64
	// losses are those of the last reading.
	losses      Losses
	programming Histogram
	effects     effects
	alarms      alarmBook
}

func newLedger(o *Options) *ledger {
	return &ledger{
		alpha: o.Alpha, interval: o.Interval, log: o.Logger, warned: make(map[string]string),
		records: make(map[dataplane.ServicePortKey]*record), owners: make(map[FrontendID]*record),
		counters: make(map[SelectionKey]*counter), fresh: make(map[*record]moment),
		effects: make(effects), alarms: newAlarmBook(o.Logger),
	}
}

// moment is when something was programmed.
type moment uint8

const (
	// before the counters were read.
	before moment = iota
	// during the reading.
	during
)

// learn takes over what is programmed.
func (l *ledger) learn(events []event, when moment) {
	for i := range events {
		e := &events[i]
		l.known = e.ended
		if !e.ended {
			l.unsettle(e.touched)
			continue
		}
		for _, key := range e.removed {
			l.remove(key)
		}
		for _, sp := range e.changed {
			l.program(sp, e.seen)
		}
		for _, key := range e.touched {
			if r := l.records[key]; r != nil {
				l.fresh[r] = when
			}
		}
	}
}

// unsettle has nothing be concluded from what is about to change.
func (l *ledger) unsettle(keys []dataplane.ServicePortKey) {
	for _, key := range keys {
		if r := l.records[key]; r != nil {
			r.settled = false
			delete(l.fresh, r)
		}
	}
}

func (l *ledger) program(sp *dataplane.ServicePort, seen time.Time) {
	r := l.records[sp.Key]
	if r == nil {
		r = new(record)
		l.records[sp.Key] = r
		l.order = nil
	} else {
		l.disown(r)
	}
	r.change(sp, seen)
	for _, id := range frontendsOf(sp) {
		l.owners[id] = r
	}
}

func (l *ledger) remove(key dataplane.ServicePortKey) {
	r := l.records[key]
	if r == nil {
		return
	}
	l.disown(r)
	r.gone = true
	delete(l.records, key)
	delete(l.fresh, r)
	l.order = nil
}

// disown takes a record's frontends away, but for those that others have taken over.
func (l *ledger) disown(r *record) {
	for _, id := range frontendsOf(r.port) {
		if l.owners[id] == r {
			delete(l.owners, id)
		}
	}
}

// enter adds what was counted since the last reading, and returns the counters that
// are of no more use.
func (l *ledger) enter(reading *Reading) []SelectionKey {
	l.readings++
	for _, r := range l.records {
		r.busy = false
	}
	var useless []SelectionKey
	for i := range reading.Selections {
		s := &reading.Selections[i]
		c := l.counters[s.SelectionKey]
		if c == nil {
			c = new(counter)
			l.counters[s.SelectionKey] = c
		}
		c.reading = l.readings
		l.resolve(c, &s.SelectionKey, reading.At)
		l.catchUp(c, s)
		if drawn, pinned := grown(&c.drawn, s.Drawn), grown(&c.pinned, s.Pinned); drawn+pinned > 0 {
			c.still = reading.At
			l.count(c, s, drawn, pinned, reading.At)
		}
		if l.known && c.useless(reading.At, l.interval) {
			useless = append(useless, s.SelectionKey)
		}
	}
	if len(l.counters) > len(reading.Selections) {
		maps.DeleteFunc(l.counters, func(_ SelectionKey, c *counter) bool { return c.reading != l.readings })
	}
	l.settle(reading.At)
	return useless
}

// forget drops counters that were removed from the kernel.
func (l *ledger) forget(keys []SelectionKey) {
	for _, key := range keys {
		delete(l.counters, key)
	}
}

// settle has what was programmed before this reading be settled from it on, and begins
// the epochs of new pools.
func (l *ledger) settle(now time.Time) {
	for r, when := range l.fresh {
		if when == during {
			l.fresh[r] = before
			continue
		}
		delete(l.fresh, r)
		r.settled = true
		for _, p := range r.pools {
			if p.since.IsZero() {
				p.since = now
				r.service = nil
			}
		}
	}
}

// resolve finds out what a counter counts, if that may have changed.
func (l *ledger) resolve(c *counter, key *SelectionKey, now time.Time) {
	if c.owner != nil && !c.owner.gone && c.owner.version == c.version {
		return
	}
	before := *c
	r, vip := l.owner(key.VIP)
	c.owner, c.pool, c.place, c.kind = r, nil, -1, unexpected
	if r != nil {
		c.version, c.owned = r.version, true
	}
	untranslated := key.Endpoint == netip.AddrPortFrom(key.VIP.Addr, key.VIP.Port)
	switch {
	case untranslated && (r == nil || !r.has(key.Endpoint)):
		c.kind = unserved
		if r != nil && r.serves(vip) {
			c.kind = missed
		}
	case r == nil:
	default:
		if c.pool = r.poolOf(vip); c.pool != nil {
			c.place = c.pool.find(key.Endpoint)
		}
		// A pod may use all endpoints by whichever frontend, those that serve while
		// they terminate included.
		if c.place >= 0 || c.pool == nil && r.has(key.Endpoint) {
			c.kind = expected
		}
	}
	if c.owner != before.owner || c.kind != before.kind || c.still.IsZero() {
		c.still = now
	}
}

// owner returns whose frontend a destination is, and the frontend.
func (l *ledger) owner(vip dataplane.VIP) (*record, dataplane.VIP) {
	family := dataplane.FamilyOf(vip.Addr)
	if r := l.owners[FrontendID{VIP: vip, Family: family}]; r != nil {
		return r, vip
	}
	vip.Addr = netip.Addr{}
	return l.owners[FrontendID{VIP: vip, Family: family}], vip
}

// count adds the growth of a counter to all that it belongs to.
func (l *ledger) count(c *counter, s *Selection, drawn, pinned uint64, now time.Time) {
	translated := c.kind == expected || c.kind == unexpected
	if translated {
		l.selections += drawn + pinned
	}
	r := c.owner
	if r == nil {
		if translated && !c.owned {
			c.earlyDrawn += drawn
			c.earlyPinned += pinned
		}
		return
	}
	r.service = nil
	if r.settled {
		switch c.kind {
		case unexpected:
			l.alarms.unknown(r, s, drawn+pinned, now)
		case missed:
			l.alarms.missed(r, s, drawn+pinned, now)
		case expected, unserved:
		}
	}
	if !translated {
		r.missed += drawn + pinned
		return
	}
	l.credit(c, s, drawn, pinned)
}

// catchUp gives a counter's first owner what was counted before it was known.
func (l *ledger) catchUp(c *counter, s *Selection) {
	if c.owner == nil || c.earlyDrawn+c.earlyPinned == 0 && (c.unplaced == 0 || c.kind != expected) {
		return
	}
	l.credit(c, s, c.earlyDrawn, c.earlyPinned)
	c.earlyDrawn, c.earlyPinned = 0, 0
}

// credit adds selections to their owner's totals and, if they were surely drawn from
// what is programmed now, to the epoch.
func (l *ledger) credit(c *counter, s *Selection, drawn, pinned uint64) {
	r := c.owner
	r.drawn += drawn
	r.pinned += pinned
	r.busy = true
	c.unplaced += drawn + pinned
	if c.kind != expected {
		return
	}
	r.enter(s, c.unplaced)
	c.unplaced = 0
	if c.pool != nil && r.settled {
		c.pool.drawn[c.place] += drawn
		c.pool.n += drawn
	}
	if seen, waits := r.waiting[s.Endpoint]; waits {
		delete(r.waiting, s.Endpoint)
		l.programmed(s.First.Sub(seen))
	}
}

// enter adds to the total of an endpoint.
func (r *record) enter(s *Selection, n uint64) {
	t := r.tally[s.Endpoint]
	if t == nil {
		if r.tally == nil {
			r.tally = make(map[netip.AddrPort]*tally)
		}
		t = &tally{first: s.First, last: s.Last}
		r.tally[s.Endpoint] = t
	}
	t.n += n
	if s.First.Before(t.first) {
		t.first = s.First
	}
	if s.Last.After(t.last) {
		t.last = s.Last
	}
}

// longestProgramming is what is still taken for the time of programming. A longer one
// says that there were no clients.
const longestProgramming = time.Minute

func (l *ledger) programmed(took time.Duration) {
	if took >= 0 && took <= longestProgramming {
		l.programming.Add(took)
	}
}

// judge brings verdicts and alarms up to date.
func (l *ledger) judge(reading *Reading) {
	if full := reading.Losses.Full; full > l.losses.Full {
		l.alarms.full(full-l.losses.Full, reading.At)
	}
	l.losses = reading.Losses
	l.judgePools(reading.At)
	l.alarms.settle(reading.At)
}

// view makes a snapshot.
func (l *ledger) view(reading *Reading, status ProbeStatus) *Snapshot {
	s := &Snapshot{
		At: reading.At, Probes: status, Services: make([]*Service, len(l.sorted())),
		Alarms: l.alarms.list(), Latencies: reading.Latencies, Losses: reading.Losses,
		Programming: l.programming, Selections: l.selections,
	}
	for i, r := range l.sorted() {
		s.Services[i] = r.view()
	}
	for i := range reading.Latencies {
		if reading.Latencies[i].Outcome == Foreign {
			s.Foreign += reading.Latencies[i].Total()
		}
	}
	return s
}

// failed makes a snapshot of the last one and why there is none that is newer.
func (l *ledger) failed(last *Snapshot, err error) *Snapshot {
	l.warnOnce("cannot read the probes' counters", err)
	s := *last
	s.ReadError = err.Error()
	s.Services = make([]*Service, len(l.sorted()))
	for i, r := range l.sorted() {
		s.Services[i] = r.view()
	}
	return &s
}

func (l *ledger) sorted() []*record {
	if l.order == nil {
		l.order = slices.SortedFunc(maps.Values(l.records), func(a, b *record) int {
			return a.port.Key.Compare(b.port.Key)
		})
	}
	return l.order
}

// warnOnce logs an error if it is another than the last of its kind.
func (l *ledger) warnOnce(what string, err error) {
	if l.warned[what] != err.Error() {
		l.warned[what] = err.Error()
		l.log.Warn("the kernel is not observed as it should be", "problem", what, "err", err)
	}
}
