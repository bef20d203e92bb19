// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
)

// What could not be programmed is not what counters are compared with, and an error of
// a reading is shown while all else stays.
func TestErrors(t *testing.T) {
	t.Parallel()
	r := newRig()
	r.sync(t, list(web("10.0.0.1:80")))
	r.inner.err = errors.New("refused")
	if _, err := r.Sync(t.Context(), dataplane.Update{Changed: list(web("10.0.0.2:80"))}); err == nil {
		t.Error("the error is lost")
	}
	s := r.read()
	want(t, "endpoint", s.Services[0].Pools[0].Endpoints[0].Addr.String(), "10.0.0.1:80")
	r.probes.err = errors.New("broken")
	s = r.read()
	want(t, "read error", s.ReadError, "broken")
	want(t, "Services", len(s.Services), 1)
	r.read()
	want(t, "logged", strings.Count(r.log.String(), "broken"), 1)
	r.probes.err = nil
	want(t, "read error afterwards", r.read().ReadError, "")
}

func TestWithoutProbes(t *testing.T) {
	t.Parallel()
	o := observe.New(&nothing{}, observe.Options{
		Status: observe.ProbeStatus{Mode: observe.Off, Reason: "no"}, Logger: slog.New(slog.DiscardHandler),
	})
	if _, err := o.Sync(t.Context(), dataplane.Update{Changed: list(web("10.0.0.1:80"))}); err != nil {
		t.Fatal(err)
	}
	s := o.Refresh()
	want(t, "Services", len(s.Services), 1)
	want(t, "reason", s.Probes.Reason, "no")
	want(t, "alarms", kinds(s), "")
}

func TestRunReadsAtIntervals(t *testing.T) {
	t.Parallel()
	r := newRig()
	read := make(chan struct{}, 1)
	r.probes.reading = func() { read <- struct{}{} }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	for range 3 {
		for waiting := true; waiting; {
			r.clock.Advance(5 * time.Second)
			select {
			case <-read:
				waiting = false
			default:
			}
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ended with %v", err)
	}
}

// Without a reading after the start, the draws of a whole interval would not count.
func TestRunReadsAfterReset(t *testing.T) {
	t.Parallel()
	r := newRig()
	read := make(chan struct{})
	r.probes.reading = func() { read <- struct{}{} }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	if _, err := r.Reset(t.Context(), dataplane.State{}); err != nil {
		t.Fatal(err)
	}
	<-read
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ended with %v", err)
	}
}

// A reading of 20,000 Services with 5 endpoints each, all of them drawn from.
func BenchmarkRefresh(b *testing.B) {
	r := newRig()
	var ports []dataplane.ServicePort
	for i := range 20_000 {
		sp := web()
		sp.Key.Name = fmt.Sprintf("service-%d", i)
		sp.ClusterIP = netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)})
		for j := range 5 {
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(j + 1), byte(i >> 8), byte(i)}), 80)
			sp.Endpoints = append(sp.Endpoints, dataplane.Endpoint{Addr: addr})
		}
		ports = append(ports, sp)
	}
	r.sync(b, ports)
	r.read()
	for b.Loop() {
		b.StopTimer()
		for _, sp := range ports {
			for _, ep := range sp.Endpoints {
				r.draw(sp.VIP(), ep.Addr.String(), 1)
			}
		}
		b.StartTimer()
		r.Refresh()
	}
}
