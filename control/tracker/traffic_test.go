// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/tracker"
	"github.com/veridict/veridict/dataplane"
)

func key(name string) dataplane.ServicePortKey {
	return dataplane.ServicePortKey{
		ServicePortName: dataplane.ServicePortName{Namespace: "ns", Name: name, Port: "http", Protocol: dataplane.TCP}, Family: dataplane.IPv4,
	}
}

func with(s *convert.Service, traffic convert.Traffic) *convert.Service {
	s.Traffic = &traffic
	return s
}

func nodePort(s *convert.Service, number uint16) *convert.Service {
	s.Ports[0].NodePort = number
	return s
}

func local(e convert.Endpoint) convert.Endpoint {
	e.Local = true
	return e
}

func TestTrafficOfAServicePort(t *testing.T) {
	t.Parallel()
	tr := tracker.New(tracker.Options{NodeName: "me"})
	web := nodePort(service("web", "172.30.0.1", port("http", 80)), 30080)
	tr.Apply(upsert(
		&convert.Node{Name: "me", Addresses: []netip.Addr{addr("10.9.9.9")}},
		with(web, convert.Traffic{
			ExternalIPs: []netip.Addr{addr("1.2.3.4"), addr("172.30.0.1"), addr("fd00::9")}, LoadBalancerIPs: []netip.Addr{addr("1.2.3.4"), addr("5.6.7.8")},
			SourceRanges:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
			ExternalLocal: true, AffinitySeconds: 60, Algorithm: dataplane.SourceHash,
		}),
		slice("s", "web", port("http", 8080), local(ready("10.0.0.1")), ready("10.0.0.2")),
	))
	got := tr.State().ServicePorts[key("web")]
	want := dataplane.ServicePort{
		Key: key("web"), ClusterIP: addr("172.30.0.1"), Port: 80, Algorithm: dataplane.SourceHash, AffinitySeconds: 60,
		Endpoints: []dataplane.Endpoint{
			{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Local: true}, {Addr: netip.MustParseAddrPort("10.0.0.2:8080")},
		},
		LocalEndpoints: []dataplane.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Local: true}},
		External: &dataplane.External{
			IPs: []netip.Addr{addr("1.2.3.4"), addr("5.6.7.8")}, NodePort: 30080, Local: true, Guarded: []netip.Addr{addr("1.2.3.4"), addr("5.6.7.8")},
			// The node is in the ranges, and may have these addresses as its source.
			SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("1.2.3.4/32"), netip.MustParsePrefix("5.6.7.8/32")},
		},
	}
	if diff := cmp.Diff(want, got, compareState()); diff != "" {
		t.Errorf("ServicePort (-want +got):\n%s", diff)
	}

	tr.Take()
	tr.Apply(upsert(&convert.Node{Name: "me", Addresses: []netip.Addr{addr("192.168.0.1")}}))
	update := tr.Take()
	if len(update.Changed) != 1 || len(update.Changed[0].External.SourceRanges) != 1 {
		t.Errorf("when the node is in none of the ranges any more: %+v", update)
	}
}

func TestClaimsOfExternalFrontends(t *testing.T) {
	t.Parallel()
	shared := convert.Traffic{ExternalIPs: []netip.Addr{addr("1.2.3.4")}}
	older := created(nodePort(with(service("older", "172.30.0.1", port("http", 80)), shared), 30080), 1)
	younger := created(nodePort(with(service("younger", "172.30.0.2", port("http", 80)), shared), 30080), 2)
	thief := created(with(service("thief", "172.30.0.3", port("http", 80)), convert.Traffic{ExternalIPs: []netip.Addr{addr("172.30.0.2")}}), 0)
	tr := tracker.New(tracker.Options{})
	tr.Apply(upsert(younger, thief, older))

	external := func(name string) string {
		sp, ok := tr.State().ServicePorts[key(name)]
		if !ok {
			return "not served"
		}
		var words []string
		for _, vip := range sp.VIPs() {
			words = append(words, vip.String())
		}
		return strings.Join(words, " ")
	}
	want := func(name, frontends string) {
		t.Helper()
		if got := external(name); got != frontends {
			t.Errorf("frontends of %s: %s, want %s", name, got, frontends)
		}
	}
	want("older", "172.30.0.1:80/tcp 1.2.3.4:80/tcp *:30080/tcp")
	want("younger", "172.30.0.2:80/tcp")
	want("thief", "172.30.0.3:80/tcp")
	var problems []string
	for _, p := range tr.Problems() {
		problems = append(problems, p.Object+" "+p.Field)
	}
	wantProblems := []string{"Service ns/thief spec.externalIPs", "Service ns/younger spec.externalIPs", "Service ns/younger spec.ports"}
	if diff := cmp.Diff(wantProblems, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}

	tr.Apply(remove(older))
	want("younger", "172.30.0.2:80/tcp 1.2.3.4:80/tcp *:30080/tcp")
	tr.Apply(remove(younger))
	want("thief", "172.30.0.3:80/tcp 172.30.0.2:80/tcp")
	if problems := tr.Problems(); len(problems) > 0 {
		t.Errorf("problems are left: %v", problems)
	}
}

