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

// retryAfter is when a port that could not be listened on is tried again.
const retryAfter = 5 * time.Second

// Options are what a [Syncer] is made of.
type Options struct {
	// Listen and Dial are those of the net package if nil.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Logger *slog.Logger
	// Now is time.Now if nil.
	Now func() time.Time
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
	if o.Draw == nil {
		o.Draw = rand.IntN
	}
	return &Syncer{
		Syncer: inner, o: o, ports: make(map[dataplane.ServicePortKey]*dataplane.ServicePort),
		proxies: make(map[dataplane.ServicePortKey]*proxy), failures: make(map[dataplane.ServicePortKey]string),
	}
}

// Reset is part of dataplane.Syncer.
func (s *Syncer) Reset(ctx context.Context, state dataplane.State) (dataplane.Report, error) {
	s.proxied = state.Settings.Localhost == dataplane.LocalhostProxied
	clear(s.ports)
	for key, sp := range state.ServicePorts {
		s.set(key, &sp)
	}
	report, err := s.Syncer.Reset(ctx, state)
	if err == nil {
		s.listen(ctx, &report)
	}
	return report, err
}

// Sync is part of dataplane.Syncer.
func (s *Syncer) Sync(ctx context.Context, update dataplane.Update) (dataplane.Report, error) {
	if update.Settings != nil {
		s.proxied = update.Settings.Localhost == dataplane.LocalhostProxied
	}
	for _, key := range update.Removed {
		delete(s.ports, key)
	}
	for i := range update.Changed {
		s.set(update.Changed[i].Key, &update.Changed[i])
	}
	report, err := s.Syncer.Sync(ctx, update)
	if err == nil {
		s.listen(ctx, &report)
	}
	return report, err
}

func (s *Syncer) set(key dataplane.ServicePortKey, sp *dataplane.ServicePort) {
	if key.Protocol == dataplane.TCP && sp.External != nil && sp.External.NodePort != 0 {
		s.ports[key] = sp
	} else {
		delete(s.ports, key)
	}
}

// listen makes the proxies those of the state.
func (s *Syncer) listen(ctx context.Context, report *dataplane.Report) {
	wanted := s.ports
	if !s.proxied {
		wanted = nil
	}
	for key, p := range s.proxies {
		if sp := wanted[key]; sp == nil || sp.External.NodePort != p.port {
			p.close()
			delete(s.proxies, key)
		}
	}
	failures := make(map[dataplane.ServicePortKey]string)
	for key, sp := range wanted {
		p := s.proxies[key]
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
