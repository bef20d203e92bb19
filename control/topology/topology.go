// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"net/netip"
	"slices"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

// Endpoint is an address and port with what is known of it.
type Endpoint struct {
	Addr netip.AddrPort
	convert.Conditions
	Hints *convert.Hints
	// Weight is the product of all weights that are given; 0 counts as 1.
	Weight uint32
}

// Node is where this proxy runs. Both are empty where they are not known.
type Node struct{ Name, Zone string }

// Cluster returns the endpoints for traffic policy Cluster, in the order given:
// those that are Ready and meant for this node or, if none is Ready, those that
// still serve while they terminate, so that a rollout does not refuse connections
// that could be answered. The result is nil if there is none.
//
// Endpoints are meant for this node if all Ready ones have hints for nodes and one
// of them for this node, or else all have hints for zones and one of them for this
// zone; otherwise all are. Hints never leave a Service without endpoints.
func Cluster(endpoints []Endpoint, node Node) []dataplane.Endpoint {
	meant := meantFor(endpoints, node)
	if ready := choose(endpoints, func(e *Endpoint) bool { return e.Ready && meant(e) }); ready != nil {
		return ready
	}
	return choose(endpoints, servesWhileTerminating)
}

// Local returns the endpoints for traffic policy Local: those of this node that
// are Ready or, if none is, that serve while they terminate. Hints do not count.
// The result is nil if there is none.
func Local(endpoints []Endpoint) []dataplane.Endpoint {
	if ready := choose(endpoints, func(e *Endpoint) bool { return e.Local && e.Ready }); ready != nil {
		return ready
	}
	return choose(endpoints, func(e *Endpoint) bool { return e.Local && servesWhileTerminating(e) })
}

// Serving returns the addresses of all endpoints that serve, in the order given. One
// that is Ready does, whatever it says: it gets connections.
func Serving(endpoints []Endpoint) []netip.AddrPort {
	var list []netip.AddrPort
	for i := range endpoints {
		if e := &endpoints[i]; e.Serving || e.Ready {
			list = append(list, e.Addr)
		}
	}
	return list
}

func servesWhileTerminating(e *Endpoint) bool { return e.Serving && e.Terminating }

// meantFor returns what hints say about an endpoint. Ready is taken as it is: a
// terminating endpoint of a Service that publishes addresses which are not ready
// counts.
func meantFor(endpoints []Endpoint, node Node) func(*Endpoint) bool {
	forNode := func(h *convert.Hints) []string { return h.Nodes }
	forZone := func(h *convert.Hints) []string { return h.Zones }
	for _, hint := range []struct {
		names func(*convert.Hints) []string
		here  string
	}{{forNode, node.Name}, {forZone, node.Zone}} {
		if allHave(endpoints, hint.names, hint.here) {
			return func(e *Endpoint) bool { return slices.Contains(hint.names(e.Hints), hint.here) }
		}
	}
	return func(*Endpoint) bool { return true }
}

// allHave says whether each Ready endpoint has hints of a kind, and one of them
// names this place.
func allHave(endpoints []Endpoint, names func(*convert.Hints) []string, here string) bool {
	found := false
	for i := range endpoints {
		e := &endpoints[i]
		if !e.Ready {
			continue
		}
		if e.Hints == nil || len(names(e.Hints)) == 0 {
			return false
		}
		found = found || here != "" && slices.Contains(names(e.Hints), here)
	}
	return found
}

func choose(endpoints []Endpoint, wanted func(*Endpoint) bool) []dataplane.Endpoint {
	count, weighted := 0, false
	for i := range endpoints {
		if e := &endpoints[i]; wanted(e) {
			count++
			weighted = weighted || e.Weight > 1
		}
	}
	if count == 0 {
		return nil
	}
	chosen := make([]dataplane.Endpoint, 0, count)
	var weights []uint32
	for i := range endpoints {
		if e := &endpoints[i]; wanted(e) {
			chosen = append(chosen, dataplane.Endpoint{Addr: e.Addr, Local: e.Local})
			if weighted {
				weights = append(weights, max(e.Weight, 1))
			}
		}
	}
	for i, buckets := range Buckets(weights) {
		chosen[i].Weight = buckets
	}
	return chosen
}
