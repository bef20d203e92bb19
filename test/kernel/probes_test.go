// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/veridict/veridict/bpf/probes"
	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// openProbes returns probes that know the frontends of the ServicePorts.
func openProbes(t testing.TB, o probes.Options, ports ...dataplane.ServicePort) *probes.Probes {
	t.Helper()
	// A datagram from a source port of before would go on with its flow.
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatal(err)
	}
	p, err := probes.Open(o)
	if err != nil {
		t.Fatal("open probes:", err)
	}
	// A test may have closed or replaced them.
	t.Cleanup(func() { _ = p.Detach() })
	if o.Mode == "" {
		equal(t, "mode", p.Status().Mode, probesMode(t))
	}
	frontends := make(map[probes.Frontend]probes.Affinity)
	for i := range ports {
		for _, vip := range ports[i].VIPs() {
			frontends[probes.Frontend{
				Addr: vip.Addr, Port: vip.Port, Protocol: uint8(vip.Protocol), Family: uint8(ports[i].Key.Family),
			}] = probes.Affinity{Service: uint32(i + 1), Seconds: ports[i].AffinitySeconds}
		}
	}
	if err := p.SetFrontends(frontends, nil); err != nil {
		t.Fatal(err)
	}
	return p
}

// selections returns what is counted, drawn and pinned, by VIP, protocol and endpoint.
func selections(t testing.TB, p *probes.Probes) map[probes.Key]probes.Selection {
	t.Helper()
	list, err := p.Selections()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[probes.Key]probes.Selection)
	for _, s := range list {
		if _, twice := all[s.Key]; twice {
			t.Errorf("%v comes twice", s.Key)
		}
		all[s.Key] = s
	}
	return all
}

// sourcePorts are never the same twice, so that every datagram is a new connection.
type sourcePorts struct{ last atomic.Uint32 }

func (p *sourcePorts) next() uint16 { return uint16(10_000 + p.last.Add(1)) }

// connectFrom opens n connections to each VIP, from several threads, and returns how
// often each endpoint answered.
func connectFrom(t testing.TB, ports *sourcePorts, client *testbed.Pod, n int, vips ...dataplane.VIP) map[probes.Key]uint64 {
	t.Helper()
	const threads = 4
	counts := make([]map[probes.Key]uint64, threads)
	var group errgroup.Group
	for thread := range threads {
		counts[thread] = make(map[probes.Key]uint64)
		group.Go(func() error {
			return client.Do(func() error {
				for i := thread; i < n*len(vips); i += threads {
					vip := vips[i%len(vips)]
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					answer, err := testbed.AskFrom(ctx, ports.next(), vip)
					cancel()
					if err != nil {
						return fmt.Errorf("connect to %s: %w", vip, err)
					}
					counts[thread][probes.Key{
						VIP: netip.AddrPortFrom(vip.Addr, vip.Port), Protocol: uint8(vip.Protocol), Endpoint: answer.Endpoint,
					}]++
				}
				return nil
			})
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	sum := make(map[probes.Key]uint64)
	for _, c := range counts {
		for key, n := range c {
			sum[key] += n
		}
	}
	return sum
}

func newConnections(all map[probes.Key]probes.Selection) map[probes.Key]uint64 {
	counts := make(map[probes.Key]uint64)
	for key, s := range all {
		counts[key] = s.Drawn + s.Pinned
	}
	return counts
}

// Every connection is counted once, at the endpoint that answered it: from a pod and
// from the node itself, in both families, TCP and UDP.
func TestProbesCountEveryConnection(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		c := sharedCluster(t)
		var ports []dataplane.ServicePort
		var vips []dataplane.VIP
		for i, base := range []netip.Addr{endpoints4.Addr(), endpoints6.Addr()} {
			vip := []string{"10.96.0.40:80", "[fd00:10:96::40]:80"}[i]
			for _, protocol := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP} {
				eps := endpointsFrom(netip.AddrPortFrom(nth(base, 300), 8080), 3)
				c.serve(t, protocol, eps...)
				sp := port("web-"+protocol.String(), netip.MustParseAddrPort(vip), protocol, eps...)
				ports = append(ports, sp)
				vips = append(vips, sp.VIP())
			}
		}
		mustReset(t, newSyncer(t, quiet(layout)), stateOf(clusterSettings(), ports...))
		p := openProbes(t, probes.Options{}, ports...)
		var source sourcePorts
		want := connectFrom(t, &source, c.client, 100, vips...)
		for key, n := range connectFrom(t, &source, &testbed.Pod{Namespace: c.node}, 100, vips...) {
			want[key] += n
		}
		equal(t, "selections", newConnections(selections(t, p)), want)
	})
}
