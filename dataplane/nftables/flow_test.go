// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/dataplane"
	"github.com/veridict/veridict/dataplane/nftables/nfttest"
)

// flow is a packet and all that may become of it.
type flow struct {
	name string
	// from is the source, and the interface after "@"; without an interface
	// the node itself sends.
	from string
	// to is "address:port/protocol".
	to     string
	toNode bool
	want   []string
}

func (f flow) packet() nfttest.Packet {
	source, in, _ := strings.Cut(f.from, "@")
	dest, protocol, _ := strings.Cut(f.to, "/")
	return nfttest.Packet{
		Source: netip.MustParseAddr(source), In: in, Protocol: protocolNamed(protocol),
		Dest: netip.MustParseAddrPort(dest), ToNode: f.toNode,
	}
}

// runFlows sends the packets through the tables of the fake.
func runFlows(t *testing.T, fake *Fake, flows []flow) {
	t.Helper()
	tracers := make(map[dataplane.Family]*nfttest.Tracer)
	for _, f := range families() {
		tracer, err := nfttest.NewTracer(fake.Table(f.id))
		if err != nil {
			t.Fatalf("read table %s: %v", f.ip, err)
		}
		tracers[f.id] = tracer
	}
	for _, f := range flows {
		t.Run(f.name, func(t *testing.T) {
			p := f.packet()
			outcomes, err := tracers[dataplane.FamilyOf(p.Source)].Trace(p)
			if err != nil {
				t.Fatalf("trace: %v", err)
			}
			var got []string
			for _, o := range outcomes {
				got = append(got, o.String())
			}
			if diff := cmp.Diff(f.want, got); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
		})
	}
}

// flowServicePorts are a web server with a local and a remote endpoint, DNS on
// three protocols of one port, and one without endpoints.
func flowServicePorts() []dataplane.ServicePort {
	return []dataplane.ServicePort{
		servicePort("web", "172.30.0.41:80/tcp", "+10.180.0.1:8080", "10.180.1.1:8080"),
		servicePort("dns", "172.30.0.10:53/tcp", "10.180.1.2:53"),
		servicePort("dns", "172.30.0.10:53/udp", "10.180.1.2:53", "10.180.1.3:5353"),
		servicePort("dns", "172.30.0.10:53/sctp", "10.180.1.4:53"),
		servicePort("empty", "172.30.0.50:80/tcp"),
		servicePort("web", "[fd00:30::41]:80/tcp", "+[fd00:180::1]:8080", "[fd00:180:1::1]:8080"),
		servicePort("empty", "[fd00:30::50]:80/udp"),
	}
}

func TestFlowsClusterIP(t *testing.T) {
	flows := []flow{
		{name: "from pod", from: "10.180.0.9@veth9", to: "172.30.0.41:80/tcp", want: []string{"10.180.0.1:8080", "10.180.1.1:8080"}},
		{name: "hairpin", from: "10.180.0.1@veth1", to: "172.30.0.41:80/tcp", want: []string{"10.180.0.1:8080 masquerade", "10.180.1.1:8080"}},
		{name: "from node", from: "192.168.0.2", to: "172.30.0.41:80/tcp", want: []string{"10.180.0.1:8080 masquerade", "10.180.1.1:8080 masquerade"}},
		{name: "from outside", from: "192.168.9.1@eth0", to: "172.30.0.41:80/tcp", want: []string{"10.180.0.1:8080 masquerade", "10.180.1.1:8080 masquerade"}},
		{name: "tcp", from: "10.180.0.9@veth9", to: "172.30.0.10:53/tcp", want: []string{"10.180.1.2:53"}},
		{name: "udp", from: "10.180.0.9@veth9", to: "172.30.0.10:53/udp", want: []string{"10.180.1.2:53", "10.180.1.3:5353"}},
		{name: "sctp", from: "10.180.0.9@veth9", to: "172.30.0.10:53/sctp", want: []string{"10.180.1.4:53"}},
		{name: "no endpoints, from pod", from: "10.180.0.9@veth9", to: "172.30.0.50:80/tcp", want: []string{"reject"}},
		{name: "no endpoints, from node", from: "192.168.0.2", to: "172.30.0.50:80/tcp", want: []string{"reject"}},
		{name: "no endpoints, address on the node", from: "10.180.0.9@veth9", to: "172.30.0.50:80/tcp", toNode: true, want: []string{"reject"}},
		{name: "unassigned port", from: "10.180.0.9@veth9", to: "172.30.0.41:81/tcp", want: []string{"reject"}},
		{name: "unassigned protocol", from: "192.168.0.2", to: "172.30.0.41:80/udp", want: []string{"reject"}},
		{name: "unallocated", from: "10.180.0.9@veth9", to: "172.30.0.99:80/tcp", want: []string{"drop"}},
		{name: "unallocated, from node", from: "192.168.0.2", to: "172.30.0.99:80/tcp", want: []string{"drop"}},
		{name: "endpoint itself", from: "10.180.0.9@veth9", to: "10.180.1.1:8080/tcp", want: []string{"none"}},
		{name: "elsewhere", from: "10.180.0.9@veth9", to: "192.168.9.1:80/tcp", want: []string{"none"}},
		{name: "node itself", from: "10.180.0.9@veth9", to: "192.168.0.2:22/tcp", toNode: true, want: []string{"none"}},
		{name: "IPv6 from pod", from: "fd00:180::9@veth9", to: "[fd00:30::41]:80/tcp", want: []string{"[fd00:180::1]:8080", "[fd00:180:1::1]:8080"}},
		{name: "IPv6 hairpin", from: "fd00:180::1@veth1", to: "[fd00:30::41]:80/tcp", want: []string{"[fd00:180::1]:8080 masquerade", "[fd00:180:1::1]:8080"}},
		{name: "IPv6 from outside", from: "fd00:9::1@eth0", to: "[fd00:30::41]:80/tcp", want: []string{"[fd00:180::1]:8080 masquerade", "[fd00:180:1::1]:8080 masquerade"}},
		{name: "IPv6 no endpoints", from: "fd00:180::9@veth9", to: "[fd00:30::50]:80/udp", want: []string{"reject"}},
		{name: "IPv6 unallocated", from: "fd00:180::9@veth9", to: "[fd00:30::99]:80/tcp", want: []string{"drop"}},
	}
	settings := dataplane.Settings{ServiceCIDRs: serviceCIDRs, LocalDetector: dataplane.LocalDetector{CIDRs: podCIDRs}}
	eachLayout(t, func(t *testing.T, layout Layout) {
		fake := NewFake()
		mustReset(t, fake.NewSyncer(Options{Layout: layout}), stateOf(settings, flowServicePorts()...))
		runFlows(t, fake, flows)
	})
}

