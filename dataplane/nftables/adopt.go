// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"net/netip"
	"slices"

	"github.com/veridict/veridict/dataplane"
)

// leftovers are elements that were found in the kernel and that no ServicePort
// has asked for yet.
type leftovers struct {
	// elements are none of those that this version writes.
	elements []element
	// clusterIPs, hairpins and nodePortIPs are counted as users of their element
	// until release, so that elements which are still needed stay where they are.
	clusterIPs  []netip.Addr
	hairpins    []hairpin
	nodePortIPs []netip.Addr
}

// adopt reads the elements of the sets that were there into the table. Pins are
// nobody's but the packets'.
func (s *Syncer) adopt(ctx context.Context, t *table, found objects) (*leftovers, error) {
	left := &leftovers{}
	for _, chain := range found.chains {
		if v, ok := parseVariant(chain.name); ok {
			t.addVariant(v)
		}
	}
	for _, set := range found.sets {
		if declared := t.structure.set(set.name); declared == nil || declared.learns {
			continue
		}
		err := s.kernel.elements(ctx, t.family, set.name, func(e element) {
			t.elements++
			if !t.adoptElement(e, left) {
				left.elements = append(left.elements, e)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return left, nil
}

// adoptElement reports whether this version could have written the element.
func (t *table) adoptElement(e element, left *leftovers) bool {
	switch e.set {
	case clusterIPs:
		return adoptAddr(e, t.clusterIPs, &left.clusterIPs)
	case nodePortIPs:
		return adoptAddr(e, t.nodePortIPs, &left.nodePortIPs)
	case hairpinConnections:
		h, ok := parseHairpin(t.family, e.key)
		if ok {
			t.hairpins[h]++
			left.hairpins = append(left.hairpins, h)
		}
		return ok
	}
	if t.structure.set(e.set).kind == dataMap {
		vip, in, bucket, endpoint, ok := t.layout.parseRow(t.family, e)
		if ok {
			f := t.found(vip)
			f.slots[in] = f.slots[in].with(bucket, endpoint)
		}
		return ok
	}
	vip, ok := parseVIP(t.family, e.set, e.key)
	if ok {
		f := t.found(vip)
		f.found = append(f.found, e)
		if state := t.chains[chainOf(e.verdict)]; state != nil {
			state.users++
		}
	}
	return ok
}

func adoptAddr(e element, users map[netip.Addr]int, left *[]netip.Addr) bool {
	addr, ok := netip.AddrFromSlice([]byte(e.key))
	if ok {
		users[addr]++
		*left = append(*left, addr)
	}
	return ok
}

// found returns the frontend of a VIP that the kernel holds something for.
func (t *table) found(vip dataplane.VIP) *frontend {
	f := t.frontends[vip]
	if f == nil {
		f = &frontend{}
		t.frontends[vip] = f
	}
	return f
}

// adoptIDs gives the ServicePorts the affinity ids that their frontends have in the
// kernel, since pins are kept by id, and new ones where there is none.
func (t *table) adoptIDs(ports []dataplane.ServicePort) {
	taken := make(map[uint32]struct{})
	for i := range ports {
		sp := &ports[i]
		if !needsID(sp) {
			continue
		}
		id := t.foundID(sp)
		if _, ok := taken[id]; id > 0 && !ok {
			t.ids.own(sp.Key, id)
			taken[id] = struct{}{}
		}
	}
	for i := range ports {
		t.ids.assign(&ports[i])
	}
}

// foundID returns the affinity id of the first frontend that has one.
func (t *table) foundID(sp *dataplane.ServicePort) uint32 {
	for _, vip := range sp.VIPs() {
		f := t.frontends[vip]
		if f == nil {
			continue
		}
		for _, e := range f.found {
			if state := t.chains[chainOf(e.verdict)]; state != nil && state.variant.id() > 0 {
				return state.variant.id()
			}
		}
	}
	return 0
}

// abandoned returns transitions for the VIPs in the kernel that none of list is
// about.
func (t *table) abandoned(list []*transition) []*transition {
	if len(t.frontends) == 0 {
		return nil
	}
	wanted := make(map[dataplane.VIP]struct{}, len(list))
	for _, tr := range list {
		wanted[tr.vip] = struct{}{}
	}
	var gone []*transition
	for vip := range t.frontends {
		if _, ok := wanted[vip]; !ok {
			gone = append(gone, &transition{vip: vip})
		}
	}
	return gone
}

// release returns a planner that deletes what nobody has asked for.
func (l *leftovers) release(t *table, nodePorts []netip.Addr) planner {
	return func(p *plan, _ *transition, limit int) bool {
		for len(l.clusterIPs) > 0 && len(p.ops) < limit {
			count(p, t.clusterIPs, l.clusterIPs[0], false, clusterIPElement)
			l.clusterIPs = l.clusterIPs[1:]
		}
		for len(l.hairpins) > 0 && len(p.ops) < limit {
			count(p, t.hairpins, l.hairpins[0], false, hairpin.element)
			l.hairpins = l.hairpins[1:]
		}
		for len(l.nodePortIPs) > 0 && len(p.ops) < limit {
			if !slices.Contains(nodePorts, l.nodePortIPs[0]) {
				count(p, t.nodePortIPs, l.nodePortIPs[0], false, nodePortIPElement)
			}
			l.nodePortIPs = l.nodePortIPs[1:]
		}
		return len(l.clusterIPs)+len(l.hairpins)+len(l.nodePortIPs) == 0
	}
}