func TestHealthChecks(t *testing.T) {
	t.Parallel()
	tr := tracker.New(tracker.Options{})
	traffic := convert.Traffic{LoadBalancerIPs: []netip.Addr{addr("1.2.3.4")}, ExternalLocal: true, HealthCheckPort: 31000}
	web := with(service("web", "172.30.0.1", port("http", 80)), traffic)
	tr.Apply(upsert(web, slice("a", "web", port("http", 80), local(ready("10.0.0.1")), ready("10.0.0.2"), local(terminating("10.0.0.3"))),
		slice("b", "web", port("http", 81), local(ready("10.0.0.1")))))
	name := convert.Name{Namespace: "ns", Name: "web"}
	want := map[convert.Name]tracker.HealthCheck{name: {Port: 31000, LocalEndpoints: 1}}
	if diff := cmp.Diff(want, tr.HealthChecks()); diff != "" {
		t.Errorf("health checks (-want +got):\n%s", diff)
	}
	version := tr.HealthChecksVersion()
	tr.Apply(upsert(slice("a", "web", port("http", 80), local(ready("10.0.0.1")))))
	if tr.HealthChecksVersion() != version {
		t.Error("another version although nothing has changed")
	}
	tr.Apply(remove(web))
	if len(tr.HealthChecks()) > 0 || tr.HealthChecksVersion() == version {
		t.Errorf("health checks of a Service that is gone: %v", tr.HealthChecks())
	}
}

// Where the node is matters to Services with hints only.
func TestNodeMoves(t *testing.T) {
	t.Parallel()
	hinted := func(a, zone string) convert.Endpoint {
		e := ready(a)
		e.Hints = &convert.Hints{Zones: []string{zone}}
		return e
	}
	tr := tracker.New(tracker.Options{NodeName: "me"})
	tr.Apply(upsert(
		&convert.Node{Name: "me", Zone: "a"},
		service("zonal", "172.30.0.1", port("http", 80)), slice("z", "zonal", port("http", 80), hinted("10.0.0.1", "a"), hinted("10.0.0.2", "b")),
		service("plain", "172.30.0.2", port("http", 80)), slice("p", "plain", port("http", 80), ready("10.0.0.3")),
	))
	tr.Take()
	tr.Apply(upsert(&convert.Node{Name: "me", Zone: "b"}))
	update := tr.Take()
	if len(update.Changed) != 1 || update.Changed[0].Endpoints[0].Addr.String() != "10.0.0.2:80" {
		t.Errorf("update when the node moves to zone b: %+v", update)
	}
}

