// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import "net/netip"

// Plan is the address plan of a small cluster.
//
//	10.240.0.1      fd00:10:240::1     the node
//	10.244.0.0/16   fd00:10:244::/48   pods: clients and endpoints
//	10.96.0.0/16    fd00:10:96::/112   cluster IPs; no interface has one
//	169.254.1.1     fe80::1            the pods' gateway; no interface has it
//
// These addresses exist inside the namespaces only. The node has no route that
// leaves them, so that no packet can; see AddUplink.
type Plan struct {
	// NodeAddrs are the node's addresses, at most one per family.
	NodeAddrs []netip.Addr
	// PodCIDRs are the ranges of the pods' addresses.
	PodCIDRs []netip.Prefix
	// ServiceCIDRs are the ranges of cluster IPs.
	ServiceCIDRs []netip.Prefix
}

// DefaultPlan returns the plan shown above, dual stack.
func DefaultPlan() Plan {
	return Plan{
		NodeAddrs: []netip.Addr{netip.MustParseAddr("10.240.0.1"), netip.MustParseAddr("fd00:10:240::1")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")},
		ServiceCIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112"),
		},
	}
}

// nodeAddr returns the node's address of addr's family, or nil.
func (p Plan) nodeAddr(addr netip.Addr) []byte {
	for _, node := range p.NodeAddrs {
		if node.Is4() == addr.Is4() {
			return node.AsSlice()
		}
	}
	return nil
}

// gateway returns the address that pods send everything to.
func gateway(v4 bool) netip.Addr {
	if v4 {
		return netip.AddrFrom4([4]byte{169, 254, 1, 1})
	}
	return netip.MustParseAddr("fe80::1")
}
