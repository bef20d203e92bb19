// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables"
)

// smallState has Services of all protocols and families and of several sizes.
func smallState() dataplane.State {
	state := stateOf(clusterSettings())
	bases := map[dataplane.Family][2]netip.Addr{
		dataplane.IPv4: {netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.244.130.1")},
		dataplane.IPv6: {netip.MustParseAddr("fd00:10:96::10"), netip.MustParseAddr("fd00:10:244:8000::1")},
	}
	for family, base := range bases {
		for i, n := range []int{0, 1, 2, 3, 17, 40} {
			for _, protocol := range dataplane.Protocols() {
				vip := netip.AddrPortFrom(nth(base[0], i), 80)
				sp := port(fmt.Sprintf("s%d-%s-%s", n, protocol, family), vip, protocol,
					endpointsFrom(netip.AddrPortFrom(nth(base[1], 100*i), 8080), n)...)
				for k := range sp.Endpoints {
					sp.Endpoints[k].Local = k%3 == 0
				}
				state.ServicePorts[sp.Key] = sp
			}
		}
	}
	return state
}

// withPort returns the state with a ServicePort changed or added.
func withPort(state dataplane.State, ports ...dataplane.ServicePort) dataplane.State {
	next := stateOf(state.Settings)
	maps.Copy(next.ServicePorts, state.ServicePorts)
	for _, sp := range ports {
		next.ServicePorts[sp.Key] = sp
	}
	return next
}

func find(t testing.TB, state dataplane.State, name string) dataplane.ServicePort {
	t.Helper()
	for key, sp := range state.ServicePorts {
		if key.Name == name {
			return sp
		}
	}
	t.Fatalf("no ServicePort %s", name)
	return dataplane.ServicePort{}
}

var counterValues = regexp.MustCompile(`counter packets \d+ bytes \d+`)

// listing returns both tables as nft prints them, without what was counted.
func listing(t testing.TB) string {
	t.Helper()
	text := list(t, "table", "ip", "veridict") + list(t, "table", "ip6", "veridict")
	return counterValues.ReplaceAllString(text, "counter")
}

func TestRestartKeepsEverything(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		state := smallState()
		clock := newClock()
		options := quiet(layout)
		options.Now = clock.Now
		s := newSyncer(t, options)
		mustReset(t, s, state)
		// Endpoints that have moved into the buckets of others stand in
		// another order than those of a fresh start.
		sp := find(t, state, "s40-tcp-IPv4")
		sp.Endpoints = slices.Delete(slices.Clone(sp.Endpoints), 3, 9)
		state = withPort(state, sp)
		mustSync(t, s, dataplane.Update{Changed: []dataplane.ServicePort{sp}})
		before := settle(t, s, clock)
		want := listing(t)

		restarted := newSyncer(t, options)
		report := mustReset(t, restarted, state)
		equal(t, "elements sent", report.ElementsSent, 0)
		equal(t, "programmed", report.Programmed, before.Programmed)
		equal(t, "tables", listing(t), want)
		verify(t, layout, state)
	})
}

func TestRestartAfterChangesWhileDown(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		state := smallState()
		mustReset(t, newSyncer(t, quiet(layout)), state)

		grown, shrunk := find(t, state, "s2-udp-IPv4"), find(t, state, "s17-tcp-IPv6")
		grown.Endpoints = find(t, state, "s40-udp-IPv4").Endpoints
		shrunk.Endpoints = shrunk.Endpoints[5:6]
		emptied, moved := find(t, state, "s3-tcp-IPv4"), find(t, state, "s1-sctp-IPv4")
		emptied.Endpoints = nil
		filled := find(t, state, "s0-tcp-IPv4")
		filled.Endpoints = find(t, state, "s2-tcp-IPv4").Endpoints
		moved.ClusterIP = netip.MustParseAddr("10.96.0.200")
		next := withPort(state, grown, shrunk, emptied, moved, filled)
		delete(next.ServicePorts, find(t, state, "s40-tcp-IPv6").Key)
		next.Settings.MasqueradeAll = true

		clock := newClock()
		options := quiet(layout)
		options.Now = clock.Now
		s := newSyncer(t, options)
		mustReset(t, s, next)
		report := settle(t, s, clock)
		verify(t, layout, next)
		checkCounts(t, report.Programmed, next)
	})
}

