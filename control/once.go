// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/veridict/veridict/control/config"
	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/source"
	"github.com/veridict/veridict/dataplane"
)

// Result is what [Controller.RunOnce] did.
type Result struct {
	// Report is the one of the call that programmed the state.
	Report dataplane.Report
	// Took is the time from the state in memory to the state committed.
	Took time.Duration
	// Problems are all that there are, those of the kernel included.
	Problems []convert.Problem
}

// Housekeeping that a single run waits for: rows that are no longer used are
// removed a moment after the change, chains much later or by the next process.
const (
	onceWait   = time.Second
	onceRounds = 10
)

// RunOnce programs what the source holds now and returns.
func (c *Controller) RunOnce(ctx context.Context) (Result, error) {
	if err := c.loadHostAddresses(); err != nil {
		return Result{}, err
	}
	if err := c.o.Source.Load(ctx, c.handle); err != nil {
		return Result{}, err
	}
	w, _ := c.take()
	start := c.o.Clock.Now()
	report, err := c.program(ctx, &w)
	if err != nil {
		return Result{}, fmt.Errorf("program the kernel: %w", err)
	}
	took := c.o.Clock.Now().Sub(start)
	if err := c.tidy(ctx); err != nil {
		return Result{}, fmt.Errorf("remove what is no longer used: %w", err)
	}
	return Result{Report: report, Took: took, Problems: c.allProblems()}, nil
}

// tidy does the housekeeping that is due soon.
func (c *Controller) tidy(ctx context.Context) error {
	for range onceRounds {
		pause := c.due.Sub(c.o.Clock.Now())
		if c.due.IsZero() || pause > onceWait {
			return nil
		}
		timer := c.o.Clock.NewTimer(max(pause, 0))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C():
		}
		if _, err := c.program(ctx, &work{}); err != nil {
			return err
		}
	}
	return nil
}

// Load returns the state that a source asks for, and what is wrong with its
// objects, without programming anything.
//
// hostAddresses are those of the node's interfaces.
func Load(ctx context.Context, src Source, cfg config.Config, hostAddresses []netip.Addr) (dataplane.State, []convert.Problem, error) {
	t := newTracker(cfg)
	t.SetHostAddresses(hostAddresses)
	var problems []convert.Problem
	err := src.Load(ctx, func(batch source.Batch) {
		t.Apply(batch.Changes)
		problems = append(batch.Problems, t.Problems()...)
	})
	if err != nil {
		return dataplane.State{}, nil, err
	}
	return t.State(), problems, nil
}
