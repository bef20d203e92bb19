// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veridict/veridict/compare/testbed"
	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// history makes random updates and keeps the state that they lead to.
type history struct {
	random *rand.Rand
	state  dataplane.State
}

func (h *history) family() dataplane.Family {
	return []dataplane.Family{dataplane.IPv4, dataplane.IPv6}[h.random.IntN(2)]
}

// vip draws from few addresses and ports, so that ServicePorts share addresses
// and take over what others have left.
func (h *history) vip(family dataplane.Family) netip.AddrPort {
	base := netip.MustParseAddr("10.96.0.1")
	if family == dataplane.IPv6 {
		base = netip.MustParseAddr("fd00:10:96::1")
	}
	return netip.AddrPortFrom(nth(base, h.random.IntN(5)), uint16(80+h.random.IntN(3)))
}

// endpoints draws a list; often of a few, sometimes of many.
func (h *history) endpoints(family dataplane.Family) []dataplane.Endpoint {
	base := nth(endpoints4.Addr(), 1)
	if family == dataplane.IPv6 {
		base = nth(endpoints6.Addr(), 1)
	}
	n := []int{0, 1, 2, h.random.IntN(6), h.random.IntN(40)}[h.random.IntN(5)]
	chosen := make(map[netip.AddrPort]dataplane.Endpoint)
	for range n {
		addr := netip.AddrPortFrom(nth(base, h.random.IntN(50)), uint16(8080+h.random.IntN(2)))
		// Whether an endpoint is local depends on where it is, and nothing else.
		chosen[addr] = dataplane.Endpoint{Addr: addr, Local: addr.Addr().AsSlice()[len(addr.Addr().AsSlice())-1]%4 == 0}
	}
	return slices.SortedFunc(maps.Values(chosen), func(a, b dataplane.Endpoint) int { return a.Addr.Compare(b.Addr) })
}

func (h *history) key() (dataplane.ServicePortKey, bool) {
	keys := slices.SortedFunc(maps.Keys(h.state.ServicePorts), func(a, b dataplane.ServicePortKey) int {
		return strings.Compare(a.String(), b.String())
	})
	if len(keys) == 0 {
		return dataplane.ServicePortKey{}, false
	}
	return keys[h.random.IntN(len(keys))], true
}

// next makes an update of several changes, applies it to the state and returns
// it.
func (h *history) next() dataplane.Update {
	before := maps.Clone(h.state.ServicePorts)
	after := maps.Clone(before)
	h.state.ServicePorts = after
	var update dataplane.Update
	for range 1 + h.random.IntN(4) {
		switch h.random.IntN(7) {
		case 0, 1:
			h.add(after)
		case 2:
			if key, ok := h.key(); ok {
				delete(after, key)
			}
		case 3:
			h.handOver(after)
		case 4:
			h.swap(after)
		default:
			if key, ok := h.key(); ok {
				sp := after[key]
				sp.Endpoints = h.endpoints(key.Family)
				after[key] = h.traffic(sp)
			}
		}
	}
	dropTaken(after)
	for key := range before {
		if _, ok := after[key]; !ok {
			update.Removed = append(update.Removed, key)
		}
	}
	for key, sp := range after {
		if old, ok := before[key]; !ok || !old.Equal(&sp) {
			update.Changed = append(update.Changed, sp)
		}
	}
	if h.random.IntN(8) == 0 {
		settings := h.settings()
		h.state.Settings = settings
		update.Settings = &settings
	}
	return update
}

func (h *history) add(ports map[dataplane.ServicePortKey]dataplane.ServicePort) {
	family := h.family()
	protocol := dataplane.Protocols()[h.random.IntN(3)]
	sp := port(fmt.Sprintf("s%d", h.random.IntN(12)), h.vip(family), protocol)
	sp.Endpoints = h.endpoints(family)
	sp = h.traffic(sp)
	for key, other := range ports {
		if other.VIP() == sp.VIP() && key != sp.Key {
			return
		}
	}
	ports[sp.Key] = sp
}

// handOver gives the VIP of one ServicePort to a new one.
func (h *history) handOver(ports map[dataplane.ServicePortKey]dataplane.ServicePort) {
	key, ok := h.key()
	if !ok {
		return
	}
	sp := ports[key]
	heir := sp
	heir.Key.Name = fmt.Sprintf("heir%d", h.random.IntN(100))
	if _, taken := ports[heir.Key]; taken {
		return
	}
	heir.Endpoints = h.endpoints(key.Family)
	heir = h.traffic(heir)
	delete(ports, key)
	ports[heir.Key] = heir
}

// swap exchanges the VIPs of two ServicePorts.
func (h *history) swap(ports map[dataplane.ServicePortKey]dataplane.ServicePort) {
	a, ok := h.key()
	b, _ := h.key()
	if !ok || a.Family != b.Family || a.Protocol != b.Protocol {
		return
	}
	x, y := ports[a], ports[b]
	x.ClusterIP, x.Port, y.ClusterIP, y.Port = y.ClusterIP, y.Port, x.ClusterIP, x.Port
	ports[a], ports[b] = x, y
}

