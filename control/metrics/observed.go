// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/veridict/veridict/control/observe"
)

// Snapshots says what the kernel counted.
type Snapshots interface {
	// Snapshot returns the latest one, nil before the first. It costs nothing.
	Snapshot() *observe.Snapshot
}

// other is the service label of the series for all that have none of their own.
const other = "_other"

// observed collects what stands in snapshots.
type observed struct {
	snapshots Snapshots
	descs     observedDescs

	// mu guards the ledger from scrapes at the same time.
	mu     sync.Mutex
	ledger *ledger
	// folded is the snapshot that the ledger is of.
	folded *observe.Snapshot
}

func newObserved(snapshots Snapshots, serviceLimit, endpointLimit int) *observed {
	return &observed{snapshots: snapshots, descs: newObservedDescs(), ledger: newLedger(serviceLimit, endpointLimit)}
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
	if s.Probes.Mode != observe.Off && !s.At.IsZero() {
		o.collectCounts(ch, s)
	}
}

// fold takes a snapshot into the ledger. One that is older than the last, which a
// scrape at the same time took, is left out.
func (o *observed) fold(s *observe.Snapshot) {
	if o.folded == s || o.folded != nil && s.At.Before(o.folded.At) {
		return
	}
	o.folded = s
	o.ledger.fold(s.Services)
}
