// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/conntrack"
	"github.com/veridict/veridict/dataplane/nftables"
)

// flowRig is a UDP ServicePort, and a client that sends from one port all the time.
type flowRig struct {
	t       *testing.T
	cluster *cluster
	syncer  dataplane.Syncer
	inner   *nftables.Syncer
	clock   *clock
	sp      dataplane.ServicePort
	a, b    dataplane.Endpoint
	conns   map[string]*net.UDPConn
	// fail makes the syncer fail.
	fail bool
}

// failing fails when it is told to.
type failing struct {
	dataplane.Syncer
	fail *bool
}

var errTold = errors.New("told to fail")

func (f failing) Sync(ctx context.Context, update dataplane.Update) (dataplane.Report, error) {
	if *f.fail {
		return dataplane.Report{}, errTold
	}
	return f.Syncer.Sync(ctx, update)
}

func newFlowRig(t *testing.T, family dataplane.Family) *flowRig {
	t.Helper()
	start(t)
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatal(err)
	}
	r := &flowRig{t: t, cluster: sharedCluster(t), conns: make(map[string]*net.UDPConn)}
	base, vip, outside := netip.AddrPortFrom(nth(endpoints4.Addr(), 900), 5353), "10.96.0.90:53", externalIP4
	if family == dataplane.IPv6 {
		base, vip, outside = netip.AddrPortFrom(nth(endpoints6.Addr(), 900), 5353), "[fd00:10:96::90]:53", externalIP6
	}
	endpoints := endpointsFrom(base, 2)
	r.cluster.serve(t, dataplane.UDP, endpoints...)
	r.a, r.b = dataplane.Endpoint{Addr: endpoints[0]}, dataplane.Endpoint{Addr: endpoints[1]}
	r.sp = port("flows", netip.MustParseAddrPort(vip), dataplane.UDP)
	r.sp.External = &dataplane.External{IPs: []netip.Addr{outside}, NodePort: 31053}
	r.restart()
	return r
}

// restart has another process take over.
func (r *flowRig) restart() {
	r.t.Helper()
	options := quiet(nftables.MarkFree)
	r.clock = newClock()
	options.Now = r.clock.Now
	r.inner = newSyncer(r.t, options)
	r.syncer = conntrack.New(failing{r.inner, &r.fail}, conntrack.Options{Logger: options.Logger, Now: r.clock.Now})
	r.reset()
}

func (r *flowRig) reset() {
	r.t.Helper()
	settings := clusterSettings()
	settings.NodePortAddresses = []netip.Addr{nodeIP4, nodeIP6}
	if _, err := r.syncer.Reset(r.t.Context(), stateOf(settings, r.sp)); err != nil {
		r.t.Fatal(err)
	}
}

// serve makes these the endpoints.
func (r *flowRig) serve(endpoints ...dataplane.Endpoint) {
	r.t.Helper()
	r.sp.Endpoints = slices.Clone(endpoints)
	r.sp.Serving = nil
	for _, ep := range endpoints {
		r.sp.Serving = append(r.sp.Serving, ep.Addr)
	}
	_, err := r.syncer.Sync(r.t.Context(), dataplane.Update{Changed: []dataplane.ServicePort{r.sp}})
	if told := r.fail && errors.Is(err, errTold); err != nil && !told {
		r.t.Fatal(err)
	}
}

// frontends are the addresses that the client sends to.
func (r *flowRig) frontends() []netip.AddrPort {
	node := nodeIP4
	if r.sp.Key.Family == dataplane.IPv6 {
		node = nodeIP6
	}
	var list []netip.AddrPort
	for _, vip := range r.sp.VIPs() {
		if vip.IsNodePort() {
			vip.Addr = node
		}
		list = append(list, netip.AddrPortFrom(vip.Addr, vip.Port))
	}
	return list
}

// send sends from the one socket of the client for that frontend and returns who
// answers, or an error.
func (r *flowRig) send(to netip.AddrPort, patience time.Duration) (netip.AddrPort, error) {
	r.t.Helper()
	conn := r.conns[to.String()]
	if conn == nil {
		err := r.cluster.client.Do(func() error {
			var err error
			conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			return err
		})
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { conn.Close() })
		r.conns[to.String()] = conn
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		r.t.Fatal(err)
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		return netip.AddrPort{}, err
	}
	buffer := make([]byte, 512)
	n, err := conn.Read(buffer)
	if err != nil {
		return netip.AddrPort{}, err
	}
	var endpoint string
	if _, err := fmt.Sscan(string(buffer[:n]), &endpoint); err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(endpoint)
}

