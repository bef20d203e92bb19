// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables/nfttest"
)

// The addresses of the tests:
//
//	172.30.0.0/16, fd00:30::/112  cluster IPs
//	10.180.0.0/24, fd00:180::/64  pods of this node
//	10.180.1.0/24, fd00:180:1::/64 pods of other nodes
//	192.168.9.0/24                outside
var (
	serviceCIDRs = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00:30::/112")}
	podCIDRs     = []netip.Prefix{netip.MustParsePrefix("10.180.0.0/24"), netip.MustParsePrefix("fd00:180::/64")}
)

func layouts() []Layout { return []Layout{MarkFree, CTMark} }

// eachLayout runs the test with both layouts.
func eachLayout(t *testing.T, test func(t *testing.T, layout Layout)) {
	for _, layout := range layouts() {
		t.Run(string(layout), func(t *testing.T) { test(t, layout) })
	}
}

// clock is a clock that stands until it is moved.
type clock struct{ time time.Time }

func newClock() *clock { return &clock{time.Unix(1_000_000, 0)} }

func (c *clock) now() time.Time          { return c.time }
func (c *clock) advance(d time.Duration) { c.time = c.time.Add(d) }

// servicePort returns a ServicePort named by its VIP, "172.30.0.1:80/tcp".
// Endpoints that begin with "+" are local.
func servicePort(name, vip string, endpoints ...string) dataplane.ServicePort {
	addr, protocol, _ := strings.Cut(vip, "/")
	ap := netip.MustParseAddrPort(addr)
	sp := dataplane.ServicePort{
		Key: dataplane.ServicePortKey{
			ServicePortName: dataplane.ServicePortName{Namespace: "default", Name: name, Protocol: protocolNamed(protocol)},
			Family:          dataplane.FamilyOf(ap.Addr()),
		},
		ClusterIP: ap.Addr(), Port: ap.Port(),
	}
	for _, text := range endpoints {
		plain, local := strings.CutPrefix(text, "+")
		sp.Endpoints = append(sp.Endpoints, dataplane.Endpoint{Addr: netip.MustParseAddrPort(plain), Local: local})
	}
	return sp
}

func vipOf(text string) dataplane.VIP {
	sp := servicePort("", text)
	return sp.VIP()
}

func protocolNamed(name string) dataplane.Protocol {
	for _, p := range dataplane.Protocols() {
		if p.String() == name {
			return p
		}
	}
	panic("unknown protocol " + name)
}

// remote returns n endpoints of other nodes, from the first one up.
func remote(first, n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("10.180.%d.%d:8080", 1+(first+i)/250, 1+(first+i)%250))
	}
	return list
}

func stateOf(settings dataplane.Settings, list ...dataplane.ServicePort) dataplane.State {
	state := dataplane.State{Settings: settings, ServicePorts: make(map[dataplane.ServicePortKey]dataplane.ServicePort)}
	for _, sp := range list {
		state.ServicePorts[sp.Key] = sp
	}
	return state
}

func mustReset(t testing.TB, s *Syncer, state dataplane.State) dataplane.Report {
	t.Helper()
	report, err := s.Reset(t.Context(), state)
	if err != nil {
		t.Fatalf("reset: %v", err)
	}
	return report
}

func mustSync(t testing.TB, s *Syncer, update dataplane.Update) dataplane.Report {
	t.Helper()
	report, err := s.Sync(t.Context(), update)
	if err != nil {
		t.Fatalf("sync: %v", err)
	}
	return report
}

// dumpOf returns the canonical text of both tables.
func dumpOf(fake *Fake) string {
	var text strings.Builder
	for _, f := range families() {
		fmt.Fprintf(&text, "table %s\n%s", f.ip, nfttest.Dump(fake.Table(f.id)))
	}
	return text.String()
}

// elementsIn counts the elements of both tables.
func elementsIn(fake *Fake) int {
	n := 0
	for _, table := range fake.tables {
		for _, set := range table.sets {
			n += len(set.elements)
		}
	}
	return n
}

// serviceElement is the verdict of a VIP with n endpoints.
func serviceElement(vip dataplane.VIP, n int) element {
	return element{set: byKey(serviceMap, vip.IsNodePort()), key: vipKey(vip), verdict: gotoVerdict(dispatchName(n))}
}

// rejectElement refuses a VIP without endpoints.
func rejectElement(vip dataplane.VIP) element {
	return element{set: byKey(noEndpointMap, vip.IsNodePort()), key: vipKey(vip), verdict: gotoVerdict(rejectChain)}
}

func dispatchName(n int) string { return variant{kind: dispatchVariant, n: uint32(n)}.name() }

// newRuleset returns the structure for a kernel that repeats lookups itself.
func newRuleset(f family, layout Layout, settings *dataplane.Settings) ruleset {
	options := Options{Layout: layout, KernelRelease: "6.18.0"}.withDefaults()
	return options.ruleset(f, settings)
}
