// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/veridict/veridict/bpf/probes"
	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// place is where first packets are timed.
type place struct {
	family  uint8
	hook    probes.Hook
	outcome probes.Outcome
}

// timed returns how many first packets are in the histograms, where there are any.
func timed(t testing.TB, p *probes.Probes) map[place]uint64 {
	t.Helper()
	list, err := p.Latencies()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[place]uint64)
	for _, l := range list {
		var n uint64
		for _, count := range l.Counts {
			n += count
		}
		if n > 0 {
			all[place{l.Family, l.Hook, l.Outcome}] += n
		}
		if n > 0 != (l.Sum > 0) {
			t.Errorf("IPv%d %s: %d first packets took %s", l.Family, l.Hook, n, l.Sum)
		}
	}
	return all
}

func losses(t testing.TB, p *probes.Probes) probes.Losses {
	t.Helper()
	l, err := p.Losses()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// countingPort is a ServicePort of TCP on an address of the node, with three endpoints
// that answer. Both are of the n-th Service.
func countingPort(t testing.TB, c *cluster, protocol dataplane.Protocol, n int) dataplane.ServicePort {
	t.Helper()
	eps := endpointsFrom(netip.AddrPortFrom(nth(endpoints4.Addr(), 300+10*n), 8080), 3)
	c.serve(t, protocol, eps...)
	vip := netip.AddrPortFrom(nth(localVIPs4.Addr(), 300+n), 80)
	return port(fmt.Sprintf("counting-%d", n), vip, protocol, eps...)
}

// Each first packet is timed once, by family and hook; later packets of a flow are
// neither timed nor counted.
func TestProbesTimeFirstPacketsOnly(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	sp := countingPort(t, c, dataplane.UDP, 0)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), sp))
	p := openProbes(t, probes.Options{}, sp)
	const flows, questions = 20, 50
	for _, client := range []*testbed.Namespace{c.client.Namespace, c.node} {
		err := client.Do(func() error {
			for range flows {
				if err := talk(sp.VIP(), questions); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sum := timed(t, p)
	// What was sent from the node can have moved to another processor on its way.
	sum[place{4, probes.Output, probes.Translated}] += losses(t, p).Unmatched
	equal(t, "first packets", sum, map[place]uint64{
		{4, probes.Prerouting, probes.Translated}: flows,
		{4, probes.Output, probes.Translated}:     flows,
	})
	equal(t, "selections", total(selections(t, p)), uint64(2*flows))
}

// total is the number of connections of all keys.
func total(all map[probes.Key]probes.Selection) uint64 {
	var n uint64
	for _, s := range all {
		n += s.Drawn + s.Pinned
	}
	return n
}

// talk sends datagrams from one socket and waits for the answer of each.
func talk(vip dataplane.VIP, questions int) error {
	conn, err := net.Dial("udp", netip.AddrPortFrom(vip.Addr, vip.Port).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	for range questions {
		if _, err := conn.Write([]byte("?")); err != nil {
			return err
		}
		if _, err := conn.Read(make([]byte, 512)); err != nil {
			return err
		}
	}
	return nil
}

// What other rules translate is foreign: timed as such, and nobody's selection.
func TestProbesTellForeignTranslations(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	sp := countingPort(t, c, dataplane.TCP, 1)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), sp))
	foreign := dataplane.VIP{Addr: nth(localVIPs4.Addr(), 400), Protocol: dataplane.TCP, Port: 80}
	nft(t, fmt.Sprintf(`
table ip other {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s meta l4proto tcp dnat to %s
	}
}`, foreign.Addr, sp.Endpoints[0].Addr))
	p := openProbes(t, probes.Options{}, sp)
	want := connectFrom(t, new(sourcePorts), c.client, 30, sp.VIP())
	connectFrom(t, new(sourcePorts), c.client, 20, foreign)
	equal(t, "selections", newConnections(selections(t, p)), want)
	equal(t, "first packets", timed(t, p), map[place]uint64{
		{4, probes.Prerouting, probes.Translated}: 30,
		{4, probes.Prerouting, probes.Foreign}:    20,
	})
}

// A frontend whose connections are not translated shows as one that is its own
// endpoint; what is for nobody is timed only.
func TestProbesTellMisses(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	served := countingPort(t, c, dataplane.TCP, 2)
	forgotten := port("forgotten", netip.AddrPortFrom(nth(localVIPs4.Addr(), 401), 80), dataplane.TCP, served.Endpoints[0].Addr)
	nobodys := netip.AddrPortFrom(nth(localVIPs4.Addr(), 402), 80)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), served))
	p := openProbes(t, probes.Options{}, served, forgotten)
	missed := netip.AddrPortFrom(forgotten.ClusterIP, forgotten.Port)
	const n = 10
	for range n {
		for _, addr := range []netip.AddrPort{missed, nobodys} {
			if answer, err := ask(t, c.client.Namespace, addr.String(), dataplane.TCP); testbed.Reason(err) != "refused" {
				t.Fatalf("%s: %v answered, error %v; want it to be refused", addr, answer, err)
			}
		}
	}
	equal(t, "selections", newConnections(selections(t, p)), map[probes.Key]uint64{
		{VIP: missed, Protocol: unix.IPPROTO_TCP, Endpoint: missed}: n,
	})
	equal(t, "first packets", timed(t, p), map[place]uint64{{4, probes.Prerouting, probes.Missed}: 2 * n})
}

