// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// clock is moved by hand, so that housekeeping is due when the measurement wants
// it.
type clock struct{ now time.Time }

func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }

// cluster is a programmed cluster in this process.
type cluster struct {
	clock     *clock
	syncer    *nftables.Syncer
	services  int
	endpoints int
}

func (b *bench) start(ctx context.Context, services, endpoints int) (*cluster, dataplane.Report, error) {
	c := &cluster{clock: &clock{time.Now()}, services: services, endpoints: endpoints}
	syncer, err := nftables.New(ctx, nftables.Options{Logger: b.log, Now: func() time.Time { return c.clock.now }})
	if err != nil {
		return nil, dataplane.Report{}, err
	}
	c.syncer = syncer
	report, err := syncer.Reset(ctx, state(services, endpoints))
	return c, report, err
}

// stop removes the cluster.
func (c *cluster) stop(ctx context.Context, b *bench) error {
	if err := c.syncer.Close(); err != nil {
		return err
	}
	return nftables.Cleanup(ctx, b.log)
}

// change is the cost of one change.
type change struct {
	took     time.Duration
	elements int
	longest  time.Duration
}

// change programs a ServicePort, and then does what becomes due. Only the first is
// timed; elements are those of both.
func (c *cluster) change(ctx context.Context, sp dataplane.ServicePort) (change, error) {
	update := dataplane.Update{Changed: []dataplane.ServicePort{sp}}
	start := time.Now()
	report, err := c.syncer.Sync(ctx, update)
	took := time.Since(start)
	if err != nil {
		return change{}, err
	}
	c.clock.pass(time.Second)
	later, err := c.syncer.Sync(ctx, dataplane.Update{})
	if err != nil {
		return change{}, err
	}
	return change{
		took: took, elements: report.ElementsSent + later.ElementsSent,
		longest: max(report.LongestCommit, later.LongestCommit),
	}, nil
}

// run measures endpoints that come and go, each a change of one Service. The one
// that goes is on this node and has the first bucket, so that the last one moves:
// no change of an endpoint takes more elements.
func (c *cluster) run(ctx context.Context, changes int) ([]change, error) {
	list := make([]change, 0, changes)
	for i := range changes {
		sp := servicePort((i/2*7919)%c.services, c.endpoints+1)
		sp.Endpoints[0].Local = true
		if leaves := i%2 == 1; leaves {
			sp.Endpoints = sp.Endpoints[1:]
		}
		ch, err := c.change(ctx, sp)
		if err != nil {
			return nil, err
		}
		list = append(list, ch)
	}
	return list, nil
}

// sizes are the figures of one size of cluster over all rounds.
type sizes struct {
	p50, p99, longest []float64
	elements          int
}

func (s *sizes) add(list []change) {
	took := make([]float64, len(list))
	longest := time.Duration(0)
	for i, ch := range list {
		took[i] = milliseconds(ch.took)
		longest = max(longest, ch.longest)
		s.elements = max(s.elements, ch.elements)
	}
	s.p50 = append(s.p50, percentile(took, 0.5))
	s.p99 = append(s.p99, percentile(took, 0.99))
	s.longest = append(s.longest, milliseconds(longest))
}

// changes measures one endpoint more or less where the dispatch chains exist, in
// a small and in a large cluster.
func (b *bench) changes(ctx context.Context, r *report) error {
	o := b.options
	var small, large sizes
	for round := range o.rounds {
		b.progress("single changes, round %d of %d", round+1, o.rounds)
		for _, size := range []struct {
			services int
			to       *sizes
		}{{o.small, &small}, {o.services, &large}} {
			c, _, err := b.start(ctx, size.services, o.endpoints)
			if err != nil {
				return err
			}
			if _, err := c.run(ctx, 20); err != nil {
				return err
			}
			list, err := c.run(ctx, o.changes)
			if err != nil {
				return err
			}
			size.to.add(list)
			if err := c.stop(ctx, b); err != nil {
				return err
			}
		}
	}
	subject := fmt.Sprintf("one endpoint added or removed, %d changes a round, dispatch chain exists", o.changes)
	r.note(subject, fmt.Sprintf("p50 at %d x %d", o.small, o.endpoints), median(small.p50), "ms")
	r.note(subject, fmt.Sprintf("p99 at %d x %d", o.small, o.endpoints), median(small.p99), "ms")
	r.note(subject, fmt.Sprintf("p50 at %d x %d", o.services, o.endpoints), median(large.p50), "ms")
	r.atMost(subject, fmt.Sprintf("p99 at %d x %d", o.services, o.endpoints), median(large.p99), "ms", 5)
	r.atMost(subject, "p99, large over small", ratio(large.p99, small.p99), "", 1.5)
	r.atMost(subject, "most elements of a change", float64(max(small.elements, large.elements)), "", 6)
	return nil
}

// newChains measures changes to numbers of endpoints that no Service has.
func (b *bench) newChains(ctx context.Context, r *report) error {
	o := b.options
	c, _, err := b.start(ctx, o.services, o.endpoints)
	if err != nil {
		return err
	}
	var took []float64
	for i := range 20 * o.rounds {
		if i%20 == 0 {
			b.progress("changes with a new dispatch chain, round %d of %d", i/20+1, o.rounds)
		}
		ch, err := c.change(ctx, servicePort(i, o.endpoints+20+i))
		if err != nil {
			return err
		}
		took = append(took, milliseconds(ch.took))
	}
	subject := "change to a number of endpoints that no Service has, dispatch chain is made"
	r.note(subject, fmt.Sprintf("p50 at %d x %d", o.services, o.endpoints), percentile(took, 0.5), "ms")
	r.atMost(subject, fmt.Sprintf("p99 at %d x %d", o.services, o.endpoints), percentile(took, 0.99), "ms", 60)
	return c.stop(ctx, b)
}
