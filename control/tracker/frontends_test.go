// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package tracker_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/control/tracker"
	"github.com/veridict/veridict/dataplane"
)

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, addr(text))
	}
	return list
}

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// with returns the Service with traffic, born at a time.
func with(s *convert.Service, at int64, traffic convert.Traffic) *convert.Service {
	s.Created, s.Traffic = at, &traffic
	return s
}

func nodePort(number uint16) convert.Port {
	return convert.Port{Protocol: dataplane.TCP, Port: 80, NodePort: number}
}

// frontends returns the VIPs of each Service.
func frontends(state dataplane.State) map[string][]string {
	out := map[string][]string{}
	for key, sp := range state.ServicePorts {
		for _, vip := range sp.VIPs() {
			out[key.Name] = append(out[key.Name], vip.String())
		}
	}
	return out
}

func TestFrontends(t *testing.T) {
	t.Parallel()
	http := port("", 80)
	tests := []struct {
		name     string
		objects  []convert.Object
		want     map[string][]string
		problems []string
	}{
		{
			"all kinds, an address in two lists once, the cluster IP not again",
			[]convert.Object{with(service("a", "172.30.0.1", nodePort(30000)), 1, convert.Traffic{
				ExternalIPs: addrs("172.30.0.1", "192.0.2.2", "2001:db8::1"), LoadBalancerIPs: addrs("192.0.2.1", "192.0.2.2"),
			})},
			map[string][]string{"a": {"172.30.0.1:80/tcp", "192.0.2.1:80/tcp", "192.0.2.2:80/tcp", "*:30000/tcp"}},
			nil,
		},
		{
			"nobody takes a cluster IP away by an older external IP",
			[]convert.Object{
				with(service("old", "172.30.0.1", http), 1, convert.Traffic{ExternalIPs: addrs("172.30.0.2", "192.0.2.1")}),
				created(service("young", "172.30.0.2", http), 2),
			},
			map[string][]string{"old": {"172.30.0.1:80/tcp", "192.0.2.1:80/tcp"}, "young": {"172.30.0.2:80/tcp"}},
			[]string{"a.yaml: Service ns/old: spec.externalIPs: 172.30.0.2:80/tcp of port ns/old (IPv4) is taken by the cluster IP of Service ns/young and not served here"},
		},
		{
			"another port of the same address is free",
			[]convert.Object{
				with(service("a", "172.30.0.1", port("", 81)), 1, convert.Traffic{ExternalIPs: addrs("172.30.0.2")}), service("b", "172.30.0.2", http),
			},
			map[string][]string{"a": {"172.30.0.1:81/tcp", "172.30.0.2:81/tcp"}, "b": {"172.30.0.2:80/tcp"}},
			nil,
		},
		{
			"of two the older has the external IP and the NodePort, the other keeps its cluster IP",
			[]convert.Object{
				with(service("young", "172.30.0.1", nodePort(30000)), 2, convert.Traffic{ExternalIPs: addrs("192.0.2.1")}),
				with(service("old", "172.30.0.2", nodePort(30000)), 1, convert.Traffic{LoadBalancerIPs: addrs("192.0.2.1")}),
			},
			map[string][]string{"young": {"172.30.0.1:80/tcp"}, "old": {"172.30.0.2:80/tcp", "192.0.2.1:80/tcp", "*:30000/tcp"}},
			[]string{
				"a.yaml: Service ns/young: spec.externalIPs: 192.0.2.1:80/tcp of port ns/young (IPv4) is taken by the older Service ns/old and not served here",
				"a.yaml: Service ns/young: spec.ports: *:30000/tcp of port ns/young (IPv4) is taken by the older Service ns/old and not served here",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tr := tracker.New(tracker.Options{})
			for _, object := range test.objects {
				tr.Apply(upsert(object))
			}
			if diff := cmp.Diff(test.want, frontends(tr.State())); diff != "" {
				t.Errorf("frontends (-want +got):\n%s", diff)
			}
			var problems []string
			for _, p := range tr.Problems() {
				problems = append(problems, p.String())
			}
			if diff := cmp.Diff(test.problems, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSourceRanges(t *testing.T) {
	t.Parallel()
	svc := with(service("a", "172.30.0.1", port("", 80)), 1, convert.Traffic{
		ExternalIPs: addrs("192.0.2.9"), LoadBalancerIPs: addrs("192.0.2.1"), SourceRanges: prefixes("10.0.0.0/8", "fd00::/64"),
	})
	tr := tracker.New(tracker.Options{NodeName: "me"})
	tr.Apply(upsert(svc, &convert.Node{Name: "me", Addresses: addrs("192.168.0.1", "fd00::1")}))
	external := func() dataplane.External {
		for _, sp := range tr.State().ServicePorts {
			return *sp.External
		}
		return dataplane.External{}
	}
	want := dataplane.External{IPs: addrs("192.0.2.1", "192.0.2.9"), Guarded: addrs("192.0.2.1"), SourceRanges: prefixes("10.0.0.0/8")}
	if diff := cmp.Diff(want, external(), compareState()); diff != "" {
		t.Errorf("a node outside the ranges (-want +got):\n%s", diff)
	}
	tr.Apply(upsert(&convert.Node{Name: "me", Addresses: addrs("10.0.0.1")}))
	want.SourceRanges = prefixes("10.0.0.0/8", "192.0.2.1/32")
	if diff := cmp.Diff(want, external(), compareState()); diff != "" {
		t.Errorf("a node inside (-want +got):\n%s", diff)
	}
	open := with(service("a", "172.30.0.1", port("", 80)), 1, convert.Traffic{LoadBalancerIPs: addrs("192.0.2.1"), SourceRanges: prefixes("0.0.0.0/0", "10.0.0.0/8")})
	tr.Apply(upsert(open))
	if diff := cmp.Diff(dataplane.External{IPs: addrs("192.0.2.1")}, external(), compareState()); diff != "" {
		t.Errorf("open to everybody (-want +got):\n%s", diff)
	}
}

// TestZoneOfTheNode says that a node which moves uses other endpoints, and that
// weights count after hints.
func TestZoneOfTheNode(t *testing.T) {
	t.Parallel()
	hinted := func(a, zone string) convert.Endpoint {
		e := ready(a)
		e.Zone, e.Hints = zone, &convert.Hints{Zones: []string{zone}}
		return e
	}
	tr := tracker.New(tracker.Options{NodeName: "me"})
	tr.Apply(upsert(
		service("a", "172.30.0.1", port("", 80)), slice("s", "a", port("", 80), hinted("10.0.0.1", "x"), hinted("10.0.0.2", "y")),
		service("b", "172.30.0.2", port("", 80)), slice("t", "b", port("", 80), ready("10.0.0.3")),
	))
	tr.Take()
	for _, test := range []struct{ zone, want string }{
		{"x", "172.30.0.1:80/tcp 10.0.0.1:80"}, {"y", "172.30.0.1:80/tcp 10.0.0.2:80"}, {"", "172.30.0.1:80/tcp 10.0.0.1:80 10.0.0.2:80"},
	} {
		tr.Apply(upsert(&convert.Node{Name: "me", Zone: test.zone}))
		if diff := cmp.Diff(test.want, text(tr.State())["a:/IPv4"]); diff != "" {
			t.Errorf("zone %q (-want +got):\n%s", test.zone, diff)
		}
		if update := tr.Take(); len(update.Changed) != 1 {
			t.Errorf("zone %q changes %d ServicePorts, want 1", test.zone, len(update.Changed))
		}
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	local, far := ready("10.0.0.1"), ready("10.0.0.2")
	local.Local = true
	canary := slice("canary", "a", port("", 80), far)
	canary.Weight = 3
	for _, test := range []struct {
		name    string
		traffic convert.Traffic
		want    dataplane.ServicePort
	}{
		{"Cluster", convert.Traffic{ExternalIPs: addrs("192.0.2.1")}, dataplane.ServicePort{External: &dataplane.External{IPs: addrs("192.0.2.1")}}},
		{"internal Local", convert.Traffic{InternalLocal: true}, dataplane.ServicePort{InternalLocal: true, LocalEndpoints: []dataplane.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Local: true}}}},
		{
			"external Local", convert.Traffic{ExternalIPs: addrs("192.0.2.1"), ExternalLocal: true, AffinitySeconds: 60, Algorithm: dataplane.SourceHash},
			dataplane.ServicePort{
				External: &dataplane.External{IPs: addrs("192.0.2.1"), Local: true}, AffinitySeconds: 60, Algorithm: dataplane.SourceHash,
				LocalEndpoints: []dataplane.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Local: true}},
			},
		},
	} {
		tr := tracker.New(tracker.Options{})
		tr.Apply(upsert(with(service("a", "172.30.0.1", port("", 80)), 1, test.traffic), slice("s", "a", port("", 80), local), canary))
		want := test.want
		want.ClusterIP, want.Port = addr("172.30.0.1"), 80
		want.Key = dataplane.ServicePortKey{ServicePortName: dataplane.ServicePortName{Namespace: "ns", Name: "a", Protocol: dataplane.TCP}, Family: dataplane.IPv4}
		want.Endpoints = []dataplane.Endpoint{
			{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Local: true, Weight: 1}, {Addr: netip.MustParseAddrPort("10.0.0.2:80"), Weight: 3},
		}
		if diff := cmp.Diff(want, tr.State().ServicePorts[want.Key], compareState()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestHealthChecks(t *testing.T) {
	t.Parallel()
	local := func(a string) convert.Endpoint {
		e := ready(a)
		e.Local = true
		return e
	}
	draining := terminating("10.0.0.3")
	draining.Local = true
	svc := with(service("a", "172.30.0.1", port("", 80)), 1, convert.Traffic{HealthCheckPort: 31000})
	tr := tracker.New(tracker.Options{})
	tr.Apply(upsert(svc, slice("s", "a", port("", 80), local("10.0.0.1"), ready("10.0.0.2"), draining),
		slice("t", "a", port("", 81), local("10.0.0.1")), slice("u", "a", port("", 80), local("fd00::1"))))
	want := map[convert.Name]tracker.HealthCheck{{Namespace: "ns", Name: "a"}: {Port: 31000, LocalEndpoints: 2}}
	if diff := cmp.Diff(want, tr.HealthChecks()); diff != "" {
		t.Errorf("health checks (-want +got):\n%s", diff)
	}
	version := tr.HealthChecksVersion()
	tr.Apply(upsert(slice("v", "a", port("", 80), ready("10.0.0.4"))))
	if tr.HealthChecksVersion() != version {
		t.Error("another version although no health check has changed")
	}
	tr.Apply(remove(svc))
	if len(tr.HealthChecks()) != 0 || tr.HealthChecksVersion() == version {
		t.Errorf("health checks of a Service that is gone: %v", tr.HealthChecks())
	}
}

func TestNodePortAddresses(t *testing.T) {
	t.Parallel()
	host := addrs("127.0.0.1", "::1", "192.168.0.1", "192.168.1.1", "fd00::1", "2001:db8::1")
	node := addrs("192.168.0.1", "fd00::1")
	v4, v6 := dataplane.IPv4, dataplane.IPv6
	tests := []struct {
		name      string
		options   tracker.Options
		node      []netip.Addr
		addresses []netip.Addr
		all       []dataplane.Family
	}{
		{"primary", tracker.Options{NodePorts: tracker.NodePorts{Primary: true}}, node, node, nil},
		{"primary, the node has one family", tracker.Options{NodePorts: tracker.NodePorts{Primary: true}}, node[:1], node[:1], []dataplane.Family{v6}},
		{
			"primary with a bind address of one family", tracker.Options{NodeIPs: addrs("192.168.1.1"), NodePorts: tracker.NodePorts{Primary: true}},
			node, addrs("192.168.1.1", "fd00::1"), nil,
		},
		{"a CIDR leaves the other family alone", tracker.Options{NodePorts: tracker.NodePorts{CIDRs: prefixes("192.168.0.0/16")}}, node, addrs("192.168.0.1", "192.168.1.1"), []dataplane.Family{v6}},
		{"all", tracker.Options{NodePorts: tracker.NodePorts{CIDRs: prefixes("0.0.0.0/0", "::/0")}}, node, nil, []dataplane.Family{v4, v6}},
		{"loopback only", tracker.Options{NodePorts: tracker.NodePorts{CIDRs: prefixes("127.0.0.0/8", "::1/128")}}, node, nil, nil},
		{
			"primary and a CIDR", tracker.Options{NodePorts: tracker.NodePorts{Primary: true, CIDRs: prefixes("2001:db8::/32")}}, node,
			addrs("192.168.0.1", "2001:db8::1", "fd00::1"), nil,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.options.NodeName = "me"
			tr := tracker.New(test.options)
			tr.SetHostAddresses(host)
			tr.Apply(upsert(&convert.Node{Name: "me", Addresses: test.node}))
			want := dataplane.Settings{NodePortAddresses: test.addresses, AllAddresses: test.all}
			if diff := cmp.Diff(want, tr.State().Settings, compareState()); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}
