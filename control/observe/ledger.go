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
	alpha  float64
	log    *slog.Logger
	warned map[string]string

	records map[dataplane.ServicePortKey]*record
	// order is sorted by key; nil if it has to be made anew.
	order    []*record
	owners   map[FrontendID]*record
	counters map[SelectionKey]*counter
	// fresh are the records whose epochs begin with this reading or, if they changed
	// during it, with the next.
	fresh map[*record]moment

	readings   int
	selections uint64
	// losses are those of the last reading.
	losses      Losses
	programming Histogram
	effects     effects
	alarms      alarmBook
}

// counter is one of the kernel's, as it was at the last reading.
type counter struct {
	drawn, pinned uint64
	// owner is who it counts for, nil for nobody; found at its version.
	owner   *record
	version int
	pool    *pool
	// place is that of the endpoint in the pool, -1 if it is not there.
	place int
	kind  selectionKind
	// suspect is by how much it has grown though it should not have. It becomes an
	// alarm if the next reading finds it as wrong: what is programmed is known a
	// moment after the kernel has it.
	suspect uint64
	// quiet is for how many readings it has not changed.
	quiet int
	// reading is the last one that had it.
	reading int
}

// selectionKind says what a counter counts.
type selectionKind uint8

const (
	// expected: an endpoint that the ServicePort has.
	expected selectionKind = iota
	// unexpected: one that it does not have.
	unexpected
	// missed: the frontend was not translated.
	missed
)

// quietReadings is after how many readings without a change the counter of an
// endpoint that has left is removed: it is drawn no more, and packets that were under
// way are through.
const quietReadings = 2

func newLedger(alpha float64, log *slog.Logger) *ledger {
	return &ledger{
		alpha: alpha, log: log, warned: make(map[string]string),
		records: make(map[dataplane.ServicePortKey]*record), owners: make(map[FrontendID]*record),
		counters: make(map[SelectionKey]*counter), fresh: make(map[*record]moment),
		effects: make(effects), alarms: newAlarmBook(log),
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

// learn takes over what was programmed.
func (l *ledger) learn(events []event, when moment) {
	for i := range events {
		e := &events[i]
		r := l.records[e.key]
		if r != nil {
			for _, id := range frontendsOf(r.port) {
				if l.owners[id] == r {
					delete(l.owners, id)
				}
			}
		}
		if e.port == nil {
			if r != nil {
				r.gone = true
				delete(l.records, e.key)
				delete(l.fresh, r)
				l.order = nil
			}
			continue
		}
		if r == nil {
			r = new(record)
			l.records[e.key] = r
			l.order = nil
		}
		r.change(e)
		l.fresh[r] = when
		for _, id := range frontendsOf(e.port) {
			l.owners[id] = r
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
	var gone []SelectionKey
	for i := range reading.Selections {
		s := &reading.Selections[i]
		c := l.counters[s.SelectionKey]
		if c == nil {
			c = new(counter)
			l.counters[s.SelectionKey] = c
		}
		c.reading = l.readings
		l.resolve(c, &s.SelectionKey)
		l.suspect(c, s, reading.At)
		drawn, pinned := grown(&c.drawn, s.Drawn), grown(&c.pinned, s.Pinned)
		if drawn+pinned > 0 {
			c.quiet = 0
			l.count(c, s, drawn, pinned)
			continue
		}
		c.quiet++
		if c.owner == nil || c.kind == unexpected && c.quiet >= quietReadings {
			gone = append(gone, s.SelectionKey)
		}
	}
	for _, key := range gone {
		delete(l.counters, key)
	}
	if len(l.counters) > len(reading.Selections)-len(gone) {
		maps.DeleteFunc(l.counters, func(_ SelectionKey, c *counter) bool { return c.reading != l.readings })
	}
	l.settle(reading.At)
	return gone
}

// grown returns by how much a counter has grown, and remembers it. One that has become
// smaller was removed and began anew.
func grown(before *uint64, now uint64) uint64 {
	more := now - *before
	if now < *before {
		more = now
	}
	*before = now
	return more
}

// settle begins the epochs of what has changed before this reading.
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
func (l *ledger) resolve(c *counter, key *SelectionKey) {
	if c.owner != nil && !c.owner.gone && c.owner.version == c.version {
		return
	}
	r, vip := l.owner(key.VIP)
	c.owner, c.pool, c.place, c.kind = r, nil, -1, unexpected
	if r == nil {
		return
	}
	c.version = r.version
	if key.Endpoint == netip.AddrPortFrom(key.VIP.Addr, key.VIP.Port) && !r.has(key.Endpoint) {
		c.kind = missed
		return
	}
	if c.pool = r.poolOf(vip); c.pool != nil {
		c.place = c.pool.find(key.Endpoint)
	}
	// A pod may use all endpoints by whichever frontend, those that serve while they
	// terminate included.
	if c.place >= 0 || c.pool == nil && r.has(key.Endpoint) {
		c.kind = expected
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
func (l *ledger) count(c *counter, s *Selection, drawn, pinned uint64) {
	r := c.owner
	if r == nil {
		l.selections += drawn + pinned
		return
	}
	r.service = nil
	if c.kind == missed {
		r.missed += drawn + pinned
		if r.settled && r.serves(frontendVIP(r, s.VIP)) {
			c.suspect += drawn + pinned
		}
		return
	}
	l.selections += drawn + pinned
	r.drawn += drawn
	r.pinned += pinned
	r.busy = true
	if c.kind == unexpected {
		if r.settled {
			c.suspect += drawn + pinned
		}
		return
	}
	r.enter(s, drawn+pinned)
	if c.pool != nil && !c.pool.since.IsZero() {
		c.pool.drawn[c.place] += drawn
		c.pool.n += drawn
	}
	if seen, waits := r.waiting[s.Endpoint]; waits {
		delete(r.waiting, s.Endpoint)
		l.programmed(s.First.Sub(seen))
	}
}

// suspect raises an alarm about what the last reading found wrong and is wrong still.
func (l *ledger) suspect(c *counter, s *Selection, now time.Time) {
	n := c.suspect
	if n == 0 {
		return
	}
	c.suspect = 0
	switch r := c.owner; {
	case r == nil || !r.settled:
	case c.kind == unexpected:
		l.alarms.unknown(r, s, n, now)
	case c.kind == missed && r.serves(frontendVIP(r, s.VIP)):
		l.alarms.missed(r, s, n, now)
	}
}

// frontendVIP returns the VIP of r that a destination belongs to: a NodePort has no
// address.
func frontendVIP(r *record, vip dataplane.VIP) dataplane.VIP {
	if slices.Contains(r.port.VIPs(), vip) {
		return vip
	}
	vip.Addr = netip.Addr{}
	return vip
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