func TestNodePortAddresses(t *testing.T) {
	t.Parallel()
	cidrs := func(texts ...string) []netip.Prefix {
		var list []netip.Prefix
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	tests := []struct {
		name    string
		ports   tracker.NodePorts
		nodeIPs []netip.Addr
		want    []string
		all     []dataplane.Family
	}{
		{"primary", tracker.NodePorts{Primary: true}, nil, []string{"10.0.0.1", "fd00::1"}, nil},
		{"primary with a bind address of one family", tracker.NodePorts{Primary: true}, []netip.Addr{addr("10.0.0.9")}, []string{"10.0.0.9", "fd00::1"}, nil},
		{"CIDRs of one family", tracker.NodePorts{CIDRs: cidrs("10.0.0.0/8")}, nil, []string{"10.0.0.1", "10.2.0.1"}, []dataplane.Family{dataplane.IPv6}},
		{"CIDRs of both", tracker.NodePorts{CIDRs: cidrs("10.2.0.0/16", "fd00::/64")}, nil, []string{"10.2.0.1", "fd00::1"}, nil},
		{"loopback is skipped", tracker.NodePorts{CIDRs: cidrs("127.0.0.0/8", "::1/128")}, nil, nil, nil},
		{"all", tracker.NodePorts{CIDRs: cidrs("0.0.0.0/0", "::/0")}, nil, nil, []dataplane.Family{dataplane.IPv4, dataplane.IPv6}},
		{"primary and a CIDR", tracker.NodePorts{Primary: true, CIDRs: cidrs("10.2.0.0/16")}, nil, []string{"10.0.0.1", "10.2.0.1", "fd00::1"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tr := tracker.New(tracker.Options{NodeName: "me", NodePorts: test.ports, NodeIPs: test.nodeIPs})
			tr.SetHostAddresses([]netip.Addr{addr("10.0.0.1"), addr("10.2.0.1"), addr("127.0.0.1"), addr("::1"), addr("fd00::1")})
			tr.Apply(upsert(&convert.Node{Name: "me", Addresses: []netip.Addr{addr("10.0.0.1"), addr("10.0.0.7"), addr("fd00::1")}}))
			settings := tr.State().Settings
			var got []string
			for _, a := range settings.NodePortAddresses {
				got = append(got, a.String())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.all, settings.AllAddresses); diff != "" {
				t.Errorf("families with all addresses (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLocalhostTargets(t *testing.T) {
	t.Parallel()
	cidrs := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	with := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return append(list, cidrs...)
	}
	host := []string{"10.0.0.1", "10.0.0.5", "10.2.0.1", "127.0.0.1", "::1", "fd00::1", "fe80::1"}
	tests := []struct {
		name      string
		ports     tracker.NodePorts
		localhost dataplane.LocalhostNodePorts
		nodeIPs   []string
		want      []string
	}{
		{"primary", tracker.NodePorts{Primary: true, CIDRs: cidrs}, dataplane.LocalhostProxied, []string{"10.0.0.5", "fd00::1"}, []string{"10.0.0.5", "fd00::1"}},
		{"rejected", tracker.NodePorts{Primary: true}, dataplane.LocalhostRejected, []string{"10.0.0.5"}, nil},
		{"all, the node's IP is one", tracker.NodePorts{CIDRs: with("0.0.0.0/0")}, dataplane.LocalhostProxied, []string{"10.0.0.5"}, []string{"10.0.0.5"}},
		{"all, the node's IP is elsewhere", tracker.NodePorts{CIDRs: with("0.0.0.0/0", "::/0")}, dataplane.LocalhostProxied, []string{"192.0.2.1"}, []string{"10.0.0.1", "fd00::1"}},
		{"a CIDR without the node's IP", tracker.NodePorts{CIDRs: with("10.2.0.0/16")}, dataplane.LocalhostProxied, []string{"10.0.0.5"}, []string{"10.2.0.1"}},
		{"loopback only", tracker.NodePorts{CIDRs: cidrs}, dataplane.LocalhostProxied, []string{"10.0.0.5"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tr := tracker.New(tracker.Options{NodeName: "me", NodePorts: test.ports, Localhost: test.localhost})
			tr.SetHostAddresses(addrs(host...))
			tr.Apply(upsert(&convert.Node{Name: "me", Addresses: addrs(test.nodeIPs...)}))
			if diff := cmp.Diff(addrs(test.want...), tr.State().Settings.LocalhostTargets, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWeights(t *testing.T) {
	t.Parallel()
	zoned := func(a, zone string) convert.Endpoint {
		e := ready(a)
		e.Zone = zone
		return e
	}
	canary := slice("canary", "web", port("http", 80), zoned("10.0.0.9", "b"))
	canary.Weight = 2
	tr := tracker.New(tracker.Options{})
	tr.Apply(upsert(
		with(service("web", "172.30.0.1", port("http", 80)), convert.Traffic{ZoneWeights: []convert.ZoneWeight{{Zone: "a", Weight: 3}}}),
		slice("s", "web", port("http", 80), zoned("10.0.0.1", "a"), zoned("10.0.0.2", "c")), canary,
	))
	var got []uint16
	for _, e := range tr.State().ServicePorts[key("web")].Endpoints {
		got = append(got, e.Weight)
	}
	if diff := cmp.Diff([]uint16{3, 1, 2}, got); diff != "" {
		t.Errorf("weights (-want +got):\n%s", diff)
	}
}
