// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/veridict/veridict/control/observe"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/runner/runnertest"
)

// fakeProbes are counters that tests write.
type fakeProbes struct {
	frontends map[observe.FrontendID]observe.Frontend
	counters  map[observe.SelectionKey]*observe.Selection
	losses    observe.Losses
	clock     *runnertest.Clock
	err       error
	// reading is called by Read, after the counters were read.
	reading func()
}

func (p *fakeProbes) Status() observe.ProbeStatus {
	return observe.ProbeStatus{Mode: observe.Netfilter}
}

func (p *fakeProbes) SetFrontends(changed []observe.Frontend, removed []observe.FrontendID) error {
	for _, f := range changed {
		p.frontends[f.FrontendID] = f
	}
	for _, id := range removed {
		delete(p.frontends, id)
	}
	return p.err
}

func (p *fakeProbes) Read() (observe.Reading, error) {
	r := observe.Reading{At: p.clock.Now(), Losses: p.losses}
	for _, s := range p.counters {
		r.Selections = append(r.Selections, *s)
	}
	if p.reading != nil {
		p.reading()
	}
	return r, p.err
}

func (p *fakeProbes) Forget(keys []observe.SelectionKey) error {
	for _, key := range keys {
		delete(p.counters, key)
	}
	return nil
}

// nothing programs nothing.
type nothing struct {
	err error
	// programming is called while a call programs.
	programming func()
}

func (n *nothing) Reset(context.Context, dataplane.State) (dataplane.Report, error) {
	return dataplane.Report{}, n.program()
}

func (n *nothing) Sync(context.Context, dataplane.Update) (dataplane.Report, error) {
	return dataplane.Report{}, n.program()
}

func (n *nothing) program() error {
	if n.programming != nil {
		n.programming()
	}
	return n.err
}

// rig is an Observer between fakes.
type rig struct {
	*observe.Observer
	inner  nothing
	probes *fakeProbes
	clock  *runnertest.Clock
	log    bytes.Buffer
}

func newRig() *rig {
	r := &rig{clock: runnertest.NewClock()}
	r.probes = &fakeProbes{
		clock: r.clock, frontends: make(map[observe.FrontendID]observe.Frontend),
		counters: make(map[observe.SelectionKey]*observe.Selection),
	}
	drop := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	r.Observer = observe.New(&r.inner, observe.Options{
		Probes: r.probes, Clock: r.clock,
		Logger: slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{ReplaceAttr: drop})),
	})
	return r
}

type fataler interface {
	Helper()
	Fatal(args ...any)
}

func (r *rig) sync(t fataler, changed []dataplane.ServicePort, removed ...dataplane.ServicePortKey) {
	t.Helper()
	_, err := r.Sync(context.Background(), dataplane.Update{Changed: changed, Removed: removed, Seen: r.clock.Now()})
	if err != nil {
		t.Fatal(err)
	}
}

// read lets an interval pass.
func (r *rig) read() *observe.Snapshot {
	r.clock.Advance(5 * time.Second)
	return r.Refresh()
}

// draw counts n draws of an endpoint.
func (r *rig) draw(vip dataplane.VIP, endpoint string, n uint64) {
	key := observe.SelectionKey{VIP: vip, Endpoint: netip.MustParseAddrPort(endpoint)}
	s := r.probes.counters[key]
	if s == nil {
		s = &observe.Selection{SelectionKey: key, First: r.clock.Now()}
		r.probes.counters[key] = s
	}
	s.Drawn += n
	s.Last = r.clock.Now()
}

// web is a ServicePort with endpoints of equal weight.
func web(endpoints ...string) dataplane.ServicePort {
	sp := dataplane.ServicePort{
		Key: dataplane.ServicePortKey{
			ServicePortName: dataplane.ServicePortName{Namespace: "shop", Name: "web", Protocol: dataplane.TCP},
			Family:          dataplane.IPv4,
		},
		ClusterIP: netip.MustParseAddr("10.96.0.1"), Port: 80,
	}
	for _, ep := range endpoints {
		sp.Endpoints = append(sp.Endpoints, dataplane.Endpoint{Addr: netip.MustParseAddrPort(ep)})
	}
	return sp
}

func list(ports ...dataplane.ServicePort) []dataplane.ServicePort { return ports }

// drawn returns the draws of the epoch, by endpoint.
func drawn(p observe.Pool) string {
	var parts []string
	for _, ep := range p.Endpoints {
		parts = append(parts, fmt.Sprintf("%s:%d", ep.Addr.Addr(), ep.Drawn))
	}
	return strings.Join(parts, " ")
}

func kinds(s *observe.Snapshot) string {
	var parts []string
	for _, a := range s.Alarms {
		parts = append(parts, string(a.Kind))
	}
	return strings.Join(parts, " ")
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
