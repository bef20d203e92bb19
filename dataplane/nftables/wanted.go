// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"iter"
	"maps"
	"slices"

	"github.com/veridict/veridict/dataplane"
)

// wanted is what the table of one family should hold for a state, computed anew
// and not in steps: for texts, and to compare the kernel with.
type wanted struct {
	family family
	layout Layout
	ports  []dataplane.ServicePort
	ids    affinityIDs
}

// newWanted returns what the ServicePorts want. Affinity ids that are known stay,
// the others are given in the order of the list.
func newWanted(f family, layout Layout, ports []dataplane.ServicePort, ids affinityIDs) *wanted {
	for i := range ports {
		ids.assign(&ports[i])
	}
	return &wanted{family: f, layout: layout, ports: ports, ids: ids}
}

// chains returns the variants that are used, in order.
func (w *wanted) chains() []chainDecl {
	used := make(map[string]variant)
	for sp, vip := range w.frontends() {
		want := specOf(vip, sp, w.ids.of(sp))
		want.variants(vip.IsNodePort(), func(p placed) {
			if name := p.chain(vip); name != affinityChain {
				used[name] = p.of(vip)
			}
		})
	}
	var chains []chainDecl
	for _, v := range slices.SortedFunc(maps.Values(used), variant.compare) {
		chains = append(chains, v.chain(w.family, w.layout))
	}
	return chains
}

// frontends yields each ServicePort with each of its VIPs.
func (w *wanted) frontends() iter.Seq2[*dataplane.ServicePort, dataplane.VIP] {
	return func(yield func(*dataplane.ServicePort, dataplane.VIP) bool) {
		for i := range w.ports {
			for _, vip := range w.ports[i].VIPs() {
				if !yield(&w.ports[i], vip) {
					return
				}
			}
		}
	}
}

// elements returns the elements of each set, each once. Endpoints have buckets of
// their order.
func (w *wanted) elements(settings *dataplane.Settings) map[string][]element {
	lists := make(map[string][]element)
	shared := make(map[element]struct{})
	add := func(e element) {
		if _, ok := shared[e]; ok {
			return
		}
		if e.set == clusterIPs || e.set == hairpinConnections {
			shared[e] = struct{}{}
		}
		lists[e.set] = append(lists[e.set], e)
	}
	for _, addr := range settings.NodePortAddresses {
		if dataplane.FamilyOf(addr) == w.family.id {
			add(nodePortIPElement(addr))
		}
	}
	for sp, vip := range w.frontends() {
		for _, e := range w.elementsOf(sp, vip) {
			add(e)
		}
	}
	return lists
}

// elementsOf returns all elements that one VIP of a ServicePort needs.
func (w *wanted) elementsOf(sp *dataplane.ServicePort, vip dataplane.VIP) []element {
	want := specOf(vip, sp, w.ids.of(sp))
	list := want.elements(vip)
	for in := range scopes {
		if want.buckets[in] == 0 {
			continue
		}
		for i, endpoint := range rowsOf(endpointsIn(sp, in)) {
			list = append(list, w.layout.row(vip, in, uint32(i), endpoint))
		}
	}
	if want.external {
		return list
	}
	list = append(list, clusterIPElement(vip.Addr))
	for _, endpoint := range hairpins(sp) {
		list = append(list, hairpin{endpoint, vip.Protocol}.element())
	}
	return list
}
