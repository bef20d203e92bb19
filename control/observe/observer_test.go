// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

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
type nothing struct{ err error }

func (n *nothing) Reset(context.Context, dataplane.State) (dataplane.Report, error) {
	return dataplane.Report{}, n.err
}

func (n *nothing) Sync(context.Context, dataplane.Update) (dataplane.Report, error) {
	return dataplane.Report{}, n.err
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
	want(t, "counters", len(r.probes.counters), 0)
	want(t, "frontends", len(r.probes.frontends), 0)
	want(t, "selections", s.Selections, 11)
}

func TestAlarms(t *testing.T) {
	t.Parallel()
	sp := web("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")
	even := func(r *rig, n uint64) {
		for _, ep := range sp.Endpoints {
			r.draw(sp.VIP(), ep.Addr.String(), n)
		}
	}
	tests := []struct {
		name string
		// interval is what happens in each.
		interval func(r *rig)
		want     string
	}{
		{"even", func(r *rig) { even(r, 1000) }, ""},
		{"an endpoint that is not known", func(r *rig) { even(r, 10); r.draw(sp.VIP(), "10.9.9.9:80", 1) }, "unknown-endpoint"},
		{"not translated", func(r *rig) { even(r, 10); r.draw(sp.VIP(), "10.96.0.1:80", 1) }, "missed-service"},
		{"one left out", func(r *rig) {
			r.draw(sp.VIP(), "10.0.0.1:80", 500)
			r.draw(sp.VIP(), "10.0.0.2:80", 500)
		}, "never-selected uneven"},
		{"one twice as often", func(r *rig) { even(r, 300); r.draw(sp.VIP(), "10.0.0.1:80", 300) }, "uneven"},
		{"no room", func(r *rig) { r.probes.losses.Full++ }, "probes-full"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig()
			r.sync(t, list(sp))
			r.read()
			for range 4 {
				test.interval(r)
				r.read()
			}
			s := r.Snapshot()
			want(t, "alarms", kinds(s), test.want)
			for _, a := range s.Alarms {
				if n := strings.Count(r.log.String(), "alarm="+string(a.Kind)); n != 1 {
					t.Errorf("%s is logged %d times, want once:\n%s", a.Kind, n, &r.log)
				}
				if a.Kind != observe.ProbesFull && !strings.Contains(a.Text, "shop/web") {
					t.Errorf("the alarm does not name the Service: %s", a.Text)
				}
			}
			// Another set of endpoints begins anew; what was wrong is over after a while.
			r.sync(t, list(web("10.0.0.1:80", "10.0.0.2:80", "10.0.0.4:80")))
			for range 16 {
				s = r.read()
			}
			want(t, "alarms afterwards", kinds(s), "")
			want(t, "logged ends", strings.Count(r.log.String(), "alarm is over"), len(strings.Fields(test.want)))
		})
	}
}

// Connections to a Service that has no endpoints for them are no alarm.
func TestNoAlarmWithoutEndpoints(t *testing.T) {
	t.Parallel()
	none, local := web(), web("10.0.0.1:80")
	local.InternalLocal = true
	external := web("10.0.0.1:80")
	external.External = &dataplane.External{IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Local: true}
	for name, sp := range map[string]dataplane.ServicePort{"none": none, "none here": local, "none for outsiders": external} {
		r := newRig()
		r.sync(t, list(sp))
		r.read()
		vips := sp.VIPs()
		vip := vips[len(vips)-1]
		for range 3 {
			r.draw(vip, netip.AddrPortFrom(vip.Addr, vip.Port).String(), 1)
			r.read()
		}
		want(t, name+": alarms", kinds(r.read()), "")
		want(t, name+": missed", r.Snapshot().Services[0].Missed, 3)
	}
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

// The probes know exactly the frontends of what is programmed, whatever comes, goes and
// passes from one Service to another, and totals are what was counted.
func TestRandomChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := newRig()
		ports := make(map[dataplane.ServicePortKey]dataplane.ServicePort)
		var counted uint64
		// began are those that were made since the last reading.
		began := make(map[dataplane.ServicePortKey]bool)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				began[change(t, r, ports)] = true
			case 2:
				r.reset(t, ports)
			case 3, 4:
				counted += drawSome(t, r, ports)
			case 5:
				before := totals(r.Snapshot())
				for key, n := range totals(r.read()) {
					if n < before[key] && !began[key] {
						t.Fatalf("the total of %s went from %d to %d", key, before[key], n)
					}
				}
				clear(began)
			}
		}
		s := r.read()
		if s.Selections != counted {
			t.Fatalf("%d selections, want %d", s.Selections, counted)
		}
		owned := make(map[observe.FrontendID]bool)
		for _, sp := range ports {
			for _, vip := range sp.VIPs() {
				owned[observe.FrontendID{VIP: vip, Family: sp.Key.Family}] = true
			}
		}
		got := make(map[observe.FrontendID]bool)
		for id := range r.probes.frontends {
			got[id] = true
		}
		if diff := cmp.Diff(owned, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("frontends (-want +got):\n%s", diff)
		}
	})
}

// change adds, changes or removes a ServicePort. Cluster IPs are few, so that they pass
// from one to another; no two have the same at a time. It returns the one that is new,
// if one is.
func change(t *rapid.T, r *rig, ports map[dataplane.ServicePortKey]dataplane.ServicePort) dataplane.ServicePortKey {
	sp := web()
	sp.Key.Name = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	var removed []dataplane.ServicePortKey
	if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
		delete(ports, sp.Key)
		r.sync(t, nil, sp.Key)
		return dataplane.ServicePortKey{}
	}
	sp.ClusterIP = netip.AddrFrom4([4]byte{10, 96, 0, byte(rapid.IntRange(1, 3).Draw(t, "cluster IP"))})
	for key, other := range ports {
		if key != sp.Key && other.ClusterIP == sp.ClusterIP {
			delete(ports, key)
			removed = append(removed, key)
		}
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
		sp.Endpoints = append(sp.Endpoints, dataplane.Endpoint{Addr: addr})
	}
	_, known := ports[sp.Key]
	ports[sp.Key] = sp
	r.sync(t, list(sp), removed...)
	if known {
		return dataplane.ServicePortKey{}
	}
	return sp.Key
}

func (r *rig) reset(t *rapid.T, ports map[dataplane.ServicePortKey]dataplane.ServicePort) {
	if _, err := r.Reset(context.Background(), dataplane.State{ServicePorts: maps.Clone(ports)}); err != nil {
		t.Fatal(err)
	}
}

// drawSome counts draws of endpoints that are there.
func drawSome(t *rapid.T, r *rig, ports map[dataplane.ServicePortKey]dataplane.ServicePort) uint64 {
	var sum uint64
	for _, key := range slices.SortedFunc(maps.Keys(ports), dataplane.ServicePortKey.Compare) {
		sp := ports[key]
		for _, ep := range sp.Endpoints {
			n := rapid.Uint64Range(0, 5).Draw(t, "draws")
			r.draw(sp.VIP(), ep.Addr.String(), n)
			sum += n
		}
	}
	return sum
}

func totals(s *observe.Snapshot) map[dataplane.ServicePortKey]uint64 {
	all := make(map[dataplane.ServicePortKey]uint64)
	for _, service := range s.Services {
		all[service.Key] = service.Selections()
	}
	return all
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
