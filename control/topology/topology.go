// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"net/netip"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

// Endpoint is an address and port with what is known of it.
type Endpoint struct {
	Addr netip.AddrPort
	convert.Conditions
	Hints *convert.Hints
}

// Cluster returns the endpoints for traffic policy Cluster, in the order given:
// those that are Ready or, if none is, those that still serve while they
// terminate, so that a rollout does not refuse connections that could be
// answered. The result is nil if there is none.
func Cluster(endpoints []Endpoint) []dataplane.Endpoint {
	if ready := choose(endpoints, isReady); ready != nil {
		return ready
	}
	return choose(endpoints, servesWhileTerminating)
}

// isReady takes the condition as it is: a terminating endpoint of a Service
// that publishes addresses which are not ready counts as Ready.
func isReady(e *Endpoint) bool { return e.Ready }

func servesWhileTerminating(e *Endpoint) bool { return e.Serving && e.Terminating }

func choose(endpoints []Endpoint, wanted func(*Endpoint) bool) []dataplane.Endpoint {
	count := 0
	for i := range endpoints {
		if wanted(&endpoints[i]) {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	chosen := make([]dataplane.Endpoint, 0, count)
	for i := range endpoints {
		if e := &endpoints[i]; wanted(e) {
			chosen = append(chosen, dataplane.Endpoint{Addr: e.Addr, Local: e.Local})
		}
	}
	return chosen
}
