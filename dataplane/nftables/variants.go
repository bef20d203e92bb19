// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// keepChains is the largest number of buckets whose dispatch chain stays when
// nothing uses it: such counts come back all the time.
const keepChains = 16

// variants are the chains of variants that the kernel has, by name.
type variants map[string]*variantState

// variantState is a chain that the kernel has.
type variantState struct {
	variant variant
	users   int
	// idleSince is when the last user left.
	idleSince time.Time
}

// addVariant notes a chain that the kernel has.
func (t *table) addVariant(v variant) {
	t.chains[v.name()] = &variantState{variant: v}
	t.ids.hold(v.id())
}

// dropVariant notes that the kernel does not have the chain any more.
func (t *table) dropVariant(v variant) {
	delete(t.chains, v.name())
	t.ids.drop(v.id())
}

// planUse counts one user more or less of the chain that a verdict leads to.
func (c variants) planUse(p *plan, verdict string, more int) {
	if state := c[chainOf(verdict)]; state != nil {
		state.users += more
		p.onUndo(func() { state.users -= more })
	}
}

// missing returns the variants that the transitions need and the kernel does not
// have, in order.
func (t *table) missing(list []*transition) []variant {
	need := make(map[string]variant)
	for _, tr := range list {
		if tr.to == nil {
			continue
		}
		want := specOf(tr.vip, tr.to, t.ids.of(tr.to))
		want.variants(tr.vip.IsNodePort(), func(p placed) {
			if name := p.chain(tr.vip); name != affinityChain && t.chains[name] == nil {
				need[name] = p.of(tr.vip)
			}
		})
	}
	return slices.SortedFunc(maps.Values(need), variant.compare)
}

// noteIdle records when chains lost their last user.
func (c variants) noteIdle(now time.Time) {
	for _, state := range c {
		switch {
		case state.users > 0:
			state.idleSince = time.Time{}
		case state.idleSince.IsZero():
			state.idleSince = now
		}
	}
}

// kept says that the chain stays when nothing uses it.
func (v variant) kept() bool { return v.kind == dispatchVariant && v.n <= keepChains }

// idle returns the chains that have had no user since before, in order.
func (c variants) idle(before time.Time) []variant {
	var idle []variant
	for _, state := range c {
		if !state.variant.kept() && state.users == 0 && !state.idleSince.After(before) {
			idle = append(idle, state.variant)
		}
	}
	slices.SortFunc(idle, variant.compare)
	return idle
}

// compare orders by kind, then as names that end in numbers are read.
func (v variant) compare(o variant) int {
	nodePort := func(v variant) int {
		if v.nodePort {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(v.kind, o.kind), cmp.Compare(nodePort(v), nodePort(o)), cmp.Compare(v.scope, o.scope),
		cmp.Compare(v.algorithm, o.algorithm), cmp.Compare(v.protocol, o.protocol),
		cmp.Compare(v.n, o.n), cmp.Compare(v.seconds, o.seconds),
	)
}

// affinityIDs are the ids of ServicePorts with session affinity and several
// frontends: a pin belongs to the ServicePort, whichever frontend the client has
// used. nft has no way to look up the id inside the key of the pin, so that each
// has a few chains of its own.
type affinityIDs struct {
	owned map[dataplane.ServicePortKey]uint32
	// users counts the owner and the chains of an id. An id is given away again
	// when it has none, and late even so: pins of its former owner may still be
	// there.
	users map[uint32]int
	last  uint32
}

func newAffinityIDs() affinityIDs {
	return affinityIDs{owned: make(map[dataplane.ServicePortKey]uint32), users: make(map[uint32]int)}
}

// of returns the id of a ServicePort, 0 if it has none.
func (a *affinityIDs) of(sp *dataplane.ServicePort) uint32 { return a.owned[sp.Key] }

func (a *affinityIDs) hold(id uint32) {
	if id > 0 {
		a.users[id]++
	}
}

func (a *affinityIDs) drop(id uint32) {
	if id > 0 {
		setCount(a.users, id, a.users[id]-1)
	}
}

// needsID says whether clients can come to the same pin by several frontends.
func needsID(sp *dataplane.ServicePort) bool { return sp.AffinitySeconds > 0 && sp.External != nil }

// assign gives the ServicePort an id if it needs one and has none.
func (a *affinityIDs) assign(sp *dataplane.ServicePort) {
	switch {
	case !needsID(sp):
		a.release(sp.Key)
	case a.owned[sp.Key] == 0:
		a.own(sp.Key, a.free())
	}
}

// own makes an id the ServicePort's.
func (a *affinityIDs) own(key dataplane.ServicePortKey, id uint32) {
	a.owned[key] = id
	a.hold(id)
}

// free returns an id that nobody has; the same as another's if there are more
// ServicePorts than ids, which then share pins where they share a client.
func (a *affinityIDs) free() uint32 {
	for range dataplane.MaxBuckets {
		a.last = a.last%dataplane.MaxBuckets + 1
		if a.users[a.last] == 0 {
			break
		}
	}
	return a.last
}

// release takes the id of a ServicePort that does not need one any more.
func (a *affinityIDs) release(key dataplane.ServicePortKey) {
	if id := a.owned[key]; id > 0 {
		a.drop(id)
		delete(a.owned, key)
	}
}
