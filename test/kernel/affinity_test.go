// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// sticky is a ServicePort with session affinity that real clients connect to.
type sticky struct {
	t       *testing.T
	layout  nftables.Layout
	cluster *cluster
	client  *testbed.Pod
	syncer  *nftables.Syncer
	clock   *clock
	sp      dataplane.ServicePort
	vips    []dataplane.VIP
}

// Frontends of the node that are not cluster IPs.
var (
	externalIP4, externalIP6 = netip.MustParseAddr("10.97.1.1"), netip.MustParseAddr("fd00:10:97::101")
	nodeIP4, nodeIP6         = netip.MustParseAddr("10.97.1.2"), netip.MustParseAddr("fd00:10:97::102")
)

const stickyNodePort = 31080

func newSticky(t *testing.T, layout nftables.Layout, family dataplane.Family, protocol dataplane.Protocol, external bool) *sticky {
	t.Helper()
	s := &sticky{t: t, layout: layout, cluster: sharedCluster(t), clock: newClock()}
	s.client = s.cluster.client
	vip, base := netip.MustParseAddrPort("10.96.0.60:80"), netip.AddrPortFrom(nth(endpoints4.Addr(), 700), 8080)
	outside, node := externalIP4, nodeIP4
	if family == dataplane.IPv6 {
		vip, base = netip.MustParseAddrPort("[fd00:10:96::60]:80"), netip.AddrPortFrom(nth(endpoints6.Addr(), 700), 8080)
		outside, node = externalIP6, nodeIP6
	}
	endpoints := endpointsFrom(base, 8)
	s.cluster.serve(t, protocol, endpoints...)
	s.sp = port("sticky", vip, protocol, endpoints...)
	s.sp.AffinitySeconds = 600
	s.vips = []dataplane.VIP{s.sp.VIP()}
	if external {
		s.sp.External = &dataplane.External{IPs: []netip.Addr{outside}, NodePort: stickyNodePort}
		s.vips = append(s.vips,
			dataplane.VIP{Addr: outside, Protocol: protocol, Port: 80},
			dataplane.VIP{Addr: node, Protocol: protocol, Port: stickyNodePort})
	}
	s.restart()
	return s
}

func (s *sticky) settings() dataplane.Settings {
	settings := clusterSettings()
	settings.NodePortAddresses = []netip.Addr{nodeIP4, nodeIP6}
	return settings
}

// restart has another process take over.
func (s *sticky) restart() {
	s.t.Helper()
	options := quiet(s.layout)
	options.Now = s.clock.Now
	s.syncer = newSyncer(s.t, options)
	mustReset(s.t, s.syncer, stateOf(s.settings(), s.sp))
	s.sweep()
}

func (s *sticky) change(change func(*dataplane.ServicePort)) {
	s.t.Helper()
	sp := s.sp
	sp.Endpoints, sp.LocalEndpoints = slices.Clone(sp.Endpoints), slices.Clone(sp.LocalEndpoints)
	change(&sp)
	s.sp = sp
	mustSync(s.t, s.syncer, dataplane.Update{Changed: []dataplane.ServicePort{sp}})
	s.sweep()
}

func (s *sticky) sweep() {
	s.t.Helper()
	if _, err := s.syncer.Sweep(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// ask connects n times by all frontends in turn and returns the endpoints that
// answered, each once.
func (s *sticky) ask(n int) []netip.AddrPort {
	s.t.Helper()
	// A datagram from a source port of before would go on with its flow.
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		s.t.Fatal(err)
	}
	var seen []netip.AddrPort
	err := s.client.Do(func() error {
		for i := range n {
			ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
			answer, err := testbed.Ask(ctx, s.vips[i%len(s.vips)])
			cancel()
			if err != nil {
				return err
			}
			if !slices.Contains(seen, answer.Endpoint) {
				seen = append(seen, answer.Endpoint)
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return seen
}

// stays says at which endpoint the client is, which has to be one.
func (s *sticky) stays(when string) netip.AddrPort {
	s.t.Helper()
	seen := s.ask(3 * len(s.vips))
	if len(seen) != 1 {
		s.t.Fatalf("%s: the client came to %v, want one endpoint", when, seen)
	}
	return seen[0]
}

// TestAffinity follows one client through all that can happen to its endpoint, in both
// families, with one frontend and with several.
func TestAffinity(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			for _, protocol := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP} {
				for _, external := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s %s external %t", family, protocol, external), func(t *testing.T) {
						start(t)
						followClient(t, newSticky(t, layout, family, protocol, external))
					})
				}
			}
		}
	})
}

