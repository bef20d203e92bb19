// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
)

const (
	// streakLength is how many connections in a row must agree with a new set
	// of endpoints. Of 9 endpoints one is missed that often once in 10⁹.
	streakLength = 200
	// followDeadline is how long the proxy may take to follow a change.
	followDeadline = 15 * time.Second
)

// scaleTo are the numbers of endpoints that the scaled Service gets in turn.
func scaleTo() []int { return []int{9, 3, 7, 1, 5} }

func largestScale() int { return slices.Max(scaleTo()) }

// scale changes the number of endpoints of a Service while clients connect to
// all of them. No connection may fail, and each step must become visible; which
// share an endpoint gets while the set changes is not judged.
func (r *run) scale(ctx context.Context) error {
	served := r.shop.served()
	at := slices.IndexFunc(served, func(p servicePort) bool { return p.name == scaledService })
	if at < 0 {
		return fmt.Errorf("scale: the manifests have no Service %s with endpoints", scaledService)
	}
	scaled := served[at]
	r.report.Scaled = scaled.title()
	r.Progress.Begin("scaling", len(scaleTo()))
	start, from := time.Now(), len(scaled.endpoints)
	var tally testbed.Tally
	for _, to := range scaleTo() {
		step, err := r.scaleStep(ctx, scaled.vip, from, to, tally.Add)
		if err != nil {
			return err
		}
		r.report.Scaling = append(r.report.Scaling, step)
		r.Progress.Advance()
		from = to
	}
	if err := r.countScaled(&tally); err != nil {
		return err
	}
	failed, sizes := 0, strconv.Itoa(len(scaled.endpoints))
	for _, step := range r.report.Scaling {
		failed += step.Failed
		sizes += " → " + strconv.Itoa(step.To)
	}
	r.Progress.End(fmt.Sprintf("%s %s: %s connections, %s failed (%s)", scaledService, sizes,
		thousands(r.report.scalingConnections()), thousands(failed), since(start)))
	return nil
}

// scaleStep does one change under load. Every other connection goes to the
// scaled Service. All outcomes go to observe, too.
func (r *run) scaleStep(
	ctx context.Context, vip dataplane.VIP, from, to int, observe func(testbed.Outcome),
) (ScaleStep, error) {
	both, err := r.scaler.addrs(max(from, to))
	if err != nil {
		return ScaleStep{}, err
	}
	follower := newFollower(vip, both[:to])
	t := &traffic{allowed: r.shop.allowed(), observe: func(outcome testbed.Outcome) {
		observe(outcome)
		follower.observe(outcome)
	}}
	t.allowed[vip] = both

	step := ScaleStep{From: from, To: to}
	group, ctx := errgroup.WithContext(ctx)
	ended := make(chan struct{})
	group.Go(func() error {
		defer close(ended)
		return t.run(ctx, r.cluster.clients, r.alternate(vip, follower))
	})
	group.Go(func() (err error) {
		step.Followed, err = r.change(ctx, follower, to, ended)
		return err
	})
	if err := group.Wait(); err != nil {
		return ScaleStep{}, err
	}
	step.Connections, step.Failed = t.tally.Totals()
	r.addFailures(&t.tally)
	return step, nil
}

// change rewrites the manifest and waits until clients see the new set, or
// until the load has ended because too much of it failed.
func (r *run) change(ctx context.Context, follower *follower, to int, ended <-chan struct{}) (time.Duration, error) {
	start := time.Now()
	if err := r.scaler.scale(r.dir, scaledFile, to); err != nil {
		return 0, err
	}
	deadline := time.NewTimer(followDeadline)
	defer deadline.Stop()
	select {
	case <-follower.settled:
	case <-ended:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-deadline.C:
		return 0, fmt.Errorf("scale to %d endpoints: clients do not see the change within %s", to, followDeadline)
	}
	return max(0, follower.lastSeen().Sub(start)), nil
}

// alternate returns the VIPs to connect to: the scaled one and, in turns, all,
// until the follower has settled and the step is long enough.
func (r *run) alternate(scaled dataplane.VIP, follower *follower) func() (dataplane.VIP, bool) {
	served, n := r.shop.served(), 0
	return func() (dataplane.VIP, bool) {
		select {
		case <-follower.settled:
			if n >= r.StepConnections {
				return dataplane.VIP{}, false
			}
		default:
		}
		n++
		if n%2 == 0 {
			return scaled, true
		}
		return served[n/2%len(served)].vip, true
	}
}

// follower notices when the answers of a VIP agree with a new set of endpoints:
// a streak of them came from the set, and all of it has answered. It is safe
// for concurrent use.
type follower struct {
	vip dataplane.VIP
	// settled is closed when the answers agree.
	settled chan struct{}

	mu     sync.Mutex
	want   []netip.AddrPort
	streak int
	seen   map[netip.AddrPort]bool
	since  time.Time
}

func newFollower(vip dataplane.VIP, want []netip.AddrPort) *follower {
	return &follower{vip: vip, want: want, settled: make(chan struct{}), seen: map[netip.AddrPort]bool{}}
}

// observe takes an outcome into account.
func (f *follower) observe(outcome testbed.Outcome) {
	if outcome.VIP != f.vip || outcome.Err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.want, outcome.Answer.Endpoint) {
		f.streak, f.since = 0, time.Time{}
		clear(f.seen)
		return
	}
	f.streak++
	if !f.seen[outcome.Answer.Endpoint] {
		f.seen[outcome.Answer.Endpoint] = true
		f.since = time.Now()
	}
	if f.streak >= streakLength && len(f.seen) == len(f.want) {
		f.settle()
	}
}

func (f *follower) settle() {
	select {
	case <-f.settled:
	default:
		close(f.settled)
	}
}

// lastSeen returns when the last endpoint of the new set answered for the first
// time since the last answer from outside of it.
func (f *follower) lastSeen() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.since
}