// checkCounts compares what is reported with the state and with what nft prints.
func checkCounts(t testing.TB, got dataplane.Counts, state dataplane.State) {
	t.Helper()
	want := objectCounts(t)
	want.ServicePorts = len(state.ServicePorts)
	for _, sp := range state.ServicePorts {
		want.Endpoints += len(sp.Endpoints)
	}
	want.Elements = countElements(t)
	equal(t, "programmed", got, want)
}

var elementLists = regexp.MustCompile(`(?s)elements = \{(.*?)\}`)

// countElements counts the elements of both tables in what nft prints.
func countElements(t testing.TB) int {
	t.Helper()
	return listedElements(listing(t))
}

func listedElements(text string) int {
	n := 0
	for _, elements := range elementLists.FindAllStringSubmatch(text, -1) {
		n += 1 + strings.Count(elements[1], ",")
	}
	return n
}

// objectCounts counts chains and maps in what nft prints.
func objectCounts(t testing.TB) dataplane.Counts {
	t.Helper()
	text := listing(t)
	return dataplane.Counts{
		Chains: strings.Count(text, "\tchain "),
		Maps:   strings.Count(text, "\tmap ") + strings.Count(text, "\tset "),
	}
}

// TestResetHealsDamage does to good tables what older versions, crashes and
// people may have done, and expects a new process to put them right.
func TestResetHealsDamage(t *testing.T) {
	const service = "10.96.0.13 . tcp . 80" // three endpoints
	for name, damage := range map[string]string{
		"nothing":            ``,
		"foreign chain":      `add chain ip veridict old; add rule ip veridict old drop; insert rule ip veridict services ip daddr 10.96.0.10 goto old`,
		"foreign base chain": `add chain ip veridict foreign { type nat hook postrouting priority 90; }; add chain ip veridict old; add rule ip veridict foreign jump old; add rule ip6 veridict services drop`,
		"foreign set":        `add set ip veridict old { type ipv4_addr; }; add chain ip veridict uses; add rule ip veridict uses ip saddr @old drop`,
		"foreign map": `add map ip veridict affinity-tcp { typeof ip saddr . ip daddr . tcp dport : ip daddr . tcp dport; flags dynamic,timeout; }
			add chain ip veridict affinity; add rule ip veridict affinity meta l4proto tcp dnat ip addr . port to ip saddr . ip daddr . tcp dport map @affinity-tcp`,
		"affinity verdicts":   `add chain ip veridict affinity; delete element ip veridict service-ips { ` + service + ` }; add element ip veridict service-ips { ` + service + ` : goto affinity }`,
		"foreign elements":    `add element ip veridict cluster-ips { 1.2.3.4 }; add element ip veridict service-ips { 1.2.3.4 . udp . 9 : drop }; add element ip veridict hairpin-connections { 1.2.3.4 . 1.2.3.4 . tcp . 9, 1.2.3.4 . 5.6.7.8 . tcp . 9 }; add element ip6 veridict no-endpoint-services { ::1 . tcp . 1 : accept }`,
		"unknown protocol":    `add element ip veridict service-ips { 10.96.0.13 . icmp . 80 : accept, 10.96.0.13 . dccp . 80 : goto cluster-3 }`,
		"priority":            `flush chain ip veridict nat-prerouting; delete chain ip veridict nat-prerouting; add chain ip veridict nat-prerouting { type nat hook prerouting priority -90; }; add rule ip veridict nat-prerouting jump services`,
		"hook":                `flush chain ip veridict filter-input; delete chain ip veridict filter-input; add chain ip veridict filter-input { type filter hook prerouting priority 7; policy accept; }`,
		"regular for base":    `flush chain ip veridict filter-input; delete chain ip veridict filter-input; add chain ip veridict filter-input`,
		"policy":              `add chain ip veridict filter-forward { type filter hook forward priority 0; policy drop; }`,
		"missing base chain":  `flush chain ip6 veridict nat-output; delete chain ip6 veridict nat-output`,
		"rules":               `flush chain ip veridict services; flush chain ip veridict masquerading; add rule ip veridict masquerading masquerade; insert rule ip veridict cluster-3 drop; flush chain ip veridict missed`,
		"dispatch chain gone": `delete element ip veridict service-ips { 10.96.0.14 . tcp . 80, 10.96.0.14 . udp . 80, 10.96.0.14 . sctp . 80 }; flush chain ip veridict cluster-17; delete chain ip veridict cluster-17`,
		"verdict drop":        `delete element ip veridict service-ips { ` + service + ` }; add element ip veridict service-ips { ` + service + ` : drop }`,
		"verdict goto":        `add chain ip veridict elsewhere; delete element ip veridict service-ips { ` + service + ` }; add element ip veridict service-ips { ` + service + ` : goto elsewhere }`,
		"verdict size":        `delete element ip veridict service-ips { ` + service + ` }; add element ip veridict service-ips { ` + service + ` : goto cluster-2 }`,
		"verdict gone":        `delete element ip veridict service-ips { ` + service + ` }`,
		"rejected":            `add element ip veridict no-endpoint-services { ` + service + ` : goto reject-chain }`,
		"rejected with drop":  `delete element ip veridict no-endpoint-services { 10.96.0.10 . tcp . 80 : goto reject-chain }; add element ip veridict no-endpoint-services { 10.96.0.10 . tcp . 80 : drop }`,
		"cluster IPs gone":    `flush set ip veridict cluster-ips; flush set ip veridict hairpin-connections`,
		"dormant":             `add table ip veridict { flags dormant; }`,
		"set shape":           `delete table ip veridict; add table ip veridict; add map ip veridict service-ips { typeof ip daddr : verdict; }`,
		"set flags":           `delete table ip veridict; add table ip veridict; add set ip veridict cluster-ips { type ipv4_addr; flags timeout; timeout 1h; }`,
		"interval set":        `delete table ip veridict; add table ip veridict; add set ip veridict cluster-ips { type ipv4_addr; flags interval; elements = { 10.96.0.0/16 } }`,
		"set for map":         `delete table ip veridict; add table ip veridict; add set ip veridict service-ips { typeof ip daddr . meta l4proto . th dport; }`,
		"dispatch for base":   `delete table ip veridict; add table ip veridict; add chain ip veridict cluster-3 { type filter hook input priority 3; }`,
		"missed for base":     `delete table ip veridict; add table ip veridict; add chain ip veridict missed { type filter hook input priority 3; }`,
		"no elements":         `delete table ip6 veridict`,
		"flush ruleset":       `flush ruleset`,
	} {
		t.Run(name, func(t *testing.T) {
			eachLayout(t, func(t *testing.T, layout nftables.Layout) {
				state := smallState()
				mustReset(t, newSyncer(t, quiet(layout)), state)
				nft(t, damage)
				heal(t, layout, state)
			})
		})
	}
}

