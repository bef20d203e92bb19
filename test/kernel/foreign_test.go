// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// marks is a table that keeps a bit in the packet mark and another in the
// conntrack mark of new connections, as CNI plugins do, restores the packet mark
// of all later packets from the latter, and counts after all NAT what has become
// of them. LIMIT is the number of endpoints.
const marks = `
table inet marks {
	counter new {}
	counter later {}
	counter packet-mark-changed {}
	counter ct-mark-changed {}
	counter not-restored {}
	counter bucket {}
	chain prerouting {
		type filter hook prerouting priority -150;
		ct state new meta mark set 0x80 ct mark set 0x00080000
		ct state established meta mark set ct mark
	}
	chain output {
		type route hook output priority -150;
		ct state new meta mark set 0x80 ct mark set 0x00080000
		ct state established meta mark set ct mark
	}
	chain postrouting {
		type filter hook postrouting priority 200;
		meta l4proto != tcp accept
		tcp sport { 80, 8080 } goto count
		tcp dport 8080 goto count
	}
	chain count {
		ct state new counter name new
		ct state new meta mark != 0x80 counter name packet-mark-changed
		ct mark != 0x00080000 counter name ct-mark-changed
		ct mark < %d counter name bucket
		ct state established counter name later
		ct state established ct mark 0x00080000 meta mark != 0x00080000 counter name not-restored
	}
}
`

// TestForeignMarks is I5: others find the bits in their marks as they left them.
// In layout ctmark the conntrack mark is the bucket, which is what it is for.
func TestForeignMarks(t *testing.T) {
	for _, n := range []int{2, 130, 300} {
		t.Run(fmt.Sprintf("%d endpoints", n), func(t *testing.T) {
			eachLayout(t, func(t *testing.T, layout nftables.Layout) {
				cluster := churnCluster(t)
				vip := netip.MustParseAddrPort("10.97.0.9:80")
				endpoints := endpointsFrom(netip.AddrPortFrom(nth(endpoints4.Addr(), 1), 8080), n)
				mustReset(t, newSyncer(t, quiet(layout)), stateOf(clusterSettings(), port("marked", vip, dataplane.TCP, endpoints...)))
				nft(t, fmt.Sprintf(marks, n))
				l, _ := newLoad(t)
				l.accept(t, cluster)
				connections := func(source netip.Addr) func() error {
					return func() error {
						for range 200 {
							if err := connectOnce(sockaddr(netip.AddrPortFrom(source, 0)), sockaddr(vip)); err != nil {
								return err
							}
						}
						return nil
					}
				}
				for _, client := range []struct {
					ns   *testbed.Namespace
					addr netip.Addr
				}{
					{cluster.client.Namespace, cluster.client.Addrs[0]},
					{cluster.outsider.Namespace, cluster.outsider.Addrs[0]},
					{cluster.node, nth(sources4.Addr(), 9)},
				} {
					if err := client.ns.Do(connections(client.addr)); err != nil {
						t.Fatalf("connect from %s: %v", client.addr, err)
					}
				}
				if err := l.end(); err != nil {
					t.Fatal(err)
				}
				count := func(name string) int { return packets(t, "counter", "inet", "marks", name) }
				seen := count("new") + count("later")
				if count("new") < 600 || count("later") < 600 {
					t.Fatalf("only %d first and %d later packets", count("new"), count("later"))
				}
				equal(t, "packets whose mark was changed", count("packet-mark-changed"), 0)
				equal(t, "packets whose mark was not restored", count("not-restored"), 0)
				changed, buckets := 0, 0
				if layout == nftables.CTMark {
					changed, buckets = seen, seen
				}
				equal(t, "packets with another conntrack mark", count("ct-mark-changed"), changed)
				equal(t, "packets with a bucket for a conntrack mark", count("bucket"), buckets)
			})
		})
	}
}

// ask opens a connection to an address and returns the answer.
func ask(t testing.TB, client *testbed.Namespace, addr string, protocol dataplane.Protocol) (testbed.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	to := netip.MustParseAddrPort(addr)
	var answer testbed.Answer
	err := client.Do(func() (err error) {
		answer, err = testbed.Ask(ctx, dataplane.VIP{Addr: to.Addr(), Port: to.Port(), Protocol: protocol})
		return err
	})
	return answer, err
}