// The frontends of a Service share its pins: a client's first connection by any of
// them is drawn, all others are not.
func TestProbesTellPinsFromDraws(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			t.Run(family.String(), func(t *testing.T) {
				start(t)
				s := newSticky(t, layout, family, dataplane.TCP, true)
				p := openProbes(t, probes.Options{}, s.sp)
				ports := new(sourcePorts)
				const n = 10
				want := connectFromOne(t, ports, s.cluster.client, n, s.vips...)
				for key, count := range connectFromOne(t, ports, s.cluster.outsider, n, s.vips...) {
					want[key] += count
				}
				all := selections(t, p)
				equal(t, "selections", newConnections(all), want)
				var drawn, pinned uint64
				for _, selection := range all {
					drawn, pinned = drawn+selection.Drawn, pinned+selection.Pinned
				}
				clients, connections := uint64(2), uint64(2*n*len(s.vips))
				equal(t, "drawn and pinned", []uint64{drawn, pinned}, []uint64{clients, connections - clients})
			})
		}
	})
}

// connectFromOne is connectFrom with one connection at a time, so that the pin of the
// first is there when the second looks for it.
func connectFromOne(t testing.TB, ports *sourcePorts, client *testbed.Pod, n int, vips ...dataplane.VIP) map[probes.Key]uint64 {
	t.Helper()
	sum := make(map[probes.Key]uint64)
	for range n {
		for _, vip := range vips {
			for key, count := range connectFrom(t, ports, client, 1, vip) {
				sum[key] += count
			}
		}
	}
	return sum
}

// A SYN that is dropped after its destination was translated comes again. It is one
// connection.
func TestProbesCountRetransmissionsApart(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	sp := countingPort(t, c, dataplane.TCP, 3)
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), sp))
	p := openProbes(t, probes.Options{}, sp)
	nft(t, `
table ip lossy {
	chain forward {
		type filter hook forward priority filter
		tcp dport 8080 drop
	}
}`)
	var group errgroup.Group
	group.Go(func() error {
		return c.client.Do(func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := testbed.Ask(ctx, sp.VIP())
			return err
		})
	})
	await(t, func() bool { return losses(t, p).Retransmitted > 0 })
	nft(t, "delete table ip lossy")
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	equal(t, "selections", total(selections(t, p)), uint64(1))
}

// Where there is no room for a counter, connections are lost to the selections and
// counted as that.
func TestProbesSayWhenTheirMapIsFull(t *testing.T) {
	start(t)
	c := sharedCluster(t)
	ports := []dataplane.ServicePort{countingPort(t, c, dataplane.TCP, 4), countingPort(t, c, dataplane.TCP, 5)}
	mustReset(t, newSyncer(t, quiet(nftables.MarkFree)), stateOf(clusterSettings(), ports...))
	const room, n = 4, 100
	p := openProbes(t, probes.Options{MaxSelections: room}, ports...)
	connectFrom(t, new(sourcePorts), c.client, n, ports[0].VIP(), ports[1].VIP())
	all, lost := selections(t, p), losses(t, p)
	equal(t, "counters", len(all), room)
	equal(t, "capacity", p.Status().Capacity, room)
	if lost.Full == 0 || total(all)+lost.Full != 2*n {
		t.Errorf("%d selections and %d without room, want %d in all", total(all), lost.Full, 2*n)
	}
	var keys []probes.Key
	for key := range all {
		keys = append(keys, key)
	}
	if err := p.Forget(append(keys, keys[0])); err != nil {
		t.Fatal(err)
	}
	equal(t, "counters after they were removed", len(selections(t, p)), 0)
}
