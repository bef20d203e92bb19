// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"iter"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// Snapshots says what the kernel counted.
type Snapshots interface {
	// Snapshot returns the latest one, nil before the first. It costs nothing.
	Snapshot() *observe.Snapshot
}

// other is the service label of the series for all that have none of their own.
const other = "_other"

// endpointKey is an endpoint of a ServicePort.
type endpointKey struct {
	service dataplane.ServicePortKey
	addr    netip.AddrPort
}

func compareServices(a, b dataplane.ServicePortKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Family, b.Family))
}

func compareEndpoints(a, b endpointKey) int {
	return cmp.Or(compareServices(a.service, b.service), a.addr.Compare(b.addr))
}

// observed collects what stands in snapshots.
type observed struct {
	snapshots Snapshots
	descs     observedDescs

	// mu guards the ledgers between scrapes at the same time.
	mu        sync.Mutex
	folded    *observe.Snapshot
	services  *ledger[dataplane.ServicePortKey]
	endpoints *ledger[endpointKey]
	missed    *ledger[dataplane.ServicePortKey]
}

func newObserved(snapshots Snapshots, serviceLimit, endpointLimit int) *observed {
	return &observed{
		snapshots: snapshots,
		descs:     newObservedDescs(),
		services:  newLedger(serviceLimit, compareServices),
		endpoints: newLedger(endpointLimit, compareEndpoints),
		missed:    newLedger(0, compareServices),
	}
}

// Describe is part of prometheus.Collector.
func (o *observed) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range o.descs.all() {
		ch <- desc
	}
}

// Collect is part of prometheus.Collector.
func (o *observed) Collect(ch chan<- prometheus.Metric) {
	s := o.snapshots.Snapshot()
	if s == nil {
		return
	}
	o.collectProbes(ch, s)
	if !s.At.IsZero() {
		o.collectCounts(ch, s)
	}
}

// fold takes a snapshot into the ledgers. One that is older than the last, which a
// scrape at the same time took, is left out.
func (o *observed) fold(s *observe.Snapshot) {
	if o.folded == s || o.folded != nil && s.At.Before(o.folded.At) {
		return
	}
	o.folded = s
	o.services.fold(perService(s, (*observe.Service).Selections))
	o.missed.fold(perService(s, func(service *observe.Service) uint64 { return service.Missed }))
	o.endpoints.fold(perEndpoint(s))
}

func perService(s *observe.Snapshot, count func(*observe.Service) uint64) iter.Seq2[dataplane.ServicePortKey, uint64] {
	return func(yield func(dataplane.ServicePortKey, uint64) bool) {
		for i := range s.Services {
			if !yield(s.Services[i].Key, count(&s.Services[i])) {
				return
			}
		}
	}
}

// perEndpoint returns the endpoints of all pools. One that is in two pools has the
// same count in both.
func perEndpoint(s *observe.Snapshot) iter.Seq2[endpointKey, uint64] {
	return func(yield func(endpointKey, uint64) bool) {
		for i := range s.Services {
			service := &s.Services[i]
			for _, pool := range service.Pools {
				for j := range pool.Endpoints {
					if !yield(endpointKey{service.Key, pool.Endpoints[j].Addr}, pool.Endpoints[j].Total) {
						return
					}
				}
			}
		}
	}
}
