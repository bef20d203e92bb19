// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/veridict/veridict/dataplane"
)

// A new set of endpoints is judged by draws that are surely its own.
func TestEpochs(t *testing.T) {
	t.Parallel()
	r := newRig()
	sp := web("10.0.0.1:80", "10.0.0.2:80")
	vip := sp.VIP()
	r.sync(t, list(sp))
	r.draw(vip, "10.0.0.1:80", 5)
	s := r.read()
	want(t, "draws before the first reading", drawn(s.Services[0].Pools[0]), "10.0.0.1:0 10.0.0.2:0")
	want(t, "total", s.Services[0].Drawn, 5)

	r.draw(vip, "10.0.0.2:80", 3)
	s = r.read()
	want(t, "draws", drawn(s.Services[0].Pools[0]), "10.0.0.1:0 10.0.0.2:3")
	since := s.Services[0].Pools[0].Since

	// Where an endpoint runs is nothing to the draw.
	moved := web("10.0.0.1:80", "10.0.0.2:80")
	moved.Endpoints[0].Local = true
	r.sync(t, list(moved))
	s = r.read()
	want(t, "draws after a move", drawn(s.Services[0].Pools[0]), "10.0.0.1:0 10.0.0.2:3")
	want(t, "the epoch goes on", s.Services[0].Pools[0].Since, since)
	want(t, "local", s.Services[0].Pools[0].Endpoints[0].Local, true)

	// An update that comes while counters are read: its draws may be in the next
	// reading with those of before.
	r.probes.reading = func() {
		r.probes.reading = nil
		r.sync(t, list(web("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")))
	}
	r.draw(vip, "10.0.0.1:80", 2)
	r.read()
	r.draw(vip, "10.0.0.1:80", 7)
	r.draw(vip, "10.0.0.3:80", 1)
	s = r.read()
	want(t, "draws of the new set", drawn(s.Services[0].Pools[0]), "10.0.0.1:0 10.0.0.2:0 10.0.0.3:0")
	r.draw(vip, "10.0.0.3:80", 4)
	s = r.read()
	want(t, "draws of the new set", drawn(s.Services[0].Pools[0]), "10.0.0.1:0 10.0.0.2:0 10.0.0.3:4")
	want(t, "total", s.Services[0].Drawn, 5+3+2+8+4)
	want(t, "alarms", kinds(s), "")
}

// Counters of endpoints that have left are removed, and what they counted stays in the
// total.
func TestEndpointsThatLeave(t *testing.T) {
	t.Parallel()
	r := newRig()
	sp := web("10.0.0.1:80", "10.0.0.2:80")
	r.sync(t, list(sp))
	r.draw(sp.VIP(), "10.0.0.1:80", 5)
	r.draw(sp.VIP(), "10.0.0.2:80", 5)
	r.read()
	r.sync(t, list(web("10.0.0.1:80")))
	r.draw(sp.VIP(), "10.0.0.2:80", 1)
	for range 5 {
		s := r.read()
		want(t, "total", s.Services[0].Drawn, 11)
		want(t, "alarms", kinds(s), "")
	}
	want(t, "counters", len(r.probes.counters), 1)

	r.sync(t, nil, sp.Key)
	s := r.read()
	want(t, "Services", len(s.Services), 0)
	// Somebody asks in between: that is no interval in which nothing was counted.
	r.Refresh()
	want(t, "counters", len(r.probes.counters), 1)
	r.read()
	want(t, "counters", len(r.probes.counters), 0)
	want(t, "frontends", len(r.probes.frontends), 0)
	want(t, "selections", s.Selections, 11)
}

// Frontends under different policies draw from different sets.
func TestPools(t *testing.T) {
	t.Parallel()
	r := newRig()
	sp := web("10.0.0.1:80", "10.0.0.2:80")
	sp.LocalEndpoints = sp.Endpoints[:1]
	sp.External = &dataplane.External{IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, NodePort: 30080, Local: true}
	r.sync(t, list(sp))
	r.read()
	external := dataplane.VIP{Addr: netip.MustParseAddr("192.0.2.1"), Protocol: dataplane.TCP, Port: 80}
	nodePort := dataplane.VIP{Addr: netip.MustParseAddr("10.1.1.1"), Protocol: dataplane.TCP, Port: 30080}
	r.draw(sp.VIP(), "10.0.0.2:80", 4)
	r.draw(external, "10.0.0.1:80", 2)
	r.draw(nodePort, "10.0.0.1:80", 1)
	r.draw(nodePort, "10.0.0.2:80", 1)
	s := r.read().Services[0]
	want(t, "pools", len(s.Pools), 2)
	want(t, "all", drawn(s.Pools[0]), "10.0.0.1:0 10.0.0.2:4")
	want(t, "local", drawn(s.Pools[1]), "10.0.0.1:0")
	want(t, "total", s.Drawn, 8)
	want(t, "total of the local one", s.Pools[1].Endpoints[0].Total, 3)
	want(t, "alarms", kinds(r.read()), "")
}

