// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// ledger makes few series from the counts of many Services and endpoints. No series
// ever decreases while what it is about is there, and nothing that was counted is
// missing from the sum of all series, or in it twice.
//
// What it keeps, and what a fold costs, grows with the Services that were selected,
// and not with their endpoints, except for those that have a series.
type ledger struct {
	serviceLimit, endpointLimit int

	services map[dataplane.ServicePortKey]*serviceEntry
	// shown are the Services with a series of their own.
	shown []*serviceEntry
	// endpoints is how many have a series of their own.
	endpoints int
	// serviceRest and endpointRest are what all others counted, also those that
	// are gone.
	serviceRest, endpointRest uint64
	// missed is that of all Services.
	missed uint64
	// round numbers the folds.
	round uint64
}

// counter is the last value of a counter that can be restarted at 0.
type counter uint64

// advance returns what was counted since the last value.
func (c *counter) advance(value uint64) uint64 {
	delta := value
	if last := uint64(*c); value >= last {
		delta -= last
	}
	*c = counter(value)
	return delta
}

// serviceEntry is what is known of a Service that counted something.
type serviceEntry struct {
	// service is that of the last fold.
	service          *observe.Service
	selected, missed counter
	shown            bool
	// series is the value of its own series.
	series uint64
	// delta is what it counted since the fold before, unclaimed the part that no
	// endpoint with a series did.
	delta, unclaimed uint64
	// endpoints are those that have a series, sorted.
	endpoints []endpointEntry
	// refused is the first round in which there was no room for an endpoint that
	// had counted something, 0 if there was none.
	refused uint64
	round   uint64
}

// endpointEntry is an endpoint with a series of its own.
type endpointEntry struct {
	addr     netip.AddrPort
	selected counter
	series   uint64
	round    uint64
}

func newLedger(serviceLimit, endpointLimit int) *ledger {
	return &ledger{
		serviceLimit: serviceLimit, endpointLimit: endpointLimit,
		services: make(map[dataplane.ServicePortKey]*serviceEntry),
	}
}

// fold takes the counts of all Services that there are.
func (l *ledger) fold(services []*observe.Service) {
	l.round++
	var active, hidden []*serviceEntry
	for _, service := range services {
		e := l.entry(service)
		if e == nil {
			continue
		}
		e.delta = e.selected.advance(service.Selections())
		l.missed += e.missed.advance(service.Missed)
		l.advanceEndpoints(e)
		if e.delta > 0 {
			active = append(active, e)
		}
		switch {
		case e.shown:
			e.series += e.delta
		case e.selected > 0:
			hidden = append(hidden, e)
		}
	}
	l.forget()
	l.showServices(hidden)
	l.showEndpoints(active)
}

// entry returns what is known of the Service, nil if it has counted nothing yet.
func (l *ledger) entry(service *observe.Service) *serviceEntry {
	e := l.services[service.Key]
	if e == nil {
		if service.Selections() == 0 && service.Missed == 0 {
			return nil
		}
		e = &serviceEntry{}
		l.services[service.Key] = e
	}
	e.service, e.round = service, l.round
	return e
}

// advanceEndpoints takes the counts of the endpoints that have a series, and ends
// the series of those that are gone.
func (l *ledger) advanceEndpoints(e *serviceEntry) {
	e.unclaimed = e.delta
	if len(e.endpoints) == 0 {
		return
	}
	for endpoint := range endpoints(e.service) {
		if at, found := e.find(endpoint.Addr); found {
			known := &e.endpoints[at]
			known.round = l.round
			known.series += e.claim(known.selected.advance(endpoint.Total))
		}
	}
	before := len(e.endpoints)
	e.endpoints = slices.DeleteFunc(e.endpoints, func(known endpointEntry) bool { return known.round != l.round })
	l.endpoints -= before - len(e.endpoints)
}

// claim returns the part of what an endpoint counted that its Service counted, too:
// all of it, if both were read at the same time.
func (e *serviceEntry) claim(delta uint64) uint64 {
	delta = min(delta, e.unclaimed)
	e.unclaimed -= delta
	return delta
}

// endpoints returns those of all pools, each once: what it counted is that of all.
func endpoints(service *observe.Service) iter.Seq[*observe.Endpoint] {
	return func(yield func(*observe.Endpoint) bool) {
		for i := range service.Pools {
			for j := range service.Pools[i].Endpoints {
				endpoint := &service.Pools[i].Endpoints[j]
				if i > 0 && inPools(service.Pools[:i], endpoint.Addr) {
					continue
				}
				if !yield(endpoint) {
					return
				}
			}
		}
	}
}

