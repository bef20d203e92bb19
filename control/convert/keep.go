// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"
	"strings"
)

// KeepServed returns the object now with what its mistakes, the problems of its
// conversion, would take away from what the version before it had served:
// addresses, ports, source ranges, policies and affinity of a Service, and the
// whole of another object of which the mistakes leave nothing. A single endpoint is
// not kept, as it may be gone, nor is an annotation.
func KeepServed(now, before Object, mistakes []Problem) Object {
	switch now := now.(type) {
	case *Service:
		if before, ok := before.(*Service); ok {
			return now.keep(before, mistakes)
		}
	case *Slice:
		if now.Service == "" || len(now.Ports) == 0 || len(now.Endpoints) == 0 {
			return before
		}
	case *Node:
		if len(now.PodCIDRs) == 0 && concern(mistakes, "spec.podCIDR") {
			return before
		}
	case *ServiceCIDR:
		if len(now.CIDRs) == 0 {
			return before
		}
	}
	return now
}

// concern says whether one of the problems is about a field that begins so.
func concern(mistakes []Problem, field string) bool {
	return slices.ContainsFunc(mistakes, func(p Problem) bool { return strings.HasPrefix(p.Field, field) })
}

func (s *Service) keep(before *Service, mistakes []Problem) *Service {
	out := *s
	if concern(mistakes, "spec.clusterIP") {
		out.IPv4 = either(s.IPv4, before.IPv4)
		out.IPv6 = either(s.IPv6, before.IPv6)
	}
	if concern(mistakes, "spec.ports") {
		out.Ports = keepPorts(s.Ports, before.Ports, mistakes)
	}
	out.Traffic = s.Traffic.keep(before.Traffic, mistakes)
	return &out
}

// keepPorts returns the ports now with those of before that have disappeared, and
// with the NodePorts that mistakes would take away.
func keepPorts(now, before []Port, mistakes []Problem) []Port {
	out := slices.Clone(now)
	lostNodePort := slices.ContainsFunc(mistakes, func(p Problem) bool { return strings.HasSuffix(p.Field, ".nodePort") })
	for _, port := range before {
		if hasNodePort(out, port.Protocol, port.NodePort) {
			port.NodePort = 0
		}
		at := slices.IndexFunc(out, port.clashes)
		switch {
		case at < 0:
			out = append(out, port)
		case lostNodePort && out[at].NodePort == 0 && out[at].Name == port.Name:
			out[at].NodePort = port.NodePort
		}
	}
	return out
}

// keep returns the traffic with what mistakes would take away of before. Old
// source ranges stay beside new ones: without any, everybody would be let in.
func (t *Traffic) keep(before *Traffic, mistakes []Problem) *Traffic {
	if before == nil {
		return t
	}
	out := Traffic{}
	if t != nil {
		out = *t
	}
	if concern(mistakes, "spec.externalIPs") {
		out.ExternalIPs = sortedOnce(slices.Concat(out.ExternalIPs, before.ExternalIPs))
	}
	if concern(mistakes, "status.loadBalancer") {
		out.LoadBalancerIPs = sortedOnce(slices.Concat(out.LoadBalancerIPs, before.LoadBalancerIPs))
	}
	if concern(mistakes, "spec.loadBalancerSourceRanges") {
		out.SourceRanges = sortedRanges(slices.Concat(out.SourceRanges, before.SourceRanges))
	}
	if concern(mistakes, "spec.internalTrafficPolicy") {
		out.InternalLocal = before.InternalLocal
	}
	if concern(mistakes, "spec.externalTrafficPolicy") {
		out.ExternalLocal, out.HealthCheckPort = before.ExternalLocal, before.HealthCheckPort
	}
	if concern(mistakes, "spec.healthCheckNodePort") {
		out.HealthCheckPort = before.HealthCheckPort
	}
	if concern(mistakes, "spec.sessionAffinity") && before.AffinitySeconds != 0 {
		out.AffinitySeconds = before.AffinitySeconds
	}
	if out.isZero() {
		return nil
	}
	return &out
}

func either(addr, other netip.Addr) netip.Addr {
	if addr.IsValid() {
		return addr
	}
	return other
}

// clashes says whether one Service cannot have both ports.
func (p Port) clashes(o Port) bool {
	return p.Protocol == o.Protocol && (p.Name == o.Name || p.Port == o.Port)
}