// traffic draws everything but endpoints and cluster IP.
func (h *history) traffic(sp dataplane.ServicePort) dataplane.ServicePort {
	some := func(n int) bool { return h.random.IntN(n) == 0 }
	sp.InternalLocal, sp.External, sp.LocalEndpoints, sp.AffinitySeconds, sp.Algorithm = some(4), nil, nil, 0, dataplane.Random
	for i := range sp.Endpoints {
		if some(6) {
			sp.Endpoints[i].Weight = uint16(1 + h.random.IntN(4))
		}
		if sp.Endpoints[i].Local {
			sp.LocalEndpoints = append(sp.LocalEndpoints, sp.Endpoints[i])
		}
	}
	if some(3) {
		sp.AffinitySeconds = uint32(60 * (1 + h.random.IntN(2)))
	}
	if some(5) {
		sp.Algorithm = dataplane.SourceHash
	}
	if some(2) {
		base := netip.MustParseAddr("192.0.2.1")
		if sp.Key.Family == dataplane.IPv6 {
			base = netip.MustParseAddr("2001:db8:2::1")
		}
		outside := nth(base, h.random.IntN(4))
		sp.External = &dataplane.External{IPs: []netip.Addr{outside}, NodePort: uint16(30000 + h.random.IntN(4)), Local: some(2)}
		if some(3) {
			sp.External.Guarded = sp.External.IPs
			for range 1 + h.random.IntN(3) {
				sp.External.SourceRanges = append(sp.External.SourceRanges, netip.PrefixFrom(outside, 8+h.random.IntN(20)))
			}
		}
	}
	return sp
}

// dropTaken takes away the external frontends that others have, in the order of the
// keys.
func dropTaken(ports map[dataplane.ServicePortKey]dataplane.ServicePort) {
	type frontend struct {
		family dataplane.Family
		vip    dataplane.VIP
	}
	taken := make(map[frontend]bool)
	keys := slices.SortedFunc(maps.Keys(ports), func(a, b dataplane.ServicePortKey) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		sp := ports[key]
		free := true
		for _, vip := range sp.VIPs()[1:] {
			free = free && !taken[frontend{key.Family, vip}]
		}
		if !free {
			sp.External = nil
			ports[key] = sp
		}
		for _, vip := range sp.VIPs()[1:] {
			taken[frontend{key.Family, vip}] = true
		}
	}
}

func (h *history) settings() dataplane.Settings {
	plan := testbed.DefaultPlan()
	return dataplane.Settings{
		ServiceCIDRs:  plan.ServiceCIDRs[:h.random.IntN(3)],
		LocalDetector: []dataplane.LocalDetector{{}, {CIDRs: plan.PodCIDRs}, {Interface: "br0"}, {InterfacePrefix: "pod"}}[h.random.IntN(4)],
		MasqueradeAll: h.random.IntN(3) == 0,

		NodePortAddresses: [][]netip.Addr{nil, {nodeIP4}, {nodeIP4, externalIP4}}[h.random.IntN(3)],
		AllAddresses:      [][]dataplane.Family{nil, {dataplane.IPv6}}[h.random.IntN(2)],
		Localhost:         []dataplane.LocalhostNodePorts{dataplane.LocalhostUntouched, dataplane.LocalhostProxied, dataplane.LocalhostRejected}[h.random.IntN(3)],
	}
}

// TestRandomHistories is I2 and I6: after any sequence of updates, pauses and
// restarts the kernel holds what the state asks for. In between it may only
// hold more rows. Transactions are tiny, so that everything is split.
func TestRandomHistories(t *testing.T) {
	const steps = 150
	for _, batch := range []int{7, 0} {
		for seed := range uint64(1) {
			t.Run(fmt.Sprintf("batches of %d/seed %d", batch, seed), func(t *testing.T) {
				eachLayout(t, func(t *testing.T, layout nftables.Layout) {
					clock := newClock()
					options := quiet(layout)
					options.Now, options.BatchElements = clock.Now, batch
					h := &history{random: rand.New(rand.NewPCG(seed, 5)), state: stateOf(clusterSettings())}
					s := newSyncer(t, options)
					mustReset(t, s, h.state)
					for step := range steps {
						update := h.next()
						if h.random.IntN(15) == 0 {
							s = newSyncer(t, options)
							mustReset(t, s, h.state)
						} else {
							mustSync(t, s, update)
						}
						clock.advance(time.Duration(h.random.IntN(150)) * time.Millisecond)
						if step%8 == 0 {
							onlySurplusRows(t, layout, h.state)
						}
						if step%25 == 24 {
							report := settle(t, s, clock)
							verify(t, layout, h.state)
							checkCounts(t, report.Programmed, h.state)
						}
						if t.Failed() {
							t.Fatalf("at step %d, after %+v", step, update)
						}
					}
				})
			})
		}
	}
}

// onlySurplusRows allows rows that wait to be removed, and no other difference.
func onlySurplusRows(t testing.TB, layout nftables.Layout, state dataplane.State) {
	t.Helper()
	differences, err := nftables.Verify(t.Context(), nftables.Options{Layout: layout}, state)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		if d.Kind != nftables.Surplus || !strings.HasPrefix(strings.TrimPrefix(d.In, "nodeport-"), "endpoints") {
			t.Error("the kernel differs:", d)
		}
	}
}