func followClient(t *testing.T, s *sticky) {
	first := s.stays("at first")
	s.restart()
	if now := s.stays("after a restart"); now != first {
		t.Errorf("the client was at %s and is at %s after a restart", first, now)
	}

	// The last endpoint moves into the bucket of the one that leaves.
	s.change(func(sp *dataplane.ServicePort) {
		other := slices.IndexFunc(sp.Endpoints, func(ep dataplane.Endpoint) bool { return ep.Addr != first })
		sp.Endpoints = slices.Delete(sp.Endpoints, other, other+1)
	})
	if now := s.stays("after another endpoint left"); now != first {
		t.Errorf("the client was at %s and is at %s after another endpoint left", first, now)
	}

	s.change(func(sp *dataplane.ServicePort) {
		sp.Endpoints = slices.DeleteFunc(sp.Endpoints, func(ep dataplane.Endpoint) bool { return ep.Addr == first })
	})
	second := s.stays("after its endpoint left")
	if second == first {
		t.Errorf("the client is still at %s, which left", first)
	}
	s.change(func(sp *dataplane.ServicePort) {
		sp.Endpoints = append(sp.Endpoints, dataplane.Endpoint{Addr: first})
		slices.SortFunc(sp.Endpoints, func(a, b dataplane.Endpoint) int { return a.Addr.Compare(b.Addr) })
	})
	if now := s.stays("after the endpoint came back"); now != second {
		t.Errorf("the client was at %s and is at %s after another endpoint came", second, now)
	}

	s.change(func(sp *dataplane.ServicePort) { sp.AffinitySeconds = 0 })
	if seen := s.ask(40); len(seen) < 3 {
		t.Errorf("40 connections without affinity came to %v only", seen)
	}
	s.change(func(sp *dataplane.ServicePort) { sp.AffinitySeconds = 600 })
	s.stays("with affinity again")
	settle(t, s.syncer, s.clock)
	verify(t, s.layout, stateOf(s.settings(), s.sp))
}

// Clients from outside stay at an endpoint of this node where external traffic policy
// is Local, by whichever frontend they come; pods have all endpoints even then.
func TestAffinityUnderPolicyLocal(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			for _, protocol := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP} {
				t.Run(fmt.Sprintf("%s %s", family, protocol), func(t *testing.T) {
					start(t)
					followOutsider(t, newSticky(t, layout, family, protocol, true))
				})
			}
		}
	})
}

func followOutsider(t *testing.T, s *sticky) {
	clusterIP, external := s.vips[0], s.vips[1:]
	onNode := func() (local []dataplane.Endpoint) {
		for i, ep := range s.sp.Endpoints {
			if i%2 == 0 {
				local = append(local, ep)
			}
		}
		return local
	}
	isLocal := func(addr netip.AddrPort) bool {
		return slices.ContainsFunc(s.sp.LocalEndpoints, func(ep dataplane.Endpoint) bool { return ep.Addr == addr })
	}
	s.change(func(sp *dataplane.ServicePort) {
		for i := range sp.Endpoints {
			sp.Endpoints[i].Local = i%2 == 0
		}
		sp.External.Local, sp.LocalEndpoints = true, onNode()
	})
	s.client, s.vips = s.cluster.outsider, external
	first := s.stays("from outside")
	if !isLocal(first) {
		t.Errorf("a client from outside came to %s, which is on another node", first)
	}
	s.restart()
	if now := s.stays("from outside after a restart"); now != first {
		t.Errorf("the client was at %s and is at %s after a restart", first, now)
	}
	s.change(func(sp *dataplane.ServicePort) {
		sp.LocalEndpoints = slices.DeleteFunc(sp.LocalEndpoints, func(ep dataplane.Endpoint) bool { return ep.Addr == first })
	})
	if second := s.stays("from outside after its endpoint left"); !isLocal(second) {
		t.Errorf("the client came to %s, which is not among the endpoints of this node", second)
	}
	s.client, s.vips = s.cluster.client, append([]dataplane.VIP{clusterIP}, external...)
	s.stays("a pod by all frontends")
	s.change(func(sp *dataplane.ServicePort) { sp.LocalEndpoints = nil })
	s.stays("a pod while no endpoint is on this node")
}

