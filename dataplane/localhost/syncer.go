// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package localhost

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
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
	// Redirector leads connections past the proxy where there is an address to lead
	// them to, UDP too. Nil: there is none.
	Redirector Redirector
	// Draw returns a random number below n. It is called by several goroutines.
	Draw func(n int) int
}

// Syncer listens on loopback addresses. Like any Syncer it is not safe for concurrent
// use.
type Syncer struct {
	dataplane.Syncer
	o          Options
	proxied    bool
	ports      map[dataplane.ServicePortKey]*dataplane.ServicePort
	proxies    map[dataplane.ServicePortKey]*proxy
	redirector *redirector
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
		failures: make(map[dataplane.ServicePortKey]string), redirector: newRedirector(o.Redirector),
	}
}

// Reset is part of dataplane.Syncer.
func (s *Syncer) Reset(ctx context.Context, state dataplane.State) (dataplane.Report, error) {
	s.take(&state.Settings)
	clear(s.ports)
	for _, sp := range state.ServicePorts {
		s.set(&sp)
	}
	s.touchAll()
	report, err := s.Syncer.Reset(ctx, state)
	if err != nil {
		return report, err
	}
	s.serve(ctx, &report)
	if err := s.redirector.closeOthers(); err != nil {
		s.o.Logger.Error("cannot withdraw NodePorts that an earlier process has led away from loopback addresses", "err", err)
	}
	return report, nil
}

// Sync is part of dataplane.Syncer.
func (s *Syncer) Sync(ctx context.Context, update dataplane.Update) (dataplane.Report, error) {
	for _, key := range update.Removed {
		s.remove(key)
	}
	for i := range update.Changed {
		s.set(&update.Changed[i])
	}
	if update.Settings != nil && s.take(update.Settings) {
		s.touchAll()
	}
	report, err := s.Syncer.Sync(ctx, update)
	if err == nil {
		s.serve(ctx, &report)
	}
	return report, err
}

// take returns whether the settings change what is served.
func (s *Syncer) take(settings *dataplane.Settings) bool {
	proxied := settings.Localhost == dataplane.LocalhostProxied
	same := proxied == s.proxied && slices.Equal(settings.LocalhostTargets, s.redirector.targets)
	s.proxied, s.redirector.targets = proxied, settings.LocalhostTargets
	return !same
}

// set notes a ServicePort, of which it keeps no more than it needs: most have no
// NodePort.
func (s *Syncer) set(sp *dataplane.ServicePort) {
	carried := sp.Key.Protocol == dataplane.TCP || sp.Key.Protocol == dataplane.UDP
	if carried && sp.External != nil && sp.External.NodePort != 0 {
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
	for key := range s.redirector.doors {
		s.touched[key] = struct{}{}
	}
	for key := range s.ports {
		s.touched[key] = struct{}{}
	}
}

// serve makes redirections and proxies of what was touched those of the state, and
// tries again what failed.
func (s *Syncer) serve(ctx context.Context, report *dataplane.Report) {
	wanted := s.ports
	if !s.proxied {
		wanted = nil
	}
	for key := range s.failures {
		s.touched[key] = struct{}{}
	}
	// First all proxies that end: a port may pass from one ServicePort to another.
	for key := range s.touched {
		p, sp := s.proxies[key], wanted[key]
		if p != nil && (sp == nil || sp.External.NodePort != p.port) {
			p.close()
			delete(s.proxies, key)
		}
	}
	failures := make(map[dataplane.ServicePortKey]string)
	for key := range s.touched {
		if sp := wanted[key]; sp != nil {
			if err := s.servePort(ctx, sp); err != nil {
				s.fail(failures, key, sp.External.NodePort, err)
			}
		}
	}
	// A redirection is replaced without a gap; what is left of others ends now.
	for key := range s.touched {
		if sp := wanted[key]; sp == nil {
			if err := s.redirector.close(key); err != nil {
				s.fail(failures, key, s.redirector.doors[key].from.Port(), err)
			}
		}
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

// fail logs an error once.
func (s *Syncer) fail(failures map[dataplane.ServicePortKey]string, key dataplane.ServicePortKey, nodePort uint16, err error) {
	failures[key] = err.Error()
	if s.failures[key] != err.Error() {
		s.o.Logger.Error("cannot serve a NodePort on the loopback address, trying again",
			"servicePort", key.String(), "nodePort", nodePort, "err", err)
	}
}

// servePort leaves to the proxy what cannot be redirected. A proxy that is there goes
// on beside a redirection, for its open connections.
func (s *Syncer) servePort(ctx context.Context, sp *dataplane.ServicePort) error {
	redirected, err := s.redirector.open(sp)
	if p := s.proxies[sp.Key]; p != nil {
		p.update(sp)
	}
	if redirected || err != nil && sp.Key.Protocol != dataplane.TCP {
		return err
	}
	if err := s.redirector.close(sp.Key); err != nil {
		return err
	}
	if s.proxies[sp.Key] != nil || sp.Key.Protocol != dataplane.TCP {
		return err
	}
	p, listenErr := s.start(ctx, sp)
	if listenErr == nil {
		s.proxies[sp.Key] = p
	}
	return errors.Join(err, listenErr)
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
