// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"

	"github.com/veridict/veridict/dataplane"
)

// spec is what the tables hold for one VIP besides rows. The zero value is
// nothing.
type spec struct {
	// external says that the VIP is not a cluster IP.
	external bool
	// local says that traffic policy Local is in force: for all of a cluster IP's
	// connections, and for those of an external frontend from outside.
	local     bool
	algorithm dataplane.Algorithm
	refusal   refusal
	// buckets are the numbers of buckets drawn in each scope, 0 for a scope that
	// is not used.
	buckets [scopes]uint32
	// seconds is how long a client stays with its endpoint, 0 if it does not.
	// Pins are kept by the id of the ServicePort, or by VIP if it is 0.
	seconds, id uint32
	// endpoints is the number of endpoints, for the report. Only the cluster IP
	// has it.
	endpoints uint32
	// ranges are the only clients let in, nil for all.
	ranges []addrRange
}

// refusal is what becomes of connections that are not translated.
type refusal uint8

const (
	letThrough refusal = iota
	// rejectAll: there are no endpoints at all.
	rejectAll
	// dropOutside: there are some, but policy Local allows none of them.
	dropOutside
)

// specOf returns the spec of one VIP of a ServicePort.
func specOf(vip dataplane.VIP, sp *dataplane.ServicePort, id uint32) spec {
	s := spec{external: vip != sp.VIP(), algorithm: sp.Algorithm}
	s.local = sp.InternalLocal
	if s.external {
		s.local = sp.External.Local
		if slices.Contains(sp.External.Guarded, vip.Addr) {
			s.ranges = mergeRanges(sp.External.SourceRanges)
		}
	} else {
		s.endpoints = uint32(len(sp.Endpoints))
	}
	if len(sp.Endpoints) == 0 {
		s.refusal = rejectAll
		return s
	}
	for scope := range scopes {
		if s.draws(scope) {
			s.buckets[scope] = bucketsOf(endpointsIn(sp, scope))
		}
	}
	if s.local && s.buckets[localScope] == 0 {
		s.refusal = dropOutside
	}
	s.seconds, s.id = sp.AffinitySeconds, id
	return s
}

// draws says whether connections to the VIP can draw from the scope.
func (s *spec) draws(in scope) bool {
	if in == localScope {
		return s.local
	}
	return s.external || !s.local
}

func endpointsIn(sp *dataplane.ServicePort, s scope) []dataplane.Endpoint {
	if s == localScope {
		return sp.LocalEndpoints
	}
	return sp.Endpoints
}

func bucketsOf(endpoints []dataplane.Endpoint) uint32 {
	sum := 0
	for _, ep := range endpoints {
		sum += ep.Buckets()
	}
	return uint32(sum)
}

// rowsOf returns what the buckets of the scope lead to.
func rowsOf(endpoints []dataplane.Endpoint) []netip.AddrPort {
	rows := make([]netip.AddrPort, 0, bucketsOf(endpoints))
	for _, ep := range endpoints {
		for range ep.Buckets() {
			rows = append(rows, ep.Addr)
		}
	}
	return rows
}

// placed is a variant that a VIP needs, and where its verdict stands.
type placed struct {
	in      string
	verb    func(chain string) string
	variant variant
}

// variants calls yield with all that the VIP leads to. The chains of pins by VIP
// without an id are constant, but for those that write.
func (s *spec) variants(nodePort bool, yield func(placed)) {
	inside := clusterScope
	if s.local && !s.external {
		inside = localScope
	}
	if s.buckets[inside] > 0 {
		s.scopeVariants(nodePort, inside, [...]string{serviceMap, affinityMaps, pinMap}, yield)
	}
	if s.local && s.external && s.buckets[localScope] > 0 {
		s.scopeVariants(nodePort, localScope, [...]string{localMap, affinityLocalMap, pinLocalMap}, yield)
	}
}

func (s *spec) scopeVariants(nodePort bool, in scope, maps [3]string, yield func(placed)) {
	yield(placed{byKey(maps[0], nodePort), gotoVerdict, variant{
		kind: dispatchVariant, nodePort: nodePort, algorithm: s.algorithm, scope: in, n: s.buckets[in],
	}})
	if s.seconds == 0 {
		return
	}
	pin := variant{kind: pinVariant, seconds: s.seconds}
	if s.id > 0 {
		pin.scope, pin.n = in, s.id
	}
	yield(placed{byKey(maps[2], nodePort), gotoVerdict, pin})
	yield(placed{byKey(maps[1], nodePort), jumpVerdict, variant{kind: affinityVariant, scope: in, n: s.id}})
}

// element returns the element of the verdict. A spec does not know its protocol.
func (p placed) element(vip dataplane.VIP, key string) element {
	return element{set: p.in, key: key, verdict: p.verb(p.chain(vip))}
}

// chain returns the name of the chain that the verdict leads to.
func (p placed) chain(vip dataplane.VIP) string {
	if p.variant.kind == affinityVariant && p.variant.n == 0 {
		return affinityChain
	}
	return p.of(vip).name()
}

// of returns the variant with the protocol of the VIP, if that matters.
func (p placed) of(vip dataplane.VIP) variant {
	v := p.variant
	if v.id() > 0 {
		v.protocol = vip.Protocol
	}
	return v
}

// elements returns all elements of the VIP but rows and those that it shares with
// others.
func (s *spec) elements(vip dataplane.VIP) []element {
	if s.isZero() {
		return nil
	}
	key := vipKey(vip)
	nodePort := vip.IsNodePort()
	list := make([]element, 0, 2)
	s.variants(nodePort, func(p placed) { list = append(list, p.element(vip, key)) })
	switch s.refusal {
	case rejectAll:
		list = append(list, element{set: byKey(noEndpointMap, nodePort), key: key, verdict: gotoVerdict(rejectChain)})
	case dropOutside:
		list = append(list, element{set: byKey(noEndpointMap, nodePort), key: key, verdict: dropVerdict})
	case letThrough:
	}
	switch {
	case s.external && s.local:
		list = append(list, element{set: byKey(externalLocalSet, nodePort), key: key})
	case s.external:
		list = append(list, element{set: byKey(masqueradeSet, nodePort), key: key})
	}
	if s.ranges != nil {
		list = append(list, element{set: firewallIPs, key: key})
	}
	for _, r := range s.ranges {
		list = append(list, rangeElement(vip, r))
	}
	return list
}

// isZero says that the VIP is not in use: each one in use has buckets or refuses.
func (s *spec) isZero() bool {
	return s.refusal == letThrough && s.buckets == [scopes]uint32{}
}

// hairpins returns the endpoints of this node that connections of the ServicePort
// can come to, sorted, each once.
func hairpins(sp *dataplane.ServicePort) []netip.AddrPort {
	var list []netip.AddrPort
	clusterUsed := !sp.InternalLocal || sp.External != nil
	for _, ep := range sp.Endpoints {
		if clusterUsed && ep.Local {
			list = append(list, ep.Addr)
		}
	}
	if len(sp.LocalEndpoints) == 0 {
		return list
	}
	for _, ep := range sp.LocalEndpoints {
		list = append(list, ep.Addr)
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}
