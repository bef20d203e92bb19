// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker

import (
	"maps"
	"net/netip"

	"github.com/veridict/veridict/control/convert"
)

// HealthCheck is what load balancers ask about one Service.
type HealthCheck struct {
	// Port is where they ask.
	Port uint16
	// LocalEndpoints are the Ready endpoints on this node, each address once.
	LocalEndpoints int
}

// HealthChecks returns those of all Services that have one.
func (t *Tracker) HealthChecks() map[convert.Name]HealthCheck { return maps.Clone(t.checks) }

// HealthChecksVersion is another number whenever HealthChecks has changed.
func (t *Tracker) HealthChecksVersion() int { return t.checked }

// recheck brings the health check of a Service up to date.
func (t *Tracker) recheck(svc *service) {
	before, had := t.checks[svc.name]
	if svc.object == nil || svc.object.Traffic == nil || svc.object.Traffic.HealthCheckPort == 0 || !svc.served() {
		if had {
			delete(t.checks, svc.name)
			t.checked++
		}
		return
	}
	now := HealthCheck{Port: svc.object.Traffic.HealthCheckPort, LocalEndpoints: svc.readyHere()}
	if now != before {
		t.checks[svc.name] = now
		t.checked++
	}
}

// served says whether the Service has a cluster IP.
func (s *service) served() bool { return s.object.IPv4.IsValid() || s.object.IPv6.IsValid() }

func (s *service) readyHere() int {
	ready := make(map[netip.Addr]struct{})
	for _, slice := range s.slices {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Ready && e.Local {
				ready[e.Addr] = struct{}{}
			}
		}
	}
	return len(ready)
}