// The pin of a client outlives a change of the frontends.
func TestAffinityOutlivesFrontends(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		s := newSticky(t, layout, dataplane.IPv6, dataplane.TCP, false)
		first := s.stays("with the cluster IP only")
		s.change(func(sp *dataplane.ServicePort) { sp.External = &dataplane.External{IPs: []netip.Addr{externalIP6}} })
		s.vips = append(s.vips, dataplane.VIP{Addr: externalIP6, Protocol: dataplane.TCP, Port: 80})
		if now := s.stays("with an external IP"); now != first {
			t.Errorf("the client was at %s and is at %s", first, now)
		}
		s.change(func(sp *dataplane.ServicePort) { sp.External = nil })
		s.vips = s.vips[:1]
		if now := s.stays("without the external IP"); now != first {
			t.Errorf("the client was at %s and is at %s", first, now)
		}
	})
}

// A client whose endpoint is gone sends its first packet again. That must not bring
// the pin back.
func TestRetransmissionDoesNotReviveAPin(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		s := newSticky(t, layout, dataplane.IPv4, dataplane.TCP, false)
		silent := netip.AddrPortFrom(nth(endpoints4.Addr(), 720), 9999)
		others := s.sp.Endpoints
		s.inEndpointsPod("add table ip silent; add chain ip silent in { type filter hook input priority 0; }; " +
			"add rule ip silent in tcp dport 9999 counter drop")
		t.Cleanup(func() { s.inEndpointsPod("delete table ip silent") })
		s.change(func(sp *dataplane.ServicePort) { sp.Endpoints = []dataplane.Endpoint{{Addr: silent}} })

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		connected := make(chan error, 1)
		go func() {
			connected <- s.cluster.client.Do(func() error {
				_, err := new(net.Dialer).DialContext(ctx, "tcp", "10.96.0.60:80")
				return err
			})
		}()
		s.awaitSilent(1)
		s.change(func(sp *dataplane.ServicePort) { sp.Endpoints = others })
		s.awaitSilent(2)
		if pins := list(t, "map", "ip", "veridict", "affinity-tcp"); strings.Contains(pins, "9999") {
			t.Errorf("the pin is back:\n%s", pins)
		}
		cancel()
		if err := <-connected; err == nil {
			t.Error("the endpoint that never answers has answered")
		}
	})
}

// inEndpointsPod runs nft in the pod and returns what it prints.
func (s *sticky) inEndpointsPod(script string) string {
	s.t.Helper()
	var out []byte
	err := s.cluster.endpoints.Do(func() error {
		var err error
		out, err = exec.CommandContext(context.Background(), "nft", script).CombinedOutput()
		return err
	})
	if err != nil {
		s.t.Fatalf("nft %s: %v: %s", script, err, out)
	}
	return string(out)
}

// awaitSilent waits until the endpoint that never answers has got n packets.
func (s *sticky) awaitSilent(n int) {
	s.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		found := counterPackets.FindStringSubmatch(s.inEndpointsPod("list chain ip silent in"))
		var got int
		if _, err := fmt.Sscan(found[1]+found[2], &got); err != nil {
			s.t.Fatal(err)
		}
		if got >= n {
			return
		}
	}
	s.t.Fatalf("the endpoint has not got %d packets", n)
}
