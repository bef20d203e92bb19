// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"time"

	"github.com/veridict/veridict/control/api"
	"github.com/veridict/veridict/control/observe"
)

// topSample is what the agent said at one time.
type topSample struct {
	status   *api.Status
	services *api.ServiceList
	latency  *api.LatencyList
}

// askTop has the agent read its counters once, and asks for all that it read.
func askTop(ctx context.Context, client *api.Client) (*topSample, error) {
	status, err := client.Status(ctx)
	if err != nil {
		return nil, err
	}
	last := client.Last()
	services, err := last.Services(ctx, api.Query{})
	if err != nil {
		return nil, err
	}
	latency, err := last.Latency(ctx)
	if err != nil {
		return nil, err
	}
	return &topSample{status, services, latency}, nil
}

// topRate is how many there are in a second. It is less than 0 where nobody knows.
type topRate float64

const unknownRate topRate = -1

// rateOf compares two counts that were read at two times. A count that fell was begun
// anew, and says nothing.
func rateOf(last, previous uint64, took time.Duration) topRate {
	if took <= 0 || last < previous {
		return unknownRate
	}
	return topRate(float64(last-previous) / took.Seconds())
}

// topRow is a Service as it is shown.
type topRow struct {
	id, protocol string
	endpoints    int
	rate         topRate
	selections   uint64
	verdict      observe.Verdict
	logE         float64
}

// topFrame is a sample, and what happened since the one before.
type topFrame struct {
	status              *api.Status
	selections, foreign topRate
	// first has the first packets that were translated since the sample before, or
	// all if there is none.
	first observe.Histogram
	rows  []topRow
}

// serviceKey is what one line is about.
type serviceKey struct {
	namespace, name, port, protocol string
	family                          int
}

func keyOf(s *api.Service) serviceKey {
	return serviceKey{s.Namespace, s.Name, s.Port, s.Protocol, s.Family}
}

// newTopFrame compares a sample with the one before, which may be nil.
func newTopFrame(last, previous *topSample) *topFrame {
	if previous != nil && !sameAgent(&last.status.Agent, &previous.status.Agent) {
		previous = nil
	}
	f := &topFrame{
		status: last.status, selections: unknownRate, foreign: unknownRate,
		rows: make([]topRow, len(last.services.Items)), first: translated(last.latency),
	}
	before := make(map[serviceKey]uint64)
	var took time.Duration
	if previous != nil {
		p, q := &last.status.Probes, &previous.status.Probes
		between := p.ReadAt.Sub(q.ReadAt)
		f.selections = rateOf(p.Selections, q.Selections, between)
		f.foreign = rateOf(p.Foreign, q.Foreign, between)
		f.first = grown(f.first, translated(previous.latency))
		took = last.services.ReadAt.Sub(previous.services.ReadAt)
		for i := range previous.services.Items {
			s := &previous.services.Items[i]
			before[keyOf(s)] = s.Selections
		}
	}
	for i := range last.services.Items {
		s := &last.services.Items[i]
		f.rows[i] = topRow{
			id: s.ID(), protocol: protocolOf(s), endpoints: s.Endpoints, selections: s.Selections,
			verdict: s.Verdict, logE: s.LogE, rate: unknownRate,
		}
		if count, known := before[keyOf(s)]; known {
			f.rows[i].rate = rateOf(s.Selections, count, took)
		}
	}
	return f
}

// sameAgent says whether counts of the two can be compared.
func sameAgent(a, b *api.Agent) bool { return a.PID == b.PID && a.Started.Equal(b.Started) }

// translated adds up all histograms of connections that came to an endpoint.
func translated(list *api.LatencyList) observe.Histogram {
	var sum observe.Histogram
	for i := range list.Items {
		if list.Items[i].Outcome != observe.Translated {
			continue
		}
		counts := list.Items[i].Counts
		for j := range min(len(counts), len(sum.Counts)) {
			sum.Counts[j] += counts[j]
		}
	}
	return sum
}

// grown is what came to a histogram, or all of it if it was begun anew.
func grown(last, previous observe.Histogram) observe.Histogram {
	grown := last
	for i, n := range previous.Counts {
		if n > last.Counts[i] {
			return last
		}
		grown.Counts[i] -= n
	}
	return grown
}

// topOrder is what lines are sorted by.
type topOrder string

const (
	byRate     topOrder = "selections per second"
	byEvidence topOrder = "evidence"
	byName     topOrder = "name"
)

// compare is for a stable sort of rows that are sorted by name.
func (o topOrder) compare(a, b *topRow) int {
	switch o {
	case byRate:
		return cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(b.selections, a.selections))
	case byEvidence:
		return cmp.Compare(b.logE, a.logE)
	default:
		return 0
	}
}
