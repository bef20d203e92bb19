// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/veridict/veridict/dataplane"
)

// Node is what a proxy needs of the v1 Node that it runs on.
type Node struct {
	Name   string
	Labels map[string]string
	// Zone is empty where it is not known.
	Zone string
	// PodCIDRs is spec.podCIDRs in its order.
	PodCIDRs []netip.Prefix
	// Addresses are the node's internal IP addresses in the order of its status,
	// then the external ones; names are left out.
	Addresses []netip.Addr
	// Leaving says that the Node is being deleted, or about to be by the cluster
	// autoscaler: load balancers should send no new connections.
	Leaving bool
}

// taintLeaving is what the cluster autoscaler puts on a Node that it will delete.
const taintLeaving = "ToBeDeletedByClusterAutoscaler"

// Key is part of [Object].
func (n *Node) Key() Key { return Key{KindNode, Name{Name: n.Name}} }

// Equal is part of [Object].
func (n *Node) Equal(other Object) bool {
	o, ok := other.(*Node)
	return ok && n.Name == o.Name && n.Zone == o.Zone && n.Leaving == o.Leaving && maps.Equal(n.Labels, o.Labels) &&
		slices.Equal(n.PodCIDRs, o.PodCIDRs) && slices.Equal(n.Addresses, o.Addresses)
}

// HostIPs returns the node's IPs, the first of each family: its primary one first.
// Which addresses are internal is known from their order.
func (n *Node) HostIPs() []netip.Addr {
	var ips []netip.Addr
	for _, addr := range n.Addresses {
		if len(ips) == 0 || len(ips) == 1 && dataplane.FamilyOf(ips[0]) != dataplane.FamilyOf(addr) {
			ips = append(ips, addr)
		}
	}
	return ips
}

// FromNode converts a Node.
func FromNode(in *v1.Node) (*Node, []Problem) {
	out := &Node{Name: in.Name, Labels: maps.Clone(in.Labels), Zone: in.Labels[v1.LabelTopologyZone]}
	out.Leaving = in.DeletionTimestamp != nil ||
		slices.ContainsFunc(in.Spec.Taints, func(t v1.Taint) bool { return t.Key == taintLeaving })
	p := problems{object: out.Key().String()}
	cidrs, field := in.Spec.PodCIDRs, "spec.podCIDRs"
	if len(cidrs) == 0 && in.Spec.PodCIDR != "" {
		cidrs, field = []string{in.Spec.PodCIDR}, "spec.podCIDR"
	}
	out.PodCIDRs = parsePrefixes(cidrs, field, &p)
	for _, kind := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for i, address := range in.Status.Addresses {
			if address.Type != kind {
				continue
			}
			addr, err := ParseAddr(address.Address)
			if err != nil {
				p.add(fmt.Sprintf("status.addresses[%d].address", i), "%v", err)
				continue
			}
			out.Addresses = append(out.Addresses, addr)
		}
	}
	return out, p.list
}

// ServiceCIDR is a range of cluster IPs.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

// Key is part of [Object].
func (c *ServiceCIDR) Key() Key { return Key{KindServiceCIDR, Name{Name: c.Name}} }

// Equal is part of [Object].
func (c *ServiceCIDR) Equal(other Object) bool {
	o, ok := other.(*ServiceCIDR)
	return ok && c.Name == o.Name && slices.Equal(c.CIDRs, o.CIDRs)
}

// FromServiceCIDR converts a ServiceCIDR.
func FromServiceCIDR(in *networkingv1.ServiceCIDR) (*ServiceCIDR, []Problem) {
	out := &ServiceCIDR{Name: in.Name}
	p := problems{object: out.Key().String()}
	out.CIDRs = parsePrefixes(in.Spec.CIDRs, "spec.cidrs", &p)
	return out, p.list
}

// FirstPerFamily returns the first prefix of each family, which is what a
// local detector takes of a list.
func FirstPerFamily(prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	seen := map[dataplane.Family]bool{}
	for _, prefix := range prefixes {
		if family := dataplane.FamilyOf(prefix.Addr()); !seen[family] {
			seen[family] = true
			out = append(out, prefix)
		}
	}
	return out
}

func parsePrefixes(texts []string, field string, p *problems) []netip.Prefix {
	var out []netip.Prefix
	for i, text := range texts {
		prefix, err := ParsePrefix(text)
		if err != nil {
			p.add(fmt.Sprintf("%s[%d]", field, i), "%v", err)
			continue
		}
		out = append(out, prefix)
	}
	return out
}
