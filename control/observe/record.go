// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/netip"
	"slices"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// record is what is known of a ServicePort.
type record struct {
	port *dataplane.ServicePort
	// version is another after each change, and gone says that there is none any
	// more: what was found out about the ServicePort before does not hold.
	version int
	gone    bool
	// settled says that the kernel has had it as it is here, during the whole interval
	// before this reading.
	settled bool
	pools   []*pool
	// drawn, pinned and missed are totals.
	drawn, pinned, missed uint64
	// busy says that there were selections in the interval before this reading.
	busy  bool
	tally map[netip.AddrPort]*tally
	// waiting says since when endpoints that came while there was traffic have been
	// wanted without being selected.
	waiting map[netip.AddrPort]time.Time
	// service is what snapshots show, nil if it has to be made anew.
	service *Service
}

// tally is the total of an endpoint.
type tally struct {
	n           uint64
	first, last time.Time
}

// change makes the ServicePort what it has become. An epoch goes on where nothing
// that is drawn from has changed.
func (r *record) change(sp *dataplane.ServicePort, seen time.Time) {
	old := r.pools
	r.port = sp
	r.version++
	r.settled = false
	r.service = nil
	r.pools = nil
	for _, p := range poolsOf(sp) {
		i := slices.IndexFunc(old, func(o *pool) bool { return o.local == p.local && o.continues(p) })
		if i < 0 {
			r.pools = append(r.pools, p)
			continue
		}
		// Whether it is on this node may have changed.
		old[i].endpoints = p.endpoints
		r.pools = append(r.pools, old[i])
	}
	r.await(old, seen)
	for addr := range r.tally {
		if !r.has(addr) {
			delete(r.tally, addr)
		}
	}
}

// await starts to wait for the first selection of endpoints that have come.
func (r *record) await(old []*pool, seen time.Time) {
	for addr := range r.waiting {
		if !r.has(addr) {
			delete(r.waiting, addr)
		}
	}
	if !r.busy || seen.IsZero() {
		return
	}
	for _, p := range r.pools {
		for i := range p.endpoints {
			addr := p.endpoints[i].Addr
			known := slices.ContainsFunc(old, func(o *pool) bool { return o.find(addr) >= 0 })
			if known || r.tally[addr] != nil {
				continue
			}
			if r.waiting == nil {
				r.waiting = make(map[netip.AddrPort]time.Time)
			}
			r.waiting[addr] = seen
		}
	}
}

// poolsOf returns the sets that the ServicePort's frontends draw from: those of
// policy Local only if they differ.
func poolsOf(sp *dataplane.ServicePort) []*pool {
	pools := []*pool{newPool(false, sp.Algorithm, sp.Endpoints)}
	if !sp.InternalLocal && (sp.External == nil || !sp.External.Local) {
		return pools
	}
	local := newPool(true, sp.Algorithm, sp.LocalEndpoints)
	if pools[0].continues(local) {
		return pools
	}
	return append(pools, local)
}

// has says whether a frontend may lead to the endpoint.
func (r *record) has(addr netip.AddrPort) bool {
	return slices.ContainsFunc(r.pools, func(p *pool) bool { return p.find(addr) >= 0 })
}

// poolOf returns what connections to the VIP draw from. It is nil where that depends
// on the client: an external frontend under policy Local gives clients from outside
// the endpoints of this node, and pods all.
func (r *record) poolOf(vip dataplane.VIP) *pool {
	if len(r.pools) == 1 {
		return r.pools[0]
	}
	if vip == r.port.VIP() {
		if r.port.InternalLocal {
			return r.pools[1]
		}
		return r.pools[0]
	}
	if r.port.External.Local {
		return nil
	}
	return r.pools[0]
}

// serves says whether every client of the VIP has an endpoint.
func (r *record) serves(vip dataplane.VIP) bool {
	if p := r.poolOf(vip); p != nil {
		return len(p.endpoints) > 0
	}
	return len(r.pools[0].endpoints) > 0 && len(r.pools[1].endpoints) > 0
}

// view returns what snapshots show of it.
func (r *record) view() *Service {
	if r.service != nil {
		return r.service
	}
	sp := r.port
	s := &Service{
		Key: sp.Key, VIPs: sp.VIPs(), Algorithm: sp.Algorithm, AffinitySeconds: sp.AffinitySeconds,
		Drawn: r.drawn, Pinned: r.pinned, Missed: r.missed, Pools: make([]Pool, len(r.pools)),
	}
	for i, p := range r.pools {
		s.Pools[i] = Pool{
			Local: p.local, Since: p.since, Evenness: p.evenness, Endpoints: make([]Endpoint, len(p.endpoints)),
		}
		for j, ep := range p.endpoints {
			view := Endpoint{
				Addr: ep.Addr, Local: ep.Local, Buckets: ep.Buckets(), Share: p.shares[j], Drawn: p.drawn[j],
			}
			if t := r.tally[ep.Addr]; t != nil {
				view.Total, view.First, view.Last = t.n, t.first, t.last
			}
			s.Pools[i].Endpoints[j] = view
		}
	}
	r.service = s
	return s
}
