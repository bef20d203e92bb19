// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"net/netip"

	"github.com/veridict/veridict/dataplane"
)

// leftovers are elements that were found in the kernel and that no ServicePort
// has asked for yet.
type leftovers struct {
	// elements are none of those that this version writes.
	elements []element
	// clusterIPs and hairpins are counted as users of their element until
	// release, so that elements which are still needed stay where they are.
	clusterIPs []netip.Addr
	hairpins   []hairpin
}

// adopt reads the elements of the sets that were there into the table.
func (s *Syncer) adopt(ctx context.Context, t *table, found objects) (*leftovers, error) {
	left := &leftovers{}
	for _, chain := range found.chains {
		if n, ok := dispatchSize(chain.name); ok {
			t.dispatch[n] = &dispatchState{}
		}
	}
	for _, set := range found.sets {
		if t.structure.set(set.name) == nil {
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
	case serviceIPs:
		vip, ok := parseVIP(t.family, e.key)
		if ok {
			t.adoptVerdict(vip, e.verdict)
		}
		return ok
	case noEndpointServices:
		vip, ok := parseVIP(t.family, e.key)
		if ok = ok && e.verdict == gotoVerdict(rejectChain); ok {
			t.found(vip).rejects = true
		}
		return ok
	case clusterIPs:
		addr, ok := netip.AddrFromSlice([]byte(e.key))
		if ok {
			t.clusterIPs[addr]++
			left.clusterIPs = append(left.clusterIPs, addr)
		}
		return ok
	case hairpinConnections:
		h, ok := parseHairpin(t.family, e.key)
		if ok {
			t.hairpins[h]++
			left.hairpins = append(left.hairpins, h)
		}
		return ok
	default:
		vip, bucket, endpoint, ok := t.layout.parseRow(t.family, e)
		if ok = ok && bucket <= dataplane.MaxBuckets; ok {
			f := t.found(vip)
			f.slots = f.slots.with(bucket, endpoint)
		}
		return ok
	}
}

func (t *table) adoptVerdict(vip dataplane.VIP, verdict string) {
	f := t.found(vip)
	f.published = unknownVerdict
	const prefix = "goto "
	if len(verdict) < len(prefix) {
		return
	}
	if n, ok := dispatchSize(verdict[len(prefix):]); ok && t.dispatch[n] != nil {
		f.published = n
		t.dispatch[n].users++
		t.endpoints += n
	}
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
func (l *leftovers) release(t *table) planner {
	return func(p *plan, _ *transition, limit int) bool {
		for len(l.clusterIPs) > 0 && len(p.ops) < limit {
			t.planClaim(p, l.clusterIPs[0], false)
			l.clusterIPs = l.clusterIPs[1:]
		}
		for len(l.hairpins) > 0 && len(p.ops) < limit {
			count(p, t.hairpins, l.hairpins[0], false, hairpin.element)
			l.hairpins = l.hairpins[1:]
		}
		return len(l.clusterIPs)+len(l.hairpins) == 0
	}
}
