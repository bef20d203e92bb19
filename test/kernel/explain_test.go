// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/host"
	"github.com/veridict/veridict/dataplane/nftables"
)

// routes knows which addresses are the node's own.
type routes struct{}

func (routes) IsLocal(addr netip.Addr) (bool, error) {
	route, err := host.RouteTo(addr)
	return route.Local, err
}

// explainPorts have something of every kind of rule. Their endpoints answer.
func explainPorts(t *testing.T, c *cluster, family dataplane.Family) []dataplane.ServicePort {
	t.Helper()
	base, outside := netip.AddrPortFrom(nth(endpoints4.Addr(), 800), 8080), externalIP4
	client := netip.PrefixFrom(c.client.Addrs[0], 24)
	vip := func(n int) netip.AddrPort { return netip.AddrPortFrom(nth(netip.MustParseAddr("10.96.0.70"), n), 80) }
	if family == dataplane.IPv6 {
		base, outside = netip.AddrPortFrom(nth(endpoints6.Addr(), 800), 8080), externalIP6
		client = netip.PrefixFrom(c.client.Addrs[1], 64)
		vip = func(n int) netip.AddrPort {
			return netip.AddrPortFrom(nth(netip.MustParseAddr("fd00:10:96::70"), n), 80)
		}
	}
	endpoints := endpointsFrom(base, 4)
	c.serve(t, dataplane.TCP, endpoints...)
	plain := port("plain", vip(0), dataplane.TCP, endpoints...)
	weighted := port("weighted", vip(1), dataplane.TCP, endpoints[:2]...)
	weighted.Endpoints[0].Weight = 3
	hashed := port("hashed", vip(2), dataplane.TCP, endpoints...)
	hashed.Algorithm = dataplane.SourceHash
	empty := port("empty", vip(3), dataplane.TCP)
	internal := port("internal", vip(4), dataplane.TCP, endpoints...)
	internal.InternalLocal = true
	internal.LocalEndpoints = internal.Endpoints[2:3]
	full := port("full", vip(5), dataplane.TCP, endpoints...)
	full.AffinitySeconds = 600
	full.External = &dataplane.External{IPs: []netip.Addr{outside}, NodePort: stickyNodePort, Local: true}
	full.LocalEndpoints = full.Endpoints[1:2]
	guarded := port("guarded", vip(6), dataplane.TCP, endpoints...)
	guarded.External = &dataplane.External{
		IPs: []netip.Addr{outside.Next().Next().Next()}, Guarded: []netip.Addr{outside.Next().Next().Next()},
		SourceRanges: []netip.Prefix{client},
	}
	return []dataplane.ServicePort{plain, weighted, hashed, empty, internal, full, guarded}
}

// TestExplainAgreesWithPackets compares what explain says with what becomes of real
// connections.
func TestExplainAgreesWithPackets(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		c := sharedCluster(t)
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			settings := clusterSettings()
			settings.NodePortAddresses = []netip.Addr{nodeIP4, nodeIP6}
			ports := explainPorts(t, c, family)
			mustReset(t, newSyncer(t, quiet(layout)), stateOf(settings, ports...))
			var vips []dataplane.VIP
			for _, sp := range ports {
				for _, vip := range sp.VIPs() {
					if vip.IsNodePort() {
						vip.Addr = map[dataplane.Family]netip.Addr{dataplane.IPv4: nodeIP4, dataplane.IPv6: nodeIP6}[family]
					}
					vips = append(vips, vip)
				}
			}
			unknown := vips[0]
			unknown.Port = 81
			for _, vip := range append(vips, unknown) {
				for _, client := range []*testbed.Pod{c.client, c.outsider} {
					t.Run(fmt.Sprintf("%s to %s", client.Name, vip), func(t *testing.T) { compareExplanation(t, client, vip) })
				}
			}
		}
	})
}

func compareExplanation(t *testing.T, client *testbed.Pod, vip dataplane.VIP) {
	source := client.Addrs[0]
	if vip.Addr.Is6() {
		source = client.Addrs[1]
	}
	route, err := host.RouteTo(source)
	if err != nil {
		t.Fatal(err)
	}
	explain := func() *nftables.Explanation {
		e, err := nftables.Explain(t.Context(), nftables.Question{Client: source, In: route.Interface, To: vip}, routes{})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	want := make(map[string]bool)
	e := explain()
	sum := 0.0
	for _, target := range e.Targets {
		want[fmt.Sprintf("%s masquerade %t", target.Endpoint, target.Masquerade)] = true
		sum += target.Probability
	}
	if e.Verdict != nftables.Translated {
		want = map[string]bool{e.Verdict: true}
	} else if sum < 0.999 || sum > 1.001 {
		t.Errorf("probabilities sum up to %f", sum)
	}
	got := make(map[string]bool)
	connections, patience := 60, 5*time.Second
	switch e.Verdict {
	case nftables.Rejected:
		// The kernel sends few errors per second: the next one comes later.
		connections = 1
	case nftables.Dropped:
		// Nothing will come.
		connections, patience = 1, 300*time.Millisecond
	}
	for range connections {
		got[outcomeOf(t, client, source, vip, patience)] = true
	}
	pinned := false
	if len(e.Targets) > 1 && len(got) == 1 {
		after := explain()
		pinned = len(after.Targets) == 1 && got[fmt.Sprintf("%s masquerade %t", after.Targets[0].Endpoint, after.Targets[0].Masquerade)]
	}
	if !pinned && !maps.Equal(got, want) {
		t.Errorf("explained as %v (%s), seen %v", slices.Sorted(maps.Keys(want)), e.Reason, slices.Sorted(maps.Keys(got)))
	}
}

// outcomeOf opens one connection.
func outcomeOf(t *testing.T, client *testbed.Pod, source netip.Addr, vip dataplane.VIP, patience time.Duration) string {
	var answer testbed.Answer
	err := client.Do(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var err error
		answer, err = testbed.Ask(ctx, vip)
		return err
	})
	switch {
	case err == nil:
		return fmt.Sprintf("%s masquerade %t", answer.Endpoint, answer.Client.Addr() != source)
	case strings.Contains(testbed.Reason(err), "refused"):
		return nftables.Rejected
	default:
		return nftables.Dropped
	}
}

func TestExplainWithoutRules(t *testing.T) {
	start(t)
	_, err := nftables.Explain(t.Context(), nftables.Question{Client: nodeIP4, To: dataplane.VIP{Addr: nodeIP4, Protocol: dataplane.TCP, Port: 80}}, routes{})
	if err == nil || !strings.Contains(err.Error(), "ip veridict") {
		t.Errorf("error %v, want one that names the table", err)
	}
}