// TestForeignDNAT translates a port of the node to an endpoint of a Service, as
// a hostPort does. Connections through it keep their source, those through the
// Service do not.
func TestForeignDNAT(t *testing.T) {
	for _, masqueradeAll := range []bool{false, true} {
		t.Run(fmt.Sprintf("masqueradeAll %t", masqueradeAll), func(t *testing.T) {
			eachLayout(t, func(t *testing.T, layout nftables.Layout) {
				cluster := sharedCluster(t)
				endpoint := netip.AddrPortFrom(nth(endpoints4.Addr(), 77), 8080)
				cluster.serve(t, dataplane.TCP, endpoint)
				sp := port("web", netip.MustParseAddrPort("10.96.0.5:80"), dataplane.TCP, endpoint)
				sp.Endpoints[0].Local = true
				settings := clusterSettings()
				settings.MasqueradeAll = masqueradeAll
				mustReset(t, newSyncer(t, quiet(layout)), stateOf(settings, sp))
				nft(t, fmt.Sprintf(`table ip hostport {
					chain prerouting { type nat hook prerouting priority -100; ip daddr 10.240.0.1 tcp dport 9090 dnat to %s; }
				}`, endpoint))
				for _, client := range []*testbed.Pod{cluster.client, cluster.outsider} {
					answer, err := ask(t, client.Namespace, "10.240.0.1:9090", dataplane.TCP)
					if err != nil {
						t.Fatal("through the hostPort:", err)
					}
					equal(t, "source through the hostPort", answer.Client.Addr(), client.Addrs[0])
					answer, err = ask(t, client.Namespace, "10.96.0.5:80", dataplane.TCP)
					if err != nil {
						t.Fatal("through the Service:", err)
					}
					kept := answer.Client.Addr() == client.Addrs[0]
					equal(t, "source kept through the Service by "+client.Name, kept, client == cluster.client && !masqueradeAll)
				}
			})
		})
	}
}

// TestForeignTablesSurvive expects tables of others to be left alone, also those
// whose names are like ours.
func TestForeignTablesSurvive(t *testing.T) {
	start(t)
	tables := [][]string{
		{"ip", "cni"}, {"inet", "veridict"}, {"bridge", "veridict"}, {"ip", "veridict2"}, {"ip", "kube-proxy"},
	}
	for _, name := range tables {
		nft(t, fmt.Sprintf(`table %s %s {
			map service-ips { type ipv4_addr : verdict; elements = { 10.96.0.13 : goto cluster-3 } }
			set cluster-ips { type ipv4_addr; flags interval; elements = { 10.96.0.0/16 } }
			counter hits { packets 7 bytes 70 }
			chain cluster-3 { counter packets 5 bytes 50 accept; }
			chain services { ip daddr vmap @service-ips; }
			chain filter-forward { type filter hook forward priority 0; policy drop; ip daddr @cluster-ips counter name hits accept; }
		}`, name[0], name[1]))
	}
	before := make([]string, len(tables))
	for i, name := range tables {
		before[i] = list(t, "table", name[0], name[1])
	}
	check := func(when string) {
		t.Helper()
		for i, name := range tables {
			equal(t, fmt.Sprintf("%s: table %v", when, name), list(t, "table", name[0], name[1]), before[i])
		}
	}
	state := smallState()
	mustReset(t, newSyncer(t, quiet(nftables.CTMark)), state)
	check("after Reset")
	clock := newClock()
	options := quiet(nftables.MarkFree)
	options.Now = clock.Now
	s := newSyncer(t, options)
	mustReset(t, s, state)
	check("after a change of layout")
	settings := clusterSettings()
	settings.MasqueradeAll = true
	mustSync(t, s, dataplane.Update{Settings: &settings, Removed: []dataplane.ServicePortKey{find(t, state, "s3-tcp-IPv4").Key}})
	settle(t, s, clock)
	check("after Sync")
	if err := nftables.Cleanup(t.Context(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	check("after Cleanup")
	if out, err := tryNFT("list table ip veridict"); err == nil {
		t.Errorf("Cleanup has left\n%s", out)
	}
	if err := nftables.Cleanup(t.Context(), slog.New(slog.DiscardHandler)); err != nil {
		t.Error("second Cleanup:", err)
	}
}