// answers wants all frontends to answer from an endpoint.
func (r *flowRig) answers(when string, want dataplane.Endpoint) {
	r.t.Helper()
	for _, to := range r.frontends() {
		got, err := r.send(to, 5*time.Second)
		if err != nil || got != want.Addr {
			r.t.Errorf("%s: %s answers from %s, %v, want %s", when, to, got, err, want.Addr)
		}
	}
}

// refused wants the cluster IP and the external IP to refuse.
func (r *flowRig) refused(when string) {
	r.t.Helper()
	for _, to := range r.frontends()[:2] {
		// The kernel sends few errors per second.
		deadline := time.Now().Add(10 * time.Second)
		var err error
		for time.Now().Before(deadline) {
			if _, err = r.send(to, time.Second); errors.Is(err, unix.ECONNREFUSED) {
				break
			}
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			r.t.Errorf("%s: %s: %v, want refused", when, to, err)
		}
	}
}

// TestUDPFlowsFollowEndpoints is about hazards B08, B09, B11, B12 and B13.
func TestUDPFlowsFollowEndpoints(t *testing.T) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			r := newFlowRig(t, family)
			// Before there are endpoints, and before there are rules at all.
			nft(t, "flush ruleset")
			for _, to := range r.frontends() {
				_, _ = r.send(to, 50*time.Millisecond)
			}
			r.restart()
			r.serve(r.a)
			r.answers("flows from before the rules", r.a)
			r.serve(r.a, r.b)
			r.answers("with another endpoint", r.a)
			r.restart()
			r.answers("after a restart", r.a)
			r.serve(r.b)
			r.answers("with its endpoint gone", r.b)
			r.fail = true
			r.serve(r.a)
			r.fail = false
			r.reset()
			r.answers("after a sync that failed", r.a)
			r.serve()
			r.refused("without endpoints")
			r.serve(r.b)
			r.answers("with an endpoint again", r.b)
		})
	}
}

// Connections over TCP end when their peers do (B15).
func TestTCPConnectionsOutliveTheirEndpoint(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	endpoint := netip.AddrPortFrom(nth(endpoints4.Addr(), 910), 8080)
	c.serve(t, dataplane.TCP, endpoint)
	sp := port("tcp", netip.MustParseAddrPort("10.96.0.91:80"), dataplane.TCP, endpoint)
	syncer := conntrack.New(newSyncer(t, quiet(nftables.MarkFree)), conntrack.Options{Logger: slog.New(slog.DiscardHandler)})
	if _, err := syncer.Reset(t.Context(), stateOf(clusterSettings(), sp)); err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	err := c.client.Do(func() error {
		var err error
		conn, err = new(net.Dialer).DialContext(t.Context(), "tcp", "10.96.0.91:80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sp.Endpoints = nil
	if _, err := syncer.Sync(t.Context(), dataplane.Update{Changed: []dataplane.ServicePort{sp}}); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, "GET /open HTTP/1.1\r\nHost: endpoint\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 16)); err != nil {
		t.Errorf("an open connection ended with its endpoint: %v", err)
	}
	if err := c.client.Do(func() error {
		_, err := testbed.Ask(t.Context(), sp.VIP())
		return err
	}); testbed.Reason(err) != "refused" {
		t.Errorf("a new connection: %v, want refused", err)
	}
}

// settle does all work that becomes due.
func (r *flowRig) settle() {
	r.t.Helper()
	for range 20 {
		report, err := r.syncer.Sync(r.t.Context(), dataplane.Update{})
		if err != nil {
			r.t.Fatal(err)
		}
		if report.Due.IsZero() {
			return
		}
		r.clock.now = report.Due
	}
	r.t.Fatal("there is always something due")
}

// A client with a pin goes back to the endpoint that is gone until its pin is, which
// may take longer than the flow was looked at.
func TestUDPFlowsFollowPins(t *testing.T) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			r := newFlowRig(t, family)
			r.sp.AffinitySeconds = 600
			r.serve(r.a)
			r.settle()
			r.answers("with a pin", r.a)
			r.serve(r.b)
			for _, to := range r.frontends() {
				_, _ = r.send(to, 50*time.Millisecond)
			}
			// The second look.
			r.clock.advance(250 * time.Millisecond)
			if _, err := r.syncer.Sync(t.Context(), dataplane.Update{}); err != nil {
				t.Fatal(err)
			}
			for _, to := range r.frontends() {
				_, _ = r.send(to, 50*time.Millisecond)
			}
			if _, err := r.inner.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.settle()
			r.answers("after its pin was swept", r.b)
		})
	}
}
