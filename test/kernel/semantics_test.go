// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// TestFlows sends real connections where each kind of rule decides.
// test/flowcheck compares many more with kube-proxy.
func TestFlows(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		cluster := sharedCluster(t)
		endpoint4 := netip.AddrPortFrom(nth(endpoints4.Addr(), 500), 8080)
		endpoint6 := netip.AddrPortFrom(nth(endpoints6.Addr(), 500), 8080)
		self := netip.AddrPortFrom(cluster.endpoints.Addrs[0], 8081)
		cluster.serve(t, dataplane.TCP, endpoint4, endpoint6, self)
		cluster.serve(t, dataplane.UDP, endpoint4, endpoint6)
		hairpin := port("hairpin", netip.MustParseAddrPort("10.96.0.22:80"), dataplane.TCP, self)
		hairpin.Endpoints[0].Local = true
		mustReset(t, newSyncer(t, quiet(layout)), stateOf(clusterSettings(),
			port("web", netip.MustParseAddrPort("10.96.0.20:80"), dataplane.TCP, endpoint4),
			port("dns", netip.MustParseAddrPort("10.96.0.20:53"), dataplane.UDP, endpoint4),
			port("web", netip.MustParseAddrPort("[fd00:10:96::20]:80"), dataplane.TCP, endpoint6),
			port("dns", netip.MustParseAddrPort("[fd00:10:96::20]:53"), dataplane.UDP, endpoint6),
			port("empty", netip.MustParseAddrPort("10.96.0.21:80"), dataplane.TCP),
			port("empty", netip.MustParseAddrPort("[fd00:10:96::21]:80"), dataplane.TCP),
			hairpin,
		))
		const tcp, udp = dataplane.TCP, dataplane.UDP
		client, outsider := cluster.client, cluster.outsider
		for _, test := range []struct {
			what     string
			from     *testbed.Pod
			to       string
			protocol dataplane.Protocol
			// want is the reason of a failure, empty if there is an answer.
			want string
			// masqueraded says that the endpoint sees another source.
			masqueraded bool
		}{
			{"TCP", client, "10.96.0.20:80", tcp, "", false},
			{"UDP", client, "10.96.0.20:53", udp, "", false},
			{"IPv6 TCP", client, "[fd00:10:96::20]:80", tcp, "", false},
			{"IPv6 UDP", client, "[fd00:10:96::20]:53", udp, "", false},
			{"off-cluster source", outsider, "10.96.0.20:80", tcp, "", true},
			{"IPv6 off-cluster source", outsider, "[fd00:10:96::20]:80", tcp, "", true},
			{"hairpin", cluster.endpoints, "10.96.0.22:80", tcp, "", true},
			{"no endpoints", client, "10.96.0.21:80", tcp, "refused", false},
			{"IPv6 no endpoints", client, "[fd00:10:96::21]:80", tcp, "refused", false},
			{"port that the Service does not have", client, "10.96.0.20:81", tcp, "refused", false},
			{"protocol that the port does not have", client, "10.96.0.20:80", udp, "refused", false},
		} {
			answer, err := ask(t, test.from.Namespace, test.to, test.protocol)
			if got := testbed.Reason(err); got != test.want {
				t.Errorf("%s: got %q, want %q", test.what, got, test.want)
				continue
			}
			if err == nil {
				source := netip.MustParseAddrPort(test.to).Addr()
				equal(t, test.what+": masqueraded", answer.Client.Addr() != test.from.Addrs[family(source)], test.masqueraded)
			}
		}
		checkDropped(t, client, "10.96.0.99:80")
		checkDropped(t, client, "[fd00:10:96::99]:80")
	})
}

// checkDropped expects no answer of any kind from an address that no Service has.
func checkDropped(t testing.TB, client *testbed.Pod, addr string) {
	t.Helper()
	to := netip.MustParseAddrPort(addr)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := client.Do(func() error {
		_, err := testbed.Ask(ctx, dataplane.VIP{Addr: to.Addr(), Port: to.Port(), Protocol: dataplane.TCP})
		return err
	})
	if got := testbed.Reason(err); got != "no answer in time" {
		t.Errorf("%s, which no Service has: got %q, want no answer", addr, got)
	}
}