func inPools(pools []observe.Pool, addr netip.AddrPort) bool {
	return slices.ContainsFunc(pools, func(pool observe.Pool) bool {
		return slices.ContainsFunc(pool.Endpoints, func(e observe.Endpoint) bool { return e.Addr == addr })
	})
}

// find returns where the endpoint is among those with a series, or would be.
func (e *serviceEntry) find(addr netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(e.endpoints, addr, func(known endpointEntry, addr netip.AddrPort) int {
		return known.addr.Compare(addr)
	})
}

// forget removes the Services that are gone.
func (l *ledger) forget() {
	for key, e := range l.services {
		if e.round != l.round {
			delete(l.services, key)
			l.endpoints -= len(e.endpoints)
		}
	}
	l.shown = slices.DeleteFunc(l.shown, func(e *serviceEntry) bool { return e.round != l.round })
}

// showServices gives series to the hidden Services with the highest counts as long
// as there is room.
func (l *ledger) showServices(hidden []*serviceEntry) {
	room := max(l.serviceLimit-len(l.shown), 0)
	if room > 0 && len(hidden) > room {
		slices.SortFunc(hidden, func(a, b *serviceEntry) int {
			return cmp.Or(cmp.Compare(b.selected, a.selected), a.service.Key.Compare(b.service.Key))
		})
	}
	for i, e := range hidden {
		if i >= room {
			l.serviceRest += e.delta
			continue
		}
		e.shown, e.series = true, e.delta
		l.shown = append(l.shown, e)
	}
}

// showEndpoints does for endpoints what showServices does for Services. Only those of
// Services that counted something can be new.
func (l *ledger) showEndpoints(active []*serviceEntry) {
	chosen := choice{size: max(l.endpointLimit-l.endpoints, 0), round: l.round}
	if chosen.size > 0 {
		// Those with most first, so that others are refused whole.
		slices.SortFunc(active, func(a, b *serviceEntry) int { return cmp.Compare(b.selected, a.selected) })
	}
	for _, e := range active {
		if !chosen.wants(uint64(e.selected)) {
			chosen.refuse(e)
			continue
		}
		for endpoint := range endpoints(e.service) {
			if _, known := e.find(endpoint.Addr); !known && endpoint.Total > 0 {
				chosen.add(newcomer{e, endpoint})
			}
		}
	}
	for _, n := range chosen.list {
		at, _ := n.service.find(n.endpoint.Addr)
		shown := endpointEntry{addr: n.endpoint.Addr, selected: counter(n.endpoint.Total), round: l.round}
		// What it counted while it was hidden is in the rest.
		if n.service.refused == 0 || n.service.refused == l.round {
			shown.series = n.service.claim(n.endpoint.Total)
		}
		n.service.endpoints = slices.Insert(n.service.endpoints, at, shown)
	}
	l.endpoints += len(chosen.list)
	for _, e := range active {
		l.endpointRest += e.unclaimed
	}
}

// newcomer is an endpoint that counted something and has no series.
type newcomer struct {
	service  *serviceEntry
	endpoint *observe.Endpoint
}

func (n newcomer) compare(o newcomer) int {
	if order := cmp.Compare(o.endpoint.Total, n.endpoint.Total); order != 0 {
		return order
	}
	return cmp.Or(n.service.service.Key.Compare(o.service.service.Key), n.endpoint.Addr.Compare(o.endpoint.Addr))
}

// choice keeps the newcomers with the highest counts, sorted, and notes whose were
// refused.
type choice struct {
	size  int
	round uint64
	list  []newcomer
}

// wants says whether an endpoint with that count may be chosen.
func (c *choice) wants(count uint64) bool {
	return len(c.list) < c.size || c.size > 0 && count >= c.list[c.size-1].endpoint.Total
}

func (c *choice) add(n newcomer) {
	if len(c.list) == c.size {
		last := c.list[len(c.list)-1]
		if n.compare(last) > 0 {
			c.refuse(n.service)
			return
		}
		c.refuse(last.service)
		c.list = c.list[:len(c.list)-1]
	}
	at, _ := slices.BinarySearchFunc(c.list, n, newcomer.compare)
	c.list = slices.Insert(c.list, at, n)
}

func (c *choice) refuse(e *serviceEntry) {
	if e.refused == 0 && e.unclaimed > 0 {
		e.refused = c.round
	}
}
