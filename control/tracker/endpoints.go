// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/topology"
	"github.com/veridict/veridict/dataplane"
)

// recompute makes the ServicePorts of one Service what they should be.
func (t *Tracker) recompute(svc *service) {
	delete(t.problems, svc)
	if svc.object == nil {
		t.reportOrphans(svc)
	}
	setMember(t.hinted, svc, svc.object != nil && svc.hasHints())
	setMember(t.guarded, svc, svc.object != nil && svc.object.Traffic != nil && len(svc.object.Traffic.SourceRanges) > 0)
	for family, port := range svc.wanted() {
		key := svc.key(family, port)
		vip := svc.vip(family, port)
		if holder := t.claims.holder[frontend{family, vip}]; holder != svc {
			t.setPort(key, nil)
			t.report(svc, "spec.clusterIP", "%s of port %s is taken by the older %s %s, which is served instead",
				vip, key.ServicePortName, convert.KindService, holder.name)
			continue
		}
		want := dataplane.ServicePort{Key: key, ClusterIP: vip.Addr, Port: vip.Port}
		t.setTraffic(svc, &want, port)
		t.setEndpoints(svc, &want, port)
		if now, exists := t.ports[key]; !exists || !now.Equal(&want) {
			t.setPort(key, &want)
		}
	}
	t.recheck(svc)
}

func setMember(set map[*service]struct{}, svc *service, in bool) {
	if in {
		set[svc] = struct{}{}
	} else {
		delete(set, svc)
	}
}

// hasHints says whether where this node is matters to the Service.
func (s *service) hasHints() bool {
	for _, slice := range s.slices {
		if slices.ContainsFunc(slice.Endpoints, func(e convert.Endpoint) bool { return e.Hints != nil }) {
			return true
		}
	}
	return false
}

// setEndpoints fills in the endpoints that each policy allows.
func (t *Tracker) setEndpoints(svc *service, sp *dataplane.ServicePort, port convert.Port) {
	all := svc.merge(sp.Key.Family, port)
	sp.Endpoints = t.limit(svc, sp, topology.Cluster(all, t.here()))
	if sp.InternalLocal || sp.External != nil && sp.External.Local {
		sp.LocalEndpoints = t.limit(svc, sp, topology.Local(all))
	}
	if sp.Key.Protocol == dataplane.UDP {
		sp.Serving = topology.Serving(all)
	}
}

// limit cuts off what does not fit into the buckets of a ServicePort.
func (t *Tracker) limit(svc *service, sp *dataplane.ServicePort, endpoints []dataplane.Endpoint) []dataplane.Endpoint {
	if len(endpoints) > topology.MaxWeightedBuckets && svc.weighted() {
		t.report(svc, "spec.ports", "port %s has %d endpoints (%s), more than %d: weights are ignored",
			sp.Key.ServicePortName, len(endpoints), sp.Key.Family, topology.MaxWeightedBuckets)
	}
	if len(endpoints) > dataplane.MaxBuckets {
		t.report(svc, "spec.ports", "port %s has %d endpoints (%s), the first %d are served",
			sp.Key.ServicePortName, len(endpoints), sp.Key.Family, dataplane.MaxBuckets)
		endpoints = endpoints[:dataplane.MaxBuckets:dataplane.MaxBuckets]
	}
	return endpoints
}

// weighted says whether anything gives weights to endpoints of the Service.
func (s *service) weighted() bool {
	return s.object.Traffic != nil && len(s.object.Traffic.ZoneWeights) > 0 ||
		slices.ContainsFunc(s.slices, func(slice *convert.Slice) bool { return slice.Weight > 0 })
}

// setTraffic fills in policies, affinity and external frontends.
func (t *Tracker) setTraffic(svc *service, sp *dataplane.ServicePort, port convert.Port) {
	traffic := svc.object.Traffic
	if traffic == nil {
		if port.NodePort == 0 {
			return
		}
		traffic = &convert.Traffic{}
	}
	sp.InternalLocal = traffic.InternalLocal
	sp.Algorithm = traffic.Algorithm
	sp.AffinitySeconds = traffic.AffinitySeconds
	external := dataplane.External{Local: traffic.ExternalLocal}
	for _, addr := range svc.externalIPs(sp.Key.Family) {
		vip := dataplane.VIP{Addr: addr, Protocol: port.Protocol, Port: port.Port}
		if t.holds(svc, sp, "spec.externalIPs", vip) {
			external.IPs = append(external.IPs, addr)
		}
	}
	if nodePort := (dataplane.VIP{Protocol: port.Protocol, Port: port.NodePort}); port.NodePort != 0 &&
		t.holds(svc, sp, "spec.ports", nodePort) {
		external.NodePort = port.NodePort
	}
	if len(external.IPs) == 0 && external.NodePort == 0 {
		return
	}
	t.guard(sp.Key.Family, traffic, &external)
	sp.External = &external
}