func TestFlowsMasquerade(t *testing.T) {
	const vip = "172.30.0.41:80/tcp"
	plain := []string{"10.180.0.1:8080", "10.180.1.1:8080"}
	masqueraded := []string{"10.180.0.1:8080 masquerade", "10.180.1.1:8080 masquerade"}
	hairpin := []string{"10.180.0.1:8080 masquerade", "10.180.1.1:8080"}
	cases := []struct {
		name     string
		settings dataplane.Settings
		flows    []flow
	}{
		{name: "no detector", flows: []flow{
			{name: "pod", from: "10.180.0.9@veth9", to: vip, want: plain},
			{name: "outside", from: "192.168.9.1@eth0", to: vip, want: plain},
			{name: "hairpin", from: "10.180.0.1@veth1", to: vip, want: hairpin},
			{name: "unallocated without ranges", from: "10.180.0.9@veth9", to: "172.30.0.99:80/tcp", want: []string{"none"}},
		}},
		{name: "bridge", settings: dataplane.Settings{LocalDetector: dataplane.LocalDetector{Interface: "cbr0"}}, flows: []flow{
			{name: "pod", from: "10.180.0.9@cbr0", to: vip, want: plain},
			{name: "another bridge", from: "10.180.0.9@cbr01", to: vip, want: masqueraded},
			{name: "node", from: "192.168.0.2", to: vip, want: masqueraded},
			{name: "hairpin", from: "10.180.0.1@cbr0", to: vip, want: hairpin},
		}},
		{name: "prefix", settings: dataplane.Settings{LocalDetector: dataplane.LocalDetector{InterfacePrefix: "veth"}}, flows: []flow{
			{name: "pod", from: "10.180.0.9@veth9", to: vip, want: plain},
			{name: "outside", from: "192.168.9.1@eth0", to: vip, want: masqueraded},
			{name: "node", from: "192.168.0.2", to: vip, want: masqueraded},
		}},
		{name: "all", settings: dataplane.Settings{MasqueradeAll: true, LocalDetector: dataplane.LocalDetector{CIDRs: podCIDRs}}, flows: []flow{
			{name: "pod", from: "10.180.0.9@veth9", to: vip, want: masqueraded},
			{name: "past the Service", from: "10.180.0.9@veth9", to: "10.180.1.1:8080/tcp", want: []string{"none"}},
		}},
		{name: "CIDR of the other family", settings: dataplane.Settings{LocalDetector: dataplane.LocalDetector{CIDRs: podCIDRs[1:]}}, flows: []flow{
			{name: "outside", from: "192.168.9.1@eth0", to: vip, want: plain},
			{name: "outside, IPv6", from: "fd00:9::1@eth0", to: "[fd00:30::41]:80/tcp", want: []string{"[fd00:180::1]:8080 masquerade", "[fd00:180:1::1]:8080 masquerade"}},
		}},
	}
	eachLayout(t, func(t *testing.T, layout Layout) {
		for _, tc := range cases {
			t.Run(tc.name, func(t *testing.T) {
				fake := NewFake()
				s := fake.NewSyncer(Options{Layout: layout})
				mustReset(t, s, stateOf(dataplane.Settings{}, flowServicePorts()...))
				mustSync(t, s, dataplane.Update{Settings: &tc.settings})
				runFlows(t, fake, tc.flows)
			})
		}
	})
}

// A row that is not there is taken for bucket 0, and counted.
func TestFlowsMissed(t *testing.T) {
	eachLayout(t, func(t *testing.T, layout Layout) {
		fake := NewFake()
		web := flowServicePorts()[0]
		mustReset(t, fake.NewSyncer(Options{Layout: layout}), stateOf(dataplane.Settings{}, web))
		f := families()[0]
		lost := []op{{element: layout.row(web.VIP(), clusterScope, 1, netip.AddrPort{}), delete: true}}
		if err := fake.apply(t.Context(), f, lost); err != nil {
			t.Fatalf("delete a row: %v", err)
		}
		runFlows(t, fake, []flow{{
			name: "missed", from: "10.180.0.9@veth9", to: "172.30.0.41:80/tcp",
			want: []string{"10.180.0.1:8080", "10.180.0.1:8080 counted"},
		}})
	})
}