// heal starts a new Syncer and expects everything to be right after it, and
// everything unused to be gone.
func heal(t testing.TB, layout nftables.Layout, state dataplane.State) {
	t.Helper()
	clock := newClock()
	options := quiet(layout)
	options.Now = clock.Now
	s := newSyncer(t, options)
	mustReset(t, s, state)
	report := settle(t, s, clock)
	verify(t, layout, state)
	checkCounts(t, report.Programmed, state)
	for _, trace := range []string{"policy drop", "flags dormant"} {
		if strings.Contains(listing(t), trace) {
			t.Errorf("nft list still shows %q", trace)
		}
	}
}

// TestResetHealsRows damages the rows, which the two layouts keep in different
// maps.
func TestResetHealsRows(t *testing.T) {
	for name, damage := range map[string]string{
		"hole":         `delete element ip veridict MAP { 10.96.0.13 . TCP80 . 1 }`,
		"no row":       `flush map ip veridict MAP`,
		"duplicate":    `delete element ip veridict MAP { 10.96.0.13 . TCP80 . 1 }; add element ip veridict MAP { 10.96.0.13 . TCP80 . 1 : 10.244.131.45 . 8080 }`,
		"surplus":      `add element ip veridict MAP { 10.96.0.13 . TCP80 . 3 : 1.2.3.4 . 5, 10.96.0.13 . TCP80 . 9 : 1.2.3.4 . 5 }`,
		"local":        `add element ip veridict MAP { 10.96.0.13 . TCP80 . 65536 : 10.244.131.45 . 8080 }`,
		"stranger":     `delete element ip veridict MAP { 10.96.0.13 . TCP80 . 0 }; add element ip veridict MAP { 10.96.0.13 . TCP80 . 0 : 1.2.3.4 . 5 }`,
		"of nobody":    `add element ip veridict MAP { 10.96.0.99 . TCP80 . 0 : 1.2.3.4 . 5, 10.96.0.99 . TCP80 . 65535 : 1.2.3.4 . 5 }`,
		"foreign port": `add element ip veridict MAP { 10.96.0.13 . TCP81 . 0 : 1.2.3.4 . 5 }`,
	} {
		t.Run(name, func(t *testing.T) {
			eachLayout(t, func(t *testing.T, layout nftables.Layout) {
				state := smallState()
				mustReset(t, newSyncer(t, quiet(layout)), state)
				nft(t, inLayout(layout, damage))
				heal(t, layout, state)
			})
		})
	}
}