// Programming latency is from when the change was seen to the first selection.
func TestProgrammingLatency(t *testing.T) {
	t.Parallel()
	r := newRig()
	sp := web("10.0.0.1:80")
	r.sync(t, list(sp))
	r.draw(sp.VIP(), "10.0.0.1:80", 1)
	r.read()
	r.sync(t, list(web("10.0.0.1:80", "10.0.0.2:80")))
	r.clock.Advance(time.Second)
	r.draw(sp.VIP(), "10.0.0.2:80", 1)
	s := r.read()
	want(t, "measured", s.Programming.Total(), 1)
	want(t, "sum", s.Programming.Sum, time.Second)

	// Nothing is learned where there was no traffic.
	r.read()
	r.sync(t, list(web("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")))
	r.draw(sp.VIP(), "10.0.0.3:80", 1)
	want(t, "measured without traffic", r.read().Programming.Total(), 1)
}

// A restarted process finds counters, and reads them before it knows any Service.
func TestCountersOfBefore(t *testing.T) {
	t.Parallel()
	r := newRig()
	sp := web("10.0.0.1:80", "10.0.0.2:80")
	r.draw(sp.VIP(), "10.0.0.1:80", 5)
	r.draw(sp.VIP(), "10.0.0.9:80", 2)
	for range 3 {
		r.read()
	}
	want(t, "counters", len(r.probes.counters), 2)
	r.draw(sp.VIP(), "10.0.0.1:80", 1)
	state := dataplane.State{ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{sp.Key: sp}}
	if _, err := r.Reset(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s := r.read()
		want(t, "selections", s.Selections, 8)
		want(t, "total", s.Services[0].Drawn, 8)
		want(t, "total of the endpoint", s.Services[0].Pools[0].Endpoints[0].Total, 6)
		want(t, "draws of the epoch", drawn(s.Services[0].Pools[0]), "10.0.0.1:0 10.0.0.2:0")
		want(t, "alarms", kinds(s), "")
	}
	want(t, "counters", len(r.probes.counters), 1)
}

// The kernel has what is programmed, and clients use it, before the call that programs
// it returns.
func TestConnectionsWhileProgramming(t *testing.T) {
	t.Parallel()
	r := newRig()
	sp := web("10.0.0.1:80")
	vip := sp.VIP()
	r.inner.programming = func() {
		r.draw(vip, "10.0.0.1:80", 3)
		for range 3 {
			r.read()
		}
	}
	r.sync(t, list(sp))
	r.inner.programming = nil
	s := r.read()
	want(t, "total of the new Service", s.Services[0].Drawn, 3)
	want(t, "total of its endpoint", s.Services[0].Pools[0].Endpoints[0].Total, 3)

	r.inner.programming = func() {
		r.clock.Advance(time.Second)
		for range 3 {
			r.draw(vip, "10.0.0.2:80", 2)
			r.read()
		}
	}
	r.draw(vip, "10.0.0.1:80", 1)
	r.read()
	r.sync(t, list(web("10.0.0.1:80", "10.0.0.2:80")))
	r.inner.programming = nil
	s = r.read()
	want(t, "total", s.Services[0].Drawn, 10)
	want(t, "total of the new endpoint", s.Services[0].Pools[0].Endpoints[1].Total, 6)
	want(t, "draws of the epoch", drawn(s.Services[0].Pools[0]), "10.0.0.1:0 10.0.0.2:0")
	want(t, "measured", s.Programming.Total(), 1)
	want(t, "sum", s.Programming.Sum, time.Second)
	want(t, "alarms", kinds(s), "")
	r.draw(vip, "10.0.0.2:80", 4)
	want(t, "draws afterwards", drawn(r.read().Services[0].Pools[0]), "10.0.0.1:0 10.0.0.2:4")
}

// Who knows what the kernel has after an error: no alarm is raised until all is
// programmed again.
func TestNoAlarmAfterAnError(t *testing.T) {
	t.Parallel()
	r := newRig()
	sp := web("10.0.0.1:80")
	r.sync(t, list(sp))
	r.read()
	r.inner.err = errors.New("refused")
	if _, err := r.Sync(t.Context(), dataplane.Update{Changed: list(web("10.0.0.2:80"))}); err == nil {
		t.Fatal("the error is lost")
	}
	for range 3 {
		r.draw(sp.VIP(), "10.0.0.2:80", 1)
		r.draw(sp.VIP(), "10.96.0.1:80", 1)
		want(t, "alarms", kinds(r.read()), "")
	}
	r.inner.err = nil
	state := dataplane.State{ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{sp.Key: sp}}
	if _, err := r.Reset(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	r.read()
	r.draw(sp.VIP(), "10.0.0.2:80", 1)
	r.draw(sp.VIP(), "10.96.0.1:80", 1)
	want(t, "alarms", kinds(r.read()), "missed-service unknown-endpoint")
}

// Somebody changes the rules, and they are put right before the counters are read.
// What was counted until then is evidence all the same.
func TestDriftThatIsOverIsFound(t *testing.T) {
	t.Parallel()
	r := newRig()
	sp := web("10.0.0.1:80", "10.0.0.2:80")
	r.sync(t, list(sp))
	r.read()
	r.draw(sp.VIP(), "10.0.0.2:80", 500)
	r.draw(sp.VIP(), "10.9.9.9:80", 1)
	state := dataplane.State{ServicePorts: map[dataplane.ServicePortKey]dataplane.ServicePort{sp.Key: sp}}
	if _, err := r.Reset(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	s := r.read()
	want(t, "draws", drawn(s.Services[0].Pools[0]), "10.0.0.1:0 10.0.0.2:500")
	want(t, "alarms", kinds(s), "never-selected uneven unknown-endpoint")
}
