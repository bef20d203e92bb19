// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"
)

// structure counts chains and maps of a small and a large cluster.
func (b *bench) structure(ctx context.Context, r *report) error {
	o := b.options
	subject := "number of chains, sets and maps"
	var chains, maps [2]int
	for i, services := range []int{o.small, o.services} {
		c, report, err := b.start(ctx, services, o.endpoints)
		if err != nil {
			return err
		}
		chains[i], maps[i] = report.Programmed.Chains, report.Programmed.Maps
		r.note(subject, fmt.Sprintf("chains at %d Services, both families", services), float64(chains[i]), "")
		r.note(subject, fmt.Sprintf("sets and maps at %d Services, both families", services), float64(maps[i]), "")
		if err := c.stop(ctx, b); err != nil {
			return err
		}
	}
	r.atMost(subject, "difference", float64(chains[1]-chains[0]+maps[1]-maps[0]), "", 0)
	return nil
}

// restart measures what a start costs over empty tables and over full ones.
func (b *bench) restart(ctx context.Context, r *report) error {
	o := b.options
	var took, coldLongest, warmLongest, sent []float64
	for round := range o.rounds {
		b.progress("restart, round %d of %d", round+1, o.rounds)
		cold, report, err := b.start(ctx, o.services, o.endpoints)
		if err != nil {
			return err
		}
		coldLongest = append(coldLongest, milliseconds(report.LongestCommit))
		if err := cold.syncer.Close(); err != nil {
			return err
		}
		start := time.Now()
		warm, report, err := b.start(ctx, o.services, o.endpoints)
		if err != nil {
			return err
		}
		took = append(took, time.Since(start).Seconds())
		warmLongest = append(warmLongest, milliseconds(report.LongestCommit))
		sent = append(sent, float64(report.ElementsSent))
		if err := warm.stop(ctx, b); err != nil {
			return err
		}
	}
	subject := fmt.Sprintf("start and restart at %d x %d", o.services, o.endpoints)
	r.atMost(subject, "longest commit of a cold start", percentile(coldLongest, 1), "ms", 100)
	r.atMost(subject, "longest commit of a restart", percentile(warmLongest, 1), "ms", 100)
	r.note(subject, "restart with unchanged objects", median(took), "s")
	r.atMost(subject, "elements sent by it", percentile(sent, 1), "", 0)
	return nil
}
