// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// Traffic writes pins and refreshes them, but never changes where they lead. One
// whose endpoint left its ServicePort has to be deleted, or its client would be
// taken there as long as it tries. pinBooks knows which pins may stay; Sweep
// compares.

// pinGroup is the part of a pin's key that names the ServicePort.
type pinGroup struct {
	// vip has the protocol, and address and port unless there is an id.
	vip dataplane.VIP
	// id is the affinity id with the offset of its scope.
	id uint32
}

// pinBook says which pins of a group may stay.
type pinBook struct {
	// endpoints are sorted.
	endpoints []netip.AddrPort
	timeout   time.Duration
	// movesTo is the group that the pins belong to now, if not this one.
	movesTo *pinGroup
}

// stays says whether a pin may lead to endpoint.
func (b *pinBook) stays(endpoint netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(b.endpoints, endpoint, netip.AddrPort.Compare)
	return found
}

func (b *pinBook) equal(o *pinBook) bool {
	moves := b.movesTo == nil && o.movesTo == nil ||
		b.movesTo != nil && o.movesTo != nil && *b.movesTo == *o.movesTo
	return moves && b.timeout == o.timeout && slices.Equal(b.endpoints, o.endpoints)
}

// pinBooks are those of one family. The Syncer writes them, Sweep reads them.
type pinBooks struct {
	mu     sync.Mutex
	groups map[pinGroup]pinBook
	ports  map[dataplane.ServicePortKey][]pinGroup
	// leaving are groups whose pins move somewhere else, until they have.
	leaving map[pinGroup]pinBook
	dirty   map[dataplane.Protocol]struct{}
}

func newPinBooks() *pinBooks {
	return &pinBooks{
		groups: make(map[pinGroup]pinBook), ports: make(map[dataplane.ServicePortKey][]pinGroup),
		leaving: make(map[pinGroup]pinBook), dirty: make(map[dataplane.Protocol]struct{}),
	}
}

// set replaces what is known of a ServicePort, nil for one that is gone.
func (b *pinBooks) set(key dataplane.ServicePortKey, sp *dataplane.ServicePort, id uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.ports[key]
	now := booksOf(sp, id)
	if len(old)+len(now) == 0 {
		return
	}
	changed := len(old) != len(now)
	for _, group := range old {
		book := b.groups[group]
		want, stays := now[group]
		changed = changed || !stays || !want.equal(&book)
		if to := movedTo(group, now); !stays && book.movesTo == nil && to != nil {
			book.movesTo = to
			b.leaving[group] = book
		}
		delete(b.groups, group)
	}
	delete(b.ports, key)
	for group, book := range now {
		b.groups[group] = book
		b.ports[key] = append(b.ports[key], group)
	}
	if changed {
		b.dirty[key.Protocol] = struct{}{}
	}
}

// movedTo returns the group that takes over the pins of one that a ServicePort does
// not have any more, nil if none does: the one by VIP those of the cluster IP's
// scope.
func movedTo(group pinGroup, now map[pinGroup]pinBook) *pinGroup {
	if group.id == 0 || len(now) != 1 {
		return nil
	}
	for to := range now {
		if to.id == 0 {
			return &to
		}
	}
	return nil
}

// booksOf returns the groups of a ServicePort. Pins by cluster IP, from when that
// was the only frontend, move to the id.
func booksOf(sp *dataplane.ServicePort, id uint32) map[pinGroup]pinBook {
	if sp == nil || sp.AffinitySeconds == 0 {
		return nil
	}
	book := func(in scope) pinBook {
		return pinBook{endpoints: rowsOf(endpointsIn(sp, in)), timeout: time.Duration(sp.AffinitySeconds) * time.Second}
	}
	internal := clusterScope
	if sp.InternalLocal {
		internal = localScope
	}
	byVIP := pinGroup{vip: sp.VIP()}
	if id == 0 {
		return map[pinGroup]pinBook{byVIP: book(internal)}
	}
	books := make(map[pinGroup]pinBook)
	for in := range scopes {
		group := pinGroup{vip: dataplane.VIP{Protocol: sp.Key.Protocol}, id: id + in.offset()}
		books[group] = book(in)
		if in == internal {
			moved := books[group]
			moved.movesTo = &group
			books[byVIP] = moved
		}
	}
	return books
}

// takeDirty returns the protocols whose pins have to be looked at, and forgets that.
func (b *pinBooks) takeDirty() []dataplane.Protocol {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []dataplane.Protocol
	for _, p := range dataplane.Protocols() {
		if _, ok := b.dirty[p]; ok {
			list = append(list, p)
		}
	}
	clear(b.dirty)
	return list
}

// markDirty has the pins of a protocol looked at.
func (b *pinBooks) markDirty(protocols ...dataplane.Protocol) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range protocols {
		b.dirty[p] = struct{}{}
	}
}

// moved forgets the groups whose pins had to move, after they have.
func (b *pinBooks) moved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.leaving)
}

// judge returns what has to be done about a pin: nothing for one that may stay.
func (b *pinBooks) judge(f family, e element) []op {
	group, client, ok := parsePin(f, e)
	endpoint, valid := parseEndpoint(f, e.data)
	remove := []op{{element: e, delete: true}}
	if !ok || !valid {
		return remove
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	book, known := b.groups[group]
	if !known {
		book, known = b.leaving[group]
	}
	if !known || !book.stays(endpoint) {
		return remove
	}
	if book.movesTo == nil && e.timeout <= book.timeout {
		return nil
	}
	if book.movesTo != nil {
		group = *book.movesTo
	}
	add := pinElement(group, client, endpoint)
	add.timeout = max(min(e.timeout, book.timeout), time.Millisecond)
	return append(remove, op{element: add})
}

// parsePin takes the key of a pin apart.
func parsePin(f family, e element) (group pinGroup, client netip.Addr, ok bool) {
	r := keyReader{rest: []byte(e.key)}
	client = r.addr(f)
	group.vip.Protocol = protocolOfMap(e.set)
	if e.set == affinityIDMap(group.vip.Protocol) {
		group.id = r.word()
	} else {
		group.vip.Addr, group.vip.Port = r.addr(f), r.port()
	}
	return group, client, r.ok()
}

// pinElement returns the pin of a client.
func pinElement(group pinGroup, client netip.Addr, endpoint netip.AddrPort) element {
	key := appendAddr(make([]byte, 0, maxKey), client)
	if group.id > 0 {
		return element{
			set: affinityIDMap(group.vip.Protocol), key: string(appendWord(key, group.id)), data: endpointData(endpoint),
		}
	}
	key = appendPort(appendAddr(key, group.vip.Addr), group.vip.Port)
	return element{set: affinityMap(group.vip.Protocol), key: string(key), data: endpointData(endpoint)}
}
