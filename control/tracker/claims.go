// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

// frontend is a VIP of one family. A NodePort has no address to tell it.
type frontend struct {
	family dataplane.Family
	vip    dataplane.VIP
}

// claims knows which Service has which frontend. Nearly always there is one
// claimant, so only the others are kept in lists.
type claims struct {
	holder  map[frontend]*service
	waiting map[frontend][]*service // in order of precedence
}

func newClaims() claims {
	return claims{holder: map[frontend]*service{}, waiting: map[frontend][]*service{}}
}

// claim enters all frontends of the Service and returns other Services that lost
// one to it, and those whose report names such a loser.
func (c *claims) claim(svc *service) []*service {
	var lost []*service
	for f := range svc.frontends() {
		holder := c.holder[f]
		switch {
		case holder == svc:
			// A load balancer's address may be an external IP, too.
		case holder == nil:
			c.holder[f] = svc
		case precedes(f, svc, holder) < 0:
			c.holder[f] = svc
			c.wait(f, holder)
			lost = append(lost, c.waiting[f]...)
		default:
			c.wait(f, svc)
		}
	}
	return lost
}

func (c *claims) wait(f frontend, svc *service) {
	list := c.waiting[f]
	at, found := slices.BinarySearchFunc(list, svc, func(a, b *service) int { return precedes(f, a, b) })
	if !found {
		c.waiting[f] = slices.Insert(list, at, svc)
	}
}

// release gives up all frontends of the Service and returns those that take one
// over, and those whose report names the Service.
func (c *claims) release(svc *service) []*service {
	var affected []*service
	for f := range svc.frontends() {
		list := c.waiting[f]
		if c.holder[f] != svc {
			list = slices.DeleteFunc(list, func(s *service) bool { return s == svc })
		} else if len(list) == 0 {
			delete(c.holder, f)
		} else {
			affected = append(affected, list...)
			c.holder[f] = list[0]
			list = list[1:]
		}
		if len(list) == 0 {
			delete(c.waiting, f)
		} else {
			c.waiting[f] = list
		}
	}
	return affected
}

// precedes orders Services that want the same frontend: one whose cluster IP it is
// first, since the API server has given it that and anybody may write external IPs
// (CVE-2020-8554), then the older one.
func precedes(f frontend, a, b *service) int {
	if x, y := a.isClusterIP(f), b.isClusterIP(f); x != y {
		if x {
			return -1
		}
		return 1
	}
	youngest := func(created int64) bool { return created == 0 }
	if x, y := youngest(a.object.Created), youngest(b.object.Created); x != y {
		if x {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.object.Created, b.object.Created), a.name.Compare(b.name))
}

func (s *service) isClusterIP(f frontend) bool {
	return !f.vip.IsNodePort() && s.object.ClusterIP(f.family) == f.vip.Addr
}

// frontends yields what the Service asks for; an address that stands in two of its
// lists twice.
func (s *service) frontends() iter.Seq[frontend] {
	return func(yield func(frontend) bool) {
		for family, port := range s.wanted() {
			vip := s.vip(family, port)
			if !yield(frontend{family, vip}) {
				return
			}
			for _, addr := range s.externalIPs(family) {
				vip.Addr = addr
				if !yield(frontend{family, vip}) {
					return
				}
			}
			if port.NodePort != 0 && !yield(frontend{family, dataplane.VIP{Protocol: port.Protocol, Port: port.NodePort}}) {
				return
			}
		}
	}
}

// externalIPs returns the addresses of a family besides the cluster IP, sorted, each
// once.
func (s *service) externalIPs(family dataplane.Family) []netip.Addr {
	t := s.object.Traffic
	if t == nil || len(t.ExternalIPs)+len(t.LoadBalancerIPs) == 0 {
		return nil
	}
	list := slices.Concat(convert.OfFamily(t.ExternalIPs, family), convert.OfFamily(t.LoadBalancerIPs, family))
	slices.SortFunc(list, netip.Addr.Compare)
	own := s.object.ClusterIP(family)
	return slices.DeleteFunc(slices.Compact(list), func(a netip.Addr) bool { return a == own })
}

func (s *service) vip(family dataplane.Family, port convert.Port) dataplane.VIP {
	return dataplane.VIP{Addr: s.object.ClusterIP(family), Protocol: port.Protocol, Port: port.Port}
}

// keys yields the keys of the ServicePorts that the Service asks for.
func (s *service) keys() iter.Seq[dataplane.ServicePortKey] {
	return func(yield func(dataplane.ServicePortKey) bool) {
		for family, port := range s.wanted() {
			if !yield(s.key(family, port)) {
				return
			}
		}
	}
}

func (s *service) key(family dataplane.Family, port convert.Port) dataplane.ServicePortKey {
	return dataplane.ServicePortKey{
		ServicePortName: dataplane.ServicePortName{
			Namespace: s.name.Namespace, Name: s.name.Name, Port: port.Name, Protocol: port.Protocol,
		},
		Family: family,
	}
}

// wanted yields each port with each family that the Service has an address of.
func (s *service) wanted() iter.Seq2[dataplane.Family, convert.Port] {
	return func(yield func(dataplane.Family, convert.Port) bool) {
		if s.object == nil {
			return
		}
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			if !s.object.ClusterIP(family).IsValid() {
				continue
			}
			for _, port := range s.object.Ports {
				if !yield(family, port) {
					return
				}
			}
		}
	}
}