// inLayout fills in the map of TCP rows and the part of its key that only one
// layout has.
func inLayout(layout nftables.Layout, script string) string {
	if layout == nftables.CTMark {
		return strings.NewReplacer("MAP", "endpoints", "TCP", "tcp . ").Replace(script)
	}
	return strings.NewReplacer("MAP", "endpoints-tcp", "TCP", "").Replace(script)
}

// TestSyncNoticesWhatIsGone deletes an element that the next update has to
// delete too.
func TestSyncNoticesWhatIsGone(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout nftables.Layout) {
		state := smallState()
		s := newSyncer(t, quiet(layout))
		mustReset(t, s, state)
		nft(t, `delete element ip veridict service-ips { 10.96.0.13 . tcp . 80 }`)
		sp := find(t, state, "s3-tcp-IPv4")
		sp.Endpoints = sp.Endpoints[:2]
		_, err := s.Sync(t.Context(), dataplane.Update{Changed: []dataplane.ServicePort{sp}})
		if err == nil || !strings.Contains(err.Error(), "10.96.0.13 . tcp . 80") {
			t.Errorf("got error %v, want one that names the element", err)
		}
		if _, err := s.Sync(t.Context(), dataplane.Update{}); err == nil {
			t.Error("Sync went on after an error")
		}
		next := withPort(state, sp)
		mustReset(t, s, next)
		verifyAfter(t, s, layout, next)
	})
}

// verifyAfter does what is due and verifies.
func verifyAfter(t testing.TB, s *nftables.Syncer, layout nftables.Layout, state dataplane.State) {
	t.Helper()
	await(t, func() bool {
		report := mustSync(t, s, dataplane.Update{})
		return report.Due.IsZero() || time.Until(report.Due) > time.Second
	})
	verify(t, layout, state)
}

// await polls until the condition holds.
func await(t testing.TB, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatal("waited in vain for 30 s")
		case <-ticker.C:
		}
	}
}
