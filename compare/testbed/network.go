// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
)

// Network is a node with its pods. Each pod has a namespace of its own; a veth
// pair and one route per address lead to it, as simple CNI plugins do it.
type Network struct {
	node *Namespace
	plan Plan
	pods []*Pod
}

// Pod is one pod of a [Network]: a client, or endpoints.
type Pod struct {
	*Namespace
	Name string
	// Addrs are its addresses, at most one per family.
	Addrs []netip.Addr
}

// PodOptions say how a pod can be reached.
type PodOptions struct {
	// Name is used in errors only.
	Name string
	// Addrs are the pod's addresses, at most one per family.
	Addrs []netip.Addr
	// Prefixes are ranges of which every address belongs to the pod too, so
	// that one namespace can hold thousands of endpoints. Addrs must have an
	// address of the family.
	Prefixes []netip.Prefix
}

// NewNetwork makes node a router with the plan's node addresses. The namespace
// stays the caller's; whatever programs Services there sees pods as links whose
// names begin with "pod".
func NewNetwork(node *Namespace, plan Plan) (*Network, error) {
	if err := node.SetSysctls(nodeSysctls()); err != nil {
		return nil, fmt.Errorf("set up node: %w", err)
	}
	if err := node.setKnownSysctls(icmpSysctls()); err != nil {
		return nil, fmt.Errorf("set up node: %w", err)
	}
	if err := node.setUp("lo"); err != nil {
		return nil, fmt.Errorf("set up node: %w", err)
	}
	for _, addr := range plan.NodeAddrs {
		if err := node.addAddr("lo", addr); err != nil {
			return nil, fmt.Errorf("set up node: %w", err)
		}
	}
	return &Network{node: node, plan: plan}, nil
}

// Node returns the namespace of the node.
func (n *Network) Node() *Namespace { return n.node }

// AddPod makes a pod and waits until packets can reach it. The pod lives until
// the network is closed.
func (n *Network) AddPod(ctx context.Context, options PodOptions) (*Pod, error) {
	ns, err := NewNamespace()
	if err != nil {
		return nil, fmt.Errorf("add pod %s: %w", options.Name, err)
	}
	n.pods = append(n.pods, &Pod{Namespace: ns, Name: options.Name, Addrs: options.Addrs})
	if err := ns.SetSysctls(podSysctls()); err != nil {
		return nil, fmt.Errorf("add pod %s: %w", options.Name, err)
	}
	cable, err := connect(ctx, n.node, "pod"+strconv.Itoa(len(n.pods)-1), ns)
	if err != nil {
		return nil, fmt.Errorf("add pod %s: %w", options.Name, err)
	}
	if err := n.route(cable, ns, options); err != nil {
		return nil, fmt.Errorf("add pod %s: %w", options.Name, err)
	}
	return n.pods[len(n.pods)-1], nil
}

// AddUplink gives the node a default route, as nodes have one. It leads to a
// namespace that answers nothing: without it, a packet that no Service wants is
// refused by the routing, before the rules for such packets see it.
func (n *Network) AddUplink(ctx context.Context) error {
	world, err := NewNamespace()
	if err != nil {
		return fmt.Errorf("add uplink: %w", err)
	}
	n.pods = append(n.pods, &Pod{Namespace: world, Name: "world"})
	uplink, err := connect(ctx, n.node, "uplink", world)
	if err != nil {
		return fmt.Errorf("add uplink: %w", err)
	}
	reversed := cable{node: uplink.pod, pod: uplink.node}
	for _, addr := range n.plan.NodeAddrs {
		if err := reversed.addDefaultRoute(n.node, addr); err != nil {
			return fmt.Errorf("add uplink: %w", err)
		}
	}
	return nil
}

// Close removes all pods, and the node's addresses, links and routes; sysctls
// stay. Sockets in pods must have been closed before, as a namespace lives as
// long as its sockets.
func (n *Network) Close() error {
	errs := []error{n.node.deleteCables()}
	for _, pod := range n.pods {
		errs = append(errs, pod.Close())
	}
	n.pods = nil
	for _, addr := range n.plan.NodeAddrs {
		errs = append(errs, n.node.deleteAddr("lo", addr))
	}
	return errors.Join(errs...)
}

// route gives the pod its addresses and routes, and the node the routes to them.
func (n *Network) route(cable cable, pod *Namespace, options PodOptions) error {
	for _, addr := range options.Addrs {
		if err := pod.addAddr(podLink, addr); err != nil {
			return err
		}
		if err := cable.addDefaultRoute(pod, addr); err != nil {
			return err
		}
		if err := cable.addRouteTo(n.node, addr, n.plan.nodeAddr(addr)); err != nil {
			return err
		}
	}
	for _, prefix := range options.Prefixes {
		via, ok := sameFamily(options.Addrs, prefix.Addr())
		if !ok {
			return fmt.Errorf("route %s: the pod has no address of that family", prefix)
		}
		if err := cable.addRouteVia(n.node, prefix, via); err != nil {
			return err
		}
		if err := pod.addLocalPrefix(prefix); err != nil {
			return err
		}
	}
	return nil
}

func sameFamily(addrs []netip.Addr, as netip.Addr) (netip.Addr, bool) {
	for _, addr := range addrs {
		if addr.Is4() == as.Is4() {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// deleteAddr removes an address of a link.
func (n *Namespace) deleteAddr(linkName string, addr netip.Addr) error {
	link, err := n.netlink.LinkByName(linkName)
	if err != nil {
		return fmt.Errorf("find link %s: %w", linkName, err)
	}
	if err := n.netlink.AddrDel(link, &netlink.Addr{IPNet: hostNet(addr)}); err != nil {
		return fmt.Errorf("delete address %s from %s: %w", addr, linkName, err)
	}
	return nil
}

// addAddr adds an address without duplicate address detection.
func (n *Namespace) addAddr(linkName string, addr netip.Addr) error {
	link, err := n.netlink.LinkByName(linkName)
	if err != nil {
		return fmt.Errorf("find link %s: %w", linkName, err)
	}
	config := &netlink.Addr{IPNet: hostNet(addr)}
	if addr.Is6() {
		config.Flags = noDAD
	}
	if err := n.netlink.AddrAdd(link, config); err != nil {
		return fmt.Errorf("add address %s to %s: %w", addr, linkName, err)
	}
	return nil
}