// holds says whether the Service has the frontend, and reports who has it if not.
func (t *Tracker) holds(svc *service, sp *dataplane.ServicePort, field string, vip dataplane.VIP) bool {
	f := frontend{sp.Key.Family, vip}
	holder := t.claims.holder[f]
	if holder == svc {
		return true
	}
	why := "older"
	if holder.isClusterIP(f) {
		why = "cluster IP of"
	}
	t.report(svc, field, "%s of port %s (%s) is taken by the %s %s %s and not served here",
		vip, sp.Key.ServicePortName, sp.Key.Family, why, convert.KindService, holder.name)
	return false
}

// guard fills in who may connect to the load balancer's addresses. Where the node
// itself may, connections from it can have one of these addresses as their source.
func (t *Tracker) guard(family dataplane.Family, traffic *convert.Traffic, external *dataplane.External) {
	ranges := traffic.RangesOf(family)
	if len(ranges) == 0 {
		return
	}
	for _, addr := range convert.OfFamily(traffic.LoadBalancerIPs, family) {
		if slices.Contains(external.IPs, addr) {
			external.Guarded = append(external.Guarded, addr)
		}
	}
	if len(external.Guarded) == 0 {
		return
	}
	external.SourceRanges = ranges
	nodeMay := slices.ContainsFunc(convert.OfFamily(t.nodeIPs(), family), func(ip netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(ip) })
	})
	if !nodeMay {
		return
	}
	for _, addr := range external.Guarded {
		external.SourceRanges = append(external.SourceRanges, netip.PrefixFrom(addr, addr.BitLen()))
	}
}

// reportOrphans reports the slices of a Service that is not there, as far as somebody
// wrote them in files. An API server tells of either first, and of slices whose Service
// is another proxy's.
func (t *Tracker) reportOrphans(svc *service) {
	for _, s := range svc.slices {
		if t.slices[s.Name].origin == "" {
			continue
		}
		t.problems[svc] = append(t.problems[svc], convert.Problem{
			File:    t.slices[s.Name].origin,
			Object:  s.Key().String(),
			Field:   "metadata.labels[kubernetes.io/service-name]",
			Message: fmt.Sprintf("the slice is not used until there is a Service %s", svc.name),
		})
	}
}

func (t *Tracker) report(svc *service, field, format string, args ...any) {
	t.problems[svc] = append(t.problems[svc], convert.Problem{
		File:    svc.origin,
		Object:  convert.Key{Kind: convert.KindService, Name: svc.name}.String(),
		Field:   field,
		Message: fmt.Sprintf(format, args...),
	})
}

// merge returns the endpoints of one port from all slices, sorted, each address
// and port once.
func (s *service) merge(family dataplane.Family, port convert.Port) []topology.Endpoint {
	var all []topology.Endpoint
	var zones []convert.ZoneWeight
	if s.object != nil && s.object.Traffic != nil {
		zones = s.object.Traffic.ZoneWeights
	}
	for _, slice := range s.slices {
		if slice.Family != family {
			continue
		}
		for _, target := range slice.Ports {
			if target.Name != port.Name || target.Protocol != port.Protocol {
				continue
			}
			all = slices.Grow(all, len(slice.Endpoints))
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				all = append(all, topology.Endpoint{
					Addr: netip.AddrPortFrom(e.Addr, target.Port), Conditions: e.Conditions, Hints: e.Hints,
					Weight: weight(slice, e, zones),
				})
			}
		}
	}
	// Stable, so that of equal duplicates the one in the first slice wins.
	slices.SortStableFunc(all, func(a, b topology.Endpoint) int {
		if order := a.Addr.Compare(b.Addr); order != 0 {
			return order
		}
		return rank(a.Conditions) - rank(b.Conditions)
	})
	return slices.CompactFunc(all, func(a, b topology.Endpoint) bool { return a.Addr == b.Addr })
}

// weight returns the product of the weights that are given, 0 if none is.
func weight(slice *convert.Slice, e *convert.Endpoint, zones []convert.ZoneWeight) uint32 {
	w := uint32(slice.Weight)
	for _, zone := range zones {
		if zone.Zone == e.Zone {
			w = max(w, 1) * uint32(zone.Weight)
		}
	}
	return w
}

// rank orders duplicates: one that is not terminating wins, then the one that
// can be used more.
func rank(c convert.Conditions) int {
	r := 0
	for _, better := range []bool{!c.Terminating, c.Ready, c.Serving, c.Local} {
		r *= 2
		if !better {
			r++
		}
	}
	return r
}
