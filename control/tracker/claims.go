// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"cmp"
	"iter"
	"slices"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

// claims knows which Service has which VIP. Nearly always there is one
// claimant, so only the others are kept in lists.
type claims struct {
	holder  map[dataplane.VIP]*service
	waiting map[dataplane.VIP][]*service // in order of precedence
}

func newClaims() claims {
	return claims{holder: map[dataplane.VIP]*service{}, waiting: map[dataplane.VIP][]*service{}}
}

// claim enters all VIPs of the Service and returns other Services that lost
// one to it, and those whose report names such a loser.
func (c *claims) claim(svc *service) []*service {
	var lost []*service
	for vip := range svc.vips() {
		holder := c.holder[vip]
		switch {
		case holder == nil:
			c.holder[vip] = svc
		case precedes(svc, holder) < 0:
			c.holder[vip] = svc
			c.wait(vip, holder)
			lost = append(lost, c.waiting[vip]...)
		default:
			c.wait(vip, svc)
		}
	}
	return lost
}

func (c *claims) wait(vip dataplane.VIP, svc *service) {
	list := c.waiting[vip]
	at, _ := slices.BinarySearchFunc(list, svc, precedes)
	c.waiting[vip] = slices.Insert(list, at, svc)
}

// release gives up all VIPs of the Service and returns those that take one
// over, and those whose report names the Service.
func (c *claims) release(svc *service) []*service {
	var affected []*service
	for vip := range svc.vips() {
		list := c.waiting[vip]
		if c.holder[vip] != svc {
			list = slices.DeleteFunc(list, func(s *service) bool { return s == svc })
		} else if len(list) == 0 {
			delete(c.holder, vip)
		} else {
			affected = append(affected, list...)
			c.holder[vip] = list[0]
			list = list[1:]
		}
		if len(list) == 0 {
			delete(c.waiting, vip)
		} else {
			c.waiting[vip] = list
		}
	}
	return affected
}

// precedes orders Services that want the same VIP: the older one first.
func precedes(a, b *service) int {
	youngest := func(created int64) bool { return created == 0 }
	if x, y := youngest(a.object.Created), youngest(b.object.Created); x != y {
		if x {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.object.Created, b.object.Created), a.name.Compare(b.name))
}

// vips yields the VIPs that the Service asks for.
func (s *service) vips() iter.Seq[dataplane.VIP] {
	return func(yield func(dataplane.VIP) bool) {
		for family, port := range s.wanted() {
			if !yield(s.vip(family, port)) {
				return
			}
		}
	}
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
