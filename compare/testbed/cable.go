// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// podLink is the name of a pod's link to the node.
	podLink = "eth0"
	// cableGroup is the group of the node's ends, by which all of them can be
	// deleted in one go.
	cableGroup = 0x5665
	// noDAD is the flag of an IPv6 address that is usable at once.
	noDAD = unix.IFA_F_NODAD
	// linkDeadline bounds the wait for a link to come up, which takes the
	// kernel a few milliseconds.
	linkDeadline = 10 * time.Second
	// linkPoll is the time between two looks at a link.
	linkPoll = time.Millisecond
)

// cable is the veth pair between a node and one of its pods. Both ends know the
// other's hardware address for good: no packet waits for neighbour discovery,
// and the gateway's address need not exist.
type cable struct {
	node, pod netlink.Link
}

// connect makes a veth pair and waits until both ends carry packets.
func connect(ctx context.Context, node *Namespace, name string, pod *Namespace) (cable, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Group = name, cableGroup
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: podLink, PeerNamespace: netlink.NsFd(pod.FD())}
	if err := node.netlink.LinkAdd(veth); err != nil {
		return cable{}, fmt.Errorf("add link %s: %w", name, err)
	}
	if err := pod.setUp(podLink); err != nil {
		return cable{}, err
	}
	if err := node.setUp(name); err != nil {
		return cable{}, err
	}
	podEnd, err := pod.awaitUp(ctx, podLink)
	if err != nil {
		return cable{}, err
	}
	nodeEnd, err := node.awaitUp(ctx, name)
	if err != nil {
		return cable{}, err
	}
	return cable{node: nodeEnd, pod: podEnd}, nil
}

// deleteCables removes all cables of a node. One request for all takes as long
// as one for a single link, because each waits until no CPU uses what it removes.
func (n *Namespace) deleteCables() error {
	err := n.Do(func() error {
		request := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		request.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(cableGroup)))
		_, err := request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil && !errors.Is(err, unix.ENODEV) { // there are none
		return fmt.Errorf("delete the links to pods: %w", err)
	}
	return nil
}

// awaitUp polls a link until the kernel says that it carries packets.
func (n *Namespace) awaitUp(ctx context.Context, name string) (netlink.Link, error) {
	ctx, cancel := context.WithTimeout(ctx, linkDeadline)
	defer cancel()
	ticker := time.NewTicker(linkPoll)
	defer ticker.Stop()
	for {
		link, err := n.netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("find link %s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return link, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for link %s to come up: %w", name, ctx.Err())
		case <-ticker.C:
		}
	}
}

// addDefaultRoute sends all packets of addr's family from the pod to the node.
func (c cable) addDefaultRoute(pod *Namespace, addr netip.Addr) error {
	via := gateway(addr.Is4())
	if err := addNeighbour(pod, c.pod, via, c.node); err != nil {
		return err
	}
	route := &netlink.Route{
		LinkIndex: c.pod.Attrs().Index,
		Dst:       ipNet(netip.PrefixFrom(unspecified(addr), 0)),
		Gw:        via.AsSlice(),
		Flags:     int(netlink.FLAG_ONLINK),
	}
	if err := pod.netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add default route via %s: %w", via, err)
	}
	return nil
}

// addRouteTo leads the node to an address of the pod; source is the address
// that the node itself uses for packets there, if any.
func (c cable) addRouteTo(node *Namespace, addr netip.Addr, source net.IP) error {
	if err := addNeighbour(node, c.node, addr, c.pod); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: c.node.Attrs().Index, Dst: hostNet(addr), Scope: netlink.SCOPE_LINK, Src: source}
	if err := node.netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add route to %s: %w", addr, err)
	}
	return nil
}

// addRouteVia leads the node to a range behind the pod's address via.
func (c cable) addRouteVia(node *Namespace, prefix netip.Prefix, via netip.Addr) error {
	route := &netlink.Route{
		LinkIndex: c.node.Attrs().Index,
		Dst:       ipNet(prefix),
		Gw:        via.AsSlice(),
		Flags:     int(netlink.FLAG_ONLINK),
	}
	if err := node.netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add route to %s via %s: %w", prefix, via, err)
	}
	return nil
}

// addLocalPrefix makes all addresses of a range the namespace's own.
func (n *Namespace) addLocalPrefix(prefix netip.Prefix) error {
	lo, err := n.netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find link lo: %w", err)
	}
	route := &netlink.Route{
		LinkIndex: lo.Attrs().Index,
		Dst:       ipNet(prefix),
		Type:      unix.RTN_LOCAL,
		Table:     unix.RT_TABLE_LOCAL,
		Scope:     netlink.SCOPE_HOST,
	}
	if err := n.netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add local route to %s: %w", prefix, err)
	}
	return nil
}

func addNeighbour(ns *Namespace, link netlink.Link, addr netip.Addr, peer netlink.Link) error {
	neighbour := &netlink.Neigh{
		LinkIndex:    link.Attrs().Index,
		State:        netlink.NUD_PERMANENT,
		IP:           addr.AsSlice(),
		HardwareAddr: peer.Attrs().HardwareAddr,
	}
	if err := ns.netlink.NeighSet(neighbour); err != nil {
		return fmt.Errorf("add neighbour %s: %w", addr, err)
	}
	return nil
}

func hostNet(addr netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(addr, addr.BitLen())) }

func ipNet(prefix netip.Prefix) *net.IPNet {
	addr := prefix.Addr()
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(prefix.Bits(), addr.BitLen())}
}

func unspecified(as netip.Addr) netip.Addr {
	if as.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
