// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// localAddresses asks the interfaces of the calling thread's network namespace.
func localAddresses() (func(netip.Addr) bool, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of interfaces: %w", err)
	}
	local := make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			local[addr.Unmap()] = struct{}{}
		}
	}
	return func(addr netip.Addr) bool {
		_, ok := local[addr]
		return ok
	}, nil
}
