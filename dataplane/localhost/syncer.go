// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// dialTimeout is how long an endpoint has to answer.
const dialTimeout = 5 * time.Second

// lingerTimeout is how long a connection goes on in one direction after the other
// has failed.
const lingerTimeout = 5 * time.Second

// retryAfter is when a port that could not be listened on is tried again.
const retryAfter = 5 * time.Second

// acceptAgain is the pause after a connection could not be accepted, as when there
// is no file descriptor left.
const acceptAgain = time.Second

// Options are what a [Syncer] is made of.
type Options struct {
	// Listen and Dial are those of the net package if nil.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Logger *slog.Logger
	// Now is time.Now if nil.
	Now func() time.Time
	// After is time.After if nil.
	After func(d time.Duration) <-chan time.Time
	// Draw returns a random number below n. It is called by several goroutines.
	Draw func(n int) int
}

// Syncer listens on loopback addresses. Like any Syncer it is not safe for concurrent
// use.
type Syncer struct {
	dataplane.Syncer
	o       Options
	proxied bool
	ports   map[dataplane.ServicePortKey]*dataplane.ServicePort
	proxies map[dataplane.ServicePortKey]*proxy
	// touched are those that the next success may have to change a proxy for.
	touched map[dataplane.ServicePortKey]struct{}
	// failures are the errors that were logged.
	failures map[dataplane.ServicePortKey]string
}

// New returns a Syncer that calls inner.
func New(inner dataplane.Syncer, o Options) *Syncer {
	if o.Listen == nil {
		o.Listen = new(net.ListenConfig).Listen
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.After == nil {
		o.After = time.After
	}
	if o.Draw == nil {
		o.Draw = rand.IntN
	}
	return &Syncer{
		Syncer: inner, o: o, ports: make(map[dataplane.ServicePortKey]*dataplane.ServicePort),
		proxies: make(map[dataplane.ServicePortKey]*proxy), touched: make(map[dataplane.ServicePortKey]struct{}),
		failures: make(map[dataplane.ServicePortKey]string),
	}
}

// Reset is part of dataplane.Syncer.
func (s *Syncer) Reset(ctx context.Context, state dataplane.State) (dataplane.Report, error) {
	s.proxied = state.Settings.Localhost == dataplane.LocalhostProxied
	clear(s.ports)
	for _, sp := range state.ServicePorts {
		s.set(&sp)
	}
	s.touchAll()
	report, err := s.Syncer.Reset(ctx, state)
	if err == nil {
		s.listen(ctx, &report)
	}
	return report, err
}

// Sync is part of dataplane.Syncer.
func (s *Syncer) Sync(ctx context.Context, update dataplane.Update) (dataplane.Report, error) {
	for _, key := range update.Removed {
		s.remove(key)
	}
	for i := range update.Changed {
		s.set(&update.Changed[i])
	}
	if update.Settings != nil {
		proxied := update.Settings.Localhost == dataplane.LocalhostProxied
		if proxied != s.proxied {
			s.proxied = proxied
			s.touchAll()
		}
	}
	report, err := s.Syncer.Sync(ctx, update)
	if err == nil {
		s.listen(ctx, &report)
	}
	return report, err
}

// set notes a ServicePort, of which it keeps no more than it needs: most have no
// NodePort.
func (s *Syncer) set(sp *dataplane.ServicePort) {
	if sp.Key.Protocol == dataplane.TCP && sp.External != nil && sp.External.NodePort != 0 {
		kept := *sp
		s.ports[sp.Key] = &kept
		s.touched[sp.Key] = struct{}{}
		return
	}
	s.remove(sp.Key)
}

func (s *Syncer) remove(key dataplane.ServicePortKey) {
	if _, known := s.ports[key]; known {
		delete(s.ports, key)
		s.touched[key] = struct{}{}
	}
}

// touchAll touches what is served and what should be.
func (s *Syncer) touchAll() {
	for key := range s.proxies {
		s.touched[key] = struct{}{}
	}
	for key := range s.ports {
		s.touched[key] = struct{}{}
	}
}

// listen makes the proxies of what was touched those of the state, and tries again
// what failed.
func (s *Syncer) listen(ctx context.Context, report *dataplane.Report) {
	wanted := s.ports
	if !s.proxied {
		wanted = nil
	}
	for key := range s.failures {
		s.touched[key] = struct{}{}
	}
	// First all that ends: a port may pass from one ServicePort to another.
	for key := range s.touched {
		p, sp := s.proxies[key], wanted[key]
		if p != nil && (sp == nil || sp.External.NodePort != p.port) {
			p.close()
			delete(s.proxies, key)
		}
	}
	failures := make(map[dataplane.ServicePortKey]string)
	for key := range s.touched {
		p, sp := s.proxies[key], wanted[key]
		if sp == nil {
			continue
		}
		if p != nil {
			p.update(sp)
			continue
		}
		p, err := s.start(ctx, sp)
		if err != nil {
			failures[key] = err.Error()
			if s.failures[key] != err.Error() {
				s.o.Logger.Error("cannot serve a NodePort on the loopback address, trying again",
					"servicePort", key.String(), "nodePort", sp.External.NodePort, "err", err)
			}
			continue
		}
		s.proxies[key] = p
	}
	s.failures = failures
	// Not cleared: that takes as long as the largest update did.
	s.touched = make(map[dataplane.ServicePortKey]struct{})
	if len(failures) > 0 {
		if due := s.o.Now().Add(retryAfter); report.Due.IsZero() || due.Before(report.Due) {
			report.Due = due
		}
	}
}

func (s *Syncer) start(ctx context.Context, sp *dataplane.ServicePort) (*proxy, error) {
	addr := netip.AddrPortFrom(loopback(sp.Key.Family), sp.External.NodePort)
	listener, err := s.o.Listen(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	p := newProxy(s.o, sp, listener)
	p.update(sp)
	p.serve()
	return p, nil
}

func loopback(family dataplane.Family) netip.Addr {
	if family == dataplane.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Failures returns how many ports could not be listened on at the last call.
func (s *Syncer) Failures() int { return len(s.failures) }

// Close ends all connections. The inner Syncer is left alone.
func (s *Syncer) Close() error {
	for key, p := range s.proxies {
		p.close()
		delete(s.proxies, key)
	}
	return nil
}
