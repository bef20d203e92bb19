// SPDX-FileCopyrightText: The veridict authors
// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/veridict/veridict/control/convert"
	"github.com/veridict/veridict/dataplane"
)

func options() cmp.Options {
	return cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmpopts.EquateEmpty(),
	}
}

func decode[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return out
}

func texts(problems []convert.Problem) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Field+": "+p.Message)
	}
	return out
}

func TestFromService(t *testing.T) {
	t.Parallel()
	tcp := func(name string, port uint16) convert.Port {
		return convert.Port{Name: name, Protocol: dataplane.TCP, Port: port}
	}
	v4, v6 := netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00::1")
	tests := []struct {
		name, spec string
		labels     map[string]string
		want       convert.Service
		problems   []string
	}{
		{name: "no address yet", spec: "{ports: [{port: 80}]}", want: convert.Service{Ports: []convert.Port{tcp("", 80)}}},
		{
			name: "only clusterIP, no protocol", spec: "{clusterIP: 172.30.0.1, ports: [{port: 80}]}",
			want: convert.Service{IPv4: v4, Ports: []convert.Port{tcp("", 80)}},
		},
		{
			name: "dual stack without ipFamilies", spec: `{clusterIP: 172.30.0.1, clusterIPs: [172.30.0.1, "fd00::1"]}`,
			want: convert.Service{IPv4: v4, IPv6: v6},
		},
		{
			name: "dual stack, IPv6 first", spec: `{clusterIPs: ["fd00::1", 172.30.0.1], ipFamilies: [IPv6, IPv4]}`,
			want: convert.Service{IPv4: v4, IPv6: v6},
		},
		{name: "leading zeros", spec: "{clusterIP: 172.030.000.01}", want: convert.Service{IPv4: v4}},
		{
			name: "all protocols on one port",
			spec: "{clusterIP: 172.30.0.1, ports: [{name: a, port: 53, protocol: TCP}, {name: b, port: 53, protocol: UDP}, {name: c, port: 53, protocol: SCTP}]}",
			want: convert.Service{IPv4: v4, Ports: []convert.Port{
				tcp("a", 53), {Name: "b", Protocol: dataplane.UDP, Port: 53}, {Name: "c", Protocol: dataplane.SCTP, Port: 53},
			}},
		},
		{name: "headless", spec: "{clusterIP: None, ports: [{port: 80}]}"},
		{name: "headless by clusterIPs", spec: "{clusterIPs: [None], ports: [{port: 80}]}"},
		{name: "ExternalName", spec: "{type: ExternalName, clusterIP: 172.30.0.1, ports: [{port: 80}]}"},
		{
			name: "another proxy's", spec: "{clusterIP: 172.30.0.1, ports: [{port: 80}]}",
			labels: map[string]string{"service.kubernetes.io/service-proxy-name": ""},
		},
		{
			name: "bad fields cost themselves only",
			spec: `{clusterIPs: [172.30.0.300, "fd00::1"], ports: [{port: 0}, {name: a, port: 80}, {name: b, port: 81, protocol: ICMP}, {name: 'A"', port: 82}]}`,
			want: convert.Service{IPv6: v6, Ports: []convert.Port{tcp("a", 80)}},
			problems: []string{
				`spec.clusterIPs[0]: "172.30.0.300" is not an IP address`,
				"spec.ports[0].port: 0 is not a port number (1 to 65535)",
				`spec.ports[2].protocol: "ICMP" is not TCP, UDP or SCTP`,
				`spec.ports[3].name: "A\"" is not a port name (lower-case letters, digits and "-", at most 63)`,
			},
		},
		{
			name: "other family than it says", spec: "{clusterIPs: [172.30.0.1], ipFamilies: [IPv6]}",
			problems: []string{"spec.clusterIPs[0]: 172.30.0.1 is not of family IPv6, which spec.ipFamilies asks for"},
		},
		{
			name: "two of one family", spec: "{clusterIPs: [172.30.0.1, 172.30.0.2]}", want: convert.Service{IPv4: v4},
			problems: []string{"spec.clusterIPs[1]: 172.30.0.2: a second cluster IP of family IPv4 is ignored"},
		},
		{
			name: "not a unicast address", spec: "{clusterIP: 0.0.0.0}",
			problems: []string{"spec.clusterIP: 0.0.0.0 cannot be a cluster IP"},
		},
		{
			name: "ports twice",
			spec: "{clusterIP: 172.30.0.1, ports: [{name: a, port: 80}, {name: b, port: 80}, {name: a, port: 81}]}",
			want: convert.Service{IPv4: v4, Ports: []convert.Port{tcp("a", 80)}},
			problems: []string{
				"spec.ports[1].port: 80/tcp is already a port of this Service; the first one is used",
				`spec.ports[2].name: "a" (tcp) is already a port of this Service; the first one is used`,
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := &v1.Service{Spec: *decode[v1.ServiceSpec](t, test.spec)}
			in.Name, in.Labels = "web", test.labels
			in.CreationTimestamp = metav1.Time{Time: time.Unix(100, 0)}
			test.want.Name, test.want.Created = convert.Name{Namespace: "default", Name: "web"}, 100
			got, problems := convert.FromService(in)
			if diff := cmp.Diff(&test.want, got, options()); diff != "" {
				t.Errorf("service (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.problems, texts(problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFromEndpointSlice(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"kubernetes.io/service-name": "web"}
	ready := convert.Conditions{Ready: true, Serving: true}
	endpoint := func(addr string, c convert.Conditions) convert.Endpoint {
		return convert.Endpoint{Addr: netip.MustParseAddr(addr), Conditions: c}
	}
	tests := []struct {
		name, text string
		labels     map[string]string
		want       convert.Slice
		problems   []string
	}{
		{
			name: "conditions that are not there", labels: labels,
			text: "{addressType: IPv4, ports: [{name: a, port: 80}], endpoints: [{addresses: [10.0.0.1, 10.0.0.2]}]}",
			want: convert.Slice{
				Service: "web", Family: dataplane.IPv4, Ports: []convert.Port{{Name: "a", Protocol: dataplane.TCP, Port: 80}},
				Endpoints: []convert.Endpoint{endpoint("10.0.0.1", ready)},
			},
		},
		{
			name: "conditions, node and hints", labels: labels,
			text: `{addressType: IPv6, endpoints: [
				{addresses: ["fd00::1"], nodeName: me, conditions: {ready: false, serving: true, terminating: true}},
				{addresses: ["fd00::2"], nodeName: other, conditions: {ready: false, serving: false}},
				{addresses: ["fd00::3"], hints: {forZones: [{name: z}], forNodes: [{name: me}]}}]}`,
			want: convert.Slice{Service: "web", Family: dataplane.IPv6, Endpoints: []convert.Endpoint{
				endpoint("fd00::1", convert.Conditions{Serving: true, Terminating: true, Local: true}),
				endpoint("fd00::2", convert.Conditions{}),
				{Addr: netip.MustParseAddr("fd00::3"), Conditions: ready, Hints: &convert.Hints{Zones: []string{"z"}, Nodes: []string{"me"}}},
			}},
		},
		{
			name: "ports without a number are no ports, without a name they are unnamed", labels: labels,
			text: "{addressType: IPv4, ports: [{name: a}, {port: 53, protocol: UDP}]}",
			want: convert.Slice{Service: "web", Family: dataplane.IPv4, Ports: []convert.Port{{Protocol: dataplane.UDP, Port: 53}}},
		},
		{name: "FQDN", labels: labels, text: "{addressType: FQDN, endpoints: [{addresses: [host.example]}]}"},
		{
			name: "headless", text: "{addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}]}",
			labels: map[string]string{"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""},
		},
		{
			name: "the time of the change that it was written for", labels: labels,
			text: `{metadata: {annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2026-01-02T03:04:05.25Z"}}, addressType: IPv4}`,
			want: convert.Slice{
				Service: "web", Family: dataplane.IPv4, Triggered: time.Date(2026, 1, 2, 3, 4, 5, 250e6, time.UTC),
			},
		},
		{
			name: "a time that is none", labels: labels,
			text: `{metadata: {annotations: {endpoints.kubernetes.io/last-change-trigger-time: yesterday}}, addressType: IPv4}`,
			want: convert.Slice{Service: "web", Family: dataplane.IPv4},
		},
		{
			name: "no label", text: "{addressType: IPv4}",
			problems: []string{"metadata.labels: the slice is ignored: it has no label kubernetes.io/service-name"},
		},
		{
			name: "no address type", labels: labels, text: "{endpoints: []}",
			problems: []string{`addressType: "" is not IPv4, IPv6 or FQDN; the slice is ignored`},
		},
		{
			name: "bad fields cost themselves only", labels: labels,
			text: `{addressType: IPv4, ports: [{port: 0}, {port: 70000}, {port: 80}], endpoints: [
				{addresses: []}, {addresses: [bad]}, {addresses: ["fd00::1"]}, {addresses: [127.0.0.1]}, {addresses: [010.0.0.01]}]}`,
			want: convert.Slice{
				Service: "web", Family: dataplane.IPv4, Ports: []convert.Port{{Protocol: dataplane.TCP, Port: 80}},
				Endpoints: []convert.Endpoint{endpoint("10.0.0.1", ready)},
			},
			problems: []string{
				"ports[0].port: 0 is not a port number (1 to 65535)",
				"ports[1].port: 70000 is not a port number (1 to 65535)",
				"endpoints[0].addresses: there is no address",
				`endpoints[1].addresses: "bad" is not an IP address`,
				"endpoints[2].addresses: fd00::1 is not of family IPv4, the addressType of the slice",
				"endpoints[3].addresses: 127.0.0.1 cannot be an endpoint: unspecified, loopback, link-local or multicast",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := decode[discoveryv1.EndpointSlice](t, test.text)
			in.Namespace, in.Name, in.Labels = "ns", "web-1", test.labels
			test.want.Name = convert.Name{Namespace: "ns", Name: "web-1"}
			got, problems := convert.FromEndpointSlice(in, "me")
			if diff := cmp.Diff(&test.want, got, options()); diff != "" {
				t.Errorf("slice (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.problems, texts(problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFromNode(t *testing.T) {
	t.Parallel()
	in := decode[v1.Node](t, `
metadata: {name: me, labels: {topology.kubernetes.io/zone: z}}
spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.7/24, "fd01::/64", wrong]}
status: {addresses: [{type: Hostname, address: me}, {type: InternalIP, address: 192.168.0.1}, {type: ExternalIP, address: x}]}`)
	got, problems := convert.FromNode(in)
	want := &convert.Node{
		Name: "me", Zone: "z", Labels: map[string]string{"topology.kubernetes.io/zone": "z"},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/64")},
		Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")},
	}
	if diff := cmp.Diff(want, got, options()); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
	wantProblems := []string{`spec.podCIDRs[2]: "wrong" is not a CIDR`, `status.addresses[2].address: "x" is not an IP address`}
	if diff := cmp.Diff(wantProblems, texts(problems)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestFromServiceCIDR(t *testing.T) {
	t.Parallel()
	got, problems := convert.FromServiceCIDR(decode[networkingv1.ServiceCIDR](t,
		`{metadata: {name: kubernetes}, spec: {cidrs: [172.30.0.0/16, "fd00::/112", 1.2.3.4]}}`))
	want := &convert.ServiceCIDR{
		Name: "kubernetes", CIDRs: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00::/112")},
	}
	if diff := cmp.Diff(want, got, options()); diff != "" {
		t.Errorf("ServiceCIDR (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{`spec.cidrs[2]: "1.2.3.4" is not a CIDR`}, texts(problems)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	a := &convert.Slice{Endpoints: []convert.Endpoint{{Hints: &convert.Hints{Zones: []string{"z"}}}}}
	same := &convert.Slice{Triggered: time.Unix(1, 0), Endpoints: []convert.Endpoint{{Hints: &convert.Hints{Zones: []string{"z"}}}}}
	other := &convert.Slice{Endpoints: []convert.Endpoint{{Hints: &convert.Hints{Zones: []string{"y"}}}}}
	if !a.Equal(same) || a.Equal(other) || a.Equal(&convert.Slice{}) || a.Equal(&convert.Service{}) {
		t.Error("Equal is wrong about slices")
	}
}
