// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// localAddresses returns a function that asks the routing table of the calling
// thread's network namespace, once for each address: a node may have whole ranges of
// addresses that no interface lists. What cannot be reached is not the node's.
func localAddresses() func(netip.Addr) bool {
	known := make(map[netip.Addr]bool)
	return func(addr netip.Addr) bool {
		local, ok := known[addr]
		if !ok {
			routes, err := netlink.RouteGet(addr.AsSlice())
			local = err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
			known[addr] = local
		}
		return local
	}
}
