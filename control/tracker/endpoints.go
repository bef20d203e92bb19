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
	for family, port := range svc.wanted() {
		key := svc.key(family, port)
		vip := svc.vip(family, port)
		if holder := t.claims.holder[vip]; holder != svc {
			t.setPort(key, nil)
			t.report(svc, "spec.clusterIP", "%s of port %s is taken by the older %s %s, which is served instead",
				vip, key.ServicePortName, convert.KindService, holder.name)
			continue
		}
		endpoints := topology.Cluster(svc.merge(family, port))
		if len(endpoints) > dataplane.MaxBuckets {
			t.report(svc, "spec.ports", "port %s has %d endpoints (%s), the first %d are served",
				key.ServicePortName, len(endpoints), family, dataplane.MaxBuckets)
			endpoints = endpoints[:dataplane.MaxBuckets:dataplane.MaxBuckets]
		}
		want := dataplane.ServicePort{Key: key, ClusterIP: vip.Addr, Port: vip.Port, Endpoints: endpoints}
		if now, exists := t.ports[key]; !exists || !now.Equal(&want) {
			t.setPort(key, &want)
		}
	}
}

// reportOrphans reports the slices of a Service that is not there.
func (t *Tracker) reportOrphans(svc *service) {
	for _, s := range svc.slices {
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
