// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/veridict/veridict/bpf/uniformity"
	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
)

// maxFailures ends a phase early: each failed connection may take seconds, and
// this many are enough to say that something is broken.
const maxFailures = 100

// errStray is the error of a connection that an endpoint has answered which it
// should not have reached.
var errStray = errors.New("answered by an endpoint that does not belong to it")

// traffic opens connections and counts them. Strays count as failed.
type traffic struct {
	allowed map[dataplane.VIP][]netip.AddrPort
	// observe sees each outcome after it was counted; may be nil.
	observe func(testbed.Outcome)
	tally   testbed.Tally
	failed  atomic.Int64
}

// add counts an outcome.
func (t *traffic) add(outcome testbed.Outcome) {
	if outcome.Err == nil && !slices.Contains(t.allowed[outcome.VIP], outcome.Answer.Endpoint) {
		outcome.Err = errStray
	}
	if outcome.Err != nil {
		t.failed.Add(1)
	}
	t.tally.Add(outcome)
	if t.observe != nil {
		t.observe(outcome)
	}
}

// run opens a connection to each VIP that next returns, until that says that
// there are no more or too many have failed.
func (t *traffic) run(ctx context.Context, clients []*testbed.Namespace, next func() (dataplane.VIP, bool)) error {
	vips := make(chan dataplane.VIP)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(vips)
		for t.failed.Load() < maxFailures {
			vip, more := next()
			if !more {
				return nil
			}
			select {
			case vips <- vip:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	group.Go(func() error {
		load := testbed.Load{Clients: clients, Observe: t.add}
		return load.Run(ctx, vips)
	})
	return group.Wait()
}

// allowed maps each VIP to the endpoints that may answer.
func (s *shop) allowed() map[dataplane.VIP][]netip.AddrPort {
	allowed := make(map[dataplane.VIP][]netip.AddrPort, len(s.servicePorts))
	for _, port := range s.servicePorts {
		allowed[port.vip] = port.endpoints
	}
	return allowed
}

// served returns the ServicePorts that have endpoints.
func (s *shop) served() []servicePort {
	return slices.DeleteFunc(slices.Clone(s.servicePorts), func(p servicePort) bool { return len(p.endpoints) == 0 })
}

// measure opens the connections that the tests of the report are about, while
// nothing changes. Their number is fixed beforehand, as the tests require.
func (r *run) measure(ctx context.Context) error {
	served := r.shop.served()
	r.Progress.Begin("connections", r.Connections)
	t := &traffic{allowed: r.shop.allowed(), observe: func(testbed.Outcome) { r.Progress.Advance() }}
	start, opened := time.Now(), 0
	err := t.run(ctx, r.cluster.clients, func() (dataplane.VIP, bool) {
		if opened == r.Connections {
			return dataplane.VIP{}, false
		}
		vip := served[opened%len(served)].vip
		opened++
		return vip, true
	})
	if err != nil {
		return err
	}
	r.report.Elapsed = time.Since(start)
	r.report.Connections, _ = t.tally.Totals()
	r.addFailures(&t.tally)
	for _, port := range served {
		result, err := evaluate(port, t.tally.Of(port.vip))
		if err != nil {
			return err
		}
		r.report.Services = append(r.report.Services, result)
	}
	if err := r.countMeasured(&t.tally); err != nil {
		return err
	}
	gaveUp := ""
	if r.report.Connections < r.Connections {
		gaveUp = ", gave up"
	}
	r.Progress.End(fmt.Sprintf("%s opened, %s failed%s (%s)",
		thousands(r.report.Connections), thousands(r.report.Failed), gaveUp, since(start)))
	return nil
}

// evaluate tests the counts of one ServicePort against equal shares.
func evaluate(port servicePort, count testbed.Count) (ServiceResult, error) {
	counts := make([]int, 0, len(port.endpoints))
	for _, addr := range port.endpoints {
		counts = append(counts, count.Endpoints[addr])
	}
	test, err := uniformity.ChiSquare(counts, nil)
	if err != nil {
		return ServiceResult{}, fmt.Errorf("evaluate %s: %w", port.title(), err)
	}
	result := ServiceResult{Namespace: port.namespace, Name: port.name, PortName: port.portName, VIP: port.vip, Test: test}
	for i, addr := range port.endpoints {
		result.Endpoints = append(result.Endpoints, EndpointResult{
			Addr:        addr,
			Connections: counts[i],
			Expected:    float64(test.N) / float64(len(counts)),
		})
	}
	return result, nil
}

// addFailures adds the failures of a phase to the report, in the order of the
// ServicePorts.
func (r *run) addFailures(tally *testbed.Tally) {
	for _, port := range r.shop.servicePorts {
		failures := tally.Of(port.vip).Failures
		for _, reason := range slices.Sorted(maps.Keys(failures)) {
			r.report.addFailures(port.title(), reason, failures[reason])
		}
	}
}
