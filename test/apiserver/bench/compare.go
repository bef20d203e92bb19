// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/veridict/veridict/test/apiserver/harness"
)

const (
	veridict  = "veridict"
	kubeProxy = "kube-proxy"

	// large is from where on a start of kube-proxy takes a minute and a core.
	large = 10000
	// manyChanges is where the CPU of a change is measured.
	manyChanges = 5000

	// startTimeout is for kube-proxy at 10,000 Services with three endpoints.
	startTimeout = 5 * time.Minute
	// idleTime is how long the CPU time without changes is measured.
	idleTime = 30 * time.Second
	// settle is the time after a start until the process is idle.
	settle = 3 * time.Second

	burstSlices, burstWriters = 300, 8
)

// changePause is longer than the proxy's least pause between two syncs, so that each
// change has a sync of its own.
func changePause(name string) time.Duration {
	if name == kubeProxy {
		return 1200 * time.Millisecond
	}
	return 100 * time.Millisecond
}

// measured is one proxy at one number of Services. Times are in milliseconds, memory
// in MiB.
type measured struct {
	start, rss, peak, change, cpu, burst float64
	// idle is the CPU time of a second without changes.
	idle float64
}

// compare measures both proxies at one number of Services, in turns.
func (b *bench) compare(ctx context.Context, size int) error {
	wanted, vips, err := b.wanted(ctx, size)
	if err != nil {
		return err
	}
	results := map[string]*measured{veridict: {}, kubeProxy: {}}
	starts := map[string][]float64{}
	for round := range b.options.rounds {
		for _, name := range []string{kubeProxy, veridict} {
			if name == kubeProxy && size >= large && round > 0 {
				continue
			}
			last := round == b.options.rounds-1 || name == kubeProxy && size >= large
			took, err := b.round(ctx, name, size, last, wanted, vips, results[name])
			if err != nil {
				return fmt.Errorf("%s with %d Services: %w", name, size, err)
			}
			starts[name] = append(starts[name], took)
		}
	}
	for name, m := range results {
		m.start = median(starts[name])
	}
	b.report.add(size, b.options.endpoints, *results[veridict], *results[kubeProxy])
	return nil
}

// wanted returns the endpoints by VIP, and the VIP of each Service.
func (b *bench) wanted(ctx context.Context, size int) (map[netip.Addr][]netip.Addr, []netip.Addr, error) {
	byName, err := b.objects.ClusterIPs(ctx)
	if err != nil {
		return nil, nil, err
	}
	wanted, vips := map[netip.Addr][]netip.Addr{}, make([]netip.Addr, size)
	for i := range vips {
		vips[i] = byName[harness.ServiceName(i)]
		wanted[vips[i]] = harness.EndpointsOf(i, b.options.endpoints)
	}
	return wanted, vips, nil
}

// round starts a proxy from nothing; the last one of a proxy measures everything else,
// too. It returns the time of the start.
func (b *bench) round(
	ctx context.Context, name string, size int, last bool, wanted map[netip.Addr][]netip.Addr, vips []netip.Addr, m *measured,
) (float64, error) {
	if out, err := exec.CommandContext(ctx, "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("nft flush ruleset: %w: %s", err, out)
	}
	program, err := b.start(name)
	if err != nil {
		return 0, err
	}
	defer program.Kill()
	startCtx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	at, err := b.node.AwaitStart(startCtx, wanted)
	if err != nil {
		return 0, err
	}
	took := milliseconds(at.Sub(program.Started))
	progress("%d Services: %s answers for all after %.0f ms", size, name, took)
	if !last {
		return took, nil
	}
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	if m.rss, m.peak, err = memory(program.PID()); err != nil {
		return 0, err
	}
	n := b.options.few
	if size == manyChanges {
		n = b.options.changes
	}
	if err := b.changes(ctx, name, program, n, vips, m); err != nil {
		return 0, err
	}
	return took, b.burst(ctx, name, vips, m)
}

// moved are other endpoints of a Service than those that it has at first.
func (b *bench) moved(i int) []netip.Addr { return harness.EndpointsOf(i+7, b.options.endpoints) }

// changes moves Services one at a time and back, and measures how long after the write's
// return a connection ends at a new endpoint.
func (b *bench) changes(ctx context.Context, name string, program *harness.Program, n int, vips []netip.Addr, m *measured) error {
	idle, err := cpuTime(program.PID())
	if err != nil {
		return err
	}
	if err := pause(ctx, idleTime); err != nil {
		return err
	}
	before, err := cpuTime(program.PID())
	if err != nil {
		return err
	}
	m.idle = milliseconds(before-idle) / idleTime.Seconds()
	var latencies []float64
	for i := range n {
		// Each Service is moved and moved back.
		service := i / 2 * 13 % (len(vips) - 7)
		endpoints := b.moved(service)
		if i%2 == 1 {
			endpoints = harness.EndpointsOf(service, b.options.endpoints)
		}
		if err := b.objects.SetEndpoints(ctx, harness.ServiceName(service), endpoints...); err != nil {
			return err
		}
		written := time.Now()
		at, err := b.node.Await(ctx, map[netip.Addr][]netip.Addr{vips[service]: endpoints})
		if err != nil {
			return err
		}
		latencies = append(latencies, milliseconds(at.Sub(written)))
		if err := pause(ctx, changePause(name)); err != nil {
			return err
		}
	}
	after, err := cpuTime(program.PID())
	if err != nil {
		return err
	}
	m.change, m.cpu = median(latencies), milliseconds(after-before)/float64(n)
	progress("%s: %d changes, median %.2f ms after the write, %.2f ms CPU each, and %.2f ms in a second without", name, n, m.change, m.cpu, m.idle)
	return nil
}

// burst moves many Services as fast as the API server takes it, and back.
func (b *bench) burst(ctx context.Context, name string, vips []netip.Addr, m *measured) error {
	slices := min(burstSlices, len(vips)-7)
	write := func(endpointsOf func(int) []netip.Addr) (time.Duration, error) {
		wanted := map[netip.Addr][]netip.Addr{}
		group, groupCtx := errgroup.WithContext(ctx)
		group.SetLimit(burstWriters)
		for i := range slices {
			wanted[vips[i]] = endpointsOf(i)
			group.Go(func() error { return b.objects.SetEndpoints(groupCtx, harness.ServiceName(i), endpointsOf(i)...) })
		}
		if err := group.Wait(); err != nil {
			return 0, err
		}
		last := time.Now()
		at, err := b.node.Await(ctx, wanted)
		return at.Sub(last), err
	}
	took, err := write(b.moved)
	if err != nil {
		return err
	}
	if _, err := write(func(i int) []netip.Addr { return harness.EndpointsOf(i, b.options.endpoints) }); err != nil {
		return err
	}
	m.burst = milliseconds(took)
	progress("%s: %d slices at once, all in traffic %.0f ms after the last write", name, slices, m.burst)
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
