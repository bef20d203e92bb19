// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Route is where packets to an address go.
type Route struct {
	// Local says that the address is the node's own.
	Local bool
	// Interface is the one that they leave by, empty if there is no way.
	Interface string
}

// RouteTo asks the routing table. An address that cannot be reached is no error.
func RouteTo(addr netip.Addr) (Route, error) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
		return Route{}, nil
	}
	if err != nil {
		return Route{}, fmt.Errorf("look up the route to %s: %w", addr, err)
	}
	if len(routes) == 0 {
		return Route{}, nil
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return Route{}, fmt.Errorf("look up the interface of the route to %s: %w", addr, err)
	}
	return Route{Local: routes[0].Type == unix.RTN_LOCAL, Interface: link.Attrs().Name}, nil
}
